//! GPUs: memory, streams, events and kernels, the same for every GPU runtime.
//!
//! A [`Gpu`] is a handle on one GPU of one runtime: CUDA, HIP, or the software GPU of this
//! process (feature `soft`). It allocates [`Region`]s or adopts memory of the application, creates
//! [`Stream`]s or adopts those of the application, and loads [`KernelImage`]s. An adopted stream
//! belongs to the application: the library enqueues work on it and never destroys it. Only
//! [`Stream::synchronize`] blocks the CPU until a stream has run its work. [`rdma`](crate::rdma)
//! enqueues messages on streams.
//!
//! In the sources, each runtime has a folder here: `soft`, `cuda`, `hip`. `runtime` contains the traits
//! that a runtime implements for the library, and `driver` implements them for `cuda` and `hip`.
//! `docs/runtimes.md` describes how a runtime is added.

mod alloc;
mod chunks;
mod consistency;
mod cuda;
mod driver;
mod event;
mod graph;
mod hip;
mod host;
mod identity;
mod kernel;
mod mapped;
mod name;
mod region;
mod room;
mod runtime;
mod share;
#[cfg(feature = "soft")]
pub mod soft;
mod stream;
mod timeline;
mod waiting;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use gds_step::Host;

use crate::error::{Error, Kind, Result};
use crate::kernels::Entry;
use crate::memop::trace::Tracer;
use crate::memop::{Batch, Op, legal};

pub use crate::memop::{Caps, Condition, DevicePtr};
pub(crate) use chunks::{AHEAD, Chunk, Chunks, LEAST};
pub use consistency::Consistency;
pub(crate) use consistency::no_consistency;
#[doc(hidden)]
pub use cuda::{cuda_caps, cuda_refusal, driver_too_old, wait_limits};
pub use event::Event;
pub use graph::Graph;
#[doc(hidden)]
pub use hip::{hip_architecture, hip_caps, hip_refusal, hip_runtime_refusal};
pub use identity::{GpuIdentity, Unreachable};
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use kernel::KERNELS;
pub use kernel::{Dims, Kernel, KernelImage, Module};
pub(crate) use mapped::Mapped;
#[doc(hidden)]
pub use name::{GpuName, auto_goes_on};
pub(crate) use region::WeakRegion;
pub use region::{MemoryKind, Region, Span, Word32, Word64};
pub(crate) use runtime::Ends;
pub(crate) use runtime::Way;
use runtime::{Opener, Runtime};
pub use share::SharedMemory;
use stream::Adopted;
pub use stream::Stream;
pub(crate) use stream::submissions;
#[doc(hidden)]
pub use stream::{Lent, WeakStream};
use timeline::Observers;
#[doc(hidden)]
pub use timeline::{Observer, Passed, Work};
#[doc(hidden)]
pub use waiting::WaitLimits;
pub(crate) use waiting::{Proof, Waiting};

/// The runtimes of this build, in the order in which `auto` tries them.
const RUNTIMES: &[Opener] = &[
    cuda::OPENER,
    hip::OPENER,
    #[cfg(feature = "soft")]
    soft::OPENER,
];

/// The names of the runtimes that this build omits because their feature (of the same name) is off.
const NOT_BUILT: &[&str] = &[
    #[cfg(not(feature = "soft"))]
    "soft",
];

/// The default capabilities of a software GPU's streams; its options can change them.
#[doc(hidden)]
pub const SOFT_CAPS: Caps = Caps {
    memops64: true,
    nor: true,
    mask: false,
    cyclic: true,
    flush: true,
    inline_copy: false,
    fence: true,
    ordered_writes: false,
    host_flush: true,
    captures: true,
    kernels: true,
    batch_limit: 255,
};

/// Counts GPUs and streams of this process, so that each has a unique number. Relaxed: only
/// uniqueness matters.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// A handle on one GPU of one runtime. A clone is cheap and is a handle on the same GPU.
///
/// A software GPU stays open until its last handle and the last object made from it are dropped, a
/// GPU of CUDA or HIP until the process ends.
///
/// ```
/// use gdsync::Gpu;
/// use gdsync::gpu::MemoryKind;
///
/// # fn main() -> gdsync::Result<()> {
/// let gpu = Gpu::open("soft")?; // or "cuda", "cuda:1", "hip", "auto"
/// let memory = gpu.alloc(MemoryKind::Device, 4096)?; // bytes, zeroed
/// memory.write(8, b"payload")?;
/// let mut bytes = [0; 7];
/// memory.read(8, &mut bytes)?;
/// assert_eq!(&bytes, b"payload");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Gpu(Arc<GpuInner>);

