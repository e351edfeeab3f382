//! Work queue entries: how a request looks in the ring.
//!
//! A send queue entry is a row of *segments* of 16 bytes: a control segment, then what the
//! operation needs (remote address, atomic operands, address vector), then the data: pointers
//! to registered memory, or the bytes themselves (*inline*). Entries start at multiples of 64
//! bytes (*basic blocks*), by which queue indices count. A receive queue entry is a list of
//! pointers in a slot of fixed size (*stride*).
//!
//! [`SendWqe`] describes a request and encodes itself into a [`SegmentSink`]; [`parse_send`],
//! or [`parse_datagram`], takes an entry apart. [`encode_recv`] and [`parse_recv`] do the same for receives.
//!
//! # What the vendor's library does, and we do as well
//! - *Fence*: a fenced request carries mode [`FENCE`] (0x80), not [`FENCE_READS`], whatever
//!   its operation. It leaves no mark on the next one: an unfenced request right after a fenced
//!   READ has mode 0. (A fence on its own account, after a local invalidation or a memory
//!   registration in the queue, does not arise here: there are no such operations.)
//! - *Empty pieces*: a pointer with a byte count of 0 means 2 GiB to this hardware, so
//!   pointers of length 0 are left out of the entry, and an inline payload of no bytes has no
//!   segment.
//! - *Inline pieces* are joined in one inline segment.
//!
//! # What we do in another way
//! - *What nobody reads* is zero: the rest of the last inline segment, the comparand of a fetch
//!   and add. The vendor's library leaves there what was there before.
//! - A pointer of exactly 2 GiB has a byte count of 0, here and in the parsers. The vendor's
//!   library writes the length as it is, whose highest bit marks inline data.

mod error;
mod parse;
mod part;
mod recv;
mod segment;
mod send;
mod sink;

pub use error::{FormatError, ParseError};
pub use parse::{Data, DataItems, ParsedWqe, parse_datagram, parse_send};
pub use part::Part;
pub use recv::{RecvSges, encode_recv, parse_recv};
pub use segment::{AtomicSeg, AvSeg, CtrlSeg, DataSeg, RaddrSeg};
pub use send::{Atomic, Encoded, Payload, Remote, SendWqe, Sge, WqeFlags, encode_nop};
pub use sink::{SegmentSink, SliceSink};

/// Size in bytes of a basic block, the unit of send queue indices.
pub const BASIC_BLOCK: usize = 64;
/// Size in bytes of a segment, the unit of an entry's size.
pub const SEGMENT: usize = 16;
/// Most segments of an entry: its size has six bits.
pub const MAX_SEGMENTS: usize = 63;
/// Most inline bytes of one inline segment: its size has ten bits.
pub const MAX_INLINE: usize = 0x3ff;
/// Most bytes one pointer can name: 2 GiB.
pub const MAX_SGE_LEN: u32 = 1 << 31;
/// Marks the byte count of an inline segment.
pub const INLINE_FLAG: u32 = 1 << 31;
/// A local key that is never valid; it ends the list of a receive queue entry.
pub const INVALID_LKEY: u32 = 0x100;

/// In the control segment's `fm_ce_se`: write a completion entry.
pub const CE_SIGNALED: u8 = 0x08;
/// In the control segment's `fm_ce_se`: ask for an event at the receiver.
pub const SE: u8 = 0x02;
/// The bits of the fence mode in `fm_ce_se`.
pub const FENCE_MASK: u8 = 0xe0;
/// Fence mode: wait for the READs and atomics before this entry.
pub const FENCE_READS: u8 = 0x40;
/// Fence mode of a fenced request, as the vendor's library writes it: that, and to wait for the local
/// invalidations and registrations before this entry.
pub const FENCE: u8 = 0x80;

/// Basic blocks that an entry of `ds` segments occupies.
#[inline]
pub const fn basic_blocks(ds: u8) -> u8 {
    ds.div_ceil((BASIC_BLOCK / SEGMENT) as u8)
}
