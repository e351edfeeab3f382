//! The program's allocator: the system's, with a count of allocations, so that a benchmark can
//! show that a path makes none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations and reallocations of the whole process so far. Relaxed: a count, it orders
/// nothing; readers compare two looks from one thread, whose own allocations are always seen.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting.
pub struct Counting;

/// Allocations made by any thread of the process so far.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

// SAFETY: every call is handed on to `System` unchanged, which keeps the contract; counting
// touches nothing that an allocation has to do with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
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
}
