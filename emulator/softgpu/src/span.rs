//! Memory that other threads write at any time. Every access is atomic, word by word, so that a
//! race only returns an early or a late value.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::Fault;

/// A range of shared memory. The holder of a span also holds the object that keeps the memory
/// mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a span only grants atomic accesses; its holder keeps the memory mapped.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    /// They stay readable and writable as long as the span or a copy of it is used, and no plain
    /// reference into them exists during that time.
    pub(crate) unsafe fn new(ptr: *mut u8, len: usize) -> Span {
        Span { ptr, len }
    }

    pub(crate) fn ptr(self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The address of `len` bytes at `offset`; `None` if they are not within the span.
    #[inline]
    pub(crate) fn at(self, offset: u64, len: usize) -> Result<*mut u8, Fault> {
        let limit = self.len;
        match usize::try_from(offset) {
            Ok(o) if o <= limit && len <= limit - o => Ok(self.ptr.wrapping_add(o)),
            _ => Err(Fault {
                offset,
                len,
                limit,
                misaligned: false,
            }),
        }
    }

    /// The same for a word of `len` bytes, which must also be aligned.
    #[inline]
    fn word(self, offset: u64, len: usize) -> Result<*mut u8, Fault> {
        let ptr = self.at(offset, len)?;
        if ptr.addr().is_multiple_of(len) {
            Ok(ptr)
        } else {
            Err(Fault {
                offset,
                len,
                limit: self.len,
                misaligned: true,
            })
        }
    }

    /// The four-byte word at `offset`.
    #[inline]
    pub(crate) fn word32(&self, offset: u64) -> Result<&AtomicU32, Fault> {
        let ptr = self.word(offset, 4)?;
        // SAFETY: in bounds and aligned; mapped and only accessed atomically (see `new`).
        Ok(unsafe { AtomicU32::from_ptr(ptr.cast()) })
    }

    /// The eight-byte word at `offset`.
    #[inline]
    pub(crate) fn word64(&self, offset: u64) -> Result<&AtomicU64, Fault> {
        let ptr = self.word(offset, 8)?;
        // SAFETY: in bounds and aligned; mapped and only accessed atomically (see `new`).
        Ok(unsafe { AtomicU64::from_ptr(ptr.cast()) })
    }

    /// Copies `data` to `offset`.
    pub(crate) fn write(self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        let dst = self.at(offset, data.len())?;
        // SAFETY: both ranges are valid; the source is the caller's own.
        unsafe { copy(dst, data.as_ptr(), data.len()) };
        Ok(())
    }

    /// Copies from `offset` into `data`.
    pub(crate) fn read(self, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        let src = self.at(offset, data.len())?;
        // SAFETY: both ranges are valid; the destination is the caller's own.
        unsafe { copy(data.as_mut_ptr(), src, data.len()) };
        Ok(())
    }
}

/// Loads a word, of 64 bits if it is `wide`, else of 32, with acquire ordering.
///
/// # Safety
/// It is aligned, mapped, and accessed by others only atomically.
#[inline]
pub(crate) unsafe fn load(ptr: *const u8, wide: bool) -> u64 {
    let ptr = ptr.cast_mut();
    if wide {
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(ptr.cast()) }.load(Ordering::Acquire)
    } else {
        // SAFETY: the caller's promise.
        let word = unsafe { AtomicU32::from_ptr(ptr.cast()) }.load(Ordering::Acquire);
        word.into()
    }
}

/// Stores a word, or the lower half of `value` as one.
///
/// # Safety
/// As for [`load`].
#[inline]
pub(crate) unsafe fn store(ptr: *mut u8, value: u64, wide: bool, order: Ordering) {
    if wide {
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(ptr.cast()) }.store(value, order);
    } else {
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(ptr.cast()) }.store(value as u32, order);
    }
}

