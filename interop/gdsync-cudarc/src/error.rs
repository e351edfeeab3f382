//! Errors between `cudarc` and gdsync.

use cudarc::driver::DriverError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of CUDA, as `cudarc` reports it, or of gdsync.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `cudarc` does not find a libcuda.
    #[error("no libcuda is found on this machine's library path")]
    Absent,
    /// The GPU's number exceeds 32 bits.
    #[error("the GPU number {0} exceeds 32 bits")]
    NoSuchGpu(usize),
    /// The context is not a primary context: only that kind can be retained.
    #[error("not a primary context: gpu_of takes one, if the caller keeps it alive")]
    NotPrimary,
    /// A CUDA call failed.
    #[error("{operation}: {source}")]
    Cuda {
        /// The operation that failed.
        operation: &'static str,
        /// The error of CUDA.
        source: DriverError,
    },
    /// A gdsync call failed.
    #[error(transparent)]
    Gdsync(#[from] gdsync::Error),
    /// The buffer has 0 bytes, so it cannot be a region.
    #[error("a buffer of 0 bytes cannot be a region")]
    Empty,
}

pub(crate) fn cuda<T>(operation: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|source| Error::Cuda { operation, source })
}
