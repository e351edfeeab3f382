//! The builder of a context.

use std::sync::Arc;
use std::time::Duration;

use gdsync::Gpu;
use gdsync::rdma::{Device, DeviceOptions, Doorbell};

use super::Context;
use crate::bootstrap::{self, Bootstrap};
use crate::error::Result;
use crate::path::NicOptions;
use crate::two_sided::config::{Config, Connect, Full, Progress};
use crate::two_sided::engine::Engine;

/// Builds a [`Context`]. A setting that is not given comes from the environment or has a default.
/// All ranks must use the same [`eager_limit`](Builder::eager_limit) and [`depth`](Builder::depth).
#[derive(Clone, Debug, Default)]
pub struct Builder {
    bootstrap: Option<Arc<dyn Bootstrap>>,
    gpu: Option<Gpu>,
    device: Option<Device>,
    nic: NicOptions,
    config: Config,
}

impl Builder {
    /// Sets the bootstrap of the job. Default: [`bootstrap::from_env`].
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: Arc<dyn Bootstrap>) -> Builder {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// Sets the GPU. Default: the GPU of the device, or [`Gpu::from_env`].
    #[must_use]
    pub fn gpu(mut self, gpu: &Gpu) -> Builder {
        self.gpu = Some(gpu.clone());
        self
    }

    /// Sets the NIC. Default: [`Device::from_env`]. All ranks must have the same kind of NIC.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Builder {
        self.device = Some(device.clone());
        self
    }

    /// Sets the name. Contexts of equal name belong together. A rank has one context of each name
    /// at a time; the n-th of a name on one rank belongs to the n-th on the other ranks. Default:
    /// `mp`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Builder {
        name.clone_into(&mut self.config.name);
        self
    }

    /// Sets the eager limit: the longest message, in bytes, that a sender may write before the
    /// receive is posted. A rank keeps `depth` times this much memory for each peer and tag. At
    /// most 1 MiB; default 4096 bytes.
    #[must_use]
    pub fn eager_limit(mut self, bytes: usize) -> Builder {
        self.config.eager_limit = bytes;
        self
    }

    /// Sets the number of messages of one peer and tag that may be in flight, which is a power of
    /// two from 2 to 1024. The same number of receives without a waiter may be posted. Default 16.
    #[must_use]
    pub fn depth(mut self, slots: u32) -> Builder {
        self.config.depth = slots;
        self
    }

    /// Sets the number of tags whose memory is kept at a time, for each peer and direction: 4 to
    /// 2048, default 256. When most are in use, the least recently used ones are released; their
    /// next use costs a connection. A peer applies its own limit. If the tags that a peer announced
    /// and under which nothing was received yet take 32 MiB of mailboxes (and are more than 16),
    /// the peer's next send under a new tag waits for a receive.
    #[must_use]
    pub fn channels(mut self, tags: usize) -> Builder {
        self.config.channels = tags;
        self
    }

    /// Sets the timeout of a message that a stream waits for, and of a NIC that does not answer;
    /// after it the peer is given up. Calls wait this long for connections and twice as long for
    /// room. Default 30 s.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Builder {
        self.config.timeout = limit;
        self
    }

    /// Sets the time after which a waiting stream is reported, by a `tracing` warning and by
    /// [`Context::stuck`]. Default 10 s.
    #[must_use]
    pub fn watchdog(mut self, limit: Duration) -> Builder {
        self.config.watchdog = limit;
        self
    }

    /// Sets when peers are connected.
    #[must_use]
    pub fn connect(mut self, when: Connect) -> Builder {
        self.config.connect = when;
        self
    }

    /// Sets what drives the background work.
    #[must_use]
    pub fn progress(mut self, who: Progress) -> Builder {
        self.config.progress = who;
        self
    }

    /// Sets what a call does if a queue is full.
    #[must_use]
    pub fn full(mut self, what: Full) -> Builder {
        self.config.full = what;
        self
    }

    /// Sets the side that writes the doorbell for streams, unless a request sets it: the stream, or
    /// a CPU thread. Default: from `GDS_DOORBELL`.
    #[must_use]
    pub fn doorbell(mut self, doorbell: Doorbell) -> Builder {
        self.config.doorbell = doorbell;
        self
    }

    /// Sets the options of the NIC path.
    #[must_use]
    pub fn nic(mut self, options: NicOptions) -> Builder {
        self.nic = options;
        self
    }

    /// Sets the number of the first message under every tag, equal on all ranks; for tests of the
    /// wrap of numbers.
    #[doc(hidden)]
    #[must_use]
    pub fn start(mut self, number: u64) -> Builder {
        self.config.start = number;
        self
    }

    /// Builds the context.
    ///
    /// # Errors
    /// `Invalid` for sizes out of range; `Gdsync` and others if GPU or NIC fail; errors of the
    /// bootstrap; `Timeout`, naming a rank, if peers are to be connected and one does not answer.
    pub fn build(self) -> Result<Context> {
        self.config.check()?;
        self.nic.check()?;
        let bootstrap = match self.bootstrap {
            Some(bootstrap) => bootstrap,
            None => bootstrap::from_env()?,
        };
        let gpu = match (self.gpu, &self.device) {
            (Some(gpu), _) => gpu,
            (None, Some(device)) => device.gpu().clone(),
            (None, None) => Gpu::from_env()?,
        };
        let device = match self.device {
            Some(device) => device,
            None => {
                let options =
                    DeviceOptions::default().watched(self.config.progress == Progress::Background);
                Device::open_with(&gpu, &options)?
            }
        };
        Context::open(Engine::new(
            bootstrap,
            &gpu,
            &device,
            &self.nic,
            self.config,
        )?)
    }
}
