//! Waits for words of this rank's own memory, by the CPU and by streams: signals of a window, ready
//! words, and words that the application names.

use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::Condition;

use super::targets::Targets;
use crate::error::{Error, Kind, Result, time};
use crate::path::{List, Word};
use crate::region::Slice;
use crate::request::entry::{Common, Entry, Handle, Operation, Poster};
use crate::request::one_sided::{Action, SignalState, SignalWait};
use crate::trace::Facts;
use crate::two_sided::engine::Engine;
use crate::two_sided::{NULL_RANK, On, Peer, State, mark_others, not_connected};
use crate::wire::word;

/// A word of this rank's memory that the CPU or a stream waits for.
pub(crate) struct Awaited {
    pub action: Action,
    /// The rank that stores the word; `None`: not a rank, so no loss of a rank ends the wait.
    pub from: Option<u32>,
    pub word: Word,
    /// The bytes of the word.
    pub memory: Slice,
    /// Whether a wait flushes in any case; a wait for a word of a rank flushes also if a window is in
    /// GPU memory.
    pub flush: bool,
    pub condition: Condition,
    pub value: u64,
}

impl Awaited {
    /// What observers of the call show.
    pub fn facts(&self) -> Facts {
        Facts {
            peer: self.from,
            ..Facts::default()
        }
    }

    /// A signal in a window.
    ///
    /// # Errors
    /// `Invalid` for a word outside the window or that is not aligned.
    pub fn signal(
        window: &Targets,
        from: u32,
        offset: u64,
        condition: Condition,
        value: u64,
    ) -> Result<Awaited> {
        let action = Action::WaitSignal;
        let (word, memory) = window.word(name(action), offset)?;
        Ok(Awaited {
            action,
            from: Some(from),
            word: Word::Wide(word),
            memory,
            flush: false,
            condition,
            value,
        })
    }

    /// Checks the rank and the condition. `false`: the rank is the null rank, there is no wait.
    fn check(&self, size: u32) -> Result<bool> {
        let operation = name(self.action);
        if let Some(from) = self.from
            && from >= size
            && from != NULL_RANK
        {
            return Err(Error::outside_job(operation, from, size));
        }
        let Awaited {
            condition, value, ..
        } = *self;
        if !self.word.is_possible(condition, value) {
            let what = format!(
                "no word satisfies the condition {condition:?} with {value:#x}; use another value"
            );
            let error = Error::new(operation, Kind::Invalid, what);
            return Err(self.from.into_iter().fold(error, Error::with_rank));
        }
        Ok(self.from != Some(NULL_RANK))
    }

    fn holds(&self, word: u64) -> bool {
        self.word.holds(self.condition, word, self.value)
    }

    /// The error of a wait of the CPU that has lasted `limit`.
    fn late(&self, limit: Duration) -> Result<Error> {
        let (seen, within, offset) = (self.word.load()?, time(limit), self.memory.offset());
        let goal = format!("{:?} {:#x}", self.condition, self.value);
        let what = match (self.action, self.from) {
            (Action::WaitWord, from) => {
                let what = format!(
                    "the word at offset {offset} of {:?} is {seen:#x} after {within}, and the \
                     wait is for {goal}; check that ",
                    self.memory.memory()
                );
                match from {
                    Some(from) => format!("{what}rank {from} stores to this word"),
                    None => format!("{what}a stream or the CPU stores to this word"),
                }
            }
            (Action::WaitReady, Some(from)) => format!(
                "no ready word of rank {from} has arrived within {within}: the word is {seen:#x}, \
                 and the wait is for {goal}; check that the rank calls send_ready"
            ),
            (_, from) => format!(
                "no signal of rank {} has arrived within {within}: the word at offset {offset} of \
                 this rank's window is {seen:#x}, and the wait is for {goal}; check that the rank \
                 stores to this offset",
                from.unwrap_or(NULL_RANK)
            ),
        };
        let error = Error::new(name(self.action), Kind::Timeout, what);
        Ok(self.from.into_iter().fold(error, Error::with_rank))
    }

    /// The error if the rank that stores the word was given up.
    fn lost(&self, state: &State) -> Option<Error> {
        let rank = self.from?;
        match state.peers.get(rank) {
            None => Some(not_connected(name(self.action), rank)),
            Some(peer) => Some(peer)
                .filter(|peer| !peer.is_here())
                .map(|peer: &Peer| peer.error(name(self.action))),
        }
    }
}

/// The name of a wait in errors.
pub(super) fn name(action: Action) -> &'static str {
    match action {
        Action::WaitReady => "wait for ready word",
        Action::WaitWord => "wait for value",
        _ => "wait for signal",
    }
}

