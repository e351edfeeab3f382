//! Chunks of pinned memory through which a CPU thread streams device memory that it cannot load: a copy
//! engine copies one chunk while the thread sends or receives another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gds_step::Mutex;

use super::runtime::{Copier, Way};
use super::{Gpu, Mapped, MemoryKind, Region};
use crate::error::Result;

/// Number of chunks of a device.
const COUNT: usize = 32;
/// Number of chunks that a transfer uses at a time.
pub(crate) const AHEAD: usize = 4;
/// Bytes that are copied at a time.
const PART: usize = 256 << 10;
/// Transfers of fewer bytes use no chunks: a driver may copy them by the engine that runs kernels.
pub(crate) const LEAST: usize = 32 << 10;
/// Bytes of a chunk: the last part is longer instead of too short.
const LEN: usize = PART + LEAST;
/// How long the last copies may take.
const LAST: Duration = Duration::from_secs(10);

/// The chunks of a device.
pub(crate) struct Chunks {
    // Dropped first: its copies use the memory.
    copier: Box<dyn Copier>,
    memory: Mapped,
    _region: Region,
    /// Chunks that no transfer uses, with the device memory of copies that may not be done.
    idle: Mutex<Vec<(usize, Option<Region>)>>,
}

impl Chunks {
    /// The chunks of a device on `gpu`; `None` if the CPU can load the GPU's memory.
    ///
    /// # Errors
    /// Errors of the runtime.
    pub fn of(gpu: &Gpu) -> Result<Option<Arc<Chunks>>> {
        let Some(copier) = gpu.runtime().copier(COUNT)? else {
            return Ok(None);
        };
        let region = gpu.alloc(MemoryKind::Pinned, COUNT * LEN)?;
        Ok(Some(Arc::new(Chunks {
            copier,
            memory: region.mapped()?,
            _region: region,
            idle: Mutex::new((0..COUNT).map(|number| (number, None)).collect()),
        })))
    }

    /// A chunk for the next part of `left` bytes, at least [`LEAST`]; `None`: all are in use.
    ///
    /// # Errors
    /// Those of [`Chunk::is_done`].
    pub fn take(self: &Arc<Chunks>, left: usize) -> Result<Option<Chunk>> {
        let mut idle = self.idle.lock();
        for at in (0..idle.len()).rev() {
            let (number, copies) = &idle[at];
            if copies.is_some() && !self.copier.is_done(*number)? {
                continue;
            }
            let (number, _) = idle.swap_remove(at);
            return Ok(Some(Chunk {
                chunks: Arc::clone(self),
                number,
                len: if left <= LEN { left } else { PART },
                copies: None,
            }));
        }
        Ok(None)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let start = Instant::now();
        for (number, copies) in self.idle.get_mut().drain(..) {
            while copies.is_some()
                && matches!(self.copier.is_done(number), Ok(false))
                && start.elapsed() < LAST
            {
                std::hint::spin_loop();
            }
        }
    }
}

/// A chunk in use.
pub(crate) struct Chunk {
    chunks: Arc<Chunks>,
    number: usize,
    /// Bytes of its part.
    pub len: usize,
    /// The device memory of its copy, until that is done.
    copies: Option<Region>,
}

impl Chunk {
    /// Its memory. A copy that is not done uses it.
    pub fn memory(&self) -> Mapped {
        self.chunks.memory.part(self.number * LEN, self.len)
    }

    /// Starts the copy of its part from or to the bytes of `region` from `offset` on.
    ///
    /// # Errors
    /// `Invalid` if the region has no such bytes; errors of the runtime.
    pub fn copy(&mut self, way: Way, region: &Region, offset: usize) -> Result<()> {
        let at = region.span(offset, self.len)?.addr();
        self.copies = Some(region.clone());
        let host = self.memory().as_ptr();
        // SAFETY: the chunk keeps the region until the copy is done, and one transfer has the chunk.
        unsafe { (self.chunks.copier).start(self.number, way, host, at, self.len) }
    }

    /// Whether its copy is done.
    ///
    /// # Errors
    /// `DeviceLost`, `System`: the copy has failed.
    pub fn is_done(&mut self) -> Result<bool> {
        if self.copies.is_some() && self.chunks.copier.is_done(self.number)? {
            self.copies = None;
        }
        Ok(self.copies.is_none())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let copies = self.copies.take();
        self.chunks.idle.lock().push((self.number, copies));
    }
}
