//! Memory as the virtual NIC accesses it: a software GPU's, the host's, or a GPU's by its copy
//! engine.

use std::sync::Arc;

use vmlx5::{Dma, DmaFault};

use crate::gpu::{Mapped, Region};
use crate::ring::RingMemory;

/// The memory of `region`.
pub(super) fn of(region: &Region) -> Arc<dyn Dma> {
    #[cfg(feature = "soft")]
    if let Some(memory) = super::soft::of(region) {
        return memory;
    }
    match region.mapped_already() {
        Some(mapped) => Arc::new(Host {
            mapped,
            _held: region.clone(),
        }),
        None => Arc::new(Engine(region.clone())),
    }
}

/// Whether [`of`] keeps a handle on `region`.
pub(super) fn holds(region: &Region) -> bool {
    !region.gpu().is_software()
}

/// The offset, if `len` bytes aligned to `align` are inside the limit.
fn inside(offset: u64, len: usize, align: usize, limit: usize) -> Result<usize, DmaFault> {
    usize::try_from(offset)
        .ok()
        .filter(|at| at.is_multiple_of(align) && *at <= limit && len <= limit - at)
        .ok_or(DmaFault {
            offset,
            len: len as u64,
            limit: limit as u64,
        })
}

/// Host memory, or device memory that the CPU reaches by plain loads and stores.
struct Host {
    mapped: Mapped,
    _held: Region,
}

impl Host {
    fn word(&self, offset: u64, len: usize) -> Result<usize, DmaFault> {
        inside(offset, len, len, self.mapped.len())
    }
}

impl Dma for Host {
    fn len(&self) -> u64 {
        self.mapped.len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let at = inside(offset, into.len(), 1, self.mapped.len())?;
        self.mapped.read(at, into);
        Ok(())
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        let at = inside(offset, from.len(), 1, self.mapped.len())?;
        self.mapped.write(at, from);
        Ok(())
    }
    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        Ok(self.mapped.load32(self.word(offset, 4)?))
    }
    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        Ok(self.mapped.load64(self.word(offset, 8)?))
    }
    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        self.mapped.store32(self.word(offset, 4)?, value);
        Ok(())
    }
    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        Ok(self.mapped.swap64(self.word(offset, 8)?, value))
    }
    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        let at = self.word(offset, 8)?;
        Ok(self.mapped.compare_swap64(at, current, new))
    }
    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        Ok(self.mapped.fetch_add64(self.word(offset, 8)?, add))
    }
}

/// Device memory that only a copy engine reaches. A copy is complete when its call returns, so
/// copies are in order. Atomic operations are atomic among those of this NIC, not against the GPU;
/// verbs promise no more (`IBV_ATOMIC_HCA`).
struct Engine(Region);

impl Engine {
    fn word<const N: usize>(&self, offset: u64) -> Result<(usize, [u8; N]), DmaFault> {
        let at = inside(offset, N, N, self.0.len())?;
        let mut bytes = [0; N];
        self.read(offset, &mut bytes)?;
        Ok((at, bytes))
    }

    /// A copy that fails (the GPU is lost) is absent memory to the NIC.
    fn gone(&self, offset: u64, len: usize) -> DmaFault {
        DmaFault {
            offset,
            len: len as u64,
            limit: 0,
        }
    }

    fn change(&self, offset: u64, to: impl FnOnce(u64) -> u64) -> Result<u64, DmaFault> {
        let (_, bytes) = self.word(offset)?;
        let before = u64::from_ne_bytes(bytes);
        let after = to(before);
        if after != before {
            self.write(offset, &after.to_ne_bytes())?;
        }
        Ok(before)
    }
}

impl Dma for Engine {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        let at = inside(offset, into.len(), 1, self.0.len())?;
        let copied = self.0.read(at, into);
        copied.map_err(|_| self.gone(offset, into.len()))
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        let at = inside(offset, from.len(), 1, self.0.len())?;
        let copied = self.0.write(at, from);
        copied.map_err(|_| self.gone(offset, from.len()))
    }
    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        Ok(u32::from_ne_bytes(self.word(offset)?.1))
    }
    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        Ok(u64::from_ne_bytes(self.word(offset)?.1))
    }
    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        inside(offset, 4, 4, self.0.len())?;
        self.write(offset, &value.to_ne_bytes())
    }
    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        self.change(offset, |_| value)
    }
    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        self.change(offset, |now| if now == current { new } else { now })
    }
    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        self.change(offset, |now| now.wrapping_add(add))
    }
}
