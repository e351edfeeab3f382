//! Events: places in a stream that hosts and other streams wait for.

use std::fmt;
use std::sync::Arc;

use super::{Gpu, cuda};
use crate::error::Result;

/// A place in a stream, marked by [`Stream::record`](super::Stream::record). Clones are the same.
#[derive(Clone)]
pub struct Event {
    gpu: Gpu,
    handle: EventHandle,
}

/// An event as its runtime knows it.
#[derive(Clone)]
#[doc(hidden)]
pub enum EventHandle {
    Soft(softgpu::Event),
    Cuda(Arc<cuda::CudaEvent>),
}

impl Event {
    pub(super) fn new(gpu: Gpu, handle: EventHandle) -> Event {
        Event { gpu, handle }
    }

    pub(super) fn handle(&self) -> &EventHandle {
        &self.handle
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
        self.gpu.runtime().is_done(&self.handle)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event of {:?}", self.gpu)
    }
}
