//! GPUs of NVIDIA, by the CUDA driver, which is loaded when the first one is opened.
//!
//! [`Gpu::cuda`](crate::Gpu::cuda) opens a device in its primary context, which is the one that the CUDA
//! runtime, `cust` and `cudarc` use; `cuda_current` and `cuda_context` take the application's. Streams and memory of the application are handed in as raw handles.
//!
//! `context` says why there is a second context, `deferred` when memory is freed, `engine` how
//! the CPU and virtual NICs reach device memory.

mod context;
mod deferred;
mod device;
mod engine;
mod memory;
mod module;
mod open;
mod pages;
mod share;
mod stream;
mod stream_pool;
mod submit;

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

use gds_step::{Host, Lane, MachineId, Time};

use super::event::EventHandle;
use super::{
    Allocation, Dims, Kernel, KernelCode, Left, MemoryKind, Owner, Runtime, StreamHandle,
    WaitLimits, sealed,
};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Entry, Transfer};
use crate::memop::{Caps, DevicePtr, Op};

use context::Context;
#[doc(hidden)]
pub use deferred::Ends;
pub(crate) use memory::{Memory, View};
#[doc(hidden)]
pub use module::{Function, Module};
pub(crate) use open::by_local_rank;
pub use share::{DmaBuf, SharedMemory};
pub(crate) use share::{dma_buf, share};
#[doc(hidden)]
pub use stream::{CudaEvent, CudaStream};

/// Submissions that a waiting stream is given. The driver takes about 1,020 and then blocks
/// the caller; some room is for what the application enqueues itself.
const SUBMISSIONS: u32 = 1000;

/// The runtime: one device, by the application's context.
pub(crate) struct CudaRuntime {
    context: Arc<Context>,
    host: Arc<dyn Host>,
    reaper: MachineId,
    caps: Caps,
    identity: u64,
    limits: WaitLimits,
    /// Whether the device sees registered host memory at the host's addresses.
    same_address: bool,
    /// The library's own, in the order of [`Entry::ALL`].
    kernels: Vec<Kernel>,
}

impl fmt::Debug for CudaRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.context.name())
    }
}

impl Drop for CudaRuntime {
    fn drop(&mut self) {
        self.host.detach(self.reaper);
        self.context.graves.reap(&self.context);
    }
}

impl CudaRuntime {
    fn stream<'s>(&self, stream: &'s StreamHandle) -> Result<&'s Arc<CudaStream>> {
        match stream {
            StreamHandle::Cuda(stream) => Ok(stream),
            StreamHandle::Soft(_) => Err(self.foreign("a soft stream")),
        }
    }

    fn event<'e>(&self, event: &'e EventHandle) -> Result<&'e Arc<CudaEvent>> {
        match event {
            EventHandle::Cuda(event) => Ok(event),
            EventHandle::Soft(_) => Err(self.foreign("a soft event")),
        }
    }

    #[cold]
    fn foreign(&self, what: &str) -> Error {
        Error::new("use", Kind::Foreign, format!("{what} on {self:?}"))
    }

    fn known(&self, stream: CudaStream) -> StreamHandle {
        let stream = Arc::new(stream);
        self.context.graves.know(&stream);
        StreamHandle::Cuda(stream)
    }
}

impl sealed::Sealed for CudaRuntime {}

impl Runtime for CudaRuntime {
    fn name(&self) -> String {
        self.context.name().to_owned()
    }

