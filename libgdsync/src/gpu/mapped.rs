//! The CPU's view of memory shared with devices. Access is word by word, never by reference.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use gds_step::bytes;

use crate::ring::RingMemory;

/// A span of memory that devices read and write at any time.
///
/// All access is atomic by word (or half words and bytes at unaligned ends), so that a concurrent
/// store of a device is not a data race of the language. Long copies ([`bytes::copy`]) are not atomic.
/// An offset outside the span is a bug of the caller and panics, as with slices.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    len: usize,
    /// Whether the processor may combine stores until a fence.
    combining: bool,
}

/// Orders all earlier stores, also write-combined ones, before all later stores, and flushes the
/// earlier ones.
#[inline]
fn store_fence() {
    // SAFETY: SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}

// SAFETY: all access is atomic; the constructor's contract keeps the memory alive.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// # Safety
    /// `base` is valid for reads and writes of `len` bytes as long as this value or a copy or part
    /// of it is used, and all access in this process is atomic.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Mapped {
        Mapped {
            base,
            len,
            combining: false,
        }
    }

    /// As [`Mapped::new`], for write-combining memory: GPU memory, which the CPU accesses over the
    /// bus. Each store has a fence before it, as a release store needs, and one after it, which
    /// flushes it.
    ///
    /// # Safety
    /// As [`Mapped::new`].
    pub unsafe fn write_combining(base: NonNull<u8>, len: usize) -> Mapped {
        Mapped {
            base,
            len,
            combining: true,
        }
    }

    /// Fences write-combining memory: there a release store alone is neither ordered nor sent out
    /// at once.
    #[inline]
    fn settle(&self) {
        if self.combining {
            store_fence();
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The start address, for calls that take addresses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The part of `len` bytes from `offset`.
    pub fn part(&self, offset: usize, len: usize) -> Mapped {
        self.check(offset, len, 1);
        Mapped {
            // SAFETY: inside the span, as checked.
            base: unsafe { self.base.add(offset) },
            len,
            combining: self.combining,
        }
    }

    #[inline]
    fn check(&self, offset: usize, len: usize, align: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len)
                && (self.base.as_ptr() as usize + offset).is_multiple_of(align),
            "{len} bytes at {offset} of {}",
            self.len
        );
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        self.check(offset, 4, 4);
        // SAFETY: inside the span and aligned, as checked; the span is only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8, 8);
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    pub fn load64(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Acquire)
    }

    pub fn store64(&self, offset: usize, value: u64) {
        self.settle();
        self.word64(offset).store(value, Ordering::Release);
        self.settle();
    }

    /// As [`Mapped::store64`], for a caller that has fenced all earlier stores.
    pub fn store64_fenced(&self, offset: usize, value: u64) {
        self.word64(offset).store(value, Ordering::Release);
        self.settle();
    }

    /// Stores `value` and returns the previous one.
    #[cfg(feature = "emulated")]
    pub fn swap64(&self, offset: usize, value: u64) -> u64 {
        self.word64(offset).swap(value, Ordering::AcqRel)
    }

    /// Stores `new` if the value is `current`; returns the previous value.
    pub fn compare_swap64(&self, offset: usize, current: u64, new: u64) -> u64 {
        let word = self.word64(offset);
        match word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        }
    }

    /// Adds, wrapping; returns the previous value.
    pub fn fetch_add64(&self, offset: usize, add: u64) -> u64 {
        self.word64(offset).fetch_add(add, Ordering::AcqRel)
    }

    /// Copies bytes out. Each largest aligned word is atomic, the copy as a whole is not.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len(), 1);
        // SAFETY: inside the span, as checked; the span is only accessed atomically.
        unsafe { bytes::copy_out(self.base.add(offset), into) };
        fence(Ordering::Acquire);
    }

    /// Copies bytes in, from low addresses to high ones. Each largest aligned word is atomic, the
    /// copy as a whole is not.
    pub fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len(), 1);
        fence(Ordering::Release);
        // SAFETY: as in `read`.
        unsafe { bytes::copy_in(self.base.add(offset), from) };
        self.settle();
    }
}

impl Mapped {
    /// Copies `len` bytes from `source`, in any order. A long copy is not atomic by words: it must not contain
    /// words for which a thread or a device waits.
    pub fn copy_from(&self, offset: usize, source: &Mapped, from: usize, len: usize) {
        self.check(offset, len, 1);
        source.check(from, len, 1);
        fence(Ordering::Release);
        let copy = match self.combining || source.combining {
            true => bytes::copy_words,
            false => bytes::copy,
        };
        // SAFETY: inside both spans, as checked, which are only accessed atomically.
        unsafe { copy(source.base.add(from), self.base.add(offset), len) };
        fence(Ordering::Acquire);
        self.settle();
    }
}

impl RingMemory for Mapped {
    #[inline]
    fn store_segment(&self, offset: usize, segment: &[u8; 16]) {
        let (low, high) = segment.split_at(8);
        let word = |half: &[u8]| u64::from_ne_bytes(half.try_into().expect("eight bytes"));
        self.word64(offset).store(word(low), Ordering::Relaxed);
        self.word64(offset + 8).store(word(high), Ordering::Relaxed);
        self.settle();
    }

    fn load_segment(&self, offset: usize) -> [u8; 16] {
        let mut segment = [0; 16];
        let (low, high) = segment.split_at_mut(8);
        low.copy_from_slice(&self.word64(offset).load(Ordering::Relaxed).to_ne_bytes());
        high.copy_from_slice(
            &self
                .word64(offset + 8)
                .load(Ordering::Relaxed)
                .to_ne_bytes(),
        );
        segment
    }

    #[inline]
    fn load32(&self, offset: usize) -> u32 {
        // Pairs with the release store of the writer that publishes the word: a NIC's CQE or a
        // stream's mark.
        self.word32(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn store32(&self, offset: usize, value: u32) {
        self.settle();
        self.word32(offset).store(value, Ordering::Release);
        self.settle();
    }
}
