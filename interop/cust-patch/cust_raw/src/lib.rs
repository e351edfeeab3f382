//! The CUDA driver API under the names and types of `cust_raw` 0.11.3, loaded at run time.
//!
//! It takes the place of the published package by `[patch.crates-io]`, so that `cust` 0.3
//! builds where no CUDA is installed. Each function is looked up in libcuda on its first call:
//! `libcuda.so.1`, or the file that the variable `GDS_CUDA_LIB` names. Without the library every
//! function returns `CUDA_ERROR_SHARED_OBJECT_INIT_FAILED`, without the function
//! `CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND`; [`absent`] says why.
//!
//! Newer drivers know numbers that the closed enums here do not list. Such a result becomes
//! `CUDA_ERROR_UNKNOWN`. Behind a pointer, such a number is replaced by the first one listed, and
//! the call returns `CUDA_ERROR_NOT_SUPPORTED`.

#[macro_use]
mod driver;
mod by_hand;
mod generated;

pub use by_hand::*;
pub use driver::absent;
pub use generated::*;
