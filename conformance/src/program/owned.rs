//! Descriptors that own what they name, for lists that grow until they are posted.

use gdsync::gpu::{Condition, Span, Word32, Word64};
use gdsync::rdma::{Completion, Descriptor, ReceiveRequest, SendRequest};

/// A word of 32 or 64 bits.
#[derive(Clone)]
pub enum Word {
    /// Of 32.
    Narrow(Word32),
    /// Of 64.
    Wide(Word64),
}

/// A descriptor that owns what it names.
pub enum Todo {
    /// Ring for a send.
    Send(SendRequest),
    /// Make a receive available.
    Receive(ReceiveRequest),
    /// Wait for a completion.
    Wait(Completion),
    /// Wait for a word.
    WaitValue(Word, Condition, u64),
    /// Write a word.
    Write(Word, u64),
    /// Write bytes.
    Bytes(Span, Vec<u8>),
    /// Flush.
    Flush,
}

impl Todo {
    /// The descriptor.
    pub fn descriptor(&self) -> Descriptor<'_> {
        let flush = false;
        match *self {
            Todo::Send(request) => Descriptor::Send(request),
            Todo::Receive(request) => Descriptor::Receive(request),
            Todo::Wait(completion) => Descriptor::wait_flushed(completion),
            Todo::WaitValue(Word::Narrow(ref word), condition, value) => {
                Descriptor::wait_value(word, condition, value as u32).flush(flush)
            }
            Todo::WaitValue(Word::Wide(ref word), condition, value) => {
                Descriptor::wait_value(word, condition, value).flush(flush)
            }
            Todo::Write(Word::Narrow(ref word), value) => {
                Descriptor::write_value(word, value as u32)
            }
            Todo::Write(Word::Wide(ref word), value) => Descriptor::write_value(word, value),
            Todo::Bytes(ref to, ref data) => Descriptor::WriteMemory { to, data },
            Todo::Flush => Descriptor::Flush,
        }
    }
}
