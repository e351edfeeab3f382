//! What may go wrong between `ibverbs` and gdsync.

use std::io;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A NIC or a peer that one of the two cannot name to the other, or an error of gdsync.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC has no GUID.
    #[error("the NIC has no GUID to be found by: {0}")]
    NoGuid(#[source] io::Error),
    /// The two queue pairs cannot reach each other.
    #[error("no peer for this side: {0}")]
    Peer(&'static str),
    /// gdsync refused.
    #[error(transparent)]
    Gdsync(#[from] gdsync::Error),
}
