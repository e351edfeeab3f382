//! The encoding by which ranks name the end of a path, memory, and the address of a receive to each
//! other.
//!
//! An end or memory is named by records, one for each path that reaches it; only the path
//! interprets its own record. A reader skips records of unknown paths.

use crate::error::{Error, Kind, Result};

/// The path by queue pairs of a NIC; see `path::nic`.
pub const NIC: u8 = 1;
/// The path of a rank to itself; see `path::copy`.
pub const LOCAL: u8 = 2;
/// The path between ranks of one host; see `path::ipc`.
pub const IPC: u8 = 3;
/// The path by queue pairs that TCP carries; see `path::nic`.
pub const TCP: u8 = 4;
/// Maximum number of records in one message.
pub const MOST: usize = 4;

/// The name of an object on one path: at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The path.
    pub path: u8,
    /// The bytes, which only the path interprets.
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
            let name = match path {
                NIC => "nic",
                LOCAL => "local",
                IPC => "ipc",
                _ => "tcp",
            };
            let what = format!(
                "the control message has no record for the path {name}, which this rank uses; use \
                 the same MP_PATH and GDS_PROVIDER on all ranks"
            );
            Error::new("read control message", Kind::Protocol, what)
        })
    }
}

/// The address of a receive, which the receiver writes into the sender's return block: the address
/// (64 bits), the keys by rail (32 bits each), a mask of the valid keys (32 bits). The other bytes
/// of its [`Place::ROOM`] are for handles of shared memory. Kernels read the address and the first
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address of the receive's memory.
    pub addr: u64,
    /// The remote keys, by rail.
    pub keys: [Option<u32>; 4],
}

impl Place {
    /// Number of bytes that are written.
    pub const LEN: usize = 28;
    /// Number of bytes that are reserved for it.
    pub const ROOM: usize = 64;

    /// Encodes the place.
    pub fn encode(&self) -> [u8; Place::LEN] {
        let mut b = [0; Place::LEN];
        b[..8].copy_from_slice(&self.addr.to_le_bytes());
        for (nic, key) in self.keys.iter().enumerate() {
            b[8 + 4 * nic..12 + 4 * nic].copy_from_slice(&key.unwrap_or(0).to_le_bytes());
            b[24] |= u8::from(key.is_some()) << nic;
        }
        b
    }

    /// Decodes a place.
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
    fn places_round_trip() {
        let keys = [Some(7), None, Some(0), Some(u32::MAX)];
        let place = Place {
            addr: 0x7fff_1234_5678_9abc,
            keys,
        };
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), place);
        // The bytes that kernels read.
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
