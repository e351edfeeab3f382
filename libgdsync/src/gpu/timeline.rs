//! Observers of streams: what is enqueued on the streams of a GPU, and when each stream has passed
//! it. `mp` writes timelines with it. Without an observer it costs one load for each submission.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use gds_step::{Mutex, Time};

use super::runtime::{EventHandle, StreamHandle};
use super::{Dims, Gpu, Kernel, Stream};
use crate::error::Result;
use crate::memop::Op;

/// One submission on a stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Work<'a> {
    /// Memory operations: their number, and how many of them are waits.
    Operations {
        /// All operations.
        all: usize,
        /// The waits among them.
        waits: usize,
    },
    /// A kernel, by its name.
    Kernel(&'a str),
    /// A copy of this number of bytes.
    Copy(u64),
    /// A wait for an event.
    Event,
    /// A launch of a graph of this number of submissions.
    Graph(u32),
}

impl Work<'_> {
    pub(super) fn of(ops: &[Op]) -> Work<'_> {
        Work::Operations {
            all: ops.len(),
            waits: ops.iter().filter(|op| op.is_wait()).count(),
        }
    }
}

/// Receives the submissions on the streams of a GPU: [`Gpu::observe`].
pub trait Observer: Send + Sync {
    /// Called after `work` was enqueued on the stream with this [`id`](Stream::id), by the thread
    /// that enqueued it. `posted`: the time before the call that enqueued it. `passed` yields the
    /// time at which the stream has passed the work; `None`: the stream has no room for a stamp.
    fn enqueued(&self, stream: u64, work: Work<'_>, posted: Time, passed: Option<Passed>);
}

/// A stamp behind a submission.
#[derive(Clone)]
pub struct Passed {
    gpu: Gpu,
    event: Arc<dyn EventHandle>,
}

impl Passed {
    /// The time at which the stream passed the work, by the clock of the GPU's
    /// [`host`](Gpu::host); `None` as long as it has not. On a software GPU the engine notes it. On
    /// CUDA it is the time of a timing event: its resolution is 0.5 us, its distance to the host's
    /// clock some microseconds, and it loses precision with the age of the observation (8 us after
    /// 100 s).
    pub fn at(&self) -> Option<Time> {
        self.gpu.runtime().passed_at(&*self.event)
    }
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stamp of {:?}: {:?}", self.gpu, self.at())
    }
}

/// The observers of one GPU.
#[derive(Default)]
pub(crate) struct Observers {
    /// Whether an observer was added, and a later submission has not found that none is left.
    /// Written under the lock of `list`: set before [`Gpu::observe`] returns. Read relaxed: a thread
    /// that misses it enqueues work that is concurrent with that call.
    any: AtomicBool,
    list: Mutex<Vec<Weak<dyn Observer>>>,
}

impl Gpu {
    /// Reports the submissions on this GPU's streams to `observer`, as long as it lives: those of
    /// existing streams too, and not those on a stream under capture. While a GPU has an observer,
    /// each submission is followed by a stamp, and a waiting stream has room for fewer submissions.
    ///
    /// # Errors
    /// Those of [`Gpu::stream`] on CUDA, where the clocks of GPU and host are compared.
    #[doc(hidden)]
    pub fn observe(&self, observer: &Arc<dyn Observer>) -> Result<()> {
        let observers = self.observers();
        let mut list = observers.list.lock();
        list.retain(|known| known.strong_count() > 0);
        if list.is_empty() {
            self.runtime().start_clock()?;
        }
        list.push(Arc::downgrade(observer));
        observers.any.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Stream {
    /// Calls `enqueue`, and reports it if the GPU has an observer.
    #[inline]
    pub(super) fn observed<'a>(
        &self,
        work: impl FnOnce() -> Work<'a>,
        enqueue: impl FnOnce(&dyn StreamHandle) -> Result<()>,
    ) -> Result<()> {
        let handle = &**self.handle();
        if !self.gpu().observers().any.load(Ordering::Relaxed) {
            return enqueue(handle);
        }
        let posted = self.gpu().host().now();
        enqueue(handle)?;
        self.report(work(), posted);
        Ok(())
    }

    /// Launches a kernel, and reports it.
    #[inline]
    pub(super) fn launch_observed(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()> {
        let work = || Work::Kernel(kernel.name());
        self.observed(work, |handle| handle.launch(kernel, dims, args))
    }

    #[cold]
    fn report(&self, work: Work<'_>, posted: Time) {
        // Work of a stream under capture goes into a graph, and so would the stamp.
        if !matches!(self.is_capturing(), Ok(false)) {
            return;
        }
        let Observers { any, list } = self.gpu().observers();
        let observers: Vec<_> = {
            let list = list.lock();
            let living: Vec<_> = list.iter().filter_map(Weak::upgrade).collect();
            any.store(!living.is_empty(), Ordering::Relaxed);
            living
        };
        if observers.is_empty() {
            return;
        }
        let room = self.gpu().waiting().admit_spare(self);
        let event = room.then(|| self.handle().stamp().ok().flatten()).flatten();
        let passed = event.map(|event| Passed {
            gpu: self.gpu().clone(),
            event,
        });
        for observer in observers {
            observer.enqueued(self.id(), work, posted, passed.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ignores;

    impl Observer for Ignores {
        fn enqueued(&self, _: u64, _: Work<'_>, _: Time, _: Option<Passed>) {}
    }

    #[test]
    fn submissions_cost_one_load_again_when_no_observer_is_left() {
        let gpu = Gpu::soft().unwrap();
        let stream = gpu.stream().unwrap();
        let word = gpu.alloc(super::super::MemoryKind::Pinned, 8).unwrap();
        let (to, from) = (word.span(0, 4).unwrap(), word.span(4, 4).unwrap());
        let observed = || gpu.observers().any.load(Ordering::Relaxed);
        for _ in 0..2 {
            let observer: Arc<dyn Observer> = Arc::new(Ignores);
            gpu.observe(&observer).unwrap();
            stream.copy(&to, &from).unwrap();
            assert!(observed());
            drop(observer);
            stream.copy(&to, &from).unwrap();
            assert!(!observed());
        }
    }
}
