//! GPUs: memory, streams and submission, whatever runs them.
//!
//! A [`Gpu`] is a handle on one GPU of one runtime, which has a folder here: `soft`, `cuda`. What a
//! runtime does for the library stands in `runtime`; a new one needs a folder that implements it
//! and a line in `RUNTIMES`. Streams belong to the application: the library enqueues on them,
//! and never synchronises or destroys them.

mod alloc;
mod consistency;
mod cuda;
mod event;
mod kernel;
mod mapped;
mod name;
mod region;
mod runtime;
mod share;
#[cfg(feature = "soft")]
pub mod soft;
mod stream;
mod waiting;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gds_step::Host;

use crate::error::{Error, Result};
use crate::kernels::Entry;
use crate::memop::trace::Tracer;
use crate::memop::{Batch, Op, legal};

pub use crate::memop::{Caps, Condition, DevicePtr};
pub use consistency::Consistency;
pub(crate) use consistency::no_consistency;
#[doc(hidden)]
pub use cuda::{cuda_caps, cuda_refusal, driver_too_old, wait_limits};
pub use event::Event;
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
use runtime::{Opener, Runtime};
pub use share::SharedMemory;
use stream::Adopted;
pub use stream::Stream;
pub(crate) use stream::submissions;
#[doc(hidden)]
pub use stream::{Lent, WeakStream};
#[doc(hidden)]
pub use waiting::WaitLimits;
pub(crate) use waiting::{Proof, Waiting};

/// The runtimes of this build, in the order in which `auto` tries them.
const RUNTIMES: &[Opener] = &[
    cuda::OPENER,
    #[cfg(feature = "soft")]
    soft::OPENER,
];

/// Those whose feature is off, by its name, which is theirs.
const NOT_BUILT: &[&str] = &[
    #[cfg(not(feature = "soft"))]
    "soft",
];

/// What streams of the software GPU can do, if its options do not say otherwise.
#[doc(hidden)]
pub const SOFT_CAPS: Caps = Caps {
    memops64: true,
    nor: true,
    mask: false,
    flush: true,
    inline_copy: false,
    fence: true,
    ordered_writes: false,
    host_flush: true,
    kernels: true,
    batch_limit: 255,
};

/// Counts GPUs and streams of this process, so that each has a number of its own. Relaxed:
/// only uniqueness matters.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
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
    modules: kernel::Loaded,
    /// The library's own kernels, in the order of [`Entry::ALL`]; empty if it has none here.
    kernels: Vec<Kernel>,
    /// What `GDS_CONSISTENCY` says.
    wish: Option<Consistency>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.runtime.gpu_name())
    }
}

impl Gpu {
    /// A GPU by name: `soft`, `cuda:1`, `cuda`, or `auto`: `cuda` if CUDA has a usable GPU, else
    /// `soft`. Without the feature `soft`, `auto` is `cuda`.
    ///
    /// `cuda` is the first GPU that CUDA shows. In a job with several ranks on the host, it is the
    /// GPU of the local rank (`MP_LOCAL_RANK`, or the variable of torchrun, Open MPI, Hydra or SLURM)
    /// modulo the number of GPUs that CUDA shows. An event of the log says which one and why; more
    /// ranks than GPUs is a warning.
    ///
    /// # Errors
    /// `Invalid` for another name, and for a local rank that is not a number; `Unsupported` for
    /// `soft` in a build without that feature; else as [`Gpu::cuda`] and `Gpu::soft`.
    pub fn open(name: &str) -> Result<Gpu> {
        let GpuName::Of { runtime, index } = GpuName::parse(name)? else {
            return Gpu::best();
        };
        match RUNTIMES.iter().find(|opener| opener.name == runtime) {
            Some(opener) => (opener.open)(index),
            None => Err(Error::not_built("open GPU", runtime)),
        }
    }

