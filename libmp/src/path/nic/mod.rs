//! The NIC path: queue pairs, work requests, memory registrations.

mod lane;
mod memory;
mod options;

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Region, Word32};
use gdsync::rdma::{Access, Device, Doorbell, Pd, Qp, QpConfig};

use super::{MOST_PIECES, WordOrder};
use crate::error::Result;

pub(crate) use lane::{Lane, Put, WordOrdering};
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub use options::NicOptions;

/// The NIC of a rank, and the settings of its queue pairs.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    me: u32,
    pub device: Device,
    pd: Pd,
    queues: QpConfig,
    timeout: Duration,
    order: WordOrder,
    /// The context's error word.
    error: Word32,
}

/// The access that a registration grants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rights {
    /// All access: memory of the application.
    All,
    /// The peer writes words, and reads them for the order of WRITEs.
    Words,
    /// The peer writes.
    Write,
    /// The peer has no access: this rank puts from this memory.
    Source,
    /// The peer has no access: this rank's NIC stores the results of READs there.
    Landing,
}

impl Nic {
    /// Opens the path through `device`. Queue pairs fail after `timeout`, and store failures in
    /// `error`.
    ///
    /// # Errors
    /// `Invalid` for options out of range; errors of gdsync.
    pub fn open(
        me: u32,
        device: &Device,
        options: &NicOptions,
        timeout: Duration,
        error: &Word32,
    ) -> Result<Nic> {
        Ok(Nic {
            me,
            order: options.check()?,
            device: device.clone(),
            pd: device.alloc_pd()?,
            queues: options.queues.clone(),
            timeout,
            error: error.clone(),
        })
    }

    /// Registers `region`.
    pub fn register(&self, region: &Region, rights: Rights) -> Result<Keys> {
        let access = match rights {
            Rights::All => Access::ALL,
            Rights::Words => Access::REMOTE_WRITE | Access::REMOTE_READ,
            Rights::Write => Access::REMOTE_WRITE,
            Rights::Source => Access::LOCAL_READ,
            Rights::Landing => Access::LOCAL_WRITE,
        };
        Ok(Keys(self.pd.register(region, access)?))
    }

    /// Whether `keys` are a registration with this NIC.
    pub fn knows(&self, keys: &Keys) -> bool {
        keys.0.is_of(&self.pd)
    }

    /// Number of blocks of the smallest send queue: that of lane 0.
    pub fn queue_blocks(&self) -> u32 {
        self.queues.send_blocks.min(64)
    }

    /// Memory for the results of READs.
    fn landing(&self) -> Result<Keys> {
        let region = self.device.gpu().alloc(MemoryKind::Pinned, 64)?;
        self.register(&region, Rights::Landing)
    }

    fn queue_pair(&self, lane: usize, doorbell: Doorbell) -> Result<Qp> {
        let mut config = self.queues.clone();
        if lane == 0 {
            // The CPU posts few work requests, which complete soon.
            config.send_blocks = config.send_blocks.min(64);
        }
        config.timeout = Some(self.timeout);
        config.error = Some(self.error.clone());
        config.doorbell = doorbell;
        Ok(self.pd.create_qp(&config)?)
    }
}
