//! Detection of lost ranks, and what the other ranks then do.
//!
//! A lost rank blocks its neighbours, and these block theirs; soon every rank waits for a living
//! one. A rank that has waited for a long time, or that gets an error which names another rank,
//! therefore calls [`Context::agree`], and so does every other rank, sooner or later for the same
//! reason. The call returns the lost ranks, the same at all others.
//!
//! If a rank is lost, the remaining ranks agree on the last iteration that any of them has begun,
//! and continue to it without the halos of the lost rank. Then no message is in flight between
//! them, their streams are idle, and the context remains usable. The error that they return names
//! the lost rank.
//!
//! A rank that is done calls it as well, so that no rank ends before all have.

use std::sync::Arc;
use std::time::Duration;

use mp::gdsync::{Status, Stream};
use mp::{Agreed, Context, Error, Kind, Request, Result};

use crate::config::Config;

/// The interval between two looks at the other ranks during a wait.
const PERIOD: Duration = Duration::from_millis(2);
/// The time for the last rank to start, as a multiple of the limit for an answer.
const START: u32 = 8;
const OPERATION: &str = "run halo2d";

/// What one rank has recorded about the other ranks of a run.
pub struct Recovery<'a> {
    ctx: &'a Context,
    /// Time since the start, by the clock of the GPU's driver.
    clock: Box<dyn Fn() -> Duration>,
    limit: Duration,
    answer_limit: Duration,
    /// The lost ranks, the same at all others.
    lost: Vec<u32>,
    /// When the current wait, or its last agreement, began.
    quiet_since: Duration,
    /// Iterations begun by this rank.
    begun: u64,
    /// The iterations to run, once a rank is lost.
    last: Option<u64>,
    /// The error of the rank that was lost first.
    first: Option<Error>,
}

impl<'a> Recovery<'a> {
    /// The state at the start, without a lost rank.
    pub fn new(ctx: &'a Context, config: &Config) -> Recovery<'a> {
        let host = Arc::clone(ctx.gpu().host());
        let start = host.now();
        Recovery {
            ctx,
            clock: Box::new(move || host.now() - start),
            limit: config.limit,
            answer_limit: config.answer_limit,
            lost: Vec::new(),
            quiet_since: Duration::ZERO,
            begun: 0,
            last: None,
            first: None,
        }
    }

    /// Records that `begun` iterations have begun.
    pub fn set_begun(&mut self, begun: u64) {
        self.begun = begun;
    }

    /// Whether a rank is lost.
    pub fn is_lost(&self, rank: u32) -> bool {
        self.lost.contains(&rank)
    }

    /// The number of iterations that the remaining ranks run after a loss; `None` before.
    pub fn last_iteration(&self) -> Option<u64> {
        self.last
    }

    /// `Ok` if no rank is lost.
    ///
    /// # Errors
    /// The error that names the rank that was lost first.
    pub fn result(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }

    /// Waits until all remaining ranks have started.
    ///
    /// # Errors
    /// Those of [`Context::agree`].
    pub fn start(&mut self) -> Result<()> {
        self.meet(false, START * self.answer_limit).map(drop)
    }

    /// Waits until all remaining ranks are done.
    ///
    /// # Errors
    /// Those of [`Context::agree`].
    pub fn finish(&mut self) -> Result<()> {
        while !self.meet(true, self.answer_limit)? {}
        Ok(())
    }

    /// Agrees on the lost ranks with all others and, if there are new ones, on the last iteration.
    /// Returns whether all ranks are done. All ranks get the same answers, so they all make the same
    /// calls.
    fn meet(&mut self, done: bool, silence: Duration) -> Result<bool> {
        let known = self.lost.len();
        let agreed = self.agree(u64::from(!done), silence)?;
        if agreed.lost.len() == known {
            return Ok(agreed.value == 0);
        }
        let agreed = self.agree(self.begun, silence)?;
        let lost = agreed.lost.iter().find(|rank| !self.lost.contains(rank));
        if let (None, Some(rank)) = (&self.first, lost) {
            let what = format!("rank {rank} is lost, as all remaining ranks agree");
            let kind = Kind::PeerFailed(Status::REMOTE_ABORTED);
            self.first = Some(Error::new(OPERATION, kind, what).with_rank(*rank));
        }
        self.lost = agreed.lost;
        self.last = Some(agreed.value);
        Ok(false)
    }

    /// Agrees with all others; a rank that is silent for the given time is lost. Other ranks may
    /// call later, when they wait as well.
    fn agree(&mut self, value: u64, silence: Duration) -> Result<Agreed> {
        let start = (self.clock)();
        let patience = self.limit.max(START * self.answer_limit);
        loop {
            // The context treats a rank as lost after half of the limit.
            let agreed = self.ctx.agree(value, 2 * silence);
            self.quiet_since = (self.clock)();
            match agreed {
                Err(e)
                    if matches!(e.kind(), Kind::Missing | Kind::Timeout)
                        && self.quiet_since - start < patience => {}
                agreed => return agreed,
            }
        }
    }

    /// Handles an error. If it says that another rank is lost, the ranks agree on that.
    ///
    /// # Errors
    /// Any other error.
    fn on_error(&mut self, e: Error) -> Result<()> {
        let lost = matches!(
            e.kind(),
            Kind::PeerFailed(_) | Kind::Failed(_) | Kind::Timeout
        );
        let rank = match e.rank() {
            Some(rank) if lost && rank != self.ctx.rank() => rank,
            _ => return Err(e),
        };
        let known = self.first.is_some();
        // An agreement that other ranks have ended before they heard of it is followed by another.
        for _ in 0..2 {
            if self.is_lost(rank) {
                break;
            }
            self.meet(false, self.answer_limit)?;
        }
        match self.is_lost(rank) {
            true if !known => self.first = Some(e),
            true => {}
            false => return Err(e),
        }
        Ok(())
    }

    /// Does the work of a wait: agrees with the other ranks if it lasts long, or if others have
    /// called and it lasts for a while.
    fn poll(&mut self) -> Result<()> {
        let quiet = (self.clock)() - self.quiet_since;
        let asked = || quiet > self.answer_limit / 4 && self.ctx.is_asked_to_agree();
        if quiet > self.answer_limit || asked() {
            self.meet(false, self.answer_limit)?;
        }
        Ok(())
    }

    /// Waits until `pending` returns `None`. Otherwise `pending` returns the error of a timeout,
    /// which ends the wait when it exceeds the limit.
    fn wait_until(
        &mut self,
        mut pending: impl FnMut(&mut Self) -> Result<Option<Error>>,
    ) -> Result<()> {
        self.quiet_since = (self.clock)();
        let (mut start, mut known) = (self.quiet_since, self.lost.len());
        while let Some(late) = pending(self)? {
            self.poll()?;
            if self.lost.len() > known {
                (start, known) = ((self.clock)(), self.lost.len());
            }
            if (self.clock)() - start > self.limit {
                return Err(late);
            }
        }
        Ok(())
    }

    /// Waits until all of `requests` have ended; those of lost ranks may have failed.
    ///
    /// # Errors
    /// The error of a failed request, if it names no other rank; `Timeout` after the limit.
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
