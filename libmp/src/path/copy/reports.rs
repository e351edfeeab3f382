//! Reports: words in device memory in which kernels say that messages have ended. A store to host
//! memory would delay the work behind the kernel by a bus round trip. The CPU reads all reports by one
//! copy of an engine, and keeps what it has read.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Region, Word64};

use crate::error::Result;

/// Words of an allocation.
const WORDS: usize = 2048;

/// An allocation.
struct Chunk {
    region: Region,
    /// The words as of the last copy; `None`: the CPU loads the words themselves. A store of
    /// [`Reports::read_reports`] (release) pairs with the load of [`Report::load`] (acquire): the reader of
    /// a new value finds what the kernel wrote before it.
    seen: Option<Box<[AtomicU64]>>,
}

/// The newest chunk has `used` words in use, all others are full.
#[derive(Default)]
struct Chunks {
    all: Vec<Arc<Chunk>>,
    used: usize,
    buffer: Vec<u8>,
}

/// All reports of a context. They are not freed before it.
pub(super) struct Reports {
    gpu: Gpu,
    chunks: Mutex<Chunks>,
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reports of {:?}", self.gpu)
    }
}

/// A report, 0 at first.
#[derive(Clone)]
pub(crate) struct Report {
    chunk: Arc<Chunk>,
    at: usize,
    word: Word64,
}

impl Reports {
    pub fn new(gpu: &Gpu) -> Reports {
        let gpu = gpu.clone();
        let chunks = Mutex::default();
        Reports { gpu, chunks }
    }

    /// Takes `count` reports, at most [`WORDS`].
    ///
    /// # Errors
    /// Those of [`Gpu::alloc`].
    pub fn take(&self, count: usize) -> Result<Vec<Report>> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if chunks.all.is_empty() || chunks.used + count > WORDS {
            let region = self.gpu.alloc(MemoryKind::Device, WORDS * 8)?;
            region.write(0, &[0; WORDS * 8])?;
            let words = || (0..WORDS).map(|_| AtomicU64::new(0)).collect();
            let seen = (!self.gpu.is_software()).then(words);
            chunks.all.push(Arc::new(Chunk { region, seen }));
            chunks.used = 0;
        }
        let first = chunks.used;
        chunks.used += count;
        let Some(chunk) = chunks.all.last() else {
            return Ok(Vec::new());
        };
        let report = |at: usize| {
            let word = chunk.region.word64(at * 8)?;
            let chunk = Arc::clone(chunk);
            Ok(Report { chunk, at, word })
        };
        (first..first + count).map(report).collect()
    }

    /// Reads all reports, if the CPU cannot load them.
    pub fn read_reports(&self) {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let Chunks { all, used, buffer } = &mut *chunks;
        for (at, chunk) in all.iter().enumerate() {
            let Some(seen) = &chunk.seen else { return };
            let used = if at + 1 == all.len() { *used } else { WORDS };
            buffer.resize(used * 8, 0);
            if let Err(e) = chunk.region.read(0, buffer) {
                // The calls that use the GPU return what happened to it.
                tracing::debug!(target: "mp", "reports of kernels cannot be read: {e}");
                return;
            }
            for (seen, bytes) in seen.iter().zip(buffer.as_chunks().0) {
                seen.store(u64::from_le_bytes(*bytes), Ordering::Release);
            }
        }
    }
}

impl Report {
    /// The word, as of the last [`Reports::read_reports`] or later.
    pub fn load(&self) -> u64 {
        match &self.chunk.seen {
            Some(seen) => seen[self.at].load(Ordering::Acquire),
            // Memory that the CPU reaches: it cannot fail.
            None => self.word.load().unwrap_or(0),
        }
    }

    /// The word, for streams.
    pub fn word(&self) -> &Word64 {
        &self.word
    }

    /// The address of the word, for kernels.
    pub fn addr(&self) -> u64 {
        self.word.addr().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_zero_at_first_and_do_not_overlap() {
        let reports = Reports::new(&Gpu::soft().unwrap());
        let mut all = Vec::new();
        for count in [WORDS - 1, 2, 1, WORDS] {
            all.extend(reports.take(count).unwrap());
        }
        for (value, report) in (1..).zip(&all) {
            assert_eq!(report.load(), 0);
            report.word().store(value).unwrap();
        }
        reports.read_reports();
        let values: Vec<u64> = all.iter().map(Report::load).collect();
        assert_eq!(values, (1..=all.len() as u64).collect::<Vec<_>>());
    }
}
