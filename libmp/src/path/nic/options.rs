//! [`NicOptions`]: the settings of the NIC path, and their limits.

use gdsync::gpu::MemoryKind;
use gdsync::rdma::QpConfig;

use crate::error::{Error, Kind, Result};
use crate::path::WordOrder;

/// Options of the path through the NIC, for [`Builder::nic`](crate::Builder::nic).
///
/// ```
/// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
/// use mp::{NicOptions, WordOrder};
/// # let (gpu, alone) = (Gpu::soft()?, Local::ranks(1).remove(0));
///
/// let nic = NicOptions::default().word_order(WordOrder::BehindRead);
/// let ctx = Context::builder().nic(nic);
/// # ctx.bootstrap(alone).gpu(&gpu).build()?;
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct NicOptions {
    pub(super) queues: QpConfig,
    order: Option<WordOrder>,
}

impl Default for NicOptions {
    fn default() -> NicOptions {
        NicOptions {
            queues: QpConfig::default()
                .send_blocks(64)
                .recv_entries(4)
                .recv_sges(1)
                .ring_memory(MemoryKind::Pinned),
            order: None,
        }
    }
}

impl NicOptions {
    /// Sets the sizes and memory of queue pairs. Default: 64 blocks of 64 bytes for sends, in
    /// pinned memory; at least 32 are needed, else [`Builder::build`](crate::Builder::build)
    /// returns `Invalid`. The context sets the timeout and the doorbell.
    #[must_use]
    pub fn queues(mut self, config: QpConfig) -> NicOptions {
        self.queues = config;
        self
    }

    /// Sets how the word that announces a message is ordered after its payload. Ranks may have
    /// different settings. Default: from `MP_TELL`, else [`WordOrder::Auto`].
    #[must_use]
    pub fn word_order(mut self, how: WordOrder) -> NicOptions {
        self.order = Some(how);
        self
    }

    /// Checks the queue sizes, and returns how words are ordered after their payload.
    pub(crate) fn check(&self) -> Result<WordOrder> {
        if self.queues.send_blocks < 32 {
            let blocks = self.queues.send_blocks;
            let what = format!("a send queue of {blocks} blocks is too short; use at least 32");
            return Err(
                Error::new("build context", Kind::Invalid, what).with_limit(32768, "blocks")
            );
        }
        self.order.map_or_else(WordOrder::from_env, Ok)
    }
}
