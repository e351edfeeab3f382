//! Waits: of the CPU for requests ([`Engine::wait_for_requests`]), for conditions
//! ([`Engine::wait_until`]) and for streams ([`Engine::synchronize`]), and of streams for requests
//! ([`Engine::wait_on`]).

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gds_step::Time;
use gdsync::gpu::Word64;
use gdsync::{Status, Stream};

use super::channel::has_come;
use super::config::Progress;
use super::engine::{Engine, PERIOD};
use super::marks::mark_others;
use super::post::note_waiter;
use super::state::{Guard, State, no_lane};
use crate::error::{Error, Kind, Result, time};
use crate::path::uncaptured;
use crate::request::Done;
use crate::request::entry::{Entry, Operation, ReceiveState};
use crate::request::table::RequestKey;
use crate::trace::Facts;

pub(crate) const WAIT: &str = "wait for request";
pub(super) const WAIT_ON: &str = "wait on stream";
const SYNCHRONIZE: &str = "synchronize stream";

/// What [`Engine::work`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worked {
    /// A round of the background work.
    Round,
    /// It advanced other requests of the CPU, or copied.
    Requests,
    /// There was nothing to advance.
    Nothing,
}

/// The first word of a short receive, and the number of its message.
struct Awaited {
    word: Word64,
    number: u64,
}

impl Awaited {
    /// Of a receive that is posted, whose message is not in a flagged room.
    fn of(state: &State, key: RequestKey) -> Option<Awaited> {
        let entry = state.requests.get(key)?;
        if entry.large || entry.receive()?.state != ReceiveState::Posted {
            return None;
        }
        let (channel, number) = (state.receiving(entry.peer, entry.tag)?, entry.number);
        let word = channel.word(number, false).clone();
        (!channel.has_flagged(number)).then_some(Awaited { word, number })
    }

