//! Memory of files, mapped here as long as the NIC uses it, even if the program closes the
//! descriptor or unmaps its own mapping. If the file shrinks, an access faults, as with the
//! program's own memory.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use vmlx5_core::{Dma, DmaFault};

use crate::guard::{Own, present};
use crate::trace;

const PAGE: u64 = 4096;

/// A part of a file.
pub struct Mapping {
    /// The part.
    own: Own,
    /// The pages that contain it.
    pages: Own,
}

impl Mapping {
    /// Maps the `len` bytes at `offset` of a file; `len` is not zero.
    pub fn new(file: impl AsFd, offset: u64, len: u64, writable: bool) -> Result<Mapping, Errno> {
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        let start = offset & !(PAGE - 1);
        let size = (end - start).next_multiple_of(PAGE);
        let mut rights = ProtFlags::READ;
        if writable {
            rights |= ProtFlags::WRITE;
        }
        let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping, where the kernel chooses.
        let base = unsafe { rustix::mm::mmap(null, size as usize, rights, flags, file, start)? };
        let base = base as u64;
        Ok(Mapping {
            own: Own {
                base: base + (offset - start),
                len,
            },
            pages: Own { base, len: size },
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let Own { base, len } = self.pages;
        // SAFETY: the mapping of `new`; its last user drops it.
        let _ = unsafe { rustix::mm::munmap(base as *mut _, len as usize) };
    }
}

macro_rules! delegate {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> $result {
            self.own.$name($($arg),*)
        }
    )*};
}

impl Dma for Mapping {
    delegate! {
        len() -> u64;
        read(offset: u64, into: &mut [u8]) -> Result<(), DmaFault>;
        write(offset: u64, from: &[u8]) -> Result<(), DmaFault>;
        load32(offset: u64) -> Result<u32, DmaFault>;
        load64(offset: u64) -> Result<u64, DmaFault>;
        store32(offset: u64, value: u32) -> Result<(), DmaFault>;
        swap64(offset: u64, value: u64) -> Result<u64, DmaFault>;
        compare_swap64(offset: u64, current: u64, new: u64) -> Result<u64, DmaFault>;
        fetch_add64(offset: u64, add: u64) -> Result<u64, DmaFault>;
    }
}

/// The `len` bytes at `offset` of the memory behind a descriptor of the program.
///
/// # Errors
/// `EBADF`: the descriptor is not open. `EINVAL`: the file ends before the range. `EOPNOTSUPP`: the
/// file cannot be mapped, as the memory of a GPU cannot.
pub fn of_descriptor(
    fd: i32,
    offset: u64,
    len: u64,
    writable: bool,
) -> Result<Arc<dyn Dma>, Errno> {
    if fd < 0 || len == 0 {
        return Err(if fd < 0 { Errno::BADF } else { Errno::INVAL });
    }
    // SAFETY: used for the length of this call; the calls that use the descriptor refuse one that
    // is not open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let size = rustix::fs::fstat(file)?.st_size as u64;
    let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
    // A file without a size is checked by its pages.
    if size != 0 && end > size {
        return Err(Errno::INVAL);
    }
    let mapping = match Mapping::new(file, offset, len, writable) {
        Ok(mapping) => mapping,
        Err(why @ (Errno::NOMEM | Errno::AGAIN)) => return Err(why),
        Err(why) => {
            trace::line(format_args!(
                "the memory behind descriptor {fd} cannot be mapped ({why}): the memory of a GPU, \
                 for one, is out of this device's reach"
            ));
            return Err(Errno::OPNOTSUPP);
        }
    };
    if present(mapping.own.base, len, writable) {
        Ok(Arc::new(mapping))
    } else {
        Err(Errno::INVAL)
    }
}
