//! One-sided operations: their kinds, and the state of a stream's wait for a word of this rank, which
//! another rank stores.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use gds_step::{Machine, Step, Time};
use gdsync::Status;
use gdsync::gpu::{Condition, Word64};

use crate::error::Result;
use crate::path::Word;
use crate::region::{self, Memory};
use crate::wire::collective::Call;

/// The period in which [`Releases`] looks for streams that have passed a wait.
const PERIOD: Duration = Duration::from_millis(1);

/// The kind of a one-sided operation, of an exchange or of a collective call, for texts.
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
    /// A step of an exchange with neighbours.
    Exchange,
    /// A collective call.
    Collective(Call),
    /// A stream waits for the ready word of a rank.
    WaitReady,
    /// A stream waits for a word of this rank's memory.
    WaitWord,
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
#[derive(Clone, Debug)]
pub(crate) struct SignalWait {
    pub action: Action,
    pub word: Word,
    pub condition: Condition,
    pub value: u64,
    pub state: SignalState,
}

impl SignalWait {
    /// Whether the word satisfies the condition; `false` also if it cannot be read.
    pub fn is_met(&self) -> bool {
        self.word.load().is_ok_and(|word| self.holds(word))
    }

    /// Whether `word` satisfies the condition.
    pub fn holds(&self, word: u64) -> bool {
        self.word.holds(self.condition, word, self.value)
    }

    /// Whether the release of `other`, whose word had the value `before`, meets this wait as well.
    pub fn ends_with(&self, other: &SignalWait, before: u64) -> bool {
        self.word.addr() == other.word.addr() && !self.holds(before) && self.holds(other.value)
    }

    /// Whether the wait is at the word of `other`, and is not met by the value that releases
    /// `other`.
    pub fn is_held_by(&self, other: &SignalWait) -> bool {
        self.word.addr() == other.word.addr() && !self.holds(other.value)
    }

    /// Stores a value that satisfies the condition.
    pub fn release(&self) -> Result<()> {
        debug_assert!(self.word.is_possible(self.condition, self.value));
        self.word.store(self.value)
    }
}

/// The words in which the library has stored a value that releases a stream: no signal. By address,
/// as long as the word has this value and its memory is registered.
#[derive(Debug, Default)]
pub(crate) struct Released(BTreeMap<u64, Release>);

#[derive(Debug)]
struct Release {
    /// The value that the library stored.
    stored: u64,
    /// The value that ranks had stored before.
    before: u64,
    /// The width of the word.
    bits: u32,
    /// Its memory.
    memory: Weak<region::Inner>,
}

impl Released {
    /// The value that ranks have stored into a word, whose value is `now`.
    pub fn signal(&self, word: &Word, now: u64) -> u64 {
        match self.0.get(&word.addr().0) {
            Some(release) if release.stored == now && release.memory.strong_count() > 0 => {
                release.before
            }
            _ => now,
        }
    }

    /// Records that the library stores `stored` into a word of `memory`, for which ranks have stored
    /// `before`.
    pub fn note(&mut self, word: &Word, memory: &Memory, before: u64, stored: u64) {
        self.0.retain(|_, old| old.memory.strong_count() > 0);
        let memory = Arc::downgrade(&memory.0);
        let release = Release {
            stored,
            before,
            bits: word.bits(),
            memory,
        };
        self.0.insert(word.addr().0, release);
    }

    /// Forgets the release at a word that has another value: when the word has the stored value
    /// later, a rank has stored it.
    #[inline]
    pub fn look(&mut self, word: &Word) {
        if let Some(release) = self.0.get(&word.addr().0)
            && word.load().is_ok_and(|now| now != release.stored)
        {
            self.0.remove(&word.addr().0);
        }
    }

    /// As [`Released::look`], for all words in a memory.
    pub fn look_at(&mut self, memory: &Memory) {
        let region = memory.region();
        let start = region.addr().0;
        let inside = self.0.range(start..start + memory.len() as u64);
        let words = inside.filter_map(|(at, release)| {
            let offset = (at - start) as usize;
            match release.bits {
                32 => region.word32(offset).ok().map(Word::Narrow),
                _ => region.word64(offset).ok().map(Word::Wide),
            }
        });
        let words: Vec<Word> = words.collect();
        words.iter().for_each(|word| self.look(word));
    }
}

/// The waits for signals that streams have not passed when a context is dropped, in the order in
/// which they were enqueued, each with the word in which its stream stores that it has passed.
pub(crate) struct Releases(pub Vec<(SignalWait, Word64)>);

impl Releases {
    /// Releases all waits, except those whose release would hold an earlier one at the same word.
    /// Returns whether there are any.
    pub fn release(&mut self) -> bool {
        self.0.retain(|(_, passed)| passed.load().unwrap_or(1) == 0);
        let mut held = false;
        for (at, (wait, _)) in self.0.iter().enumerate() {
            let mut earlier = self.0[..at].iter();
            if wait.is_met() {
                continue;
            }
            match earlier.any(|(earlier, _)| earlier.is_held_by(wait)) {
                true => held = true,
                false => drop(wait.release()),
            }
        }
        held
    }
}

/// Releases the remaining waits, each when the stream has passed those before it.
impl Machine for Releases {
    fn step(&mut self, now: Time) -> Step {
        match self.release() {
            true => Step::IdleUntil(Some(now + PERIOD)),
            false => {
                self.0.clear();
                Step::IdleUntil(None)
            }
        }
    }

    fn name(&self) -> String {
        "closed.releases".to_owned()
    }
}
