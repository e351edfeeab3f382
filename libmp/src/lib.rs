//! Messages on GPU streams.

pub mod bootstrap;
mod context;
mod error;
mod kernels;
#[doc(hidden)]
pub mod mutant;
mod region;
mod request;
mod two_sided;
mod wire;

pub use bootstrap::Bootstrap;
pub use context::{Builder, Connect, Context, Full, Progress, Scope, Stuck};
pub use error::{Error, Kind, Result};
pub use gdsync;
pub use region::{Memory, Slice};
pub use request::{Done, Request, wait_all, wait_any, wait_some};
pub use two_sided::{Recv, Send, SizeSource, Source};

/// What the fuzzers call.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a control message and writes it again.
    pub fn control(bytes: &[u8]) -> Option<Vec<u8>> {
        let message = crate::wire::control::Control::decode(bytes).ok()?;
        Some(message.encode())
    }
}
