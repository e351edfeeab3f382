//! Errors: what was attempted, what went wrong, with which object, against which limit.
//!
//! An [`Error`] is one pointer wide; the box is only made on the failing path, so calls that
//! succeed allocate nothing. [`Kind`] is what programs match on.

use std::error::Error as StdError;
use std::fmt;

use crate::status::Status;

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument lies outside what the call accepts (size, alignment, range, combination).
    Invalid,
    /// The runtime, the provider or the device cannot do this.
    Unsupported,
    /// Memory that was not registered with this device, or without the rights needed.
    NotRegistered,
    /// An object of another device, GPU or queue.
    Foreign,
    /// A queue has no room now; it may have later.
    QueueFull,
    /// Posts must follow the order of prepare calls.
    OutOfOrder,
    /// A request that was never posted, was aborted, or is too old to be known.
    NoSuchRequest,
    /// The object is in use in a way that forbids this (work in flight, another poster).
    Busy,
    /// The queue pair is not in the state the call needs.
    WrongState,
    /// The queue pair is in error; the status is that of the first request that failed.
    Failed(Status),
    /// The caller's time limit passed.
    Timeout,
    /// A peer speaks another version, or sent what cannot be understood.
    Protocol,
    /// A library or device is not there.
    Absent,
    /// As many streams of the GPU wait as its hardware channels allow.
    TooManyWaits,
    /// The GPU, or everything of this process on it, is lost: no call will succeed again.
    DeviceLost,
    /// The operating system or a driver refused.
    System,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: {operation, kind, object, limit, source}.
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    kind: Kind,
    object: String,
    limit: Option<u64>,
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

    /// The refusal of what the feature of this name has, in a build without it.
    #[cold]
    pub(crate) fn not_built(operation: &'static str, feature: &str) -> Error {
        let what = format!(
            "{feature}: it is not in this program; build it with the feature `{feature}` of the \
             package gdsync (and libmp), which is on without --no-default-features"
        );
        Error::new(operation, Kind::Unsupported, what)
    }

    /// Names the limit that was run into.
    #[cold]
    pub(crate) fn limit(mut self, limit: impl TryInto<u64>) -> Error {
        self.0.limit = limit.try_into().ok();
        self
    }

    /// Names whose concern it is, before what is known of it.
    #[cold]
    pub(crate) fn of(mut self, owner: impl fmt::Debug) -> Error {
        self.0.object = format!("{owner:?}: {}", self.0.object);
        self
    }

    /// Keeps the cause.
    #[cold]
    pub(crate) fn source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(source.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What was attempted, as a verb: `prepare send`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The object concerned and what about it is wrong.
    pub fn object(&self) -> &str {
        &self.0.object
    }

    /// The limit that was run into, where there is one.
    pub fn limit_value(&self) -> Option<u64> {
        self.0.limit
    }

    /// The status of the request that failed, if this is about one.
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
        if let Some(limit) = self.0.limit {
            write!(f, " (limit {limit})")?;
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
            .limit(30u32)
            .source(std::io::Error::other("cause"));
        assert_eq!(e.to_string(), "prepare send: 31 SGEs (limit 30)");
        assert_eq!(e.kind(), Kind::Invalid);
        assert_eq!(e.limit_value(), Some(30));
        assert!(StdError::source(&e).is_some());
        assert_eq!(std::mem::size_of::<Error>(), std::mem::size_of::<usize>());
    }
}