struct GpuInner {
    id: u64,
    runtime: Box<dyn Runtime>,
    caps: Caps,
    tracer: Tracer,
    waiting: Waiting,
    observers: Observers,
    adopted: Adopted,
    /// Streams with a handle of the application. Relaxed: a count, which orders nothing.
    streams: AtomicUsize,
    /// See [`Gpu::companion`].
    companion: OnceLock<Box<dyn Any + Send + Sync>>,
    modules: kernel::Loaded,
    /// The library's kernels, in the order of [`Entry::ALL`]; empty if this GPU runs none of them.
    kernels: Vec<Kernel>,
    /// The policy that `GDS_CONSISTENCY` demands.
    wish: Option<Consistency>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.runtime.gpu_name())
    }
}

impl Gpu {
    /// Opens a GPU by name: `soft`, `cuda`, `cuda:1`, `hip`, `hip:1`, or `auto`: `cuda` if CUDA has a
    /// usable GPU, else `hip` if HIP has one, else `soft`, if the build has it. A log event has the
    /// reason for which a runtime has none.
    ///
    /// `cuda` is the first GPU that CUDA shows, `hip` the first that HIP shows. In a job with several ranks on the host, it is the
    /// GPU whose index is the local rank (`MP_LOCAL_RANK`, or the variable of torchrun, Open MPI,
    /// Hydra or SLURM) modulo the number of GPUs. A log event states the choice and
    /// its reason. If the host has more ranks than GPUs, the library logs a warning.
    ///
    /// # Errors
    /// `Invalid` for another name, and for a local rank that is not a number; `Unsupported` for
    /// `soft` in a build without that feature; other errors as [`Gpu::cuda`], [`Gpu::hip`] and `Gpu::soft`.
    ///
    /// Every call that opens a GPU also returns `Invalid` for an invalid `GDS_CONSISTENCY`,
    /// `Unsupported` for a consistency policy that the GPU lacks, and `System` if the file of
    /// `GDS_TRACE` cannot be opened.
    pub fn open(name: &str) -> Result<Gpu> {
        let GpuName::Of { runtime, index } = GpuName::parse(name)? else {
            return Gpu::best();
        };
        match RUNTIMES.iter().find(|opener| opener.name == runtime) {
            Some(opener) => (opener.open)(index),
            None => Err(Error::not_built("open GPU", runtime)),
        }
    }

    /// Opens the first of [`RUNTIMES`] that has a usable GPU.
    fn best() -> Result<Gpu> {
        let (last, others) = RUNTIMES.split_last().expect("there is one");
        for opener in others {
            match (opener.open)(None) {
                Err(e) if auto_goes_on(e.kind()) => {
                    tracing::info!(target: "gdsync", "no usable {} GPU: {e}", opener.name);
                }
                other => return other,
            }
        }
        (last.open)(None)
    }

