//! The handle of a GPU, and the state that it shares with its engine.

mod engine;
mod graph;
mod lane;
mod memory;
mod stream;
mod stream_memory;

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gds_step::Env;

pub use engine::Engine;
pub use graph::Graph;
pub use memory::{CpuView, DeviceMemory, HostRegistration, PinnedMemory};
use stream::Shared;
pub use stream::Stream;

use crate::backing::Backing;
use crate::budget::Budget;
use crate::event::Mark;
use crate::op::{Launch, Op};
use crate::posted::Posted;
use crate::protect::Key;
use crate::queue::{Consumer, Line, Ring};
use crate::table::Table;
use crate::{Caps, Config, DeviceError, Dims, Error, Kernel, Reserved};

/// A software GPU. Clones share it. It creates memory, streams and events; the [`Engine`], which a
/// driver steps, executes them.
#[derive(Clone)]
pub struct Gpu(Arc<Front>);

struct Front {
    core: Arc<Core>,
    env: Arc<dyn Env>,
}

/// The state that handles and engine share. It holds no environment, because the environment may
/// hold the engine.
pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) caps: Caps,
    pub(crate) stream_bound: usize,
    /// The key of this GPU's device memory.
    pub(crate) key: Option<Key>,
    pub(crate) table: Table,
    budget: Arc<Budget>,
    /// Pending NIC writes, if memory is weak.
    pub(crate) posted: Option<Arc<Posted>>,
    pub(crate) launches: Launches,
    /// The number of streams that are at a wait. Written by the engine, read for diagnosis.
    pub(crate) waiting: Line<AtomicUsize>,
    /// The stream whose kernel the engine runs now: its number plus 1, or 0. Relaxed: a warning
    /// reads it to name a kernel that has not yielded for seconds.
    pub(crate) running: Line<AtomicU64>,
    /// RUNNING until the engine stops permanently. The engine stores it (release) after `fault`;
    /// every enqueue loads it (acquire).
    state: AtomicU32,
    fault: Mutex<Option<DeviceError>>,
    next_stream: AtomicU64,
    /// Streams that may have work.
    streams: Mutex<Vec<Arc<Shared>>>,
    /// Streams that the engine has not yet taken over.
    fresh: Mutex<Vec<(Arc<Shared>, Consumer<Op>)>>,
    /// Whether `fresh` is not empty. It is a hint: the lock provides the ordering. It is stored
    /// before the caller receives the stream, so the engine observes it at the ring for the first
    /// submission at the latest.
    any_fresh: AtomicBool,
    deferred_frees: Mutex<Vec<DeferredFree>>,
    /// Whether `deferred_frees` is not empty; a hint like `any_fresh`.
    any_deferred: AtomicBool,
}

/// Freed memory that operations may still access.
struct DeferredFree {
    /// Unmapped when dropped, unless a window holds it too.
    _memory: Arc<Backing>,
    /// The end of each stream's enqueued work at the time of the free.
    until: Vec<Mark>,
}

/// The end of the enqueued work of each stream of a GPU at one time.
pub struct Ends {
    core: Arc<Core>,
    marks: Vec<Mark>,
}

impl Ends {
    /// Whether the streams have run all of it, or no operation runs any more.
    pub fn is_reached(&self) -> bool {
        self.core.state.load(Ordering::Acquire) == STOPPED
            || self.marks.iter().all(Mark::is_complete)
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ends of {} busy streams", self.marks.len())
    }
}

