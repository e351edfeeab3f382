//! What may go wrong on the way from `cust` to gdsync.

use cust::error::{CudaError, CudaResult};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of CUDA, as `cust` knows it, or of gdsync.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// CUDA refused.
    #[error("{operation}: {source}")]
    Cuda {
        /// What was attempted.
        operation: &'static str,
        /// What CUDA said.
        source: CudaError,
    },
    /// gdsync refused.
    #[error(transparent)]
    Gdsync(#[from] gdsync::Error),
    /// A buffer of 0 bytes, which can be no region.
    #[error("a buffer of 0 bytes is no region")]
    Empty,
}

pub(crate) fn cuda<T>(operation: &'static str, result: CudaResult<T>) -> Result<T> {
    result.map_err(|source| Error::Cuda { operation, source })
}
