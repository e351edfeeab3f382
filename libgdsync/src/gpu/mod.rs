//! GPUs: memory, streams and submission, whatever runs them.
//!
//! A [`Gpu`] is a handle on one GPU of one runtime: the soft GPU here, CUDA and HIP where their
//! libraries are found. Behind it is the sealed trait [`Runtime`], called once per submission.
//! Streams belong to the application: the library enqueues on them, and never synchronises or
//! destroys them.

mod consistency;
pub mod cuda;
mod event;
mod mapped;
mod module;
mod region;
pub mod soft;
mod stream;
mod waiting;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gds_step::{Host, Time};
use gdsync_sys::gpu_choice::GpuName;

use crate::error::{Error, Kind, Result};
use crate::kernels::{Entry, Transfer};
use crate::memop::trace::Tracer;
use crate::memop::{Batch, Caps, DevicePtr, Op, legal};

pub use consistency::Consistency;
pub(crate) use consistency::none as no_consistency;
pub use event::Event;
#[doc(hidden)]
pub use event::EventHandle;
pub(crate) use mapped::Mapped;
pub use module::{KernelImage, Module};
pub(crate) use region::WeakRegion;
pub use region::{MemoryKind, Region, Span, Word32, Word64};
use stream::Adopted;
pub use stream::Stream;
#[doc(hidden)]
pub(crate) use stream::submissions;
#[doc(hidden)]
pub use stream::{Lent, StreamHandle, WeakStream};
pub use waiting::WaitLimits;
pub(crate) use waiting::{Proof, Waiting};

/// Counts GPUs and streams of this process, so that each has a number of its own. Relaxed:
/// only uniqueness matters.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

mod sealed {
    /// Only runtimes of this crate implement [`super::Runtime`].
    pub trait Sealed {}
}

/// A kernel that [`Stream::launch`] runs.
#[derive(Clone, Debug)]
pub struct Kernel(pub(crate) KernelCode);

#[derive(Clone, Debug)]
pub(crate) enum KernelCode {
    Soft(softgpu::Kernel),
    Cuda(cuda::Function),
}

impl Kernel {
    /// A kernel for the soft GPU.
    pub fn soft(kernel: softgpu::Kernel) -> Kernel {
        Kernel(KernelCode::Soft(kernel))
    }
}

/// The shape of a launch: blocks, threads of a block, bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

impl Dims {
    /// `blocks` blocks of `threads` threads, no dynamic shared memory.
    pub fn linear(blocks: u32, threads: u32) -> Dims {
        Dims {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared: 0,
        }
    }
}

/// Memory that a runtime gave or registered.
pub(crate) struct Allocation {
    pub addr: DevicePtr,
    pub len: usize,
    /// Where the CPU reaches it, if it does without a mapping of its own.
    pub cpu: Option<Mapped>,
    pub backing: Backing,
}

/// What is behind a region, by runtime.
pub(crate) enum Backing {
    Soft(soft::Backing),
    Cuda(cuda::Memory),
}

impl From<soft::Backing> for Backing {
    fn from(backing: soft::Backing) -> Backing {
        Backing::Soft(backing)
    }
}

impl Backing {
    /// Copies out by a copy engine; `None` where there is none to be used.
    fn read(&self, offset: usize, into: &mut [u8]) -> Option<Result<()>> {
        match self {
            Backing::Soft(_) => None,
            Backing::Cuda(memory) => Some(memory.read(offset, into)),
        }
    }

    /// Frees it at once.
    ///
    /// # Safety
    /// Every enqueued operation that names it is known to have run.
    unsafe fn release(self) {
        match self {
            // SAFETY: the caller's promise.
            Backing::Soft(memory) => unsafe { memory.release() },
            Backing::Cuda(memory) => memory.release(),
        }
    }

    /// Copies in by a copy engine; `None` where there is none to be used.
    fn write(&self, offset: usize, from: &[u8]) -> Option<Result<()>> {
        match self {
            Backing::Soft(_) => None,
            Backing::Cuda(memory) => Some(memory.write(offset, from)),
        }
    }
}

/// The CPU's own mapping of device memory.
pub(crate) enum View {
    Soft(soft::View),
    Cuda(cuda::View),
}

impl View {
    fn of(backing: &Backing) -> Result<View> {
        match backing {
            Backing::Soft(memory) => soft::View::of(memory).map(View::Soft),
            Backing::Cuda(memory) => cuda::View::of(memory).map(View::Cuda),
        }
    }

