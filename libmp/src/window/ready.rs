//! Ready words: a count for each pair of ranks and direction. The CPU or a stream of one rank
//! advances it, and the CPU or a stream of the other waits for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::Condition;

use super::op::{Access, WindowOp};
use super::signal::Awaited;
use super::targets::Targets;
use crate::error::{Error, Kind, Result, time};
use crate::mutant::{self, Mutant};
use crate::path::Word;
use crate::request::entry::Entry;
use crate::request::one_sided::Action;
use crate::request::table::RequestKey;
use crate::two_sided::engine::Engine;
use crate::two_sided::ready::{READY, WORD};
use crate::two_sided::{NULL_RANK, On};
use crate::wire::record::Record;

const SEND: &str = "send ready word";

/// The ready words between this rank and all others.
pub(crate) struct ReadyWords {
    targets: Targets,
    /// By rank.
    sent: Vec<Mutex<Sent>>,
    /// By rank: the number of the last ready word of it that a call has waited for.
    taken: Vec<Mutex<u64>>,
}

/// The last ready word to a rank.
#[derive(Default)]
struct Sent {
    number: u64,
    /// Its lane and its request.
    last: Option<(u8, RequestKey)>,
}

impl ReadyWords {
    /// # Errors
    /// Errors of gdsync if no memory is available.
    pub fn new(engine: &Engine) -> Result<ReadyWords> {
        let (size, start) = (engine.size, engine.ready_start());
        let memory = engine.ready_memory(&mut engine.lock())?;
        let targets = Targets::new(&engine.paths, size, &memory)?;
        targets.add_own(engine.rank)?;
        let sent = || {
            let (number, last) = (start, None);
            Mutex::new(Sent { number, last })
        };
        Ok(ReadyWords {
            targets,
            sent: (0..size).map(|_| sent()).collect(),
            taken: (0..size).map(|_| Mutex::new(start)).collect(),
        })
    }
}

