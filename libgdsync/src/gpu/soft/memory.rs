//! The memory of regions.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{pointer, system};
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::{Backing, View};
use crate::gpu::{Mapped, SharedMemory, host};

/// The memory of a region.
#[derive(Debug)]
pub(super) enum Memory {
    Device(softgpu::DeviceMemory),
    /// Pinned memory of the library: its registration, which only the virtual NIC uses, and the memory
    /// with its part of the GPU's memory size.
    #[cfg_attr(not(feature = "emulated"), allow(dead_code))]
    Pinned(
        softgpu::HostRegistration,
        Arc<(host::Owned, softgpu::Reserved)>,
    ),
    /// Host memory of the application, or of another process.
    Host(softgpu::HostRegistration),
}

impl Memory {
    fn device(&self, operation: &'static str) -> Result<&softgpu::DeviceMemory> {
        match self {
            Memory::Device(memory) => Ok(memory),
            _ => {
                let what = "the region is host memory; the call needs device memory";
                Err(Error::new(operation, Kind::Unsupported, what))
            }
        }
    }

    /// Exports device memory as a descriptor, which owns only the memory.
    fn export(&self, operation: &'static str) -> Result<OwnedFd> {
        let memory = self.device(operation)?;
        memory.export().map_err(|e| system(operation, &e))
    }
}

impl Backing for Memory {
    fn map(&self) -> Result<View> {
        const OPERATION: &str = "map device memory for the CPU";
        let memory = self.device(OPERATION)?;
        let view = memory.map_cpu();
        let base = pointer(view.as_ptr())?;
        Ok(View {
            // SAFETY: the view maps at least `len` bytes and lives as long as this value. Copies of
            // `mapped` are used only while the region lives.
            mapped: unsafe { Mapped::new(base, memory.len()) },
            _mapping: Box::new(view),
        })
    }

    fn share(&self) -> Result<SharedMemory> {
        const OPERATION: &str = "share memory";
        match self {
            Memory::Device(memory) => Ok(SharedMemory::File {
                fd: self.export(OPERATION)?,
                offset: 0,
                len: memory.len() as u64,
            }),
            Memory::Pinned(memory, owned) => owned.0.piece().share(memory.len()),
            Memory::Host(_) => {
                let what = "the region is host memory of the application, or memory of another \
                            process; only memory that the library allocated here can be shared";
                Err(Error::new(OPERATION, Kind::Unsupported, what))
            }
        }
    }

    fn dma_buf(&self, _: bool) -> Result<(OwnedFd, u64)> {
        Ok((self.export("export dma-buf")?, 0))
    }

    unsafe fn release(self: Box<Self>) {
        if let Memory::Host(memory) = *self {
            // SAFETY: the caller's promise.
            unsafe { memory.release() };
        }
    }
}
