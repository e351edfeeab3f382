//! The encoder of send WQEs.

use super::{
    AtomicSeg, AvSeg, CE_SIGNALED, CtrlSeg, DataSeg, FENCE, FENCE_MASK, FENCE_READS, FormatError,
    INLINE_FLAG, MAX_INLINE, MAX_SEGMENTS, MAX_SGE_LEN, Part, RaddrSeg, SE, SEGMENT, SegmentSink,
    basic_blocks,
};
use crate::doorbell;
use crate::opcode::SendOpcode;

/// A range of registered local memory (SGE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The address in the MR.
    pub addr: u64,
    /// The lkey.
    pub lkey: u32,
    /// The length in bytes, at most [`MAX_SGE_LEN`]. Pieces of length 0 are left out of entries.
    pub len: u32,
}

/// A remote address with its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// The address in the MR of the peer.
    pub addr: u64,
    /// The rkey.
    pub rkey: u32,
}

/// An atomic operation on eight bytes of the peer. The payload's memory receives the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Compare and swap: stores `swap` if the old value equals `compare`.
    CompareSwap {
        /// The value to compare.
        compare: u64,
        /// The value to store on a match.
        swap: u64,
    },
    /// Fetch and add: adds `add`, modulo 2^64.
    FetchAdd {
        /// The value to add.
        add: u64,
    },
}

impl Atomic {
    /// The opcode of these operands.
    #[inline]
    pub const fn opcode(&self) -> SendOpcode {
        match self {
            Atomic::CompareSwap { .. } => SendOpcode::ATOMIC_CS,
            Atomic::FetchAdd { .. } => SendOpcode::ATOMIC_FA,
        }
    }

    #[inline]
    const fn segment(&self) -> AtomicSeg {
        match *self {
            Atomic::CompareSwap { compare, swap } => AtomicSeg::new(swap, compare),
            Atomic::FetchAdd { add } => AtomicSeg::new(add, 0),
        }
    }
}

/// The data of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Payload<'a> {
    /// No data.
    #[default]
    None,
    /// Registered memory: SENDs and WRITEs read it, READs and atomics write it.
    Gather(&'a [Sge]),
    /// Inline data: the entry contains the joined pieces. Their memory needs no registration and
    /// may be reused at once. At most [`MAX_INLINE`] bytes, and no more than the entry has room
    /// for.
    Inline(&'a [&'a [u8]]),
}

impl Payload<'_> {
    /// The number of segments of the payload, and of inline bytes in it.
    #[inline]
    fn size(&self) -> Result<(usize, usize), FormatError> {
        match *self {
            Payload::None => Ok((0, 0)),
            Payload::Gather(sges) => Ok((count(sges)?, 0)),
            Payload::Inline(pieces) => {
                let len = pieces
                    .iter()
                    .fold(0, |n: usize, p| n.saturating_add(p.len()));
                if len > MAX_INLINE {
                    return Err(FormatError::InlineTooLong { len });
                }
                let segments = if len == 0 {
                    0
                } else {
                    (4 + len).div_ceil(SEGMENT)
                };
                Ok((segments, len))
            }
        }
    }
}

/// The number of pointers of the list in an entry, without empty ones.
#[inline]
pub(super) fn count(sges: &[Sge]) -> Result<usize, FormatError> {
    let mut n = 0;
    for sge in sges {
        if sge.len > MAX_SGE_LEN {
            return Err(FormatError::SgeTooLong { len: sge.len });
        }
        n += usize::from(sge.len != 0);
    }
    Ok(n)
}

/// Writes the pointers that [`count`] has counted.
#[inline]
pub(super) fn put_pointers(sges: &[Sge], sink: &mut impl SegmentSink) {
    for sge in sges.iter().filter(|sge| sge.len != 0) {
        sink.put(&DataSeg::new(*sge).to_bytes());
    }
}

/// The flags of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WqeFlags {
    /// Signaled: write a completion entry. (A failed request writes one in any case.)
    pub signaled: bool,
    /// Solicited: raise an event at the receiver.
    pub solicited: bool,
    /// Fence: start only after the earlier READs and atomics are complete.
    pub fence: bool,
}

impl WqeFlags {
    /// The control segment's byte `fm_ce_se`.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        let signaled = if self.signaled { CE_SIGNALED } else { 0 };
        let solicited = if self.solicited { SE } else { 0 };
        let fence = if self.fence { FENCE } else { 0 };
        signaled | solicited | fence
    }

    /// Parses `fm_ce_se`. Every fence mode that waits for READs counts as a fence.
    #[inline]
    pub const fn from_byte(byte: u8) -> WqeFlags {
        WqeFlags {
            signaled: byte & CE_SIGNALED != 0,
            solicited: byte & SE != 0,
            fence: byte & FENCE_MASK >= FENCE_READS,
        }
    }
}

