//! Addresses of linked-in virtual NICs for datagrams: a GID with a separate prefix, and the node's
//! number behind it. Every datagram has a global route header, so that its receiver gets the
//! address of the sender.

use mlx5_prm::cqe::L3Header;
use mlx5_prm::wqe::AvSeg;
use vmlx5::fabric::NodeId;
use vmlx5::{Resolve, Route, RouteHeader};

/// Prefix of addresses that belong to no network (RFC 4193).
const PREFIX: [u8; 8] = [0xfd, b'v', b'm', b'l', b'x', b'5', 0, 0];
/// The hop limit, which the virtual network does not use.
const HOPS: u8 = 64;

fn gid(node: NodeId) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&PREFIX);
    gid[8..].copy_from_slice(&node.0.to_be_bytes());
    gid
}

/// The address vector of a node, without the remote queue pair number and its key.
pub(super) fn address(node: NodeId) -> AvSeg {
    AvSeg {
        hop_limit: HOPS,
        grh_gid_fl: AvSeg::GRH.into(),
        rgid: gid(node),
        ..AvSeg::infiniband(0, 0, 0, 0)
    }
}

/// The resolver of addresses for one node.
pub(super) struct Nodes {
    own: [u8; 16],
}

impl Nodes {
    pub fn new(own: NodeId) -> Nodes {
        Nodes { own: gid(own) }
    }
}

impl Resolve for Nodes {
    fn resolve(&self, av: &AvSeg, _port: u8) -> Option<Route> {
        let (prefix, node) = av.rgid.split_first_chunk()?;
        let node = u64::from_be_bytes(node.try_into().ok()?);
        (*prefix == PREFIX).then_some(Route {
            node: NodeId(node),
            port: 1,
            slid: 0,
            sl: 0,
            path_bits: 0,
            header: Some(RouteHeader {
                kind: L3Header::Grh,
                sgid: self.own,
                dgid: av.rgid,
                flow: av.flow_label(),
                tclass: av.tclass,
                hop: av.hop_limit,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_the_node_that_it_was_made_for() {
        let (here, there) = (NodeId(7), NodeId(0x1122_3344_5566_7788));
        let route = Nodes::new(here).resolve(&address(there), 1).unwrap();
        assert_eq!(route.node, there);
        let header = route.header.unwrap();
        let back = AvSeg {
            rgid: header.sgid,
            ..address(there)
        };
        let back = Nodes::new(there).resolve(&back, 1).unwrap();
        assert_eq!(back.node, here);
        let mut other = address(there);
        other.rgid[5] ^= 1;
        assert_eq!(Nodes::new(here).resolve(&other, 1), None);
    }
}
