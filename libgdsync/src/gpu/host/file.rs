//! Memory files: host memory of this process that another process can map, and mapped memory of
//! another process.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::error::{Error, Kind, Result};

/// A value of the system's configuration.
fn system(name: libc::c_int, otherwise: usize) -> usize {
    // SAFETY: reads a number.
    usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(otherwise)
}

/// The size of a page in bytes.
pub(crate) fn page() -> usize {
    system(libc::_SC_PAGESIZE, 4096)
}

/// Refuses more memory than the host has. A memory file may be longer, but devices pin all its
/// pages, and the system would end processes to find them.
fn check_fits(operation: &'static str, len: usize) -> Result<()> {
    let most = system(libc::_SC_PHYS_PAGES, usize::MAX).saturating_mul(page());
    if len <= most {
        return Ok(());
    }
    let what = format!("{len} bytes exceed the memory of this host");
    Err(Error::new(operation, Kind::System, what).with_limit(most as u64, "bytes"))
}

/// The error of the system call that just failed.
#[cold]
fn refused(operation: &'static str, call: &str, len: usize) -> Error {
    let e = io::Error::last_os_error();
    let what = format!("{call} for {len} bytes of host memory failed: {e}");
    Error::new(operation, Kind::System, what).with_source(e)
}

/// A shared mapping of a part of a memory file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; the handle itself grants no access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`. The holder drops it after the last user of the memory.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    /// Maps `len` bytes of the file from `start`, which is inside the file and starts a page.
    fn new(operation: &'static str, file: BorrowedFd<'_>, start: u64, len: usize) -> Result<Self> {
        let (null, fd, start) = (std::ptr::null_mut(), file.as_raw_fd(), start as libc::off_t);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses the address, so no existing mapping is replaced.
        let at = unsafe { libc::mmap(null, len, rights, libc::MAP_SHARED, fd, start) };
        match NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED) {
            Some(base) => Ok(Mapping { base, len }),
            None => Err(refused(operation, "mmap", len)),
        }
    }

    /// The address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length in bytes, in whole pages.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Makes a memory file of `len` bytes, a multiple of the page size, zeroed, and maps it. A process
/// that gets the descriptor cannot shorten the file: accesses would raise SIGBUS here.
pub(super) fn create(operation: &'static str, len: usize) -> Result<(OwnedFd, Mapping)> {
    const NAME: &CStr = c"gdsync-pinned";
    check_fits(operation, len)?;
    // SAFETY: makes a descriptor, from a terminated string.
    let fd = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = libc::memfd_create(NAME.as_ptr(), flags);
        if fd < 0 {
            return Err(refused(operation, "memfd_create", len));
        }
        OwnedFd::from_raw_fd(fd)
    };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: calls about an own descriptor, with numbers.
    unsafe {
        let size = libc::off_t::try_from(len).unwrap_or(libc::off_t::MAX);
        if libc::ftruncate(fd.as_raw_fd(), size) != 0 {
            return Err(refused(operation, "ftruncate", len));
        }
        if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
            return Err(refused(operation, "fcntl(F_ADD_SEALS)", len));
        }
    }
    let mapping = Mapping::new(operation, fd.as_fd(), 0, len)?;
    Ok((fd, mapping))
}

/// Maps the pages of the `len` bytes at `offset` of a memory file that another process has sent;
/// returns the mapping and the offset of the bytes in it.
///
/// # Errors
/// `Invalid` if the descriptor is not a memory file that is sealed against shortening, or the file
/// is too short; `System` if the system refuses.
pub(crate) fn open(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(Mapping, usize)> {
    const OPERATION: &str = "open shared memory";
    let invalid = |why: &str| Err(Error::new(OPERATION, Kind::Invalid, why));
    if len == 0 {
        return invalid("the shared memory cannot have 0 bytes");
    }
    // SAFETY: asks about a live descriptor.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return invalid("the descriptor of the shared memory is not a memory file");
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return invalid(
            "the file of the shared memory is not sealed (F_SEAL_SHRINK): another process could \
             shorten it, and accesses would then fail",
        );
    }
    // SAFETY: `stat` is plain numbers.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: stores a structure.
    if unsafe { libc::fstat(file.as_raw_fd(), &mut about) } != 0 {
        return Err(refused(OPERATION, "fstat", 0));
    }
    let size = u64::try_from(about.st_size).unwrap_or(0);
    let Some(end) = offset.checked_add(len).filter(|end| *end <= size) else {
        let what = format!("{len} bytes at offset {offset} exceed the file of the shared memory");
        return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(size, "bytes"));
    };
    let page = page() as u64;
    let start = offset / page * page;
    // A file is at most `i64::MAX` bytes, so the number of bytes is an address range.
    let len = (end - start).next_multiple_of(page) as usize;
    check_fits(OPERATION, len)?;
    let mapping = Mapping::new(OPERATION, file, start, len)?;
    Ok((mapping, (offset - start) as usize))
}
