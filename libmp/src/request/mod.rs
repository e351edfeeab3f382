//! Requests: handles on sends and receives, and waiting for several.

pub(crate) mod fault;
pub(crate) mod table;

use std::fmt;
use std::time::Duration;

use gdsync::memop::DevicePtr;
use gdsync::{Status, Stream};

use crate::context::state::State;
use crate::context::{Context, Inner};
use crate::error::{Error, Kind, Result};
use crate::two_sided::{note_waiter, uncaptured};
use table::{Entry, Phase, RequestKey};

const TEST: &str = "test request";
const WAIT: &str = "wait for request";

/// How a request ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The rank that sent the message; of a send, the rank that it went to.
    pub peer: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes; of a send whose length a stream found in a word, that of its segment.
    pub len: u64,
}

impl Done {
    /// The rank that sent the message that was received.
    pub fn source(&self) -> u32 {
        self.peer
    }
}

/// A send or a receive.
///
/// Dropping it *detaches* the request: that never blocks, the message moves as if the handle
/// were held, and the memory it uses is kept until it has ended. A send has ended when its memory
/// may be written again; a receive when the message is there. A failure that no call has returned is
/// logged then, and returned by [`Context::synchronize`] or [`Context::close`].
#[must_use = "a request that is dropped cannot be waited for"]
pub struct Request {
    context: Context,
    key: RequestKey,
}

impl Drop for Request {
    fn drop(&mut self) {
        let inner = self.context.inner();
        let mut state = inner.lock();
        inner.let_go(&mut state, self.key);
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner().lock();
        match state.requests.get(self.key) {
            Some(e) => write!(
                f,
                "{} rank {}, tag {}, message {}: {:?}",
                if e.receive { "receive from" } else { "send to" },
                e.peer,
                e.tag,
                e.number,
                e.phase
            ),
            None => f.write_str("a request that is not known"),
        }
    }
}

impl Request {
    pub(crate) fn new(context: &Context, key: RequestKey) -> Request {
        Request {
            context: context.clone(),
            key,
        }
    }

    pub(crate) fn inner(&self) -> &Inner {
        self.context.inner()
    }

    /// Posts a prepared request. Requests of one stream to or from one rank are posted in the
    /// order in which they were prepared.
    ///
    /// # Errors
    /// `Busy` if it was posted before; `Gdsync(OutOfOrder)` if an earlier one is neither posted
    /// nor cancelled; `QueueFull` as the context is built; `PeerFailed`; `Invalid` if the last
    /// handle on the stream that it was prepared on is dropped; `Unsupported` while that stream is
    /// being captured; what gdsync refuses.
    pub fn post(&self) -> Result<()> {
        self.inner().post(self.key)
    }

    /// What has become of it: `None` while it has not ended.
    ///
    /// The memory of a receive that a stream posted is the stream's until it has come there: the
    /// first call has the stream say so, behind what it was given until then.
    ///
    /// # Errors
    /// `Truncated` if the message was longer than the receive; `PeerFailed` if the peer failed,
    /// naming it; `Failed` with the status if it failed on this side; `Cancelled`.
    pub fn test(&self) -> Result<Option<Done>> {
        let inner = self.inner();
        let mut state = inner.lock();
        inner.visit(&mut state, self.key);
        inner.answer(TEST, &mut state, self.key)
    }

    /// Waits on the CPU, at most `limit`, until it has ended. For a receive that a stream posted see
    /// [`Request::test`].
    ///
    /// # Errors
    /// As [`Request::test`]; `Timeout`, naming the rank, after `limit`: it is under way still, and
    /// the call may be repeated. `NoSuchRequest` if it was not posted.
    pub fn wait(&self, limit: Duration) -> Result<Done> {
        let inner = self.inner();
        inner.wait_until(limit, &mut |state| inner.has_ended(state, self.key));
        let done = inner.answer(WAIT, &mut inner.lock(), self.key)?;
        done.ok_or_else(|| self.late(limit))
    }

    #[cold]
    fn late(&self, limit: Duration) -> Error {
        let inner = self.inner();
        let state = inner.lock();
        let text = inner.late_text(&state, self.key, limit);
        let error = Error::new(WAIT, Kind::Timeout, text);
        match state.requests.get(self.key) {
            Some(e) => error.of_message(e.name().peer, e.tag, e.number),
            None => error,
        }
    }

