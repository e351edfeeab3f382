//! The interface that build scripts of `cust` 0.3 use, without a CUDA installation. The `cust_raw`
//! next to this crate opens libcuda at run time, so there is nothing to find and nothing to link.

/// Prints nothing. The published version prints the linker's path of libcuda; here nothing is
/// linked.
pub fn include_cuda() {}
