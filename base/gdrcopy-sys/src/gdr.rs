//! [`Gdr`], an open GDRCopy library, and [`Mapping`], device memory mapped for the CPU.

use crate::ffi::{self, Gdrapi};
use gdsync_sys::LoadError;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An error of GDRCopy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GdrError {
    /// The library is missing, or it lacks a function.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library is loaded, but `gdr_open` failed. The usual cause: the kernel module is not
    /// loaded, or the process may not open its device file.
    #[error(
        "gdr_open of {library} failed: {source}; it needs the kernel module gdrdrv and access to /dev/gdrdrv"
    )]
    Open {
        /// The path under which the library was opened.
        library: String,
        /// The errno of `gdr_open`.
        source: io::Error,
    },
    /// A call for a range of device memory failed.
    #[error("{call} of {len} bytes of device memory at {address:#x} failed: {source}")]
    Memory {
        /// The function.
        call: &'static str,
        /// The requested device address.
        address: u64,
        /// The requested length in bytes.
        len: usize,
        /// The errno that the function returned.
        source: io::Error,
    },
    /// A call for the library as a whole failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// The errno that the function returned.
        source: io::Error,
    },
    /// The request is not a range of addresses: it is empty, or it ends past the last address.
    #[error("{len} bytes at {address:#x} are not a range of device memory")]
    Range {
        /// The requested device address.
        address: u64,
        /// The requested length in bytes.
        len: usize,
    },
    /// A copy reaches past the end of its mapping.
    #[error("{len} bytes at offset {offset} reach past a mapping of {mapped} bytes")]
    Bounds {
        /// The offset of the copy in bytes.
        offset: usize,
        /// The length of the copy in bytes.
        len: usize,
        /// The length of the mapping in bytes.
        mapped: usize,
    },
    /// The library mapped another range than it pinned, or a part of it only.
    #[error(
        "GDRCopy mapped {mapped_len} bytes from {mapped:#x}, which is not all of {len} bytes at {address:#x}"
    )]
    Mapped {
        /// The requested device address.
        address: u64,
        /// The requested length in bytes.
        len: usize,
        /// The device address of the first mapped byte.
        mapped: u64,
        /// The length of the mapping in bytes.
        mapped_len: u64,
    },
    /// This libgdrapi is too old for the requested option.
    #[error("this libgdrapi has no {call}, which version 2.5 added")]
    Unsupported {
        /// The missing function.
        call: &'static str,
    },
}

/// The lock around every call. The library is not thread-safe, and two of its handles share state.
static CALLS: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, ()> {
    // A panic of a holder leaves no call half done: a call of C does not unwind.
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some versions return the errno as a negative number.
        code => Err(io::Error::from_raw_os_error(code.saturating_abs())),
    }
}

/// The way in which device memory is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pin {
    /// The library chooses.
    #[default]
    Default,
    /// For access through PCIe, even if GPU and CPU have a coherent link; since 2.5.
    ForcePcie,
}

/// The memory type of a mapping, `GDR_MAPPING_TYPE_*`. It is an integer because later versions of
/// the library may add types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingKind(pub u32);

impl MappingKind {
    /// Stores are combined and become visible in any order until a store fence.
    pub const WRITE_COMBINED: MappingKind = MappingKind(ffi::GDR_MAPPING_TYPE_WC);
    /// Cached and coherent.
    pub const CACHED: MappingKind = MappingKind(ffi::GDR_MAPPING_TYPE_CACHING);
    /// Uncached and in order.
    pub const DEVICE: MappingKind = MappingKind(ffi::GDR_MAPPING_TYPE_DEVICE);
}

/// An open GDRCopy library. Clones share one handle, which closes with the last clone and mapping.
#[derive(Debug, Clone)]
pub struct Gdr {
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    api: &'static Gdrapi,
    handle: NonNull<ffi::gdr>,
}

// SAFETY: the handle is used under CALLS alone, and the library binds nothing to a thread.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Drop for Open {
    fn drop(&mut self) {
        let _lock = lock();
        // SAFETY: the handle is open, and no mapping is left: each holds this.
        unsafe { (self.api.gdr_close)(self.handle.as_ptr()) };
    }
}

