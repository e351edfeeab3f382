//! How far streams have come. A stream that posts a receive stores a rising count into its word:
//! another stream, or the CPU, waits for this count, and not for the stream's later work.

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, WeakStream, Word64};

use crate::error::Result;
use crate::path::List;

/// A position of a stream: the word of the stream, and the count that the stream stores there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    word: usize,
    count: u64,
}

/// The word of a stream.
struct Reach {
    stream: WeakStream,
    /// The count of the newest position that the stream has reached. Only the stream stores it.
    word: Word64,
    /// The count of the newest position.
    count: u64,
}

/// The words of a context's streams.
pub(crate) struct Reached {
    gpu: Gpu,
    streams: Vec<Reach>,
}

impl Reached {
    pub fn new(gpu: &Gpu) -> Reached {
        Reached {
            gpu: gpu.clone(),
            streams: Vec::new(),
        }
    }

    /// A new position of a stream, behind the earlier ones. The caller enqueues its store. The
    /// caller holds no stream that [`WeakStream::lend`] returned, because this call looks at other
    /// streams.
    ///
    /// # Errors
    /// `Gdsync` if there is no memory for the word of a new stream.
    pub fn next(&mut self, stream: &WeakStream) -> Result<Mark> {
        let known = |reach: &Reach| reach.stream.id() == stream.id();
        let word = match self.streams.iter().position(known) {
            Some(word) => word,
            None => self.assign(stream)?,
        };
        let reach = &mut self.streams[word];
        reach.count += 1;
        let count = reach.count;
        Ok(Mark { word, count })
    }

    /// The word of a stream that has ended, or a new one.
    #[cold]
    fn assign(&mut self, stream: &WeakStream) -> Result<usize> {
        let mut streams = self.streams.iter();
        if let Some(at) = streams.position(|reach| reach.stream.has_ended()) {
            self.streams[at].stream = stream.clone();
            return Ok(at);
        }
        // Under the state's lock, as for the words of the request table.
        let word = self.gpu.alloc(MemoryKind::Pinned, 64)?.word64(0)?;
        self.streams.push(Reach {
            stream: stream.clone(),
            word,
            count: 0,
        });
        Ok(self.streams.len() - 1)
    }

    /// The word and the count of a position.
    pub fn word(&self, mark: Mark) -> (&Word64, u64) {
        (&self.streams[mark.word].word, mark.count)
    }

    /// Whether the stream has reached the position.
    pub fn has(&self, mark: Mark) -> bool {
        let (word, count) = self.word(mark);
        word.load().is_ok_and(|now| now >= count)
    }

    /// Makes a stream store that it has reached its present end. `None`: the application has
    /// dropped its last handle, and nothing is enqueued.
    ///
    /// # Errors
    /// As [`Reached::next`] and [`List::post`]; nothing is enqueued then.
    pub fn mark_on(&mut self, stream: &WeakStream) -> Result<Option<Mark>> {
        let mark = self.next(stream)?;
        let Some(stream) = stream.lend() else {
            return Ok(None);
        };
        let (word, count) = self.word(mark);
        let mut list = List::<1>::new();
        list.store(word, count);
        list.post(&stream, None)?;
        Ok(Some(mark))
    }

    /// Whether a stream stores a mark where it posts a receive: another stream may wait for the
    /// receive. If a stream is created later and waits for it, the mark is stored then.
    #[inline]
    pub fn marks_receives(&self) -> bool {
        self.gpu.stream_count() > 1
    }

    /// As [`Reached::mark_on`], if [`Reached::marks_receives`].
    #[inline]
    pub fn mark_receive(&mut self, stream: &WeakStream) -> Result<Option<Mark>> {
        match self.marks_receives() {
            true => self.mark_on(stream),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_word_of_an_ended_stream_continues_for_another() {
        let gpu = Gpu::soft().unwrap();
        let mut reached = Reached::new(&gpu);
        let (first, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let mark = reached.next(&first.downgrade()).unwrap();
        assert!(!reached.has(mark));
        let later = reached.mark_on(&first.downgrade()).unwrap().unwrap();
        assert_eq!((later.word, later.count), (0, 2));
        let apart = reached.mark_on(&other.downgrade()).unwrap().unwrap();
        assert_eq!((apart.word, apart.count), (1, 1));
        assert!(first.synchronize(Duration::from_secs(10)).unwrap());
        assert!(reached.has(mark) && reached.has(later));
        let gone = first.downgrade();
        drop(first);
        assert!(reached.mark_on(&gone).unwrap().is_none());
        let last = reached.next(&gpu.stream().unwrap().downgrade()).unwrap();
        assert_eq!((last.word, last.count), (0, 4));
        assert!(reached.has(later) && !reached.has(last));
    }
}
