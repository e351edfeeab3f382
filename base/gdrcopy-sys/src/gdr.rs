//! [`Gdr`], an open GDRCopy, and [`Mapping`], device memory that the CPU sees.

use crate::ffi::{self, Gdrapi};
use gdsync_sys::LoadError;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What GDRCopy could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GdrError {
    /// The library is not there, or is another one.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The library is there and could not be opened: mostly its kernel module is not loaded,
    /// or its device file may not be opened.
    #[error(
        "gdr_open of {library} failed: {source}; it needs the kernel module gdrdrv and access to /dev/gdrdrv"
    )]
    Open {
        /// The library as it was opened.
        library: String,
        /// The errno it left behind.
        source: io::Error,
    },
    /// A call about a piece of device memory failed.
    #[error("{call} of {len} bytes of device memory at {address:#x} failed: {source}")]
    Memory {
        /// The function.
        call: &'static str,
        /// The device address that was asked for.
        address: u64,
        /// The bytes that were asked for.
        len: usize,
        /// The errno it returned.
        source: io::Error,
    },
    /// A call about the library as a whole failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// The errno it returned.
        source: io::Error,
    },
    /// What was asked for is no piece of device memory: nothing, or past the last address.
    #[error("{len} bytes at {address:#x} are no piece of device memory")]
    Range {
        /// The device address that was asked for.
        address: u64,
        /// The bytes that were asked for.
        len: usize,
    },
    /// A copy reaches past its mapping.
    #[error("{len} bytes at offset {offset} reach past a mapping of {mapped} bytes")]
    Bounds {
        /// Where the copy begins.
        offset: usize,
        /// Its bytes.
        len: usize,
        /// The bytes of the mapping.
        mapped: usize,
    },
    /// The library maps less than what was pinned, or something else.
    #[error(
        "GDRCopy mapped {mapped_len} bytes from {mapped:#x}, which is not all of {len} bytes at {address:#x}"
    )]
    Mapped {
        /// The device address that was asked for.
        address: u64,
        /// The bytes that were asked for.
        len: usize,
        /// The device address at which the mapping begins.
        mapped: u64,
        /// The bytes of the mapping.
        mapped_len: u64,
    },
    /// This libgdrapi is too old for what was asked.
    #[error("this libgdrapi has no {call}, which came with version 2.5")]
    Unsupported {
        /// The function that it lacks.
        call: &'static str,
    },
}

/// Held around every call: the library is not thread-safe, nor are two handles of it.
static CALLS: Mutex<()> = Mutex::new(());

fn lock() -> MutexGuard<'static, ()> {
    // Nothing is left half done behind the lock but a call of C, which does not unwind.
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        // Some versions return it negative.
        code => Err(io::Error::from_raw_os_error(code.saturating_abs())),
    }
}

/// How device memory is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pin {
    /// As the library chooses.
    #[default]
    Default,
    /// For access through PCIe, also where GPU and CPU have a coherent link; since 2.5.
    ForcePcie,
}

/// How the CPU sees mapped device memory: `GDR_MAPPING_TYPE_*`, an integer, as the library's
/// next version may know more.
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

/// An open GDRCopy; clones are the same one, which closes with the last clone and mapping.
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

    /// Opens the GDRCopy of a table at hand.
    ///
    /// # Errors
    /// [`GdrError::Open`].
    pub fn open_with(api: &'static Gdrapi) -> Result<Gdr, GdrError> {
        let _lock = lock();
        // The function says why by errno, and only mostly: an old value must not speak for it.
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

    /// The version of the library: major, minor.
    pub fn library_version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        let _lock = lock();
        // SAFETY: both are written to locals, and the lock is held.
        unsafe { (self.open.api.gdr_runtime_get_version)(&mut major, &mut minor) };
        (major, minor)
    }

    /// The version of the kernel module: major, minor.
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
    /// What is pinned and mapped are whole GPU pages of 64 KiB around them, so neighbours in
    /// the same page are mapped too, and the pages must lie within device memory that is
    /// allocated. One page may be pinned more than once.
    ///
    /// # Errors
    /// [`GdrError::Range`], [`GdrError::Unsupported`], [`GdrError::Memory`] and
    /// [`GdrError::Mapped`]; nothing stays pinned.
    ///
    /// # Safety
    /// The memory must stay allocated until the mapping is dropped (see
    /// [`is_revoked`](Mapping::is_revoked) for what the driver does otherwise). With CUDA, set
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` on it, or copies of the driver that look synchronous
    /// may be seen late through the mapping.
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
        // From here on, dropping `mapping` undoes what was done; it takes the lock by itself.
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
        let told = mapped.map_err(fail("gdr_map")).and_then(|()| {
            // SAFETY: pinned above, the description is written to a local, the lock is held.
            errno(unsafe { (api.gdr_get_info_v2)(g, handle, &mut info) })
                .map_err(fail("gdr_get_info_v2"))
        });
        drop(lock);
        told?;
        // The mapping begins where the library says, which must be where we asked for.
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

/// Whole GPU pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pages {
    start: u64,
    len: usize,
}

impl Pages {
    /// The pages that `len` bytes at `address` touch; none if there is no such piece.
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

/// Device memory that the CPU reads and writes; dropped, it is unmapped and unpinned.
#[derive(Debug)]
pub struct Mapping {
    open: Arc<Open>,
    /// None once it is given back.
    handle: Option<ffi::gdr_mh_t>,
    /// Where the pages are mapped; null if they are not.
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
    /// Where the CPU sees the first byte asked for. Good until the mapping is dropped.
    ///
    /// Accesses race with the GPU and RDMA devices: use volatile or atomic ones, naturally
    /// aligned; after stores to write-combined memory, a store fence makes them leave the CPU.
    pub fn as_ptr(&self) -> *mut u8 {
        let offset = (self.address - self.pages.start) as usize;
        self.base.cast::<u8>().wrapping_add(offset)
    }

    /// The bytes asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: nothing is not mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first byte asked for.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How the CPU sees the memory.
    pub fn kind(&self) -> MappingKind {
        self.kind
    }

    /// Whether the driver took the memory back, as when it was freed while it was mapped. The
    /// CPU's accesses then reach nothing.
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

    /// Copies `from` to `offset`, with the widest stores that the CPU has, and fences.
    ///
    /// # Errors
    /// [`GdrError::Bounds`], and [`GdrError::Memory`] if the library refuses.
    ///
    /// # Safety
    /// The bytes must be nobody else's meanwhile: no work of the GPU, no RDMA, no other thread.
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
    /// Nobody may write the bytes meanwhile.
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

    /// Unmaps and unpins now, and says how that went; dropping does the same in silence.
    ///
    /// # Errors
    /// [`GdrError::Memory`] with the first call that failed; the rest is done all the same.
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
        // A destructor has nobody to tell; `close` has.
        let _ = self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;

    #[test]
    fn pages_are_those_touched() {
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