    fn mapped(&self) -> Mapped {
        match self {
            View::Soft(view) => view.mapped(),
            View::Cuda(view) => view.mapped(),
        }
    }
}

/// What becomes of a stream without a handle.
#[doc(hidden)]
pub enum Left {
    /// It may be asked as long as anybody holds it.
    Ours,
    /// Its owner may destroy it, and it has nothing to do, or nobody can tell.
    Done,
    /// Its owner may destroy it; this tells when its work is done.
    Busy(EventHandle),
}

/// How far the streams of a GPU were enqueued when it was taken.
#[doc(hidden)]
#[derive(Debug)]
pub enum Ends {
    Soft(softgpu::Ends),
    Cuda(cuda::Ends),
}

impl Ends {
    /// Whether they have run all of it.
    pub(crate) fn is_reached(&self) -> bool {
        match self {
            Ends::Soft(ends) => ends.is_reached(),
            Ends::Cuda(ends) => ends.is_reached(),
        }
    }
}

/// Keeps something of the application's that was handed in, until it is dropped.
pub(crate) type Owner = Box<dyn Send + Sync>;

/// What a GPU runtime does for the library. Sealed: its methods may grow.
///
/// Memory handed back to a runtime while operations enqueued before still use it stays
/// accessible until these have run.
#[doc(hidden)]
pub trait Runtime: sealed::Sealed + Send + Sync + fmt::Debug {
    fn name(&self) -> String;
    /// `soft` or `cuda`.
    fn kind(&self) -> &'static str;
    /// The physical GPU; 0 if it is this process's alone.
    fn identity(&self) -> u64 {
        0
    }
    /// Its address on the PCI bus.
    fn pci(&self) -> Option<String> {
        None
    }
    fn caps(&self) -> Caps;
    /// `None`: any number of streams may wait.
    fn wait_limits(&self) -> Option<WaitLimits>;
    fn host(&self) -> &Arc<dyn Host>;
    #[allow(private_interfaces)]
    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation>;
    /// Host memory, and what keeps it, which is dropped when no stream can reach the memory.
    ///
    /// # Safety
    /// The memory stays valid, and is not unmapped, until `owner` is dropped; without one, until
    /// the allocation is dropped and what was enqueued before has run.
    #[allow(private_interfaces)]
    unsafe fn register(&self, ptr: *mut u8, len: usize, owner: Option<Owner>)
    -> Result<Allocation>;
    /// # Safety
    /// The application's memory stays allocated until the allocation is dropped.
    #[allow(private_interfaces)]
    unsafe fn adopt(&self, at: DevicePtr, len: usize, owner: Option<Owner>) -> Result<Allocation>;
    #[allow(private_interfaces)]
    fn allocate_exportable(&self, len: usize) -> Result<Allocation>;
    /// # Safety
    /// The process that shares the memory keeps it.
    #[allow(private_interfaces)]
    unsafe fn open_shared(&self, shared: &cuda::SharedMemory) -> Result<Allocation>;
    #[allow(private_interfaces)]
    fn as_cuda(&self) -> Option<&cuda::CudaRuntime>;
    /// `waits` says whether a stream of the GPU is known to wait.
    fn new_stream(&self, waits: &dyn Fn() -> bool) -> Result<StreamHandle>;
    fn submit(&self, stream: &StreamHandle, ops: &[Op]) -> Result<()>;
    fn launch(&self, stream: &StreamHandle, kernel: &Kernel, dims: Dims, args: &[u8])
    -> Result<()>;
    /// `host`: both places are host memory.
    fn copy(&self, stream: &StreamHandle, transfer: &Transfer, host: bool) -> Result<()>;
    fn idle(&self, stream: &StreamHandle) -> Result<bool>;
    /// The application's last handle on a stream goes away.
    fn leave(&self, stream: &StreamHandle) -> Left;
    /// How far all streams have been enqueued, those too whose handles are gone.
    fn ends(&self) -> Ends;
    fn record(&self, stream: &StreamHandle) -> Result<EventHandle>;
    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()>;
    fn is_done(&self, event: &EventHandle) -> Result<bool>;
    fn capturing(&self, stream: &StreamHandle) -> Result<bool>;
    fn synchronize(&self, stream: &StreamHandle, deadline: Option<Time>) -> Result<bool>;
    /// See [`Gpu::flush_remote_writes`].
    fn flush_remote_writes(&self);
    /// Has the CPU wait until what NICs wrote to GPU memory is visible to it, whatever streams
    /// are doing.
    fn host_flush(&self) -> Result<()>;
    /// One of the library's own kernels, if the runtime can run kernels.
    fn kernel(&self, entry: Entry) -> Option<&Kernel>;
    fn load_module(&self, image: &[u8]) -> Result<cuda::Module>;
}