fn lock<T>(counts: &[Mutex<T>], rank: u32) -> MutexGuard<'_, T> {
    let lock = counts[rank as usize].lock();
    lock.unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Sends the next ready word to a rank.
    pub fn send_ready(&self, words: &ReadyWords, on: On<'_>, rank: u32) -> Result<()> {
        on.check(&self.gpu, SEND)?;
        if rank == NULL_RANK {
            return Ok(());
        }
        self.check_rank(SEND, rank)?;
        let mut sent = lock(&words.sent, rank);
        self.open_ready(words, rank)?;
        self.in_order(&sent, on, rank)?;
        let number = sent.number.wrapping_add(1);
        let value = match number.is_multiple_of(3) && mutant::on(Mutant::RepeatedReadyWord) {
            true => sent.number,
            false => number,
        };
        let op = WindowOp {
            rank,
            offset: u64::from(self.rank) * WORD as u64,
            access: Access::Signal { value },
            on,
        };
        let key = self.transfer(&words.targets, &op)?;
        let state = &mut *self.lock();
        let lane = state.requests.get(key).map(|entry| entry.poster.lane);
        let last = lane.map(|lane| (lane, key));
        *sent = Sent { number, last };
        self.drop_handle(state, key);
        Ok(())
    }

    /// A word of another queue pair could overtake the last one.
    fn in_order(&self, sent: &Sent, on: On<'_>, rank: u32) -> Result<()> {
        let Some((lane, key)) = sent.last else {
            return Ok(());
        };
        let state = &mut *self.lock();
        if self.lane_of(state, &on) == lane {
            return Ok(());
        }
        self.advance(state, key);
        let open = |entry: &Entry| entry.status().is_none();
        if !state.requests.get(key).is_some_and(open) {
            return Ok(());
        }
        let what = format!(
            "the last ready word to rank {rank} was posted by another stream or by the CPU and is \
             not sent yet; send the ready words to a rank by one stream, or wait for that stream"
        );
        Err(Error::new(SEND, Kind::Busy, what).with_rank(rank))
    }

    fn check_rank(&self, operation: &'static str, rank: u32) -> Result<()> {
        match rank < self.size {
            true => Ok(()),
            false => Err(Error::outside_job(operation, rank, self.size)),
        }
    }

    /// Exchanges the records of the ready words with a rank, on first use.
    fn open_ready(&self, words: &ReadyWords, rank: u32) -> Result<()> {
        if words.targets.has(rank) {
            return Ok(());
        }
        let deadline = self.host().now() + self.config.timeout;
        let mut answer = Ok(None);
        self.wait(deadline, &mut || {
            self.progress();
            answer = self.ask_ready(rank);
            !matches!(answer, Ok(None))
        });
        let Some(block) = answer? else {
            let what = format!(
                "rank {rank} did not answer within {} (Builder::timeout); check that it has built \
                 a context named {:?}, and that it calls progress() if it has Progress::Manual",
                time(self.config.timeout),
                self.config.name
            );
            return Err(Error::new(SEND, Kind::Timeout, what).with_rank(rank));
        };
        words.targets.add(self.paths.ways(rank), rank, &block)
    }

    fn ask_ready(&self, rank: u32) -> Result<Option<Vec<Record>>> {
        let state = &mut *self.lock();
        let here = state.peers.make(rank).filter(|peer| peer.is_here());
        if here.is_some() && state.outbox.lost().is_none() {
            self.name_ready(state, rank)?;
        }
        if let Some(peer) = state.peers.get_mut(rank) {
            if !peer.is_here() {
                return Err(peer.error(SEND));
            }
            if self.paths.chosen(rank).is_some()
                && let Some(block) = peer.windows.remove(&READY)
            {
                return Ok(Some(block));
            }
        }
        if let Some(why) = state.outbox.lost() {
            let what = format!(
                "rank {rank} is not open for ready words, and the bootstrap no longer reaches the \
                 other ranks ({why}); use ranks that are open"
            );
            return Err(Error::new(SEND, Kind::BootstrapLost, what).with_rank(rank));
        }
        Ok(None)
    }

    /// The wait for the ready word after number `taken`.
    fn awaited_ready(&self, words: &ReadyWords, rank: u32, taken: u64) -> Result<Awaited> {
        let action = Action::WaitReady;
        self.name_ready(&mut self.lock(), rank)?;
        let offset = u64::from(rank) * WORD as u64;
        let (word, memory) = words.targets.word("wait for ready word", offset)?;
        Ok(Awaited {
            action,
            from: Some(rank),
            word: Word::Wide(word),
            memory,
            flush: false,
            condition: Condition::Geq,
            value: taken.wrapping_add(1),
        })
    }

    /// Runs `wait` for the next ready word of a rank, and counts the word as taken if `wait`
    /// returns `true`.
    fn take_ready(
        &self,
        words: &ReadyWords,
        rank: u32,
        wait: impl FnOnce(&Awaited) -> Result<bool>,
    ) -> Result<bool> {
        if rank == NULL_RANK {
            return Ok(true);
        }
        self.check_rank("wait for ready word", rank)?;
        let mut taken = lock(&words.taken, rank);
        let done = wait(&self.awaited_ready(words, rank, *taken)?)?;
        if done {
            *taken = taken.wrapping_add(1);
        }
        Ok(done)
    }

    /// Waits on the CPU, at most `limit`, for the next ready word of a rank.
    pub fn wait_ready(&self, words: &ReadyWords, rank: u32, limit: Duration) -> Result<()> {
        let wait = |next: &Awaited| self.wait_word(next, limit).map(|()| true);
        self.take_ready(words, rank, wait).map(drop)
    }

    /// Makes a stream wait for the next ready word of a rank.
    pub fn wait_ready_on(&self, words: &ReadyWords, stream: &Stream, rank: u32) -> Result<()> {
        On::Stream(stream, None).check(&self.gpu, "wait for ready word")?;
        let wait = |next: &Awaited| self.wait_word_on(stream, next).map(|()| true);
        self.take_ready(words, rank, wait).map(drop)
    }

    /// Whether the next ready word of a rank has arrived.
    pub fn test_ready(&self, words: &ReadyWords, rank: u32) -> Result<bool> {
        self.progress();
        self.take_ready(words, rank, |next| self.test_word(next))
    }
}
