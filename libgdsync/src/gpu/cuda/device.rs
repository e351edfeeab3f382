//! Device memory of our own: physical memory mapped to addresses, of no context.
//!
//! Memory that a context allocates (`cuMemAlloc`) ties the two contexts together: while a copy of
//! it that the application enqueued stands behind a wait, freeing and allocating in our own
//! context stand too, holding a lock that every copy needs. Mapped memory belongs to no context
//! and has no such tie. It comes in units of the driver's, 2 MiB as a rule, so small pieces share
//! one, by whole pages, which is what other drivers and processes are given.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gds_step::Mutex;

use super::context::Context;
use super::share::{self, Mapping};
use crate::error::{Error, Kind, Result};

/// What pieces are multiples of.
const PAGE: usize = 4096;

/// The units that pieces are cut from.
#[derive(Default)]
pub(crate) struct DevicePool(Mutex<Vec<Arc<Unit>>>);

/// One unit, and what of it is free: offset and length.
pub(crate) struct Unit {
    mapping: Mapping,
    /// Whether it is of the smallest size, which pieces are cut from; larger ones are one
    /// allocation's alone.
    cut: bool,
    room: Mutex<Room>,
    /// Set once all of it was shared with another process: no piece of it is allocated again.
    /// Written and read under the pool's lock, or before the unit is given back; relaxed, because
    /// it orders nothing.
    shared: AtomicBool,
}

/// The parts of a unit that no allocation has.
struct Room {
    /// Length of each free part, by offset.
    free: BTreeMap<usize, usize>,
    /// Bytes that are not allocated again: they were exported, so others may have access.
    spent: usize,
}

impl Room {
    /// Whether no piece of a unit of `len` bytes is in use.
    fn is_all(&self, len: usize) -> bool {
        self.free.values().sum::<usize>() + self.spent == len
    }
}

/// A piece of a unit, or all of it.
pub(crate) struct Piece {
    unit: Arc<Unit>,
    offset: usize,
    len: usize,
    /// Set once it was exported to others, which may keep their access. Relaxed: the thread that
    /// gives the piece back owns it.
    exported: AtomicBool,
}

impl Piece {
    pub fn at(&self) -> u64 {
        self.unit.mapping.at + self.offset as u64
    }

    /// The mapping that it lies in, and where, to be shared: no other piece will be cut from it.
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

    /// Whether pieces may be cut from it.
    fn is_open(&self) -> bool {
        self.cut && !self.shared.load(Ordering::Relaxed)
    }

    /// Whether no piece of it is in use.
    fn is_unused(&self) -> bool {
        self.room.lock().is_all(self.mapping.len)
    }

    /// `offset` and `len` of it as a piece.
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

    /// Takes a piece back, to be given out again unless it was exported; returns whether no other
    /// is in use.
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
    /// `len` bytes or some more, of any content.
    pub fn take(&self, context: &Context, len: usize) -> Result<Piece> {
        let wanted = len.checked_next_multiple_of(PAGE).ok_or_else(|| {
            Error::new(
                "allocate device memory",
                Kind::Invalid,
                format!("{len} bytes"),
            )
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

    /// Takes a piece back. Units that are free as a whole are unmapped, but for one of those
    /// that small pieces are cut from.
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
            // All of a unit that is kept can be allocated again.
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
    fn pieces_are_cut_and_joined_again() {
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
                assert!(held.iter().all(apart), "nothing is given twice");
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
