//! Descriptors that own what they name, for lists that grow until they are posted.

use gdsync::gpu::{Condition, Span, Word32, Word64};
use gdsync::rdma::{Completion, Descriptor, ReceiveRequest, SendRequest};

/// A descriptor that owns what it names.
pub enum Todo {
    /// Ring for a send.
    Send(SendRequest),
    /// Make a receive available.
    Receive(ReceiveRequest),
    /// Wait for a completion.
    Wait(Completion),
    /// Wait for a word.
    WaitValue32(Word32, Condition, u32),
    /// Wait for a word of 64 bits.
    WaitValue64(Word64, Condition, u64),
    /// Write a word.
    Write32(Word32, u32),
    /// Write a word of 64 bits.
    Write64(Word64, u64),
    /// Write bytes.
    Bytes(Span, Vec<u8>),
    /// Flush.
    Flush,
}

impl Todo {
    /// The descriptor.
    pub fn descriptor(&self) -> Descriptor<'_> {
        match self {
            Todo::Send(request) => Descriptor::Send(*request),
            Todo::Receive(request) => Descriptor::Receive(*request),
            Todo::Wait(completion) => Descriptor::wait_flushed(*completion),
            Todo::WaitValue32(word, condition, value) => Descriptor::WaitValue32 {
                word,
                condition: *condition,
                value: *value,
                flush: false,
            },
            Todo::WaitValue64(word, condition, value) => Descriptor::WaitValue64 {
                word,
                condition: *condition,
                value: *value,
                flush: false,
            },
            Todo::Write32(word, value) => Descriptor::WriteValue32 {
                word,
                value: *value,
            },
            Todo::Write64(word, value) => Descriptor::WriteValue64 {
                word,
                value: *value,
            },
            Todo::Bytes(to, data) => Descriptor::WriteMemory { to, data },
            Todo::Flush => Descriptor::Flush,
        }
    }
}
