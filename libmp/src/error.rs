//! Errors: the operation, the kind of failure, the rank, the object and the limit.
//!
//! An [`Error`] is one pointer wide; it allocates only on the failing path. Programs match on
//! [`Kind`].

use std::error::Error as StdError;
use std::fmt;

use gdsync::Status;

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument is outside the range that the call accepts.
    Invalid,
    /// The runtime, the device or the state of the request does not support this.
    Unsupported,
    /// The message is longer than the memory of the receive.
    Truncated,
    /// The peer failed or was given up; the status has the reason.
    PeerFailed(Status),
    /// A request failed on this side; the status has the reason.
    Failed(Status),
    /// The timeout of the caller expired.
    Timeout,
    /// A queue is full; the call may succeed later.
    QueueFull,
    /// The request is unknown (already released) or was not posted.
    NoSuchRequest,
    /// The object is in use, and the use excludes this operation.
    Busy,
    /// The request was cancelled.
    Cancelled,
    /// The peer has another version or other settings, or sent an invalid message.
    Protocol,
    /// One or more ranks did not join.
    Missing,
    /// The bootstrap does not reach the other ranks, because its store has died. Peers and tags
    /// that are open stay usable; no others can be opened.
    BootstrapLost,
    /// A required object does not exist.
    Absent,
    /// The context is closed.
    Closed,
    /// gdsync returned an error of this kind.
    Gdsync(gdsync::Kind),
    /// The operating system returned an error.
    System,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: {operation, kind, rank, object, limit, source}.
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    kind: Kind,
    rank: Option<u32>,
    object: String,
    limit: Option<(u64, &'static str)>,
    /// Tag and number of the message.
    message: Option<(u32, u64)>,
    /// The object is a whole sentence that names rank and reason itself.
    whole: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error of `kind` for `operation` on `object`. Public for other implementations of
    /// [`Bootstrap`](crate::Bootstrap).
    #[cold]
    pub fn new(operation: &'static str, kind: Kind, object: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            operation,
            kind,
            rank: None,
            object: object.into(),
            limit: None,
            message: None,
            whole: false,
            source: None,
        }))
    }

    /// A request that is unknown, because it was released.
    #[cold]
    pub(crate) fn unknown_request(operation: &'static str) -> Error {
        Error::new(operation, Kind::NoSuchRequest, "unknown (already released)")
    }

    /// A request that was prepared and not posted.
    #[cold]
    pub(crate) fn unposted(operation: &'static str) -> Error {
        Error::new(operation, Kind::NoSuchRequest, "not posted: post it first")
    }

    /// Sets the rank.
    #[cold]
    #[must_use]
    pub fn with_rank(mut self, rank: u32) -> Error {
        self.0.rank = Some(rank);
        self
    }

    /// Sets the limit that was exceeded.
    #[cold]
    #[must_use]
    pub fn with_limit(mut self, limit: impl TryInto<u64>, unit: &'static str) -> Error {
        self.0.limit = limit.try_into().ok().map(|limit| (limit, unit));
        self
    }

    /// Sets the cause.
    #[cold]
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// Marks the object as a whole sentence that names rank and reason itself.
    #[cold]
    pub(crate) fn whole(mut self) -> Error {
        self.0.whole = true;
        self
    }

    /// Sets rank, tag and number of the message; the object already names them in words.
    #[cold]
    pub(crate) fn of_message(mut self, rank: Option<u32>, tag: u32, number: u64) -> Error {
        self.0.rank = rank;
        self.0.message = Some((tag, number));
        self.whole()
    }

    /// Adds to the text that `more` other requests failed as well.
    #[cold]
    pub(crate) fn and_more(mut self, more: usize) -> Error {
        let requests = if more == 1 { "request" } else { "requests" };
        self.0.object += &format!(" ({more} other {requests} failed as well)");
        self
    }

    /// Attributes an error of a queue pair to `rank` to that peer: a failure, or a full queue.
    #[cold]
    pub(crate) fn of_peer(mut self, rank: u32) -> Error {
        let inner = &mut *self.0;
        match inner.kind {
            _ if inner.rank.is_some() || inner.source.is_none() => return self,
            Kind::Failed(status) => inner.kind = Kind::PeerFailed(status),
            Kind::QueueFull => {}
            _ => return self,
        }
        self.with_rank(rank)
    }

    /// The kind of failure.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The operation that failed, as a verb: `post send`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The object concerned, and the reason.
    pub fn reason(&self) -> &str {
        &self.0.object
    }

    /// The rank concerned, if there is one.
    pub fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    /// The tag of the message concerned, if there is one.
    pub fn tag(&self) -> Option<u32> {
        self.0.message.map(|(tag, _)| tag)
    }

    /// The number of the message concerned under its rank and tag, if there is one; 0 for a receive
    /// from any rank that matched no message.
    pub fn number(&self) -> Option<u64> {
        self.0.message.map(|(_, number)| number)
    }

    /// The limit that was exceeded, if there is one.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit.map(|(limit, _)| limit)
    }

    /// The unit of the limit: `ms`, `bytes`, `SGEs`.
    pub fn limit_unit(&self) -> Option<&'static str> {
        self.0.limit.map(|(_, unit)| unit)
    }

    /// The status of the failed request, if the error is about a request.
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
        let mut error = Error::new(e.operation(), kind, e.reason());
        error.0.limit = e.limit().zip(e.limit_unit());
        error.with_source(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0.operation)?;
        if let Some(rank) = self.0.rank.filter(|_| !self.0.whole) {
            write!(f, "rank {rank}: ")?;
        }
        f.write_str(&self.0.object)?;
        if let Some((limit, unit)) = self.0.limit {
            write!(f, " (limit {limit} {unit})")?;
        }
        if let Some(status) = self.status().filter(|_| !self.0.whole) {
            write!(f, ": {status}")?;
        }
        Ok(())
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
