//! What a GPU runtime does for the library: five traits ([`Runtime`], [`Backing`],
//! [`StreamHandle`], [`EventHandle`], [`ModuleHandle`]), which the folder of each runtime
//! implements.
//!
//! A handle is what its runtime made, behind its trait: what is enqueued is one virtual call a
//! batch. Where a handle may be of another runtime (an event to wait for, a kernel to launch) the
//! runtime asks for its own type and refuses any other.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gds_step::{Host, Time};

use super::share::SharedMemory;
use super::{Dims, Gpu, Kernel, KernelImage, Mapped, MemoryKind, WaitLimits};
use crate::error::{Error, Kind, Result};
use crate::kernels::Transfer;
use crate::memop::{Caps, DevicePtr, Op};

/// A runtime as [`Gpu::open`] finds it.
pub(crate) struct Opener {
    pub name: &'static str,
    /// Whether it has several GPUs, which a name may number.
    pub numbered: bool,
    /// Opens the GPU of this number, or the one for this process.
    pub open: fn(Option<u32>) -> Result<Gpu>,
}

/// Keeps something of the application's that was handed in, until it is dropped.
pub(crate) type Owner = Box<dyn Send + Sync>;

/// One GPU of a runtime.
///
/// Memory that is given back while operations enqueued before still use it stays accessible
/// until these have run.
pub(crate) trait Runtime: Any + Send + Sync + fmt::Debug {
    /// The GPU, for people: `soft gpu0`.
    fn gpu_name(&self) -> String;
    /// The runtime, for reports: `soft`.
    fn runtime_name(&self) -> &'static str;
    /// Whether threads of this process run it, in memory that the CPU reaches.
    fn is_software(&self) -> bool {
        false
    }
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
    /// Whether a copy within host memory blocks the caller until the stream comes to it.
    fn host_copy_blocks(&self) -> bool {
        false
    }
    fn host(&self) -> &Arc<dyn Host>;
    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation>;
    /// Host memory, and what keeps it, which is dropped when no stream can reach the memory.
    ///
    /// # Safety
    /// The memory stays valid, and is not unmapped, until `owner` is dropped; without one, until
    /// the allocation is dropped and what was enqueued before has run.
    unsafe fn register(&self, ptr: *mut u8, len: usize, owner: Option<Owner>)
    -> Result<Allocation>;
    /// Memory that the application allocated by the runtime itself.
    ///
    /// # Safety
    /// As for [`Runtime::register`].
    unsafe fn adopt(&self, at: DevicePtr, len: usize, owner: Option<Owner>) -> Result<Allocation>;
    /// See [`Gpu::buffer_id`].
    fn buffer_id(&self, _at: DevicePtr) -> Result<Option<u64>> {
        Ok(None)
    }
    fn allocate_exportable(&self, len: usize) -> Result<Allocation>;
    /// # Safety
    /// The process that shares the memory keeps it.
    unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<Allocation>;
    /// `waits` says whether a stream of the GPU is known to wait.
    fn new_stream(&self, waits: &dyn Fn() -> bool) -> Result<Arc<dyn StreamHandle>>;
    /// How far all streams have been enqueued, those too whose handles are gone.
    fn ends(&self) -> Ends;
    /// See [`Gpu::flush_remote_writes`].
    fn flush_remote_writes(&self);
    /// Has the CPU wait until what NICs wrote to GPU memory is visible to it, whatever streams
    /// are doing.
    fn host_flush(&self) -> Result<()>;
    /// Loads the kernels of an image, for good.
    fn load(&self, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>>;
    /// As [`Runtime::load`], from code in the runtime's own form.
    fn load_binary(&self, code: &[u8]) -> Result<Arc<dyn ModuleHandle>>;
}

/// Memory that a runtime gave or registered.
pub(crate) struct Allocation {
    pub addr: DevicePtr,
    pub len: usize,
    /// Where the CPU reaches it, if it does without a mapping of its own.
    pub cpu: Option<Mapped>,
    pub backing: Box<dyn Backing>,
}

/// What is behind a region.
pub(crate) trait Backing: Any + Send + Sync {
    /// Copies out by a copy engine; `None` where there is none to be used.
    fn read(&self, _offset: usize, _into: &mut [u8]) -> Option<Result<()>> {
        None
    }
    /// Copies in, as [`Backing::read`] copies out.
    fn write(&self, _offset: usize, _from: &[u8]) -> Option<Result<()>> {
        None
    }
    /// Maps it for the CPU.
    fn map(&self) -> Result<View>;
    /// See [`Region::share`](super::Region::share).
    fn share(&self) -> Result<SharedMemory>;
    /// `kept`: the descriptor, or what is made of it, may outlive the memory.
    fn dma_buf(&self, kept: bool) -> Result<(OwnedFd, u64)>;
    /// Frees it at once.
    ///
    /// # Safety
    /// Every enqueued operation that names it is known to have run.
    unsafe fn release(self: Box<Self>);
}

/// The CPU's own mapping of device memory.
pub(crate) struct View {
    pub mapped: Mapped,
    /// Keeps what `mapped` points into.
    pub _mapping: Box<dyn Send + Sync>,
}

/// A stream as its runtime knows it.
pub(crate) trait StreamHandle: Any + Send + Sync + fmt::Debug {
    fn submit(&self, ops: &[Op]) -> Result<()>;
    fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()>;
    fn copy(&self, transfer: &Transfer) -> Result<()>;
    fn record(&self) -> Result<Arc<dyn EventHandle>>;
    fn wait_event(&self, event: &dyn EventHandle) -> Result<()>;
    /// Whether everything enqueued has run.
    fn is_idle(&self) -> Result<bool>;
    fn is_capturing(&self) -> Result<bool>;
    /// Waits until everything enqueued has run; `false` if the deadline passed first.
    fn synchronize(&self, host: &dyn Host, deadline: Option<Time>) -> Result<bool> {
        let mut result = Ok(false);
        host.wait_until(deadline, &mut || {
            result = self.is_idle();
            !matches!(result, Ok(false))
        });
        result
    }
    /// The application's last handle on the stream goes away.
    fn leave(&self) -> Left {
        Left::Ours
    }
    /// Gives up what keeps the application's stream.
    fn release(&self) -> Option<Owner> {
        None
    }
    /// The runtime's own handle; null if it has none.
    fn raw(&self) -> *mut c_void {
        std::ptr::null_mut()
    }
    /// Tells the runtime the stream's number in traces and errors.
    fn set_number(&self, _id: u64) {}
}

/// What becomes of a stream without a handle.
pub(crate) enum Left {
    /// It may be asked as long as it is held.
    Ours,
    /// Its owner may destroy it, and it has nothing to do, or that cannot be known.
    Done,
    /// Its owner may destroy it; this tells when its work is done.
    Busy(Arc<dyn EventHandle>),
}

/// An event as its runtime knows it.
pub(crate) trait EventHandle: Any + Send + Sync {
    fn is_done(&self) -> Result<bool>;
}

/// Loaded kernels.
pub(crate) trait ModuleHandle: Send + Sync {
    fn kernel(&self, name: &str) -> Result<Kernel>;
}

/// How far the streams of a GPU were enqueued when it was taken.
pub(crate) struct Ends(pub Box<dyn Fn() -> bool + Send + Sync>);

impl Ends {
    /// Whether they have run all of it.
    pub fn is_reached(&self) -> bool {
        (self.0)()
    }
}

/// The refusal of a handle that is not one of this GPU's.
#[cold]
pub(crate) fn foreign(what: &str, gpu: &str) -> Error {
    Error::new("use", Kind::Foreign, format!("{what} on {gpu}"))
}
