//! [`Context`]: one rank's part in a job, over one GPU and one NIC or TCP. The handle, registration
//! of memory, errors, and the end. The other public handles and calls:
//!
//! - `builder` builds the context; `cache` has its registrations.
//! - Messages: `calls` send and receive, `sendrecv` does both in one call, `request` has the handles
//!   on messages, `scope` messages of borrowed memory.
//! - One-sided: `window` has the handles on windows, `prepared` their operations that are posted later,
//!   `nbi` puts without a request, `ready` ready words, `word` waits for words.
//! - Several ranks: `neighbourhood` has the handles on exchanges with neighbours, `collective` those
//!   on calls of all ranks, `agree` agreements on lost ranks.

mod agree;
mod builder;
mod cache;
mod calls;
mod collective;
mod nbi;
mod neighbourhood;
mod prepared;
mod ready;
mod request;
mod scope;
mod sendrecv;
mod window;
mod word;

use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gds_step::{Machine, MachineId, Step, Thread, Time};
use gdsync::gpu::{DevicePtr, MemoryKind, Region};
use gdsync::rdma::Device;
use gdsync::{Gpu, Stream};

use crate::WordOrder;
use crate::error::{Error, Kind, Result};
use crate::path::{Path, Rights};
use crate::region::{Memory, Slice};
use crate::stats::{Counts, PeerStats, Stats};
use crate::trace::Facts;
use crate::two_sided::config::{Connect, Progress};
use crate::two_sided::engine::{Engine, PERIOD};
use crate::two_sided::{Peer, Stuck};
use crate::window::ReadyWords;
use cache::Cache;

pub use agree::Agreed;
pub use builder::Builder;
pub use collective::Collectives;
pub use neighbourhood::{Neighbourhood, Neighbours};
pub use request::{Request, wait_all, wait_any, wait_some};
pub use scope::Scope;
pub use window::Window;

/// One rank's part in a job: its GPU, its NIC, its peers and its requests.
///
/// Clones refer to the same context. All calls may be made from any thread. No call waits for a
/// stream, except [`synchronize`](Context::synchronize). A call that posts may wait for room
/// ([`Builder::full`]) or, at the first use of a peer or a tag, for the background work of the
/// peer. A message in flight keeps the objects that it uses.
///
/// [`Context::close`] leaves the job in order. If the last handle on a context and its requests is
/// dropped without it, unfinished requests are given up, waiting streams are released, and peers
/// treat the rank as dead.
///
/// ```
/// use std::time::Duration;
///
/// use mp::Context;
/// use mp::gdsync::gpu::MemoryKind;
///
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let peer = 1 - ctx.rank(); // a job of two ranks
///     let memory = ctx.alloc(MemoryKind::Device, 64)?;
///     memory.write(0, &[ctx.rank() as u8; 8])?;
///
///     // Posted by the CPU. `isend_on` and `irecv_on` are posted by a stream.
///     let recv = ctx.irecv(peer, 7, &memory.slice(32, 32)?)?;
///     let send = ctx.isend(peer, 7, &memory.slice(0, 8)?)?;
///     assert_eq!(recv.wait(Duration::from_secs(10))?.len, 8);
///     send.wait(Duration::from_secs(10))?;
///
///     ctx.close(Duration::from_secs(10))
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(2) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #         });
/// #     }
/// # });
/// ```
#[derive(Clone)]
pub struct Context(Arc<Handle>);

struct Handle {
    engine: Arc<Engine>,
    cache: Mutex<Cache>,
    machine: Option<MachineId>,
    /// Made on first use.
    ready: Mutex<Option<Arc<ReadyWords>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(machine) = self.machine {
            self.engine.host().detach(machine);
        }
        self.engine.abandon();
        self.engine.observers.write();
        self.engine.bootstrap.forget(self.engine.topic);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Engine {
            rank, size, config, ..
        } = &*self.0.engine;
        write!(f, "context {} of rank {rank} of {size}", config.name)
    }
}

/// The background work, as a step machine.
struct Background(Weak<Engine>);

