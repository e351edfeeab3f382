//! What can be wrong with a request to encode, and with bytes to parse.

use thiserror::Error;

use super::{MAX_INLINE, MAX_SEGMENTS, MAX_SGE_LEN, Part};
use crate::opcode::SendOpcode;

/// A request that has no valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The opcode is not one that this crate encodes.
    #[error("opcode {opcode} is not supported")]
    Unsupported {
        /// The opcode.
        opcode: SendOpcode,
    },
    /// The opcode needs a part that is not there.
    #[error("{opcode} needs {part}")]
    Missing {
        /// The opcode.
        opcode: SendOpcode,
        /// What is not there.
        part: Part,
    },
    /// A part is there that the opcode cannot have.
    #[error("{opcode} cannot have {part}")]
    Unexpected {
        /// The opcode.
        opcode: SendOpcode,
        /// What must not be there.
        part: Part,
    },
    /// The entry is larger than its size field can say.
    #[error("a work queue entry of {segments} segments; the limit is {MAX_SEGMENTS}")]
    TooManySegments {
        /// Segments it would have.
        segments: usize,
    },
    /// More inline bytes than an inline segment's size field can say.
    #[error("{len} inline bytes; the limit is {MAX_INLINE}")]
    InlineTooLong {
        /// Bytes of all pieces together.
        len: usize,
    },
    /// A pointer names more than 2 GiB.
    #[error("an SGE of {len} bytes; the limit is {MAX_SGE_LEN}")]
    SgeTooLong {
        /// Its length in bytes.
        len: u32,
    },
    /// A queue pair number has more than 24 bits.
    #[error("queue pair number {qpn:#x}; the limit is 0xffffff")]
    QpNumber {
        /// The number.
        qpn: u32,
    },
    /// A NOP of no segments or of more than there can be.
    #[error("a NOP of {ds} segments; allowed are 1 to {MAX_SEGMENTS}")]
    NopSize {
        /// Segments asked for.
        ds: u8,
    },
    /// A receive list does not fit its slot.
    #[error("a receive of {sges} SGEs in a slot of {stride} bytes, 16 bytes each")]
    RecvTooLong {
        /// Pointers in the list, empty ones not counted.
        sges: usize,
        /// Size of the slot in bytes.
        stride: usize,
    },
    /// The size of a receive slot is not a positive multiple of 16.
    #[error("a receive slot of {stride} bytes; it must be a positive multiple of 16")]
    RecvStride {
        /// Size of the slot in bytes.
        stride: usize,
    },
    /// The memory given for the entry is too small.
    #[error("an entry of {needed} bytes written to {capacity} bytes of memory")]
    SinkFull {
        /// Bytes there were.
        capacity: usize,
        /// Bytes that were to be written.
        needed: usize,
    },
}

/// Bytes that are no valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The control segment itself is not all there.
    #[error("{len} bytes are less than a control segment")]
    NoCtrl {
        /// Bytes there are.
        len: usize,
    },
    /// The control segment gives a size of 0 or more than the limit.
    #[error("an entry that says it has {ds} segments; allowed are 1 to {MAX_SEGMENTS}")]
    Size {
        /// Segments it says.
        ds: u8,
    },
    /// The entry says it is larger than the bytes there are.
    #[error("an entry of {ds} segments in {len} bytes")]
    Truncated {
        /// Segments it says.
        ds: u8,
        /// Bytes there are.
        len: usize,
    },
    /// The opcode, or its modifier, is not one that this crate parses.
    #[error("opcode {opcode} with modifier {opmod:#x} is not supported")]
    Unsupported {
        /// The opcode.
        opcode: SendOpcode,
        /// Its modifier.
        opmod: u8,
    },
    /// The entry ends before the segments that its opcode needs.
    #[error("{opcode} of {ds} segments lacks {part}")]
    Missing {
        /// The opcode.
        opcode: SendOpcode,
        /// Segments the entry has.
        ds: u8,
        /// What is not there.
        part: Part,
    },
    /// Inline data where the opcode allows none.
    #[error("{opcode} cannot have inline data, found in segment {segment}")]
    InlineNotAllowed {
        /// The opcode.
        opcode: SendOpcode,
        /// Where, counted from the control segment.
        segment: u8,
    },
    /// An inline segment with a size that has no such meaning.
    #[error("{len} inline bytes in segment {segment}; the limit is {MAX_INLINE}")]
    InlineTooLong {
        /// Where, counted from the control segment.
        segment: u8,
        /// The size it says.
        len: u32,
    },
    /// Inline data that reaches past the end of the entry.
    #[error("{len} inline bytes in segment {segment} reach past the end of the entry")]
    InlineOverrun {
        /// Where, counted from the control segment.
        segment: u8,
        /// The size it says.
        len: u32,
    },
    /// The size of a receive slot is not a positive multiple of 16.
    #[error("a receive slot of {len} bytes; it must be a positive multiple of 16")]
    RecvStride {
        /// Bytes there are.
        len: usize,
    },
    /// A byte count in a receive list has its highest bit set: a receive cannot be inline.
    #[error("SGE {sge} of a receive has byte count {byte_count:#x}, which is no length")]
    RecvByteCount {
        /// Which, from 0.
        sge: usize,
        /// What it says.
        byte_count: u32,
    },
}
