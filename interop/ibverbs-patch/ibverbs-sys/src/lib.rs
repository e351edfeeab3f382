//! What `ibverbs` 0.9 uses of libibverbs, under the names and types of `ibverbs-sys` 0.3, loaded
//! at run time.
//!
//! It takes the place of the published package by `[patch.crates-io]`, so that `ibverbs` builds
//! with no cmake, no libclang and no library, and what is built starts where there is none. The
//! library is `libibverbs.so.1`, or the file that the variable `GDS_IBVERBS_LIB` names. It is
//! opened on the first call and never closed; each function is taken in the version that it is
//! declared for.
//!
//! Without the library [`ibv_get_device_list`] answers with null and sets `errno` to `ELIBACC`, as
//! `ibverbs` needs it to make an error of it; [`absent`] says why. No other function can be come
//! to then, and each fails in its own way all the same.
//!
//! Functions and types that `ibverbs` does not use are not here: who calls `ibverbs-sys` by itself
//! needs the published one.

#![allow(non_camel_case_types, non_upper_case_globals)]

mod functions;
mod numbers;
mod objects;

pub use functions::*;
pub use numbers::*;
pub use objects::*;
