//! A list of descriptors that grows until it is handed to its stream, and what the stream has to
//! do behind it.

use gdsync::gpu::{Span, Word32, Word64};
use gdsync::memop::Condition;
use gdsync::rdma::{Completion, Descriptor, ReceiveRequest, SendRequest, WaitOptions};

/// A descriptor that owns what it names.
pub enum Todo {
    /// Ring for a send.
    Send(SendRequest),
    /// Make a receive available.
    Receive(ReceiveRequest),
    /// Wait for a completion, and flush or not.
    Wait(Completion, bool),
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
    /// The descriptor. `flush` may ask every wait for a flush.
    pub fn descriptor(&self, flush: bool) -> Descriptor<'_> {
        match self {
            Todo::Send(request) => Descriptor::Send(*request),
            Todo::Receive(request) => Descriptor::Receive(*request),
            Todo::Wait(completion, own) => {
                let options = WaitOptions {
                    flush: *own || flush,
                    timeout: None,
                };
                Descriptor::Wait(*completion, options)
            }
            Todo::WaitValue32(word, condition, value) => Descriptor::WaitValue32 {
                word,
                condition: *condition,
                value: *value,
                flush,
            },
            Todo::WaitValue64(word, condition, value) => Descriptor::WaitValue64 {
                word,
                condition: *condition,
                value: *value,
                flush,
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

/// What a stream does behind a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Copies the slot of a step away and writes over it.
    Take(usize),
    /// Writes over the source of a step, which was sent.
    Forget(usize),
}

/// A list that was not handed over yet.
#[derive(Default)]
pub struct List {
    /// Which of the streams it is for.
    pub stream: usize,
    /// What it says.
    pub todos: Vec<Todo>,
    /// What comes behind it.
    pub after: Vec<After>,
    /// It is first to be handed over with something in it that is refused.
    pub spoiled: bool,
}
