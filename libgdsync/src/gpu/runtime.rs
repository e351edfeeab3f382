//! The interface of a GPU runtime to the library: seven traits ([`Runtime`], [`Backing`],
//! [`Copier`], [`StreamHandle`], [`EventHandle`], [`GraphHandle`], [`ModuleHandle`]), which the folder of each runtime
//! implements.
//!
//! A handle is an object of its runtime behind the handle's trait. A submission costs one virtual
//! call a batch. Where the caller may pass a handle of another runtime (an event to wait for, a
//! kernel to launch), the runtime downcasts it to its own type and refuses any other.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gds_step::{Host, Time};

use super::share::SharedMemory;
use super::{
    Dims, Gpu, GpuIdentity, Kernel, KernelImage, Mapped, MemoryKind, Unreachable, WaitLimits,
};
use crate::error::{Error, Kind, Result};
use crate::kernels::Transfer;
use crate::memop::{Caps, DevicePtr, Op};

/// A runtime, as [`Gpu::open`] finds it.
pub(crate) struct Opener {
    pub name: &'static str,
    /// Whether the runtime has several GPUs, which a name selects by number.
    pub numbered: bool,
    /// Opens the GPU with this number; `None`: the GPU that the runtime chooses for this process.
    pub open: fn(Option<u32>) -> Result<Gpu>,
}

/// An object of the application that keeps memory alive. The library drops it when it no longer
/// uses the memory.
pub(crate) type Owner = Box<dyn Send + Sync>;

/// One GPU of a runtime.
///
/// A runtime keeps memory accessible after its release until every operation that was enqueued
/// before the release and uses the memory has run.
pub(crate) trait Runtime: Any + Send + Sync + fmt::Debug {
    /// The GPU as text for reports: `soft gpu0`.
    fn gpu_name(&self) -> String;
    /// The runtime as text for reports: `soft`.
    fn runtime_name(&self) -> &'static str;
    /// Whether threads of this process run the GPU, on memory that the CPU can access.
    fn is_software(&self) -> bool {
        false
    }
    /// Whether a stream is at a wait now, on a software GPU.
    fn waits(&self) -> bool {
        false
    }
    /// The number of the physical GPU; 0 if only this process can use it.
    fn number(&self) -> u64 {
        0
    }
    /// Whether kernels of several processes run on the GPU at the same time.
    fn runs_processes_beside(&self) -> bool {
        false
    }
    /// See [`Gpu::identity`].
    fn identity(&self) -> GpuIdentity;
    /// See [`Gpu::reaches`], for a GPU of the same runtime.
    fn reaches(&self, other: &GpuIdentity) -> Result<(), Unreachable>;
    /// Its address on the PCI bus.
    fn pci(&self) -> Option<String> {
        None
    }
    fn caps(&self) -> Caps;
    /// `None`: any number of streams may wait at a time.
    fn wait_limits(&self) -> Option<WaitLimits>;
    /// Whether a copy within host memory blocks the caller until the stream reaches it.
    fn host_copy_blocks(&self) -> bool {
        false
    }
    fn host(&self) -> &Arc<dyn Host>;
    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation>;
    /// Registers host memory. The runtime drops `owner` when no stream can reach the memory.
    ///
    /// # Safety
    /// The memory stays valid, and is not unmapped, until `owner` is dropped. Without an owner, it
    /// does until the allocation is dropped and the work enqueued before that has run.
    unsafe fn register(&self, ptr: *mut u8, len: usize, owner: Option<Owner>)
    -> Result<Allocation>;
    /// Adopts memory that the application allocated by calls of the runtime.
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
    /// The current end of every stream, also of streams whose handles are dropped.
    fn ends(&self) -> Ends;
    /// Prepares [`Runtime::passed_at`]: compares the clocks of GPU and host.
    fn start_clock(&self) -> Result<()> {
        Ok(())
    }
    /// The time at which a stream passed an event that [`StreamHandle::stamp`] made, by the host's
    /// clock; `None` if it has not passed it, or the time is unknown.
    fn passed_at(&self, event: &dyn EventHandle) -> Option<Time>;
    /// See [`Gpu::flush_remote_writes`].
    fn flush_remote_writes(&self);
    /// Blocks the CPU until the NIC writes to GPU memory are visible to it, independent of the
    /// streams.
    fn host_flush(&self) -> Result<()>;
    /// Copies beside the caller, of this many slots; `None` if the CPU can load the GPU's memory.
    fn copier(&self, _slots: usize) -> Result<Option<Box<dyn Copier>>> {
        Ok(None)
    }
    /// Loads the kernels of an image. They are never unloaded.
    fn load(&self, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>>;
    /// As [`Runtime::load`], from binary code of the runtime.
    fn load_binary(&self, code: &[u8]) -> Result<Arc<dyn ModuleHandle>>;
}

/// The direction of a copy of device memory, as the host sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Out,
    In,
}

/// A copy engine that copies beside the caller, and that no wait of a stream of the application blocks.
/// When it is dropped, all copies are done.
pub(crate) trait Copier: Send + Sync {
    /// Starts the copy of a slot, whose last copy is done.
    ///
    /// # Errors
    /// After `Timeout` it may be in progress, after any other error it is not.
    ///
    /// # Safety
    /// Both ranges are valid until the copy is done, `host` is pinned, and nothing else accesses it.
    unsafe fn start(
        &self,
        slot: usize,
        way: Way,
        host: *mut u8,
        at: DevicePtr,
        len: usize,
    ) -> Result<()>;
    /// Whether the last copy of a slot is done.
    ///
    /// # Errors
    /// As [`Copier::start`].
    fn is_done(&self, slot: usize) -> Result<bool>;
}