impl Machine for Background {
    fn step(&mut self, now: Time) -> Step {
        match self.0.upgrade() {
            Some(engine) if engine.progress() => Step::Progress,
            Some(_) => Step::IdleUntil(Some(now + PERIOD)),
            None => Step::IdleUntil(None),
        }
    }

    fn name(&self) -> String {
        match self.0.upgrade() {
            Some(engine) => format!("{}{}.progress", engine.config.name, engine.rank),
            None => "closed.progress".to_owned(),
        }
    }
}

impl Context {
    /// A builder with default settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn open(engine: Engine) -> Result<Context> {
        let engine = Arc::new(engine);
        let machine = (engine.config.progress == Progress::Background).then(|| {
            let background = Background(Arc::downgrade(&engine));
            engine.host().attach(Thread::Watch, Box::new(background))
        });
        let context = Context(Arc::new(Handle {
            engine,
            cache: Mutex::default(),
            machine,
            ready: Mutex::default(),
        }));
        if context.engine().config.connect == Connect::UpFront {
            context.engine().connect_all()?;
        }
        Ok(context)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Observes a call about a rank or on a stream until the result is dropped.
    #[inline]
    fn observe(
        &self,
        name: &'static CStr,
        peer: Option<u32>,
        stream: Option<&Stream>,
    ) -> Option<impl Drop> {
        self.engine().observers.call(name, || Facts {
            peer,
            stream: stream.map(Stream::id),
            ..Facts::default()
        })
    }

    /// The number of this rank in the job, 0 to [`size`](Context::size) - 1.
    pub fn rank(&self) -> u32 {
        self.engine().rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.engine().size
    }

    /// The GPU of the context. Streams and memory of messages belong to it.
    pub fn gpu(&self) -> &Gpu {
        &self.engine().gpu
    }

    /// How this rank orders the word that announces a message to `rank` after its payload:
    /// [`WordOrder::Plain`] or [`WordOrder::BehindRead`]. `None` before the two ranks are
    /// connected, and for the rank itself, which needs no NIC.
    pub fn word_order(&self, rank: u32) -> Option<WordOrder> {
        let state = self.engine().lock();
        state.peers.get(rank)?.link.word_order()
    }

    /// The path to `rank`, and the reason for it. `None` if the job does not have this rank, and
    /// before the two ranks have agreed on it ([`PathChoice::Auto`](crate::PathChoice::Auto)), which
    /// the first call that needs the rank waits for.
    pub fn path(&self, rank: u32) -> Option<(Path, String)> {
        let (path, reason) = self.engine().paths.chosen(rank)?;
        Some((*path, reason.to_string()))
    }

