//! The GPU as its users hold it, and what they share with its engine.

mod engine;
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
use crate::{Caps, Config, DeviceError, Dims, Error, Kernel};

/// A software GPU. Clones share. Memory, streams and events come from here; the [`Engine`],
/// stepped by a driver, executes.
#[derive(Clone)]
pub struct Gpu(Arc<Front>);

struct Front {
    core: Arc<Core>,
    env: Arc<dyn Env>,
}

/// What front end and engine share. Holds no environment, as the environment may hold the
/// engine.
pub(crate) struct Core {
    pub(crate) name: String,
    pub(crate) caps: Caps,
    pub(crate) stream_bound: usize,
    /// The key of this GPU's device memory.
    pub(crate) key: Option<Key>,
    pub(crate) table: Table,
    budget: Arc<Budget>,
    /// NIC writes on their way, if memory is weak.
    pub(crate) posted: Option<Arc<Posted>>,
    pub(crate) launches: Launches,
    /// Streams that stand at a wait. Written by the engine, read by who is curious.
    pub(crate) waiting: Line<AtomicUsize>,
    /// The stream whose kernel the engine runs now: its number and 1, or 0. Relaxed: read to name
    /// a kernel that has not given way for seconds.
    pub(crate) running: Line<AtomicU64>,
    /// RUNNING until the engine stops for good. Stored (release) after `fault` by the engine,
    /// loaded (acquire) by every enqueue.
    state: AtomicU32,
    fault: Mutex<Option<DeviceError>>,
    next_stream: AtomicU64,
    /// Streams that may have work.
    streams: Mutex<Vec<Arc<Shared>>>,
    /// Streams that the engine has not seen yet.
    fresh: Mutex<Vec<(Arc<Shared>, Consumer<Op>)>>,
    /// Something is in `fresh`. Only a hint, the lock carries the ordering; but it is stored
    /// before the stream is handed out, so the engine sees it at the latest when it is rung
    /// for the first submission.
    any_fresh: AtomicBool,
    deferred_frees: Mutex<Vec<DeferredFree>>,
    /// Something is in `deferred_frees`; a hint like `any_fresh`.
    any_deferred: AtomicBool,
}

/// Freed memory that operations may still touch.
struct DeferredFree {
    /// Unmapped when dropped, unless windows hold it too.
    _memory: Arc<Backing>,
    /// How far each stream had been enqueued when it was freed.
    until: Vec<Mark>,
}

/// How far the streams of a GPU were enqueued when it was taken.
pub struct Ends {
    core: Arc<Core>,
    marks: Vec<Mark>,
}

impl Ends {
    /// Whether they have run all of it, or nothing runs any more.
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
    /// The GPU has stopped, and why.
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

    /// Stops the GPU for good.
    pub(crate) fn fail(&self, error: DeviceError) {
        lock(&self.fault).get_or_insert(error);
        self.state.store(FAULTED, Ordering::Release);
    }

    /// The engine is gone; nothing runs any more, so nothing needs to be kept.
    pub(crate) fn engine_gone(&self) {
        self.state.store(STOPPED, Ordering::Release);
        lock(&self.fresh).clear();
        // Dropped after the lock is released: an owner of memory may free other memory.
        let _deferred = std::mem::take(&mut *lock(&self.deferred_frees));
    }

    /// Streams made since the last call.
    pub(crate) fn take_fresh(&self, mut adopt: impl FnMut(Arc<Shared>, Consumer<Op>)) {
        if self.any_fresh.load(Ordering::Relaxed) {
            self.any_fresh.store(false, Ordering::Relaxed);
            for (shared, queue) in lock(&self.fresh).drain(..) {
                adopt(shared, queue);
            }
        }
    }

    /// Names the kernel that the engine runs, for a warning.
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

    /// Forgets a stream that has no handle and no work.
    pub(crate) fn forget(&self, stream: &Arc<Shared>) {
        lock(&self.streams).retain(|s| !Arc::ptr_eq(s, stream));
    }

    /// Makes memory unknown, and unmaps it when nothing enqueued before can touch it.
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

