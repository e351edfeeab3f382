//! Guarded access to the program's memory: an access to unmapped memory is a fault of the NIC's
//! access, and not of the process.
//!
//! A few assembly routines without a stack make all accesses. If one of them faults, the handler
//! makes it return an error. A fault elsewhere goes to the program's handler. If this is not
//! possible, for example with sanitizers, the library accesses memory by system calls
//! (`VMLX5_GUARD=syscall`).

pub mod handlers;
mod routines;

use std::sync::OnceLock;

use vmlx5_core::{Dma, DmaFault};

use crate::config::Guard;
use crate::sys::{self, syscall};
pub use routines::Fault;
use routines::*;

/// The kind of access; none before the start.
static GUARD: OnceLock<Guard> = OnceLock::new();

/// Sets the kind of access.
pub fn start(guard: Guard) {
    if guard == Guard::Signal && !handlers::take_over() {
        return;
    }
    let _ = GUARD.set(guard);
}

/// One piece for the kernel to copy.
fn by_syscall(number: i64, ours: u64, theirs: u64, len: u64) -> Result<(), Fault> {
    let (ours, theirs) = ([ours, len], [theirs, len]);
    let pid = std::process::id() as usize;
    let args = [pid, ours.as_ptr() as usize, 1, theirs.as_ptr() as usize, 1];
    // SAFETY: copies between a buffer of the caller's and memory that may be unmapped.
    match unsafe { syscall(number, args) } {
        done if done == len as isize => Ok(()),
        _ => Err(Fault),
    }
}

fn kernel_copies() -> bool {
    GUARD.get() == Some(&Guard::Syscall)
}

const READV: i64 = libc::SYS_process_vm_readv;
const WRITEV: i64 = libc::SYS_process_vm_writev;

/// Copies out of the program's memory; reads each aligned piece in one access.
pub fn read(at: u64, into: &mut [u8]) -> Result<(), Fault> {
    let to = into.as_mut_ptr() as u64;
    if kernel_copies() {
        return by_syscall(READV, to, at, into.len() as u64);
    }
    pieces(at, into.len() as u64, |offset, size| {
        let (from, to) = (at + offset, to + offset);
        // SAFETY: guarded; the written bytes are within `into`.
        unsafe {
            if size >= 16 {
                return vmlx5_guard_copy(to, from, size).get().map(drop);
            }
            let value = match size {
                8 => vmlx5_guard_load64(from),
                4 => vmlx5_guard_load32(from),
                2 => vmlx5_guard_load16(from),
                _ => vmlx5_guard_load8(from),
            };
            let bytes = value.get()?.to_le_bytes();
            let into = &mut into[offset as usize..][..size as usize];
            into.copy_from_slice(&bytes[..size as usize]);
        }
        Ok(())
    })
}

/// Copies into the program's memory, in ascending order; writes each aligned piece in one access.
pub fn write(at: u64, from: &[u8]) -> Result<(), Fault> {
    let source = from.as_ptr() as u64;
    if kernel_copies() {
        return by_syscall(WRITEV, source, at, from.len() as u64);
    }
    pieces(at, from.len() as u64, |offset, size| {
        let to = at + offset;
        let from = &from[offset as usize..][..size as usize];
        let mut bytes = [0; 8];
        if size < 16 {
            bytes[..from.len()].copy_from_slice(from);
        }
        let value = u64::from_le_bytes(bytes);
        // SAFETY: guarded; memory that the program registered for writes of the NIC.
        let done = unsafe {
            match size {
                1 => vmlx5_guard_store8(to, value),
                2 => vmlx5_guard_store16(to, value),
                4 => vmlx5_guard_store32(to, value),
                8 => vmlx5_guard_store64(to, value),
                _ => vmlx5_guard_copy(to, from.as_ptr() as u64, size),
            }
        };
        done.get().map(drop)
    })
}

/// The pieces of `at .. at + len`: a multiple of 16 bytes from an address aligned to 8, and
/// aligned ones of 8, 4, 2 or 1 bytes around it.
#[inline]
fn pieces(
    at: u64,
    len: u64,
    mut each: impl FnMut(u64, u64) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < len {
        let (here, left) = (at + done, len - done);
        let mut size = 8;
        if here & 7 == 0 && left >= 16 {
            size = left & !15;
        } else {
            while here & (size - 1) != 0 || size > left {
                size /= 2;
            }
        }
        each(done, size)?;
        done += size;
    }
    Ok(())
}