    /// The first of [`RUNTIMES`] that has a usable GPU.
    fn best() -> Result<Gpu> {
        let (last, others) = RUNTIMES.split_last().expect("there is one");
        for opener in others {
            match (opener.open)(None) {
                Err(e) if auto_goes_on(e.kind()) => {
                    tracing::info!(target: "gdsync", "no GPU of {}, because: {e}", opener.name);
                }
                other => return other,
            }
        }
        (last.open)(None)
    }

    /// The GPU that `GDS_GPU` names, as in [`Gpu::open`]; `auto` if it is not set.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn from_env() -> Result<Gpu> {
        let name = std::env::var("GDS_GPU").unwrap_or_else(|_| "auto".to_owned());
        Gpu::open(&name)
    }

    pub(crate) fn from_runtime(runtime: Box<dyn Runtime>) -> Result<Gpu> {
        let wish = Consistency::VARIABLE.read()?;
        let caps =
            Consistency::restrict_to(wish, runtime.caps()).map_err(|e| e.of(runtime.gpu_name()))?;
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
            adopted: Adopted::default(),
            companion: OnceLock::new(),
            modules,
            kernels,
            wish,
        })))
    }

    /// The runtime and the device, for people: `soft gpu0`.
    pub fn name(&self) -> String {
        self.0.runtime.gpu_name()
    }

    /// What its streams can do.
    pub fn caps(&self) -> &Caps {
        &self.0.caps
    }

    /// The driver that steps the software devices beside this GPU, which is also its clock.
    #[doc(hidden)]
    pub fn host(&self) -> &Arc<dyn Host> {
        self.0.runtime.host()
    }

    /// Where submissions of this GPU's streams are traced.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// Keeps the lines of the trace (`GDS_TRACE`) of this GPU's streams from now on, for
    /// [`Gpu::take_trace`].
    pub fn capture_trace(&self) {
        self.0.tracer.capture();
    }

    /// The lines of the trace captured so far; capturing goes on.
    pub fn take_trace(&self) -> Vec<String> {
        self.0.tracer.take()
    }

    /// Ends the capture and answers the lines that were not taken yet: from now on tracing costs
    /// nothing again.
    pub fn finish_trace(&self) -> Vec<String> {
        self.0.tracer.finish()
    }

    /// Whether both are the same GPU.
    pub fn is(&self, other: &Gpu) -> bool {
        self.0.id == other.0.id
    }

    /// Which runtime runs it, for reports: `soft` or `cuda`.
    pub fn runtime_name(&self) -> &'static str {
        self.0.runtime.runtime_name()
    }

    /// Whether it is a software GPU: threads of this process, on memory that the CPU reaches.
    pub fn is_software(&self) -> bool {
        self.0.runtime.is_software()
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
    pub fn max_waiting_streams(&self) -> Option<u32> {
        Some(self.wait_limits()?.streams)
    }

    /// What holds for its waiting streams; `None`: nothing.
    #[doc(hidden)]
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
    fn modules(&self) -> &kernel::Loaded {
        &self.0.modules
    }

    /// One of the library's own kernels, if it has them on this GPU.
    fn own_kernel(&self, entry: Entry) -> Option<&Kernel> {
        self.0.kernels.get(entry as usize)
    }

    fn adopted(&self) -> &Adopted {
        &self.0.adopted
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        &*self.0.runtime
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
        let handle = self.0.runtime.new_stream(&|| self.0.waiting.any())?;
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
        let batch = if batch.is_legal(caps) {
            legal::keep_last_flush(batch);
            batch
        } else {
            legal::rewrite(batch, caps, scratch)?;
            scratch
        };
        let mut send = |ops: &[Op]| -> Result<()> {
            self.0.tracer.submission(stream.id(), ops);
            stream.handle().submit(ops)?;
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
    fn a_name_that_no_runtime_has_is_refused() {
        for name in [
            "", "hip", "cuda:", "cuda:-1", "cuda:x", "soft:0", "auto:0", " cuda",
        ] {
            let e = Gpu::open(name).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{name}");
            assert!(e.to_string().contains("cuda, cuda:N, soft, auto"), "{e}");
        }
    }
}
