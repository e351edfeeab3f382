//! Errors between `cust` and gdsync.

use cust::error::{CudaError, CudaResult};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of CUDA, as `cust` reports it, or of gdsync.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A CUDA call failed.
    #[error("{operation}: {source}")]
    Cuda {
        /// The operation that failed.
        operation: &'static str,
        /// The error of CUDA.
        source: CudaError,
    },
    /// A gdsync call failed.
    #[error(transparent)]
    Gdsync(#[from] gdsync::Error),
    /// The buffer has 0 bytes, so it cannot be a region.
    #[error("a buffer of 0 bytes cannot be a region")]
    Empty,
}

pub(crate) fn cuda<T>(operation: &'static str, result: CudaResult<T>) -> Result<T> {
    result.map_err(|source| Error::Cuda { operation, source })
}
