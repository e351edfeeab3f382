//! Graphs: work that a stream recorded during a capture, and that streams run any number of times.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gds_step::Mutex;

use super::runtime::GraphHandle;
use super::timeline::Work;
use super::waiting::Proof;
use super::{Dims, Gpu, Region, Stream};
use crate::error::{Error, Kind, Result};

/// Work that a stream recorded between [`Stream::begin_capture`] and [`Stream::end_capture`]
/// (CUDA: `CUgraphExec`). A launch enqueues it again, on any stream of the same GPU. A clone is the
/// same graph.
///
/// The graph keeps the memory of its copies and word operations. Pointers in the arguments of its
/// kernels are the application's: they must be valid for every launch. A graph that is dropped while
/// it runs still runs to its end.
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::gpu::{Condition, MemoryKind};
/// use gdsync::rdma::{Descriptor, post_on};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// let memory = gpu.alloc(MemoryKind::Pinned, 64)?;
/// let (gate, done) = (memory.word32(0)?, memory.word32(4)?);
/// let stream = gpu.stream()?;
/// stream.begin_capture()?;
/// let list = [
///     Descriptor::wait_value(&gate, Condition::Geq, 1),
///     Descriptor::write_value(&gate, 0),
///     Descriptor::write_value(&done, 7),
/// ];
/// post_on(&stream, &mut [], &list)?; // into the graph
/// let graph = stream.end_capture()?;
/// for _ in 0..3 {
///     done.store(0)?;
///     graph.launch(&stream)?; // returns at once
///     gate.store(1)?;
///     assert!(stream.synchronize(Duration::from_secs(10))?);
///     assert_eq!(done.load()?, 7);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Graph(Arc<Inner>);

struct Inner {
    gpu: Gpu,
    handle: Box<dyn GraphHandle>,
    /// Its regions are dropped after `handle`, and freed after the launches that run then.
    recorded: Recorded,
    /// The id of the only stream that the graph was launched on; 0: none; `SEVERAL`. Relaxed: a hint
    /// for the count of waiting streams.
    stream: AtomicU64,
}

/// No stream has this id.
const SEVERAL: u64 = u64::MAX;

/// What the library knows about the work of a graph.
#[derive(Default)]
pub(super) struct Recorded {
    submissions: u32,
    waits: bool,
    /// The most blocks of a kernel that waits or may start before a wait has ended.
    blocks: u32,
    memory: Vec<Region>,
}

/// The capture of a stream that [`Stream::begin_capture`] began.
#[derive(Default)]
pub(super) struct Recording {
    /// Whether `recorded` is there. Written under its lock. Read relaxed: a capture is begun and
    /// ended by the threads that enqueue, which order their calls themselves.
    on: AtomicBool,
    recorded: Mutex<Option<Recorded>>,
}

impl Recording {
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn set(&self, now: Option<Recorded>) -> Option<Recorded> {
        let mut recorded = self.recorded.lock();
        self.on.store(now.is_some(), Ordering::Relaxed);
        std::mem::replace(&mut *recorded, now)
    }
}

impl Stream {
    /// Starts a capture: until [`Stream::end_capture`], the calls below record their work in a graph
    /// and enqueue nothing. They can be made by any thread.
    ///
    /// - [`Stream::launch`], also of a [dependent](super::Dims::dependent) kernel, and
    ///   [`Stream::launch_waiting`] without a word;
    /// - [`Stream::copy`];
    /// - [`post_on`](crate::rdma::post_on) with a list of word operations, without queue pairs.
    ///
    /// All other calls that enqueue work refuse the stream with `Unsupported`; so do events, which
    /// would make other streams part of the capture. Work that is recorded counts neither as
    /// submitted nor as waiting; each launch of the graph does. On CUDA the capture has the mode
    /// `RELAXED`, so that the application may make any call meanwhile.
    ///
    /// # Errors
    /// `Unsupported` if the stream is under capture already; `System` if the runtime refuses,
    /// `DeviceLost` if the GPU is lost.
    pub fn begin_capture(&self) -> Result<()> {
        self.check(self.gpu(), "begin capture")?;
        self.handle().begin_capture()?;
        drop(self.recording().set(Some(Recorded::default())));
        Ok(())
    }

    /// Ends the capture that [`Stream::begin_capture`] began, and returns the graph of the recorded
    /// work. The capture ends even if the call fails.
    ///
    /// On CUDA the driver prepares the graph for its launches on this stream, behind its work.
    ///
    /// # Errors
    /// `WrongState` if no call of `begin_capture` began a capture; `System` if the runtime refuses,
    /// for instance because a call of the application made the capture invalid; `DeviceLost` if the
    /// GPU is lost.
    pub fn end_capture(&self) -> Result<Graph> {
        let Some(recorded) = self.recording().set(None) else {
            let what = format!("{self:?} is not captured; call `begin_capture` first");
            return Err(Error::new("end capture", Kind::WrongState, what));
        };
        let handle = self.handle().end_capture()?;
        Ok(Graph(Arc::new(Inner {
            gpu: self.gpu().clone(),
            handle,
            recorded,
            stream: AtomicU64::new(0),
        })))
    }