    /// Loads the word until the message has come, for about as long as a few checks take. No lock is held, so
    /// other threads can post.
    fn poll(&self) {
        const LOADS: usize = 32;
        for _ in 0..LOADS {
            if has_come(&self.word, self.number) {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

impl Engine {
    /// Advances a request, and returns whether it has ended, or never will because it is not
    /// posted.
    pub fn visit_and_is_settled(&self, state: &mut State, key: RequestKey) -> bool {
        self.visit(state, key);
        let entry = state.requests.get(key);
        entry.is_none_or(|entry| entry.is_prepared() || entry.status().is_some())
    }

    /// Advances a request as far as possible now.
    pub fn visit(&self, state: &mut State, key: RequestKey) {
        let entry = state.requests.get_mut(key);
        match entry.map(|entry| &mut entry.operation) {
            Some(Operation::ZeroSm(message)) => message.wanted = true,
            Some(Operation::Receive(receive)) => {
                receive.wanted = true;
                if receive.state == ReceiveState::Unmatched {
                    self.match_any(state);
                }
            }
            _ => {}
        }
        let marked = |entry: &Entry| entry.receive().is_some_and(|r| r.reached.is_some());
        let by_kernel = |entry: &Entry| entry.ends_in_device() || marked(entry);
        if state.requests.get(key).is_some_and(by_kernel) {
            self.read_reports(state, self.host().now());
        }
        self.advance(state, key);
    }

    /// What observers of a call about a request show.
    pub fn facts(&self, key: RequestKey) -> Facts {
        let state = self.lock();
        let entry = state.requests.get(key);
        entry.map_or_else(Facts::default, |entry| Facts {
            peer: (!entry.is_unmatched()).then_some(entry.peer),
            tag: Some(entry.tag),
            bytes: Some(entry.len),
            stream: entry.poster.id(),
        })
    }

    /// The result of one request. A failure with which it ended counts as returned.
    pub fn answer(
        &self,
        operation: &'static str,
        state: &mut State,
        key: RequestKey,
    ) -> Result<Option<Done>> {
        let outcome = self.outcome(operation, state, key);
        let status = state.requests.get(key).and_then(Entry::status);
        if outcome.is_err() && status.is_some() {
            state.return_fault(key);
        }
        outcome
    }

    /// The result of one request, without marking a failure as returned.
    pub fn outcome(
        &self,
        operation: &'static str,
        state: &State,
        key: RequestKey,
    ) -> Result<Option<Done>> {
        let Some(entry) = state.requests.get(key) else {
            return Err(Error::unknown_request(operation));
        };
        let Some(status) = entry.status() else {
            return match entry.is_prepared() {
                true => Err(Error::unposted(operation)),
                false => Ok(None),
            };
        };
        let name = entry.name();
        match (status, &entry.end.fault) {
            (Status::SUCCESS, _) => Ok(Some(Done {
                peer: entry.peer,
                tag: entry.tag,
                len: entry.len,
            })),
            (_, Some(fault)) => Err(self.fault_error(state, operation, fault)),
            (_, None) => {
                let text = format!("{name}: the request was cancelled");
                let error = Error::new(operation, Kind::Cancelled, text);
                Err(name.attribute(error))
            }
        }
    }

    /// Appends the results of several requests to `ends`, in their order. Returns the index of the first one that
    /// has not ended.
    ///
    /// # Errors
    /// The first failure; the failures of all count as returned.
    pub fn answers(
        &self,
        state: &mut State,
        requests: impl Iterator<Item = RequestKey>,
        ends: &mut Vec<Done>,
    ) -> Result<Option<usize>> {
        let (mut open, mut first) = (None, None);
        for (at, key) in requests.enumerate() {
            state.count_wait(key);
            match self.answer(WAIT, state, key) {
                Ok(Some(end)) => ends.push(end),
                Ok(None) => _ = open.get_or_insert(at),
                Err(e) => _ = first.get_or_insert(e),
            }
        }
        first.map_or(Ok(open), Err)
    }

    /// Waits until `condition` holds, with a round of the background work from time to time.
    pub fn wait_until(
        &self,
        limit: Duration,
        condition: &mut dyn FnMut(&mut State) -> bool,
    ) -> bool {
        self.wait_for_requests(limit, &mut |state| match condition(state) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(None),
        })
    }

    /// As [`Engine::wait_until`]. `check` advances requests; it ends the wait with `Break`, and else may name
    /// one that has not ended. If this call has nothing else to do, it polls the word of that request
    /// between two checks.
    pub fn wait_for_requests(
        &self,
        limit: Duration,
        check: &mut dyn FnMut(&mut State) -> ControlFlow<(), Option<RequestKey>>,
    ) -> bool {
        let (mut checks, mut awaited) = (0, None::<Awaited>);
        let mut ended = || {
            if let Some(awaited) = awaited.take() {
                awaited.poll();
            }
            let mut state = self.lock();
            let ControlFlow::Continue(open) = check(&mut state) else {
                return true;
            };
            let word = open.and_then(|key| Awaited::of(&state, key));
            if self.work(state, &mut checks, open) == Worked::Nothing {
                awaited = word;
            }
            false
        };
        // What has ended needs no clock.
        ended() || self.wait(self.host().now() + limit, &mut ended)
    }

    /// Does the work of the CPU behind a check of what it waits for, as the number of `checks` says: it
    /// advances the requests that the CPU posts, or does a round of the background work. The caller has
    /// advanced the request `visited`.
    pub(crate) fn work(
        &self,
        mut state: Guard<'_>,
        checks: &mut u32,
        visited: Option<RequestKey>,
    ) -> Worked {
        /// Number of checks between two rounds of the background work: a round costs several messages.
        const EVERY: u32 = 32;
        /// Time since the last round of any thread.
        const ROUNDS_APART: Duration = Duration::from_micros(20);
        *checks += 1;
        if checks.is_multiple_of(EVERY) && self.host().now() >= state.last_round + ROUNDS_APART {
            drop(state);
            self.progress();
            return Worked::Round;
        }
        match self.push_all(&mut state, visited) {
            true => Worked::Requests,
            false => Worked::Nothing,
        }
    }

    /// Makes a stream wait for a request.
    pub fn wait_on(&self, key: RequestKey, stream: &Stream) -> Result<()> {
        let mut new = true;
        self.with_room(|| self.try_wait_on(key, stream, std::mem::take(&mut new)))
    }

    /// Finds out whether a stream has to wait for a request: `false` if it has ended with success.
    ///
    /// # Errors
    /// The failure with which it ended; `NoSuchRequest` if it was not posted.
    pub(super) fn needs_wait(&self, state: &mut State, key: RequestKey) -> Result<bool> {
        let entry = state.requests.get(key);
        let by_cpu = |e: &Entry| e.in_flight().is_some() && e.poster.stream.is_none();
        if entry.is_some_and(|e| by_cpu(e) || e.zero_sm().is_some()) {
            // It may have ended since the last check.
            self.advance(state, key);
        }
        match state.requests.get(key) {
            Some(entry) if entry.status().is_none() && !entry.is_prepared() => Ok(true),
            _ => self.answer(WAIT_ON, state, key).map(|done| done.is_none()),
        }
    }

    /// `new`: the call was not tried before.
    fn try_wait_on(&self, key: RequestKey, stream: &Stream, new: bool) -> Result<()> {
        let mut state = self.lock();
        if new {
            state.count_wait(key);
        }
        let entry = state.requests.get(key);
        if !entry.is_some_and(|e| e.in_flight().is_some() && e.poster.stream.is_some()) {
            // The wait for a put checks this itself, before anything is enqueued: a call of the
            // driver less.
            uncaptured(stream, WAIT_ON)?;
        }
        if !self.needs_wait(&mut state, key)? {
            return Ok(());
        }
        let Some(entry) = state.requests.get_mut(key) else {
            return Err(Error::unknown_request(WAIT_ON));
        };
        if entry.needs_no_wait_by(stream.id()) {
            uncaptured(stream, WAIT_ON)?;
            self.leave_end(entry);
            return Ok(());
        }
        let poster = entry.poster.id();
        match (
            &entry.operation,
            entry.in_flight().filter(|_| poster.is_some()),
        ) {
            (_, Some(put)) => {
                let (rank, lane) = (entry.peer, entry.poster.lane);
                let flush = entry.lands_in_device();
                if poster != Some(stream.id()) {
                    mark_others(&mut state, stream, 0)?;
                }
                let peer = state.peers.get_mut(rank);
                let lane = peer.and_then(|peer| peer.link.lane(lane));
                let Some(lane) = lane else {
                    return Err(no_lane(WAIT_ON, rank));
                };
                // The wait, and the event behind it that shows when the stream has passed.
                stream.check_room(2)?;
                lane.wait_on(stream, put, flush)
                    .map_err(|e| e.of_peer(rank))?;
                match poster == Some(stream.id()) {
                    true => Ok(()),
                    false => {
                        let order = state.requests.next_order();
                        note_waiter(
                            &mut state.requests,
                            key,
                            stream,
                            order,
                            stream.record().ok(),
                        )
                    }
                }
            }
            (Operation::ZeroSm(_), _) => self.zero_sm_wait_on(&mut state, key, stream),
            (Operation::Receive(receive), _) if receive.state != ReceiveState::Unmatched => {
                self.try_claim(state, key, stream)
            }
            // A wait on the CPU's lane would block all other work on that lane.
            _ => self.wait_for_result(&mut state, key, stream),
        }
    }

    /// Waits for a stream and for the ends of the packed sends that it left before this call, and returns the first
    /// failure of its messages.
    pub(crate) fn synchronize(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let deadline = self.host().now() + limit;
        let left = match self.leaves_ends.load(Ordering::Relaxed) {
            true => self.keys_where(|entry| entry.is_open_behind(stream.id())),
            false => Vec::new(),
        };
        while !self.is_through(stream, deadline)? {
            if self.host().now() >= deadline {
                let waits = self.stream_text(stream.id());
                let waits = waits.map_or(String::new(), |waits| format!(": {waits}"));
                let what = format!(
                    "stream {} did not execute all its work within {}{waits}",
                    stream.id(),
                    time(limit)
                );
                return Err(Error::new(SYNCHRONIZE, Kind::Timeout, what));
            }
        }
        self.wait_for_ends(left, deadline, limit)?;
        // The error word is stored before a stream passes a failed request.
        if self.error.load()? == 0 {
            return Ok(());
        }
        let mut failing = None;
        self.wait(deadline, &mut || {
            self.progress();
            failing = self.failing(stream.id());
            failing.is_none()
        });
        let late = || {
            let state = self.lock();
            Some(state.peers.get(failing?)?.error(SYNCHRONIZE))
        };
        let first = self.first_error(SYNCHRONIZE, Some(stream.id()), true);
        first.or_else(late).map_or(Ok(()), Err)
    }

    /// Records that the stream of a packed send does not wait for its end: [`Engine::synchronize`] does. Does nothing
    /// for other requests.
    pub(super) fn leave_end(&self, entry: &mut Entry) {
        if let Operation::Send(send) = &mut entry.operation
            && send.packed.is_some()
        {
            send.ends_behind_stream = true;
            self.leaves_ends.store(true, Ordering::Relaxed);
        }
    }

    /// Waits for the ends of packed sends that a stream has left behind.
    fn wait_for_ends(
        &self,
        mut left: Vec<RequestKey>,
        deadline: Time,
        limit: Duration,
    ) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        self.wait_for_sends(&mut left, deadline.since(self.host().now()));
        self.late_sends(SYNCHRONIZE, &left, limit)
            .map_or(Ok(()), Err)
    }

    /// The rank of a request of `stream` that is in flight to a rank that was given up. The failure
    /// has released the stream, and the request ends with it when its lane is flushed.
    fn failing(&self, stream: u64) -> Option<u32> {
        let state = &mut *self.lock();
        self.advance_all(state);
        let mut failing = state.requests.iter().filter(|(_, entry)| {
            let poster = entry.poster.id();
            let waits = entry.waiters.iter().any(|waiter| waiter.stream == stream);
            let of_stream = poster == Some(stream) || waits;
            let open = entry.in_flight().is_some() || entry.zero_sm().is_some();
            of_stream && open && state.given_up(entry.peer).is_some()
        });
        failing.next().map(|(_, entry)| entry.peer)
    }

    /// Waits for a stream until `deadline`, or for one period if this call does the background
    /// work.
    fn is_through(&self, stream: &Stream, deadline: Time) -> Result<bool> {
        let left = deadline.since(self.host().now());
        if self.config.progress == Progress::Background {
            return Ok(stream.synchronize(left)?);
        }
        self.progress();
        Ok(stream.synchronize(left.min(PERIOD))?)
    }
}
