//! The path by a NIC: queue pairs, work requests, registrations.

mod lane;
mod memory;
mod options;

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Region, Word32};
use gdsync::rdma::{Access, Device, Doorbell, Pd, Qp, QpConfig};

use super::{MOST_PIECES, WordOrder};
use crate::error::Result;

pub(crate) use lane::{Lane, Put, Words};
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub use options::NicOptions;

/// How queue pairs to peers are made.
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

/// What a peer may do with registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rights {
    /// All of it: memory of the application.
    All,
    /// Write words there, and read them to keep the order.
    Words,
    /// Write there.
    Write,
    /// Nothing: this rank puts from there.
    Source,
    /// Nothing: this rank's NIC reads into it.
    Landing,
}

impl Nic {
    /// The path by `device`. Queue pairs give up after `timeout`, and tell `error` of failures.
    ///
    /// # Errors
    /// `Invalid` for options out of range; what gdsync refuses.
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

    /// Whether this NIC knows memory by `keys`.
    pub fn knows(&self, keys: &Keys) -> bool {
        keys.0.is_of(&self.pd)
    }

    /// Memory that READs land in.
    fn landing(&self) -> Result<Keys> {
        let region = self.device.gpu().alloc(MemoryKind::Pinned, 64)?;
        self.register(&region, Rights::Landing)
    }

    fn queue_pair(&self, lane: usize, doorbell: Doorbell) -> Result<Qp> {
        let mut config = self.queues.clone();
        if lane == 0 {
            // What the CPU posts is little and done soon.
            config.send_blocks = config.send_blocks.min(32);
        }
        config.timeout = Some(self.timeout);
        config.error = Some(self.error.clone());
        config.doorbell = doorbell;
        Ok(self.pd.create_qp(&config)?)
    }
}
