//! Errors between `ibverbs` and gdsync.

use std::io;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a NIC or a peer that one library cannot name to the other, or an error of gdsync.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC has no GUID, by which gdsync would find it.
    #[error("the NIC has no GUID to be found by: {0}")]
    NoGuid(#[source] io::Error),
    /// The two queue pairs cannot reach each other.
    #[error("no peer for this side: {0}")]
    Peer(&'static str),
    /// A gdsync call failed.
    #[error(transparent)]
    Gdsync(#[from] gdsync::Error),
}
