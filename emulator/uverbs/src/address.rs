//! Addresses: GUIDs, LIDs and GIDs of the devices of a fabric, and the mapping from a QP number to
//! the NIC of a process.
//!
//! All processes of a fabric have the same devices: `mlx5_0` of one process is `mlx5_0` of the
//! other. On each device, each process has a *slot*, with a NIC and a range of QP numbers by which
//! the other processes find it.

use vmlx5::QpnSpace;
use vmlx5::fabric::NodeId;

/// The number of QPs of one process on one device, as a power of two.
pub const LOG_QPS: u8 = 12;
/// The number of processes on one device: QP numbers have 24 bits, and the first range stays
/// unused.
pub const SLOTS: u32 = (1 << (24 - LOG_QPS)) - 1;
/// The maximal number of devices of a fabric.
pub const MAX_DEVICES: u32 = 64;
/// The maximal number of ports of a device.
pub const MAX_PORTS: u8 = 4;

const GUID: u64 = 0xb8ce_f603_0000_0000;

/// The link layer of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: ports have LIDs.
    #[default]
    InfiniBand,
    /// Ethernet: GIDs identify peers (RoCE).
    Ethernet,
}

/// Kinds of GID table entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand, or RoCE version 1.
    First,
    /// RoCE version 2.
    RoceV2,
}

impl GidType {
    /// Its name in `gid_attrs/types`.
    pub fn name(self) -> &'static str {
        match self {
            GidType::First => "IB/RoCE v1",
            GidType::RoceV2 => "RoCE v2",
        }
    }
}

/// The devices of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Its name; a process with another name has other devices.
    pub name: String,
    /// The number of devices.
    pub devices: u32,
    /// The number of ports of each device.
    pub ports: u8,
    /// The link layer of the ports.
    pub link: LinkLayer,
}

/// A port of a device; ports count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device.
    pub device: u32,
    /// Its port.
    pub port: u8,
}

impl Fabric {
    /// The GUID of a device.
    pub fn guid(&self, device: u32) -> u64 {
        GUID | u64::from(device + 1) << 8
    }

    /// The LID of a port; 0 on Ethernet, which has none.
    pub fn lid(&self, place: Place) -> u16 {
        match self.link {
            LinkLayer::Ethernet => 0,
            LinkLayer::InfiniBand => {
                let before = place.device as u16 * u16::from(self.ports);
                before + u16::from(place.port)
            }
        }
    }

    /// The GID table of a port.
    pub fn gids(&self, place: Place) -> Vec<([u8; 16], GidType)> {
        let guid = self.guid(place.device) + u64::from(place.port);
        let mut local = [0; 16];
        local[..2].copy_from_slice(&[0xfe, 0x80]);
        local[8..].copy_from_slice(&guid.to_be_bytes());
        if self.link == LinkLayer::InfiniBand {
            return vec![(local, GidType::First)];
        }
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 127, 0, place.device as u8, place.port]);
        let both = |gid| [(gid, GidType::First), (gid, GidType::RoceV2)];
        [both(local), both(mapped)].concat()
    }

    /// The Ethernet address of a port.
    pub fn mac(&self, place: Place) -> [u8; 6] {
        [0xb8, 0xce, 0xf6, 0, place.device as u8 + 1, place.port]
    }

    /// The port with a LID.
    pub fn by_lid(&self, lid: u16) -> Option<Place> {
        let index = u32::from(lid.checked_sub(1)?);
        let ports = u32::from(self.ports);
        let place = Place {
            device: index / ports,
            port: (index % ports) as u8 + 1,
        };
        (place.device < self.devices && self.link == LinkLayer::InfiniBand).then_some(place)
    }

    /// The port with a GID.
    pub fn by_gid(&self, gid: &[u8; 16]) -> Option<Place> {
        let all = (0..self.devices).flat_map(|device| {
            let ports = 1..=self.ports;
            ports.map(move |port| Place { device, port })
        });
        let mut all = all;
        all.find(|&place| self.gids(place).iter().any(|(g, _)| g == gid))
    }

    /// The name of a process's NIC on a device.
    pub fn node(&self, device: u32, slot: u32) -> NodeId {
        // FNV-1a: names of fabrics are few.
        let hash = |h: u32, b: u8| (h ^ u32::from(b)).wrapping_mul(0x0100_0193);
        let name = self.name.bytes().fold(0x811c_9dc5, hash);
        NodeId(u64::from(name) << 32 | u64::from(device & 0xff) << 16 | u64::from(slot))
    }

    /// The process's slot in the name of its NIC.
    pub fn slot(node: NodeId) -> u32 {
        node.0 as u32 & 0xffff
    }

    /// The queue pair numbers of a slot.
    pub fn qpns(slot: u32) -> QpnSpace {
        QpnSpace {
            base: (slot + 1) << LOG_QPS,
            bits: LOG_QPS,
        }
    }

    /// The node of the process whose NIC has QP `qpn` of a device.
    pub fn node_of(&self, device: u32, qpn: u32) -> Option<NodeId> {
        let slot = (qpn >> LOG_QPS).checked_sub(1).filter(|&s| s < SLOTS)?;
        Some(self.node(device, slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(link: LinkLayer) -> Fabric {
        Fabric {
            name: "x".into(),
            devices: 3,
            ports: 2,
            link,
        }
    }

    #[test]
    fn every_port_is_found_by_its_addresses() {
        for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            let f = fabric(link);
            for device in 0..3 {
                for port in 1..=2 {
                    let place = Place { device, port };
                    for (gid, _) in f.gids(place) {
                        assert_eq!(f.by_gid(&gid), Some(place));
                    }
                    match link {
                        LinkLayer::InfiniBand => {
                            assert_eq!(f.by_lid(f.lid(place)), Some(place));
                        }
                        LinkLayer::Ethernet => assert_eq!(f.lid(place), 0),
                    }
                }
            }
            assert_eq!(f.by_lid(0), None);
            assert_eq!(f.by_lid(7), None);
            assert_eq!(f.by_gid(&[9; 16]), None);
        }
    }

    #[test]
    fn qp_number_identifies_its_process() {
        let f = fabric(LinkLayer::InfiniBand);
        for slot in [0, 1, SLOTS - 1] {
            let space = Fabric::qpns(slot);
            assert!(space.base > 0 && space.base + (1 << space.bits) <= 1 << 24);
            let node = f.node(2, slot);
            assert_eq!(f.node_of(2, space.base + 5), Some(node));
            assert_ne!(f.node_of(1, space.base + 5), Some(node));
            assert_eq!(Fabric::slot(node), slot);
        }
        assert_eq!(f.node_of(0, 5), None);
        let other = Fabric {
            name: "y".into(),
            ..f.clone()
        };
        assert_ne!(f.node(0, 0), other.node(0, 0));
    }
}
