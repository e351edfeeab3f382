//! Where encoded segments go.

use super::{FormatError, SEGMENT};

/// Takes the segments of an entry, in order. A ring wraps between any two of them, since its
/// size is a multiple of a segment's.
///
/// Closures are sinks: `&mut |segment: &[u8; 16]| list.push(*segment)`.
pub trait SegmentSink {
    /// Takes the next segment.
    fn put(&mut self, segment: &[u8; SEGMENT]);
}

impl<F: FnMut(&[u8; SEGMENT])> SegmentSink for F {
    #[inline]
    fn put(&mut self, segment: &[u8; SEGMENT]) {
        self(segment);
    }
}

/// Writes segments into a slice from its start, never past its end.
#[derive(Debug)]
pub struct SliceSink<'a> {
    memory: &'a mut [u8],
    /// Bytes put so far, also those that found no room.
    put: usize,
}

impl<'a> SliceSink<'a> {
    /// A sink that fills `memory`.
    #[inline]
    pub fn new(memory: &'a mut [u8]) -> SliceSink<'a> {
        SliceSink { memory, put: 0 }
    }

    /// Bytes written.
    ///
    /// # Errors
    /// [`FormatError::SinkFull`] if a segment found no room. Those before it were written.
    #[inline]
    pub fn finish(self) -> Result<usize, FormatError> {
        if self.put > self.memory.len() {
            return Err(FormatError::SinkFull {
                capacity: self.memory.len(),
                needed: self.put,
            });
        }
        Ok(self.put)
    }
}

impl SegmentSink for SliceSink<'_> {
    #[inline]
    fn put(&mut self, segment: &[u8; SEGMENT]) {
        if let Some(room) = self
            .memory
            .get_mut(self.put..)
            .and_then(<[u8]>::first_chunk_mut)
        {
            *room = *segment;
        }
        self.put += SEGMENT;
    }
}
