//! Collective calls by the CPU: posting, the wait for the words of the other ranks, and the result.

use std::time::Duration;

use gds_step::Time;
use gdsync::gpu::Word64;
use zerocopy::IntoBytes;

use super::call::CollectiveCall;
use super::op::{Number, Op};
use super::team::TeamHandle;
use crate::error::{Error, Kind, Result, time};
use crate::plan::Plan;
use crate::two_sided::engine::Engine;
use crate::two_sided::wait::Worked;
use crate::two_sided::{On, State, join};

impl TeamHandle {
    /// Makes a call: puts the contributions `data` and waits, at most `limit`, for all ranks.
    /// Returns its number; the caller takes the contributions of the ranks from their slots, and
    /// then ends the call.
    pub fn call(
        &mut self,
        engine: &Engine,
        call: &CollectiveCall<'_>,
        data: &[u8],
        limit: Duration,
    ) -> Result<u64> {
        let number = self.next(call, engine)?;
        let start = engine.host().now();
        self.wait_for_stream(engine, call, limit)?;
        self.open(engine, call, &On::Cpu, number)?;
        let at = self.sources(call, number);
        self.memory().region().write(at, data)?;
        let posted = engine.with_room(|| {
            let post = |state: &mut State, plan: &mut Plan<'_>| plan.post_by_cpu(&mut state.peers);
            self.with_puts(engine, &mut engine.lock(), (call, number), post)
        });
        posted.map_err(|e| self.refused(engine, call, number, e))?;
        self.wait(engine, number, start, limit);
        // The words may have arrived before a failure.
        let good = self.team.absent(number).next().is_none() && self.compare(engine, call, number);
        match self.team.failure() {
            Some(failure) if !good => Err(failure.error(call.name())),
            _ => Ok(number),
        }
    }

    /// Ends a call of the CPU, after its slots were read.
    pub fn end(&mut self, number: u64) -> Result<()> {
        self.team.passed.store(number)?;
        (self.last, self.stream) = (number, None);
        Ok(())
    }

    /// Reads the contribution of `rank` to call `number`.
    pub fn read(
        &self,
        call: &CollectiveCall<'_>,
        number: u64,
        rank: u32,
        into: &mut [u8],
    ) -> Result<()> {
        let at = self.slot(call, number, rank);
        Ok(self.memory().region().read(at, into)?)
    }

    /// Combines the contributions of all ranks to call `number`, in the order of the ranks.
    pub fn reduce<T: Number>(
        &self,
        call: &CollectiveCall<'_>,
        number: u64,
        op: Op,
        into: &mut [T],
    ) -> Result<()> {
        /// Elements that are read at once.
        const PART: usize = 64;
        self.read(call, number, 0, into.as_mut_bytes())?;
        let region = self.memory().region();
        for rank in 1..self.lanes.len() as u32 {
            let mut at = self.slot(call, number, rank);
            for part in into.chunks_mut(PART) {
                let theirs = &mut [T::ZERO; PART][..part.len()];
                region.read(at, theirs.as_mut_bytes())?;
                at += size_of_val(theirs);
                for (mine, theirs) in part.iter_mut().zip(theirs) {
                    *mine = mine.combine(op, *theirs);
                }
            }
        }
        into.iter_mut().for_each(|value| *value = value.plain());
        Ok(())
    }

    /// Waits for the stream of the last call: the calls of a rank have one order.
    fn wait_for_stream(
        &self,
        engine: &Engine,
        call: &CollectiveCall<'_>,
        limit: Duration,
    ) -> Result<()> {
        let last = self.last;
        if self.team.has_passed(last) {
            return self.check_stream(engine, call);
        }
        let start = engine.host().now();
        let passed = engine.wait_until(limit, &mut |_| {
            self.team.has_passed(last) || self.team.failure().is_some()
        });
        match passed || self.team.failure().is_some() {
            true => self.check_stream(engine, call),
            false => Err(self.stream_is_late(engine, call, (start, limit))),
        }
    }

    /// The error of a call that has waited for the stream of the last call until its limit.
    #[cold]
    fn stream_is_late(
        &self,
        engine: &Engine,
        call: &CollectiveCall<'_>,
        (start, limit): (Time, Duration),
    ) -> Error {
        let (open, within) = (self.team.first_open(self.last), time(limit));
        let absent = engine.absent_ranks(&engine.lock(), &self.team, open, start);
        let why = match absent.is_empty() {
            true => format!("the stream of call {open} has not executed it"),
            false => format!(
                "rank {} has not joined call {open} of a stream",
                join(&absent)
            ),
        };
        let what =
            format!("{why} within {within}; nothing is posted, and the call may be repeated");
        let error = Error::new(call.name(), Kind::Timeout, what);
        match absent.first() {
            Some(rank) => error.with_rank(*rank),
            None => error,
        }
    }

    /// # Errors
    /// The failure of a stream's call that has ended.
    fn check_stream(&self, engine: &Engine, call: &CollectiveCall<'_>) -> Result<()> {
        if self.stream.is_some() {
            engine.find_fault(&mut engine.lock(), &self.team);
        }
        let failure = self.team.failure();
        failure.map_or(Ok(()), |failure| Err(failure.error(call.name())))
    }

    /// Waits until all ranks have joined the call, or the team has failed. At the deadline the team
    /// fails.
    fn wait(&self, engine: &Engine, number: u64, start: Time, limit: Duration) {
        let (team, mut checks) = (&self.team, 0);
        engine.wait(start + limit, &mut || {
            if team.absent(number).next().is_none() {
                return true;
            }
            let work = engine.work(engine.lock(), &mut checks, None);
            let state = &mut *engine.lock();
            if work == Worked::Round {
                engine.probe_absent(state, team, number, start);
            }
            let mut lost = team.absent(number);
            let lost = lost.find_map(|rank| Some((rank, state.given_up(rank)?)));
            if let Some(lost) = lost {
                engine.lose_rank(state, team, number, lost);
            }
            team.failure().is_some()
        });
        if team.failure().is_none() && team.absent(number).next().is_some() {
            engine.time_out_team(&mut engine.lock(), team, (number, start), &time(limit));
        }
    }

    /// Compares the words of all ranks with the words of this call. If one differs, the team fails:
    /// `false`.
    fn compare(&self, engine: &Engine, call: &CollectiveCall<'_>, number: u64) -> bool {
        let load = |word: &Word64| word.load().unwrap_or(0);
        let mut words = self.team.others(number);
        let other = words.find(|(rank, word)| load(word) != call.word_from(number, *rank));
        if let Some((rank, word)) = other {
            let state = &mut *engine.lock();
            engine.mismatch(state, &self.team, number, rank, load(word));
        }
        other.is_none()
    }
}
