//! GPUs: memory, streams and submission, whatever runs them.
//!
//! A [`Gpu`] is a handle on one GPU of one runtime: the soft GPU here, CUDA and HIP where their
//! libraries are found. Behind it is the sealed trait [`Runtime`], called once per submission.
//! Streams belong to the application: the library enqueues on them, and never synchronises or
//! destroys them.

mod mapped;
mod region;
pub mod soft;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gds_step::{Host, Time};

use crate::error::{Error, Kind, Result};
use crate::memop::trace::Tracer;
use crate::memop::{Batch, Caps, DevicePtr, Op, legal};

pub(crate) use mapped::Mapped;
pub use region::{MemoryKind, Region, Span, Word32, Word64};

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
    pub backing: soft::Backing,
}

/// What a GPU runtime does for the library. Sealed: its methods may grow.
///
/// Memory handed back to a runtime while operations enqueued before still use it stays
/// accessible until these have run.
#[doc(hidden)]
pub trait Runtime: sealed::Sealed + Send + Sync + fmt::Debug {
    fn name(&self) -> String;
    fn caps(&self) -> Caps;
    fn host(&self) -> &Arc<dyn Host>;
    #[allow(private_interfaces)]
    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation>;
    /// # Safety
    /// The memory stays valid, and is not unmapped, until the allocation is dropped.
    #[allow(private_interfaces)]
    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Allocation>;
    fn new_stream(&self) -> Result<StreamHandle>;
    fn submit(&self, stream: &StreamHandle, ops: &[Op]) -> Result<()>;
    fn launch(&self, stream: &StreamHandle, kernel: &Kernel, dims: Dims, args: &[u8])
    -> Result<()>;
    fn copy(&self, stream: &StreamHandle, to: DevicePtr, from: DevicePtr, len: usize)
    -> Result<()>;
    fn capturing(&self, stream: &StreamHandle) -> Result<bool>;
    fn synchronize(&self, stream: &StreamHandle, deadline: Option<Time>) -> Result<bool>;
    fn program_kernel(&self) -> Option<&Kernel>;
}

/// A stream as its runtime knows it.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub enum StreamHandle {
    Soft(softgpu::Stream),
}

/// One GPU. Cheap to clone; all clones are the same GPU.
#[derive(Clone)]
pub struct Gpu(Arc<GpuInner>);

struct GpuInner {
    id: u64,
    runtime: Box<dyn Runtime>,
    caps: Caps,
    tracer: Tracer,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.runtime.name())
    }
}

impl Gpu {
    /// A software GPU of this process, run by its device thread.
    ///
    /// # Errors
    /// The operating system gave no thread or memory file.
    pub fn soft() -> Result<Gpu> {
        let live = gds_driver::Live::global()
            .map_err(|e| Error::new("open soft GPU", Kind::System, e.to_string()).source(e))?;
        soft::SoftRuntime::open(live, soft::SoftOptions::default())
    }

    /// A software GPU on a driver of the caller's choice, with capabilities switched.
    ///
    /// # Errors
    /// As [`Gpu::soft`].
    pub fn soft_with(host: Arc<dyn Host>, options: soft::SoftOptions) -> Result<Gpu> {
        soft::SoftRuntime::open(host, options)
    }

    pub(crate) fn from_runtime(runtime: Box<dyn Runtime>) -> Gpu {
        let caps = runtime.caps();
        Gpu(Arc::new(GpuInner {
            id: next_id(),
            runtime,
            caps,
            tracer: Tracer::from_env(),
        }))
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
    /// `ptr` is valid for reads and writes of `len` bytes, and stays so until the region and
    /// everything made of it (registrations, work in flight) is gone. No Rust reference to the
    /// memory is used while devices may write to it.
    ///
    /// # Errors
    /// `Invalid` for a null pointer or length zero; `System` if the runtime refuses.
    pub unsafe fn register_host(&self, ptr: *mut u8, len: usize) -> Result<Region> {
        if ptr.is_null() || len == 0 {
            return Err(Error::new(
                "register host memory",
                Kind::Invalid,
                "a null or empty range",
            ));
        }
        // SAFETY: the caller's promise covers the runtime's.
        let allocation = unsafe { self.0.runtime.register(ptr, len)? };
        Ok(Region::new(self.clone(), MemoryKind::Pinned, allocation))
    }

    /// Makes a stream. A convenience for programs without a GPU framework: the stream is the
    /// caller's like any other.
    ///
    /// # Errors
    /// `System` if the runtime has none left.
    pub fn stream(&self) -> Result<Stream> {
        let handle = self.0.runtime.new_stream()?;
        Ok(Stream::new(self.clone(), handle))
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
        for range in batch.split(caps.batch_limit)? {
            let ops = &batch.ops()[range];
            self.0.tracer.submission(stream.id, ops);
            self.0.runtime.submit(&stream.handle, ops)?;
            *submitted = true;
        }
        Ok(())
    }
}

/// A stream of the application: work enqueued on it runs in order. Clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    id: u64,
    gpu: Gpu,
    handle: StreamHandle,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {:?}", self.id, self.gpu)
    }
}

