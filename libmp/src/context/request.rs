//! Requests: handles on sends and receives, and waiting for several.

use std::fmt;
use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::DevicePtr;

use super::Context;
use crate::error::{Error, Kind, Result};
use crate::request::Done;
use crate::request::table::{Operation, RequestKey};
use crate::two_sided::engine::Engine;
use crate::two_sided::wait::WAIT;

const TEST: &str = "test request";
const SEVERAL: &str = "wait for requests";

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
        let engine = self.context.engine();
        let mut state = engine.lock();
        engine.drop_handle(&mut state, self.key);
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.engine().lock();
        match state.requests.get(self.key) {
            Some(e) => match &e.operation {
                Operation::Send(send) => write!(f, "{}: {:?}", e.name(), send.state),
                Operation::Receive(receive) => write!(f, "{}: {:?}", e.name(), receive.state),
            },
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

    fn engine(&self) -> &Engine {
        self.context.engine()
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
        self.engine().post(self.key)
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
        let engine = self.engine();
        let mut state = engine.lock();
        engine.visit(&mut state, self.key);
        engine.answer(TEST, &mut state, self.key)
    }

    /// Waits on the CPU, at most `limit`, until it has ended. For a receive that a stream posted see
    /// [`Request::test`].
    ///
    /// # Errors
    /// As [`Request::test`]; `Timeout`, naming the rank, after `limit`: it is under way still, and
    /// the call may be repeated. `NoSuchRequest` if it was not posted.
    pub fn wait(&self, limit: Duration) -> Result<Done> {
        let engine = self.engine();
        engine.wait_until(limit, &mut |state| engine.has_ended(state, self.key));
        let done = engine.answer(WAIT, &mut engine.lock(), self.key)?;
        done.ok_or_else(|| self.late(limit))
    }

    #[cold]
    fn late(&self, limit: Duration) -> Error {
        let engine = self.engine();
        let state = engine.lock();
        let Some(entry) = state.requests.get(self.key) else {
            return Error::unknown_request(WAIT);
        };
        let text = engine.late_text(&state, entry, limit);
        let error = Error::new(WAIT, Kind::Timeout, text);
        error.of_message(entry.name().peer, entry.tag, entry.number)
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
        self.engine().wait_on(self.key, stream)
    }

    /// Takes the request back: one that was not posted, a send of the CPU's that the peer knows
    /// nothing of yet, or a receive of the CPU's that no message has matched, each the last one
    /// prepared under its tag and rank; or a receive from anybody that has not matched. It ends
    /// with `Cancelled`.
    ///
    /// # Errors
    /// `Unsupported` for any other, which goes on.
    pub fn cancel(&self) -> Result<()> {
        let engine = self.engine();
        let mut state = engine.lock();
        engine.cancel(&mut state, self.key)
    }

    /// A word of 64 bits that tells how the request ended, for kernels behind the wait:
    /// `status << 48 | length` ([`gdsync::Status`]). Of a receive, 0 until it has ended; of a send,
    /// 0 also after a success that nobody looked at. It is the request's as long as this handle
    /// lives.
    pub fn result_word(&self) -> DevicePtr {
        self.engine().lock().requests.result_addr(self.key)
    }
}

/// One context's, or an error.
fn same(requests: &[Request]) -> Result<Option<&Engine>> {
    let Some(first) = requests.first() else {
        return Ok(None);
    };
    let engine = first.engine();
    match requests.iter().all(|r| std::ptr::eq(r.engine(), engine)) {
        true => Ok(Some(engine)),
        false => {
            let what = "requests of several contexts";
            Err(Error::new(SEVERAL, Kind::Invalid, what))
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
    let Some(engine) = same(requests)? else {
        return Ok(Vec::new());
    };
    let mut open = 0;
    let ended = engine.wait_until(limit, &mut |state| {
        while let Some(request) = requests.get(open) {
            if !engine.has_ended(state, request.key) {
                return false;
            }
            open += 1;
        }
        true
    });
    if !ended && let Some(request) = requests.get(open) {
        // One that failed may be why another is late.
        let failed = engine.first_of(requests.iter().map(|r| r.key));
        return Err(failed.unwrap_or_else(|| request.late(limit)));
    }
    if let Some(e) = engine.first_of(requests.iter().map(|r| r.key)) {
        return Err(e);
    }
    let state = engine.lock();
    let done = |request: &Request| -> Result<Done> {
        engine
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
    let Some(engine) = same(requests)? else {
        return Err(Error::new(SEVERAL, Kind::Invalid, "there is none"));
    };
    engine.wait_until(limit, &mut |state| {
        found = requests.iter().position(|r| engine.has_ended(state, r.key));
        found.is_some()
    });
    let late = || requests[0].late(limit);
    let place = found.ok_or_else(late)?;
    let done = engine.answer(WAIT, &mut engine.lock(), requests[place].key)?;
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
        let engine = request.engine();
        let mut state = engine.lock();
        engine.visit(&mut state, request.key);
        // A failure is returned when it is waited for.
        match engine.outcome(WAIT, &state, request.key) {
            Ok(Some(done)) => all.push((place, done)),
            Err(_) if place == first => {
                return engine.answer(WAIT, &mut state, request.key).map(|_| all);
            }
            Ok(None) | Err(_) => {}
        }
    }
    Ok(all)
}
