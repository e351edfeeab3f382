//! What a context is made of.

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

/// Makes a [`Context`]. What is not said comes from the environment or has a default. Ranks must
/// say the same of [`eager_limit`](Builder::eager_limit) and [`depth`](Builder::depth).
#[derive(Clone, Debug, Default)]
pub struct Builder {
    bootstrap: Option<Arc<dyn Bootstrap>>,
    gpu: Option<Gpu>,
    device: Option<Device>,
    nic: NicOptions,
    config: Config,
}

impl Builder {
    /// The job. Default: [`bootstrap::from_env`].
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: Arc<dyn Bootstrap>) -> Builder {
        self.bootstrap = Some(bootstrap);
        self
    }

    /// The GPU. Default: the device's, or [`Gpu::from_env`].
    #[must_use]
    pub fn gpu(mut self, gpu: &Gpu) -> Builder {
        self.gpu = Some(gpu.clone());
        self
    }

    /// The NIC. Default: as [`Device::from_env`] chooses; it has to be of one kind on all ranks.
    #[must_use]
    pub fn device(mut self, device: &Device) -> Builder {
        self.device = Some(device.clone());
        self
    }

    /// Which contexts belong together: those of equal name. A rank has one of each name at a
    /// time; the n-th of a name on one rank belongs to the n-th on others. Default: `mp`.
    #[must_use]
    pub fn name(mut self, name: &str) -> Builder {
        name.clone_into(&mut self.config.name);
        self
    }

    /// Longest message, in bytes, that a sender may write before the receive is there. Of each
    /// peer and tag `depth` times so much memory is kept. At most 1 MiB; default 4096.
    #[must_use]
    pub fn eager_limit(mut self, bytes: usize) -> Builder {
        self.config.eager_limit = bytes;
        self
    }

    /// Messages of one peer and tag that may be under way: a power of two, 2 to 1024. As many
    /// receives may be posted that nobody waits for. Default 16.
    #[must_use]
    pub fn depth(mut self, slots: u32) -> Builder {
        self.config.depth = slots;
        self
    }

    /// Tags under which memory is kept at a time, for each peer and direction: 4 to 2048, default
    /// 256. When most are taken, those not used for longest go, and cost a connection when they
    /// are used again. A peer keeps to the limit that it was built with itself. If the tags that a
    /// peer announced and under which nothing was received yet take 32 MiB of mailboxes (and are
    /// more than 16), the peer's next send under a new tag waits for a receive.
    #[must_use]
    pub fn channels(mut self, tags: usize) -> Builder {
        self.config.channels = tags;
        self
    }

    /// After which time a message that a stream waits for, or that a NIC does not answer, fails
    /// its peer; and how long calls wait for connections and, twice as long, for room. Default 30 s.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Builder {
        self.config.timeout = limit;
        self
    }

    /// After which time a waiting stream is named: by a `tracing` warning, and by
    /// [`Context::stuck`]. Default 10 s.
    #[must_use]
    pub fn watchdog(mut self, limit: Duration) -> Builder {
        self.config.watchdog = limit;
        self
    }

    /// When peers are connected.
    #[must_use]
    pub fn connect(mut self, when: Connect) -> Builder {
        self.config.connect = when;
        self
    }

    /// Who does the background work.
    #[must_use]
    pub fn progress(mut self, who: Progress) -> Builder {
        self.config.progress = who;
        self
    }

    /// What calls do that find no room.
    #[must_use]
    pub fn full(mut self, what: Full) -> Builder {
        self.config.full = what;
        self
    }

    /// Who rings the NIC for streams, unless a request says otherwise. Default: as `GDS_DOORBELL`
    /// says.
    #[must_use]
    pub fn doorbell(mut self, doorbell: Doorbell) -> Builder {
        self.config.doorbell = doorbell;
        self
    }

    /// Options of the path by the NIC.
    #[must_use]
    pub fn nic(mut self, options: NicOptions) -> Builder {
        self.nic = options;
        self
    }

    /// Number of the first message under every tag, equal on all ranks; for tests that want to
    /// see numbers wrap.
    #[doc(hidden)]
    #[must_use]
    pub fn start(mut self, number: u64) -> Builder {
        self.config.start = number;
        self
    }

    /// Makes the context.
    ///
    /// # Errors
    /// `Invalid` for sizes out of range; `Gdsync` and others if GPU or NIC refuse; those of the
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