impl Gdr {
    /// Opens GDRCopy as it is installed.
    ///
    /// # Errors
    /// [`GdrError::Load`] if there is no libgdrapi, [`GdrError::Open`] if its kernel module
    /// cannot be reached.
    pub fn open() -> Result<Gdr, GdrError> {
        Gdr::open_with(Gdrapi::get().map_err(Clone::clone)?)
    }

    /// Opens the GDRCopy library of a table that the caller has loaded.
    ///
    /// # Errors
    /// [`GdrError::Open`].
    pub fn open_with(api: &'static Gdrapi) -> Result<Gdr, GdrError> {
        let _lock = lock();
        // `gdr_open` does not set errno in every case, so an old value must not be taken for its
        // reason.
        // SAFETY: the location is this thread's.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: takes nothing, and the lock is held.
        let handle = unsafe { (api.gdr_open)() };
        match NonNull::new(handle) {
            Some(handle) => Ok(Gdr {
                open: Arc::new(Open { api, handle }),
            }),
            None => {
                let source = match io::Error::last_os_error() {
                    e if e.raw_os_error() == Some(0) => io::Error::other("no reason given"),
                    e => e,
                };
                Err(GdrError::Open {
                    library: api.path().display().to_string(),
                    source,
                })
            }
        }
    }

