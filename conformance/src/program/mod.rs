//! Random programs of messages over queue pairs between two sides or more: the streams fill each
//! payload, send it, wait for it and look at it, while the CPU only enqueues, a ring's length ahead.
//! Payloads change from message to message.
//!
//! `draw` draws the messages, `play` plays them: of two sides on one GPU, or of one side whose peers
//! play elsewhere. On real threads and real GPUs ([`hardware`](crate::hardware)) kernels fill and
//! verify. Under the simulation ([`exchange`](crate::sim::exchange)) there are [`Hazards`] as well: requests that are
//! aborted, patched by the stream or refused, words that one stream hands to another, receives early
//! and late, lists that grow over several messages, and memory that is written over as soon as a wait
//! has passed.

mod draw;
mod owned;
mod play;

pub use draw::Program;
pub use play::{Ends, Memory, play, play_on};

use gdsync::gpu::{Caps, MemoryKind};

/// What a program is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its sides.
    pub sides: Vec<Side>,
    /// Which streams send and look, as the axis calls it.
    pub streams: &'static str,
    /// Whether the CPU posts receives.
    pub cpu_receives: bool,
    /// What the messages are, as the axes of the matrices call it.
    pub operations: &'static str,
    /// How many there are.
    pub messages: usize,
    /// What they are drawn from.
    pub seed: u64,
}

impl Settings {
    /// Whether more happens than messages.
    pub fn hazards(&self) -> bool {
        self.sides.iter().all(|side| side.hazards.is_some())
    }
}

/// One side of a program.
#[derive(Clone, Debug)]
pub struct Side {
    /// Where messages are sent from.
    pub source: MemoryKind,
    /// Where messages land.
    pub landing: MemoryKind,
    /// What else happens.
    pub hazards: Option<Hazards>,
}

impl Side {
    /// One where nothing else happens.
    pub fn plain(payload: MemoryKind) -> Side {
        Side {
            source: payload,
            landing: payload,
            hazards: None,
        }
    }
}

/// What else a program may do.
#[derive(Clone, Debug)]
pub struct Hazards {
    /// What the GPU can do.
    pub caps: Caps,
    /// Whether a stream takes so much that a receive may be posted behind what waits for it.
    pub late: bool,
}
