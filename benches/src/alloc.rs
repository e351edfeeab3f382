//! The program's allocator: the system's, with counts of allocations and of the bytes in use. A
//! benchmark shows by them that a path allocates nothing, and that memory does not grow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Allocations and reallocations of the whole process so far. Relaxed: the counter orders nothing;
/// a reader compares two values on one thread, which always sees its own allocations.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Bytes in use. Relaxed, for the same reason; while two threads add to it the value is
/// approximate.
static BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, with counters.
pub struct Counting;

/// Allocations by all threads of the process so far.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Bytes in use now.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed).max(0) as u64
}

fn add(bytes: usize) {
    BYTES.fetch_add(bytes as i64, Ordering::Relaxed);
}

fn subtract(bytes: usize) {
    BYTES.fetch_sub(bytes as i64, Ordering::Relaxed);
}

// SAFETY: every call is passed to `System` unchanged, which keeps the contract; the counters are
// atomics that no allocation uses.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        add(layout.size());
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        add(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        add(size);
        subtract(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_allocation_is_counted() {
        let before = super::count();
        drop(std::hint::black_box(Box::new(1)));
        assert!(super::count() > before);
    }

    #[test]
    fn bytes_in_use_are_known() {
        // Other tests may free memory at the same time.
        const MUCH: usize = 64 << 20;
        let before = super::bytes();
        let much = std::hint::black_box(vec![0_u8; MUCH]);
        assert!(super::bytes() > before + MUCH as u64 / 2);
        drop(much);
        assert!(super::bytes() < before + MUCH as u64 / 2);
    }
}
