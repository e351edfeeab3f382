//! Verbs descriptors as GPU stream memory operations.

mod error;
pub mod gpu;
mod kernels;
pub mod memop;
#[doc(hidden)]
pub mod mutant;
mod provider;
pub mod rdma;
mod ring;
mod status;
#[cfg(test)]
mod testing;
mod watch;

pub use error::{Error, Kind, Result};
pub use gpu::{Gpu, Stream};
pub use provider::emulated::{EmulatedOptions, Fabric};
pub use status::Status;
