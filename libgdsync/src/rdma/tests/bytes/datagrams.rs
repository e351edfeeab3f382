//! The same comparison for datagrams: to each kind of destination, on either link.

use super::request::{Kind, Request};
use super::rig::{By, Rig};
use super::{BYS, all_flags, shapes};
use crate::Gpu;
use crate::nic::{AhAttr, Nic as _, QpAddress};
use crate::provider::ibv::Handle;
use crate::provider::mlx5::Mlx5Nic;
use crate::provider::mlx5::tests::VendorQp;
use crate::rdma::{Destination, GRH, Pd, Source};
use crate::virtual_nic::inside;

/// Destinations, each made by a call of the public interface, with the address handle by which
/// libmlx5 sends there: the local port; on InfiniBand also a port of another subnet, and the source
/// of a datagram.
pub(super) fn destinations(gpu: &Gpu, pd: &Pd, theirs: &VendorQp) -> Vec<(Destination, Handle)> {
    let nic = Mlx5Nic::open(gpu, None).unwrap();
    let port = nic.port().expect("a real port");
    let address = QpAddress {
        node: 0,
        qpn: 0x00ab_cdef,
        psn: 0,
        gpu: 0,
        process: 0,
        port: Some(port),
        qkey: Some(0x7654_3210),
        rail: 0,
    };
    let mut elsewhere = port.gid;
    elsewhere[7] ^= 1;
    let far = port.gid(elsewhere);
    let mut ports = vec![port];
    if port.lid != 0 {
        ports.push(far);
    }
    let mut all: Vec<_> = ports
        .into_iter()
        .map(|port| {
            let way = AhAttr::Port {
                lid: port.lid,
                gid: Some(port.gid),
                service_level: None,
            };
            let to = address.port(port);
            (pd.destination(&to).unwrap(), theirs.handle(&nic, &way))
        })
        .collect();
    if port.lid != 0 {
        let source = Source {
            qpn: 0x00ff_fffe,
            lid: 0xbfff,
            service_level: 11,
            grh: false,
        };
        let way = AhAttr::Port {
            lid: source.lid,
            gid: None,
            service_level: Some(source.service_level),
        };
        let back = pd.answer_to(&source, &[0; GRH], 0).unwrap();
        all.push((back, theirs.handle(&nic, &way)));
    }
    all
}

/// Every shape, with all destinations and flags in turn; each length in segments over every
/// position of the ring's end.
fn compare() {
    let mut rig = Rig::of_datagrams(64);
    for (fill, imm) in [(0xa5, 0x0102_0304), (0, u32::MAX)] {
        rig.fill = fill;
        for kind in Kind::UD {
            for (i, shape) in shapes(kind, rig.memory()).into_iter().enumerate() {
                let request = Request {
                    flags: all_flags().nth((i + usize::from(fill)) % 8).unwrap(),
                    imm,
                    to: i % rig.destinations.len(),
                    ..shape
                };
                let by = BYS[usize::from(i % 16 == 0)];
                rig.send(&request, by).unwrap();
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    let to = rig.destinations.len() - 1;
    for shape in shapes(Kind::DatagramImm, rig.memory()) {
        let segments = shape.segments();
        if !seen.insert((shape.data.name(), segments)) {
            continue;
        }
        for before in 1..segments.div_ceil(4) as u32 {
            rig.go_to(64 - before).unwrap();
            let request = Request {
                to,
                ..shape.clone()
            };
            rig.send(&request, By::Cpu).unwrap();
        }
    }
    rig.tally.print();
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn every_datagram_by_infiniband() {
    inside!(&[]);
    compare();
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn every_datagram_by_ethernet() {
    inside!(&[("VMLX5_LINK", "roce")]);
    compare();
}
