//! The resolution of the address vectors of datagrams, for one device.

use mlx5_prm::cqe::L3Header;
use mlx5_prm::wqe::AvSeg;
use vmlx5::{Resolve, Route, RouteHeader};

use crate::address::{Fabric, GidType, LinkLayer, Place};

/// The addresses of a fabric, as one of its devices resolves them.
pub(crate) struct Directory {
    fabric: Fabric,
    device: u32,
    /// The GIDs of all ports, so that a look-up does not build their tables.
    gids: Vec<([u8; 16], Place)>,
    /// The device's own GID tables, by port from 1 on.
    own: Vec<Vec<([u8; 16], GidType)>>,
}

impl Directory {
    pub fn new(fabric: Fabric, device: u32) -> Directory {
        let ports = || 1..=fabric.ports;
        let places =
            (0..fabric.devices).flat_map(|device| ports().map(move |port| Place { device, port }));
        let gids = places.flat_map(|place| {
            let all = fabric.gids(place).into_iter();
            all.map(move |(gid, _)| (gid, place))
        });
        Directory {
            gids: gids.collect(),
            own: ports()
                .map(|port| fabric.gids(Place { device, port }))
                .collect(),
            fabric,
            device,
        }
    }

    fn by_gid(&self, gid: &[u8; 16]) -> Option<Place> {
        let found = self.gids.iter().find(|(g, _)| g == gid);
        found.map(|&(_, place)| place)
    }

    /// The header of a datagram from one of the port's GIDs.
    fn header(&self, av: &AvSeg, port: u8) -> Option<RouteHeader> {
        let table = self.own.get(usize::from(port).checked_sub(1)?)?;
        let &(sgid, kind) = table.get(usize::from(av.sgid_index()))?;
        let mapped = sgid[..10] == [0; 10] && sgid[10..12] == [0xff; 2];
        Some(RouteHeader {
            kind: match kind {
                GidType::First => L3Header::Grh,
                GidType::RoceV2 if mapped => L3Header::Ipv4,
                GidType::RoceV2 => L3Header::Ipv6,
            },
            sgid,
            dgid: av.rgid,
            flow: av.flow_label(),
            tclass: av.tclass,
            hop: av.hop_limit,
        })
    }
}

impl Resolve for Directory {
    fn resolve(&self, av: &AvSeg, port: u8) -> Option<Route> {
        let device = self.device;
        let ethernet = self.fabric.link == LinkLayer::Ethernet;
        let (to, header) = if ethernet {
            // A datagram without a source address is not sent.
            (self.by_gid(&av.rgid)?, Some(self.header(av, port)?))
        } else {
            let header = match av.has_grh() {
                true => Some(self.header(av, port)?),
                false => None,
            };
            let to = match av.rlid.get() {
                0 if header.is_some() => self.by_gid(&av.rgid)?,
                lid => self.fabric.by_lid(lid)?,
            };
            (to, header)
        };
        Some(Route {
            node: self.fabric.node_of(to.device, av.qpn())?,
            port: to.port,
            slid: self.fabric.lid(Place { device, port }),
            sl: match header {
                Some(header) if ethernet => header.kind as u8,
                _ => av.service_level(),
            },
            // Ports have one LID each.
            path_bits: 0,
            header,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(link: LinkLayer) -> Fabric {
        Fabric {
            name: "x".into(),
            devices: 2,
            ports: 2,
            link,
        }
    }

    const QPN: u32 = 3 << crate::address::LOG_QPS | 5;

    #[test]
    fn lid_or_gid_identifies_a_port_on_infiniband() {
        let fabric = fabric(LinkLayer::InfiniBand);
        let directory = Directory::new(fabric.clone(), 1);
        for device in 0..2 {
            for port in 1..=2 {
                let place = Place { device, port };
                let av = AvSeg::infiniband(0, QPN, fabric.lid(place), 7);
                let expected = Route {
                    node: fabric.node(device, 2),
                    port,
                    slid: 4,
                    sl: 7,
                    path_bits: 0,
                    header: None,
                };
                assert_eq!(directory.resolve(&av, 2), Some(expected));
                let (gid, _) = fabric.gids(place)[0];
                let global = AvSeg {
                    rlid: 0.into(),
                    rgid: gid,
                    grh_gid_fl: (AvSeg::GRH | 0x321).into(),
                    tclass: 8,
                    hop_limit: 9,
                    ..av
                };
                let route = directory.resolve(&global, 2).unwrap();
                let (sgid, _) = fabric.gids(Place { device: 1, port: 2 })[0];
                let header = RouteHeader {
                    kind: L3Header::Grh,
                    sgid,
                    dgid: gid,
                    flow: 0x321,
                    tclass: 8,
                    hop: 9,
                };
                let header = Some(header);
                assert_eq!(route, Route { header, ..expected });
            }
        }
        for lid in [0, 5, 0xc000] {
            let av = AvSeg::infiniband(0, QPN, lid, 0);
            assert_eq!(directory.resolve(&av, 1), None);
        }
        // QP numbers below all slots; a port and a GID that the device does not have.
        let av = AvSeg::infiniband(0, 5, 1, 0);
        assert_eq!(directory.resolve(&av, 1), None);
        let global = AvSeg {
            grh_gid_fl: (AvSeg::GRH | 1 << 20).into(),
            ..AvSeg::infiniband(0, QPN, 1, 0)
        };
        assert_eq!(directory.resolve(&global, 1), None);
    }

    #[test]
    fn gid_identifies_a_port_on_ethernet_and_the_local_gid_the_header() {
        let fabric = fabric(LinkLayer::Ethernet);
        let directory = Directory::new(fabric.clone(), 0);
        let gids = fabric.gids(Place { device: 1, port: 1 });
        let kinds = [L3Header::Grh, L3Header::Ipv6, L3Header::Grh, L3Header::Ipv4];
        for (index, kind) in kinds.into_iter().enumerate() {
            let av = AvSeg {
                rgid: gids[index].0,
                grh_gid_fl: ((index as u32) << 20).into(),
                // On Ethernet a port of UDP.
                ..AvSeg::infiniband(0, QPN, 0xc123, 4)
            };
            let route = directory.resolve(&av, 2).unwrap();
            let header = route.header.unwrap();
            assert_eq!((route.node, route.port), (fabric.node(1, 2), 1));
            assert_eq!((route.slid, route.sl), (0, kind as u8));
            assert_eq!((header.kind, header.dgid), (kind, gids[index].0));
            assert_eq!(
                header.sgid,
                fabric.gids(Place { device: 0, port: 2 })[index].0
            );
        }
        let unused = AvSeg {
            rgid: [9; 16],
            ..AvSeg::infiniband(0, QPN, 1, 0)
        };
        assert_eq!(directory.resolve(&unused, 1), None);
    }
}
