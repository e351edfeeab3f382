//! What travels between two NICs: a 64-byte header and at most [`MAX_PAYLOAD`] bytes.
//!
//! A message is cut into frames; the first carries what the responder must know, each says
//! where its bytes belong. `seq` numbers the messages of one direction of a connection,
//! modulo 2^24, starting where both sides were told to. A queue pair that becomes ready says
//! so by a [`Kind::Resume`]; what its former life sent is told apart by that.

use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most payload bytes one frame carries.
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
    /// `FIRST`, `LAST`, `IMM`, `SOLICITED`.
    pub flags: u8,
    /// A syndrome, in a NAK.
    pub code: u8,
    /// A vendor syndrome, in a NAK.
    pub vendor: u8,
    /// The queue pair this frame is for.
    pub dst_qpn: U32,
    /// The queue pair it comes from.
    pub src_qpn: U32,
    /// Number of the message it belongs to or speaks of.
    pub seq: U32,
    /// Remote key of a write, read or atomic.
    pub rkey: U32,
    /// Length of the whole message in bytes.
    pub total: U32,
    /// Where in the message the payload begins.
    pub offset: U32,
    /// Remote address of a write, read or atomic.
    pub va: U64,
    /// Atomics: what to add or to swap in. Their answer: what was there.
    pub operand: U64,
    /// Compare-and-swap: what must be there.
    pub compare: U64,
    /// Immediate data, as it stood in the work queue entry.
    pub imm: [u8; 4],
    /// Which life of the source queue pair this frame is from: every RESET begins another.
    pub life: U16,
    /// In an answer to a request that nobody took: the life it came from. Else zero.
    pub echo: U16,
}

/// First frame of a message.
pub const FIRST: u8 = 1;
/// Last frame of a message.
pub const LAST: u8 = 2;
/// The message carries immediate data.
pub const IMM: u8 = 4;
/// The message asks for a solicited event.
pub const SOLICITED: u8 = 8;

/// What a frame is. The first five are requests, the others answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Part of a SEND.
    Send = 1,
    /// Part of an RDMA WRITE.
    Write = 2,
    /// An RDMA READ request.
    Read = 3,
    /// A compare-and-swap request.
    CompareSwap = 4,
    /// A fetch-and-add request.
    FetchAdd = 5,
    /// Every message up to `seq` is done.
    Ack = 16,
    /// Message `seq` failed for the reason in `code`.
    Nak = 17,
    /// Part of what a READ asked for.
    ReadData = 18,
    /// What an atomic found.
    AtomicData = 19,
    /// Message `seq` found no receive, or a queue pair that is not connected yet: stop there.
    NotReady = 20,
    /// Go on, from message `seq`.
    Resume = 21,
    /// The other end's [`Kind::Resume`] was heard; this is who speaks.
    Hello = 23,
    /// The queue pair that was waiting for message `seq` answers no more.
    Gone = 22,
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
            20 => Kind::NotReady,
            21 => Kind::Resume,
            22 => Kind::Gone,
            23 => Kind::Hello,
            _ => return None,
        })
    }

    /// True of a frame that a responder handles.
    pub const fn is_request(self) -> bool {
        (self as u8) < 16
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
    pub seq: u32,
    pub rkey: u32,
    pub total: u32,
    pub offset: u32,
    pub va: u64,
    pub operand: u64,
    pub compare: u64,
    pub imm: [u8; 4],
    pub life: u16,
    pub echo: u16,
}

impl Frame {
    pub fn new(kind: Kind, dst_qpn: u32, src_qpn: u32, seq: u32) -> Frame {
        Frame {
            kind,
            flags: 0,
            code: 0,
            vendor: 0,
            dst_qpn,
            src_qpn,
            seq,
            rkey: 0,
            total: 0,
            offset: 0,
            va: 0,
            operand: 0,
            compare: 0,
            imm: [0; 4],
            life: 0,
            echo: 0,
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
            seq: self.seq.into(),
            rkey: self.rkey.into(),
            total: self.total.into(),
            offset: self.offset.into(),
            va: self.va.into(),
            operand: self.operand.into(),
            compare: self.compare.into(),
            imm: self.imm,
            life: self.life.into(),
            echo: self.echo.into(),
        }
    }
}

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
            seq: self.seq.get(),
            rkey: self.rkey.get(),
            total: self.total.get(),
            offset: self.offset.get(),
            va: self.va.get(),
            operand: self.operand.get(),
            compare: self.compare.get(),
            imm: self.imm,
            life: self.life.get(),
            echo: self.echo.get(),
        };
        if payload > MAX_PAYLOAD {
            return Err(FrameError::Length {
                len: payload as u64,
                limit: MAX_PAYLOAD as u64,
            });
        }
        for (what, value) in [
            ("destination QPN", frame.dst_qpn),
            ("source QPN", frame.src_qpn),
            ("sequence number", frame.seq),
        ] {
            if value >> 24 != 0 {
                return Err(FrameError::Wide { what, value });
            }
        }
        let carries = matches!(kind, Kind::Send | Kind::Write | Kind::ReadData);
        let end = u64::from(frame.offset) + payload as u64;
        let ends = end == u64::from(frame.total);
        let sane = if carries {
            frame.total <= MAX_MESSAGE
                && end <= u64::from(frame.total)
                && frame.is(FIRST) == (frame.offset == 0)
                && frame.is(LAST) == ends
                && (payload > 0 || frame.total == 0)
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

/// Numbers of 24 bits that wrap: message sequence numbers.
pub(crate) mod seq {
    /// The mask of a sequence number.
    pub const MASK: u32 = 0xff_ffff;

    /// The number after `s`.
    pub fn next(s: u32) -> u32 {
        (s + 1) & MASK
    }

    /// How far `b` lies after `a`, 0 .. 2^24.
    pub fn after(a: u32, b: u32) -> u32 {
        b.wrapping_sub(a) & MASK
    }
}
