//! gdsync
pub mod error; pub mod status; pub mod mutant;
pub mod memop;
mod ring;
pub use error::{Error, Kind, Result};
pub use status::Status;
#[cfg(test)] mod testing;
