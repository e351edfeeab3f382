//! What build scripts of `cust` 0.3 ask for, without a CUDA installation: libcuda is opened at
//! run time by the `cust_raw` beside this crate, so there is nothing to find and nothing to link.

/// Would print where to find libcuda for the linker. Nothing is linked, so nothing is printed.
pub fn include_cuda() {}
