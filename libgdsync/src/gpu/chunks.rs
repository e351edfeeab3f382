//! Chunks of pinned memory through which a CPU thread streams device memory that it cannot load: a copy
//! engine copies one chunk while the thread sends or receives another one.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gds_step::Mutex;

use super::runtime::{Copier, Way};
use super::{Gpu, Mapped, MemoryKind, Region};
use crate::error::{Error, Kind, Result};

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
/// The time limit of a copy. A copy engine that exceeds it is stuck, or busy with work that never ends.
const LIMIT: Duration = Duration::from_secs(10);

/// The chunks of a device.
pub(crate) struct Chunks {
    copier: ManuallyDrop<Box<dyn Copier>>,
    memory: Mapped,
    region: ManuallyDrop<Region>,
    /// The chunks that no transfer uses. One whose copy exceeds the limit never returns.
    idle: Mutex<Vec<usize>>,
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
            copier: ManuallyDrop::new(copier),
            memory: region.mapped()?,
            region: ManuallyDrop::new(region),
            idle: Mutex::new((0..COUNT).collect()),
        })))
    }

    /// A chunk for the next part of `left` bytes, at least [`LEAST`]; `None`: all are in use.
    pub fn take(self: &Arc<Chunks>, left: usize) -> Option<Chunk> {
        Some(Chunk {
            number: self.idle.lock().pop()?,
            chunks: Arc::clone(self),
            len: if left <= LEN { left } else { PART },
            copy: Copy::None,
        })
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // A copy that does not end uses both.
        if self.idle.get_mut().len() == COUNT {
            // SAFETY: neither is used again. All copies are done.
            unsafe {
                ManuallyDrop::drop(&mut self.copier);
                ManuallyDrop::drop(&mut self.region);
            }
        }
    }
}

/// A chunk in use. Its drop waits for the end of its copy, after which the engine uses neither the chunk
/// nor the device memory.
pub(crate) struct Chunk {
    chunks: Arc<Chunks>,
    number: usize,
    /// Bytes of its part.
    pub len: usize,
    copy: Copy,
}

/// The copy of a chunk.
enum Copy {
    None,
    /// It uses this device memory since that time.
    Running(Region, Instant),
    /// It has failed, and uses neither the chunk nor device memory.
    Failed,
    /// It has not ended in time, and may use the chunk and this device memory at any time.
    Stuck(Region),
}

impl Copy {
    /// A copy between a chunk and `region` that has failed.
    fn failed(e: &Error, region: Region) -> Copy {
        match e.kind() {
            Kind::Timeout => Copy::Stuck(region),
            _ => Copy::Failed,
        }
    }
}

impl Chunk {
    /// Its memory. A copy that is not done uses it.
    pub fn memory(&self) -> Mapped {
        self.chunks.memory.part(self.number * LEN, self.len)
    }

    /// Starts the copy of its part from or to the bytes of `region` from `offset` on.
    ///
    /// # Errors
    /// `Invalid` if the region has no such bytes; `Timeout` and others of the runtime.
    pub fn copy(&mut self, way: Way, region: &Region, offset: usize) -> Result<()> {
        let at = region.span(offset, self.len)?.addr();
        let host = self.memory().as_ptr();
        // SAFETY: the chunk keeps the region until the copy is done, and one transfer has the chunk.
        let started = unsafe { (self.chunks.copier).start(self.number, way, host, at, self.len) };
        self.copy = match &started {
            Ok(()) => Copy::Running(region.clone(), Instant::now()),
            Err(e) => Copy::failed(e, region.clone()),
        };
        started
    }

    /// Whether its copy is done.
    ///
    /// # Errors
    /// `Timeout` after 10 s; `DeviceLost`, `System`: the copy has failed. All later calls fail too.
    pub fn is_done(&mut self) -> Result<bool> {
        const OPERATION: &str = "copy device memory";
        let (region, start) = match &self.copy {
            Copy::None => return Ok(true),
            Copy::Running(region, start) => (region, start),
            Copy::Failed | Copy::Stuck(_) => {
                let what = "an earlier copy of the same transfer has failed";
                return Err(Error::new(OPERATION, Kind::System, what));
            }
        };
        let done = match self.chunks.copier.is_done(self.number) {
            Ok(false) if start.elapsed() < LIMIT => return Ok(false),
            Ok(false) => {
                let what = format!("{:?} did not finish a copy within {LIMIT:?}", region.gpu());
                Err(Error::new(OPERATION, Kind::Timeout, what))
            }
            done => done,
        };
        self.copy = match &done {
            Ok(_) => Copy::None,
            Err(e) => Copy::failed(e, region.clone()),
        };
        done
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        while matches!(self.is_done(), Ok(false)) {
            std::hint::spin_loop();
        }
        match std::mem::replace(&mut self.copy, Copy::None) {
            Copy::Stuck(region) => std::mem::forget(region),
            _ => self.chunks.idle.lock().push(self.number),
        }
    }
}
