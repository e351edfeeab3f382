//! Events: positions in a stream that the CPU and other streams can wait for.

use std::fmt;
use std::sync::Arc;

use super::Gpu;
use super::runtime::EventHandle;
use crate::error::Result;

/// A position in a stream, recorded by [`Stream::record`](super::Stream::record). A clone is the
/// same event.
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

    /// Whether the stream has reached the event, so that all its earlier work is visible.
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
