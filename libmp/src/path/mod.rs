//! How bytes reach a peer: a path for each, chosen once.
//!
//! Messages need four things of a peer: put bytes into its memory ([`Batch::put`]), put a word of 64
//! bits behind them ([`Batch::announce`]), wait for a word of this rank's own ([`List::wait_for`]),
//! and know that what was put is done here ([`Lane::poll`]). What stands above speaks of nothing
//! else: queue pairs, work requests and keys are known to `nic` alone, WQEs in memory to `local`.
//!
//! Each path is a folder with types of the same names; the types here are one or the other. Another
//! path is a folder beside these, a variant of [`Path`], and a kind of
//! [`wire::record::Record`](crate::wire::record::Record), by which ranks name their ends and their
//! memory.

mod batch;
mod lane;
mod link;
mod list;
mod local;
mod memory;
mod nic;
mod order;

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Region, Word32};
use gdsync::rdma::Device;
use gdsync::{Gpu, Stream};

use crate::error::{Error, Kind, Result};
use crate::kernels::Kernels;

pub(crate) use batch::{Batch, Put};
pub(crate) use lane::Lane;
pub(crate) use link::{LANES, Link};
pub(crate) use list::List;
pub(crate) use memory::{Keys, Piece, Remote, Span};
pub use nic::NicOptions;
pub(crate) use nic::Rights;
pub use order::WordOrder;

/// Pieces of one put.
pub(crate) const MOST_PIECES: usize = 30;
/// Bytes of one put.
pub(crate) const MOST_BYTES: u64 = 1 << 30;

/// How bytes reach a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// By queue pairs of this rank's NIC.
    Nic,
    /// By copies within the memory of this rank's GPU and host.
    Local,
}

impl Path {
    /// The path from `me` to `peer`, and why it is that one.
    pub(crate) fn choose(me: u32, peer: u32) -> (Path, &'static str) {
        match me == peer {
            true => (
                Path::Local,
                "the rank itself: its memory is copied, by no NIC",
            ),
            false => (Path::Nic, "the NIC reaches every rank"),
        }
    }
}

/// What a rank opens once for each path.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    me: u32,
    nic: nic::Nic,
    local: local::Local,
}

impl Paths {
    /// Those of rank `me`. Queue pairs of `device` give up after `timeout`, and tell `error` of
    /// failures.
    ///
    /// # Errors
    /// `Invalid` for options out of range; what gdsync refuses.
    pub fn open(
        me: u32,
        device: &Device,
        options: &NicOptions,
        timeout: Duration,
        error: &Word32,
        kernels: Option<Kernels>,
    ) -> Result<Paths> {
        Ok(Paths {
            me,
            nic: nic::Nic::open(me, device, options, timeout, error)?,
            local: local::Local::new(device.gpu(), kernels),
        })
    }

    /// Paths for tests that need memory only; the rank is one that no test sends to.
    #[cfg(test)]
    pub fn for_test(device: &Device) -> Paths {
        let word = device.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
        let (options, error) = (NicOptions::default(), word.word32(0).unwrap());
        let kernels = Kernels::of(device.gpu()).ok();
        Paths::open(1 << 16, device, &options, Duration::ZERO, &error, kernels).unwrap()
    }

    /// The one to `peer`.
    pub fn to(&self, peer: u32) -> Path {
        Path::choose(self.me, peer).0
    }

    pub fn gpu(&self) -> &Gpu {
        self.device().gpu()
    }

    /// The NIC.
    pub fn device(&self) -> &Device {
        &self.nic.device
    }

    /// Makes the keys of `region`.
    pub fn register(&self, region: &Region, rights: Rights) -> Result<Keys> {
        let nic = self.nic.register(region, rights)?;
        Ok(Keys::new(nic, &self.local))
    }

    /// Pinned memory with keys.
    pub fn pinned(&self, len: usize, rights: Rights) -> Result<Keys> {
        self.register(&self.gpu().alloc(MemoryKind::Pinned, len)?, rights)
    }

    /// Whether memory was registered with these paths.
    pub fn knows(&self, keys: &Keys) -> bool {
        self.nic.knows(keys.nic())
    }

    /// Does the work of the paths that no thread does.
    pub fn progress(&self) {
        self.nic.device.progress();
    }
}

/// What was made for one path, and used on another.
#[cold]
fn foreign(operation: &'static str) -> Error {
    Error::new(operation, Kind::Invalid, "it belongs to another path")
}

/// Refuses a stream that is being captured: each message has one number, and a graph may run many
/// times.
///
/// # Errors
/// `Unsupported`; what gdsync says if it cannot tell.
pub(crate) fn uncaptured(stream: &Stream, operation: &'static str) -> Result<()> {
    if !stream.is_capturing()? {
        return Ok(());
    }
    let what = format!(
        "{stream:?} is being captured into a graph, which can hold no message: end the capture first"
    );
    Err(Error::new(operation, Kind::Unsupported, what))
}
