//! How ranks find each other: rank, size, and control messages between ranks, before and beside the
//! messages that paths carry.
//!
//! A [`Bootstrap`] gives a rank its number and carries *control messages*: short, reliable, in
//! order between two ranks, sorted by topic. Contexts use it to exchange addresses when a peer
//! or a tag is used first; payload never goes this way.
//!
//! [`Local`] ranks are threads or fibers of one process; [`Tcp`] ranks meet at a store that
//! `mprun` or rank 0 hosts; [`Directory`] ranks meet in a directory and need no network.
//! [`from_env`] chooses by what the launcher left in the environment. Secrets guard who takes
//! part; they do not encrypt: use networks that you trust.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdsync::Status;

use crate::error::{Error, Kind, Result};

mod bytes;
mod descriptors;
mod directory;
pub mod env;
#[doc(hidden)]
pub mod fuzz;
mod host;
mod inbox;
mod job_dir;
mod local;
mod notes;
mod output;
mod relay;
mod secret;
mod server;
mod session;
mod slot;
pub mod tcp;
#[doc(hidden)]
pub mod wire;

pub use directory::Directory;
pub use env::from_env;
pub use local::Local;
pub use secret::Secret;
pub use tcp::Tcp;

/// Longest control message in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// How much one rank may have under way to another: the bytes of its messages and a little for
/// each, until they are received.
pub const WINDOW: u32 = 1 << 20;

/// A job as one of its ranks sees it.
///
/// After the start nothing is collective. `send` and `receive` never block for longer than a
/// local copy or a system call that does not wait: contexts call them from their thread.
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
    /// `QueueFull` while `to` has too much of this rank that it did not receive ([`WINDOW`]);
    /// `PeerFailed` if `to` is known to be gone: the context gives it up. `System` if the
    /// bootstrap cannot deliver: the context keeps the message and tries again.
    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()>;

    /// The next message under `topic`, with its sender, if one has arrived. Messages under topics
    /// that nobody asks for are kept, up to a bound: their senders are told that the way is full.
    /// What a rank sent before it was gone is still received.
    ///
    /// # Errors
    /// `System` if the way to the others is gone; `Protocol` if something arrived that cannot be
    /// understood.
    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>>;

    /// Drops what has arrived under `topic` and what will arrive: nobody is going to ask for it.
    fn forget(&self, topic: u64) {
        let _ = topic;
    }

    /// Whether `topic` was forgotten: a context whose name was used before takes another one.
    fn is_forgotten(&self, topic: u64) -> bool {
        let _ = topic;
        false
    }

    /// Whether `rank` is known to have left the job or died. A rank that is gone stays so. This may
    /// read a file: ten times a second a context calls this, without its lock, for one rank in
    /// turn and for each rank that a request waits for.
    fn gone(&self, rank: u32) -> bool {
        let _ = rank;
        false
    }

    /// The host that a rank is on: ranks of equal numbers can open each other's sockets and pass
    /// descriptors. None if it is not known, or there is no such rank.
    fn host(&self, rank: u32) -> Option<u64> {
        let _ = rank;
        None
    }

    /// Hands a copy of a descriptor to a rank of the same host. Topics of descriptors are apart
    /// from those of messages, and neither overtakes or waits for the other.
    ///
    /// # Errors
    /// As [`send`](Bootstrap::send); `Unsupported` if the rank is on another host, or this
    /// bootstrap passes none.
    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        let _ = (topic, fd);
        let text = "this bootstrap passes no descriptors";
        Err(Error::new("pass a descriptor", Kind::Unsupported, text).with_rank(to))
    }

    /// The next descriptor under `topic`, with its sender, if one has arrived.
    ///
    /// # Errors
    /// As [`receive`](Bootstrap::receive); `Unsupported` if this bootstrap passes none.
    fn receive_fd(&self, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        let _ = topic;
        let text = "this bootstrap passes no descriptors";
        Err(Error::new("receive a descriptor", Kind::Unsupported, text))
    }
}

/// Takes a lock. What it guards holds whatever panicked meanwhile.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const JOIN: &str = "join the job";
const SEND: &str = "send a control message";
const RECEIVE: &str = "receive a control message";

/// Refuses a rank that a job of this size has not, and a job that is too large.
fn fits(rank: u32, size: u32) -> Result<()> {
    if rank < size && size <= wire::MAX_RANKS {
        return Ok(());
    }
    let text = format!("there are {size} ranks");
    let error = Error::new(JOIN, Kind::Invalid, text).with_rank(rank);
    Err(error.with_limit(wire::MAX_RANKS))
}

/// Refuses ranks that the job has not and messages that are too long.
fn check(size: u32, to: u32, message: &[u8]) -> Result<()> {
    if to >= size {
        let text = format!("the job has {size} ranks");
        return Err(Error::new(SEND, Kind::Invalid, text).with_rank(to));
    }
    if message.len() > MAX_MESSAGE {
        let text = format!("{} bytes", message.len());
        let error = Error::new(SEND, Kind::Invalid, text).with_rank(to);
        return Err(error.with_limit(MAX_MESSAGE));
    }
    Ok(())
}

#[cold]
fn gone(rank: u32) -> Error {
    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
    Error::new(SEND, kind, "has left the job, or died").with_rank(rank)
}

#[cold]
fn full(rank: u32) -> Error {
    let text = "does not receive what it is sent";
    let error = Error::new(SEND, Kind::QueueFull, text).with_rank(rank);
    error.with_limit(WINDOW)
}

#[cold]
fn too_many(rank: u32) -> Error {
    let text = "does not receive the descriptors it is sent";
    Error::new("pass a descriptor", Kind::QueueFull, text).with_rank(rank)
}

/// A descriptor of our own for what `fd` names.
fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|e| {
        Error::new("pass a descriptor", Kind::System, "it cannot be copied").with_source(e)
    })
}

/// Refuses ranks to which `from` cannot pass a descriptor.
fn check_host(from: &impl Bootstrap, to: u32) -> Result<()> {
    check(from.size(), to, &[])?;
    if from.host(to) == from.host(from.rank()) {
        return Ok(());
    }
    let text = "is on another host";
    Err(Error::new("pass a descriptor", Kind::Unsupported, text).with_rank(to))
}

/// `count` ranks, the first of which are `some`, have not come within `limit`.
#[cold]
fn missing(limit: Duration, count: u32, some: &[u32]) -> Error {
    const SHOWN: usize = 20;
    let shown = some.iter().take(SHOWN).map(u32::to_string);
    let mut names = shown.collect::<Vec<_>>().join(", ");
    if count as usize > SHOWN {
        names += &format!(" and {} more", count as usize - SHOWN);
    }
    let ms = limit.as_millis();
    let error = |text| Error::new(JOIN, Kind::Missing, text).with_limit(ms);
    match some {
        [one] if count == 1 => error("has not come in time, in ms".to_string()).with_rank(*one),
        _ => error(format!("ranks {names} have not come in time, in ms")),
    }
}
