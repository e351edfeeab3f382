//! Errors of encoding a request, and of parsing an entry.

use thiserror::Error;

use super::{MAX_INLINE, MAX_SEGMENTS, MAX_SGE_LEN, Part};
use crate::opcode::SendOpcode;

/// A request without a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// This crate does not encode the opcode.
    #[error("opcode {opcode} is not supported")]
    Unsupported {
        /// The opcode.
        opcode: SendOpcode,
    },
    /// The request lacks a part that the opcode needs.
    #[error("{opcode} needs {part}")]
    Missing {
        /// The opcode.
        opcode: SendOpcode,
        /// The missing part.
        part: Part,
    },
    /// The request has a part that the opcode does not permit.
    #[error("{opcode} cannot have {part}")]
    Unexpected {
        /// The opcode.
        opcode: SendOpcode,
        /// The part that is not permitted.
        part: Part,
    },
    /// The WQE has more segments than its size field can count.
    #[error("the WQE has {segments} segments; the limit is {MAX_SEGMENTS}")]
    TooManySegments {
        /// The number of segments.
        segments: usize,
    },
    /// The inline payload is longer than the size field of an inline segment permits.
    #[error("the payload has {len} inline bytes; the limit is {MAX_INLINE}")]
    InlineTooLong {
        /// The total length of all pieces in bytes.
        len: usize,
    },
    /// A pointer covers more than 2 GiB.
    #[error("the SGE has {len} bytes; the limit is {MAX_SGE_LEN}")]
    SgeTooLong {
        /// Its length in bytes.
        len: u32,
    },
    /// A queue pair number has more than 24 bits.
    #[error("QP number {qpn:#x} is above the limit 0xffffff")]
    QpNumber {
        /// The number.
        qpn: u32,
    },
    /// A NOP of zero segments, or of more than the maximum.
    #[error("the NOP has {ds} segments; it must have 1 to {MAX_SEGMENTS}")]
    NopSize {
        /// The requested number of segments.
        ds: u8,
    },
    /// A receive list is longer than its slot.
    #[error("the receive has {sges} SGEs of 16 bytes; its slot has {stride} bytes")]
    RecvTooLong {
        /// The number of pointers in the list, without empty ones.
        sges: usize,
        /// Size of the slot in bytes.
        stride: usize,
    },
    /// The size of a receive slot is not a positive multiple of 16.
    #[error("the receive slot has {stride} bytes; it must be a positive multiple of 16")]
    RecvStride {
        /// Size of the slot in bytes.
        stride: usize,
    },
    /// The output memory is too small for the entry.
    #[error("the entry has {needed} bytes, and the memory for it has {capacity} bytes")]
    SinkFull {
        /// The size of the memory in bytes.
        capacity: usize,
        /// The number of bytes to write.
        needed: usize,
    },
}

/// Bytes that are not a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end before the end of the control segment.
    #[error("{len} bytes are less than a control segment")]
    NoCtrl {
        /// The number of bytes.
        len: usize,
    },
    /// The size in the control segment is 0 or above the limit.
    #[error("the size of the entry is {ds} segments; it must be 1 to {MAX_SEGMENTS}")]
    Size {
        /// The size in segments.
        ds: u8,
    },
    /// The size in the control segment is larger than the number of bytes.
    #[error("the entry has {ds} segments of 16 bytes, but only {len} bytes are given")]
    Truncated {
        /// The size in segments.
        ds: u8,
        /// The number of bytes.
        len: usize,
    },
    /// This crate does not parse the opcode or its modifier.
    #[error("opcode {opcode} with modifier {opmod:#x} is not supported")]
    Unsupported {
        /// The opcode.
        opcode: SendOpcode,
        /// The opcode modifier.
        opmod: u8,
    },
    /// The entry ends before the segments that its opcode needs.
    #[error("{opcode} of {ds} segments lacks {part}")]
    Missing {
        /// The opcode.
        opcode: SendOpcode,
        /// The size of the entry in segments.
        ds: u8,
        /// The missing part.
        part: Part,
    },
    /// The entry has inline data, which the opcode does not permit.
    #[error("{opcode} cannot have inline data, found in segment {segment}")]
    InlineNotAllowed {
        /// The opcode.
        opcode: SendOpcode,
        /// The index of the segment, counted from the control segment.
        segment: u8,
    },
    /// The size of an inline segment is above the limit.
    #[error("segment {segment} has {len} inline bytes; the limit is {MAX_INLINE}")]
    InlineTooLong {
        /// The index of the segment, counted from the control segment.
        segment: u8,
        /// The size in the segment.
        len: u32,
    },
    /// Inline data reach past the end of the entry.
    #[error("{len} inline bytes in segment {segment} reach past the end of the entry")]
    InlineOverrun {
        /// The index of the segment, counted from the control segment.
        segment: u8,
        /// The size in the segment.
        len: u32,
    },
    /// The size of a receive slot is not a positive multiple of 16.
    #[error("the receive slot has {len} bytes; it must be a positive multiple of 16")]
    RecvStride {
        /// The size of the slot in bytes.
        len: usize,
    },
    /// A byte count in a receive list has its highest bit set; a receive cannot be inline.
    #[error("SGE {sge} of a receive has byte count {byte_count:#x}, which is not a length")]
    RecvByteCount {
        /// The index of the pointer, from 0.
        sge: usize,
        /// The byte count.
        byte_count: u32,
    },
}
