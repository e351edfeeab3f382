//! The frames between two NICs: a 64-byte header and at most [`MAX_PAYLOAD`] bytes of payload.
//!
//! A message is cut into packets of the path's MTU. PSNs modulo 2^24 number the packets from the
//! start values of both sides. A frame is a run of packets of one message: `psn` is the number of
//! the first packet, `count` is their number. Each frame contains the place of its bytes, so a
//! receiver can handle a frame that arrives alone, late or twice.

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most payload bytes one frame carries; every MTU divides it.
pub const MAX_PAYLOAD: usize = 32 * 1024;

/// The longest message in bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Size of a header in bytes.
pub const HEADER: usize = size_of::<FrameHeader>();

const _: () = assert!(HEADER == 64, "a header fills one cache line");

/// The header of a frame in a ring. Little-endian, and not checked yet.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    /// Payload bytes that follow.
    pub len: U32,
    /// A [`Kind`].
    pub kind: u8,
    /// `FIRST`, `LAST`, `IMM`, `SOLICITED`, `INVALIDATE`, `ACKREQ`, `GRH`.
    pub flags: u8,
    /// Of a NAK: the reason, one of the [`nak`] codes.
    pub code: u8,
    /// A vendor syndrome, in a NAK.
    pub vendor: u8,
    /// The destination queue pair.
    pub dst_qpn: U32,
    /// The source queue pair.
    pub src_qpn: U32,
    /// Number of its first packet. Of an ACK: the last packet that arrived. Of a NAK: the first
    /// packet that is missing or at fault. Of a hint: the expected packet.
    pub psn: U32,
    /// Remote key of a write, read or atomic. Datagrams: the queue key.
    pub rkey: U32,
    /// Length of the whole message in bytes.
    pub total: U32,
    /// Offset of the payload in the message.
    pub offset: U32,
    /// Remote address of a write, read or atomic.
    pub va: U64,
    /// Atomics: the operand to add or to swap in. Answers to atomics: the old value.
    pub operand: U64,
    /// Compare-and-swap: the expected value. Datagrams: from low to high the source LID and the
    /// partition key (16 bits each), the service level, the path bits and the destination port (8
    /// each).
    pub compare: U64,
    /// Immediate data, or the key to invalidate, in the byte order of the work queue entry.
    pub imm: [u8; 4],
    /// Number of packets; 1 if it carries no payload.
    pub count: U16,
    /// Logarithm of the path's MTU: 8 to 12.
    pub mtu_log: u8,
    /// The kind of transport: 0 RC, 1 UC, 2 UD.
    pub service: u8,
}

/// First frame of a message.
pub const FIRST: u8 = 1;
/// Last frame of a message.
pub const LAST: u8 = 2;
/// The message carries immediate data.
pub const IMM: u8 = 4;
/// The message requests a solicited event.
pub const SOLICITED: u8 = 8;
/// The message invalidates a key of the receiver.
pub const INVALIDATE: u8 = 16;
/// The sender requests an acknowledgement before the message is complete.
pub const ACKREQ: u8 = 32;
/// The payload of a datagram starts with a header of 40 bytes, in the form that its receiver reads.
pub const GRH: u8 = 64;

/// The codes of a NAK.
pub mod nak {
    /// Packets are missing: the requester retransmits from `psn`.
    pub const PSN: u8 = 0;
    /// The request is invalid.
    pub const INVALID: u8 = 1;
    /// The access is refused.
    pub const ACCESS: u8 = 2;
    /// The responder failed.
    pub const OPERATION: u8 = 3;
    /// Receiver not ready: the requester retries after the time that the low five bits encode.
    pub const RNR: u8 = 0x20;
    /// The highest code.
    pub const MAX: u8 = RNR | 31;
}

/// The kind of a frame. The first five are requests, the others answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Part of a SEND.
    Send = 1,
    /// Part of an RDMA WRITE.
    Write = 2,
    /// An RDMA READ request: `total` bytes, whose answer takes the PSNs from `psn` on.
    Read = 3,
    /// A compare-and-swap request.
    CompareSwap = 4,
    /// A fetch-and-add request.
    FetchAdd = 5,
    /// Every packet up to `psn` arrived.
    Ack = 16,
    /// Every packet before `psn` arrived; see [`nak`].
    Nak = 17,
    /// Part of the answer to a READ.
    ReadData = 18,
    /// The answer to an atomic: the old value.
    AtomicData = 19,
    /// A hint: a responder that was not ready is ready now. Only between NICs that are not strict.
    Hint = 20,
}

