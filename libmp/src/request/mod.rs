//! Requests: what is known of each, and of how it ended.

pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod table;

/// How a request ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The rank that sent the message; of a send, the rank that it went to.
    pub peer: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes; of a send whose length a stream found in a word, that of its segment.
    pub len: u64,
}

impl Done {
    /// The rank that sent the message that was received.
    pub fn source(&self) -> u32 {
        self.peer
    }
}