    fn kind(&self) -> &'static str {
        "cuda"
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn pci(&self) -> Option<String> {
        let mut text = [0_u8; 32];
        let context = &self.context;
        // SAFETY: writes a string that ends within the length.
        let asked = unsafe {
            let at = text.as_mut_ptr().cast();
            (context.cuda.cuDeviceGetPCIBusId)(at, text.len() as i32, context.device)
        };
        let text = asked
            .is_success()
            .then(|| CStr::from_bytes_until_nul(&text));
        Some(text?.ok()?.to_str().ok()?.to_owned())
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn wait_limits(&self) -> Option<WaitLimits> {
        Some(self.limits)
    }

    fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    #[allow(private_interfaces)]
    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation> {
        match kind {
            MemoryKind::Device => memory::device(&self.context, len),
            MemoryKind::Pinned => memory::pinned(&self.context, len),
        }
    }

    #[allow(private_interfaces)]
    unsafe fn register(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Allocation> {
        // SAFETY: the caller promises that the memory outlives its owner.
        unsafe { memory::registered(&self.context, ptr, len, owner, self.same_address) }
    }

    #[allow(private_interfaces)]
    unsafe fn adopt(&self, at: DevicePtr, len: usize, owner: Option<Owner>) -> Result<Allocation> {
        // SAFETY: the caller promises that the memory outlives the region.
        unsafe { memory::adopted(&self.context, at.0, len, owner) }
    }

    #[allow(private_interfaces)]
    fn allocate_exportable(&self, len: usize) -> Result<Allocation> {
        share::exportable(&self.context, len)
    }

    #[allow(private_interfaces)]
    unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<Allocation> {
        // SAFETY: the caller promises that the other process keeps the memory.
        unsafe { share::open(&self.context, shared) }
    }

    #[allow(private_interfaces)]
    fn as_cuda(&self) -> Option<&CudaRuntime> {
        Some(self)
    }

    fn new_stream(&self, waits: &dyn Fn() -> bool) -> Result<StreamHandle> {
        Ok(self.known(CudaStream::new(&self.context, waits)?))
    }

    #[inline]
    fn submit(&self, stream: &StreamHandle, ops: &[Op]) -> Result<()> {
        submit::submit(&self.context, self.stream(stream)?, ops)
    }

    fn launch(
        &self,
        stream: &StreamHandle,
        kernel: &Kernel,
        dims: Dims,
        args: &[u8],
    ) -> Result<()> {
        match &kernel.0 {
            KernelCode::Cuda(function) if function.is_of(&self.context) => {
                function.launch(self.stream(stream)?, dims, args)
            }
            _ => Err(self.foreign("a kernel of another GPU")),
        }
    }

    fn copy(&self, stream: &StreamHandle, transfer: &Transfer, host: bool) -> Result<()> {
        /// Threads of a block of the copy kernel, and blocks at most.
        const SHAPE: (u32, u64) = (256, 32);
        let Transfer { to, from, len } = *transfer;
        if host {
            // The driver copies within host memory by the CPU: the call would stand until the
            // stream gets there.
            let blocks = len.div_ceil(16 * u64::from(SHAPE.0)).clamp(1, SHAPE.1) as u32;
            let dims = Dims::linear(blocks, SHAPE.0);
            let kernel = &self.kernels[Entry::Transfer as usize];
            return self.launch(stream, kernel, dims, transfer.bytes());
        }
        let stream = self.stream(stream)?;
        let context = &self.context;
        let _app = context.enter_to_enqueue()?;
        // SAFETY: spans of live regions, which the caller's stream uses from now on.
        let copied =
            unsafe { (context.cuda.cuMemcpyAsync)(to.0, from.0, len as usize, stream.handle()) };
        stream.count();
        context.check(copied, "enqueue copy")
    }

    fn idle(&self, stream: &StreamHandle) -> Result<bool> {
        self.stream(stream)?.is_idle()
    }

    fn leave(&self, stream: &StreamHandle) -> Left {
        let end = self.stream(stream).ok().and_then(|stream| stream.leave());
        match end {
            None => Left::Done,
            Some(event) => {
                let end = stream::End::Event(Arc::clone(&event));
                self.context.graves.forget(end);
                Left::Busy(EventHandle::Cuda(event))
            }
        }
    }

    fn ends(&self) -> super::Ends {
        super::Ends::Cuda(self.context.graves.ends())
    }

    fn record(&self, stream: &StreamHandle) -> Result<EventHandle> {
        let event = self.stream(stream)?.record()?;
        Ok(EventHandle::Cuda(Arc::new(event)))
    }

    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        self.stream(stream)?.wait_event(self.event(event)?)
    }

    fn is_done(&self, event: &EventHandle) -> Result<bool> {
        self.event(event)?.is_done()
    }

    fn capturing(&self, stream: &StreamHandle) -> Result<bool> {
        self.stream(stream)?.is_capturing()
    }

    fn synchronize(&self, stream: &StreamHandle, deadline: Option<Time>) -> Result<bool> {
        let stream = self.stream(stream)?;
        let mut result = Ok(false);
        self.host.wait_until(deadline, &mut || {
            result = stream.is_idle();
            !matches!(result, Ok(false))
        });
        result
    }

    /// GPUDirect RDMA orders what a NIC wrote before the kernels and copies that are enqueued after
    /// the CPU saw its completion.
    fn flush_remote_writes(&self) {}

    fn host_flush(&self) -> Result<()> {
        self.context.host_flush()
    }

    fn kernel(&self, entry: Entry) -> Option<&Kernel> {
        self.kernels.get(entry as usize)
    }

    fn load_module(&self, image: &[u8]) -> Result<Module> {
        Module::load(&self.context, image)
    }
}

/// Attaches the reaper of a context.
fn attach_reaper(host: &Arc<dyn Host>, context: &Arc<Context>) -> MachineId {
    host.attach(Lane::Watch, Box::new(deferred::Reaper(Arc::clone(context))))
}
