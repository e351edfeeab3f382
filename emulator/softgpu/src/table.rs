//! The addresses that operations may use: the live allocations and registrations of a GPU, and the
//! engine's addresses of their bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::DevAddr;
use crate::backing::Backing;

/// The live memory of a GPU, sorted by address; ranges do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Table {
    live: RwLock<Vec<Arc<Backing>>>,
    /// The number of removals. Written under the write lock. A [`Cache`] filled under an older
    /// value is stale. Its owner reads this (acquire) under the producer lock of its stream, and a
    /// thread that removes memory takes that lock after the removal. Therefore either the operation
    /// that used a stale hit is counted as enqueued before the free, or the new value is observed.
    epoch: AtomicU64,
}

/// The location of the bytes of a live range.
#[derive(Clone, Copy, Debug)]
struct Hit {
    base: u64,
    len: usize,
    ptr: *mut u8,
}

impl Hit {
    const NONE: Hit = Hit {
        base: 0,
        len: 0,
        ptr: std::ptr::null_mut(),
    };

    fn of(b: &Backing) -> Hit {
        Hit {
            base: b.addr().raw(),
            len: b.span().len(),
            ptr: b.span().ptr(),
        }
    }

    /// The bytes at `addr`; `None` if `len` bytes, at least one, are not within this range.
    #[inline]
    fn at(&self, addr: u64, len: usize) -> Option<*mut u8> {
        let offset = addr.wrapping_sub(self.base);
        if offset < self.len as u64 && len <= self.len - offset as usize {
            Some(self.ptr.wrapping_add(offset as usize))
        } else {
            None
        }
    }
}

impl Table {
    /// Adds memory. Returns `false` if part of the range is present already.
    pub(crate) fn insert(&self, backing: Arc<Backing>) -> bool {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let new = Hit::of(&backing);
        let i = live.partition_point(|b| b.addr() < backing.addr());
        let free_below = i == 0 || {
            let below = Hit::of(&live[i - 1]);
            below.base + below.len as u64 <= new.base
        };
        let free_above = live
            .get(i)
            .is_none_or(|b| new.base + new.len as u64 <= b.addr().raw());
        if free_below && free_above {
            live.insert(i, backing);
        }
        free_below && free_above
    }

    /// Removes the memory at `addr`.
    pub(crate) fn remove(&self, addr: DevAddr) {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if let Ok(i) = live.binary_search_by_key(&addr, |b| b.addr()) {
            live.remove(i);
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// The engine's address of `len` bytes that kernels address by `addr`.
    pub(crate) fn alias(&self, addr: u64, len: usize) -> Option<*mut u8> {
        self.find(addr).0.at(addr, len)
    }

    /// The live memory that contains `len` bytes at `addr`, and the engine's address of them.
    pub(crate) fn hold(&self, addr: DevAddr, len: usize) -> Option<(Arc<Backing>, *mut u8)> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let i = live.partition_point(|b| b.addr() <= addr);
        let memory = &live[i.checked_sub(1)?];
        let ptr = Hit::of(memory).at(addr.raw(), len)?;
        Some((Arc::clone(memory), ptr))
    }

    /// The range that may contain `addr`, and the epoch of the look-up.
    fn find(&self, addr: u64) -> (Hit, u64) {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let i = live.partition_point(|b| b.addr().raw() <= addr);
        let hit = if i == 0 {
            Hit::NONE
        } else {
            Hit::of(&live[i - 1])
        };
        (hit, self.epoch.load(Ordering::Relaxed))
    }
}

/// A stream's last hits: sends use the same doorbell record, doorbell and completion queue again
/// and again.
#[derive(Debug)]
pub(crate) struct Cache {
    epoch: u64,
    hits: [Hit; 4],
    oldest: usize,
}

// SAFETY: the pointers are only returned, together with the promise of `Table::epoch`.
unsafe impl Send for Cache {}

impl Cache {
    pub(crate) fn new() -> Cache {
        Cache {
            epoch: 0,
            hits: [Hit::NONE; 4],
            oldest: 0,
        }
    }

    /// The engine's address of `len` bytes (at least one) at `addr`; `None` if they are not within
    /// one live range. The caller must hold the stream's producer lock.
    #[inline]
    pub(crate) fn alias(&mut self, table: &Table, addr: DevAddr, len: usize) -> Option<*mut u8> {
        if table.epoch.load(Ordering::Acquire) == self.epoch {
            for hit in &self.hits {
                if let Some(ptr) = hit.at(addr.raw(), len) {
                    return Some(ptr);
                }
            }
        }
        self.look_up(table, addr, len)
    }

    #[cold]
    fn look_up(&mut self, table: &Table, addr: DevAddr, len: usize) -> Option<*mut u8> {
        let (hit, epoch) = table.find(addr.raw());
        if epoch != self.epoch {
            self.hits = [Hit::NONE; 4];
            self.epoch = epoch;
        }
        let ptr = hit.at(addr.raw(), len)?;
        self.hits[self.oldest] = hit;
        self.oldest = (self.oldest + 1) % self.hits.len();
        Some(ptr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_must_be_within_one_live_range() {
        let table = Table::default();
        let mut cache = Cache::new();
        let a = Arc::new(Backing::pinned(100, &crate::budget::Budget::new(1 << 20)).unwrap());
        let addr = a.addr();
        assert!(table.insert(Arc::clone(&a)));
        assert!(!table.insert(Arc::clone(&a)), "twice the same range");
        for _ in 0..2 {
            assert_eq!(cache.alias(&table, addr, 100), Some(a.span().ptr()));
            assert_eq!(
                cache.alias(&table, addr + 99, 1),
                Some(a.span().ptr().wrapping_add(99))
            );
            assert_eq!(cache.alias(&table, addr + 99, 2), None);
            assert_eq!(cache.alias(&table, addr + 100, 1), None);
            assert_eq!(cache.alias(&table, addr + u64::MAX, 1), None);
            assert_eq!(cache.alias(&table, DevAddr::default(), usize::MAX), None);
        }
        table.remove(addr);
        assert_eq!(cache.alias(&table, addr, 1), None);
        assert!(table.insert(a));
        assert!(cache.alias(&table, addr, 1).is_some());
    }

    #[test]
    fn overlaps_are_refused_and_neighbours_accepted() {
        let table = Table::default();
        let mut mem = [0_u64; 8];
        let ptr: *mut u8 = mem.as_mut_ptr().cast();
        let part = |from: usize, len| {
            // SAFETY: inside `mem`, which outlives the table's use of it.
            Arc::new(unsafe { Backing::registered(ptr.wrapping_add(from), len, None) }.unwrap())
        };
        assert!(table.insert(part(16, 16)));
        assert!(!table.insert(part(8, 9)));
        assert!(!table.insert(part(31, 9)));
        assert!(!table.insert(part(0, 64)));
        assert!(!table.insert(part(20, 4)));
        assert!(table.insert(part(8, 8)));
        assert!(table.insert(part(32, 8)));
    }
}
