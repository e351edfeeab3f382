//! Random programs of messages over queue pairs between two or more sides: the streams fill each
//! payload, send it, wait for it and check it, while the CPU only enqueues, up to a ring's length
//! ahead. Payloads differ from message to message.
//!
//! `draw` draws the messages, `play` plays them: of two sides on one GPU, or of one side whose
//! peers play elsewhere. On real threads and real GPUs ([`hardware`](crate::hardware)) kernels fill
//! and verify. Under the simulation ([`exchange`](crate::sim::exchange)) there are [`Hazards`] as
//! well: requests that are aborted, patched by the stream or refused, words that one stream hands
//! to another, receives early and late, lists that grow over several messages, and memory that is
//! written over as soon as a wait has passed.

mod draw;
mod owned;
mod play;

pub use draw::Program;
pub use play::{Ends, Memory, play, play_on};

use gdsync::gpu::{Caps, MemoryKind};

/// The shape of a program.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its sides.
    pub sides: Vec<Side>,
    /// The streams that send and check, by the name of the setting.
    pub streams: &'static str,
    /// Whether the CPU posts receives.
    pub cpu_receives: bool,
    /// The operations of messages, by the names of the settings.
    pub operations: &'static str,
    /// Number of messages.
    pub messages: usize,
    /// The seed.
    pub seed: u64,
}

impl Settings {
    /// Whether the program has hazards.
    pub fn hazards(&self) -> bool {
        self.sides.iter().all(|side| side.hazards.is_some())
    }
}

/// One side of a program.
#[derive(Clone, Debug)]
pub struct Side {
    /// The memory of sends.
    pub source: MemoryKind,
    /// The memory of received messages.
    pub landing: MemoryKind,
    /// The hazards.
    pub hazards: Option<Hazards>,
}

impl Side {
    /// A side without hazards.
    pub fn plain(payload: MemoryKind) -> Side {
        Side {
            source: payload,
            landing: payload,
            hazards: None,
        }
    }
}

/// The hazards of a program.
#[derive(Clone, Debug)]
pub struct Hazards {
    /// The capabilities of the GPU.
    pub caps: Caps,
    /// Whether a stream accepts so many submissions that a receive may be posted behind its wait.
    pub late: bool,
}
