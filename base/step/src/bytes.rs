//! Copies of bytes in memory that other threads and devices access at any time. They copy in
//! ascending order by the largest aligned words, each word in one access. Accesses are relaxed:
//! other words provide the order.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Splits `at .. at + len` into aligned words of 8, 4, 2 or 1 bytes, in ascending order: calls
/// `each` with a word's distance from `at` and its size.
#[inline]
fn words(at: NonNull<u8>, len: usize, mut each: impl FnMut(usize, usize)) {
    let mut done = 0;
    while done < len {
        let (aligned, left) = ((at.addr().get() + done).trailing_zeros(), len - done);
        if aligned >= 3 && left >= 8 {
            for word in (done..done + (left & !7)).step_by(8) {
                each(word, 8);
            }
            done += left & !7;
        } else {
            let size = 1 << aligned.min(left.ilog2());
            each(done, size);
            done += size;
        }
    }
}

/// Copies out of shared memory.
///
/// # Safety
/// The `into.len()` bytes at `from` are live, and other threads access them only atomically.
#[inline]
pub unsafe fn copy_out(from: NonNull<u8>, into: &mut [u8]) {
    let to = into.as_mut_ptr();
    // SAFETY: each word is within the caller's bytes, aligned to its size in `from`.
    words(from, into.len(), |i, size| unsafe {
        let (from, to) = (from.as_ptr().add(i), to.add(i));
        match size {
            8 => to
                .cast::<u64>()
                .write_unaligned(AtomicU64::from_ptr(from.cast()).load(Relaxed)),
            4 => to
                .cast::<u32>()
                .write_unaligned(AtomicU32::from_ptr(from.cast()).load(Relaxed)),
            2 => to
                .cast::<u16>()
                .write_unaligned(AtomicU16::from_ptr(from.cast()).load(Relaxed)),
            _ => *to = AtomicU8::from_ptr(from).load(Relaxed),
        }
    });
}

/// Copies into shared memory.
///
/// # Safety
/// The `from.len()` bytes at `to` are live, and other threads access them only atomically.
#[inline]
pub unsafe fn copy_in(to: NonNull<u8>, from: &[u8]) {
    // SAFETY: each word is within the caller's bytes, aligned to its size in `to`.
    words(to, from.len(), |i, size| unsafe {
        let (to, from) = (to.as_ptr().add(i), from.as_ptr().add(i));
        match size {
            8 => AtomicU64::from_ptr(to.cast()).store(from.cast::<u64>().read_unaligned(), Relaxed),
            4 => AtomicU32::from_ptr(to.cast()).store(from.cast::<u32>().read_unaligned(), Relaxed),
            2 => AtomicU16::from_ptr(to.cast()).store(from.cast::<u16>().read_unaligned(), Relaxed),
            _ => AtomicU8::from_ptr(to).store(*from, Relaxed),
        }
    });
}
