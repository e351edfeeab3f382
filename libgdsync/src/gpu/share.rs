//! GPU memory for other processes and other drivers: handles that travel, descriptors, dma-bufs.

use std::os::fd::OwnedFd;

use super::{Gpu, MemoryKind, Region};
use crate::error::{Error, Kind, Result};

/// How another process of this host reaches a piece of device memory, on a GPU of the same
/// runtime. Not the memory itself: the process that made it must keep the region until the other
/// has opened it, and with [`SharedMemory::Ipc`] as long as the other uses it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SharedMemory {
    /// A handle of the runtime's (CUDA: IPC), plain bytes that can be sent anywhere.
    Ipc {
        /// The handle.
        handle: [u8; 64],
        /// Where the region begins in the allocation that the handle names.
        offset: u64,
        /// The region's length in bytes.
        len: u64,
    },
    /// A file descriptor, to be passed over a Unix socket; it keeps the memory alive.
    File {
        /// The descriptor. On CUDA it gives access to the whole pages of the driver's, 2 MiB each
        /// as a rule, in which the region lies: to neighbours too, unless the region was made by
        /// [`Gpu::alloc_exportable`]. On a soft GPU each region of device memory has a file of its
        /// own.
        fd: OwnedFd,
        /// Where the region begins in what the descriptor names.
        offset: u64,
        /// The region's length in bytes.
        len: u64,
    },
}

impl Gpu {
    /// Allocates device memory, zeroed, whose [`Region::share`] is a file descriptor. On CUDA it
    /// takes whole units of the driver's, 2 MiB each as a rule.
    ///
    /// # Errors
    /// `Unsupported` if the driver cannot; `Invalid` for length zero; `System`.
    pub fn alloc_exportable(&self, len: usize) -> Result<Region> {
        if len == 0 {
            let (operation, what) = ("allocate exportable memory", "a region of 0 bytes");
            return Err(Error::new(operation, Kind::Invalid, what));
        }
        let allocation = self.runtime().allocate_exportable(len)?;
        Ok(Region::new(self.clone(), MemoryKind::Device, allocation))
    }

    /// Memory that another process, or another GPU of this one, shared.
    ///
    /// # Safety
    /// With [`SharedMemory::Ipc`] the other process keeps its region as long as anything in this
    /// one can reach it: as a rule, until this process has ended. [`SharedMemory::File`] keeps
    /// the memory itself.
    ///
    /// # Errors
    /// `Unsupported` if runtime or driver cannot; `Invalid` for a handle or length that is none;
    /// `System` if the driver refuses.
    pub unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<Region> {
        // SAFETY: the caller's promise.
        let allocation = unsafe { self.runtime().open_shared(shared)? };
        Ok(Region::new(self.clone(), MemoryKind::Device, allocation))
    }
}

impl Region {
    /// How another process of this host reaches this device memory.
    ///
    /// # Errors
    /// `Unsupported` for memory that is not the GPU's; `System` if the driver refuses.
    pub fn share(&self) -> Result<SharedMemory> {
        self.backing().share()
    }

    /// This device memory as a dma-buf, which RDMA drivers register: the descriptor, which keeps the
    /// memory alive, and where the region begins in it. Of a soft GPU it is a memory file, which
    /// stands for one with virtual NICs.
    ///
    /// # Errors
    /// `Unsupported` for memory that is not in the GPU, or a driver that cannot.
    pub fn dma_buf(&self) -> Result<(OwnedFd, u64)> {
        self.backing().dma_buf(true)
    }

    /// As [`Region::dma_buf`], for a registration that ends before the region does.
    pub(crate) fn dma_buf_to_register(&self) -> Result<(OwnedFd, u64)> {
        self.backing().dma_buf(false)
    }
}
