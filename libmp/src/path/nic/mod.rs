//! The paths by queue pairs of a device: a NIC, or one whose packets TCP carries. Queue pairs, work
//! requests, memory registrations.

mod lane;
mod memory;
mod options;

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Region, Word32};
use gdsync::rdma::{Access, Device, Doorbell, Pd, Provider, Qp, QpConfig};

use super::choice::own_queues;
use super::{MOST_PIECES, Path, WordOrder};
use crate::error::Result;
use crate::wire::control::NicSort;

pub(crate) use lane::{Lane, Put, WordOrdering};
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub use options::NicOptions;

/// A device of a rank, and the settings of its queue pairs.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub me: u32,
    pub device: Device,
    /// The path by its queue pairs: [`Path::Nic`] or [`Path::Tcp`].
    pub path: Path,
    pd: Pd,
    /// Whether it reaches only ranks of this process.
    pub alone: bool,
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
            path: own_queues(sort_of(device)),
            pd: device.alloc_pd()?,
            alone: false,
            queues: options.queues.clone(),
            timeout,
            error: error.clone(),
        })
    }

    /// Another device with the same settings. `alone`: it reaches only ranks of this process.
    pub fn with(&self, device: &Device, alone: bool) -> Result<Nic> {
        Ok(Nic {
            device: device.clone(),
            path: own_queues(sort_of(device)),
            pd: device.alloc_pd()?,
            alone,
            ..self.clone()
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
        Ok(Keys {
            mr: self.pd.register(region, access)?,
            path: self.path,
        })
    }

    /// Whether `keys` are a registration with this device.
    pub fn knows(&self, keys: &Keys) -> bool {
        keys.mr.is_of(&self.pd)
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

/// What the peers of a rank with this device need to know of it.
pub(crate) fn sort_of(device: &Device) -> NicSort {
    match device.provider() {
        Provider::Tcp => NicSort::Absent,
        Provider::Emulated => NicSort::Virtual,
        _ => NicSort::Physical,
    }
}