const RUNNING: u32 = 0;
const FAULTED: u32 = 1;
const STOPPED: u32 = 2;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// # Errors
    /// The GPU has stopped; the error has the reason.
    #[inline]
    pub(crate) fn running(&self) -> Result<(), Error> {
        if self.state.load(Ordering::Acquire) == RUNNING {
            Ok(())
        } else {
            Err(self.stopped())
        }
    }

    #[cold]
    fn stopped(&self) -> Error {
        lock(&self.fault)
            .clone()
            .map_or(Error::Stopped, Error::Device)
    }

    /// Stops the GPU permanently.
    pub(crate) fn fail(&self, error: DeviceError) {
        lock(&self.fault).get_or_insert(error);
        self.state.store(FAULTED, Ordering::Release);
    }

    /// The engine was dropped: no operation runs any more, so no memory must be kept.
    pub(crate) fn engine_gone(&self) {
        self.state.store(STOPPED, Ordering::Release);
        lock(&self.fresh).clear();
        // Dropped after the lock is released: an owner of memory may free other memory.
        let _deferred = std::mem::take(&mut *lock(&self.deferred_frees));
    }

    /// The streams created since the last call.
    pub(crate) fn take_fresh(&self, mut adopt: impl FnMut(Arc<Shared>, Consumer<Op>)) {
        if self.any_fresh.load(Ordering::Relaxed) {
            self.any_fresh.store(false, Ordering::Relaxed);
            for (shared, queue) in lock(&self.fresh).drain(..) {
                adopt(shared, queue);
            }
        }
    }

    /// The name of the kernel that the engine runs, for a warning.
    pub(crate) fn running_kernel(&self) -> Option<String> {
        let id = self.running.0.load(Ordering::Relaxed).checked_sub(1)?;
        let streams = lock(&self.streams);
        let stream = streams.iter().find(|stream| stream.id == id)?;
        let kernel = stream.kernel().unwrap_or("?");
        let number = stream.number();
        Some(format!(
            "stream {number} is in the kernel {kernel}, which does not end or yield"
        ))
    }

    /// Removes a stream that has no handle and no work.
    pub(crate) fn forget(&self, stream: &Arc<Shared>) {
        lock(&self.streams).retain(|s| !Arc::ptr_eq(s, stream));
    }

    /// Removes memory from the table, and unmaps it when no earlier operation can access it.
    pub(crate) fn free(&self, memory: Arc<Backing>) {
        self.table.remove(memory.addr());
        if self.state.load(Ordering::Acquire) == STOPPED {
            return;
        }
        let until = self.ends();
        if !until.is_empty() {
            lock(&self.deferred_frees).push(DeferredFree {
                _memory: memory,
                until,
            });
            self.any_deferred.store(true, Ordering::Relaxed);
        }
    }

    /// The end of each busy stream's enqueued work. Takes each stream's producer lock, after the
    /// freed memory is removed from the table: see `Table::epoch`.
    fn ends(&self) -> Vec<Mark> {
        lock(&self.streams)
            .iter()
            .map(|s| Mark {
                ring: Arc::clone(&s.ring),
                upto: s.submitted(),
            })
            .filter(|mark| !mark.is_complete())
            .collect()
    }

    /// Unmaps freed memory that no operation can access any more.
    pub(crate) fn unmap_freed(&self) {
        if self.any_deferred.load(Ordering::Relaxed) {
            // Dropped after the lock is released: an owner of memory may free other memory.
            let mut done = Vec::new();
            let mut frees = lock(&self.deferred_frees);
            let mut i = 0;
            while i < frees.len() {
                frees[i].until.retain(|mark| !mark.is_complete());
                if frees[i].until.is_empty() {
                    done.push(frees.swap_remove(i));
                } else {
                    i += 1;
                }
            }
            self.any_deferred
                .store(!frees.is_empty(), Ordering::Relaxed);
        }
    }
}

/// Reused boxes for launches. Rings contain these boxes.
#[derive(Default)]
#[allow(clippy::vec_box)]
pub(crate) struct Launches(Mutex<Vec<Box<Launch>>>);

impl Launches {
    /// The maximal number of boxes kept.
    const KEPT: usize = 64;
    /// Boxes that are made at a time: a launch allocates only if many more than before are in flight.
    const MADE: usize = 16;
    /// Bytes of arguments of a box, at least: the limit of CUDA.
    const ARGS: usize = 4096;

