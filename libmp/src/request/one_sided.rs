//! One-sided operations: the states of a transfer to or from a window, and of a stream's wait for a
//! word of this rank, which another rank stores.

use gdsync::Status;
use gdsync::gpu::{Condition, MemoryKind};

use crate::error::Result;
use crate::path::{Put, Word};
use crate::region::Slice;

/// The kind of a one-sided operation, for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Put,
    Get,
    /// A word, after the payload of its put if it has one.
    Signal,
    FetchAdd,
    CompareSwap,
    /// A READ that shows that all earlier puts are complete at the target.
    Quiet,
    /// A stream waits for a word of this rank's window.
    WaitSignal,
    /// A stream waits for the ready word of a rank.
    WaitReady,
    /// A stream waits for a word of this rank's memory.
    WaitWord,
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferState {
    /// Its work is posted; it ends when this put is done.
    InFlight(Put),
    /// It has ended.
    Done(Status),
}

/// The fields of a put, a get, a signal or an atomic.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub action: Action,
    pub state: TransferState,
}

impl Transfer {
    /// Whether it stores into `memory` of this rank that is in the GPU, so that a wait for it has
    /// to flush.
    pub fn lands_in_device(&self, memory: &[Slice]) -> bool {
        let device = |s: &Slice| s.memory().region().kind() == MemoryKind::Device;
        !matches!(self.action, Action::Put | Action::Signal) && memory.iter().any(device)
    }
}

/// The state of a stream's wait for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalState {
    /// The stream has not passed the wait.
    Waiting,
    /// The rank was given up, and the library has stored a value that releases the stream. The wait
    /// ends with this status when the stream has passed it.
    Released(Status),
    /// It has ended.
    Done(Status),
}

/// The fields of a stream's wait for a signal. The stream stores the request's result when it has
/// passed the wait.
#[derive(Debug)]
pub(crate) struct SignalWait {
    pub action: Action,
    pub word: Word,
    pub condition: Condition,
    pub value: u64,
    pub state: SignalState,
}

impl SignalWait {
    /// Whether the word satisfies the condition.
    pub fn is_met(&self) -> Result<bool> {
        Ok(self
            .word
            .holds(self.condition, self.word.load()?, self.value))
    }

    /// Whether it was released, the stream has not passed it, and a store of `value` into `word`
    /// would hold the stream again.
    pub fn is_held_by(&self, word: &Word, value: u64) -> bool {
        matches!(self.state, SignalState::Released(_))
            && self.word.addr() == word.addr()
            && !self.word.holds(self.condition, value, self.value)
            && self.is_met().unwrap_or(false)
    }

    /// Stores a value that satisfies the condition.
    pub fn release(&self) -> Result<()> {
        debug_assert!(self.word.is_possible(self.condition, self.value));
        self.word.store(self.value)
    }
}
