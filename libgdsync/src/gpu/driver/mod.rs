//! GPUs by a vendor's driver: what CUDA and HIP share. `calls` is the interface of the driver, which the
//! folder of each runtime implements on its table of functions.
//!
//! `context` explains the second context, `deferred` the time at which memory is freed, `engine`
//! the access of the CPU and of virtual NICs to device memory, `copier` that of threads which go on
//! meanwhile.

mod calls;
mod context;
mod copier;
mod deferred;
pub(super) mod elf;
mod engine;
mod graph;
mod host;
mod memory;
mod module;
mod open;
mod pages;
mod pool;
mod share;
mod stream;
mod stream_pool;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gds_step::{Host, MachineId, Mutex, Time};

use super::runtime::{
    Allocation, Copier, Ends, EventHandle, ModuleHandle, Owner, Runtime, StreamHandle,
};
use super::{GpuIdentity, KernelImage, MemoryKind, SharedMemory, Unreachable, WaitLimits};
use crate::error::Result;
use crate::memop::{Caps, DevicePtr};

use copier::DriverCopier;
use module::Module;
use stream::{DriverEvent, DriverStream};

pub(super) use calls::{
    Called, Driver, Handle, MISSING, OK, Physical, call, extra, optional, stored, text,
};
pub(super) use context::{Context, check};
pub(super) use open::{
    Opened, adopt_created, adopt_stream, by_local_rank, chain, keep_owner, number, open, raw_stream,
};

/// A GPU of a driver, in the application's context.
pub(super) struct DriverRuntime {
    context: Arc<Context>,
    host: Arc<dyn Host>,
    poller: MachineId,
    caps: Caps,
    number: u64,
    processes_beside: bool,
    limits: WaitLimits,
    /// An event with timing, and the host's time when its stream had passed it.
    clock: Mutex<Option<(DriverEvent, Time)>>,
    /// Whether the device accesses registered host memory at the host's addresses.
    same_address: bool,
}

impl fmt::Debug for DriverRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.context.name())
    }
}

impl Drop for DriverRuntime {
    fn drop(&mut self) {
        self.host.detach(self.poller);
        self.context.deferred.free_unused(&self.context);
    }
}

impl DriverRuntime {
    fn known(&self, stream: DriverStream) -> Arc<dyn StreamHandle> {
        let stream = Arc::new(stream);
        self.context.deferred.know(&stream);
        stream
    }
}

impl Runtime for DriverRuntime {
    fn gpu_name(&self) -> String {
        self.context.name().to_owned()
    }

    fn runtime_name(&self) -> &'static str {
        self.context.driver.runtime()
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn runs_processes_beside(&self) -> bool {
        self.processes_beside
    }

    fn identity(&self) -> GpuIdentity {
        self.context.driver.identity(self.context.device)
    }

    fn reaches(&self, other: &GpuIdentity) -> Result<(), Unreachable> {
        self.context.driver.reaches(&self.context, other)
    }

    fn pci(&self) -> Option<String> {
        self.context.driver.pci(self.context.device)
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
        Ok(self.known(DriverStream::new(&self.context, waits)?))
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
        let stream = DriverStream::new(&self.context, &|| false)?;
        let event = stream.event_with(true);
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
        let event: &DriverEvent = (event as &dyn Any).downcast_ref()?;
        let clock = self.clock.lock();
        let (start, time) = clock.as_ref()?;
        Some(*time + event.since(start)?)
    }

    fn flush_remote_writes(&self) {
        if self.context.driver.starts_see_remote_writes() || !self.caps.host_flush {
            return;
        }
        if let Err(e) = self.host_flush() {
            tracing::warn!(target: "gdsync", "{e}");
        }
    }

    fn host_flush(&self) -> Result<()> {
        self.context.host_flush()
    }

    fn copier(&self, slots: usize) -> Result<Option<Box<dyn Copier>>> {
        Ok(Some(Box::new(DriverCopier::new(&self.context, slots)?)))
    }

    fn load(&self, image: &KernelImage) -> Result<Arc<dyn ModuleHandle>> {
        let code = self.context.driver.code(&self.context, image)?;
        self.load_binary(&code)
    }

    fn load_binary(&self, code: &[u8]) -> Result<Arc<dyn ModuleHandle>> {
        Ok(Arc::new(Module::load(&self.context, code)?))
    }
}
