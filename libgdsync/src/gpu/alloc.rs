//! Memory of a GPU: allocated by the library, or allocated by the application and then registered
//! or adopted.

use std::sync::Arc;

use super::host::page;
use super::runtime::Owner;
use super::{Gpu, MemoryKind, Region};
use crate::error::{Error, Kind, Result};
use crate::memop::DevicePtr;

/// Refuses host memory that is not mapped, before a device accesses it.
fn check_mapped(ptr: *mut u8, len: usize) -> Result<()> {
    const OPERATION: &str = "register host memory";
    let refused = |why: &str| {
        let what = format!("the range of {len} bytes at {ptr:p} {why}");
        Err(Error::new(OPERATION, Kind::Invalid, what))
    };
    if ptr.is_null() || len == 0 {
        return refused("is null or empty");
    }
    let page = page();
    let start = ptr.addr() / page * page;
    let Some(end) = ptr.addr().checked_add(len) else {
        return refused("exceeds the address space");
    };
    // With this flag Linux writes nothing back: the call only checks that every page is mapped.
    // SAFETY: with this flag the call touches no memory.
    let answer = unsafe {
        let start = std::ptr::without_provenance_mut(start);
        libc::msync(start, end - start.addr(), libc::MS_ASYNC)
    };
    match answer {
        0 => Ok(()),
        _ => refused("is not mapped completely in this process"),
    }
}

impl Gpu {
    /// Allocates `len` bytes of memory, zeroed, in the GPU or in the host.
    ///
    /// On CUDA, the library takes GPU memory from the driver in units of usually 2 MiB, and divides
    /// them into pages of 4 KiB: `len` is rounded up to whole pages. Pinned memory is in memory
    /// files, from which [`Region::share`] exports it: regions of up to 256 KiB are pages of a file
    /// of 1 MiB, and a longer region has a file of its own.
    ///
    /// # Errors
    /// `Invalid` for length 0; `System` if no memory is available, or the process has no free
    /// descriptor.
    pub fn alloc(&self, kind: MemoryKind, len: usize) -> Result<Region> {
        if len == 0 {
            let what = "a region cannot have 0 bytes";
            return Err(Error::new("allocate memory", Kind::Invalid, what));
        }
        let allocation = self.runtime().allocate(kind, len)?;
        Ok(Region::new(self.clone(), kind, allocation))
    }

    /// Registers `len` bytes of host memory of the application: pins them (CUDA:
    /// `cuMemHostRegister`), so that the GPU and NICs can access them. The region is of
    /// [`MemoryKind::Pinned`].
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` bytes, and stays valid as long as anything can
    /// reach the region: handles, registrations, requests in flight, and streams with enqueued
    /// operations. No Rust reference to the memory is used while devices may write to it.
    ///
    /// Registrations with the driver (`cuMemHostRegister`, `hipHostRegister`) of the pages of the
    /// memory stay as they are for the same time: those that the application made stay, and it makes no
    /// others. (HIP registers memory a second time without an error, and then one call ends both
    /// registrations.) Another region of the same memory is possible, also on another GPU.
    ///
    /// The library holds a region longer than the caller's last handle, and the caller cannot
    /// observe for how long. Therefore this call is for memory that stays allocated until the
    /// process ends. [`Gpu::register_host_owned`] reports when the memory is unused, and
    /// [`Gpu::adopt_vec`] is safe.
    ///
    /// # Errors
    /// `Invalid` for a null pointer, length 0 or a range that is not mapped; on a software GPU also
    /// for a range that overlaps another registration. `Unsupported` for that overlap on a CUDA GPU
    /// that accesses host memory at other addresses than the CPU, and for a page of which the
    /// application has registered a part; `System` if the runtime refuses. Then the library may hold
    /// pages that it has registered until streams have run the work enqueued by then.
    pub unsafe fn register_host(&self, ptr: *mut u8, len: usize) -> Result<Region> {
        // SAFETY: the caller's promise.
        unsafe { self.register_with(ptr, len, None) }
    }

    /// Registers host memory that `owner` keeps allocated, as [`Gpu::register_host`] does. The
    /// library drops `owner` when no handle, registration, request in flight or enqueued operation
    /// can reach the region any more, on any thread; the drop must not block that thread.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `len` bytes until `owner` is dropped. No Rust
    /// reference to the memory is used while devices may write to it. Until then, registrations of
    /// its pages with the driver stay as they are, as for [`Gpu::register_host`].
    ///
    /// # Errors
    /// As [`Gpu::register_host`]; the library drops `owner`.
    pub unsafe fn register_host_owned(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Region> {
        // SAFETY: the owner keeps the memory, and the region the owner.
        unsafe { self.register_with(ptr, len, Some(owner)) }
    }

    unsafe fn register_with(
        &self,
        ptr: *mut u8,
        len: usize,
        owner: Option<Owner>,
    ) -> Result<Region> {
        check_mapped(ptr, len)?;
        // SAFETY: the caller's promise covers the runtime's.
        let allocation = unsafe { self.runtime().register(ptr, len, owner)? };
        Ok(Region::new(self.clone(), MemoryKind::Pinned, allocation))
    }

    /// Registers a buffer of the application: pins it, so that the GPU and NICs can access it. The
    /// library frees the buffer when no handle, registration, request in flight or enqueued
    /// operation can reach it any more. [`Region::into_vec`] returns it to the application.
    ///
    /// ```
    /// # fn main() -> gdsync::Result<()> {
    /// # let gpu = gdsync::Gpu::soft()?;
    /// # let limit = std::time::Duration::from_secs(10);
    /// let region = gpu.adopt_vec(b"in the buffer".to_vec()).map_err(|(_, e)| e)?;
    /// region.write(0, b"by")?;
    /// let buffer = region.into_vec(limit).map_err(|(_, e)| e)?;
    /// assert_eq!(buffer, b"by the buffer");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Until then the application cannot access the buffer itself:
    ///
    /// ```compile_fail,E0382
    /// # fn adopt(gpu: &gdsync::Gpu) -> Result<(), (Vec<u8>, gdsync::Error)> {
    /// let mut buffer = vec![0; 64];
    /// let region = gpu.adopt_vec(buffer)?;
    /// buffer[0] = 1; // the region has the buffer: `Region::write` writes into it
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Each error returns the buffer unchanged. `Invalid` if the buffer is empty; `System` if the
    /// runtime refuses it.
    pub fn adopt_vec(&self, mut buffer: Vec<u8>) -> Result<Region, (Vec<u8>, Error)> {
        let (ptr, len) = (buffer.as_mut_ptr(), buffer.len());
        if let Err(e) = check_mapped(ptr, len) {
            return Err((buffer, e));
        }
        // No code accesses the vector before the last owner is gone.
        let buffer = Arc::new(buffer);
        let owner = Box::new(Arc::clone(&buffer));
        // SAFETY: the owner keeps the buffer, which does not move and is reached by the region
        // alone.
        match unsafe { self.runtime().register(ptr, len, Some(owner)) } {
            Ok(allocation) => Ok(Region::of_vec(self.clone(), allocation, buffer)),
            // No device has written to the buffer; the other owner is about to be dropped.
            Err(e) => Err((Arc::unwrap_or_clone(buffer), e)),
        }
    }