impl Engine {
    /// Waits on the CPU, at most `limit`, for a word.
    pub fn wait_word(&self, awaited: &Awaited, limit: Duration) -> Result<()> {
        if !awaited.check(self.size)? {
            return Ok(());
        }
        // A rank that this rank has sent nothing to may fail as well.
        if let Some(from) = awaited.from
            && let Some(peer) = self.lock().peers.make(from)
        {
            peer.counts.waits += 1;
        }
        let is_met = || self.has_arrived(awaited);
        let deadline = self.host().now() + limit;
        let (mut met, mut checks) = (Ok(false), 0);
        self.wait(deadline, &mut || {
            met = is_met();
            if !matches!(met, Ok(false)) {
                return true;
            }
            self.work(self.lock(), &mut checks, None);
            let state = &mut *self.lock();
            state.released.look(&awaited.word);
            awaited.lost(state).is_some()
        });
        // It may have arrived before the rank was given up.
        if met? || is_met()? {
            return Ok(());
        }
        let lost = awaited.lost(&self.lock());
        lost.map_or_else(|| Err(awaited.late(limit)?), Err)
    }

    /// Whether a word satisfies its condition by a value that the library has not stored. The puts
    /// that precede it are visible then.
    fn has_arrived(&self, awaited: &Awaited) -> Result<bool> {
        let now = awaited.word.load()?;
        if !awaited.holds(now) {
            return Ok(false);
        }
        let state = self.lock();
        let arrived = awaited.holds(state.released.signal(&awaited.word, now));
        let by_rank = awaited.from.is_some() && state.device_windows;
        drop(state);
        if arrived && (awaited.flush || by_rank) {
            self.gpu.flush_remote_writes();
        }
        Ok(arrived)
    }

    /// Whether a word satisfies its condition now.
    ///
    /// # Errors
    /// That of a lost rank, if it does not.
    pub fn test_word(&self, awaited: &Awaited) -> Result<bool> {
        if awaited.check(self.size)? && !self.has_arrived(awaited)? {
            let state = &mut *self.lock();
            // A rank that this rank has sent nothing to may fail as well.
            awaited.from.map(|from| state.peers.make(from).is_some());
            state.released.look(&awaited.word);
            return awaited.lost(state).map_or(Ok(false), Err);
        }
        Ok(true)
    }

    /// Makes a stream wait for a word. The failure of the rank that stores it, and the context's
    /// timeout, release the stream.
    pub fn wait_word_on(&self, stream: &Stream, awaited: &Awaited) -> Result<()> {
        On::Stream(stream, None).check(&self.gpu, name(awaited.action))?;
        if !awaited.check(self.size)? {
            return Ok(());
        }
        let Awaited {
            word,
            condition,
            value,
            flush,
            ..
        } = awaited;
        let mut list = List::<2>::new();
        list.wait_until(word, *condition, *value, *flush);
        let Some(from) = awaited.from else {
            return self.with_room(|| {
                mark_others(&mut self.lock(), stream, 0)?;
                list.post(stream, None)
            });
        };
        self.with_room(|| {
            let mut guard = self.lock();
            let state = &mut *guard;
            self.sweep_if_crowded(state);
            state.peers.make(from);
            if let Some(e) = awaited.lost(state)
                && !awaited.holds(state.released.signal(word, word.load()?))
            {
                return Err(e);
            }
            mark_others(state, stream, 0)?;
            state.requests.reserve(&self.gpu)?;
            let len = u64::from(word.bits() / 8);
            let common = Common {
                number: awaited.memory.offset() as u64,
                poster: Poster {
                    lane: 0,
                    stream: Some(stream.downgrade()),
                },
                handle: Handle::Dropped,
                len,
                order: state.requests.next_order(),
                ..Common::new(from, 0, std::slice::from_ref(&awaited.memory))
            };
            let operation = Operation::Signal(SignalWait {
                action: awaited.action,
                word: word.clone(),
                condition: *condition,
                value: *value,
                state: SignalState::Waiting,
            });
            let key = state.requests.put(Entry { common, operation });
            let passed = word::result(gdsync::Status::SUCCESS, len);
            let mut list = List::<2>::new();
            list.wait_until(word, *condition, *value, *flush || state.device_windows);
            list.store(state.requests.result_word(key), passed);
            let posted = stream.check_room(2).map_err(Error::from);
            let posted = posted.and_then(|()| list.post(stream, None));
            match posted {
                Ok(()) => state.counts(Some(from)).waits += 1,
                Err(_) => state.requests.withdraw(key),
            }
            posted
        })
    }
}
