//! Device memory of the library: physical memory mapped to addresses, which belongs to no context.
//!
//! Memory of a context (`cuMemAlloc`) couples the two contexts: while an application's copy of it
//! is queued behind a wait, allocations and frees in the library's context block too, and hold a
//! lock that every copy needs. Mapped memory belongs to no context and has no coupling. The driver
//! allocates it in units, usually of 2 MiB, so small pieces share a unit. A piece consists of whole
//! pages, because other drivers and processes get access by page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gds_step::Mutex;

use super::context::Context;
use super::share::{self, Mapping};
use crate::error::{Error, Kind, Result};
use crate::gpu::room::Room;

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
        Unit {
            cut,
            room: Mutex::new(Room::new(mapping.len)),
            mapping,
            shared: AtomicBool::new(false),
        }
    }

    /// Whether pieces may be allocated from the unit.
    fn is_open(&self) -> bool {
        self.cut && !self.shared.load(Ordering::Relaxed)
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
            if let Some(offset) = unit.room.lock().take(wanted) {
                return Ok(unit.piece(offset, wanted));
            }
        }
        let granule = share::granule(context)?;
        let mapping = share::physical(context, len)?;
        let cut = mapping.len == granule;
        let unit = Arc::new(Unit::new(mapping, cut));
        let offset = unit.room.lock().take(wanted).unwrap_or(0);
        units.push(Arc::clone(&unit));
        Ok(unit.piece(offset, wanted))
    }

    /// Releases a piece. Units that are free as a whole are unmapped, except one unit for small
    /// pieces.
    pub fn give(&self, context: &Context, piece: Piece) {
        let mut units = self.0.lock();
        let exported = piece.exported.load(Ordering::Relaxed);
        let mut room = piece.unit.room.lock();
        if !room.give(piece.offset, piece.len, exported) {
            return;
        }
        drop(room);
        let mut kept = false;
        units.retain(|unit| {
            if !unit.room.lock().is_unused() {
                return true;
            }
            // Every byte of a unit that is kept can be allocated again.
            let keep = unit.is_open() && unit.room.lock().is_whole() && !kept;
            kept |= keep;
            if !keep {
                share::unmap(context, &unit.mapping);
            }
            keep
        });
    }
}
