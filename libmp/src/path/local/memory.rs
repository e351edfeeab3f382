//! Memory as this rank names it to itself: by a key, under which its region is found again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdsync::gpu::Region;

use crate::error::{Error, Kind, Result};
use crate::wire::record::Place;

/// The regions that have a key.
#[derive(Default)]
pub(super) struct Table(Mutex<Regions>);

#[derive(Default)]
struct Regions {
    by_key: BTreeMap<u32, Region>,
    next: u32,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.lock().by_key.len())
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Regions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, region: &Region) -> u32 {
        let mut regions = self.lock();
        let key = regions.next;
        regions.next += 1;
        regions.by_key.insert(key, region.clone());
        key
    }

    /// The region in which `len` bytes from `to` lie, and where.
    ///
    /// # Errors
    /// `Invalid` if the memory is gone, or they do not lie there.
    pub fn find(&self, to: Span, len: u64) -> Result<(Region, usize)> {
        let regions = self.lock();
        let inside = |region: &&Region| {
            let offset = to.addr.wrapping_sub(region.addr().0);
            let end = offset.checked_add(len);
            end.is_some_and(|end| end <= region.len() as u64)
        };
        let region = regions.by_key.get(&to.key).filter(inside);
        let region = region.ok_or_else(|| {
            let what = format!("{len} bytes at {:#x}, which have no such key", to.addr);
            Error::new("put", Kind::Invalid, what)
        })?;
        Ok((region.clone(), (to.addr - region.addr().0) as usize))
    }
}

/// A key in its table, until it is dropped.
struct Key {
    table: Arc<Table>,
    key: u32,
}

impl Drop for Key {
    fn drop(&mut self) {
        let region = self.table.lock().by_key.remove(&self.key);
        // Behind the lock: it may be the last handle.
        drop(region);
    }
}

/// The key of some memory, made when it is needed. Clones are the same.
#[derive(Clone)]
pub(crate) struct Keys {
    table: Arc<Table>,
    made: Arc<Mutex<Option<Key>>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.made();
        write!(f, "local key {:?}", made.as_ref().map(|made| made.key))
    }
}

impl Keys {
    pub(super) fn new(table: &Arc<Table>) -> Keys {
        Keys {
            table: Arc::clone(table),
            made: Arc::default(),
        }
    }

    fn made(&self) -> MutexGuard<'_, Option<Key>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, region: &Region) -> u32 {
        let table = &self.table;
        let make = || Key {
            table: Arc::clone(table),
            key: table.add(region),
        };
        self.made().get_or_insert_with(make).key
    }

    /// The memory, which is `region`, as its rank names it.
    pub fn to_bytes(&self, region: &Region) -> [u8; Remote::LEN] {
        let mut b = [0; Remote::LEN];
        b[..8].copy_from_slice(&region.addr().0.to_le_bytes());
        b[8..16].copy_from_slice(&(region.len() as u64).to_le_bytes());
        b[16..].copy_from_slice(&self.key(region).to_le_bytes());
        b
    }

    /// What a receive there tells its sender.
    pub fn remote(&self, region: &Region) -> [Option<u32>; 4] {
        [Some(self.key(region)), None, None, None]
    }

    /// Holds the memory no longer.
    pub fn forget(&self) {
        let key = self.made().take();
        drop(key);
    }
}

/// Bytes that are put.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub region: &'a Region,
    pub offset: usize,
    pub len: usize,
}

/// Memory of this rank, as it has named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    addr: u64,
    pub len: u64,
    key: u32,
}

impl Remote {
    const LEN: usize = 20;

    /// What was named.
    ///
    /// # Errors
    /// `Protocol` if it is not understood.
    pub fn read(bytes: &[u8]) -> Result<Remote> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let long = |at: usize| Some(u64::from(word(at + 4)?) << 32 | u64::from(word(at)?));
        match (bytes.len(), long(0), long(8), word(16)) {
            (Remote::LEN, Some(addr), Some(len), Some(key)) => Ok(Remote { addr, len, key }),
            _ => {
                let what = format!("{} bytes that name no memory", bytes.len());
                Err(Error::new("open channel", Kind::Protocol, what))
            }
        }
    }

    /// The `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Invalid` if they do not lie there.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        if (offset as u64).saturating_add(len as u64) > self.len {
            let what = format!("{len} bytes at {offset}");
            return Err(Error::new("address memory", Kind::Invalid, what).with_limit(self.len));
        }
        Ok(Span {
            addr: self.addr + offset as u64,
            key: self.key,
        })
    }
}

/// Where bytes are put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(super) addr: u64,
    pub(super) key: u32,
}

impl Span {
    /// Where a receive lies.
    pub fn of(place: &Place) -> Span {
        Span {
            addr: place.addr,
            key: place.keys[0].unwrap_or(u32::MAX),
        }
    }

    /// So many bytes behind it.
    pub fn behind(mut self, bytes: u64) -> Span {
        self.addr = self.addr.wrapping_add(bytes);
        self
    }
}