    /// Adopts memory that the application allocated on this GPU by CUDA, in this GPU's context, or by
    /// HIP: device memory or pinned host memory. The pages of managed memory (`cuMemAllocManaged`,
    /// `hipMallocManaged`) move between GPU and host; NICs cannot access it. Words in coarse-grained
    /// memory of HIP (`hipMalloc`) are refused when they are created; such memory may carry messages.
    ///
    /// # Safety
    /// The memory stays allocated as long as anything can reach the region: handles, registrations,
    /// requests in flight, and streams with enqueued operations. No Rust reference to it is used
    /// while devices may write to it.
    ///
    /// The library holds a region longer than the caller's last handle, and the caller cannot
    /// observe for how long. Therefore this call is for memory that stays allocated until the
    /// process ends. [`Gpu::adopt_owned`] reports when the memory is unused.
    ///
    /// # Errors
    /// `Foreign` if this GPU is a soft GPU; `Invalid` for length 0, or if the range is not inside one
    /// allocation of this context; `Unsupported` for managed memory; `System`, `DeviceLost` if the
    /// driver refuses.
    pub unsafe fn adopt(&self, at: DevicePtr, len: usize) -> Result<Region> {
        // SAFETY: the caller's promise.
        unsafe { self.adopt_with(at, len, None) }
    }

    /// Adopts memory that `owner` keeps allocated, as [`Gpu::adopt`] does. The library drops
    /// `owner` on one of its threads, after the region and everything made from it is gone and the
    /// work enqueued on it has run. If the drop frees memory of the application's context, the
    /// driver blocks it until the waits of that context have passed.
    ///
    /// # Safety
    /// The memory stays allocated until `owner` is dropped. No Rust reference to it is used while
    /// devices may write to it.
    ///
    /// # Errors
    /// As [`Gpu::adopt`]; the library drops `owner`.
    pub unsafe fn adopt_owned(
        &self,
        at: DevicePtr,
        len: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Region> {
        // SAFETY: the owner keeps the memory, and the region the owner.
        unsafe { self.adopt_with(at, len, Some(owner)) }
    }

    /// The driver's number of the allocation that contains `at`: a later allocation at the same
    /// address has a different number. `None` on a software GPU.
    ///
    /// # Errors
    /// `System` for an address that is not in memory of the GPU.
    #[doc(hidden)]
    pub fn buffer_id(&self, at: DevicePtr) -> Result<Option<u64>> {
        self.runtime().buffer_id(at)
    }

    unsafe fn adopt_with(&self, at: DevicePtr, len: usize, owner: Option<Owner>) -> Result<Region> {
        const OPERATION: &str = "adopt memory";
        if len == 0 {
            let what = "a region cannot have 0 bytes";
            return Err(Error::new(OPERATION, Kind::Invalid, what));
        }
        // SAFETY: the caller's promise.
        let allocation = unsafe { self.runtime().adopt(at, len, owner)? };
        let kind = match allocation.cpu {
            Some(_) => MemoryKind::Pinned,
            None => MemoryKind::Device,
        };
        Ok(Region::new(self.clone(), kind, allocation))
    }
}
