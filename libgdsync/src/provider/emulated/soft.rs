//! Memory of a software GPU.

use std::sync::Arc;

use vmlx5::{Dma, DmaFault};

use crate::gpu::{Region, soft};

/// The memory of `region`; `None` if it does not belong to a software GPU.
pub(super) fn of(region: &Region) -> Option<Arc<dyn Dma>> {
    Some(Arc::new(Soft(soft::window(region)?)))
}

/// Memory of a soft GPU. Accesses keep the soft GPU's order.
struct Soft(softgpu::Window);

fn fault(f: softgpu::Fault) -> DmaFault {
    DmaFault {
        offset: f.offset,
        len: f.len as u64,
        limit: f.limit as u64,
    }
}

impl Dma for Soft {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DmaFault> {
        self.0.read(offset, into).map_err(fault)
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DmaFault> {
        self.0.write(offset, from).map_err(fault)
    }
    fn load32(&self, offset: u64) -> Result<u32, DmaFault> {
        self.0.load32(offset).map_err(fault)
    }
    fn load64(&self, offset: u64) -> Result<u64, DmaFault> {
        self.0.load64(offset).map_err(fault)
    }
    fn store32(&self, offset: u64, value: u32) -> Result<(), DmaFault> {
        self.0.store32(offset, value).map_err(fault)
    }
    fn swap64(&self, offset: u64, value: u64) -> Result<u64, DmaFault> {
        self.0.swap64(offset, value).map_err(fault)
    }
    fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, DmaFault> {
        self.0.compare_swap64(offset, current, new).map_err(fault)
    }
    fn fetch_add64(&self, offset: u64, add: u64) -> Result<u64, DmaFault> {
        self.0.fetch_add64(offset, add).map_err(fault)
    }
}
