//! Errors: operation, kind, rank, reason and limit.
//!
//! The text of an error is a sentence: `{operation}: {reason} (limit {n} {unit})`. The operation is
//! a verb phrase. The reason is a clause with a verb that says which object or rank is wrong and
//! why, and, after a semicolon, what the caller can do. An [`Error`] is one pointer wide. Its box
//! is allocated on the failing path only, so calls that succeed allocate nothing. Programs match on
//! the [`Kind`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use gdsync::Status;

/// The kind of an error.
///
/// A request that fails ends with [`PeerFailed`](Kind::PeerFailed), [`Failed`](Kind::Failed),
/// [`Truncated`](Kind::Truncated), [`Protocol`](Kind::Protocol) or [`Cancelled`](Kind::Cancelled):
/// a wait or a test of the request returns it. The other kinds are errors of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument or an environment variable has a value that the call does not accept: its size
    /// or range, or its combination with another argument.
    Invalid,
    /// The GPU, the NIC, the bootstrap, this build of the library or the state of the request does
    /// not support the operation.
    Unsupported,
    /// The message is longer than the memory of its receive. Both sides return this error, and the
    /// next message under the tag is received normally.
    Truncated,
    /// The peer died, left the job, or was given up, for example after a timeout. The status has
    /// the reason. All requests with this peer fail; messages between other ranks continue.
    PeerFailed(Status),
    /// The request failed on this rank. The status is that of the request.
    Failed(Status),
    /// A time limit passed: that of the call, or that of the context for a connection. The work
    /// that the call waited for continues, and the call may be repeated.
    Timeout,
    /// A queue, a window, a channel or the table of requests has no room now. The call may be
    /// repeated after requests have ended. With [`Full::Wait`](crate::Full::Wait) the call has
    /// waited for room already.
    QueueFull,
    /// The request does not have the state that the call needs: it was prepared and is not posted,
    /// or it was released.
    NoSuchRequest,
    /// The request is posted already, or an earlier receive from any rank under the same tag is
    /// unmatched.
    Busy,
    /// The request was cancelled with [`Request::cancel`](crate::Request::cancel).
    Cancelled,
    /// A record or a message of a peer or of the store is malformed or has another version, or the
    /// peer has other settings ([`Builder::eager_limit`](crate::Builder::eager_limit),
    /// [`Builder::depth`](crate::Builder::depth)).
    Protocol,
    /// One or more ranks did not join the job, or did not connect, in time. The reason has their
    /// numbers.
    Missing,
    /// The bootstrap no longer reaches the other ranks: its store has ended, or cannot be reached.
    /// Connections and tags that are open stay usable. No others can be opened until
    /// the bootstrap answers again.
    BootstrapLost,
    /// A library, a driver, a device, a directory or the job's store does not exist.
    Absent,
    /// A connection, a lane or a channel that the call needs is closed.
    Closed,
    /// gdsync returned an error of this kind, which has no variant here. The error itself is the
    /// [`source`](std::error::Error::source).
    Gdsync(gdsync::Kind),
    /// The operating system, a driver or a library refused a call, or a connection to the store
    /// broke. The reason says which.
    System,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: its operation, kind, rank, reason, limit and source. Its text is a sentence: the
