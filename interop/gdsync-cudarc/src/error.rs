//! What may go wrong on the way from `cudarc` to gdsync.

use cudarc::driver::DriverError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of CUDA, as `cudarc` knows it, or of gdsync.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no libcuda where `cudarc` looks for one.
    #[error("no libcuda is found on this machine's library path")]
    Absent,
    /// GPUs are counted in 32 bits.
    #[error("no GPU can have the number {0}")]
    NoSuchGpu(usize),
    /// Only a primary context can be held on to.
    #[error("not a primary context: gpu_of takes one, if the caller keeps it alive")]
    NotPrimary,
    /// CUDA refused.
    #[error("{operation}: {source}")]
    Cuda {
        /// What was attempted.
        operation: &'static str,
        /// What CUDA said.
        source: DriverError,
    },
    /// gdsync refused.
    #[error(transparent)]
    Gdsync(#[from] gdsync::Error),
    /// A buffer of 0 bytes, which can be no region.
    #[error("a buffer of 0 bytes is no region")]
    Empty,
}

pub(crate) fn cuda<T>(operation: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|source| Error::Cuda { operation, source })
}