/// Refuses host memory that is not mapped, before a device uses it.
fn check_mapped(ptr: *mut u8, len: usize) -> Result<()> {
    const OPERATION: &str = "register host memory";
    let refused = |why: &str| {
        let what = format!("{len} bytes at {ptr:p}: {why}");
        Err(Error::new(OPERATION, Kind::Invalid, what))
    };
    if ptr.is_null() || len == 0 {
        return refused("a null or empty range");
    }
    // SAFETY: reads a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = ptr.addr() / page * page;
    let Some(end) = ptr.addr().checked_add(len) else {
        return refused("it goes past the end of the address space");
    };
    // With this flag Linux writes nothing back: it only checks that every page is mapped.
    // SAFETY: as said, it touches no memory.
    let answer = unsafe {
        let start = std::ptr::without_provenance_mut(start);
        libc::msync(start, end - start.addr(), libc::MS_ASYNC)
    };
    match answer {
        0 => Ok(()),
        _ => refused("not all of it is mapped memory of this process"),
    }
}

/// One GPU. Cheap to clone; all clones are the same GPU.
#[derive(Clone)]
pub struct Gpu(Arc<GpuInner>);

struct GpuInner {
    id: u64,
    runtime: Box<dyn Runtime>,
    caps: Caps,
    tracer: Tracer,
    waiting: Waiting,
    adopted: Adopted,
    /// See [`Gpu::companion`].
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
    modules: module::Loaded,
    /// What `GDS_CONSISTENCY` says.
    wish: Option<Consistency>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.runtime.name())
    }
}

impl Gpu {
    /// A software GPU of this process, run by its device thread.
    ///
    /// The drop of the GPU waits, at most ten seconds, until a running kernel yields or ends. After
    /// that a warning names the kernel and its stream, and the GPU, with all memory that the kernel
    /// may still use, is kept until the kernel or the process ends.
    ///
    /// # Errors
    /// The operating system gave no thread or memory file.
    pub fn soft() -> Result<Gpu> {
        let live = gds_step::Live::global()
            .map_err(|e| Error::new("open soft GPU", Kind::System, e.to_string()).source(e))?;
        soft::SoftRuntime::open(live, soft::SoftOptions::default())
    }

    /// A GPU by name: `soft`, `cuda:1`, `cuda`, or `auto`: `cuda` if CUDA has a usable GPU, else
    /// `soft`.
    ///
    /// `cuda` is the first GPU that CUDA shows. In a job with several ranks on the host, it is the
    /// GPU of the local rank (`MP_LOCAL_RANK`, or the variable of torchrun, Open MPI, Hydra or SLURM)
    /// modulo the number of GPUs that CUDA shows. An event of the log says which one and why; more
    /// ranks than GPUs is a warning.
    ///
    /// # Errors
    /// `Invalid` for another name, and for a local rank that is not a number; else as
    /// [`Gpu::soft`] and [`Gpu::cuda`].
    pub fn open(name: &str) -> Result<Gpu> {
        let asked = GpuName::parse(name).ok_or_else(|| {
            let what = format!("{name:?}: {}", GpuName::KNOWN);
            Error::new("open GPU", Kind::Invalid, what)
        })?;
        match asked {
            GpuName::Soft => Gpu::soft(),
            GpuName::Cuda => cuda::by_local_rank(),
            GpuName::Index(index) => Gpu::cuda(index),
            GpuName::Auto => match cuda::by_local_rank() {
                Err(e) if matches!(e.kind(), Kind::Absent | Kind::Unsupported) => {
                    tracing::info!(target: "gdsync", "a software GPU, because: {e}");
                    Gpu::soft()
                }
                other => other,
            },
        }
    }

