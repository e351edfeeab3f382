//! NVIDIA GPUs, by the CUDA driver, which the library loads when the first GPU is opened.
//!
//! [`Gpu::cuda`](crate::Gpu::cuda) opens a device in its primary context, which the CUDA runtime,
//! `cust` and `cudarc` use too; `cuda_current` and `cuda_context` use a context of the application.
//! The application hands in streams and memory as raw handles.
//!
//! `context` explains the second context, `deferred` the time at which memory is freed, `engine`
//! the access of the CPU and of virtual NICs to device memory.

mod context;
mod deferred;
mod dependent;
mod device;
mod engine;
mod graph;
mod host;
mod memory;
mod module;
mod open;
mod pages;
mod peers;
mod probe;
mod share;
mod stream;
mod stream_pool;
mod submit;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gds_step::{Host, MachineId, Mutex, Time};
use gdsync_sys::cuda::consts;

use super::runtime::{
    Allocation, Ends, EventHandle, ModuleHandle, Opener, Owner, Runtime, StreamHandle,
};
use super::{Gpu, GpuIdentity, KernelImage, MemoryKind, SharedMemory, Unreachable, WaitLimits};
use crate::error::{Error, Kind, Result};
use crate::memop::{Caps, DevicePtr};

use context::Context;
use module::Module;
use stream::{CudaEvent, CudaStream};

pub use probe::{cuda_caps, cuda_refusal, driver_too_old, wait_limits};

pub(super) const OPENER: Opener = Opener {
    name: "cuda",
    numbered: true,
    open: |index| index.map_or_else(open::by_local_rank, Gpu::cuda),
};

/// The maximum of submissions on a waiting stream. The driver accepts about 1,020 and then blocks
/// the caller; the difference is left for work that the application enqueues itself.
const SUBMISSIONS: u32 = 1000;

/// The CUDA runtime: one device, in the application's context.
pub(crate) struct CudaRuntime {
    context: Arc<Context>,
    host: Arc<dyn Host>,
    poller: MachineId,
    caps: Caps,
    number: u64,
    limits: WaitLimits,
    /// An event with timing, and the host's time when its stream had passed it.
    clock: Mutex<Option<(CudaEvent, Time)>>,
    /// Whether the device accesses registered host memory at the host's addresses.
    same_address: bool,
}

impl fmt::Debug for CudaRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.context.name())
    }
}

impl Drop for CudaRuntime {
    fn drop(&mut self) {
        self.host.detach(self.poller);
        self.context.deferred.free_unused(&self.context);
    }
}

impl CudaRuntime {
    fn known(&self, stream: CudaStream) -> Arc<dyn StreamHandle> {
        let stream = Arc::new(stream);
        self.context.deferred.know(&stream);
        stream
    }
}

impl Runtime for CudaRuntime {
    fn gpu_name(&self) -> String {
        self.context.name().to_owned()
    }

    fn runtime_name(&self) -> &'static str {
        OPENER.name
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn identity(&self) -> GpuIdentity {
        peers::identity(self.context.cuda, self.context.device)
    }

    fn reaches(&self, other: &GpuIdentity) -> Result<(), Unreachable> {
        peers::reaches(&self.context, other)
    }

    fn pci(&self) -> Option<String> {
        peers::pci(self.context.cuda, self.context.device)
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

    fn allocate(&self, kind: MemoryKind, len: usize) -> Result<Allocation> {
        match kind {
            MemoryKind::Device => memory::device(&self.context, len),
            MemoryKind::Pinned => host::pinned(&self.context, len),
        }
    }

    unsafe fn register(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Allocation> {
        // SAFETY: the caller promises that the memory outlives its owner.
        unsafe { memory::registered(&self.context, ptr, len, owner, self.same_address) }
    }

    unsafe fn adopt(&self, at: DevicePtr, len: usize, owner: Option<Owner>) -> Result<Allocation> {
        // SAFETY: the caller promises that the memory outlives the region.
        unsafe { memory::adopted(&self.context, at.0, len, owner) }
    }

    fn allocate_exportable(&self, len: usize) -> Result<Allocation> {
        share::exportable(&self.context, len)
    }

    unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<Allocation> {
        // SAFETY: the caller promises that the other process keeps the memory.
        unsafe { share::open(&self.context, shared) }
    }

    fn buffer_id(&self, at: DevicePtr) -> Result<Option<u64>> {
        memory::buffer_id(&self.context, at.0).map(Some)
    }

    fn new_stream(&self, waits: &dyn Fn() -> bool) -> Result<Arc<dyn StreamHandle>> {
        Ok(self.known(CudaStream::new(&self.context, waits)?))
    }

    /// The driver copies within host memory by the CPU.
    fn host_copy_blocks(&self) -> bool {
        true
    }

    fn ends(&self) -> Ends {
        let ends = self.context.deferred.ends();
        Ends(Box::new(move || ends.iter().all(|end| end.is_reached())))
    }

    /// A stream of the library passes an event, while the CPU polls the event.
    fn start_clock(&self) -> Result<()> {
        const MOST: Duration = Duration::from_secs(1);
        let stream = CudaStream::new(&self.context, &|| false)?;
        let event = stream.event_with(consts::CU_EVENT_DEFAULT);
        let started = event.and_then(|event| {
            let start = self.host.now();
            while !event.is_done()? && self.host.now() - start < MOST {
                std::hint::spin_loop();
            }
            Ok((event, self.host.now()))
        });
        stream.leave();
        *self.clock.lock() = Some(started?);
        Ok(())
    }

    fn passed_at(&self, event: &dyn EventHandle) -> Option<Time> {
        let event: &CudaEvent = (event as &dyn Any).downcast_ref()?;
        let clock = self.clock.lock();
        let (start, time) = clock.as_ref()?;
        Some(*time + event.since(start)?)
    }

    /// GPUDirect RDMA orders NIC writes before the kernels and copies that are enqueued after the
    /// CPU saw the completion of those writes.
    fn flush_remote_writes(&self) {}

    fn host_flush(&self) -> Result<()> {
        self.context.host_flush()
    }

    fn load(&self, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>> {
        let ptx = image.ptx().ok_or_else(|| {
            let what = format!(
                "{image:?} have no PTX: nvcc was not found when they were built; install it or \
                 set NVCC, or commit PTX and name it with gdsync_build::Kernels::ptx"
            );
            Error::new("load kernels", Kind::Unsupported, what)
        })?;
        match self.context.dependent_launch {
            None => self.load_binary(ptx.as_bytes()),
            Some(_) => self.load_binary(dependent::for_sm_90(ptx).as_bytes()),
        }
    }

    fn load_binary(&self, code: &[u8]) -> Result<Arc<dyn ModuleHandle>> {
        Ok(Arc::new(Module::load(&self.context, code)?))
    }
}