    /// The NIC of the context, or its TCP device if it has no NIC.
    pub fn device(&self) -> &Device {
        self.engine().paths.device()
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        let cache = &self.0.cache;
        cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register_new(&self, region: &Region) -> Result<Memory> {
        let keys = self.engine().paths.register(region, Rights::All)?;
        let memory = self.cache().note(Memory::new(keys));
        self.engine().announce(&memory);
        Ok(memory)
    }

    /// Allocates `len` bytes of zeroed memory on the GPU or in pinned host memory, and registers
    /// them with the NIC. The memory is freed when no handle, no message in flight and no enqueued
    /// operation of a stream uses it. A waiting stream does not block this call.
    ///
    /// # Errors
    /// `Invalid` for length 0; `System` if no memory is available or the NIC refuses it; others as
    /// [`Gpu::alloc`] and [`Pd::register`](gdsync::rdma::Pd::register).
    pub fn alloc(&self, kind: MemoryKind, len: usize) -> Result<Memory> {
        let region = self.gpu().alloc(kind, len)?;
        self.register_new(&region)
    }

    /// Registers a region of gdsync with the NIC, or returns its existing registration.
    ///
    /// # Errors
    /// `Gdsync(Foreign)` for memory of another GPU; `System` if the NIC refuses; others as
    /// [`Pd::register`](gdsync::rdma::Pd::register).
    pub fn register(&self, region: &Region) -> Result<Memory> {
        let memory = self.cache().region(&self.engine().paths, region)?;
        self.engine().announce(&memory);
        Ok(memory)
    }

    /// Registers the `len` bytes of host memory of the application at `ptr`, which stay allocated
    /// until the process ends. For memory that is freed earlier, [`register`](Context::register)
    /// takes a region of [`Gpu::register_host_owned`], whose owner is dropped when the memory is no
    /// longer used, and [`adopt_vec`](Context::adopt_vec) takes a buffer.
    ///
    /// # Safety
    /// As for [`Gpu::register_host`]: `ptr` is valid for reads and writes of `len` bytes as long as
    /// anything can access the memory (handles, messages in flight, streams with enqueued
    /// operations), and no Rust reference to the memory is used while devices may write to it.
    ///
    /// # Errors
    /// `Invalid` for a null pointer, length 0 or a range that is not mapped; `System` if the driver
    /// or the NIC refuses; others as [`Gpu::register_host`] and
    /// [`Pd::register`](gdsync::rdma::Pd::register).
    pub unsafe fn register_host(&self, ptr: *mut u8, len: usize) -> Result<Memory> {
        // SAFETY: the caller upholds the contract of `Gpu::register_host`, which is this
        // function's.
        let region = unsafe { self.gpu().register_host(ptr, len)? };
        self.register_new(&region)
    }

    /// The `len` bytes at `addr` as a slice, for callers that have only addresses, such as
    /// bindings. The memory is registered with this context, or is registered now: device memory of
    /// the application as by [`register_device`](Context::register_device), any other as by
    /// [`register_host`](Context::register_host).
    ///
    /// # Safety
    /// If no memory that a handle of this context holds contains the bytes: the contract of the
    /// function that registers them. No call of [`Memory::into_vec`] returns the memory at the same
    /// time.
    ///
    /// # Errors
    /// Those of the function that registers them; `Invalid` for addresses at which this process has
    /// no memory.
    pub unsafe fn slice_at(&self, addr: DevicePtr, len: usize) -> Result<Slice> {
        let found = self.cache().at(addr, len);
        let memory = match found {
            Some(memory) => memory,
            // SAFETY: the caller upholds the contract of the registering function.
            None => unsafe { self.register_at(addr, len)? },
        };
        let start = memory.region().addr().0;
        memory.slice(addr.0.wrapping_sub(start) as usize, len)
    }

    /// # Safety
    /// The contract of the function that it calls.
    unsafe fn register_at(&self, addr: DevicePtr, len: usize) -> Result<Memory> {
        // Host memory has a number as well, if part of it is registered with the driver.
        if let Ok(Some(_)) = self.gpu().buffer_id(addr) {
            // SAFETY: the caller upholds the contract of this function.
            match unsafe { self.register_device(addr, len) } {
                Err(e) if e.kind() == Kind::Invalid => {}
                other => return other,
            }
        }
        // SAFETY: as above; addresses of host memory are the same on the GPU.
        unsafe { self.register_host(addr.0 as *mut u8, len) }
    }

    /// Registers the `len` bytes of GPU memory of the application at `addr`, or returns their
    /// existing registration. A range is registered once while a handle on it lives. It is found by
    /// the driver's number of its allocation, so a later allocation at the same address is
    /// registered anew.
    ///
    /// Messages in flight and streams hold the memory beyond the caller's last handle, and the
    /// caller cannot determine for how long. For memory that is freed before the process ends,
    /// [`register`](Context::register) takes a region of [`Gpu::adopt_owned`], which reports when
    /// the memory is no longer used.
    ///
    /// # Safety
    /// The memory stays allocated as long as anything can access it: handles on the result,
    /// messages in flight, and streams with enqueued operations.
    ///
    /// # Errors
    /// `Invalid` if the range is not allocated; `Gdsync(Foreign)` if the GPU is a software GPU;
    /// `System` for an address that is not in memory of the GPU, or if the NIC refuses; others as
    /// [`Gpu::adopt`] and [`Pd::register`](gdsync::rdma::Pd::register).
    pub unsafe fn register_device(&self, addr: DevicePtr, len: usize) -> Result<Memory> {
        // SAFETY: the caller upholds the contract of `Cache::device`, which is this function's.
        unsafe { self.cache().device(&self.engine().paths, addr, len) }
    }

    /// Registers a buffer of the application and takes it over. The buffer is freed when nothing
    /// can access it: no handle, no registration, no message in flight, and no enqueued operation
    /// of a stream. [`Memory::into_vec`] returns it:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
    /// # let alone = Local::ranks(1).remove(0);
    /// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
    /// let memory = ctx.adopt_vec(vec![1; 64]).map_err(|(_buffer, e)| e)?;
    /// memory.write(0, &[2; 32])?;
    /// let buffer = memory.into_vec(Duration::from_secs(10)).map_err(|(_memory, e)| e)?;
    /// assert_eq!((buffer[0], buffer[63]), (2, 1));
    /// # Ok::<(), mp::Error>(())
    /// ```
    ///
    /// Until then the application cannot access the buffer directly:
    ///
    /// ```compile_fail,E0382
    /// # fn adopt(ctx: &mp::Context) -> Result<(), (Vec<u8>, mp::Error)> {
    /// let mut buffer = vec![0; 64];
    /// let memory = ctx.adopt_vec(buffer)?;
    /// buffer[0] = 1; // the memory owns the buffer: use `Memory::write`
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Each error returns the buffer as well. `Invalid` for an empty buffer; `System` if the driver
    /// or the NIC refuses it.
    pub fn adopt_vec(&self, buffer: Vec<u8>) -> Result<Memory, (Vec<u8>, Error)> {
        let region = (self.gpu().adopt_vec(buffer)).map_err(|(buffer, e)| (buffer, e.into()))?;
        match self.engine().paths.register(&region, Rights::All) {
            Ok(keys) => {
                drop(region);
                Ok(self.cache().note(Memory::new(keys)))
            }
            // Nothing was enqueued with it.
            Err(e) => Err((region.into_untouched_vec(), e)),
        }
    }

    /// The GPU address of the context's error word, for kernels: 32 bits in pinned memory. It is 0
    /// until a request of this context fails, and then has the [`gdsync::Status`] of the first
    /// failed request. It is stored before a stream that waits for the request continues, but for a
    /// packed send of that stream ([`Request::wait_on`]). It stays valid as long as the context.
    pub fn error_word(&self) -> DevicePtr {
        self.engine().error.addr()
    }

    /// The status of the first failed request of this context, whether or not a call has returned
    /// the failure; `None` if no request has failed.
    pub fn error(&self) -> Option<gdsync::Status> {
        let status = self.engine().error.load().unwrap_or(0);
        (status != 0).then_some(gdsync::Status(status))
    }

    /// Returns the first failure of a request that no call has returned: neither a wait or test of
    /// the request, nor an earlier call of this function, of [`synchronize`](Context::synchronize)
    /// or of [`close`](Context::close). All later failures count as returned, too; the error has
    /// their number. Handles that are still held return the failure of their request as before.
    pub fn take_error(&self) -> Option<Error> {
        self.engine().first_error("take error", None, true)
    }

    /// Waits on the CPU, at most `limit`, until the stream has executed all that was enqueued on it
    /// so far, and the packed sends that it waited for have ended ([`Request::wait_on`]). Returns
    /// the first failure of a message that the stream posted or waited for, except failures that a
    /// call has returned. Later failures of the stream count as returned, too. An eager message that
    /// the stream does not wait for may fail after that: [`close`](Context::close) returns this
    /// failure.
    ///
    /// # Errors
    /// - `Timeout` after `limit`, naming what the stream waits for, or a packed send that has not
    ///   ended. Stream and send continue, and the call may be repeated.
    /// - `Truncated`, `PeerFailed`, `Failed` or `Protocol`: the first failure.
    /// - Those of [`Stream::synchronize`](gdsync::Stream::synchronize).
    pub fn synchronize(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let _call = self.observe(c"synchronize", None, Some(stream));
        self.engine().synchronize(stream, limit)
    }

    /// Waits on the CPU, at most `limit`, until all sends of this rank that were posted before the
    /// call have ended, by the CPU or on streams, with or without a handle: their memory may be
    /// written again. This is local, the peers may not have received eager messages yet. Sends that
    /// are prepared and not posted do not count. Returns the first failure that no call has
    /// returned, of a send or of a receive, as [`take_error`](Context::take_error).
    ///
    /// # Errors
    /// - `Timeout` after `limit`, naming the oldest send that has not ended, its rank and what it
    ///   waits for; its source is the first failure that no call has returned, if there is one. The
    ///   sends continue, and the call may be repeated.
    /// - `Truncated`, `PeerFailed`, `Failed` or `Protocol`: the first failure.
    pub fn flush(&self, limit: Duration) -> Result<()> {
        let _call = self.observe(c"flush", None, None);
        self.engine().flush(limit)
    }

    /// Numbers of messages, bytes, operations and waits since the build of the context, by peer.
    pub fn stats(&self) -> Stats {
        let engine = self.engine();
        let mut state = engine.lock();
        // What has ended counts, also if no round has found it yet.
        engine.advance_all(&mut state);
        let row = |peer: &Peer| PeerStats {
            peer: Some(peer.rank),
            path: engine.paths.chosen(peer.rank).map(|(path, _)| *path),
            counts: peer.counts,
        };
        let none = PeerStats {
            peer: None,
            path: None,
            counts: state.counts,
        };
        let none = Some(none).filter(|none| none.counts != Counts::default());
        Stats {
            rank: engine.rank,
            peers: state.peers.iter().map(row).chain(none).collect(),
        }
    }

    /// Executes one round of the background work, and returns whether the round did some work. It
    /// does not wait. With [`Progress::Manual`] the program calls it while other ranks or streams
    /// depend on this rank's CPU; with [`Progress::Background`] no call is needed.
    pub fn progress(&self) -> bool {
        self.engine().progress()
    }

    /// Returns the streams that have waited for at least [`Builder::watchdog`], and the message or
    /// the credit that each waits for. A stream is listed with its first wait; later waits of the
    /// stream have not begun. The lists of several ranks together show a deadlock.
    pub fn stuck(&self) -> Vec<Stuck> {
        self.engine().stuck()
    }

    /// Leaves the job, and returns the first failure that no call has returned. Waits, at most
    /// `limit`, for three conditions: all posted requests have ended, except receives that are not
    /// waited for; this side has sent its peers all that they wait for; and no peer has a message
    /// in flight to this rank. If a rank leaves without this call, its peers' last sends to it may
    /// fail although the rank received them.
    ///
    /// Other ranks need not close; their background work answers. The context stays usable. If the
    /// bootstrap does not reach the other ranks ([`Kind::BootstrapLost`]), they cannot be asked:
    /// then this waits only for the requests of this rank.
    ///
    /// # Errors
    /// - `Timeout` after `limit`, naming what is unfinished or the rank that did not answer; its
    ///   source is the first failure that no call has returned, if there is one. The call may be
    ///   repeated.
    /// - Otherwise that failure, as from [`take_error`](Context::take_error): `Truncated`,
    ///   `PeerFailed`, `Failed` or `Protocol`.
    pub fn close(&self, limit: Duration) -> Result<()> {
        const OPERATION: &str = "close context";
        let engine = self.engine();
        let closed = {
            let _call = engine.observers.call(c"close", Facts::default);
            engine.close(limit)
        };
        engine.observers.write();
        let first = engine.first_error(OPERATION, None, closed.is_ok());
        match (closed, first) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(first)) => Err(first),
            (Err(late), Some(first)) => Err(late.with_source(first)),
            (Err(late), None) => Err(late),
        }
    }
}
