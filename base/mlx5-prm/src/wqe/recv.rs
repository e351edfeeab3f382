//! Receive WQEs: a list of pointers in a slot of fixed size.

use zerocopy::FromBytes;

use super::send::{count, put_pointers};
use super::{
    DataSeg, FormatError, INLINE_FLAG, INVALID_LKEY, ParseError, SEGMENT, SegmentSink, Sge,
};

/// Writes the list of a receive into a slot of `stride` bytes and returns the number of pointers
/// written, without empty ones. If the list is shorter than the slot, an end mark follows it; the
/// bytes after the mark stay unchanged.
///
/// # Errors
/// `stride` is not a positive multiple of 16, the list is longer than the slot, or a pointer covers
/// more than 2 GiB. Then nothing is written.
#[inline]
pub fn encode_recv(
    sges: &[Sge],
    stride: usize,
    sink: &mut impl SegmentSink,
) -> Result<usize, FormatError> {
    if stride == 0 || !stride.is_multiple_of(SEGMENT) {
        return Err(FormatError::RecvStride { stride });
    }
    let n = count(sges)?;
    if n > stride / SEGMENT {
        return Err(FormatError::RecvTooLong { sges: n, stride });
    }
    put_pointers(sges, sink);
    if n < stride / SEGMENT {
        sink.put(&DataSeg::END.to_bytes());
    }
    Ok(n)
}

/// The list in a receive slot. `slot` has all bytes of the slot. The list ends at the key
/// [`INVALID_LKEY`] or with the slot.
///
/// # Errors
/// The slot's size is not a positive multiple of 16, or a byte count before the end is not a
/// length.
pub fn parse_recv(slot: &[u8]) -> Result<RecvSges<'_>, ParseError> {
    let bad_size = ParseError::RecvStride { len: slot.len() };
    let list = <[DataSeg]>::ref_from_bytes(slot).map_err(|_| bad_size)?;
    if list.is_empty() {
        return Err(bad_size);
    }
    let end = list.iter().position(|s| s.lkey == INVALID_LKEY);
    let list = &list[..end.unwrap_or(list.len())];
    for (sge, pointer) in list.iter().enumerate() {
        let byte_count = pointer.byte_count.get();
        if byte_count & INLINE_FLAG != 0 {
            return Err(ParseError::RecvByteCount { sge, byte_count });
        }
    }
    Ok(RecvSges(list.iter()))
}

/// The pointers of a receive, in order.
#[derive(Clone, Debug)]
pub struct RecvSges<'a>(core::slice::Iter<'a, DataSeg>);

impl Iterator for RecvSges<'_> {
    type Item = Sge;

    #[inline]
    fn next(&mut self) -> Option<Sge> {
        self.0.next().map(DataSeg::sge)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for RecvSges<'_> {}
