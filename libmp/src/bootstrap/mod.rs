//! How ranks find each other: who they are, and small messages between them before, and beside,
//! what goes over NICs.
//!
//! A [`Bootstrap`] gives a rank its number and carries *control messages*: short, reliable, in
//! order between two ranks, sorted by topic. Contexts use it to exchange addresses when a peer
//! or a tag is used first; payload never goes this way.

use std::fmt;

use crate::error::Result;

/// Longest control message in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// A job as one of its ranks sees it.
///
/// After the start nothing is collective. `send` and `receive` never block for longer than a
/// local copy or a system call that does not wait: contexts call them from the watcher.
pub trait Bootstrap: Send + Sync + fmt::Debug {
    /// This rank, 0 to `size` - 1.
    fn rank(&self) -> u32;

    /// How many ranks the job has.
    fn size(&self) -> u32;

    /// A number that all ranks of the job share and other jobs do not.
    fn job(&self) -> u64;

    /// Hands a message for `to` over. It arrives if both ranks live, in the order of the calls.
    ///
    /// # Errors
    /// `Invalid` for a rank that the job has not or a message longer than [`MAX_MESSAGE`];
    /// `PeerFailed` if `to` is known to be gone; `System` if the way to it is.
    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()>;

    /// The next message under `topic`, with its sender, if one has arrived. Messages under topics
    /// that nobody asks for are kept, up to a bound.
    ///
    /// # Errors
    /// `System` if the way to the others is gone; `Protocol` if something arrived that cannot be
    /// understood.
    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>>;
}
