//! Events: positions in a stream that the CPU and other streams can wait for.

use std::fmt;
use std::sync::Arc;

use super::Gpu;
use super::runtime::EventHandle;
use crate::error::Result;

/// A position in a stream, recorded by [`Stream::record`](super::Stream::record) (CUDA: `CUevent`).
/// The CPU polls it, and other streams wait for it. A clone is the same event.
///
/// ```
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let limit = std::time::Duration::from_secs(10);
/// let (first, second) = (gpu.stream()?, gpu.stream()?);
/// let event = first.record()?; // behind the work that `first` has so far
/// second.wait_event(&event)?; // later work of `second` runs after it
/// assert!(second.synchronize(limit)? && event.is_done()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Event {
    gpu: Gpu,
    handle: Arc<dyn EventHandle>,
}

impl Event {
    pub(super) fn new(gpu: Gpu, handle: Arc<dyn EventHandle>) -> Event {
        Event { gpu, handle }
    }

    pub(super) fn handle(&self) -> &dyn EventHandle {
        &*self.handle
    }

    /// The GPU of the stream that recorded the event.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether the stream has reached the event: its work before the event has run, and the results
    /// are visible to the CPU. Does not block.
    ///
    /// # Errors
    /// `System` if the stream failed, `DeviceLost` if the GPU did.
    pub fn is_done(&self) -> Result<bool> {
        self.handle.is_done()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event of {:?}", self.gpu)
    }
}
