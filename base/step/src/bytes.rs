//! Copies of bytes in memory that other threads and devices access at any time. They copy in
//! ascending order by the largest aligned words, each word in one access. Accesses are relaxed:
//! other words provide the order. [`copy`] of long memory does not keep these two rules.

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

/// Bytes from which the processor's copy instruction is used: it is faster than words, but begins later.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG: usize = 2048;

/// Copies by the processor's copy instruction, in any order. The compiler does not see these accesses, as it
/// does not see those of a device. Other processors find its stores before those that follow it in the program
/// (Intel SDM, "Fast-String Operation and Out-of-Order Stores").
///
/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_long(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear, and `rep movsb` changes these registers alone.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") to.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies between shared memory that does not overlap. A processor with a fast copy instruction (ERMSB) copies long
/// memory in any order and not by words, but before all later stores.
///
/// # Safety
/// The `len` bytes at `from` and at `to` are live, and other threads access them only atomically.
pub unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= LONG && is_x86_feature_detected!("ermsb") {
        // SAFETY: as for the caller.
        return unsafe { copy_long(from, to, len) };
    }
    // SAFETY: as for the caller.
    unsafe { copy_words(from, to, len) }
}

/// As [`copy`], by words whatever the length: for memory behind a bus, which the copy instruction would
/// access byte by byte.
///
/// # Safety
/// As [`copy`].
pub unsafe fn copy_words(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    /// Bytes of the buffer between memory of different alignment.
    const PIECE: usize = 4096;
    if (from.addr().get() ^ to.addr().get()).is_multiple_of(8) {
        // SAFETY: each word is within the caller's bytes, aligned to its size in both.
        return words(to, len, |i, size| unsafe {
            let (from, to) = (from.as_ptr().add(i), to.as_ptr().add(i));
            match size {
                8 => AtomicU64::from_ptr(to.cast())
                    .store(AtomicU64::from_ptr(from.cast()).load(Relaxed), Relaxed),
                4 => AtomicU32::from_ptr(to.cast())
                    .store(AtomicU32::from_ptr(from.cast()).load(Relaxed), Relaxed),
                2 => AtomicU16::from_ptr(to.cast())
                    .store(AtomicU16::from_ptr(from.cast()).load(Relaxed), Relaxed),
                _ => AtomicU8::from_ptr(to).store(AtomicU8::from_ptr(from).load(Relaxed), Relaxed),
            }
        });
    }
    let mut piece = [0; PIECE];
    for at in (0..len).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(len - at)];
        // SAFETY: within the caller's bytes.
        unsafe {
            copy_out(from.add(at), piece);
            copy_in(to.add(at), piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_alignment_and_length_change_their_bytes_alone() {
        const ROOM: usize = 10_000;
        let source: Vec<u8> = (0..ROOM).map(|i| (i % 251) as u8 | 1).collect();
        for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
            let lens = (0..40).chain([2047, 2048, 4095, 4096, 4097, 9000]);
            let both = [copy, copy_words as unsafe fn(_, _, _)];
            for (len, copy) in lens.flat_map(|len| both.map(|copy| (len, copy))) {
                let (mut shared, mut into) = (source.clone(), vec![0; ROOM]);
                let at = |bytes: &mut Vec<u8>, i| NonNull::from(&mut bytes[i..]).cast::<u8>();
                // SAFETY: the bytes are inside the vectors, which this thread alone accesses.
                unsafe { copy(at(&mut shared, from), at(&mut into, to), len) };
                let right = &source[from..from + len];
                assert_eq!(&into[to..to + len], right, "{len} bytes, {from} to {to}");
                let rest = into[..to].iter().chain(&into[to + len..]);
                assert!(rest.copied().all(|b| b == 0), "{len} bytes, {from} to {to}");
            }
        }
    }
}
