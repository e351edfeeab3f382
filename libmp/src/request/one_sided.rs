//! One-sided operations: the states of a transfer to or from a window, and of a stream's wait for a
//! signal in a window of this rank.

use gdsync::Status;
use gdsync::gpu::{Condition, MemoryKind, Word64};

use crate::error::Result;
use crate::path::Put;
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
    /// A stream waits for a word of this rank's memory.
    WaitSignal,
    /// A step of an exchange with neighbours.
    Exchange,
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
    pub word: Word64,
    pub condition: Condition,
    pub value: u64,
    pub state: SignalState,
}

impl SignalWait {
    /// Whether the word satisfies the condition.
    pub fn is_met(&self) -> Result<bool> {
        Ok(holds(self.condition, self.word.load()?, self.value))
    }

    /// Whether it was released, the stream has not passed it, and a store of `value` into `word`
    /// would hold the stream again.
    pub fn is_held_by(&self, word: &Word64, value: u64) -> bool {
        matches!(self.state, SignalState::Released(_))
            && self.word.addr() == word.addr()
            && !holds(self.condition, value, self.value)
            && self.is_met().unwrap_or(false)
    }

    /// Stores a value that satisfies the condition.
    pub fn release(&self) -> Result<()> {
        debug_assert!(is_possible(self.condition, self.value));
        Ok(self.word.store(self.value)?)
    }
}

/// Whether `word` satisfies the condition with `value`, as a stream's wait compares them.
pub(crate) fn holds(condition: Condition, word: u64, value: u64) -> bool {
    match condition {
        Condition::Geq => word.wrapping_sub(value) as i64 >= 0,
        Condition::Eq => word == value,
        Condition::And => word & value != 0,
        Condition::Nor => word | value != u64::MAX,
    }
}

/// Whether a word can satisfy the condition with `value`. If one can, the word `value` does.
pub(crate) fn is_possible(condition: Condition, value: u64) -> bool {
    holds(condition, value, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_as_their_names_say() {
        use Condition::{And, Eq, Geq, Nor};
        for (condition, word, value, met) in [
            (Geq, 4, 4, true),
            (Geq, 5, 4, true),
            (Geq, 3, 4, false),
            // Cyclic: 1 follows the greatest value.
            (Geq, 1, u64::MAX, true),
            (Geq, u64::MAX, 1, false),
            (Geq, 1 << 63, 0, false),
            (Eq, 4, 4, true),
            (Eq, 5, 4, false),
            (And, 0b110, 0b011, true),
            (And, 0b110, 0b001, false),
            (And, 1 << 63, 1 << 63, true),
            (Nor, u64::MAX - 1, 0, true),
            (Nor, u64::MAX - 1, 1, false),
            (Nor, u64::MAX, 0, false),
        ] {
            assert_eq!(
                holds(condition, word, value),
                met,
                "{word:#x} {condition:?} {value:#x}"
            );
        }
        assert!(!is_possible(And, 0) && !is_possible(Nor, u64::MAX));
        assert!(is_possible(Nor, 0) && is_possible(And, 1) && is_possible(Geq, 0));
    }
}