    /// Has `stream` stand still until it has ended. What has been received is in place then. A
    /// failure lets the stream pass, once it is told in [`Context::error_word`] and, of a receive,
    /// in [`Request::result_word`].
    ///
    /// The memory of a receive that another stream posted is that stream's until it has come
    /// there: `stream` stands still, too, until the other has done what it was given so far.
    ///
    /// # Errors
    /// `NoSuchRequest` if it was not posted; `Gdsync(TooManyWaits)` if too many streams of the GPU
    /// wait; `PeerFailed`; `Unsupported` on a GPU that runs no kernels, and for a stream that is being
    /// captured; what gdsync refuses.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.inner().wait_on(self.key, stream)
    }

    /// Takes the request back: one that was not posted, a send of the CPU's that the peer knows
    /// nothing of yet, or a receive of the CPU's that no message has matched, each the last one
    /// prepared under its tag and rank; or a receive from anybody that has not matched. It ends
    /// with `Cancelled`.
    ///
    /// # Errors
    /// `Unsupported` for any other, which goes on.
    pub fn cancel(&self) -> Result<()> {
        let inner = self.inner();
        let mut state = inner.lock();
        inner.take_back(&mut state, self.key)
    }

    /// A word of 64 bits that tells how the request ended, for kernels behind the wait:
    /// `status << 48 | length` ([`gdsync::Status`]). Of a receive, 0 until it has ended; of a send,
    /// 0 also after a success that nobody looked at. It is the request's as long as this handle
    /// lives.
    pub fn result_word(&self) -> DevicePtr {
        self.inner().lock().requests.result_addr(self.key)
    }
}

impl Inner {
    /// Whether a request has ended, or never will, after doing what can be done for it.
    fn has_ended(&self, state: &mut State, key: RequestKey) -> bool {
        self.visit(state, key);
        let phase = state.requests.get(key).map(|entry| entry.phase);
        matches!(phase, None | Some(Phase::Done(_) | Phase::Prepared))
    }

    /// Does what can be done for a request.
    fn visit(&self, state: &mut State, key: RequestKey) {
        if let Some(entry) = state.requests.get_mut(key) {
            entry.wanted = true;
            if entry.phase == Phase::Unmatched {
                self.match_wild(state);
            }
        }
        self.advance(state, key);
    }

    /// The result of one request. A failure with which it ended counts as returned.
    fn answer(
        &self,
        operation: &'static str,
        state: &mut State,
        key: RequestKey,
    ) -> Result<Option<Done>> {
        let outcome = self.outcome(operation, state, key);
        let ended = |entry: &Entry| matches!(entry.phase, Phase::Done(_));
        if outcome.is_err() && state.requests.get(key).is_some_and(ended) {
            state.take_fault(key);
        }
        outcome
    }

    fn outcome(
        &self,
        operation: &'static str,
        state: &State,
        key: RequestKey,
    ) -> Result<Option<Done>> {
        let Some(entry) = state.requests.get(key) else {
            return Err(Error::new(
                operation,
                Kind::NoSuchRequest,
                "it is not known",
            ));
        };
        let Phase::Done(status) = entry.phase else {
            if entry.phase == Phase::Prepared {
                return Err(Error::new(
                    operation,
                    Kind::NoSuchRequest,
                    "it is not posted",
                ));
            }
            return Ok(None);
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
                let text = format!("{name}: {status}");
                let error = Error::new(operation, Kind::Cancelled, text);
                Err(error.of_message(name.peer, name.tag, name.number))
            }
        }
    }

    /// The first failure of several requests, in their order; those of all count as returned.
    fn first_of(&self, requests: &[Request]) -> Option<Error> {
        let mut state = self.lock();
        let mut failed = requests
            .iter()
            .map(|request| self.answer(WAIT, &mut state, request.key));
        let first = failed.find_map(Result::err);
        failed.for_each(drop);
        first
    }

    /// Waits, doing the background work now and then.
    pub(crate) fn wait_until(
        &self,
        limit: Duration,
        condition: &mut dyn FnMut(&mut State) -> bool,
    ) -> bool {
        /// Looks between two rounds of everything.
        const EVERY: u32 = 32;
        let deadline = self.host().now() + limit;
        let mut looks = 0;
        self.wait(deadline, &mut || {
            if condition(&mut self.lock()) {
                return true;
            }
            looks += 1;
            if looks % EVERY == 0 {
                self.turn();
            } else {
                self.push_all();
            }
            false
        })
    }

    /// Has a stream wait for a request.
    pub(crate) fn wait_on(&self, key: RequestKey, stream: &Stream) -> Result<()> {
        uncaptured(stream, "wait on stream")?;
        self.with_room(|| self.try_wait_on(key, stream))
    }

    fn try_wait_on(&self, key: RequestKey, stream: &Stream) -> Result<()> {
        const OPERATION: &str = "wait on stream";
        let mut state = self.lock();
        let known = state.requests.get(key);
        if known.is_some_and(|e| matches!(e.phase, Phase::Sent(_)) && e.poster.stream.is_none()) {
            // It may have ended by now.
            self.advance(&mut state, key);
        }
        let Some(entry) = state.requests.get_mut(key) else {
            return Err(Error::new(
                OPERATION,
                Kind::NoSuchRequest,
                "it is not known",
            ));
        };
        match entry.phase {
            // A stream that stood at the CPU's lane would hold up everything else on it.
            Phase::Sent(_) if entry.poster.stream.is_none() => {
                self.wait_for_result(&mut state.requests, key, stream)
            }
            Phase::Prepared => Err(Error::new(
                OPERATION,
                Kind::NoSuchRequest,
                "it is not posted",
            )),
            Phase::Done(_) => self.answer(OPERATION, &mut state, key).map(drop),
            Phase::Sent(request) => {
                let (rank, lane) = (entry.peer, usize::from(entry.poster.lane));
                let poster = entry.poster.stream.as_ref().map(|poster| poster.id());
                let lane = state.peer(rank).and_then(|peer| peer.lanes[lane].as_mut());
                let Some(lane) = lane else {
                    return Err(Error::new(OPERATION, Kind::Closed, "no lane").with_rank(rank));
                };
                let list = [gdsync::rdma::Descriptor::wait(request)];
                gdsync::rdma::post_on(stream, &mut [&mut lane.qp], &list)
                    .map_err(|e| Error::from(e).of_peer(rank))?;
                match poster == Some(stream.id()) {
                    true => Ok(()),
                    false => note_waiter(&mut state.requests, key, stream),
                }
            }
            Phase::Queued { .. } | Phase::Unmatched => {
                self.wait_for_result(&mut state.requests, key, stream)
            }
            Phase::Posted | Phase::Claimed(_) => self.try_claim(state, key, stream),
        }
    }
}

