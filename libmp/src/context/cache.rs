//! Registrations that are found again.
//!
//! Regions are known by their address, as long as a handle on their memory lives. Device memory
//! of the application is known by the number that the driver gave its allocation: addresses
//! come again, numbers do not, so a stale entry is never taken for a new allocation.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use gdsync::gpu::Region;
use gdsync::memop::DevicePtr;
use gdsync::rdma::{Access, Pd};

use crate::error::Result;
use crate::region::{self, Memory};

/// The registrations of one context.
#[derive(Default)]
pub(crate) struct Cache {
    /// By address and length of the region.
    regions: BTreeMap<(u64, usize), Weak<region::Inner>>,
    /// By the allocation's number, address and length.
    devices: BTreeMap<(u64, u64, usize), Weak<region::Inner>>,
}

fn find<K: Ord>(map: &mut BTreeMap<K, Weak<region::Inner>>, key: &K) -> Option<Memory> {
    map.get(key).and_then(Weak::upgrade).map(Memory)
}

fn keep<K: Ord>(map: &mut BTreeMap<K, Weak<region::Inner>>, key: K, memory: &Memory) {
    map.retain(|_, entry| entry.strong_count() > 0);
    map.insert(key, Arc::downgrade(&memory.0));
}

impl Cache {
    pub fn region(&mut self, pd: &Pd, region: &Region) -> Result<Memory> {
        let key = (region.addr().0, region.len());
        if let Some(memory) = find(&mut self.regions, &key) {
            return Ok(memory);
        }
        let memory = Memory::new(pd.register(region, Access::ALL)?, None);
        keep(&mut self.regions, key, &memory);
        Ok(memory)
    }

    /// # Safety
    /// As for [`gdsync::Gpu::adopt`].
    pub unsafe fn device(&mut self, pd: &Pd, addr: DevicePtr, len: usize) -> Result<Memory> {
        let gpu = pd.device().gpu();
        let id = gpu.buffer_id(addr)?;
        let key = (id.unwrap_or(0), addr.0, len);
        if let Some(memory) = id.and_then(|_| find(&mut self.devices, &key)) {
            return Ok(memory);
        }
        // SAFETY: the caller's promise is the one asked for.
        let region = unsafe { gpu.adopt(addr, len)? };
        let memory = Memory::new(pd.register(&region, Access::ALL)?, None);
        if id.is_some() {
            keep(&mut self.devices, key, &memory);
        }
        Ok(memory)
    }
}
