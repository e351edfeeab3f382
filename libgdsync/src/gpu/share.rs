//! Memory shared with other processes and drivers: IPC handles, file descriptors, dma-bufs.

use std::os::fd::OwnedFd;

use super::{Gpu, MemoryKind, Region};
use crate::error::{Error, Kind, Result};

/// A handle by which another process of this host opens memory of this one ([`Gpu::open_shared`]),
/// on a GPU of the same runtime. [`Region::share`] makes it.
///
/// The handle does not own the memory: the process that allocated the memory must keep the
/// region until the other process has opened it, and with [`SharedMemory::Ipc`] as long as the
/// other process uses it. What a process has opened by a descriptor stays usable after the end of
/// the process that allocated it.
///
/// ```
/// use gdsync::Gpu;
/// use gdsync::gpu::MemoryKind;
///
/// # fn main() -> gdsync::Result<()> {
/// let (first, second) = (Gpu::soft()?, Gpu::soft()?); // or one GPU in each of two processes
/// let memory = first.alloc(MemoryKind::Device, 64)?;
/// let shared = memory.share()?;
/// // SAFETY: `shared` is a file, which keeps the memory.
/// let same = unsafe { second.open_shared(&shared)? };
/// memory.write(0, b"shared")?;
/// let mut bytes = [0; 6];
/// same.read(0, &mut bytes)?;
/// assert_eq!(&bytes, b"shared");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SharedMemory {
    /// A handle of the runtime (CUDA: `CUipcMemHandle`): plain bytes, which can be sent by any
    /// channel. It is made for memory that the application has allocated with `cuMemAlloc` or
    /// `hipMalloc`, and for all device memory with HIP 6.
    Ipc {
        /// The handle.
        handle: [u8; 64],
        /// Offset of the region, in bytes, in the allocation that the handle names.
        offset: u64,
        /// The region's length in bytes.
        len: u64,
    },
    /// A file descriptor, to be sent over a Unix socket. It keeps the memory alive.
    File {
        /// The descriptor. On CUDA it gives access to whole pages of the driver, usually 2 MiB
        /// each, which contain the region and possibly neighbouring regions; a region made by
        /// [`Gpu::alloc_exportable`] shares no page. On a soft GPU each region of device memory has
        /// a separate file.
        fd: OwnedFd,
        /// Offset of the region, in bytes, in the memory that the descriptor names.
        offset: u64,
        /// The region's length in bytes.
        len: u64,
    },
    /// The memory file of pinned memory, to be sent over a Unix socket. It keeps the memory alive.
    Host {
        /// The descriptor. It gives access to the whole file: for a region of up to 256 KiB, a file
        /// of 1 MiB, which may contain other pinned regions of this GPU, queues among them; for a
        /// longer region, to its pages alone. No process can shorten the file.
        fd: OwnedFd,
        /// Offset of the region, in bytes, in the file.
        offset: u64,
        /// The region's length in bytes.
        len: u64,
    },
}

impl Gpu {
    /// Allocates `len` bytes of device memory, zeroed, that share no page with other memory, so
    /// that [`Region::share`] exports nothing else. On CUDA the allocation takes whole units of the
    /// driver, usually 2 MiB each.
    ///
    /// # Errors
    /// `Unsupported` if the driver lacks the calls; `Invalid` for length 0; `System` if the driver
    /// refuses.
    pub fn alloc_exportable(&self, len: usize) -> Result<Region> {
        if len == 0 {
            let what = "a region cannot have 0 bytes";
            return Err(Error::new(
                "allocate exportable memory",
                Kind::Invalid,
                what,
            ));
        }
        let allocation = self.runtime().allocate_exportable(len)?;
        Ok(Region::new(self.clone(), MemoryKind::Device, allocation))
    }

    /// Opens memory that another process, or another GPU of this process, has shared. Pinned memory
    /// ([`SharedMemory::Host`]) becomes a region of [`MemoryKind::Pinned`], which the CPU accesses
    /// too, other memory one of [`MemoryKind::Device`]. [`Gpu::reaches`] says whether this GPU can
    /// access memory of another one. Memory may be opened several times, at an address each.
    ///
    /// # Safety
    /// The memory has the content that the other processes write: the caller makes no assumption
    /// about it. With [`SharedMemory::Ipc`] the other process keeps its region as long as anything in this
    /// process can reach it: usually until this process has ended. [`SharedMemory::File`] and
    /// [`SharedMemory::Host`] keep the memory alive by themselves.
    ///
    /// # Errors
    /// `Unsupported` if the driver lacks the calls; `Invalid` for an invalid handle or length, for
    /// a descriptor that is not a memory file sealed against shortening, and for a handle of another
    /// runtime; `System` if the system or the driver refuses.
    pub unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<Region> {
        // SAFETY: the caller's promise.
        let allocation = unsafe { self.runtime().open_shared(shared)? };
        let kind = match shared {
            SharedMemory::Host { .. } => MemoryKind::Pinned,
            SharedMemory::Ipc { .. } | SharedMemory::File { .. } => MemoryKind::Device,
        };
        Ok(Region::new(self.clone(), kind, allocation))
    }
}

impl Region {
    /// Exports memory that the library allocated, or device memory that the application allocated
    /// with `cuMemAlloc`, for another process of this host. The variants of [`SharedMemory`] say what
    /// the other process gets access to.
    ///
    /// # Errors
    /// `Unsupported` for host memory of the application, for memory that another process has shared,
    /// or if the driver lacks the calls; `System` if the driver refuses, or the process has no free
    /// descriptor.
    pub fn share(&self) -> Result<SharedMemory> {
        self.backing().share()
    }

    /// Exports this device memory as a dma-buf, which RDMA drivers can register: the descriptor,
    /// which keeps the memory alive, and the byte offset of the region in it. On a soft GPU it is a
    /// memory file, which virtual NICs accept in place of a dma-buf.
    ///
    /// # Errors
    /// `Unsupported` for memory that is not GPU memory, or if the driver lacks the call.
    pub fn dma_buf(&self) -> Result<(OwnedFd, u64)> {
        self.backing().dma_buf(true)
    }

    /// As [`Region::dma_buf`], for a registration that ends before the region does.
    pub(crate) fn dma_buf_to_register(&self) -> Result<(OwnedFd, u64)> {
        self.backing().dma_buf(false)
    }
}