impl Kind {
    /// The kind for a number, if one exists.
    pub const fn from_u8(kind: u8) -> Option<Kind> {
        Some(match kind {
            1 => Kind::Send,
            2 => Kind::Write,
            3 => Kind::Read,
            4 => Kind::CompareSwap,
            5 => Kind::FetchAdd,
            16 => Kind::Ack,
            17 => Kind::Nak,
            18 => Kind::ReadData,
            19 => Kind::AtomicData,
            20 => Kind::Hint,
            _ => return None,
        })
    }

    /// Returns true for a frame that a responder handles.
    pub const fn is_request(self) -> bool {
        (self as u8) < 16
    }

    /// Returns true for a frame with a payload.
    pub const fn carries(self) -> bool {
        matches!(self, Kind::Send | Kind::Write | Kind::ReadData)
    }
}

/// An invalid frame, which a correct NIC never sends. It closes the link that it arrives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The kind is unknown.
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    /// The payload is longer than a frame may carry, or than the ring holds.
    #[error("a frame has {len} payload bytes: the limit is {limit}")]
    Length {
        /// Payload bytes in the header.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The payload is not inside the message, or the message is too long.
    #[error("bytes {offset}+{len} of a frame exceed its message of {total} bytes or its limit")]
    Message {
        /// Offset of the payload.
        offset: u32,
        /// Payload bytes.
        len: u32,
        /// Length of the message in bytes.
        total: u32,
    },
    /// An MTU, a number of packets or a code is invalid.
    #[error("a frame has an invalid {what}: {value}")]
    Field {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// A number exceeds its 24 bits.
    #[error("a frame has a {what} of more than 24 bits: {value:#x}")]
    Wide {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// The head and the tail of a ring contradict each other.
    #[error("a ring of {size} bytes has an impossible head {head:#x} or tail {tail:#x}")]
    Indices {
        /// The reader's position.
        head: u64,
        /// The writer's position.
        tail: u64,
        /// Size of the ring in bytes.
        size: u64,
    },
}

/// A checked header, in the machine's byte order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub kind: Kind,
    pub flags: u8,
    pub code: u8,
    pub vendor: u8,
    pub dst_qpn: u32,
    pub src_qpn: u32,
    pub psn: u32,
    pub rkey: u32,
    pub total: u32,
    pub offset: u32,
    pub va: u64,
    pub operand: u64,
    pub compare: u64,
    pub imm: [u8; 4],
    /// Number of packets; for a frame to send, its length gives the number.
    pub count: u32,
    pub mtu_log: u8,
    pub service: u8,
}

/// Number of packets for `len` bytes.
#[inline]
pub(crate) fn packets(len: u32, mtu_log: u8) -> u32 {
    // Not `div_ceil`, which would divide.
    ((u64::from(len) + (1 << mtu_log) - 1) >> mtu_log).max(1) as u32
}

impl Frame {
    /// The first number that exceeds 24 bits.
    #[cold]
    fn too_wide(&self) -> FrameError {
        let (what, value) = match (self.dst_qpn >> 24, self.src_qpn >> 24) {
            (1.., _) => ("destination QPN", self.dst_qpn),
            (_, 1..) => ("source QPN", self.src_qpn),
            _ => ("PSN", self.psn),
        };
        FrameError::Wide { what, value }
    }

    pub fn new(kind: Kind, dst_qpn: u32, src_qpn: u32, psn: u32) -> Frame {
        Frame {
            kind,
            flags: 0,
            code: 0,
            vendor: 0,
            dst_qpn,
            src_qpn,
            psn,
            rkey: 0,
            total: 0,
            offset: 0,
            va: 0,
            operand: 0,
            compare: 0,
            imm: [0; 4],
            count: 1,
            mtu_log: MTU_LOGS.1,
            service: 0,
        }
    }

    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The header of this frame with `len` payload bytes.
    pub fn encode(&self, len: usize) -> FrameHeader {
        FrameHeader {
            len: (len as u32).into(),
            kind: self.kind as u8,
            flags: self.flags,
            code: self.code,
            vendor: self.vendor,
            dst_qpn: self.dst_qpn.into(),
            src_qpn: self.src_qpn.into(),
            psn: self.psn.into(),
            rkey: self.rkey.into(),
            total: self.total.into(),
            offset: self.offset.into(),
            va: self.va.into(),
            operand: self.operand.into(),
            compare: self.compare.into(),
            imm: self.imm,
            count: (packets(len as u32, self.mtu_log) as u16).into(),
            mtu_log: self.mtu_log,
            service: self.service,
        }
    }
}

/// The smallest and the largest MTU, as logarithms.
pub(crate) const MTU_LOGS: (u8, u8) = (8, 12);

impl FrameHeader {
    /// Checks everything that does not depend on the connection.
    pub(crate) fn decode(&self, payload: usize) -> Result<Frame, FrameError> {
        let kind = Kind::from_u8(self.kind).ok_or(FrameError::Kind(self.kind))?;
        let frame = Frame {
            kind,
            flags: self.flags,
            code: self.code,
            vendor: self.vendor,
            dst_qpn: self.dst_qpn.get(),
            src_qpn: self.src_qpn.get(),
            psn: self.psn.get(),
            rkey: self.rkey.get(),
            total: self.total.get(),
            offset: self.offset.get(),
            va: self.va.get(),
            operand: self.operand.get(),
            compare: self.compare.get(),
            imm: self.imm,
            count: self.count.get().into(),
            mtu_log: self.mtu_log,
            service: self.service,
        };
        if payload > MAX_PAYLOAD {
            return Err(FrameError::Length {
                len: payload as u64,
                limit: MAX_PAYLOAD as u64,
            });
        }
        if (frame.dst_qpn | frame.src_qpn | frame.psn) >> 24 != 0 {
            return Err(frame.too_wide());
        }
        let field = |what, value: u32| Err(FrameError::Field { what, value });
        if !(MTU_LOGS.0..=MTU_LOGS.1).contains(&frame.mtu_log) {
            return field("MTU of logarithm", frame.mtu_log.into());
        }
        if frame.service > 2 {
            return field("service", frame.service.into());
        }
        if frame.count != packets(payload as u32, frame.mtu_log) {
            return field("packets", frame.count);
        }
        let known = matches!(frame.code, 0..=nak::OPERATION | nak::RNR..=nak::MAX);
        if kind == Kind::Nak && !known {
            return field("NAK code", frame.code.into());
        }
        let end = u64::from(frame.offset) + payload as u64;
        let ends = end == u64::from(frame.total);
        let sane = if kind.carries() {
            frame.total <= MAX_MESSAGE
                && end <= u64::from(frame.total)
                && frame.is(FIRST) == (frame.offset == 0)
                && frame.is(LAST) == ends
                && (payload > 0 || frame.total == 0)
                && (ends || payload.is_multiple_of(1 << frame.mtu_log))
                && frame.offset.is_multiple_of(1 << frame.mtu_log)
        } else {
            payload == 0 && frame.total <= MAX_MESSAGE
        };
        if !sane {
            return Err(FrameError::Message {
                offset: frame.offset,
                len: payload as u32,
                total: frame.total,
            });
        }
        Ok(frame)
    }
}

/// Packet numbers: 24 bits that wrap.
pub(crate) mod psn {
    use crate::mutant::{self, Mutant};

    /// The mask of a number.
    pub const MASK: u32 = 0xff_ffff;

    /// The number `by` packets after `p`.
    pub fn add(p: u32, by: u32) -> u32 {
        let short = mutant::on(Mutant::ShortNumbers);
        p.wrapping_add(by) & if short { MASK >> 1 } else { MASK }
    }

    /// The distance from `a` to `b`, 0 .. 2^24.
    pub fn after(a: u32, b: u32) -> u32 {
        b.wrapping_sub(a) & MASK
    }

    /// Returns true if packet `a` precedes packet `b`; both are recent.
    pub fn before(a: u32, b: u32) -> bool {
        (1..1 << 23).contains(&after(a, b))
    }
}
