//! Errors: operation, kind, reason and limit.
//!
//! The text of an error is a sentence: `{operation}: {reason} (limit {n} {unit})`. The operation is
//! a verb phrase. The reason is a clause with a verb that says which object is wrong and why, and,
//! after a semicolon, what the caller can do. An [`Error`] is one pointer wide. Its box is allocated
//! on the failing path only, so calls that succeed allocate nothing. Programs match on the [`Kind`].

use std::error::Error as StdError;
use std::fmt;

use crate::status::Status;

/// The kind of an error, for programs that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument or an environment variable has a value that the call does not accept: its size,
    /// alignment or range, or its combination with another argument.
    Invalid,
    /// The runtime, the GPU, the NIC, its provider or this build of the library does not support
    /// the operation.
    Unsupported,
    /// The memory has no registration with the NIC that the request uses, or its registration does
    /// not grant the access right that the request needs.
    NotRegistered,
    /// An object belongs to another GPU, runtime, protection domain or queue pair than the call
    /// needs, or to the time before a reset.
    Foreign,
    /// A work queue, a completion queue or a waiting stream has no room now. The call may be
    /// repeated after requests have completed.
    QueueFull,
    /// An earlier request is prepared, and neither posted nor aborted. Requests are posted in the
    /// order of their prepare calls.
    OutOfOrder,
    /// The request does not have the state that the call needs: it is not posted, is posted
    /// already, was aborted, or is too old for the library to remember.
    NoSuchRequest,
    /// Work in flight, or a post of another poster, uses the object now. The call may be repeated
    /// later.
    Busy,
    /// The queue pair or the event is not in the state that the call needs.
    WrongState,
    /// The queue pair is in error, or the request failed. The status is that of the request, or of
    /// the first request of the queue pair that failed.
    Failed(Status),
    /// A time limit passed. The work that the call waited for may still complete.
    Timeout,
    /// A record or a message of a peer is malformed or has another version.
    Protocol,
    /// A library, a driver or a device does not exist on this machine.
    Absent,
    /// The number of streams that wait has reached the limit of the GPU's hardware channels
    /// ([`Gpu::max_waiting_streams`](crate::Gpu::max_waiting_streams)).
    TooManyWaits,
    /// The context of this process on the GPU is lost: every later call on the GPU fails.
    DeviceLost,
    /// The operating system, a driver or a library refused a call. The reason names the call.
    System,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: its operation, kind, reason, limit and source. Its text is a sentence: the operation
/// that failed, the reason, the limit with its unit, and the status of a failed request.
/// Its [`source`](std::error::Error::source) is the error of a library below, if there is one.
/// Programs decide by [`Error::kind`]. If a call returns an error, objects and outputs are as
/// before the call, unless its `# Errors` section says otherwise.
///
/// ```
/// use gdsync::gpu::MemoryKind;
/// use gdsync::{Gpu, Kind};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = Gpu::soft()?;
/// let region = gpu.alloc(MemoryKind::Pinned, 64)?;
/// let error = region.word32(62).unwrap_err();
/// match error.kind() {
///     Kind::Invalid => println!("{error}; limit: {:?} bytes", error.limit()),
///     Kind::QueueFull => println!("retry later"),
///     _ => return Err(error),
/// }
/// # assert_eq!(error.limit(), Some(64));
/// # Ok(())
/// # }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    kind: Kind,
    reason: String,
    limit: Option<(u64, &'static str)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` of `operation`, a verb phrase. The reason is a clause with a verb.
    #[cold]
    pub(crate) fn new(operation: &'static str, kind: Kind, reason: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            operation,
            kind,
            reason: reason.into(),
            limit: None,
            source: None,
        }))
    }

    /// The error for a call that needs the feature of this name, in a build without it.
    #[cold]
    pub(crate) fn not_built(operation: &'static str, feature: &str) -> Error {
        let what = format!(
            "this program is built without the feature `{feature}` of the package gdsync (and \
             libmp); enable the feature, which is on by default"
        );
        Error::new(operation, Kind::Unsupported, what)
    }

    /// Adds the limit that was reached, and its unit.
    #[cold]
    pub(crate) fn with_limit(mut self, limit: impl TryInto<u64>, unit: &'static str) -> Error {
        self.0.limit = limit.try_into().ok().map(|limit| (limit, unit));
        self
    }

    /// Names the owner in front of the reason.
    #[cold]
    pub(crate) fn with_owner(mut self, owner: impl fmt::Debug) -> Error {
        self.0.reason = format!("{owner:?}: {}", self.0.reason);
        self
    }

    /// Adds the source of the error.
    #[cold]
    pub(crate) fn with_source(
        mut self,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        self.0.source = Some(source.into());
        self
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

    /// The limit that an argument or the state exceeds, in [`limit_unit`](Error::limit_unit);
    /// `None` if the error has no limit.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit.map(|(limit, _)| limit)
    }

    /// The unit of the limit, in the plural: `ms`, `bytes`, `SGEs`. For a number without a unit it
    /// says what the limit is: `as the highest value`. `None` if the error has no limit.
    pub fn limit_unit(&self) -> Option<&'static str> {
        self.0.limit.map(|(_, unit)| unit)
    }

    /// The status of a [`Kind::Failed`] error: that of the request, or of the first request of the
    /// queue pair that failed. `None` for other kinds.
    pub fn status(&self) -> Option<Status> {
        match self.0.kind {
            Kind::Failed(status) => Some(status),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.operation, self.0.reason)?;
        if let Some((limit, unit)) = self.0.limit {
            write!(f, " (limit {limit} {unit})")?;
        }
        if let Kind::Failed(status) = self.0.kind {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_operation_reason_limit_and_keeps_its_source() {
        let e = Error::new(
            "prepare send",
            Kind::Invalid,
            "the work request has 31 SGEs",
        )
        .with_limit(30u32, "SGEs")
        .with_source(std::io::Error::other("cause"));
        let text = "prepare send: the work request has 31 SGEs (limit 30 SGEs)";
        assert_eq!(e.to_string(), text);
        assert_eq!(e.kind(), Kind::Invalid);
        assert_eq!((e.limit(), e.limit_unit()), (Some(30), Some("SGEs")));
        assert!(StdError::source(&e).is_some());
        assert_eq!(std::mem::size_of::<Error>(), std::mem::size_of::<usize>());
    }
}
