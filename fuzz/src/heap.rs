//! How much memory is in use: hostile bytes must not be able to ask for more than they are.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, and what it has given out.
struct Counted;

/// Bytes given out and not given back, and the most of them since [`bounded`] began. Relaxed:
/// only counted, by the one thread that runs a target.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counted = Counted;

// SAFETY: the system's allocator does it all; counting touches no memory of its own.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Does `act`, which may have at most `most` bytes more in use than there were, at any time.
pub fn bounded<T>(most: usize, act: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = act();
    let used = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(used <= most, "{used} bytes in use, {most} at most");
    result
}