/// Memory that a runtime allocated or registered.
pub(crate) struct Allocation {
    pub addr: DevicePtr,
    pub len: usize,
    /// The CPU's view, if the CPU can access the memory without a separate mapping.
    pub cpu: Option<Mapped>,
    pub backing: Box<dyn Backing>,
}

/// The runtime's object for the memory of a region.
pub(crate) trait Backing: Any + Send + Sync {
    /// Copies bytes out by a copy engine; `None` if no copy engine can be used.
    fn read(&self, _offset: usize, _into: &mut [u8]) -> Option<Result<()>> {
        None
    }
    /// Copies bytes in by a copy engine; `None` as for [`Backing::read`].
    fn write(&self, _offset: usize, _from: &[u8]) -> Option<Result<()>> {
        None
    }
    /// Maps the memory for the CPU.
    fn map(&self) -> Result<View>;
    /// Refuses memory whose words streams, NICs and other GPUs cannot access while kernels run.
    fn check_words(&self) -> Result<()> {
        Ok(())
    }
    /// Whether one registration with the driver has these bytes, as a copy by an engine needs.
    fn is_whole(&self, _span: Range<usize>) -> bool {
        true
    }
    /// See [`Region::share`](super::Region::share).
    fn share(&self) -> Result<SharedMemory>;
    /// Exports a dma-buf. `kept`: the descriptor, or an object made from it, may outlive the
    /// memory.
    fn dma_buf(&self, kept: bool) -> Result<(OwnedFd, u64)>;
    /// Frees the memory at once.
    ///
    /// # Safety
    /// Every enqueued operation that uses the memory has run.
    unsafe fn release(self: Box<Self>);
}

/// The CPU's mapping of device memory.
pub(crate) struct View {
    pub mapped: Mapped,
    /// Keeps the mapping that `mapped` points into.
    pub _mapping: Box<dyn Send + Sync>,
}

/// A stream of the runtime.
pub(crate) trait StreamHandle: Any + Send + Sync + fmt::Debug {
    fn submit(&self, ops: &[Op]) -> Result<()>;
    fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()>;
    fn copy(&self, transfer: &Transfer) -> Result<()>;
    fn record(&self) -> Result<Arc<dyn EventHandle>>;
    /// As [`StreamHandle::record`], an event that has a time; `None` if the stream has no room.
    fn stamp(&self) -> Result<Option<Arc<dyn EventHandle>>>;
    fn wait_event(&self, event: &dyn EventHandle) -> Result<()>;
    /// Starts a capture: until its end, `submit`, `launch` and `copy` go into a graph.
    fn begin_capture(&self) -> Result<()>;
    /// Ends the capture, even if it fails.
    fn end_capture(&self) -> Result<Box<dyn GraphHandle>>;
    fn launch_graph(&self, graph: &dyn GraphHandle) -> Result<()>;
    /// The number of unfinished submissions, and the number above which the stream blocks the
    /// caller; `None` if [`WaitLimits::submissions`] limits them.
    fn load(&self) -> Option<(u32, u32)> {
        None
    }
    /// Whether the stream has completed all enqueued work.
    fn is_idle(&self) -> Result<bool>;
    fn is_capturing(&self) -> Result<bool>;
    /// Waits until the stream has completed all enqueued work; `false` on timeout.
    fn synchronize(&self, host: &dyn Host, deadline: Option<Time>) -> Result<bool> {
        let mut result = Ok(false);
        host.wait_until(deadline, &mut || {
            result = self.is_idle();
            !matches!(result, Ok(false))
        });
        result
    }
    /// Called when the application drops its last handle on the stream.
    fn leave(&self) -> Left {
        Left::Ours
    }
    /// Returns the owner of the application's stream, if there is one, and stops holding it.
    fn release(&self) -> Option<Owner> {
        None
    }
    /// The runtime's native handle; null if the runtime has none.
    fn raw(&self) -> *mut c_void {
        std::ptr::null_mut()
    }
    /// Sets the stream's number for traces and errors.
    fn set_number(&self, _id: u64) {}
}

/// The state of a stream after its last handle is dropped.
pub(crate) enum Left {
    /// The library owns the stream and can query it as long as it holds the handle.
    Ours,
    /// The application may destroy the stream, and it is idle or its state cannot be queried.
    Done,
    /// The application may destroy the stream; this event is done when the stream's work is.
    Busy(Arc<dyn EventHandle>),
}

/// An event of the runtime.
pub(crate) trait EventHandle: Any + Send + Sync {
    fn is_done(&self) -> Result<bool>;
}

/// A graph of the runtime. A launch of it runs to its end after the drop.
pub(crate) trait GraphHandle: Any + Send + Sync {
    /// The number of submissions that a launch takes of the room of a stream; `None`: unknown.
    fn submissions(&self) -> Option<u32>;
}

/// Loaded kernels.
pub(crate) trait ModuleHandle: Send + Sync {
    /// `waits`: see [`Module::waiting_kernel`](super::kernel::Module::waiting_kernel).
    fn kernel(&self, name: &str, waits: bool) -> Result<Kernel>;
}

/// The end of every stream of a GPU at one moment; the function says whether all streams reached
/// theirs.
pub(crate) struct Ends(pub Box<dyn Fn() -> bool + Send + Sync>);

impl Ends {
    /// Whether all streams have run the work that was enqueued at that moment.
    pub fn is_reached(&self) -> bool {
        (self.0)()
    }
}

/// The error for a handle, a kernel or an event, that belongs to another GPU or runtime than the
/// stream.
#[cold]
pub(crate) fn foreign(operation: &'static str, handle: &str, gpu: &str) -> Error {
    let what = format!("the {handle} does not belong to {gpu}, which runs the stream");
    Error::new(operation, Kind::Foreign, what)
}
