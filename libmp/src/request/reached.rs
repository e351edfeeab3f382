//! How far streams have come. A stream that has posted a receive stores a rising count into its word:
//! another stream, or the CPU, waits for this count, and not for all later work of the stream. Such a store
//! delays a message by several microseconds. Under a tag whose receives are taken in by the stream that
//! posts them, it is enqueued only when it is needed: before the stream waits for another message, or when
//! another party asks. Where it can, the kernel that waits for a message stores it.

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, WeakStream, Word64};

use crate::error::Result;
use crate::path::{Copier, List, Report};

/// A position of a stream: the word of the stream, and the count that the stream stores there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    word: usize,
    count: u64,
}

/// Where a stream stores how far it has come.
enum Count {
    /// In host memory.
    Host(Word64),
    /// In device memory, which [`Copier::read_reports`] reads. A kernel that stores to host memory ends
    /// about a microsecond later.
    Device(Report),
}

impl Count {
    fn word(&self) -> &Word64 {
        match self {
            Count::Host(word) => word,
            Count::Device(report) => report.word(),
        }
    }

    fn load(&self) -> u64 {
        match self {
            // Pinned memory, which the CPU reaches: it cannot fail.
            Count::Host(word) => word.load().unwrap_or(0),
            Count::Device(report) => report.load(),
        }
    }
}

/// The word of a stream.
struct Reach {
    stream: WeakStream,
    /// The count of the newest position that the stream has reached. Only the stream stores it.
    word: Count,
    /// The count of the newest position.
    count: u64,
    /// An upper bound of the receives that the stream has posted, not taken in, and not marked.
    unmarked: u32,
}

/// The words of a context's streams.
pub(crate) struct Reached {
    gpu: Gpu,
    /// Allocates words in device memory; `None`: words are in host memory.
    copier: Option<Copier>,
    streams: Vec<Reach>,
}

impl Reached {
    pub fn new(gpu: &Gpu, copier: Option<Copier>) -> Reached {
        Reached {
            gpu: gpu.clone(),
            copier,
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
        let word = self.of(stream)?;
        let reach = &mut self.streams[word];
        reach.count += 1;
        let count = reach.count;
        Ok(Mark { word, count })
    }

    fn of(&mut self, stream: &WeakStream) -> Result<usize> {
        let known = |reach: &Reach| reach.stream.id() == stream.id();
        match self.streams.iter().position(known) {
            Some(word) => Ok(word),
            None => self.assign(stream),
        }
    }

    /// Notes that a stream has posted a receive without a mark.
    ///
    /// # Errors
    /// As [`Reached::next`].
    #[inline]
    pub fn note_receive(&mut self, stream: &WeakStream) -> Result<()> {
        let word = self.of(stream)?;
        let unmarked = &mut self.streams[word].unmarked;
        *unmarked = unmarked.saturating_add(1);
        Ok(())
    }

    /// Makes a stream store a mark behind a receive that it has posted. Only notes the receive if `own` (its
    /// poster takes in the receives of the tag), or if there is no other stream.
    ///
    /// # Errors
    /// As [`Reached::mark_on`].
    #[inline]
    pub fn note_or_mark(&mut self, stream: &WeakStream, own: bool) -> Result<Option<Mark>> {
        match self.note_or_number(stream, own)? {
            Some(mark) => self.enqueue(mark, stream),
            None => Ok(None),
        }
    }

    /// As [`Reached::note_or_mark`], but the caller enqueues the store of the mark.
    ///
    /// # Errors
    /// As [`Reached::next`].
    #[inline]
    pub fn note_or_number(&mut self, stream: &WeakStream, own: bool) -> Result<Option<Mark>> {
        match own || !self.marks_receives() {
            true => self.note_receive(stream).map(|()| None),
            false => self.next(stream).map(Some),
        }
    }

    /// The number of receives of the stream with this number that have no mark, at most.
    pub fn unmarked(&self, stream: u64) -> u32 {
        let known = |reach: &&Reach| reach.stream.id() == stream;
        let reach = self.streams.iter().find(known);
        reach.map_or(0, |reach| reach.unmarked)
    }

    /// Notes that the stream with this number has taken in so many receives without a mark.
    pub fn forget_receives(&mut self, stream: u64, count: u32) {
        let left = self.unmarked(stream).saturating_sub(count);
        self.leave_unmarked(stream, left);
    }

    /// Sets the number of receives without a mark.
    pub fn leave_unmarked(&mut self, stream: u64, count: u32) {
        let known = |reach: &&mut Reach| reach.stream.id() == stream;
        if let Some(reach) = self.streams.iter_mut().find(known) {
            reach.unmarked = count;
        }
    }

    /// The word of a stream that has ended, or a new one.
    #[cold]
    fn assign(&mut self, stream: &WeakStream) -> Result<usize> {
        let mut streams = self.streams.iter();
        if let Some(at) = streams.position(|reach| reach.stream.has_ended()) {
            self.streams[at].stream = stream.clone();
            self.streams[at].unmarked = 0;
            return Ok(at);
        }
        // Under the state's lock, as for the words of the request table.
        let report = self.copier.as_ref().map(|copier| copier.reports(1));
        let word = match report.transpose()?.and_then(|mut reports| reports.pop()) {
            Some(report) => Count::Device(report),
            None => Count::Host(self.gpu.alloc(MemoryKind::Pinned, 64)?.word64(0)?),
        };
        self.streams.push(Reach {
            stream: stream.clone(),
            word,
            count: 0,
            unmarked: 0,
        });
        Ok(self.streams.len() - 1)
    }

    /// The word and the count of a position.
    pub fn word(&self, mark: Mark) -> (&Word64, u64) {
        (self.streams[mark.word].word.word(), mark.count)
    }

    /// Whether the stream has reached the position, as far as the CPU has read.
    pub fn has(&self, mark: Mark) -> bool {
        self.streams[mark.word].word.load() >= mark.count
    }

    /// Makes a stream store that it has reached its present end. `None`: the application has
    /// dropped its last handle, and nothing is enqueued.
    ///
    /// # Errors
    /// As [`Reached::next`] and [`List::post`]; nothing is enqueued then.
    pub fn mark_on(&mut self, stream: &WeakStream) -> Result<Option<Mark>> {
        let mark = self.next(stream)?;
        self.enqueue(mark, stream)
    }

    /// Enqueues the store of a mark of the stream, as [`Reached::mark_on`] does.
    fn enqueue(&self, mark: Mark, stream: &WeakStream) -> Result<Option<Mark>> {
        let Some(stream) = stream.lend() else {
            return Ok(None);
        };
        // The background work retries.
        stream.check_free()?;
        let (word, count) = self.word(mark);
        let mut list = List::<1>::new();
        list.store(word, count);
        list.post(&stream, None)?;
        Ok(Some(mark))
    }

    /// Whether another stream may wait for a receive. If a stream is created later and waits for it, the
    /// mark is stored then.
    #[inline]
    pub fn marks_receives(&self) -> bool {
        self.gpu.stream_count() > 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_word_of_an_ended_stream_continues_for_another() {
        let gpu = Gpu::soft().unwrap();
        let mut reached = Reached::new(&gpu, None);
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