/// A send queue request.
///
/// The opcode determines the parts. READs, WRITEs and atomics have a `remote`. Atomics have
/// `atomic` operands of their kind. Only opcodes with immediate data have an immediate other than
/// zero (for [`SendOpcode::SEND_INV`] it is the key to invalidate). Only SENDs on UD QPs have an
/// address vector. READs and atomics have no inline payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendWqe<'a> {
    /// The operation.
    pub opcode: SendOpcode,
    /// The flags.
    pub flags: WqeFlags,
    /// Immediate data, in network order.
    pub imm: [u8; 4],
    /// The remote address.
    pub remote: Option<Remote>,
    /// Operands of an atomic operation.
    pub atomic: Option<Atomic>,
    /// The destination, on a UD QP.
    pub av: Option<AvSeg>,
    /// The data.
    pub payload: Payload<'a>,
}

/// The result of encoding an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Its size in segments of 16 bytes.
    pub ds: u8,
    /// Its size in basic blocks of 64 bytes: the advance of the queue's index.
    pub basic_blocks: u8,
    /// The value of the doorbell, in the order of memory.
    pub doorbell: [u8; 8],
}

impl Encoded {
    #[inline]
    fn new(ctrl: &[u8; SEGMENT], ds: u8) -> Encoded {
        let [a, b, c, d, e, f, g, h, ..] = *ctrl;
        Encoded {
            ds,
            basic_blocks: basic_blocks(ds),
            doorbell: [a, b, c, d, e, f, g, h],
        }
    }

    /// The doorbell as a 64-bit value for a store by a little-endian machine. A machine with 32-bit
    /// stores only stores the low half first, to the lower address.
    #[inline]
    pub const fn doorbell_value(&self) -> u64 {
        u64::from_le_bytes(self.doorbell)
    }

    /// The value of the send doorbell record, if the entry began at `index` (counted over all
    /// laps), as [`doorbell::record_value`] returns it.
    #[inline]
    pub const fn record_value(&self, index: u32) -> u32 {
        doorbell::record_value(index.wrapping_add(self.basic_blocks as u32))
    }
}

impl SendWqe<'_> {
    /// The number of segments before the payload, which is the index (from 0) of the first payload
    /// segment.
    ///
    /// # Errors
    /// The opcode does not permit these parts, or it needs others.
    #[inline]
    pub fn payload_start(&self) -> Result<u8, FormatError> {
        let opcode = self.opcode;
        let Some(shape) = opcode.shape() else {
            return Err(FormatError::Unsupported { opcode });
        };
        let missing = |part| Err(FormatError::Missing { opcode, part });
        let unexpected = |part| Err(FormatError::Unexpected { opcode, part });
        if self.remote.is_some() != shape.has(Part::Remote) {
            return match self.remote {
                None => missing(Part::Remote),
                Some(_) => unexpected(Part::Remote),
            };
        }
        match &self.atomic {
            None if shape.has(Part::Atomic) => return missing(Part::Atomic),
            Some(operands) if operands.opcode() != opcode => return unexpected(Part::Atomic),
            _ => (),
        }
        let given = Part::Immediate.bit(self.imm != [0; 4])
            | Part::AddressVector.bit(self.av.is_some())
            | Part::Payload.bit(!matches!(self.payload, Payload::None))
            | Part::Inline.bit(matches!(self.payload, Payload::Inline(_)));
        if let Some(part) = shape.excess(given) {
            return unexpected(part);
        }
        let segments = |there, n| if there { n } else { 0 };
        Ok(1 + segments(self.remote.is_some(), 1)
            + segments(self.atomic.is_some(), 1)
            + segments(self.av.is_some(), AvSeg::SEGMENTS as u8))
    }

    /// Checks the request and computes the size of its entry, without writing it.
    ///
    /// # Errors
    /// The request has no valid entry: its parts do not match the opcode, or it is too large.
    #[inline]
    pub fn measure(&self) -> Result<Measured<'_>, FormatError> {
        let start = self.payload_start()?;
        let (payload, inline) = self.payload.size()?;
        let segments = payload.saturating_add(usize::from(start));
        if segments > MAX_SEGMENTS {
            return Err(FormatError::TooManySegments { segments });
        }
        Ok(Measured {
            wqe: self,
            ds: segments as u8,
            inline,
        })
    }

    /// The entry's size in segments (`ds`), without writing it.
    ///
    /// # Errors
    /// As [`SendWqe::measure`].
    #[inline]
    pub fn segments(&self) -> Result<u8, FormatError> {
        Ok(self.measure()?.ds)
    }

    /// Writes the entry for basic block `index` (modulo 2^16) of queue pair `qpn` to `sink`.
    ///
    /// # Errors
    /// The request has no valid entry: its parts do not match the opcode, it is too large, or `qpn`
    /// has more than 24 bits. Then nothing is written.
    #[inline]
    pub fn encode(
        &self,
        index: u16,
        qpn: u32,
        sink: &mut impl SegmentSink,
    ) -> Result<Encoded, FormatError> {
        self.measure()?.encode(self.flags, index, qpn, sink)
    }
}