    /// The version of the library: (major, minor).
    pub fn library_version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        let _lock = lock();
        // SAFETY: both are written to locals, and the lock is held.
        unsafe { (self.open.api.gdr_runtime_get_version)(&mut major, &mut minor) };
        (major, minor)
    }

    /// The version of the kernel module: (major, minor).
    ///
    /// # Errors
    /// [`GdrError::Call`].
    pub fn driver_version(&self) -> Result<(i32, i32), GdrError> {
        let call = self.open.api.gdr_driver_get_version;
        let (mut major, mut minor) = (0, 0);
        let _lock = lock();
        // SAFETY: the handle is open, both are written to locals, and the lock is held.
        errno(unsafe { call(self.open.handle.as_ptr(), &mut major, &mut minor) }).map_err(
            |source| GdrError::Call {
                call: "gdr_driver_get_version",
                source,
            },
        )?;
        Ok((major, minor))
    }

    /// Pins and maps `len` bytes of device memory at `address`.
    ///
    /// The library pins and maps whole GPU pages of 64 KiB. Neighbours in the same page are
    /// therefore mapped too, and every page must be part of allocated device memory. A page may be
    /// pinned more than once.
    ///
    /// # Errors
    /// [`GdrError::Range`], [`GdrError::Unsupported`], [`GdrError::Memory`] and
    /// [`GdrError::Mapped`]; nothing stays pinned.
    ///
    /// # Safety
    /// The memory must stay allocated until the mapping is dropped (see
    /// [`is_revoked`](Mapping::is_revoked) for what the driver does otherwise). With CUDA, set
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` on the memory. Without it, the result of a driver copy
    /// that returned already may appear late in the mapping.
    pub unsafe fn map(&self, address: u64, len: usize, pin: Pin) -> Result<Mapping, GdrError> {
        let range = GdrError::Range { address, len };
        let Some(pages) = Pages::around(address, len) else {
            return Err(range);
        };
        let api = self.open.api;
        let g = self.open.handle.as_ptr();
        let fail = |call| {
            move |source| GdrError::Memory {
                call,
                address,
                len,
                source,
            }
        };

        let lock = lock();
        let mut handle = ffi::gdr_mh_t { h: 0 };
        match pin {
            Pin::Default => {
                let call = api.gdr_pin_buffer;
                // SAFETY: the handle is open, the pin's handle is written to a local, the lock
                // is held; an address that is no device memory is refused by the driver.
                errno(unsafe { call(g, pages.start, pages.len, 0, 0, &mut handle) })
                    .map_err(fail("gdr_pin_buffer"))?;
            }
            Pin::ForcePcie => {
                let call = api.gdr_pin_buffer_v2.ok_or(GdrError::Unsupported {
                    call: "gdr_pin_buffer_v2",
                })?;
                let flags = ffi::GDR_PIN_FLAG_FORCE_PCIE;
                // SAFETY: as above.
                errno(unsafe { call(g, pages.start, pages.len, flags, &mut handle) })
                    .map_err(fail("gdr_pin_buffer_v2"))?;
            }
        }
        // From here on, dropping `mapping` undoes the pin and the map; the drop takes the lock
        // itself.
        let mut mapping = Mapping {
            open: self.open.clone(),
            handle: Some(handle),
            base: ptr::null_mut(),
            pages,
            address,
            len,
            kind: MappingKind(ffi::GDR_MAPPING_TYPE_NONE),
        };
        // SAFETY: pinned above, the pointer is written to the mapping, the lock is held.
        let mapped = errno(unsafe { (api.gdr_map)(g, handle, &mut mapping.base, pages.len) });
        let mut info = ffi::gdr_info_v2_t::default();
        let described = mapped.map_err(fail("gdr_map")).and_then(|()| {
            // SAFETY: pinned above, the description is written to a local, the lock is held.
            errno(unsafe { (api.gdr_get_info_v2)(g, handle, &mut info) })
                .map_err(fail("gdr_get_info_v2"))
        });
        drop(lock);
        described?;
        // The library returns the start of the mapping, which must be the requested address.
        if info.va != pages.start || info.mapped_size < pages.len as u64 {
            return Err(GdrError::Mapped {
                address,
                len,
                mapped: info.va,
                mapped_len: info.mapped_size,
            });
        }
        mapping.kind = MappingKind(info.mapping_type);
        Ok(mapping)
    }
}

/// A range of whole GPU pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    start: u64,
    len: usize,
}

impl Pages {
    /// The pages that contain the `len` bytes at `address`; `None` if this is not a range.
    fn around(address: u64, len: usize) -> Option<Pages> {
        let mask = ffi::GPU_PAGE_SIZE - 1;
        let start = address & !mask;
        let last = address.checked_add((len as u64).checked_sub(1)?)?;
        let end = (last | mask).checked_add(1)?;
        Some(Pages {
            start,
            len: usize::try_from(end - start).ok()?,
        })
    }
}

/// Device memory that the CPU reads and writes. Dropping it unmaps and unpins the memory.
#[derive(Debug)]
pub struct Mapping {
    open: Arc<Open>,
    /// `None` after the release.
    handle: Option<ffi::gdr_mh_t>,
    /// The address of the mapped pages; null before the map and after the unmap.
    base: *mut c_void,
    pages: Pages,
    address: u64,
    len: usize,
    kind: MappingKind,
}

// SAFETY: the mapping belongs to the process; the handle is used under CALLS alone.
unsafe impl Send for Mapping {}
// SAFETY: as above; the memory is reached through raw pointers and unsafe copies only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The CPU address of the first requested byte. It is valid until the mapping is dropped.
    ///
    /// Accesses race with the GPU and with RDMA devices: use volatile or atomic accesses, naturally
    /// aligned. After stores to write-combined memory, a store fence makes them leave the CPU.
    pub fn as_ptr(&self) -> *mut u8 {
        let offset = (self.address - self.pages.start) as usize;
        self.base.cast::<u8>().wrapping_add(offset)
    }

    /// The requested length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always `false`: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first requested byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The memory type of the mapping.
    pub fn kind(&self) -> MappingKind {
        self.kind
    }

    /// Whether the driver revoked the memory, for example because it was freed while it was mapped.
    /// Later accesses of the CPU then reach no memory of the GPU.
    ///
    /// # Errors
    /// [`GdrError::Memory`].
    pub fn is_revoked(&self) -> Result<bool, GdrError> {
        let mut flag = 0;
        if let Some(handle) = self.handle {
            let call = self.open.api.gdr_get_callback_flag;
            let _lock = lock();
            // SAFETY: the handle is pinned, the flag is written to a local, the lock is held.
            errno(unsafe { call(self.open.handle.as_ptr(), handle, &mut flag) })
                .map_err(self.fail("gdr_get_callback_flag"))?;
        }
        Ok(flag != 0)
    }

    /// Copies `from` to `offset` with the widest stores of the CPU, then executes a store fence.
    ///
    /// # Errors
    /// [`GdrError::Bounds`], and [`GdrError::Memory`] if the library refuses.
    ///
    /// # Safety
    /// During the call, no work of the GPU, no RDMA and no other thread may access the bytes.
    pub unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), GdrError> {
        self.check(offset, from.len())?;
        let Some(handle) = self.handle else {
            return Ok(());
        };
        let to = self.as_ptr().wrapping_add(offset).cast();
        let _lock = lock();
        // SAFETY: within the mapping, as checked; the caller keeps others away; locked.
        let code = unsafe {
            (self.open.api.gdr_copy_to_mapping)(handle, to, from.as_ptr().cast(), from.len())
        };
        errno(code).map_err(self.fail("gdr_copy_to_mapping"))
    }

    /// Copies from `offset` into `to`.
    ///
    /// # Errors
    /// As [`write`](Mapping::write).
    ///
    /// # Safety
    /// During the call, the GPU, RDMA devices and other threads must not write the bytes.
    pub unsafe fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), GdrError> {
        self.check(offset, to.len())?;
        let Some(handle) = self.handle else {
            return Ok(());
        };
        let from = self.as_ptr().wrapping_add(offset).cast();
        let _lock = lock();
        // SAFETY: within the mapping, as checked; the caller keeps writers away; locked.
        let code = unsafe {
            (self.open.api.gdr_copy_from_mapping)(handle, to.as_mut_ptr().cast(), from, to.len())
        };
        errno(code).map_err(self.fail("gdr_copy_from_mapping"))
    }

    /// Unmaps and unpins now, and returns errors. Dropping does the same and ignores errors.
    ///
    /// # Errors
    /// [`GdrError::Memory`] with the first call that failed; the remaining calls are made all the
    /// same.
    pub fn close(mut self) -> Result<(), GdrError> {
        self.release()
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), GdrError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(GdrError::Bounds {
                offset,
                len,
                mapped: self.len,
            }),
        }
    }

    fn fail(&self, call: &'static str) -> impl Fn(io::Error) -> GdrError + use<> {
        let (address, len) = (self.address, self.len);
        move |source| GdrError::Memory {
            call,
            address,
            len,
            source,
        }
    }

    fn release(&mut self) -> Result<(), GdrError> {
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        let api = self.open.api;
        let g = self.open.handle.as_ptr();
        let _lock = lock();
        let unmapped = if self.base.is_null() {
            Ok(())
        } else {
            // SAFETY: mapped with these very values, once; the lock is held.
            errno(unsafe { (api.gdr_unmap)(g, handle, self.base, self.pages.len) })
                .map_err(self.fail("gdr_unmap"))
        };
        self.base = ptr::null_mut();
        // SAFETY: pinned, once; the lock is held.
        let unpinned = errno(unsafe { (api.gdr_unpin_buffer)(g, handle) })
            .map_err(self.fail("gdr_unpin_buffer"));
        unmapped.and(unpinned)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A destructor cannot return an error; `close` can.
        let _ = self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;

    #[test]
    fn range_is_extended_to_whole_gpu_pages() {
        let pages = |address, len| Pages::around(address, len).map(|p| (p.start, p.len));
        assert_eq!(pages(0x10000, 1), Some((0x10000, 0x10000)));
        assert_eq!(pages(0x10000, 0x10000), Some((0x10000, 0x10000)));
        assert_eq!(pages(0x10000, 0x10001), Some((0x10000, 0x20000)));
        assert_eq!(pages(0x1ffff, 2), Some((0x10000, 0x20000)));
        assert_eq!(pages(0x1fff8, 8), Some((0x10000, 0x10000)));
        assert_eq!(pages(0x10000, 0), None);
        assert_eq!(pages(u64::MAX, 2), None);
        assert_eq!(pages(u64::MAX - 8, 1), None, "the end would be 2^64");
    }
}
