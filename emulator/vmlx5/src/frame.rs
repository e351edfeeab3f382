//! What travels between two NICs: a 64-byte header and at most [`MAX_PAYLOAD`] bytes.
//!
//! A message is cut into packets of the path's MTU, numbered by PSNs modulo 2^24 that start
//! where both sides were told to. A frame is a run of packets of one message: `psn` is the
//! number of the first, `count` says how many. Each frame says where its bytes belong, so that
//! one that arrives alone, late or twice is understood by itself.

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

/// A frame's header as it lies in a ring. Little-endian, and not yet checked.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    /// Payload bytes that follow.
    pub len: U32,
    /// A [`Kind`].
    pub kind: u8,
    /// `FIRST`, `LAST`, `IMM`, `SOLICITED`, `INVALIDATE`, `ACKREQ`, `GRH`.
    pub flags: u8,
    /// Of a NAK: what is wrong, one of the [`nak`] codes.
    pub code: u8,
    /// A vendor syndrome, in a NAK.
    pub vendor: u8,
    /// The queue pair this frame is for.
    pub dst_qpn: U32,
    /// The queue pair it comes from.
    pub src_qpn: U32,
    /// Number of its first packet; of an ACK the last that arrived, of a NAK the first that is
    /// missing or at fault, of a hint the one expected.
    pub psn: U32,
    /// Remote key of a write, read or atomic. Datagrams: the queue key.
    pub rkey: U32,
    /// Length of the whole message in bytes.
    pub total: U32,
    /// Where in the message the payload begins.
    pub offset: U32,
    /// Remote address of a write, read or atomic.
    pub va: U64,
    /// Atomics: what to add or to swap in. Their answer: what was there.
    pub operand: U64,
    /// Compare-and-swap: what must be there. Datagrams: from low to high the LID it is from and
    /// the partition key (16 bits each), the service level, the path bits and the port
    /// it arrives by (8 each).
    pub compare: U64,
    /// Immediate data, as it stood in the work queue entry; or the key to invalidate, likewise.
    pub imm: [u8; 4],
    /// How many packets it is; one if it carries no payload.
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
/// The message asks for a solicited event.
pub const SOLICITED: u8 = 8;
/// The message takes a key of the receiver out of use.
pub const INVALIDATE: u8 = 16;
/// The sender wants an acknowledgement though the message is not complete.
pub const ACKREQ: u8 = 32;
/// The payload of a datagram starts with the 40 bytes of a header, as its receiver finds them.
pub const GRH: u8 = 64;

/// What a NAK says.
pub mod nak {
    /// Packets are missing: send again from `psn`.
    pub const PSN: u8 = 0;
    /// The request is malformed.
    pub const INVALID: u8 = 1;
    /// The access is refused.
    pub const ACCESS: u8 = 2;
    /// The responder failed.
    pub const OPERATION: u8 = 3;
    /// Receiver not ready: come again after the time that the low five bits stand for.
    pub const RNR: u8 = 0x20;
    /// The highest code.
    pub const MAX: u8 = RNR | 31;
}

/// What a frame is. The first five are requests, the others answers.
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
    /// Part of what a READ asked for.
    ReadData = 18,
    /// What an atomic found.
    AtomicData = 19,
    /// A responder that was not ready is ready now. Only between NICs that are not strict.
    Hint = 20,
}

impl Kind {
    /// The kind of this number, if there is one.
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

    /// True of a frame that a responder handles.
    pub const fn is_request(self) -> bool {
        (self as u8) < 16
    }

    /// True of a frame with a payload.
    pub const fn carries(self) -> bool {
        matches!(self, Kind::Send | Kind::Write | Kind::ReadData)
    }
}

/// A frame that no sane NIC sends. Closes the link it came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The kind means nothing.
    #[error("frame of unknown kind {0}")]
    Kind(u8),
    /// More payload than a frame may carry, or than the ring holds.
    #[error("frame of {len} payload bytes where at most {limit} are possible")]
    Length {
        /// Payload bytes named by the header.
        len: u64,
        /// The most there can be.
        limit: u64,
    },
    /// The payload does not lie in the message, or the message is too long.
    #[error("frame of bytes {offset}+{len} of a message of {total}")]
    Message {
        /// Where the payload begins.
        offset: u32,
        /// Payload bytes.
        len: u32,
        /// Bytes of the message.
        total: u32,
    },
    /// An MTU, a number of packets or a code that cannot be.
    #[error("frame with {what} {value}")]
    Field {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// A number wider than the 24 bits it has.
    #[error("frame with {what} {value:#x} of more than 24 bits")]
    Wide {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
    /// A ring's head and tail cannot both be right.
    #[error("ring of {size} bytes with head {head:#x} and tail {tail:#x}")]
    Indices {
        /// Where the reader says it is.
        head: u64,
        /// Where the writer says it is.
        tail: u64,
        /// Bytes of the ring.
        size: u64,
    },
}

/// A header that was checked, in the machine's own byte order.
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
    /// How many packets; of a frame to be sent it follows from its length.
    pub count: u32,
    pub mtu_log: u8,
    pub service: u8,
}

/// How many packets `len` bytes are.
#[inline]
pub(crate) fn packets(len: u32, mtu_log: u8) -> u32 {
    // Not `div_ceil`, which would divide.
    ((u64::from(len) + (1 << mtu_log) - 1) >> mtu_log).max(1) as u32
}

impl Frame {
    /// Which number has more than its 24 bits.
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
    /// Checks everything that can be told without knowing the connection.
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

    /// The number `by` after `p`.
    pub fn add(p: u32, by: u32) -> u32 {
        let short = mutant::on(Mutant::ShortNumbers);
        p.wrapping_add(by) & if short { MASK >> 1 } else { MASK }
    }

    /// How far `b` lies after `a`, 0 .. 2^24.
    pub fn after(a: u32, b: u32) -> u32 {
        b.wrapping_sub(a) & MASK
    }

    /// True if packet `a` comes before packet `b`, both recent.
    pub fn before(a: u32, b: u32) -> bool {
        (1..1 << 23).contains(&after(a, b))
    }
}