/// Whether all pages of `at .. at + len` are mapped; `writable`: and writable.
pub fn present(at: u64, len: u64, writable: bool) -> bool {
    const PAGE: u64 = 4096;
    let Some(end) = at.checked_add(len) else {
        return false;
    };
    let mut page = at;
    while page < end {
        let mut byte = [0];
        let there = if writable && !kernel_copies() {
            // SAFETY: guarded; the access leaves the byte unchanged, even if other threads write
            // it.
            unsafe { vmlx5_guard_touch(page).get().is_ok() }
        } else {
            read(page, &mut byte).is_ok()
        };
        if !there {
            return false;
        }
        page = (page & !(PAGE - 1)) + PAGE;
    }
    true
}

/// A span of the program's memory.
pub struct Own {
    pub base: u64,
    pub len: u64,
}

impl Own {
    fn fault(&self, offset: u64, len: u64) -> DmaFault {
        DmaFault {
            offset,
            len,
            limit: self.len,
        }
    }

    #[inline]
    fn at(&self, offset: u64, len: u64, align: u64) -> Result<u64, DmaFault> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let at = self.base.wrapping_add(offset);
        if fits && at & (align - 1) == 0 {
            Ok(at)
        } else {
            Err(self.fault(offset, len))
        }
    }

    /// The bytes of an aligned word.
    #[inline]
    fn load<const N: usize>(&self, offset: u64) -> Result<[u8; N], DmaFault> {
        let len = N as u64;
        let at = self.at(offset, len, len)?;
        let mut bytes = [0; N];
        read(at, &mut bytes).map_err(|_| self.fault(offset, len))?;
        Ok(bytes)
    }

    /// Changes an aligned word: by `guarded`, or by a read and a write of the kernel.
    fn word(
        &self,
        offset: u64,
        guarded: impl FnOnce(u64) -> Outcome,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<u64, DmaFault> {
        let at = self.at(offset, 8, 8)?;
        let fault = |_| self.fault(offset, 8);
        if !kernel_copies() {
            return guarded(at).get().map_err(fault);
        }
        let mut bytes = [0; 8];
        read(at, &mut bytes).map_err(fault)?;
        let was = u64::from_ne_bytes(bytes);
        if let Some(new) = change(was) {
            write(at, &new.to_ne_bytes()).map_err(fault)?;
        }
        Ok(was)
    }
}

impl Dma for Own {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let len = into.len() as u64;
        let at = self.at(offset, len, 1)?;
        read(at, into).map_err(|_| self.fault(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        let len = from.len() as u64;
        let at = self.at(offset, len, 1)?;
        write(at, from).map_err(|_| self.fault(offset, len))
    }

    // Loads acquire and stores release: on this architecture every load and store does, and the
    // routines are calls that the compiler moves nothing across.
    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        self.load(offset).map(u32::from_ne_bytes)
    }

    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        self.load(offset).map(u64::from_ne_bytes)
    }

    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        let at = self.at(offset, 4, 4)?;
        write(at, &value.to_ne_bytes()).map_err(|_| self.fault(offset, 4))
    }

    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        // SAFETY: guarded; a word of the program's that it registered for the NIC.
        let swap = |at| unsafe { vmlx5_guard_swap64(at, value) };
        self.word(offset, swap, |_| Some(value))
    }

    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        // SAFETY: as in `swap64`.
        let swap = |at| unsafe { vmlx5_guard_compare_swap64(at, current, new) };
        self.word(offset, swap, |was| (was == current).then_some(new))
    }

    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        // SAFETY: as in `swap64`.
        let increase = |at| unsafe { vmlx5_guard_fetch_add64(at, add) };
        self.word(offset, increase, |was| Some(was.wrapping_add(add)))
    }
}

/// The errno of features without a fall-back.
pub fn missing() -> i32 {
    sys::fail(libc::ENOSYS) as i32
}