/// operation that failed, the reason, and the limit with its unit.
///
/// ```
/// use mp::Kind;
/// # use mp::{Context, bootstrap::Local, gdsync::{Gpu, gpu::MemoryKind}};
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?; // rank 0 of 1
/// # let data = ctx.alloc(MemoryKind::Pinned, 8)?.all();
///
/// let e = ctx.isend(5, 7, &data).unwrap_err();
/// assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(5)));
/// assert!(e.to_string().contains("rank 5")); // one sentence
/// # Ok::<(), mp::Error>(())
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    kind: Kind,
    rank: Option<u32>,
    reason: String,
    limit: Option<(u64, &'static str)>,
    /// Tag and number of the message.
    message: Option<(u32, u64)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` of `operation`, a verb phrase. The reason is a clause with a verb, which
    /// names the rank if there is one. Public for other implementations of
    /// [`Bootstrap`](crate::Bootstrap).
    #[cold]
    pub fn new(operation: &'static str, kind: Kind, reason: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            operation,
            kind,
            rank: None,
            reason: reason.into(),
            limit: None,
            message: None,
            source: None,
        }))
    }

    /// The error for a rank that the job does not have.
    #[cold]
    pub(crate) fn outside_job(operation: &'static str, rank: u32, size: u32) -> Error {
        let what = format!("rank {rank} is not in the job of {size} ranks");
        Error::new(operation, Kind::Invalid, what).with_rank(rank)
    }

    /// The error for a request that was released.
    #[cold]
    pub(crate) fn unknown_request(operation: &'static str) -> Error {
        let what = "the handle is unknown: the request was already released";
        Error::new(operation, Kind::NoSuchRequest, what)
    }

    /// The error for a request that was prepared and not posted.
    #[cold]
    pub(crate) fn unposted(operation: &'static str) -> Error {
        let what = "the request is not posted; post it first";
        Error::new(operation, Kind::NoSuchRequest, what)
    }

    /// Adds the rank, which the reason already names in words.
    #[cold]
    #[must_use]
    pub fn with_rank(mut self, rank: u32) -> Error {
        self.0.rank = Some(rank);
        self
    }

    /// Adds the limit that was reached, and its unit.
    #[cold]
    #[must_use]
    pub fn with_limit(mut self, limit: impl TryInto<u64>, unit: &'static str) -> Error {
        self.0.limit = limit.try_into().ok().map(|limit| (limit, unit));
        self
    }

    /// Adds the source of the error.
    #[cold]
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Adds rank, tag and number of the message, which the reason already names in words.
    #[cold]
    pub(crate) fn of_message(mut self, rank: Option<u32>, tag: u32, number: u64) -> Error {
        self.0.rank = rank;
        self.0.message = Some((tag, number));
        self
    }

    /// Adds to the reason that `more` other requests failed as well.
    #[cold]
    pub(crate) fn and_more(mut self, more: usize) -> Error {
        let requests = if more == 1 { "request" } else { "requests" };
        self.0.reason += &format!(" ({more} other {requests} failed as well)");
        self
    }

    /// Attributes an error of a queue pair to `rank` to that peer: a failure, or a full queue.
    #[cold]
    pub(crate) fn of_peer(mut self, rank: u32) -> Error {
        let inner = &mut *self.0;
        match inner.kind {
            _ if inner.rank.is_some() => return self,
            // Of a queue of copies, which is not one of gdsync.
            Kind::PeerFailed(_) => {}
            _ if inner.source.is_none() => return self,
            Kind::Failed(status) => inner.kind = Kind::PeerFailed(status),
            Kind::QueueFull => {}
            _ => return self,
        }
        inner.reason = format!("rank {rank}: {}", inner.reason);
        self.with_rank(rank)
    }

    /// The reason and the limit with its unit.
    pub(crate) fn sentence(&self) -> String {
        match self.0.limit {
            Some((limit, unit)) => format!("{} (limit {limit} {unit})", self.0.reason),
            None => self.0.reason.clone(),
        }
    }

    /// The kind of the error.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The operation that failed, as a verb phrase: `prepare send`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The object and the reason, as a clause: what is wrong, and what the caller can do, without
    /// the limit.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// The rank that the error names; `None` if it names no rank.
    pub fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    /// The tag of the message that the error names; `None` if it names no message.
    pub fn tag(&self) -> Option<u32> {
        self.0.message.map(|(tag, _)| tag)
    }

    /// The number of the message under its rank and tag; 0 for a receive from any rank that matched
    /// no message; `None` if the error names no message.
    pub fn number(&self) -> Option<u64> {
        self.0.message.map(|(_, number)| number)
    }

    /// The limit that an argument or the state exceeds, in [`limit_unit`](Error::limit_unit);
    /// `None` if the error has no limit.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit.map(|(limit, _)| limit)
    }

    /// The unit of the limit, in the plural: `ms`, `bytes`, `ranks`. For a number without a unit it
    /// says what the limit is: `as the highest value`. `None` if the error has no limit.
    pub fn limit_unit(&self) -> Option<&'static str> {
        self.0.limit.map(|(_, unit)| unit)
    }

    /// The status of a [`Kind::Failed`], [`Kind::PeerFailed`] or [`Kind::Truncated`] error: that of
    /// the request, or of the failure of the peer. `None` for other kinds.
    pub fn status(&self) -> Option<Status> {
        match self.0.kind {
            Kind::PeerFailed(status) | Kind::Failed(status) => Some(status),
            Kind::Truncated => Some(Status::TRUNCATED),
            _ => None,
        }
    }
}

impl From<gdsync::Error> for Error {
    #[cold]
    fn from(e: gdsync::Error) -> Error {
        let kind = match e.kind() {
            gdsync::Kind::Invalid => Kind::Invalid,
            gdsync::Kind::Unsupported => Kind::Unsupported,
            gdsync::Kind::QueueFull => Kind::QueueFull,
            gdsync::Kind::Busy => Kind::Busy,
            gdsync::Kind::Timeout => Kind::Timeout,
            gdsync::Kind::Absent => Kind::Absent,
            gdsync::Kind::System => Kind::System,
            gdsync::Kind::Protocol => Kind::Protocol,
            gdsync::Kind::Failed(status) => Kind::Failed(status),
            other => Kind::Gdsync(other),
        };
        let reason = match e.status() {
            Some(status) => format!("{}: {status}", e.reason()),
            None => e.reason().to_owned(),
        };
        let mut error = Error::new(e.operation(), kind, reason);
        error.0.limit = e.limit().zip(e.limit_unit());
        error.with_source(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.operation, self.sentence())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} [{:?}]", self.0.kind)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

/// A duration with its unit, for the texts of errors: `30 s`, `2.5 s`, `250 ms`.
pub(crate) fn time(d: Duration) -> String {
    match d.as_millis() {
        0..1000 => format!("{} ms", d.as_millis()),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_prints_operation_reason_and_limit_and_keeps_its_source() {
        let e = Error::new("prepare send", Kind::Invalid, "31 segments are too many")
            .with_limit(30u32, "segments")
            .with_source(std::io::Error::other("cause"));
        let text = "prepare send: 31 segments are too many (limit 30 segments)";
        assert_eq!(e.to_string(), text);
        assert_eq!((e.kind(), e.limit()), (Kind::Invalid, Some(30)));
        assert!(StdError::source(&e).is_some());
        assert_eq!(std::mem::size_of::<Error>(), std::mem::size_of::<usize>());
    }

    #[test]
    fn times_are_written_with_their_unit() {
        let time = |ms| time(Duration::from_millis(ms));
        assert_eq!(
            [time(30_000), time(2_500), time(250), time(0)],
            ["30 s", "2.5 s", "250 ms", "0 ms"]
        );
    }
}
