//! The requests of a context: their states, their result words and their failures.
//!
//! - One request: `entry` has the states of all kinds, `transfer` the work and the states of
//!   a transfer to or from a window, `one_sided` those of a wait for a word, `step` those of a step
//!   of a neighbourhood, `zero_sm` those of a zero-SM message, `collective` those of a stream's collective call.
//! - All requests: `table` has them with their result words, `fault` the failures that no call has
//!   returned, `reached` how far the streams that post receives have come.
//!
//! [`Done`] is the result of a request that succeeded.

pub(crate) mod collective;
pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod one_sided;
pub(crate) mod reached;
pub(crate) mod step;
pub(crate) mod table;
pub(crate) mod transfer;
pub(crate) mod zero_sm;

/// The result of a request that succeeded: peer, tag and length of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The rank that sent the message; for a send, the rank that it went to. It may be
    /// [`NULL_RANK`](crate::NULL_RANK).
    pub peer: u32,
    /// The tag of the message; 0 for an operation of a [`Window`](crate::Window).
    pub tag: u32,
    /// The length of the message in bytes, at most the room of the receive; for a send whose length
    /// a stream read from a word, the length of its segment.
    pub len: u64,
}

impl Done {
    /// The rank that sent the received message: [`peer`](Done::peer).
    pub fn source(&self) -> u32 {
        self.peer
    }
}