impl Stream {
    pub(crate) fn new(gpu: Gpu, handle: StreamHandle) -> Stream {
        Stream {
            id: next_id(),
            gpu,
            handle,
        }
    }

    /// Its number in traces and errors.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The GPU that runs it.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The soft GPU's own handle, to use what only the soft GPU has (events, fills, capture).
    pub fn as_soft(&self) -> Option<&softgpu::Stream> {
        match &self.handle {
            StreamHandle::Soft(stream) => Some(stream),
        }
    }

    /// Refuses a stream of another GPU, and a stream that is being captured.
    pub(crate) fn check(&self, gpu: &Gpu, operation: &'static str) -> Result<()> {
        if !self.gpu.is(gpu) {
            return Err(Error::new(
                operation,
                Kind::Foreign,
                format!("{self:?} used with {gpu:?}"),
            ));
        }
        if self.gpu.runtime().capturing(&self.handle)? {
            return Err(Error::new(
                operation,
                Kind::Unsupported,
                format!("{self:?} is being captured into a graph"),
            ));
        }
        Ok(())
    }

    /// Enqueues word operations.
    ///
    /// # Errors
    /// `Unsupported` if the stream is being captured or the runtime lacks an operation;
    /// nothing has been enqueued then. `System` if the runtime refuses.
    ///
    /// # Safety
    /// Every address in `batch` lies in memory of this GPU that stays allocated until the stream
    /// has run the batch, and that nothing else relies on keeping its value. (Operations on
    /// [`Word32`] and [`Span`] in a list need no such promise.)
    pub unsafe fn submit(&self, batch: &Batch) -> Result<()> {
        self.check(&self.gpu, "submit batch")?;
        let mut scratch = Batch::with_capacity(batch.len() + 8);
        self.gpu
            .submit(self, &mut batch.clone(), &mut scratch, &mut false)
    }

    /// Enqueues a kernel. `args` are the bytes of its parameter structure.
    ///
    /// # Safety
    /// The kernel does with its arguments what the language it is written in allows: pointers
    /// are valid on this GPU until it has run, and nobody relies on what it overwrites.
    ///
    /// # Errors
    /// `Invalid` for a shape or argument size the kernel does not take, `Foreign` for a kernel of
    /// another runtime, `System` if the runtime refuses.
    pub unsafe fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()> {
        self.gpu.runtime().launch(&self.handle, kernel, dims, args)
    }

    pub(crate) fn launch_program(&self, dims: Dims, args: &[u8]) -> Result<()> {
        let kernel = self.gpu.runtime().program_kernel().ok_or_else(|| {
            Error::new(
                "lower to a kernel",
                Kind::Unsupported,
                format!("{:?}", self.gpu),
            )
        })?;
        self.gpu.runtime().launch(&self.handle, kernel, dims, args)
    }

    /// Enqueues a copy between two spans of equal length.
    ///
    /// # Errors
    /// `Invalid` if the lengths differ, `Foreign` for memory of another GPU.
    pub fn copy(&self, to: &Span, from: &Span) -> Result<()> {
        if to.len() != from.len() {
            return Err(Error::new(
                "enqueue copy",
                Kind::Invalid,
                format!("{} bytes into {} bytes", from.len(), to.len()),
            ));
        }
        for span in [to, from] {
            if !span.region().gpu().is(&self.gpu) {
                return Err(Error::new(
                    "enqueue copy",
                    Kind::Foreign,
                    format!("{span:?}"),
                ));
            }
        }
        self.gpu
            .runtime()
            .copy(&self.handle, to.addr(), from.addr(), to.len())
    }

    /// Waits until everything enqueued so far has run; `false` if the limit passed first.
    ///
    /// # Errors
    /// `System` if the stream or its device failed.
    pub fn synchronize(&self, limit: Duration) -> Result<bool> {
        let deadline = self.gpu.host().now() + limit;
        self.gpu.runtime().synchronize(&self.handle, Some(deadline))
    }
}
