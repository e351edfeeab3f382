//! The CUDA driver API under the names and types of `cust_raw` 0.11.3, loaded at run time.
//!
//! `[patch.crates-io]` replaces the published package by this one, so that `cust` 0.3 builds
//! without a CUDA installation. Each function is looked up in libcuda on its first call: in
//! `libcuda.so.1`, or in the file that the variable `GDS_CUDA_LIB` names. Without the library every
//! function returns `CUDA_ERROR_SHARED_OBJECT_INIT_FAILED`. Without the function it returns
//! `CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND`. [`absent`] returns the reason.
//!
//! Newer drivers return numbers that the closed enums here do not list. As a result, an unlisted
//! number becomes `CUDA_ERROR_UNKNOWN`. Behind a pointer, an unlisted number is replaced by the
//! first one listed, and the call returns `CUDA_ERROR_NOT_SUPPORTED`.

#[macro_use]
mod driver;
mod by_hand;
mod generated;

pub use by_hand::*;
pub use driver::absent;
pub use generated::*;