    pub(crate) fn take(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Box<Launch> {
        let mut kept = lock(&self.0);
        if kept.is_empty() {
            kept.extend((0..Self::MADE).map(|_| {
                Box::new(Launch {
                    kernel: *kernel,
                    dims,
                    args: Vec::with_capacity(Self::ARGS),
                })
            }));
        }
        let launch = kept.pop();
        drop(kept);
        let mut launch = launch.expect("boxes were made");
        (launch.kernel, launch.dims) = (*kernel, dims);
        launch.args.clear();
        launch.args.extend_from_slice(args);
        launch
    }

    pub(crate) fn put(&self, launch: Box<Launch>) {
        let mut kept = lock(&self.0);
        if kept.len() < Self::KEPT {
            kept.push(launch);
        }
    }
}

impl Gpu {
    /// Creates a GPU, and the engine that a driver steps for it. Enqueueing threads wait and wake
    /// the driver through `env`.
    ///
    /// # Errors
    /// The configuration has an invalid setting.
    pub fn new(env: Arc<dyn Env>, config: Config) -> Result<(Gpu, Engine), Error> {
        config.check()?;
        let posted = config
            .weak
            .map(|w| Posted::new(w.seed ^ 0x5057, w.nic_one_in))
            .map(|posted| match config.ordered_writes {
                true => posted.for_all(),
                false => posted,
            })
            .map(Arc::new);
        let core = Arc::new(Core {
            name: config.name.clone(),
            caps: config.caps,
            stream_bound: config.stream_bound,
            key: if config.protect { Key::get() } else { None },
            table: Table::default(),
            budget: Budget::new(config.memory),
            posted,
            launches: Launches::default(),
            waiting: Line(AtomicUsize::new(0)),
            running: Line(AtomicU64::new(0)),
            state: AtomicU32::new(RUNNING),
            fault: Mutex::new(None),
            next_stream: AtomicU64::new(0),
            streams: Mutex::default(),
            fresh: Mutex::default(),
            any_fresh: AtomicBool::new(false),
            deferred_frees: Mutex::default(),
            any_deferred: AtomicBool::new(false),
        });
        let engine = Engine::new(Arc::clone(&core), &config);
        Ok((Gpu(Arc::new(Front { core, env })), engine))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    pub(crate) fn env(&self) -> &dyn Env {
        &*self.0.env
    }

    /// The driver, as the clock of stamps.
    pub(crate) fn clock(&self) -> &Arc<dyn Env> {
        &self.0.env
    }

    /// The GPU's name.
    pub fn name(&self) -> &str {
        &self.0.core.name
    }

    /// The capabilities of its streams.
    pub fn caps(&self) -> Caps {
        self.0.core.caps
    }

    /// Whether a stray access by host code to the address of device memory faults.
    pub fn protected(&self) -> bool {
        self.0.core.key.is_some()
    }

    /// Allocates device memory, zeroed.
    ///
    /// # Errors
    /// The length is zero or too large, or the GPU or the system has no memory left.
    pub fn alloc_device(&self, len: usize) -> Result<DeviceMemory, Error> {
        DeviceMemory::new(
            &self.0.core,
            Backing::device(len, self.0.core.key, &self.0.core.budget)?,
        )
    }

    /// Opens the first `len` bytes of device memory that another process
    /// [exported](DeviceMemory::export).
    ///
    /// # Errors
    /// The descriptor is not that of exported memory, or the memory is shorter than `len`.
    pub fn import(&self, fd: OwnedFd, len: usize) -> Result<DeviceMemory, Error> {
        DeviceMemory::new(&self.0.core, Backing::import(fd, len, self.0.core.key)?)
    }

    /// Allocates pinned host memory, zeroed.
    ///
    /// # Errors
    /// The length is zero or too large, or the GPU or the system has no memory left.
    pub fn alloc_pinned(&self, len: usize) -> Result<PinnedMemory, Error> {
        PinnedMemory::new(&self.0.core, Backing::pinned(len, &self.0.core.budget)?)
    }

    /// Takes `len` bytes of the GPU's memory size, for host memory of the caller that counts as the
    /// GPU's. They are returned when the value is dropped.
    ///
    /// # Errors
    /// Less than `len` bytes are left.
    pub fn reserve(&self, len: usize) -> Result<Reserved, Error> {
        self.0.core.budget.take("pinned memory", len)
    }

    /// Registers host memory of the caller, and keeps `owner` alive until no operation can access
    /// the memory any more.
    ///
    /// # Errors
    /// The range is empty, null, or overlaps memory that this GPU can already address.
    ///
    /// # Safety
    /// While `owner` lives, the memory stays valid, and others access it only atomically, or while
    /// neither this GPU nor a NIC accesses it. Without an owner this must hold until the
    /// registration, all its windows and all graphs that access the memory are dropped *and* all
    /// earlier operations have completed.
    pub unsafe fn register_host(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<HostRegistration, Error> {
        // SAFETY: the caller's promise.
        let memory = unsafe { Backing::registered(ptr, len, owner) }?;
        HostRegistration::new(&self.0.core, memory)
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// The GPU has stopped.
    pub fn stream(&self) -> Result<Stream, Error> {
        let core = &self.0.core;
        core.running()?;
        // Room for a few items per submission, and for the longest possible submission, each of
        // whose operations has at most four items.
        let items = (core.stream_bound * 8).max(core.caps.batch_limit * 4);
        let (producer, consumer) = Ring::channel(core.stream_bound, items);
        let id = core.next_stream.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new(id, producer));
        lock(&core.streams).push(Arc::clone(&shared));
        lock(&core.fresh).push((Arc::clone(&shared), consumer));
        core.any_fresh.store(true, Ordering::Relaxed);
        Ok(Stream::new(shared, self.clone()))
    }

    /// The end of the enqueued work of its streams.
    pub fn ends(&self) -> Ends {
        let core = Arc::clone(&self.0.core);
        let marks = core.ends();
        Ends { core, marks }
    }

    /// Makes earlier NIC writes to device memory visible before it returns: the flush by the host.
    pub fn flush_remote_writes(&self) {
        if let Some(posted) = &self.0.core.posted {
            posted.drain();
        }
    }

    /// The number of streams that are at the wait of a memory operation now.
    pub fn waiting_streams(&self) -> usize {
        self.0.core.waiting.0.load(Ordering::Relaxed)
    }

    /// The fault that stopped the GPU, if it stopped. It stays stopped.
    pub fn last_error(&self) -> Option<DeviceError> {
        lock(&self.0.core.fault).clone()
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("name", &self.0.core.name)
            .field("caps", &self.0.core.caps)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.name)
    }
}
