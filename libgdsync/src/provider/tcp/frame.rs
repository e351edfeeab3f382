//! Frames: what two queue pairs send each other on their connection. Pure.
//!
//! A frame is a head of [`HEAD`] bytes and its payload. Requests have no numbers: both sides count
//! them. `ack` in each head is the number of the receiver's requests that the sender has executed,
//! `receives` the number of receives that the sender has posted: a request that takes a receive is
//! sent only if there is one, so a side never stops reading because it has no receive. All numbers are
//! little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | kind |
//! | 1 | syndrome, of [`Kind::Refuse`] |
//! | 2..4 | `receives`, modulo 2^16 |
//! | 4..8 | length of the data; of a READ, what it asks for |
//! | 8..16 | remote address |
//! | 16..20 | remote key |
//! | 20..24 | immediate data, as in the request |
//! | 24..32 | `ack` |
//!
//! What a kind does not use is 0.

use super::Broken;

/// Bytes of a head.
pub const HEAD: usize = 32;
/// Maximum length of the data of one request, in bytes.
pub const MOST: u32 = 1 << 31;
/// Bytes behind the head of an atomic: two operands.
pub const OPERANDS: u32 = 16;

/// The kind of a frame. Those up to `FetchAdd` are requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Write,
    WriteImm,
    Send,
    SendImm,
    SendInvalidate,
    Read,
    CompareSwap,
    FetchAdd,
    /// The answer to the oldest READ or atomic.
    Response,
    /// Nothing but `ack` and `receives`.
    Ack,
    /// The request behind those that `ack` counts is refused; no other follows.
    Refuse,
}

/// All kinds, in the order of their numbers.
pub const KINDS: [Kind; 11] = [
    Kind::Write,
    Kind::WriteImm,
    Kind::Send,
    Kind::SendImm,
    Kind::SendInvalidate,
    Kind::Read,
    Kind::CompareSwap,
    Kind::FetchAdd,
    Kind::Response,
    Kind::Ack,
    Kind::Refuse,
];

impl Kind {
    /// Whether it takes a receive of the peer.
    pub fn takes_receive(self) -> bool {
        matches!(
            self,
            Kind::WriteImm | Kind::Send | Kind::SendImm | Kind::SendInvalidate
        )
    }

    /// Whether it names memory of the peer.
    fn names_memory(self) -> bool {
        self.fetches() || matches!(self, Kind::Write | Kind::WriteImm)
    }

    /// Whether it has immediate data.
    pub fn has_imm(self) -> bool {
        matches!(self, Kind::WriteImm | Kind::SendImm | Kind::SendInvalidate)
    }

    /// Bytes behind the head of a frame whose length is `len`.
    pub fn payload(self, len: u32) -> u32 {
        match self {
            Kind::Read | Kind::Ack | Kind::Refuse => 0,
            Kind::CompareSwap | Kind::FetchAdd => OPERANDS,
            _ => len,
        }
    }

    /// Whether the peer answers with data.
    pub fn fetches(self) -> bool {
        matches!(self, Kind::Read | Kind::CompareSwap | Kind::FetchAdd)
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    pub syndrome: u8,
    pub len: u32,
    pub addr: u64,
    pub rkey: u32,
    pub imm: u32,
    pub ack: u64,
    pub receives: u16,
}

impl Head {
    pub fn new(kind: Kind, len: u32) -> Head {
        Head {
            kind,
            len,
            syndrome: 0,
            addr: 0,
            rkey: 0,
            imm: 0,
            ack: 0,
            receives: 0,
        }
    }

    /// The same without what its kind does not use.
    pub fn used(self) -> Head {
        let Head { kind, .. } = self;
        let (memory, data) = (
            kind.names_memory(),
            !matches!(kind, Kind::Ack | Kind::Refuse),
        );
        Head {
            syndrome: if kind == Kind::Refuse {
                self.syndrome
            } else {
                0
            },
            len: if data { self.len } else { 0 },
            addr: if memory { self.addr } else { 0 },
            rkey: if memory { self.rkey } else { 0 },
            imm: if kind.has_imm() { self.imm } else { 0 },
            ..self
        }
    }

    pub fn encode(&self) -> [u8; HEAD] {
        let mut b = [0; HEAD];
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        b[0] = kind.unwrap_or_default() as u8 + 1;
        b[1] = self.syndrome;
        b[2..4].copy_from_slice(&self.receives.to_le_bytes());
        b[4..8].copy_from_slice(&self.len.to_le_bytes());
        b[8..16].copy_from_slice(&self.addr.to_le_bytes());
        b[16..20].copy_from_slice(&self.rkey.to_le_bytes());
        b[20..24].copy_from_slice(&self.imm.to_le_bytes());
        b[24..].copy_from_slice(&self.ack.to_le_bytes());
        b
    }

    /// # Errors
    /// The reason if no peer of this release sends these bytes.
    pub fn decode(b: &[u8; HEAD]) -> Result<Head, Broken> {
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let kind = KINDS.get(usize::from(b[0]).wrapping_sub(1));
        let head = Head {
            kind: *kind.ok_or(Broken::Frame("its kind does not exist"))?,
            syndrome: b[1],
            len: word(4),
            addr: wide(8),
            rkey: word(16),
            imm: word(20),
            ack: wide(24),
            receives: u16::from_le_bytes([b[2], b[3]]),
        };
        if head.len > MOST {
            return Err(Broken::Frame("its data are too long"));
        }
        let atomic = matches!(head.kind, Kind::CompareSwap | Kind::FetchAdd);
        if atomic && head.len != 8 {
            return Err(Broken::Frame("an atomic is not of 8 bytes"));
        }
        match head.used() == head {
            true => Ok(head),
            false => Err(Broken::Frame("bytes that its kind does not use are not 0")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip_and_other_bytes_are_refused() {
        for kind in KINDS {
            let head = Head {
                syndrome: 0x13,
                addr: 0x1122_3344_5566_7788,
                rkey: 0xdead_beef,
                imm: 7,
                ack: u64::MAX,
                receives: 0xfedc,
                ..Head::new(kind, 8)
            };
            let used = head.used();
            let bytes = used.encode();
            assert_eq!(Head::decode(&bytes), Ok(used));
            for (at, value) in [(0, 0), (0, 12), (0, 0xff), (7, 0x81)] {
                let mut other = bytes;
                other[at] = value;
                assert!(Head::decode(&other).is_err(), "{kind:?} byte {at}");
            }
            // Each byte that the kind does not use.
            for (at, byte) in head.encode().into_iter().enumerate() {
                let mut other = bytes;
                other[at] = byte;
                let refused = Head::decode(&other).is_err();
                assert_eq!(refused, byte != bytes[at], "{kind:?} byte {at}");
            }
        }
        assert!(Head::decode(&Head::new(Kind::FetchAdd, 16).encode()).is_err());
    }
}
