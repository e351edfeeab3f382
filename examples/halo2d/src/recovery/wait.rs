//! The waits of the CPU. During each of them a rank handles notes and probes the other ranks.

use std::time::Duration;

use mp::gdsync::Stream;
use mp::{Error, Kind, Request, Result};

use super::note::Note;
use super::{OPERATION, PERIOD, Recovery};

impl Recovery<'_> {
    /// Does the work of a wait: handles notes, and probes the other ranks.
    fn poll(&mut self) -> Result<()> {
        self.poll_notes()?;
        if !self.started {
            return Ok(());
        }
        let (now, answer_limit) = ((self.clock)(), self.answer_limit);
        for rank in self.remaining() {
            let probed = self.others[rank as usize].probed;
            if probed.is_some_and(|at| now - at > answer_limit) {
                let what = format!("rank {rank} did not answer a probe within {answer_limit:?}");
                let error = Error::new(OPERATION, Kind::Timeout, what);
                self.on_error(error.with_rank(rank))?;
            }
        }
        if now - self.quiet_since > answer_limit {
            self.quiet_since = now;
            for rank in self.remaining() {
                let other = &mut self.others[rank as usize];
                if other.probed.is_none() {
                    other.probed = Some(now);
                    self.outbox.push((rank, Note::Probe));
                }
            }
        }
        self.poll_notes()
    }

    /// Waits until `pending` returns `None`. Otherwise `pending` returns the error of a timeout, which
    /// may name the awaited rank; that rank is lost when the wait exceeds the limit.
    pub(super) fn wait_until(
        &mut self,
        mut pending: impl FnMut(&mut Self) -> Result<Option<Error>>,
    ) -> Result<()> {
        self.quiet_since = (self.clock)();
        let mut start = self.quiet_since;
        while let Some(late) = pending(self)? {
            self.poll()?;
            if (self.clock)() - start > self.limit {
                if late.rank().is_some_and(|rank| self.is_lost(rank)) {
                    return Err(late);
                }
                self.on_error(late)?;
                start = (self.clock)();
            }
        }
        Ok(())
    }

    /// Waits until all of `requests` have ended; those of lost ranks may have failed.
    ///
    /// # Errors
    /// The error of a failed request, if it names no other rank.
    pub fn wait(&mut self, requests: &[Request]) -> Result<()> {
        self.wait_until(|recovery| {
            let mut late = None;
            if mp::wait_all(requests, PERIOD).is_err() {
                for request in requests {
                    match request.wait(Duration::ZERO) {
                        Ok(_) => {}
                        Err(e) if e.kind() == Kind::Timeout => _ = late.get_or_insert(e),
                        Err(e) => recovery.on_error(e)?,
                    }
                }
            }
            Ok(late)
        })
    }

    /// Waits until a stream has executed all its work.
    ///
    /// # Errors
    /// Those of the stream; `Timeout`.
    pub fn synchronize(&mut self, stream: &Stream) -> Result<()> {
        let limit = self.limit;
        self.wait_until(|_| {
            let done = stream.synchronize(PERIOD)?;
            let what = || format!("{stream:?} did not execute all its work in time");
            let late = || Error::new(OPERATION, Kind::Timeout, what());
            Ok((!done).then(|| late().with_limit(limit.as_millis(), "ms")))
        })
    }

    /// Retries `attempt` while a queue is full. `None`: the rank of the request is lost.
    ///
    /// # Errors
    /// Errors that name no other rank; `QueueFull` after the limit.
    pub fn post<T>(&mut self, mut attempt: impl FnMut() -> Result<T>) -> Result<Option<T>> {
        let full = |answer: &Result<T>| matches!(answer, Err(e) if e.kind() == Kind::QueueFull);
        let mut answer = attempt();
        if full(&answer) {
            let (ctx, host) = (self.ctx, self.ctx.gpu().host());
            let start = (self.clock)();
            self.quiet_since = start;
            while full(&answer) && (self.clock)() - start < self.limit {
                self.poll()?;
                host.wait_until(Some(host.now() + PERIOD), &mut || {
                    ctx.progress();
                    answer = attempt();
                    !full(&answer)
                });
            }
        }
        match answer {
            Ok(done) => Ok(Some(done)),
            Err(e) => self.on_error(e).map(|()| None),
        }
    }
}
