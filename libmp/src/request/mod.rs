//! Requests: the state of each, and how it ended.

pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod table;

/// The result of a request that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The rank that sent the message; for a send, the rank that it went to.
    pub peer: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes; for a send whose length a stream read from a word, the length of its
    /// segment.
    pub len: u64,
}

impl Done {
    /// The rank that sent the received message.
    pub fn source(&self) -> u32 {
        self.peer
    }
}
