//! Events: points in a stream that hosts and other streams wait for.

use std::fmt;
use std::sync::Arc;

use super::Gpu;
use super::runtime::EventHandle;
use crate::error::Result;

/// A point in a stream, marked by [`Stream::record`](super::Stream::record). Clones are the same.
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

    /// The GPU on whose stream it was recorded.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether the stream has come here, and everything it did before is visible.
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
