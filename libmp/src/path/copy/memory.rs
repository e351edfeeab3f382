//! Memory that this rank reaches by copies: by a key, which finds its region.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdsync::gpu::Region;

use crate::error::{Error, Kind, Result};
use crate::wire::record::Place;

/// The regions that have a key.
#[derive(Default)]
pub(super) struct Table {
    regions: Mutex<Regions>,
    /// Whether the keys that are dropped are noted.
    notes: bool,
}

/// The regions of a [`Table`], by key.
#[derive(Default)]
pub(super) struct Regions {
    by_key: BTreeMap<u32, Region>,
    next: u32,
    /// Keys of memory that the application has registered.
    registered: BTreeSet<u32>,
    /// Keys that were dropped since the last call of [`Table::released`].
    released: Vec<u32>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.lock().by_key.len())
    }
}

impl Table {
    /// `notes`: the keys that are dropped are noted for [`Table::released`].
    pub fn new(notes: bool) -> Table {
        let regions = Mutex::default();
        Table { regions, notes }
    }

    /// The regions; no key is made or dropped while they are locked.
    pub fn lock(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, region: &Region) -> u32 {
        let mut regions = self.lock();
        let mut key = regions.next;
        while regions.by_key.contains_key(&key) {
            key = key.wrapping_add(1);
        }
        regions.next = key.wrapping_add(1);
        regions.by_key.insert(key, region.clone());
        key
    }

    /// The region with a key.
    pub fn region(&self, key: u32) -> Option<Region> {
        self.lock().by_key.get(&key).cloned()
    }

    /// The keys that were dropped since the last call.
    pub fn released(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().released)
    }

    /// Notes that the application has registered the memory with this key.
    fn note(&self, key: u32) {
        self.lock().registered.insert(key);
    }

    /// The memory that the application has registered, by its key.
    pub fn registered(&self) -> Vec<(u32, Region)> {
        let regions = self.lock();
        let known = |key: &u32| Some((*key, regions.by_key.get(key)?.clone()));
        regions.registered.iter().filter_map(known).collect()
    }

    /// Whether the bytes of all spans, each from its destination on, are mapped.
    pub fn reaches(&self, mut spans: impl Iterator<Item = (Span, u64)>) -> bool {
        let regions = self.lock();
        spans.all(|(to, len)| regions.of(to, len).is_some())
    }

    /// The region that contains the `len` bytes from `to`, and their offset in it.
    ///
    /// # Errors
    /// `Invalid` if the memory was released, or does not contain the bytes.
    pub fn find(&self, to: Span, len: u64) -> Result<(Region, usize)> {
        let regions = self.lock();
        let (region, at) = regions.of(to, len).ok_or_else(|| {
            let what = format!(
                "the memory key does not cover {len} bytes at {:#x}",
                to.addr
            );
            Error::new("post request", Kind::Invalid, what)
        })?;
        Ok((region.clone(), at))
    }
}

impl Regions {
    /// The region that contains the `len` bytes from `to`, and their offset in it.
    pub fn of(&self, to: Span, len: u64) -> Option<(&Region, usize)> {
        let region = self.by_key.get(&to.key)?;
        let offset = to.addr.wrapping_sub(region.addr().0);
        let end = offset.checked_add(len)?;
        (end <= region.len() as u64).then_some((region, offset as usize))
    }
}

/// A key, which its table holds until the key is dropped.
struct Key {
    table: Arc<Table>,
    key: u32,
}

impl Drop for Key {
    fn drop(&mut self) {
        let mut regions = self.table.lock();
        let region = regions.by_key.remove(&self.key);
        regions.registered.remove(&self.key);
        if self.table.notes {
            regions.released.push(self.key);
        }
        drop(regions);
        // Dropped without the lock: it may be the last handle on the region.
        drop(region);
    }
}

/// The key of some memory, made on first use. Clones refer to the same key.
#[derive(Clone)]
pub(crate) struct Keys {
    table: Arc<Table>,
    made: Arc<Mutex<Option<Key>>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.made();
        write!(f, "copy key {:?}", made.as_ref().map(|made| made.key))
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

    pub fn key(&self, region: &Region) -> u32 {
        let table = &self.table;
        let make = || Key {
            table: Arc::clone(table),
            key: table.add(region),
        };
        self.made().get_or_insert_with(make).key
    }

