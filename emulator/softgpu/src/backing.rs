//! The memory behind allocations and registrations, which stays mapped until its last user drops
//! it.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::budget::{Budget, Reserved};
use crate::protect::Key;
use crate::span::Span;
use crate::{DevAddr, Error};

/// A mapping, unmapped when dropped.
#[derive(Debug)]
struct Map {
    ptr: *mut c_void,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Map {}
// SAFETY: as above; the handle itself grants no access.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes of `fd`, or fresh private memory, readable and writable.
    fn new(fd: Option<&OwnedFd>, len: usize) -> Result<Map, Error> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address, so no existing mapping is replaced.
        let ptr = unsafe {
            match fd {
                Some(fd) => rustix::mm::mmap(null_mut(), len, prot, MapFlags::SHARED, fd, 0),
                None => rustix::mm::mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE),
            }
        };
        let ptr = ptr.map_err(os("mmap", len))?;
        Ok(Map { ptr, len })
    }
}

/// The error for a refusal by the operating system.
fn os(what: &'static str, len: usize) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |errno| Error::Os { what, len, errno }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; there is no user any more, because users hold the `Backing`.
        let _ = unsafe { rustix::mm::munmap(self.ptr, self.len) };
    }
}

enum Kind {
    /// A memory file with two mappings: one for kernels, optionally under a protection key, and one
    /// for the engine, NICs and CPU views.
    Device {
        fd: OwnedFd,
        device: Map,
        alias: Map,
    },
    /// Private memory of the process; kernels and all others use the same mapping.
    Pinned { map: Map },
    /// Memory of another owner.
    Registered {
        owner: Option<Arc<dyn Any + Send + Sync>>,
    },
}

/// Memory that a GPU can address. Its handle, windows, CPU views and running operations share it;
/// the last of them unmaps it.
pub(crate) struct Backing {
    kind: Kind,
    /// The address that kernels and operations use.
    addr: DevAddr,
    /// The address that all others use.
    span: Span,
    /// Its part of the GPU's memory budget, if it is GPU memory.
    _share: Option<Reserved>,
}

impl Backing {
    /// Zeroed device memory.
    pub(crate) fn device(
        len: usize,
        key: Option<Key>,
        budget: &Arc<Budget>,
    ) -> Result<Backing, Error> {
        const WHAT: &str = "device memory";
        let size = round(len).ok_or(Error::BadLength { what: WHAT, len })?;
        let share = budget.take(WHAT, size)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("softgpu", flags).map_err(os("memfd_create", len))?;
        rustix::fs::ftruncate(&fd, size as u64).map_err(os("ftruncate", len))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(os("F_ADD_SEALS", len))?;
        Ok(Backing {
            _share: Some(share),
            ..Backing::mapped_twice(fd, len, size, key)?
        })
    }

    /// Device memory that another `Backing`, usually of another process, has exported.
    pub(crate) fn import(fd: OwnedFd, len: usize, key: Option<Key>) -> Result<Backing, Error> {
        let size = round(len).ok_or(Error::BadLength {
            what: "imported memory",
            len,
        })?;
        let refuse = |why| Err(Error::BadImport { why });
        // If the file could shrink, accesses would raise SIGBUS.
        match rustix::fs::fcntl_get_seals(&fd) {
            Ok(s) if s.contains(SealFlags::SHRINK) => {}
            Ok(_) => return refuse("the file may shrink"),
            Err(_) => return refuse("not a memory file"),
        }
        let stat = rustix::fs::fstat(&fd).map_err(os("fstat", len))?;
        if u64::try_from(stat.st_size).unwrap_or(0) < size as u64 {
            return refuse("the memory is shorter than the given length");
        }
        Backing::mapped_twice(fd, len, size, key)
    }

    fn mapped_twice(
        fd: OwnedFd,
        len: usize,
        size: usize,
        key: Option<Key>,
    ) -> Result<Backing, Error> {
        let device = Map::new(Some(&fd), size)?;
        let alias = Map::new(Some(&fd), size)?;
        if let Some(key) = key {
            // SAFETY: the mapping is new, and only kernels access it.
            unsafe { key.protect(device.ptr, size) }.map_err(os("pkey_mprotect", len))?;
        }
        Ok(Backing {
            addr: DevAddr::from_raw(device.ptr as u64),
            // SAFETY: the alias is mapped as long as this `Backing` lives.
            span: unsafe { Span::new(alias.ptr.cast(), len) },
            kind: Kind::Device { fd, device, alias },
            _share: None,
        })
    }

    /// Zeroed host memory that the GPU can address.
    pub(crate) fn pinned(len: usize, budget: &Arc<Budget>) -> Result<Backing, Error> {
        const WHAT: &str = "pinned memory";
        let size = round(len).ok_or(Error::BadLength { what: WHAT, len })?;
        let share = budget.take(WHAT, size)?;
        let map = Map::new(None, size)?;
        Ok(Backing {
            addr: DevAddr::from_raw(map.ptr as u64),
            // SAFETY: mapped as long as this `Backing` lives.
            span: unsafe { Span::new(map.ptr.cast(), len) },
            kind: Kind::Pinned { map },
            _share: Some(share),
        })
    }

    /// Host memory of another owner.
    ///
    /// # Safety
    /// Until this `Backing` is dropped, the memory stays valid, and others access it only
    /// atomically or while the GPU does not access it. `owner` may be the object that ensures this.
    pub(crate) unsafe fn registered(
        ptr: *mut u8,
        len: usize,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Backing, Error> {
        let fits = (ptr.addr()).checked_add(len).is_some();
        if ptr.is_null() || len == 0 || !fits {
            return Err(Error::BadLength {
                what: "host registration",
                len,
            });
        }
        Ok(Backing {
            addr: DevAddr::from_raw(ptr.expose_provenance() as u64),
            // SAFETY: the caller keeps the memory valid.
            span: unsafe { Span::new(ptr, len) },
            kind: Kind::Registered { owner },
            _share: None,
        })
    }

    /// The address that kernels and operations use.
    pub(crate) fn addr(&self) -> DevAddr {
        self.addr
    }

    /// The address that all others use.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    /// Whether it is device memory, which a NIC reaches over a bus.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.kind, Kind::Device { .. })
    }

    /// Another descriptor of the memory file.
    pub(crate) fn export(&self) -> Result<OwnedFd, Error> {
        match &self.kind {
            Kind::Device { fd, .. } => rustix::io::fcntl_dupfd_cloexec(fd, 3)
                .map_err(os("duplicating a memory file", self.span.len())),
            _ => Err(Error::Unsupported {
                what: "export of host memory",
            }),
        }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Device { device, alias, .. } => {
                return write!(
                    f,
                    "device {} ({:?}, {:?})",
                    self.addr, device.ptr, alias.ptr
                );
            }
            Kind::Pinned { map } => format!("pinned, {} bytes mapped", map.len),
            Kind::Registered { owner } => format!("registered, owned: {}", owner.is_some()),
        };
        write!(f, "{kind} {}", self.addr)
    }
}

/// `len` rounded up to whole pages; `None` if it is not a possible length.
fn round(len: usize) -> Option<usize> {
    let page = rustix::param::page_size();
    if len == 0 || len > isize::MAX as usize - page {
        return None;
    }
    Some(len.next_multiple_of(page))
}
