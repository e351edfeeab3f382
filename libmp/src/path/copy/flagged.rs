//! Memory of flagged rooms: device memory that ranks of this host map. The rooms of all channels of a
//! context share allocations, because a driver exports whole units of memory.

use std::sync::{Arc, Mutex, PoisonError};

use gdsync::gpu::Region;

use super::{Copier, Keys};
use crate::error::Result;
use crate::wire::flag;
use crate::wire::record::{IPC, Record};

/// Bytes of an allocation: the unit of CUDA drivers.
const UNIT: usize = 2 << 20;
/// Alignment of rooms.
const ALIGN: usize = 64;

/// An allocation.
#[derive(Debug)]
struct Slab {
    region: Region,
    keys: Keys,
}

/// The newest allocation, and the bytes of it that are in use.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    newest: Mutex<Option<(Arc<Slab>, usize)>>,
}

/// The flagged rooms of a channel. The memory is free again when all channels of its allocation are.
pub(crate) struct Flagged {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl Copier {
    /// Takes `len` bytes for flagged rooms.
    ///
    /// # Errors
    /// Those of [`gdsync::Gpu::alloc_exportable`].
    pub fn flagged(&self, len: usize) -> Result<Flagged> {
        let len = len.next_multiple_of(ALIGN);
        let mut newest = self
            .slabs
            .newest
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((slab, used)) = newest.as_mut()
            && slab.region.len() - *used >= len
        {
            let (slab, offset) = (Arc::clone(slab), *used);
            *used += len;
            return Ok(Flagged { slab, offset, len });
        }
        let region = self.gpu.alloc_exportable(len.next_multiple_of(UNIT))?;
        let keys = self.keys();
        let slab = Arc::new(Slab { region, keys });
        *newest = Some((Arc::clone(&slab), len));
        let offset = 0;
        Ok(Flagged { slab, offset, len })
    }
}

impl Flagged {
    /// Clears the rooms: no line belongs to message `from` or a later one.
    pub fn clear(&self, from: u64) -> Result<()> {
        Ok(self
            .slab
            .region
            .write(self.offset, &flag::before(from, self.len))?)
    }

    /// The record of the allocation.
    pub fn record(&self) -> Record {
        Record::new(IPC, &self.slab.keys.to_bytes(&self.slab.region))
    }

    /// The offset of the rooms in it.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The address of the byte at `at`, for kernels.
    pub fn addr(&self, at: usize) -> u64 {
        self.slab.region.addr().0 + (self.offset + at) as u64
    }

    /// Reads from the byte at `at` on.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        Ok(self.slab.region.read(self.offset + at, into)?)
    }
}

#[cfg(test)]
mod tests {
    use gdsync::Gpu;

    use super::*;

    #[test]
    fn channels_share_an_allocation_without_overlap() {
        let copier = Copier::new(&Gpu::soft().unwrap(), None, true);
        let rooms: Vec<Flagged> = (0..3)
            .map(|_| copier.flagged(UNIT / 2 - 1).unwrap())
            .collect();
        let first = rooms[0].record();
        assert_eq!([1, 2].map(|i| rooms[i].record() == first), [true, false]);
        for (i, one) in rooms.iter().enumerate() {
            one.clear(i as u64 + 5).unwrap();
        }
        for (i, one) in rooms.iter().enumerate() {
            let mut bytes = vec![0; one.len];
            one.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, flag::before(i as u64 + 5, one.len));
        }
        let long = copier.flagged(UNIT + 1).unwrap();
        long.clear(0).unwrap();
    }
}
