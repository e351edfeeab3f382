//! Collective calls: the words that the ranks of a team store here, how the team failed, and the
//! state of a stream's call.

use std::fmt;
use std::sync::{Arc, OnceLock};

use gdsync::Status;
use gdsync::gpu::Word64;

use crate::error::{Error, Kind, Result};
use crate::mutant::{Mutant, on};
use crate::region::Memory;
use crate::wire::collective::{self, Call};

/// The part of a [`Collectives`](crate::Collectives) that the background work uses.
pub(crate) struct Team {
    /// Its number, in the order in which all ranks make windows.
    pub id: u64,
    pub me: u32,
    /// The words of the ranks, by parity of the call and by rank.
    pub words: [Vec<Word64>; 2],
    /// The number of the last call that has ended on this rank. A kernel stores it with release
    /// order, or the CPU; it pairs with the loads of [`Team::has_passed`].
    pub passed: Word64,
    /// The fault that a kernel has found: the number of its call, or 0; the rank; its word.
    pub fault: [Word64; 3],
    /// The memory that the other ranks write.
    pub memory: Memory,
    failure: OnceLock<TeamFailure>,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "collectives {} of {} ranks",
            self.id,
            self.words[0].len()
        )
    }
}

/// Why no further call of a team is possible.
#[derive(Clone, Debug)]
pub(crate) struct TeamFailure {
    /// The first call that failed, on the rank that found the failure.
    pub call: u64,
    pub status: Status,
    /// The rank that is the reason.
    pub rank: u32,
    /// The reason, a clause.
    pub text: String,
}

impl TeamFailure {
    /// The kind of the errors of a call of the CPU.
    pub fn kind(&self) -> Kind {
        match self.status {
            Status::TIMEOUT => Kind::Timeout,
            status => TeamFailure::kind_of_stream(status),
        }
    }

    /// The kind of the errors of a stream's call that failed with `status`.
    pub fn kind_of_stream(status: Status) -> Kind {
        match status {
            Status::BAD_RESPONSE => Kind::Protocol,
            Status::TIMEOUT | Status::CLOSED => Kind::Failed(status),
            status => Kind::PeerFailed(status),
        }
    }

    #[cold]
    pub fn error(&self, operation: &'static str) -> Error {
        let (call, text) = (self.call, &self.text);
        let what = format!("call {call} of these collectives failed: {text}");
        Error::new(operation, self.kind(), what).with_rank(self.rank)
    }
}

/// The record of a stream's call.
#[derive(Debug)]
pub(crate) struct Collection {
    pub team: Arc<Team>,
    pub call: Call,
    /// How it ended.
    pub done: Option<Status>,
}

/// The parity of a call, which selects its words and slots.
pub(crate) fn parity(number: u64) -> usize {
    if on(Mutant::SameParity) {
        return 0;
    }
    (number & 1) as usize
}

/// The number of the words that call `number` waits for.
pub(crate) fn awaited(number: u64) -> u64 {
    match on(Mutant::StaleCall) {
        true => number - 1,
        false => number,
    }
}

impl Team {
    /// A team whose first call is `start` + 1. `own`: four words of this rank.
    pub fn new(
        (id, me, start): (u64, u32, u64),
        memory: &Memory,
        words: [Vec<Word64>; 2],
        own: [Word64; 4],
    ) -> Result<Team> {
        for word in words.iter().flatten() {
            word.store(collective::threshold(start))?;
        }
        let [passed, fault @ ..] = own;
        passed.store(start)?;
        Ok(Team {
            id,
            me,
            words,
            passed,
            fault,
            memory: memory.clone(),
            failure: OnceLock::new(),
        })
    }

    pub fn failure(&self) -> Option<&TeamFailure> {
        self.failure.get()
    }

    /// Records the first failure. `true`: it is the first.
    pub fn fail(&self, failure: TeamFailure) -> bool {
        self.failure.set(failure).is_ok()
    }

    /// The other ranks with their words of call `number`.
    pub fn others(&self, number: u64) -> impl Iterator<Item = (u32, &Word64)> {
        let words = (0..).zip(&self.words[parity(number)]);
        words.filter(|(rank, _)| *rank != self.me)
    }

    /// The ranks that have not stored their word of call `number`.
    pub fn absent(&self, number: u64) -> impl Iterator<Item = u32> {
        let stored = move |word: &Word64| {
            // Pinned memory, which the CPU reaches: it cannot fail. Acquire: pairs with the NIC's
            // store of the word, which follows the contribution.
            collective::reached(word.load().unwrap_or(0), awaited(number))
        };
        let absent = self.others(number).filter(move |(_, word)| !stored(word));
        absent.map(|(rank, _)| rank)
    }

    /// Whether call `number` has ended on this rank, or a later one.
    pub fn has_passed(&self, number: u64) -> bool {
        self.passed.load().unwrap_or(0) >= number
    }

    /// Whether the kernel of call `number` has copied nothing, because it or an earlier one has
    /// found a fault.
    pub fn has_fault(&self, number: u64) -> bool {
        let call = self.fault[0].load().unwrap_or(0);
        call != 0 && number >= call && !on(Mutant::ReleasedCallSucceeds)
    }

    /// The first call up to `number` that has not ended on this rank and that a rank has not
    /// joined.
    pub fn first_open(&self, number: u64) -> u64 {
        let next = self.passed.load().unwrap_or(0) + 1;
        let mut open = next.min(number)..number;
        open.find(|call| self.absent(*call).next().is_some())
            .unwrap_or(number)
    }

    /// Releases the stream that waits for the words of call `number`, if the call is the next to
    /// end: words of a later call would hide words that have arrived.
    pub fn release(&self, number: u64) {
        if self.has_passed(number.wrapping_sub(1)) {
            self.release_at_once(number);
        }
    }

    /// As [`Team::release`], for a context that is dropped.
    pub fn release_at_once(&self, number: u64) {
        for (_, word) in self.others(number) {
            if !collective::reached(word.load().unwrap_or(0), number) {
                // Pinned memory, as above.
                let _ = word.store(collective::released(number));
            }
        }
    }
}
