//! Device memory of the library: physical memory mapped to addresses, which belongs to no context.
//!
//! Memory of a context (`cuMemAlloc`) couples the two contexts: while an application's copy of it
//! is queued behind a wait, allocations and frees in the library's context block too, and hold a
//! lock that every copy needs. Mapped memory belongs to no context and has no coupling. The driver
//! allocates it in units, usually of 2 MiB, so small pieces share a unit. A piece consists of whole
//! pages, because other drivers and processes get access by page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gds_step::Mutex;

use super::context::Context;
use super::share::{self, Mapping};
use crate::error::{Error, Kind, Result};

/// The size of every piece is a multiple of this, in bytes.
const PAGE: usize = 4096;

/// The units that pieces are allocated from.
#[derive(Default)]
pub(crate) struct DevicePool(Mutex<Vec<Arc<Unit>>>);

/// One unit of physical memory, with its free parts.
pub(crate) struct Unit {
    mapping: Mapping,
    /// Whether the unit has the smallest size and may hold several pieces; a larger unit holds one
    /// allocation.
    cut: bool,
    room: Mutex<Room>,
    /// Set once the whole unit was shared with another process: no piece of it is allocated again.
    /// Written and read under the pool's lock, or before the unit is released; relaxed, because it
    /// orders nothing.
    shared: AtomicBool,
}

/// The parts of a unit that are not allocated.
struct Room {
    /// Length of each free part in bytes, by offset.
    free: BTreeMap<usize, usize>,
    /// Bytes that are never allocated again: they were exported, so others may have access.
    spent: usize,
}

impl Room {
    /// Whether no piece of a unit of `len` bytes is in use.
    fn is_all(&self, len: usize) -> bool {
        self.free.values().sum::<usize>() + self.spent == len
    }
}

/// A piece of a unit, or a whole unit.
pub(crate) struct Piece {
    unit: Arc<Unit>,
    offset: usize,
    len: usize,
    /// Set once the piece was exported: other parties may keep their access. Relaxed: the thread
    /// that releases the piece owns it.
    exported: AtomicBool,
}

impl Piece {
    pub fn at(&self) -> u64 {
        self.unit.mapping.at + self.offset as u64
    }

    /// The mapping that contains the piece, and the offset there, for sharing. No other piece is
    /// allocated from this unit any more.
    pub fn share(&self) -> (&Mapping, usize) {
        self.unit.shared.store(true, Ordering::Relaxed);
        (&self.unit.mapping, self.offset)
    }

    /// Marks the piece as exported: its pages are not allocated again.
    pub fn export(&self) {
        self.exported.store(true, Ordering::Relaxed);
    }
}

impl Unit {
    fn new(mapping: Mapping, cut: bool) -> Unit {
        let free = BTreeMap::from([(0, mapping.len)]);
        Unit {
            mapping,
            cut,
            room: Mutex::new(Room { free, spent: 0 }),
            shared: AtomicBool::new(false),
        }
    }

    /// Whether pieces may be allocated from the unit.
    fn is_open(&self) -> bool {
        self.cut && !self.shared.load(Ordering::Relaxed)
    }

    /// Whether no piece of the unit is in use.
    fn is_unused(&self) -> bool {
        self.room.lock().is_all(self.mapping.len)
    }

    /// The `len` bytes at `offset` of the unit, as a piece.
    fn piece(self: &Arc<Unit>, offset: usize, len: usize) -> Piece {
        Piece {
            unit: Arc::clone(self),
            offset,
            len,
            exported: AtomicBool::new(false),
        }
    }

    fn take(&self, len: usize) -> Option<usize> {
        let free = &mut self.room.lock().free;
        let (offset, left) = free
            .iter()
            .find(|(_, left)| **left >= len)
            .map(|(offset, left)| (*offset, *left))?;
        free.remove(&offset);
        if left > len {
            free.insert(offset + len, left - len);
        }
        Some(offset)
    }