    /// The GPU that `GDS_GPU` names, as in [`Gpu::open`]; `auto` if it is not set.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn from_env() -> Result<Gpu> {
        let name = std::env::var("GDS_GPU").unwrap_or_else(|_| "auto".to_owned());
        Gpu::open(&name)
    }

    /// A software GPU on a driver of the caller's choice, with capabilities switched.
    ///
    /// # Errors
    /// As [`Gpu::soft`].
    pub fn soft_with(host: Arc<dyn Host>, options: soft::SoftOptions) -> Result<Gpu> {
        soft::SoftRuntime::open(host, options)
    }

    pub(crate) fn from_runtime(runtime: Box<dyn Runtime>) -> Result<Gpu> {
        let wish = consistency::wished()?;
        let caps = consistency::under(wish, runtime.caps()).map_err(|e| e.of(runtime.name()))?;
        let waiting = Waiting::new(runtime.wait_limits());
        Ok(Gpu(Arc::new(GpuInner {
            id: next_id(),
            runtime,
            caps,
            tracer: Tracer::from_env()?,
            waiting,
            adopted: Adopted::default(),
            companion: OnceLock::new(),
            modules: module::Loaded::default(),
            wish,
        })))
    }

    /// The runtime and the device, for people: `soft gpu0`.
    pub fn name(&self) -> String {
        self.0.runtime.name()
    }

    /// What its streams can do.
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// The driver that steps the software devices beside this GPU, which is also its clock.
    pub fn host(&self) -> &Arc<dyn Host> {
        self.0.runtime.host()
    }

    /// Where submissions of this GPU's streams are traced.
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// Whether both are the same GPU.
    pub fn is(&self, other: &Gpu) -> bool {
        self.0.id == other.0.id
    }

    /// Which runtime runs it: `soft` or `cuda`.
    pub fn runtime_name(&self) -> &'static str {
        self.0.runtime.kind()
    }

    /// A number of the physical GPU, the same in every process; 0 for one that no other process
    /// can share.
    pub(crate) fn identity(&self) -> u64 {
        self.0.runtime.identity()
    }

    /// Where it is on the PCI bus, as `0000:3b:00.0`; `None` for one that is on none.
    pub(crate) fn pci(&self) -> Option<String> {
        self.0.runtime.pci()
    }

    /// How many of its streams may wait at a time; `None`: any number.
    pub fn wait_limits(&self) -> Option<WaitLimits> {
        self.0.waiting.limits()
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.0.waiting
    }

    /// What the layer above keeps beside this GPU, which only holds it; of one type.
    pub(crate) fn companion<T: Default + Send + Sync + 'static>(&self) -> &T {
        let held = self.0.companion.get_or_init(|| Box::new(T::default()));
        held.downcast_ref().expect("one type")
    }

    /// The consistency that the environment demands.
    pub(crate) fn wish(&self) -> Option<Consistency> {
        self.0.wish
    }

    /// The kernel images that were loaded.
    fn modules(&self) -> &module::Loaded {
        &self.0.modules
    }

    fn adopted(&self) -> &Adopted {
        &self.0.adopted
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.0.runtime
    }

    /// Allocates `len` bytes, zeroed.
    ///
    /// # Errors
    /// `Invalid` for length zero; `System` if there is no memory.
    pub fn alloc(&self, kind: MemoryKind, len: usize) -> Result<Region> {
        if len == 0 {
            return Err(Error::new("allocate", Kind::Invalid, "a region of 0 bytes"));
        }
        let allocation = self.0.runtime.allocate(kind, len)?;
        Ok(Region::new(self.clone(), kind, allocation))
    }

    /// Makes memory of the application accessible to the GPU and to NICs.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` bytes, and stays so as long as anything can
    /// reach the region: handles, registrations, requests in flight, and streams with enqueued
    /// operations. No Rust reference to the memory is used while devices may write to it.
    ///
    /// The library holds a region beyond the caller's last handle, and the caller cannot see for
    /// how long. So this is for memory that stays until the process ends;
    /// [`Gpu::register_host_owned`] says when memory is not used any more, and
    /// [`Gpu::adopt_vec`] needs no promise.
    ///
    /// # Errors
    /// `Invalid` for a null pointer, length zero or a range that is not mapped; `System` if the
    /// runtime refuses.
    pub unsafe fn register_host(&self, ptr: *mut u8, len: usize) -> Result<Region> {
        // SAFETY: the caller's promise.
        unsafe { self.register_with(ptr, len, None) }
    }

    /// As [`Gpu::register_host`], with what keeps the memory: `owner` is dropped when nothing can
    /// reach the region any more, on any thread, which it must not block.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` bytes until `owner` is dropped. No Rust
    /// reference to the memory is used while devices may write to it.
    ///
    /// # Errors
    /// As [`Gpu::register_host`]; `owner` is dropped.
    pub unsafe fn register_host_owned(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Region> {
        // SAFETY: the owner keeps the memory, and the region the owner.
        unsafe { self.register_with(ptr, len, Some(owner)) }
    }

    unsafe fn register_with(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Region> {
        check_mapped(ptr, len)?;
        // SAFETY: the caller's promise covers the runtime's.
        let allocation = unsafe { self.0.runtime.register(ptr, len, owner)? };
        Ok(Region::new(self.clone(), MemoryKind::Pinned, allocation))
    }

    /// Takes a buffer of the application, makes it accessible to the GPU and to NICs, and frees
    /// it when nothing can reach it any more: no handle, no registration, no request in flight,
    /// and no stream by an operation that was enqueued. [`Region::into_vec`] gives it back.
    ///
    /// Until then the application cannot touch the buffer itself:
    ///
    /// ```compile_fail,E0382
    /// # fn adopt(gpu: &gdsync::Gpu) -> Result<(), (Vec<u8>, gdsync::Error)> {
    /// let mut buffer = vec![0; 64];
    /// let region = gpu.adopt_vec(buffer)?;
    /// buffer[0] = 1; // the region has the buffer: `Region::write` writes into it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The buffer as well, if it is empty or the runtime refuses it.
    pub fn adopt_vec(&self, mut buffer: Vec<u8>) -> Result<Region, (Vec<u8>, Error)> {
        let (ptr, len) = (buffer.as_mut_ptr(), buffer.len());
        if let Err(e) = check_mapped(ptr, len) {
            return Err((buffer, e));
        }
        // The vector is not touched before the last owner is gone.
        let buffer = Arc::new(buffer);
        let owner = Box::new(Arc::clone(&buffer));
        // SAFETY: the owner keeps the buffer, which does not move and is reached by the region
        // alone.
        match unsafe { self.0.runtime.register(ptr, len, Some(owner)) } {
            Ok(allocation) => Ok(Region::of_vec(self.clone(), allocation, buffer)),
            // No device has written to it: what still holds it is about to be dropped.
            Err(e) => Err((Arc::unwrap_or_clone(buffer), e)),
        }
    }

    /// Makes a stream. A convenience for programs without a GPU framework: the stream is the
    /// caller's like any other.
    ///
    /// CUDA's driver may hold up a call that makes a stream, and with it the whole process, while
    /// any stream of the context waits. So 32 streams are made when the GPU is opened, and a stream
    /// that is dropped serves again. When half of them are taken, others are made if all streams are
    /// idle. What waits by calls beside this library is not known here: make streams before it.
    ///
    /// # Errors
    /// `TooManyWaits` on CUDA if those streams are taken while a stream waits; `System` if the
    /// runtime has none left.
    pub fn stream(&self) -> Result<Stream> {
        let runtime = &self.0.runtime;
        let handle = runtime.new_stream(&|| self.0.waiting.any(&**runtime))?;
        Ok(Stream::new(self.clone(), handle))
    }

    /// Makes visible, to work that is enqueued from now on, what NICs wrote to GPU memory before a
    /// completion that the CPU has seen. Streams that wait for a completion themselves flush by
    /// their wait. Under CUDA the start of later work is enough, so nothing is done.
    pub fn flush_remote_writes(&self) {
        self.0.runtime.flush_remote_writes();
    }

    /// Runs `batch` on `stream`: rewritten to what the runtime can do, cut at its limit,
    /// traced. `scratch` keeps its memory for the next call; `submitted` is set once the stream
    /// has taken something.
    pub(crate) fn submit(
        &self,
        stream: &Stream,
        batch: &mut Batch,
        scratch: &mut Batch,
        submitted: &mut bool,
    ) -> Result<()> {
        let caps = &self.0.caps;
        let batch = if legal::is_legal(batch, caps) {
            legal::keep_last_flush(batch.ops_mut());
            batch
        } else {
            scratch.clear();
            legal::rewrite(batch, caps, scratch)?;
            scratch
        };
        let mut send = |ops: &[Op]| -> Result<()> {
            self.0.tracer.submission(stream.id(), ops);
            self.0.runtime.submit(stream.handle(), ops)?;
            *submitted = true;
            Ok(())
        };
        if (1..=caps.batch_limit).contains(&batch.len()) {
            return send(batch.ops());
        }
        batch
            .split(caps.batch_limit)?
            .try_for_each(|range| send(&batch.ops()[range]))
    }
}
