//! Registrations, and how the CPU reaches their memory: by loads and stores in host memory and the
//! memory of a software GPU, by copy engines in the memory of another GPU: many bytes by chunks, while the
//! thread continues.

use std::sync::{PoisonError, RwLock};

use smallvec::SmallVec;

use crate::error::Result;
use crate::gpu::{Chunk, LEAST, Mapped, Region, Way};
use crate::nic::{Access, MrKeys, PdId};

/// The memory of a request. Up to two pieces cost no allocation.
pub type Pieces = SmallVec<[Piece; 2]>;

/// A range of registered memory, which it keeps.
#[derive(Clone)]
pub struct Piece {
    /// The key of the registration.
    pub key: u32,
    region: Region,
    /// The CPU's view of the region, if the CPU loads and stores its memory.
    host: Option<Mapped>,
    offset: usize,
    pub len: usize,
}

impl Piece {
    /// The address for calls of the system; `None`: only copy engines reach the memory.
    pub fn host(&self) -> Option<*mut u8> {
        let host = self.host?;
        Some(host.part(self.offset, self.len).as_ptr())
    }

    /// Drops its first `len` bytes.
    pub fn advance(&mut self, len: usize) {
        let len = len.min(self.len);
        self.offset += len;
        self.len -= len;
    }

    /// Copies its first bytes out. `false`: the GPU is lost.
    pub fn read(&self, into: &mut [u8]) -> bool {
        match &self.host {
            Some(host) => host.read(self.offset, into),
            None => return self.region.read(self.offset, into).is_ok(),
        }
        true
    }

    /// Whether `len` of its bytes are copied by chunks.
    pub fn uses_chunks(&self, len: usize) -> bool {
        self.host.is_none() && len >= LEAST
    }

    /// Starts a copy of its first bytes to a chunk. `Err`: the GPU is lost.
    pub fn read_beside(&self, chunk: &mut Chunk) -> Result<()> {
        chunk.copy(Way::Out, &self.region, self.offset)
    }

    /// Starts a copy of a chunk to its first bytes. `Err`: the GPU is lost.
    pub fn write_beside(&self, chunk: &mut Chunk) -> Result<()> {
        chunk.copy(Way::In, &self.region, self.offset)
    }

    /// Copies bytes into its first bytes, from low addresses to high ones, each aligned word at once.
    /// `false`: the GPU is lost.
    pub fn write(&self, from: &[u8]) -> bool {
        match &self.host {
            Some(host) => host.write(self.offset, from),
            None => return self.region.write(self.offset, from).is_ok(),
        }
        true
    }

    /// Executes an atomic on its word; returns the value before it. In host memory it is atomic with
    /// the CPU, in the memory of a GPU only with other atomics of this device, under whose lock it
    /// runs. `None`: the GPU is lost.
    pub fn atomic(&self, fetch_add: bool, operands: [u64; 2]) -> Option<u64> {
        let [first, second] = operands;
        if let Some(host) = &self.host {
            return Some(match fetch_add {
                true => host.fetch_add64(self.offset, first),
                false => host.compare_swap64(self.offset, first, second),
            });
        }
        let mut bytes = [0; 8];
        self.read(&mut bytes).then_some(())?;
        let before = u64::from_ne_bytes(bytes);
        let after = match fetch_add {
            true => before.wrapping_add(first),
            false if before == first => second,
            false => before,
        };
        let unchanged = after == before;
        (unchanged || self.write(&after.to_ne_bytes())).then_some(before)
    }
}

struct Registration {
    pd: PdId,
    region: Region,
    host: Option<Mapped>,
    access: Access,
}

#[derive(Default)]
struct Slot {
    /// The last byte of its key, which changes with each registration.
    generation: u8,
    registration: Option<Registration>,
}

/// The registrations of a device. A key is an index in the table and a generation: a former key of an
/// entry is unknown for the next 254 registrations of that entry.
#[derive(Default)]
pub struct Registrations(RwLock<Vec<Slot>>);

/// Number of bits of a key that are its generation.
const GENERATION: u32 = 8;

impl Registrations {
    pub fn add(&self, pd: PdId, region: &Region, access: Access) -> MrKeys {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().position(|slot| slot.registration.is_none());
        let index = free.unwrap_or(slots.len());
        if index == slots.len() {
            slots.push(Slot::default());
        }
        let slot = &mut slots[index];
        // No key is 0.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.registration = Some(Registration {
            pd,
            region: region.clone(),
            host: region.host_view(),
            access,
        });
        let key = (index as u32) << GENERATION | u32::from(slot.generation);
        MrKeys {
            lkey: key,
            rkey: key,
        }
    }

    pub fn remove(&self, keys: MrKeys) {
        let mut slots = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut((keys.lkey >> GENERATION) as usize);
        let gone = slot.and_then(|slot| slot.registration.take());
        drop(slots);
        drop(gone);
    }

    /// The `len` bytes at `addr` of the registration with this key, if it has them and the rights.
    pub fn find(&self, key: u32, pd: PdId, addr: u64, len: u32, need: Access) -> Option<Piece> {
        let slots = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get((key >> GENERATION) as usize)?;
        let registration = slot.registration.as_ref()?;
        let known = u32::from(slot.generation) == key & ((1 << GENERATION) - 1)
            && registration.pd == pd
            && registration.access.permits(need);
        let offset = addr.checked_sub(registration.region.addr().0)?;
        let end = offset.checked_add(len.into())?;
        let inside = end <= registration.region.len() as u64;
        (known && inside).then(|| Piece {
            key,
            region: registration.region.clone(),
            host: registration.host,
            offset: offset as usize,
            len: len as usize,
        })
    }
}