    /// Releases a piece, which can be allocated again unless it was exported; returns whether no
    /// other piece is in use.
    fn give(&self, mut offset: usize, mut len: usize, exported: bool) -> bool {
        let mut room = self.room.lock();
        if exported {
            room.spent += len;
            return room.is_all(self.mapping.len);
        }
        let free = &mut room.free;
        if let Some(after) = free.remove(&(offset + len)) {
            len += after;
        }
        let before = free.range(..offset).next_back();
        if let Some((start, before)) = before.map(|(start, len)| (*start, *len))
            && start + before == offset
        {
            free.remove(&start);
            (offset, len) = (start, before + len);
        }
        free.insert(offset, len);
        room.is_all(self.mapping.len)
    }
}

impl DevicePool {
    /// Allocates at least `len` bytes, with undefined content.
    pub fn take(&self, context: &Context, len: usize) -> Result<Piece> {
        let wanted = len.checked_next_multiple_of(PAGE).ok_or_else(|| {
            let what = format!("{len} bytes exceed the address space");
            Error::new("allocate device memory", Kind::Invalid, what)
        })?;
        let mut units = self.0.lock();
        for unit in units.iter().filter(|unit| unit.is_open()) {
            if let Some(offset) = unit.take(wanted) {
                return Ok(unit.piece(offset, wanted));
            }
        }
        let granule = share::granule(context)?;
        let mapping = share::physical(context, len)?;
        let cut = mapping.len == granule;
        let unit = Arc::new(Unit::new(mapping, cut));
        let offset = unit.take(wanted).unwrap_or(0);
        units.push(Arc::clone(&unit));
        Ok(unit.piece(offset, wanted))
    }

    /// Releases a piece. Units that are free as a whole are unmapped, except one unit for small
    /// pieces.
    pub fn give(&self, context: &Context, piece: Piece) {
        let mut units = self.0.lock();
        let exported = piece.exported.load(Ordering::Relaxed);
        if !piece.unit.give(piece.offset, piece.len, exported) {
            return;
        }
        let mut kept = false;
        units.retain(|unit| {
            if !unit.is_unused() {
                return true;
            }
            // Every byte of a unit that is kept can be allocated again.
            let keep = unit.is_open() && unit.room.lock().spent == 0 && !kept;
            kept |= keep;
            if !keep {
                share::unmap(context.cuda, &unit.mapping);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pieces_are_merged_and_reused() {
        let unit = Unit::new(
            Mapping {
                at: 1 << 30,
                len: 16 * PAGE,
                handle: 0,
            },
            true,
        );
        let pieces: Vec<usize> = (1..=5).map(|n| unit.take(n * PAGE).unwrap()).collect();
        assert_eq!(pieces, [0, 1, 3, 6, 10].map(|page| page * PAGE));
        assert_eq!(unit.take(2 * PAGE), None);
        assert_eq!(unit.take(PAGE), Some(15 * PAGE));
        let mut rng = fastrand::Rng::with_seed(7);
        let mut held: Vec<(usize, usize)> = pieces.iter().map(|at| *at / PAGE).zip(1..).collect();
        held.push((15, 1));
        for _ in 0..10_000 {
            if rng.bool() && !held.is_empty() {
                let (at, pages) = held.swap_remove(rng.usize(..held.len()));
                assert_eq!(unit.give(at * PAGE, pages * PAGE, false), held.is_empty());
            } else {
                let pages = rng.usize(1..6);
                let Some(at) = unit.take(pages * PAGE) else {
                    continue;
                };
                let at = at / PAGE;
                assert!(at + pages <= 16);
                let apart = |&(other, n): &(usize, usize)| at + pages <= other || other + n <= at;
                assert!(held.iter().all(apart), "two pieces overlap");
                held.push((at, pages));
            }
        }
        for (at, pages) in held.drain(..) {
            unit.give(at * PAGE, pages * PAGE, false);
        }
        assert_eq!(unit.room.lock().free, BTreeMap::from([(0, 16 * PAGE)]));
        // An exported piece is not allocated again, and does not keep the unit in use.
        let (first, second) = (unit.take(PAGE).unwrap(), unit.take(15 * PAGE).unwrap());
        assert!(!unit.give(first, PAGE, true));
        assert_eq!(unit.take(PAGE), None);
        assert!(unit.give(second, 15 * PAGE, false));
        assert_eq!(unit.take(16 * PAGE), None);
    }
}
