//! The memory in use: hostile bytes must not cause allocations larger than they are.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count of allocated bytes.
struct Counted;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and their maximum since [`bounded`]
    /// began. The test harness allocates on its own threads in the meantime.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

#[global_allocator]
static COUNTED: Counted = Counted;

// SAFETY: the system's allocator does all the work; counting allocates no memory.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `act`, which must at no time use more than `most` additional bytes.
pub fn bounded<T>(most: usize, act: impl FnOnce() -> T) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let result = act();
    let used = (PEAK.get() - before) as usize;
    assert!(used <= most, "{used} bytes in use, {most} at most");
    result
}
