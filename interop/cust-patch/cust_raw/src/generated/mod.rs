//! What `cust-patch/generate` makes.

// Names, documentation and lints are the header's and bindgen's.
#![allow(
    warnings,
    missing_docs,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

#[rustfmt::skip]
mod functions;
#[rustfmt::skip]
mod types;

pub use functions::*;
pub use types::*;
