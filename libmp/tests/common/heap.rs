//! An allocator that counts live allocations, and a count of open files: resources whose use must
//! not grow with the run time of a program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Live bytes. Relaxed, as the other: only the value counts, it orders nothing.
static BYTES: AtomicI64 = AtomicI64::new(0);
/// Live allocations.
static BLOCKS: AtomicI64 = AtomicI64::new(0);

pub struct Counting;

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as i64, Relaxed);
        BLOCKS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is the one that the allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as i64, Relaxed);
        BLOCKS.fetch_add(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        BYTES.fetch_add(new as i64 - layout.size() as i64, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as i64, Relaxed);
        BLOCKS.fetch_sub(1, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The resources of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub bytes: i64,
    pub blocks: i64,
    pub files: i64,
    /// Mappings: memory of GPUs and queues is not on the heap.
    pub maps: i64,
}

impl Held {
    pub fn now() -> Held {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count() as i64;
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let maps = maps.iter().filter(|byte| **byte == b'\n').count() as i64;
        Held {
            bytes: BYTES.load(Relaxed),
            blocks: BLOCKS.load(Relaxed),
            files,
            maps,
        }
    }

    fn with(self, other: Held, each: fn(i64, i64) -> i64) -> Held {
        Held {
            bytes: each(self.bytes, other.bytes),
            blocks: each(self.blocks, other.blocks),
            files: each(self.files, other.files),
            maps: each(self.maps, other.maps),
        }
    }

    /// The minimum of each.
    pub fn least(self, other: Held) -> Held {
        self.with(other, i64::min)
    }

    /// The growth since `before`.
    pub fn since(self, before: Held) -> Held {
        self.with(before, |now, before| now - before)
    }

    /// Whether no value exceeds `limit`.
    pub fn within(self, limit: Held) -> bool {
        self.least(limit) == self
    }
}

/// The number of repetitions of a test: the variable's value, or else `few`.
pub fn times(variable: &str, few: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} must be a number")),
        Err(_) => few,
    }
}