    /// Makes the key of memory that the application has registered, which is `region`.
    pub fn note(&self, region: &Region) {
        self.table.note(self.key(region));
    }

    /// The bytes from `offset` on of the memory, which is `region`, as a destination.
    pub fn span(&self, region: &Region, offset: usize) -> Span {
        Span {
            addr: region.addr().0 + offset as u64,
            key: self.key(region),
        }
    }

    /// Encodes the memory, which is `region`, under its key.
    pub fn to_bytes(&self, region: &Region) -> [u8; Remote::LEN] {
        let mut b = [0; Remote::LEN];
        b[..8].copy_from_slice(&region.addr().0.to_le_bytes());
        b[8..16].copy_from_slice(&(region.len() as u64).to_le_bytes());
        b[16..].copy_from_slice(&self.key(region).to_le_bytes());
        b
    }

    /// The keys that a receive there writes to its sender.
    pub fn rkeys(&self, region: &Region) -> [Option<u32>; 4] {
        [Some(self.key(region)), None, None, None]
    }

    /// Removes the key, and with it the hold on the memory.
    pub fn forget(&self) {
        let key = self.made().take();
        drop(key);
    }
}

/// The source of a put.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub region: &'a Region,
    pub offset: usize,
    pub len: usize,
}

impl Piece<'_> {
    /// The address of its first byte.
    pub fn addr(&self) -> u64 {
        self.region.addr().0 + self.offset as u64
    }
}

/// Memory that this rank reaches, decoded from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    addr: u64,
    len: u64,
    key: u32,
}

impl Remote {
    const LEN: usize = 20;

    /// Decodes the name.
    ///
    /// # Errors
    /// `Protocol` if the bytes are invalid.
    pub fn read(bytes: &[u8]) -> Result<Remote> {
        let word = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let long = |at: usize| Some(u64::from(word(at + 4)?) << 32 | u64::from(word(at)?));
        match (bytes.len(), long(0), long(8), word(16)) {
            (Remote::LEN, Some(addr), Some(len), Some(key)) => Ok(Remote { addr, len, key }),
            _ => {
                let what = format!("a record of {} bytes does not describe memory", bytes.len());
                Err(Error::new("open channel", Kind::Protocol, what))
            }
        }
    }

    /// Its key.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Invalid` if they exceed the memory.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Result<Span> {
        if (offset as u64).saturating_add(len as u64) > self.len {
            let what = format!("{len} bytes at {offset} exceed the memory of the peer");
            let error = Error::new("address remote memory", Kind::Invalid, what);
            return Err(error.with_limit(self.len, "bytes"));
        }
        Ok(Span {
            addr: self.addr + offset as u64,
            key: self.key,
        })
    }
}

/// The destination of a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(super) addr: u64,
    pub(super) key: u32,
}

impl Span {
    /// Its address.
    pub fn addr(self) -> u64 {
        self.addr
    }

    /// The destination of a rendezvous message: the memory of its receive.
    ///
    /// # Errors
    /// `Protocol` if it has no key.
    pub fn of(place: &Place) -> Result<Span> {
        let Place { addr, keys } = *place;
        let key = keys[0].ok_or_else(|| {
            let what = "the memory of the receive has no key";
            Error::new("post request", Kind::Protocol, what)
        })?;
        Ok(Span { addr, key })
    }

    /// The destination that is this many bytes further.
    pub fn behind(mut self, bytes: u64) -> Span {
        self.addr = self.addr.wrapping_add(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::gpu::MemoryKind;

    use super::*;

    #[test]
    fn key_in_use_is_not_given_again_after_all_keys_were_given() {
        let gpu = Gpu::soft().unwrap();
        let regions = [64, 128, 192].map(|len| gpu.alloc(MemoryKind::Pinned, len).unwrap());
        let table = Table::default();
        let first = table.add(&regions[0]);
        table.lock().next = u32::MAX;
        let keys = [table.add(&regions[1]), table.add(&regions[2])];
        for (key, region) in [first, keys[0], keys[1]].into_iter().zip(&regions) {
            let addr = region.addr().0;
            let (found, _) = table.find(Span { addr, key }, region.len() as u64).unwrap();
            assert!(found.addr() == region.addr());
        }
    }
}
