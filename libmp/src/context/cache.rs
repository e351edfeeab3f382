//! The cache of registrations.
//!
//! A region is found by its address, as long as a handle on its memory lives. Device memory of the
//! application is found by the number that the driver gave its allocation: addresses are reused,
//! numbers are not, so a stale entry never matches a new allocation. Host memory of the application
//! has no number: it is found only by a handle, or while a handle lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use gdsync::gpu::{DevicePtr, Region};

use crate::error::Result;
use crate::path::{Paths, Rights};
use crate::region::{self, Memory};

/// The registrations of one context.
#[derive(Default)]
pub(crate) struct Cache {
    /// All registrations, by address and length.
    known: BTreeMap<(u64, usize), Weak<region::Inner>>,
    /// The registrations of the application's device memory, by the allocation's number, address
    /// and length.
    devices: BTreeMap<(u64, u64, usize), Weak<region::Inner>>,
    /// Number of entries at which entries without memory are removed.
    clean_at: usize,
}

impl Cache {
    /// Adds a registration.
    pub fn note(&mut self, memory: Memory) -> Memory {
        if self.known.len() >= self.clean_at {
            self.known.retain(|_, entry| entry.strong_count() > 0);
            self.devices.retain(|_, entry| entry.strong_count() > 0);
            self.clean_at = (2 * self.known.len()).max(64);
        }
        let key = (memory.region().addr().0, memory.len());
        self.known.insert(key, Arc::downgrade(&memory.0));
        memory
    }

    /// A registration that covers the `len` bytes at `addr`.
    pub fn at(&self, addr: DevicePtr, len: usize) -> Option<Memory> {
        let covers = |start: u64, size: usize| {
            addr.0 - start <= size as u64 && len as u64 <= size as u64 - (addr.0 - start)
        };
        self.known
            .range(..=(addr.0, usize::MAX))
            .rev()
            .filter(|((start, size), _)| covers(*start, *size))
            .find_map(|(_, entry)| entry.upgrade().map(Memory))
    }

    /// The registration of `region`, made if there is none.
    pub fn region(&mut self, paths: &Paths, region: &Region) -> Result<Memory> {
        let key = (region.addr().0, region.len());
        if let Some(memory) = self.known.get(&key).and_then(Weak::upgrade) {
            return Ok(Memory(memory));
        }
        let keys = paths.register(region, Rights::All)?;
        Ok(self.note(Memory::new(keys)))
    }

    /// The registration of device memory of the application, made if there is none.
    ///
    /// # Safety
    /// As for [`gdsync::Gpu::adopt`].
    pub unsafe fn device(&mut self, paths: &Paths, addr: DevicePtr, len: usize) -> Result<Memory> {
        let gpu = paths.gpu();
        let id = gpu.buffer_id(addr)?;
        let key = |id| (id, addr.0, len);
        if let Some(memory) = id.and_then(|id| self.devices.get(&key(id))?.upgrade()) {
            return Ok(Memory(memory));
        }
        // SAFETY: the caller upholds the contract of `Gpu::adopt`, which is this function's.
        let region = unsafe { gpu.adopt(addr, len)? };
        let memory = self.note(Memory::new(paths.register(&region, Rights::All)?));
        if let Some(id) = id {
            self.devices.insert(key(id), Arc::downgrade(&memory.0));
        }
        Ok(memory)
    }
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;
    use gdsync::gpu::MemoryKind;
    use gdsync::rdma::Device;

    use super::*;

    #[test]
    fn registrations_are_found_while_their_memory_lives() {
        let gpu = Gpu::soft().unwrap();
        let paths = Paths::for_test(&Device::emulated(&gpu).unwrap());
        let mut cache = Cache::default();
        let region = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
        let memory = cache.region(&paths, &region).unwrap();
        let again = cache.region(&paths, &region).unwrap();
        assert_eq!(memory.keys().id(), again.keys().id());
        let at = region.addr();
        let key = |found: Option<Memory>| found.map(|m| m.keys().id());
        let mine = Some(memory.keys().id());
        assert_eq!(key(cache.at(at, 4096)), mine);
        assert_eq!(key(cache.at(at.offset(4096), 0)), mine);
        assert_eq!(key(cache.at(at.offset(100), 3996)), mine);
        assert_eq!(key(cache.at(at.offset(100), 3997)), None);
        assert_eq!(key(cache.at(DevicePtr(at.0 - 1), 2)), None);
        drop((memory, again));
        assert_eq!(key(cache.at(at, 1)), None);
        // Entries of released memory are removed.
        for _ in 0..1000 {
            let region = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
            cache.region(&paths, &region).unwrap();
        }
        assert!(cache.known.len() <= 64);
    }
}
