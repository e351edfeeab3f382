//! Waits for signals: words of this rank's own window memory, by the CPU and by streams.

use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::{Condition, Word64};

use super::targets::{Targets, WORD};
use crate::error::{Error, Kind, Result, time};
use crate::path::List;
use crate::region::Slice;
use crate::request::entry::{Common, Entry, Handle, Operation, Poster};
use crate::request::one_sided::{SignalState, SignalWait, holds, is_possible};
use crate::trace::Facts;
use crate::two_sided::engine::Engine;
use crate::two_sided::{NULL_RANK, On, Peer, State, closed};
use crate::wire::word;

const WAIT: &str = "wait for signal";

/// A signal that this rank waits for.
#[derive(Clone, Copy)]
pub(crate) struct Awaited {
    /// The rank that stores the word.
    pub from: u32,
    pub offset: u64,
    pub condition: Condition,
    pub value: u64,
}

impl Awaited {
    /// What observers of the call show.
    pub fn facts(&self) -> Facts {
        Facts {
            peer: Some(self.from),
            ..Facts::default()
        }
    }

    /// The word, and the memory that has it.
    fn word(&self, engine: &Engine, window: &Targets) -> Result<(Word64, Slice)> {
        let Awaited {
            from,
            offset,
            condition,
            value,
        } = *self;
        let refuse = |what: String| Err(Error::new(WAIT, Kind::Invalid, what).with_rank(from));
        if from >= engine.size && from != NULL_RANK {
            let size = engine.size;
            return refuse(format!("rank {from} is not in the job of {size} ranks"));
        }
        if !is_possible(condition, value) {
            return refuse(format!(
                "no word satisfies the condition {condition:?} with {value:#x}; use another value"
            ));
        }
        window.word(WAIT, offset)
    }
}

impl Engine {
    /// Waits on the CPU, at most `limit`, for a signal.
    pub fn wait_signal(&self, window: &Targets, signal: &Awaited, limit: Duration) -> Result<()> {
        /// Number of checks between two rounds of the background work.
        const EVERY: u32 = 32;
        let (word, _) = signal.word(self, window)?;
        if signal.from == NULL_RANK {
            return Ok(());
        }
        // A rank that this rank has sent nothing to may fail as well.
        if let Some(peer) = self.lock().peers.make(signal.from) {
            peer.counts.waits += 1;
        }
        let is_met = || -> Result<bool> {
            let holds = |value| holds(signal.condition, value, signal.value);
            let now = word.load()?;
            if !holds(now) {
                return Ok(false);
            }
            let state = self.lock();
            let met = holds(state.released.signal(&word, now));
            let flushes = met && state.device_windows;
            drop(state);
            if flushes {
                self.gpu.flush_remote_writes();
            }
            Ok(met)
        };
        let deadline = self.host().now() + limit;
        let (mut met, mut looks) = (Ok(false), 0);
        self.wait(deadline, &mut || {
            met = is_met();
            if !matches!(met, Ok(false)) {
                return true;
            }
            looks += 1;
            if looks % EVERY == 0 {
                self.progress();
            } else {
                self.push_all();
            }
            lost(&self.lock(), signal.from).is_some()
        });
        // It may have arrived before the rank was given up.
        if met? || is_met()? {
            return Ok(());
        }
        if let Some(e) = lost(&self.lock(), signal.from) {
            return Err(e);
        }
        let (value, within) = (word.load()?, time(limit));
        let what = format!(
            "no signal of rank {} has arrived within {within}: the word at offset {} of this \
             rank's window is {value:#x}, and the wait is for {:?} {:#x}; check that the rank \
             stores to this offset",
            signal.from, signal.offset, signal.condition, signal.value,
        );
        Err(Error::new(WAIT, Kind::Timeout, what).with_rank(signal.from))
    }

    /// Makes a stream wait for a signal. The failure of the rank, and the context's timeout,
    /// release the stream.
    pub fn wait_signal_on(
        &self,
        window: &Targets,
        stream: &Stream,
        signal: &Awaited,
    ) -> Result<()> {
        let (place, memory) = signal.word(self, window)?;
        On::Stream(stream, None).check(&self.gpu, WAIT)?;
        if signal.from == NULL_RANK {
            return Ok(());
        }
        self.with_room(|| {
            let mut guard = self.lock();
            let state = &mut *guard;
            self.sweep_if_crowded(state);
            state.peers.make(signal.from);
            let wait = SignalWait {
                word: place.clone(),
                condition: signal.condition,
                value: signal.value,
                state: SignalState::Waiting,
            };
            if let Some(e) = lost(state, signal.from)
                && !wait.holds(state.released.signal(&place, place.load()?))
            {
                return Err(e);
            }
            state.requests.reserve(&self.gpu)?;
            let common = Common {
                number: signal.offset,
                poster: Poster {
                    lane: 0,
                    stream: Some(stream.downgrade()),
                },
                handle: Handle::Dropped,
                len: WORD as u64,
                order: state.requests.next_order(),
                ..Common::new(signal.from, 0, std::slice::from_ref(&memory))
            };
            let operation = Operation::Signal(wait);
            let key = state.requests.put(Entry { common, operation });
            let passed = word::result(gdsync::Status::SUCCESS, WORD as u64);
            let mut list = List::<2>::new();
            list.wait_until(&place, signal.condition, signal.value, state.device_windows);
            list.store(state.requests.result_word(key), passed);
            let posted = stream.check_room(2).map_err(Error::from);
            let posted = posted.and_then(|()| list.post(stream, None));
            match posted {
                Ok(()) => state.counts(Some(signal.from)).waits += 1,
                Err(_) => state.requests.withdraw(key),
            }
            posted
        })
    }
}

/// The error of a wait for a rank that was given up.
fn lost(state: &State, rank: u32) -> Option<Error> {
    match state.peers.get(rank) {
        None => Some(closed(format!("rank {rank} is not connected"), rank)),
        Some(peer) => Some(peer)
            .filter(|peer| !peer.is_here())
            .map(|peer: &Peer| peer.error(WAIT)),
    }
}