/// Copies `len` bytes in ascending order by relaxed atomic accesses, eight bytes at a time
/// where the addresses allow.
///
/// # Safety
/// Both ranges are mapped, do not overlap, and are accessed by others only atomically.
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let src = src.cast_mut();
    // Words need the same alignment of both addresses; then at most seven bytes come first.
    let head = if (dst.addr() ^ src.addr()) & 7 == 0 {
        dst.addr().wrapping_neg() & 7
    } else {
        len
    };
    let head = head.min(len);
    let words = (len - head) / 8;
    // SAFETY (of the three blocks): the caller vouches for the ranges, `i` stays within them, and
    // eight-byte accesses are aligned from `head` on.
    for i in 0..head {
        // SAFETY: see above.
        unsafe { copy8(dst.add(i), src.add(i)) };
    }
    for i in 0..words {
        let at = head + 8 * i;
        // SAFETY: see above.
        unsafe {
            let v = AtomicU64::from_ptr(src.add(at).cast()).load(Ordering::Relaxed);
            AtomicU64::from_ptr(dst.add(at).cast()).store(v, Ordering::Relaxed);
        }
    }
    for i in head + 8 * words..len {
        // SAFETY: see above.
        unsafe { copy8(dst.add(i), src.add(i)) };
    }
}

/// # Safety
/// As for [`copy`], one byte.
unsafe fn copy8(dst: *mut u8, src: *mut u8) {
    // SAFETY: the caller vouches for both bytes.
    unsafe {
        let v = AtomicU8::from_ptr(src).load(Ordering::Relaxed);
        AtomicU8::from_ptr(dst).store(v, Ordering::Relaxed);
    }
}

/// Sets `len` bytes by relaxed atomic accesses.
///
/// # Safety
/// The range is mapped and accessed by others only atomically.
pub(crate) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    let head = (dst.addr().wrapping_neg() & 7).min(len);
    let words = (len - head) / 8;
    let word = u64::from_ne_bytes([byte; 8]);
    for i in (0..head).chain(head + 8 * words..len) {
        // SAFETY: `i` is within the caller's range.
        unsafe { AtomicU8::from_ptr(dst.add(i)) }.store(byte, Ordering::Relaxed);
    }
    for i in 0..words {
        // SAFETY: in the caller's range, aligned from `head` on.
        unsafe { AtomicU64::from_ptr(dst.add(head + 8 * i).cast()) }.store(word, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exactly_the_range_at_any_alignment() {
        let src: Vec<u8> = (0..64).map(|i| i as u8 + 1).collect();
        for d in 0..9 {
            for s in 0..9 {
                for len in 0..40 {
                    let mut dst = vec![0_u8; 64];
                    // SAFETY: both ranges are within vectors of this test.
                    unsafe { copy(dst.as_mut_ptr().add(d), src.as_ptr().add(s), len) };
                    assert_eq!(&dst[d..d + len], &src[s..s + len]);
                    assert!(dst[..d].iter().chain(&dst[d + len..]).all(|&b| b == 0));
                    // SAFETY: as above.
                    unsafe { fill(dst.as_mut_ptr().add(d), 7, len) };
                    assert!(dst[d..d + len].iter().all(|&b| b == 7));
                    assert!(dst[..d].iter().chain(&dst[d + len..]).all(|&b| b == 0));
                }
            }
        }
    }

    #[test]
    fn bounds_and_alignment() {
        let mut mem = [0_u64; 2];
        // SAFETY: `mem` outlives the span.
        let span = unsafe { Span::new(mem.as_mut_ptr().cast(), 16) };
        assert!(span.word32(12).is_ok());
        assert!(!span.word32(16).unwrap_err().misaligned);
        assert!(span.word32(2).unwrap_err().misaligned);
        assert!(span.word64(4).unwrap_err().misaligned);
        assert!(span.word64(u64::MAX).is_err());
        assert!(span.write(16, &[]).is_ok());
        assert!(span.write(9, &[0; 8]).is_err());
    }
}