    /// Opens the GPU that `GDS_GPU` names, as [`Gpu::open`] does; `auto` if the variable is not
    /// set.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn from_env() -> Result<Gpu> {
        let name = std::env::var("GDS_GPU").unwrap_or_else(|_| "auto".to_owned());
        Gpu::open(&name)
    }

    pub(crate) fn from_runtime(runtime: Box<dyn Runtime>) -> Result<Gpu> {
        let wish = Consistency::VARIABLE.read()?;
        let caps = Consistency::restrict_to(wish, runtime.caps())
            .map_err(|e| e.with_owner(runtime.gpu_name()))?;
        let waiting = Waiting::new(runtime.wait_limits());
        let modules = kernel::Loaded::default();
        let kernels = match caps.kernels {
            true => modules.own(&*runtime)?,
            false => Vec::new(),
        };
        Ok(Gpu(Arc::new(GpuInner {
            id: next_id(),
            runtime,
            caps,
            tracer: Tracer::from_env()?,
            waiting,
            observers: Observers::default(),
            adopted: Adopted::default(),
            streams: AtomicUsize::new(0),
            companion: OnceLock::new(),
            modules,
            kernels,
            wish,
        })))
    }

    /// The runtime and the device as text for reports: `soft gpu0`.
    pub fn name(&self) -> String {
        self.0.runtime.gpu_name()
    }

    /// The capabilities of this GPU's streams, without those that `GDS_CONSISTENCY` excludes.
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// The driver that steps the software devices of this GPU; it is also the clock of the GPU.
    #[doc(hidden)]
    pub fn host(&self) -> &Arc<dyn Host> {
        self.0.runtime.host()
    }

    /// The tracer of submissions on this GPU's streams.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// Starts to capture the trace of this GPU's streams for [`Gpu::take_trace`], in place of the
    /// output that `GDS_TRACE` selects. The trace has one line for each submission and one for each
    /// of its operations, in the order of submission.
    ///
    /// ```
    /// # use gdsync::{gpu::MemoryKind, rdma::{Descriptor, post_on}};
    /// # fn main() -> gdsync::Result<()> {
    /// # let gpu = gdsync::Gpu::soft()?;
    /// # let word = gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?;
    /// # let stream = gpu.stream()?;
    /// gpu.capture_trace();
    /// post_on(&stream, &mut [], &[Descriptor::write_value(&word, 7)])?;
    /// let lines = gpu.finish_trace();
    /// assert!(lines[0].ends_with("1 operations"));
    /// assert!(lines[1].ends_with("= 0x00000007 fenced"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn capture_trace(&self) {
        self.0.tracer.capture();
    }

    /// Returns and clears the captured trace lines; the capture continues.
    pub fn take_trace(&self) -> Vec<String> {
        self.0.tracer.take()
    }

    /// Ends the capture and returns the lines that [`Gpu::take_trace`] did not return yet. From
    /// then on nothing is traced, also not to the output of `GDS_TRACE`.
    pub fn finish_trace(&self) -> Vec<String> {
        self.0.tracer.finish()
    }

    /// Whether both handles name the same GPU.
    pub fn is(&self, other: &Gpu) -> bool {
        self.0.id == other.0.id
    }

    /// The name of the runtime, for reports: `soft`, `cuda` or `hip`.
    pub fn runtime_name(&self) -> &'static str {
        self.0.runtime.runtime_name()
    }

    /// Whether it is a software GPU: threads of this process, which use memory that the CPU can
    /// access.
    pub fn is_software(&self) -> bool {
        self.0.runtime.is_software()
    }

    /// A number of the physical GPU, the same in every process; 0 for a GPU that no other process
    /// can share.
    pub(crate) fn number(&self) -> u64 {
        self.0.runtime.number()
    }

    /// Whether its kernels run beside those of other processes (CUDA: by the Multi-Process Service).
    /// Otherwise the GPU runs processes in turn.
    pub(crate) fn runs_processes_beside(&self) -> bool {
        self.0.runtime.runs_processes_beside()
    }

    /// Its PCI address, as `0000:3b:00.0`; `None` for a GPU that is not on a PCI bus.
    pub(crate) fn pci(&self) -> Option<String> {
        self.0.runtime.pci()
    }

    /// The maximum number of this GPU's streams that may wait at a time; `None`: no limit.
    ///
    /// A waiting stream holds a hardware channel of its CUDA context. The library keeps two
    /// channels free: 6 streams may wait by default, and 30 with `CUDA_DEVICE_MAX_CONNECTIONS=32`.
    /// With HIP, 2 streams may wait by default, and 6 with `GPU_MAX_HW_QUEUES=8`.
    /// On a software GPU it keeps one of the 8 channels free. One more waiting stream is refused
    /// with [`Kind::TooManyWaits`].
    pub fn max_waiting_streams(&self) -> Option<u32> {
        Some(self.wait_limits()?.streams)
    }

    /// The limits of this GPU's waiting streams; `None`: no limits.
    #[doc(hidden)]
    pub fn wait_limits(&self) -> Option<WaitLimits> {
        self.0.waiting.limits()
    }

    /// Number of streams that have a [`Stream`] of the application now.
    #[doc(hidden)]
    pub fn stream_count(&self) -> usize {
        self.0.streams.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.0.waiting
    }

    /// State that the layer above keeps with this GPU. The GPU only stores it. All callers use one
    /// type.
    pub(crate) fn companion<T: Default + Send + Sync + 'static>(&self) -> &T {
        let held = self.0.companion.get_or_init(|| Box::new(T::default()));
        held.downcast_ref().expect("one type")
    }

    /// The consistency policy that the environment demands.
    pub(crate) fn wish(&self) -> Option<Consistency> {
        self.0.wish
    }

    /// The kernel images that this GPU has loaded.
    fn modules(&self) -> &kernel::Loaded {
        &self.0.modules
    }

    /// One of the library's kernels; `None` if this GPU does not have them.
    fn own_kernel(&self, entry: Entry) -> Option<&Kernel> {
        self.0.kernels.get(entry as usize)
    }

    fn observers(&self) -> &Observers {
        &self.0.observers
    }

    fn adopted(&self) -> &Adopted {
        &self.0.adopted
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.0.runtime
    }

    /// Creates a stream, for programs without a GPU framework. A stream of a CUDA GPU is
    /// *non-blocking*: it does not synchronise with the legacy default stream.
    ///
    /// While any stream of a CUDA context waits, the driver may block a call that creates a stream,
    /// and the whole process with it. Therefore the library creates 32 streams when it opens the
    /// GPU, and reuses a stream that is dropped. When half of them are in use, the library creates
    /// more if all streams are idle. The library cannot see waits that the application enqueues by
    /// other calls: create streams before those waits.
    ///
    /// With HIP the library creates no stream ahead. All streams share `GPU_MAX_HW_QUEUES` hardware
    /// queues, 4 by default, and work behind a stream that waits may be in the queue of another stream:
    /// have no more streams than queues.
    ///
    /// # Errors
    /// `TooManyWaits` on CUDA if all of these streams are in use while a stream waits; `System` if
    /// the runtime cannot create another stream.
    pub fn stream(&self) -> Result<Stream> {
        let handle = self.0.runtime.new_stream(&|| self.0.waiting.any())?;
        Ok(Stream::new(self.clone(), handle))
    }

    /// Makes NIC writes to GPU memory visible to work that is enqueued from now on, if the CPU has
    /// seen a completion that follows these writes. A stream that waits for a completion flushes as
    /// part of its wait. With CUDA the start of later work makes the writes visible, and this call does
    /// nothing. With HIP the CPU flushes by a register of the GPU; if the GPU has none, the call does
    /// nothing.
    pub fn flush_remote_writes(&self) {
        self.0.runtime.flush_remote_writes();
    }

    /// Submits `batch` on `stream`: rewrites it to the capabilities of the runtime, splits it at
    /// the runtime's limit and traces it. `scratch` keeps its memory for the next call. `submitted`
    /// is set once the stream has accepted a part.
    pub(crate) fn submit(
        &self,
        stream: &Stream,
        batch: &mut Batch,
        scratch: &mut Batch,
        submitted: &mut bool,
    ) -> Result<()> {
        let caps = &self.0.caps;
        if stream.records_kernels() && !batch.is_empty() {
            let what = "captures of this runtime do not record memory operations; launch a kernel";
            return Err(Error::new("submit batch", Kind::Unsupported, what));
        }
        let batch = if batch.is_legal(caps) {
            legal::keep_last_flush(batch);
            batch
        } else {
            legal::rewrite(batch, caps, scratch)?;
            scratch
        };
        let mut send = |ops: &[Op]| -> Result<()> {
            self.0.tracer.submission(stream.id(), ops);
            stream.observed(|| Work::of(ops), |handle| handle.submit(ops))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn open_refuses_a_name_of_no_runtime() {
        for name in [
            "", "metal", "hip:", "cuda:", "cuda:-1", "cuda:x", "soft:0", "auto:0", " cuda",
        ] {
            let e = Gpu::open(name).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{name}");
            assert!(
                e.to_string()
                    .contains("cuda, cuda:N, hip, hip:N, soft, auto"),
                "{e}"
            );
        }
    }
}
