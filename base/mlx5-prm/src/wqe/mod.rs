//! Work queue entries: the format of a request in the ring.
//!
//! A send WQE is a sequence of *segments* of 16 bytes: a control segment, then the segments that
//! the operation needs (remote address, atomic operands, address vector), then the data. The data
//! are pointers to registered memory, or the bytes themselves (*inline*). A WQE starts at a
//! multiple of 64 bytes (*basic block*); queue indices count basic blocks. A receive WQE is a list
//! of pointers in a slot of fixed size (*stride*).
//!
//! [`SendWqe`] describes a request and encodes it into a [`SegmentSink`]; [`parse_send`] and
//! [`parse_datagram`] parse an entry. [`encode_recv`] and [`parse_recv`] do the same for receives.
//!
//! # Equal to the vendor's library
//! - *Fence*: a fenced request carries mode [`FENCE`] (0x80), not [`FENCE_READS`], whatever its
//!   operation. It does not affect the next request: an unfenced request right after a fenced READ
//!   has mode 0. (The vendor's library also fences the request after a local invalidation or a
//!   memory registration in the queue. This crate has no such operations.)
//! - *Empty pieces*: this hardware reads a byte count of 0 as 2 GiB. Pointers of length 0 are
//!   therefore left out of the entry, and an inline payload of no bytes has no segment.
//! - *Inline pieces* are joined in one inline segment.
//!
//! # Different from the vendor's library
//! - *Unused bytes* are zero: the rest of the last inline segment, and the comparand of a fetch and
//!   add. The vendor's library leaves the previous bytes of the ring there.
//! - A pointer of exactly 2 GiB has a byte count of 0, here and in the parsers. The vendor's
//!   library writes the length unchanged, and its highest bit marks inline data.

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

/// The size in bytes of a basic block, the unit of send queue indices.
pub const BASIC_BLOCK: usize = 64;
/// The size in bytes of a segment, the unit of an entry's size.
pub const SEGMENT: usize = 16;
/// The maximal number of segments of an entry: its size has six bits.
pub const MAX_SEGMENTS: usize = 63;
/// The maximal number of inline bytes of one inline segment: its size has ten bits.
pub const MAX_INLINE: usize = 0x3ff;
/// The maximal length of one pointer: 2 GiB.
pub const MAX_SGE_LEN: u32 = 1 << 31;
/// The bit of a byte count that marks an inline segment.
pub const INLINE_FLAG: u32 = 1 << 31;
/// An lkey that is never valid; it ends the list of a receive WQE.
pub const INVALID_LKEY: u32 = 0x100;

/// In the control segment's `fm_ce_se`: write a completion entry (signaled).
pub const CE_SIGNALED: u8 = 0x08;
/// In the control segment's `fm_ce_se`: raise an event at the receiver (solicited).
pub const SE: u8 = 0x02;
/// The bits of the fence mode in `fm_ce_se`.
pub const FENCE_MASK: u8 = 0xe0;
/// Fence mode: wait for the READs and atomics before this entry.
pub const FENCE_READS: u8 = 0x40;
/// Fence mode of a fenced request in the vendor's library: as [`FENCE_READS`], and wait for the
/// local invalidations and registrations before this entry.
pub const FENCE: u8 = 0x80;

/// The number of basic blocks of an entry of `ds` segments.
#[inline]
pub const fn basic_blocks(ds: u8) -> u8 {
    ds.div_ceil((BASIC_BLOCK / SEGMENT) as u8)
}