    /// Counts `n` submissions as recorded if the stream is under capture; `false`: it is not any
    /// more, because the application has ended the capture by a call of its own.
    #[cold]
    pub(super) fn records(&self, n: u32, waits: bool) -> Result<bool> {
        if !self.is_capturing()? {
            return Ok(false);
        }
        if let Some(recorded) = &mut *self.recording().recorded.lock() {
            recorded.submissions = recorded.submissions.saturating_add(n);
            recorded.waits |= waits;
        }
        Ok(true)
    }

    /// Records and limits the blocks of a kernel; `None`: the stream is not captured any more.
    #[cold]
    pub(super) fn record_blocks(&self, dims: Dims) -> Result<Option<Dims>> {
        if !self.is_capturing()? {
            return Ok(None);
        }
        let given = self.gpu().waiting().share_of_graph(dims);
        if let Some(recorded) = &mut *self.recording().recorded.lock() {
            let blocks = given.grid.into_iter().fold(1, u32::saturating_mul);
            recorded.blocks = recorded.blocks.max(blocks);
        }
        Ok(Some(given))
    }

    /// Makes the graph keep `region`, if the stream is under capture.
    #[doc(hidden)]
    #[inline]
    pub fn keep(&self, region: &Region) {
        if self.recording().is_on()
            && let Some(recorded) = &mut *self.recording().recorded.lock()
        {
            recorded.memory.push(region.clone());
        }
    }

    /// Refuses a stream that the application captures by calls of its own: no graph would keep the
    /// memory of the work, and no launch would be counted. Also refuses a lent stream under capture:
    /// what is enqueued on it without the application's handle has to run once, and now.
    ///
    /// # Errors
    /// `Unsupported`.
    #[doc(hidden)]
    #[inline]
    pub fn check_recordable(&self, operation: &'static str) -> Result<()> {
        match self.recording().is_on() {
            true if self.is_lent() => self.check(self.gpu(), operation),
            true => Ok(()),
            false if !self.is_capturing()? => Ok(()),
            false => {
                let what = format!(
                    "{self:?} is captured by a call of the application; begin the capture by \
                     `Stream::begin_capture`, or end it first"
                );
                Err(Error::new(operation, Kind::Unsupported, what))
            }
        }
    }
}

impl Graph {
    /// Enqueues the work of the graph on `stream`, in order and as a whole, and returns before it
    /// has run. A launch starts after the latest launch of the same graph has ended, on whichever
    /// stream.
    ///
    /// A graph whose work waits makes the stream count as waiting until it is idle; see
    /// [`Gpu::max_waiting_streams`]. So does one that is launched on several streams. On CUDA a
    /// launch takes the room of one submission if the graph has only kernels, otherwise of one for
    /// each of its kernels, copies and lists.
    ///
    /// # Errors
    /// `Foreign` for a stream of another GPU; `Unsupported` if the stream is under capture;
    /// `TooManyWaits` and `QueueFull` as for [`Stream::launch_waiting`]; `System` if the runtime
    /// refuses, `DeviceLost` if the GPU is lost.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        const OPERATION: &str = "launch graph";
        let Inner {
            gpu,
            recorded,
            stream: only,
            handle,
        } = &*self.0;
        stream.check(gpu, OPERATION)?;
        let known = only.compare_exchange(0, stream.id(), Ordering::Relaxed, Ordering::Relaxed);
        let several = known.is_err_and(|known| known != stream.id());
        if several {
            only.store(SEVERAL, Ordering::Relaxed);
        }
        let wait = (recorded.waits || several).then_some(Proof::Idle);
        // A graph that is longer than the room of a stream needs all of it.
        let room = gpu.waiting().limits().and_then(|l| l.submissions);
        let submissions = handle.submissions().unwrap_or(recorded.submissions);
        let submissions = submissions.min(room.unwrap_or(u32::MAX));
        let blocks = Dims::linear(recorded.blocks, 1);
        let (_, _held) = gpu
            .waiting()
            .share(stream, OPERATION, blocks, wait.is_some())?;
        stream.admit(OPERATION, submissions, wait)?;
        let work = || Work::Graph(recorded.submissions);
        stream.observed(work, |stream| stream.launch_graph(&**handle))
    }

    /// The GPU whose streams can launch the graph.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { gpu, recorded, .. } = &*self.0;
        write!(
            f,
            "graph of {} submissions on {gpu:?}",
            recorded.submissions
        )
    }
}
