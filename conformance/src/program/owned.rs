//! Descriptors that own the objects that they name, for lists that grow until they are posted.

use gdsync::gpu::{Condition, Span, Word32, Word64};
use gdsync::rdma::{Completion, Descriptor, ReceiveRequest, SendRequest};

/// A word of 32 or 64 bits.
#[derive(Clone)]
pub enum Word {
    /// A word of 32 bits.
    Narrow(Word32),
    /// A word of 64 bits.
    Wide(Word64),
}

/// A descriptor that owns the objects that it names.
pub enum OwnedDescriptor {
    /// Write the doorbell of a send.
    Send(SendRequest),
    /// Write the doorbell record of a receive.
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

impl OwnedDescriptor {
    /// The descriptor.
    pub fn descriptor(&self) -> Descriptor<'_> {
        let flush = false;
        match *self {
            OwnedDescriptor::Send(request) => Descriptor::Send(request),
            OwnedDescriptor::Receive(request) => Descriptor::Receive(request),
            OwnedDescriptor::Wait(completion) => Descriptor::wait_flushed(completion),
            OwnedDescriptor::WaitValue(Word::Narrow(ref word), condition, value) => {
                Descriptor::wait_value(word, condition, value as u32).flush(flush)
            }
            OwnedDescriptor::WaitValue(Word::Wide(ref word), condition, value) => {
                Descriptor::wait_value(word, condition, value).flush(flush)
            }
            OwnedDescriptor::Write(Word::Narrow(ref word), value) => {
                Descriptor::write_value(word, value as u32)
            }
            OwnedDescriptor::Write(Word::Wide(ref word), value) => {
                Descriptor::write_value(word, value)
            }
            OwnedDescriptor::Bytes(ref to, ref data) => Descriptor::WriteMemory { to, data },
            OwnedDescriptor::Flush => Descriptor::Flush,
        }
    }
}
