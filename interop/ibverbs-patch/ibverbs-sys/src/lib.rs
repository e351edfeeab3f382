//! The part of libibverbs that `ibverbs` 0.9 uses, under the names and types of `ibverbs-sys` 0.3,
//! loaded at run time.
//!
//! `[patch.crates-io]` replaces the published package by this one, so that `ibverbs` builds without
//! cmake, libclang and the library, and the program starts without the library. The library is
//! `libibverbs.so.1`, or the file that the variable `GDS_IBVERBS_LIB` names. It is opened on the
//! first call and never closed. Each function is looked up in the symbol version of its
//! declaration.
//!
//! Without the library [`ibv_get_device_list`] returns null and sets `errno` to `ELIBACC`, which
//! `ibverbs` turns into an error; [`absent`] returns the reason. A program cannot reach the other
//! functions then; each of them returns its failure value nevertheless.
//!
//! This package omits functions and types that `ibverbs` does not use: a program that itself calls
//! other functions of `ibverbs-sys` needs the published package.

#![allow(non_camel_case_types, non_upper_case_globals)]

mod functions;
mod numbers;
mod objects;

pub use functions::*;
pub use numbers::*;
pub use objects::*;
