//! How the ranks of a job find each other: rank, size, and control messages between ranks.
//!
//! A [`Bootstrap`] gives a rank its number and carries *control messages*: short, reliable, ordered
//! between two ranks, separated by topic. Contexts use them to exchange addresses at the first use
//! of a peer or a tag. The bytes of the application's messages never use them.
//!
//! - [`from_env`] selects one of the following by the environment variables that the launcher sets
//!   (`mprun`, mpirun, srun, torchrun). It is the default of a context. [`mod@env`] describes the
//!   choice.
//! - [`Local`]: the ranks are threads or fibers of one process.
//! - [`Tcp`]: the ranks meet at a store that `mprun` or rank 0 hosts, on one or several hosts.
//!   [`tcp::Server`] is the store.
//! - [`Directory`]: the ranks meet in a directory, on one host or on a shared file system.
//!
//! A program with a launcher of its own implements [`Bootstrap`] and passes it to
//! [`Builder::bootstrap`](crate::Builder::bootstrap).
//!
//! A [`Secret`] authenticates the ranks of a job that meet at a store; what passes the store is not
//! encrypted: use networks that you trust. If the store is lost, peers and tags that are open stay
//! usable, and no others can be opened ([`Kind::BootstrapLost`]).

use std::fmt;
use std::net::IpAddr;
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

/// The maximum length of one control message, in bytes.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// The maximum number of bytes of control messages that one rank may have in flight to another: the
/// messages and an overhead of 64 bytes for each, until the other rank receives them.
pub const WINDOW: u32 = 1 << 20;

/// A job as one of its ranks sees it: rank, size, and control messages to other ranks.
///
/// After the start nothing is collective. `send` and `receive` block at most for a local copy or
/// for a system call that does not wait, because contexts call them from their background thread.
/// When the value is dropped, its rank has left the job.
///
/// ```
/// use mp::Bootstrap;
/// use mp::bootstrap::Local;
///
/// let ranks = Local::ranks(2); // both in this thread
/// assert_eq!((ranks[1].rank(), ranks[1].size()), (1, 2));
/// let topic = 17;
/// ranks[0].send(1, topic, b"address")?;
/// assert_eq!(ranks[1].receive(topic)?, Some((0, b"address".to_vec())));
/// assert_eq!(ranks[1].receive(topic)?, None);
/// # Ok::<(), mp::Error>(())
/// ```
pub trait Bootstrap: Send + Sync + fmt::Debug {
    /// The number of this rank, 0 to `size` - 1.
    fn rank(&self) -> u32;

    /// The number of ranks in the job.
    fn size(&self) -> u32;

    /// The number of the job: equal in all its ranks, different from that of other jobs.
    fn job(&self) -> u64;

    /// Sends a control message to rank `to` under `topic`, and does not wait for it to be received.
    /// It arrives if both ranks live. Messages to one rank arrive in the order of the calls.
    ///
    /// # Errors
    /// - `Invalid` if the job has no rank `to`, or for a message longer than [`MAX_MESSAGE`].
    /// - `QueueFull` while `to` has not received this rank's messages and they fill the [`WINDOW`].
    /// - `PeerFailed` if `to` is known to be gone: the context then treats it as failed.
    /// - `System` if the bootstrap cannot deliver: the context keeps the message and retries.
    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()>;

    /// Returns the next control message under `topic`, with its sender, or `None` if none has
    /// arrived. It does not wait. Messages under other topics are kept, up to [`WINDOW`] bytes per
    /// sender; a sender beyond that gets `QueueFull`. Messages that a rank sent before it was gone
    /// are still received.
    ///
    /// # Errors
    /// `System` if the connection to the other ranks is lost; `Protocol` if received bytes are
    /// malformed.
    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>>;

    /// Drops the messages that have arrived under `topic` and those that arrive later. A context
    /// calls it when its last handle is dropped. Default: nothing.
    fn forget(&self, topic: u64) {
        let _ = topic;
    }

    /// Whether `topic` was forgotten. A context whose name was used before then takes another
    /// topic. Default: `false`.
    fn is_forgotten(&self, topic: u64) -> bool {
        let _ = topic;
        false
    }

    /// Whether `rank` is known to have left the job or died; `false` if it is not known. A rank
    /// that is gone stays gone. This may read a file. A context calls it ten times a second,
    /// without its lock, for one rank in turn and for each rank that a request waits for. Default:
    /// `false`.
    fn gone(&self, rank: u32) -> bool {
        let _ = rank;
        false
    }

    /// The number of the host of a rank: ranks of equal numbers can open each other's sockets and
    /// pass file descriptors. `None` if it is not known, or if the job has no rank `rank`. Default:
    /// `None`.
    fn host(&self, rank: u32) -> Option<u64> {
        let _ = rank;
        None
    }

    /// A key that all ranks of the job have, and no process outside of the job. By it, TCP
    /// connections between contexts prove that they are of the job ([`Path::Tcp`](crate::Path::Tcp)).
    /// With `None`, TCP reaches only ranks of this process; another one is an error of the first
    /// message. Default: `None`.
    fn key(&self) -> Option<[u8; 32]> {
        None
    }

