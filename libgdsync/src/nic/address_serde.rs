//! Address records as serde values: a record is serialized as its bytes, so that its version and
//! its rules are checked when it is read.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};

use super::{QpAddress, RemoteMemory};

impl Serialize for QpAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.to_bytes()[..].serialize(to)
    }
}

impl<'de> Deserialize<'de> for QpAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<QpAddress, D::Error> {
        QpAddress::from_bytes(&Vec::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl Serialize for RemoteMemory {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.to_bytes()[..].serialize(to)
    }
}

impl<'de> Deserialize<'de> for RemoteMemory {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RemoteMemory, D::Error> {
        RemoteMemory::from_bytes(&Vec::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use crate::nic::{PortAddress, QpAddress, RemoteMemory};

    #[test]
    fn addresses_round_trip_and_another_version_is_refused() {
        let port = PortAddress {
            lid: 0x1234,
            mtu: 5,
            gid: *b"sixteen bytes ..",
        };
        let text = serde_json::to_string(&port).unwrap();
        assert_eq!(serde_json::from_str::<PortAddress>(&text).unwrap(), port);
        let qp = QpAddress {
            node: u64::MAX,
            qpn: 0x00ab_cdef,
            psn: 0x0012_3456,
            gpu: 1,
            process: 7,
            port: Some(port),
            qkey: Some(9),
            rail: 3,
        };
        let text = serde_json::to_string(&qp).unwrap();
        assert_eq!(serde_json::from_str::<QpAddress>(&text).unwrap(), qp);
        let memory = RemoteMemory {
            addr: 0x7fff_0000_1000,
            len: 1 << 40,
            rkeys: [Some(7), None, Some(0), None],
        };
        let text = serde_json::to_string(&memory).unwrap();
        assert_eq!(serde_json::from_str::<RemoteMemory>(&text).unwrap(), memory);
        let e = serde_json::from_str::<QpAddress>(&text).unwrap_err();
        assert!(e.to_string().contains("the record has type 2"), "{e}");
        let mut bytes = memory.to_bytes();
        bytes[4] = 9;
        let text = serde_json::to_string(&bytes[..]).unwrap();
        let e = serde_json::from_str::<RemoteMemory>(&text).unwrap_err();
        assert!(e.to_string().contains("version 9"), "{e}");
    }
}