/// One context's, or an error.
fn same(requests: &[Request]) -> Result<Option<&Inner>> {
    let Some(first) = requests.first() else {
        return Ok(None);
    };
    let inner = first.inner();
    match requests.iter().all(|r| std::ptr::eq(r.inner(), inner)) {
        true => Ok(Some(inner)),
        false => {
            let what = "requests of several contexts";
            Err(Error::new("wait for requests", Kind::Invalid, what))
        }
    }
}

/// Waits on the CPU, at most `limit`, until all requests have ended; all are of one context.
///
/// # Errors
/// The first error, in the order of the requests, of one that failed, once all have ended or
/// `limit` is over; else `Timeout` as [`Request::wait`]; `Invalid` for requests of several
/// contexts.
pub fn wait_all(requests: &[Request], limit: Duration) -> Result<Vec<Done>> {
    let Some(inner) = same(requests)? else {
        return Ok(Vec::new());
    };
    let mut open = 0;
    let ended = inner.wait_until(limit, &mut |state| {
        while let Some(request) = requests.get(open) {
            if !inner.has_ended(state, request.key) {
                return false;
            }
            open += 1;
        }
        true
    });
    if !ended && let Some(request) = requests.get(open) {
        // One that failed may be why another is late.
        let failed = inner.first_of(requests);
        return Err(failed.unwrap_or_else(|| request.late(limit)));
    }
    if let Some(e) = inner.first_of(requests) {
        return Err(e);
    }
    let state = inner.lock();
    let done = |request: &Request| -> Result<Done> {
        inner
            .outcome(WAIT, &state, request.key)?
            .ok_or_else(|| Error::new(WAIT, Kind::Timeout, "one has not ended"))
    };
    requests.iter().map(done).collect()
}

/// Waits on the CPU, at most `limit`, until one of the requests has ended; answers its place.
///
/// # Errors
/// That of the request that ended first, if it failed; `Timeout` as [`Request::wait`], of the
/// first; `Invalid` for no requests or those of several contexts.
pub fn wait_any(requests: &[Request], limit: Duration) -> Result<(usize, Done)> {
    let mut found = None;
    let Some(inner) = same(requests)? else {
        return Err(Error::new(
            "wait for requests",
            Kind::Invalid,
            "there is none",
        ));
    };
    inner.wait_until(limit, &mut |state| {
        found = requests.iter().position(|r| inner.has_ended(state, r.key));
        found.is_some()
    });
    let late = || requests[0].late(limit);
    let place = found.ok_or_else(late)?;
    let done = inner.answer(WAIT, &mut inner.lock(), requests[place].key)?;
    Ok((place, done.ok_or_else(late)?))
}

/// Waits on the CPU, at most `limit`, until at least one of the requests has ended; answers all
/// that have, with their places.
///
/// # Errors
/// As [`wait_any`].
pub fn wait_some(requests: &[Request], limit: Duration) -> Result<Vec<(usize, Done)>> {
    let (first, _) = wait_any(requests, limit)?;
    let mut all = Vec::new();
    for (place, request) in requests.iter().enumerate() {
        let inner = request.inner();
        let mut state = inner.lock();
        inner.visit(&mut state, request.key);
        // A failure is returned when it is waited for.
        match inner.outcome(WAIT, &state, request.key) {
            Ok(Some(done)) => all.push((place, done)),
            Err(_) if place == first => {
                return inner.answer(WAIT, &mut state, request.key).map(|_| all);
            }
            Ok(None) | Err(_) => {}
        }
    }
    Ok(all)
}
