//! How ranks name an end of a path, memory, and the place of a receive to each other.
//!
//! An end or memory is named by records, one for each path by which it can be reached; only the path
//! knows what is in its own. A reader passes over records of paths that it does not know.

use crate::error::{Error, Kind, Result};

/// The path by a NIC; see `path::nic`.
pub const NIC: u8 = 1;
/// The path of a rank to itself; see `path::local`.
pub const LOCAL: u8 = 2;
/// Records of one message.
pub const MOST: usize = 4;

/// What names something to one path: at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Which path.
    pub path: u8,
    /// What only that knows.
    pub bytes: Vec<u8>,
}

impl Record {
    pub fn new(path: u8, bytes: &[u8]) -> Record {
        Record {
            path,
            bytes: bytes.to_vec(),
        }
    }

    /// The bytes for `path`.
    ///
    /// # Errors
    /// `Protocol` if there are none.
    pub fn find(records: &[Record], path: u8) -> Result<&[u8]> {
        let found = records.iter().find(|record| record.path == path);
        found.map(|record| &record.bytes[..]).ok_or_else(|| {
            let what = format!("no record for path {path}");
            Error::new("read control message", Kind::Protocol, what)
        })
    }
}

/// Where a receive lies, as it tells its sender in the return block: the address (64 bits), the keys
/// by rail (32 bits each), which of them are keys (32 bits). The other bytes of its
/// [`Place::ROOM`] are for handles of shared memory. Kernels read the address and the first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address.
    pub addr: u64,
    /// By rail.
    pub keys: [Option<u32>; 4],
}

impl Place {
    /// Bytes that are told.
    pub const LEN: usize = 28;
    /// Bytes that there are for it.
    pub const ROOM: usize = 64;

    /// The bytes.
    pub fn encode(&self) -> [u8; Place::LEN] {
        let mut b = [0; Place::LEN];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        for (nic, key) in self.keys.iter().enumerate() {
            b[8 + 4 * nic..12 + 4 * nic].copy_from_slice(&key.unwrap_or(0).to_le_bytes());
            b[24] |= u8::from(key.is_some()) << nic;
        }
        b
    }

    /// Reads them.
    pub fn decode(b: &[u8; Place::LEN]) -> Place {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let key = |nic: usize| (b[24] >> nic & 1 == 1).then(|| word(8 + 4 * nic));
        Place {
            addr: u64::from(word(4)) << 32 | u64::from(word(0)),
            keys: [key(0), key(1), key(2), key(3)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_the_trip() {
        let keys = [Some(7), None, Some(0), Some(u32::MAX)];
        let place = Place {
            addr: 0x7fff_1234_5678_9abc,
            keys,
        };
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), place);
        // What kernels read.
        assert_eq!(
            bytes[..12],
            [0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0xff, 0x7f, 7, 0, 0, 0]
        );
    }

    #[test]
    fn a_record_is_found_among_those_of_unknown_paths() {
        let records = [Record::new(9, b"other"), Record::new(NIC, b"mine")];
        assert_eq!(Record::find(&records, NIC).unwrap(), b"mine");
        let e = Record::find(&records[..1], NIC).unwrap_err();
        assert_eq!(e.kind(), Kind::Protocol);
    }
}
