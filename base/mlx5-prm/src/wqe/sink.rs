//! The destination of encoded segments.

use super::{FormatError, SEGMENT};

/// Receives the segments of an entry, in order. A ring may wrap between any two of them, because
/// its size is a multiple of a segment's size.
///
/// Closures are sinks: `&mut |segment: &[u8; 16]| list.push(*segment)`.
pub trait SegmentSink {
    /// Receives the next segment.
    fn put(&mut self, segment: &[u8; SEGMENT]);
}

impl<F: FnMut(&[u8; SEGMENT])> SegmentSink for F {
    #[inline]
    fn put(&mut self, segment: &[u8; SEGMENT]) {
        self(segment);
    }
}

/// Writes segments into a slice from its start, and never past its end.
#[derive(Debug)]
pub struct SliceSink<'a> {
    memory: &'a mut [u8],
    /// The bytes received so far, including those without room.
    put: usize,
}

impl<'a> SliceSink<'a> {
    /// A sink that fills `memory`.
    #[inline]
    pub fn new(memory: &'a mut [u8]) -> SliceSink<'a> {
        SliceSink { memory, put: 0 }
    }

    /// The number of bytes written.
    ///
    /// # Errors
    /// [`FormatError::SinkFull`] if the slice had no room for a segment. The segments before it are
    /// written.
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