    /// The address of this host by which this rank reached the others; `None` if it is not known.
    /// Default: `None`.
    fn local_address(&self) -> Option<IpAddr> {
        None
    }

    /// Sends a copy of a file descriptor to a rank of the same host, under `topic`. Descriptors and
    /// messages have separate topics, and there is no order between them.
    ///
    /// # Errors
    /// As [`send`](Bootstrap::send), with a limit of descriptors that are not received yet;
    /// `Unsupported` if the rank is on another host, or if this bootstrap does not pass descriptors
    /// (the default).
    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        let _ = (topic, fd);
        let what = "this bootstrap passes no descriptors; use Local, Tcp or Directory";
        Err(Error::new(PASS, Kind::Unsupported, what).with_rank(to))
    }

    /// Returns the next file descriptor under `topic`, with its sender, or `None` if none has
    /// arrived. It does not wait.
    ///
    /// # Errors
    /// As [`receive`](Bootstrap::receive); `Unsupported` if this bootstrap does not pass
    /// descriptors.
    fn receive_fd(&self, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        let _ = topic;
        let what = "this bootstrap passes no descriptors; use Local, Tcp or Directory";
        Err(Error::new(RECEIVE_FD, Kind::Unsupported, what))
    }
}

/// The [`Bootstrap::key`] of a job whose ranks share `secret`.
fn key_of(secret: &Secret, job: u64) -> [u8; 32] {
    let key = secret.proof("TCP between contexts", &[&job.to_le_bytes()]);
    *key.as_bytes()
}

/// Takes a lock. A panic of another holder leaves the guarded value consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const JOIN: &str = "join job";
const SEND: &str = "send control message";
const RECEIVE: &str = "receive control message";
const PASS: &str = "pass descriptor";
const RECEIVE_FD: &str = "receive descriptor";

/// Fails if a job of this size has no rank `rank`, or if the job is too large.
fn fits(rank: u32, size: u32) -> Result<()> {
    if size > wire::MAX_RANKS {
        let what = format!("a job of {size} ranks is too large");
        let error = Error::new(JOIN, Kind::Invalid, what).with_rank(rank);
        return Err(error.with_limit(wire::MAX_RANKS, "ranks"));
    }
    if rank >= size {
        return Err(Error::outside_job(JOIN, rank, size));
    }
    Ok(())
}

/// Fails if the job has no rank `to`, or if the message is too long.
fn check(size: u32, to: u32, message: &[u8]) -> Result<()> {
    if to >= size {
        return Err(Error::outside_job(SEND, to, size));
    }
    if message.len() > MAX_MESSAGE {
        let what = format!("a control message of {} bytes is too long", message.len());
        let error = Error::new(SEND, Kind::Invalid, what).with_rank(to);
        return Err(error.with_limit(MAX_MESSAGE, "bytes"));
    }
    Ok(())
}

#[cold]
fn gone(rank: u32) -> Error {
    let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
    let what = format!("rank {rank} has left the job or has died");
    Error::new(SEND, kind, what).with_rank(rank)
}

#[cold]
fn full(rank: u32) -> Error {
    let what = format!(
        "the window to rank {rank} is full, because rank {rank} does not receive its control \
         messages; retry later"
    );
    let error = Error::new(SEND, Kind::QueueFull, what).with_rank(rank);
    error.with_limit(WINDOW, "bytes")
}

#[cold]
fn too_many(rank: u32) -> Error {
    let what = format!(
        "too many descriptors to rank {rank} are not received yet; retry when it has received some"
    );
    Error::new(PASS, Kind::QueueFull, what).with_rank(rank)
}

/// Duplicates the descriptor `fd`.
fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    fd.try_clone_to_owned().map_err(|e| {
        let what = "the descriptor cannot be duplicated";
        Error::new(PASS, Kind::System, what).with_source(e)
    })
}

/// Fails if `from` cannot pass a descriptor to `to`.
fn check_host(from: &impl Bootstrap, to: u32) -> Result<()> {
    check(from.size(), to, &[])?;
    if from.host(to) == from.host(from.rank()) {
        return Ok(());
    }
    let what = format!("rank {to} is on another host, and a descriptor is valid on one host only");
    Err(Error::new(PASS, Kind::Unsupported, what).with_rank(to))
}

/// The error if `count` ranks, the first of which are `some`, have not joined within `limit`.
#[cold]
fn missing(limit: Duration, count: u32, some: &[u32]) -> Error {
    const SHOWN: usize = 20;
    if let [rank] = some
        && count == 1
    {
        let what = format!(
            "rank {rank} did not join in time; check that it was started and reaches the store"
        );
        let error = Error::new(JOIN, Kind::Missing, what).with_rank(*rank);
        return error.with_limit(limit.as_millis(), "ms");
    }
    let shown = some.iter().take(SHOWN).map(u32::to_string);
    let mut names = shown.collect::<Vec<_>>().join(", ");
    if count as usize > SHOWN {
        names += &format!(" and {} more", count as usize - SHOWN);
    }
    let what = format!(
        "ranks {names} did not join in time; check that they were started and reach the store"
    );
    Error::new(JOIN, Kind::Missing, what).with_limit(limit.as_millis(), "ms")
}