    /// How far each busy stream has been enqueued. Takes each stream's producer lock, behind the
    /// removal of what is freed: see `Table::epoch`.
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

    /// Unmaps freed memory that nothing can touch any more.
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

/// Boxes for launches, used again and again. The boxes are what travels in rings.
#[derive(Default)]
#[allow(clippy::vec_box)]
pub(crate) struct Launches(Mutex<Vec<Box<Launch>>>);

impl Launches {
    /// Boxes kept.
    const KEPT: usize = 64;

    pub(crate) fn take(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Box<Launch> {
        match lock(&self.0).pop() {
            Some(mut launch) => {
                launch.kernel = *kernel;
                launch.dims = dims;
                launch.args.clear();
                launch.args.extend_from_slice(args);
                launch
            }
            None => Box::new(Launch {
                kernel: *kernel,
                dims,
                args: args.to_vec(),
            }),
        }
    }

    pub(crate) fn put(&self, launch: Box<Launch>) {
        let mut kept = lock(&self.0);
        if kept.len() < Self::KEPT {
            kept.push(launch);
        }
    }
}

impl Gpu {
    /// Makes a GPU, and the engine that a driver steps for it. `env` is how enqueueing threads
    /// wait and wake the driver.
    ///
    /// # Errors
    /// A setting with which no GPU works.
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

    /// The GPU's name.
    pub fn name(&self) -> &str {
        &self.0.core.name
    }

    /// What its streams can do.
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
    /// The length is zero or absurd, or the GPU or the system has no memory left.
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
    /// The descriptor is none of exported memory, or the memory is shorter.
    pub fn import(&self, fd: OwnedFd, len: usize) -> Result<DeviceMemory, Error> {
        DeviceMemory::new(&self.0.core, Backing::import(fd, len, self.0.core.key)?)
    }

    /// Allocates host memory that the GPU sees, zeroed.
    ///
    /// # Errors
    /// The length is zero or absurd, or the GPU or the system has no memory left.
    pub fn alloc_pinned(&self, len: usize) -> Result<PinnedMemory, Error> {
        PinnedMemory::new(&self.0.core, Backing::pinned(len, &self.0.core.budget)?)
    }

    /// Lets the GPU see host memory of the caller's, and keeps `owner` alive until nothing can
    /// touch it any more.
    ///
    /// # Errors
    /// The range is empty, null, or overlaps memory that this GPU knows.
    ///
    /// # Safety
    /// While `owner` lives, the memory stays valid and is accessed by others only atomically, or
    /// while neither this GPU nor a NIC does. Without an owner this is so until the registration
    /// and every window of it are dropped *and* all that was enqueued before has completed.
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

    /// Makes a stream.
    ///
    /// # Errors
    /// The GPU has stopped.
    pub fn stream(&self) -> Result<Stream, Error> {
        let core = &self.0.core;
        core.running()?;
        // Room for a few items a submission, and for the longest submission there can be,
        // each of whose operations has at most four.
        let items = (core.stream_bound * 8).max(core.caps.batch_limit * 4);
        let (producer, consumer) = Ring::channel(core.stream_bound, items);
        let id = core.next_stream.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new(id, producer));
        lock(&core.streams).push(Arc::clone(&shared));
        lock(&core.fresh).push((Arc::clone(&shared), consumer));
        core.any_fresh.store(true, Ordering::Relaxed);
        Ok(Stream::new(shared, self.clone()))
    }

    /// How far its streams have been enqueued.
    pub fn ends(&self) -> Ends {
        let core = Arc::clone(&self.0.core);
        let marks = core.ends();
        Ends { core, marks }
    }

    /// Makes visible, before it returns, what NICs wrote before to device memory: the flush
    /// that the host can do.
    pub fn flush_remote_writes(&self) {
        if let Some(posted) = &self.0.core.posted {
            posted.drain();
        }
    }

    /// Streams that stand at a memory operation's wait at the moment.
    pub fn waiting_streams(&self) -> usize {
        self.0.core.waiting.0.load(Ordering::Relaxed)
    }

    /// Why the GPU stopped, if it did. It stays that way.
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
