//! Errors: operation, kind, object and reason, limit.
//!
//! An [`Error`] is one pointer wide. Its box is allocated on the failing path only, so calls that
//! succeed allocate nothing. Programs match on the [`Kind`].

use std::error::Error as StdError;
use std::fmt;

use crate::status::Status;

/// The kind of an error, for programs that decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument is outside the range that the call accepts (size, alignment, range,
    /// combination).
    Invalid,
    /// The runtime, the provider or the device cannot do this.
    Unsupported,
    /// Memory is not registered with this device, or without the rights needed.
    NotRegistered,
    /// An object belongs to another device, GPU, protection domain or queue pair.
    Foreign,
    /// A queue has no room now; it has room again after requests have completed or the stream has
    /// continued (backpressure).
    QueueFull,
    /// Requests are not posted in the order of their prepare calls.
    OutOfOrder,
    /// The request is not in the state that the call needs: it was never posted, is posted or
    /// aborted already, or is too old to be known.
    NoSuchRequest,
    /// The object is in use in a way that forbids this (work in flight, another poster). The call
    /// may be repeated later.
    Busy,
    /// The queue pair is not in the state the call needs.
    WrongState,
    /// The request failed, with this status; or the queue pair is in error, with the status of the
    /// first failure.
    Failed(Status),
    /// A time limit passed: the caller's, or that of a copy by a GPU's copy engine.
    Timeout,
    /// A peer has another version, or sent invalid data.
    Protocol,
    /// A library, a GPU or a NIC does not exist.
    Absent,
    /// As many streams of the GPU wait already as may wait at a time
    /// ([`Gpu::max_waiting_streams`](crate::Gpu::max_waiting_streams)).
    TooManyWaits,
    /// The GPU, or everything of this process on it, is lost: every later call fails.
    DeviceLost,
    /// The operating system, a driver or a NIC refused, or ran out of a resource.
    System,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of every call of this crate: operation, object and reason, limit, kind.
///
/// Its text is one sentence for a log, its `source` the error of a library below, if there is one.
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
    object: String,
    limit: Option<(u64, &'static str)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` while doing `operation` on `object`.
    #[cold]
    pub(crate) fn new(operation: &'static str, kind: Kind, object: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            operation,
            kind,
            object: object.into(),
            limit: None,
            source: None,
        }))
    }

    /// The error for a call that needs the feature of this name, in a build without it.
    #[cold]
    pub(crate) fn not_built(operation: &'static str, feature: &str) -> Error {
        let what = format!(
            "{feature}: it is not in this program; build it with the feature `{feature}` of the \
             package gdsync (and libmp), which is on without --no-default-features"
        );
        Error::new(operation, Kind::Unsupported, what)
    }

    /// Adds the limit that was reached.
    #[cold]
    pub(crate) fn with_limit(mut self, limit: impl TryInto<u64>, unit: &'static str) -> Error {
        self.0.limit = limit.try_into().ok().map(|limit| (limit, unit));
        self
    }

    /// Names the owner in front of the object.
    #[cold]
    pub(crate) fn with_owner(mut self, owner: impl fmt::Debug) -> Error {
        self.0.object = format!("{owner:?}: {}", self.0.object);
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

    /// The operation that failed, as a verb: `prepare send`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The object concerned, and the reason.
    pub fn reason(&self) -> &str {
        &self.0.object
    }

    /// The limit that was reached, if there is one.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit.map(|(limit, _)| limit)
    }

    /// The unit of the limit: `ms`, `bytes`, `SGEs`.
    pub fn limit_unit(&self) -> Option<&'static str> {
        self.0.limit.map(|(_, unit)| unit)
    }

    /// The status of the failed request or queue pair, for an error of kind [`Kind::Failed`].
    pub fn status(&self) -> Option<Status> {
        match self.0.kind {
            Kind::Failed(status) => Some(status),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.operation, self.0.object)?;
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
    fn an_error_names_operation_object_limit_and_keeps_its_source() {
        let e = Error::new("prepare send", Kind::Invalid, "31 SGEs")
            .with_limit(30u32, "")
            .with_source(std::io::Error::other("cause"));
        assert_eq!(e.to_string(), "prepare send: 31 SGEs (limit 30)");
        assert_eq!(e.kind(), Kind::Invalid);
        assert_eq!(e.limit(), Some(30));
        assert!(StdError::source(&e).is_some());
        assert_eq!(std::mem::size_of::<Error>(), std::mem::size_of::<usize>());
    }
}