/// A request that has a valid entry of known size.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    wqe: &'a SendWqe<'a>,
    ds: u8,
    inline: usize,
}

impl Measured<'_> {
    /// The entry's size in segments (`ds`).
    #[inline]
    pub const fn segments(&self) -> u8 {
        self.ds
    }

    /// As [`SendWqe::encode`], with `flags` in place of the request's own.
    ///
    /// # Errors
    /// `qpn` has more than 24 bits. Then nothing is written.
    #[inline]
    pub fn encode(
        &self,
        flags: WqeFlags,
        index: u16,
        qpn: u32,
        sink: &mut impl SegmentSink,
    ) -> Result<Encoded, FormatError> {
        check_qpn(qpn)?;
        let Measured { wqe, ds, inline } = *self;
        let ctrl = CtrlSeg::new(wqe.opcode, index, qpn, ds, flags, wqe.imm).to_bytes();
        sink.put(&ctrl);
        if let Some(av) = wqe.av {
            for segment in av.to_bytes() {
                sink.put(&segment);
            }
        }
        if let Some(Remote { addr, rkey }) = wqe.remote {
            sink.put(&RaddrSeg::new(addr, rkey).to_bytes());
        }
        if let Some(atomic) = &wqe.atomic {
            sink.put(&atomic.segment().to_bytes());
        }
        match wqe.payload {
            Payload::None => (),
            Payload::Gather(sges) => put_pointers(sges, sink),
            Payload::Inline(pieces) => put_inline(pieces, inline, sink),
        }
        Ok(Encoded::new(&ctrl, ds))
    }
}

/// Writes the pieces, in total `len` bytes, as one inline segment. Writes nothing if `len` is 0.
#[inline]
fn put_inline(pieces: &[&[u8]], len: usize, sink: &mut impl SegmentSink) {
    if len == 0 {
        return;
    }
    let mut segment = [0; SEGMENT];
    segment[..4].copy_from_slice(&(len as u32 | INLINE_FLAG).to_be_bytes());
    let mut filled = 4;
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(SEGMENT - filled));
            segment[filled..filled + now.len()].copy_from_slice(now);
            filled += now.len();
            rest = later;
            if filled == SEGMENT {
                sink.put(&segment);
                segment = [0; SEGMENT];
                filled = 0;
            }
        }
    }
    if filled > 0 {
        sink.put(&segment);
    }
}

#[inline]
fn check_qpn(qpn: u32) -> Result<(), FormatError> {
    if qpn > 0x00ff_ffff {
        return Err(FormatError::QpNumber { qpn });
    }
    Ok(())
}

/// Writes a NOP of `ds` segments for basic block `index` (modulo 2^16) of QP `qpn`. `sink` receives
/// the control segment only. The NIC skips the other segments, whatever their content, so the
/// caller can void a prepared entry in place.
///
/// # Errors
/// `ds` is 0 or more than [`MAX_SEGMENTS`], or `qpn` has more than 24 bits. Then nothing is
/// written.
#[inline]
pub fn encode_nop(
    index: u16,
    qpn: u32,
    ds: u8,
    signaled: bool,
    sink: &mut impl SegmentSink,
) -> Result<Encoded, FormatError> {
    if ds == 0 || usize::from(ds) > MAX_SEGMENTS {
        return Err(FormatError::NopSize { ds });
    }
    check_qpn(qpn)?;
    let flags = WqeFlags {
        signaled,
        ..WqeFlags::default()
    };
    let ctrl = CtrlSeg::new(SendOpcode::NOP, index, qpn, ds, flags, [0; 4]).to_bytes();
    sink.put(&ctrl);
    Ok(Encoded::new(&ctrl, ds))
}
