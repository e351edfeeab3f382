//! Device memory that ranks of this host map, for flagged rooms and device blocks. All channels of a
//! context share allocations, because a driver exports whole units of memory.

use std::sync::{Arc, Mutex, PoisonError};

use gdsync::gpu::Region;

use super::{Copier, Keys};
use crate::error::Result;
use crate::wire::record::{IPC, Record};

/// Bytes of an allocation: the unit of CUDA drivers.
const UNIT: usize = 2 << 20;
/// Alignment of a channel's part: that of the credits that a kernel reads at once.
const ALIGN: usize = 128;

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

/// A channel's part of an allocation. The memory is free again when all channels of the allocation
/// are, and when their peers have unmapped it.
pub(crate) struct Exported {
    slab: Arc<Slab>,
    offset: usize,
    len: usize,
}

impl Copier {
    /// Takes `len` bytes.
    ///
    /// # Errors
    /// Those of [`gdsync::Gpu::alloc_exportable`].
    pub fn exported(&self, len: usize) -> Result<Exported> {
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
            return Ok(Exported { slab, offset, len });
        }
        let region = self.gpu.alloc_exportable(len.next_multiple_of(UNIT))?;
        let keys = self.keys();
        let slab = Arc::new(Slab { region, keys });
        *newest = Some((Arc::clone(&slab), len));
        let offset = 0;
        Ok(Exported { slab, offset, len })
    }
}

impl Exported {
    /// Its length in bytes, at least that which was requested.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Writes from the byte at `at` on.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.slab.region.write(self.offset + at, bytes)?)
    }

    /// The allocation.
    pub fn region(&self) -> &Region {
        &self.slab.region
    }

    /// The record of the allocation.
    pub fn record(&self) -> Record {
        Record::new(IPC, &self.slab.keys.to_bytes(&self.slab.region))
    }

    /// Whether the CPU loads from it without an engine.
    pub fn is_near(&self) -> bool {
        self.slab.region.gpu().is_software()
    }

    /// Its offset in the allocation.
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
        let parts: Vec<Exported> = (0..3)
            .map(|_| copier.exported(UNIT / 2 - 1).unwrap())
            .collect();
        let first = parts[0].record();
        assert_eq!([1, 2].map(|i| parts[i].record() == first), [true, false]);
        for (i, one) in parts.iter().enumerate() {
            one.write(0, &vec![i as u8 + 5; one.len()]).unwrap();
        }
        for (i, one) in parts.iter().enumerate() {
            let mut bytes = vec![0; one.len()];
            one.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, vec![i as u8 + 5; one.len()]);
        }
        let long = copier.exported(UNIT + 1).unwrap();
        long.write(0, &vec![0; long.len()]).unwrap();
    }
}
