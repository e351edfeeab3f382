//! Messages on GPU streams.

pub mod bootstrap;
mod error;
mod kernels;

pub use bootstrap::Bootstrap;
pub use error::{Error, Kind, Result};
pub use gdsync;
