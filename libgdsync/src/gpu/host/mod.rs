//! Pinned host memory of the library, in memory files, so that other processes can map it.
//!
//! Small allocations share a file: a file for each would take a descriptor of the process each, of
//! which it has 1,024 by default, and a registration with the driver.

mod file;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gds_step::Mutex;

use super::SharedMemory;
use super::room::Room;
use crate::error::{Error, Kind, Result};

pub(crate) use file::{Mapping, open, page};

/// Length of a file for several allocations, and of the longest of these allocations, in bytes.
const UNIT: usize = 1 << 20;
const LONGEST: usize = UNIT / 4;

const OPERATION: &str = "allocate pinned memory";

/// The files of a GPU.
#[derive(Debug, Default)]
pub(crate) struct HostPool(Mutex<Vec<Arc<Unit>>>);

/// A file with its free parts.
#[derive(Debug)]
pub(crate) struct Unit {
    file: OwnedFd,
    mapping: Mapping,
    /// The GPU's address of the first byte.
    at: u64,
    /// Whether it may hold several allocations.
    cut: bool,
    room: Mutex<Room>,
    /// Set once the file was shared with another process: no piece of it is allocated again.
    /// Relaxed: it orders nothing. An allocation at the same time is as one before.
    shared: AtomicBool,
}

/// An allocation: whole pages of a unit.
#[derive(Debug)]
pub(crate) struct Piece {
    unit: Arc<Unit>,
    offset: usize,
    len: usize,
}

impl Unit {
    /// The memory.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    fn is_open(&self) -> bool {
        self.cut && !self.shared.load(Ordering::Relaxed)
    }

    fn take(self: &Arc<Unit>, len: usize) -> Option<Piece> {
        let offset = self.room.lock().take(len)?;
        Some(Piece {
            unit: Arc::clone(self),
            offset,
            len,
        })
    }
}

impl Piece {
    /// The CPU's address.
    pub fn base(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping.
        unsafe { self.unit.mapping.base().add(self.offset) }
    }

    /// The GPU's address.
    pub fn at(&self) -> u64 {
        self.unit.at + self.offset as u64
    }

    /// Exports the first `len` bytes, with the whole file.
    pub fn share(&self, len: usize) -> Result<SharedMemory> {
        self.unit.shared.store(true, Ordering::Relaxed);
        let fd = self.unit.file.try_clone().map_err(|e| {
            let what = format!("dup of the descriptor of pinned memory failed: {e}");
            Error::new("share memory", Kind::System, what).with_source(e)
        })?;
        Ok(SharedMemory::Host {
            fd,
            offset: self.offset as u64,
            len: len as u64,
        })
    }
}

impl HostPool {
    /// Allocates at least `len` bytes, zeroed. `register` makes a new file known to the GPU and
    /// returns the GPU's address of it.
    pub fn take(
        &self,
        len: usize,
        register: impl FnOnce(&Mapping) -> Result<u64>,
    ) -> Result<Piece> {
        let size = len.checked_next_multiple_of(page()).ok_or_else(|| {
            let what = format!("{len} bytes exceed the address space");
            Error::new(OPERATION, Kind::Invalid, what)
        })?;
        let cut = size <= LONGEST;
        if cut {
            let units = self.0.lock();
            let mut open = units.iter().filter(|unit| unit.is_open());
            if let Some(piece) = open.find_map(|unit| unit.take(size)) {
                drop(units);
                // SAFETY: allocated to this call alone.
                unsafe { piece.base().write_bytes(0, piece.len) };
                return Ok(piece);
            }
        }
        // Without the lock: a registration may take long.
        let whole = if cut { UNIT } else { size };
        let (file, mapping) = file::create(OPERATION, whole)?;
        let unit = Arc::new(Unit {
            at: register(&mapping)?,
            file,
            mapping,
            cut,
            room: Mutex::new(Room::new(whole)),
            shared: AtomicBool::new(false),
        });
        let piece = unit.take(size).expect("the unit is unused");
        self.0.lock().push(unit);
        Ok(piece)
    }

    /// Releases an allocation, which nothing uses any more. Returns its file if no allocation uses
    /// it, for the end of its registration; one file for small allocations stays.
    pub fn give(&self, piece: Piece) -> Option<Arc<Unit>> {
        let mut units = self.0.lock();
        let Piece { unit, offset, len } = piece;
        let is_spare = |other: &&Arc<Unit>| other.is_open() && other.room.lock().is_unused();
        let spares = units.iter().filter(is_spare).count();
        if !unit.room.lock().give(offset, len, false) || (unit.is_open() && spares == 0) {
            return None;
        }
        let at = units.iter().position(|other| Arc::ptr_eq(other, &unit))?;
        Some(units.swap_remove(at))
    }
}

/// An allocation that returns to its pool when it is dropped, for a GPU that needs no registration
/// of files.
#[cfg(feature = "soft")]
#[derive(Debug)]
pub(crate) struct Owned {
    pool: Arc<HostPool>,
    piece: Option<Piece>,
}

#[cfg(feature = "soft")]
impl Owned {
    pub fn new(pool: &Arc<HostPool>, len: usize) -> Result<Owned> {
        let piece = pool.take(len, |mapping| Ok(mapping.base().as_ptr().addr() as u64))?;
        Ok(Owned {
            pool: Arc::clone(pool),
            piece: Some(piece),
        })
    }

    pub fn piece(&self) -> &Piece {
        self.piece.as_ref().expect("present until the drop")
    }
}

#[cfg(feature = "soft")]
impl Drop for Owned {
    fn drop(&mut self) {
        drop(self.piece.take().and_then(|piece| self.pool.give(piece)));
    }
}
