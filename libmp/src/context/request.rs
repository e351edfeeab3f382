//! Requests: handles on sends and receives, and waits for several of them.

use std::fmt;
use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::DevicePtr;

use super::Context;
use crate::error::{Error, Kind, Result};
use crate::request::Done;
use crate::request::entry::Operation;
use crate::request::table::RequestKey;
use crate::two_sided::engine::Engine;
use crate::two_sided::wait::WAIT;

const TEST: &str = "test request";
const SEVERAL: &str = "wait for requests";

/// A send or a receive.
///
/// Dropping the handle *detaches* the request. The drop never blocks, the message moves as if the
/// handle were held, and the memory it uses is kept until the request has ended. A send has ended
/// when its memory may be written again, a receive when the message is in place. A failure that no
/// call has returned is logged then, and [`Context::synchronize`] or [`Context::close`] returns it.
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
            None => f.write_str("an unknown request (already released)"),
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

    /// Posts a prepared request. Requests of one stream to or from one rank are posted in the order
    /// in which they were prepared.
    ///
    /// # Errors
    /// `Busy` if it was posted before; `Gdsync(OutOfOrder)` if an earlier request is neither posted
    /// nor cancelled; `QueueFull` as configured by [`Builder::full`](crate::Builder::full);
    /// `PeerFailed`; `Invalid` if the last handle on the stream that it was prepared on is dropped;
    /// `Unsupported` while that stream is being captured; errors of gdsync.
    pub fn post(&self) -> Result<()> {
        self.engine().post(self.key)
    }

    /// Returns the result of the request; `None` while it has not ended.
    ///
    /// The memory of a receive that a stream posted belongs to the stream until the stream has
    /// reached the receive. The first call enqueues a mark on the stream, after all its work so
    /// far; the CPU takes the message in only after the mark.
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

    /// Waits on the CPU, at most `limit`, until the request has ended. For a receive that a stream
    /// posted see [`Request::test`].
    ///
    /// # Errors
    /// As [`Request::test`]; `Timeout`, naming the rank, after `limit`: the request is still in
    /// flight, and the call may be repeated. `NoSuchRequest` if it was not posted.
    pub fn wait(&self, limit: Duration) -> Result<Done> {
        let engine = self.engine();
        engine.wait_until(limit, &mut |state| {
            engine.visit_and_is_settled(state, self.key)
        });
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

    /// Makes `stream` wait until the request has ended. A received message is in place then. A
    /// failure also releases the stream, after the status is stored in [`Context::error_word`] and,
    /// for a receive, in [`Request::result_word`].
    ///
    /// If another stream posted the receive, `stream` also waits until that stream has completed
    /// the work that it had so far, because only then may the memory be used.
    ///
    /// # Errors
    /// `NoSuchRequest` if it was not posted; `Gdsync(TooManyWaits)` if too many streams of the GPU
    /// wait; `PeerFailed`; `Unsupported` on a GPU that runs no kernels, and for a stream that is
    /// being captured; errors of gdsync.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.engine().wait_on(self.key, stream)
    }

    /// Cancels the request. It must be one that was not posted, a CPU send that is not announced to
    /// the peer, or a CPU receive that no message has matched, each the last one prepared under its
    /// tag and rank; or a receive from any rank that has not matched. It ends with `Cancelled`.
    ///
    /// # Errors
    /// `Unsupported` for any other request, which continues.
    pub fn cancel(&self) -> Result<()> {
        let engine = self.engine();
        let mut state = engine.lock();
        engine.cancel(&mut state, self.key)
    }

    /// The address of a word of 64 bits that holds the result of the request, for kernels after the
    /// wait: `status << 48 | length` ([`gdsync::Status`]). For a receive, 0 until it has ended; for
    /// a send, 0 also after a success that no call has checked. It belongs to the request as long
    /// as this handle lives.
    pub fn result_word(&self) -> DevicePtr {
        self.engine().lock().requests.result_addr(self.key)
    }
}

/// The engine of the requests, if they belong to one context, or an error.
fn same(requests: &[Request]) -> Result<Option<&Engine>> {
    let Some(first) = requests.first() else {
        return Ok(None);
    };
    let engine = first.engine();
    match requests.iter().all(|r| std::ptr::eq(r.engine(), engine)) {
        true => Ok(Some(engine)),
        false => {
            let what = "the requests belong to several contexts; wait for each context separately";
            Err(Error::new(SEVERAL, Kind::Invalid, what))
        }
    }
}

/// Waits on the CPU, at most `limit`, until all requests have ended. All must belong to one
/// context.
///
/// # Errors
/// The first error, in the order of the requests, once all have ended or `limit` has passed;
/// otherwise `Timeout` as [`Request::wait`]; `Invalid` for requests of several contexts.
pub fn wait_all(requests: &[Request], limit: Duration) -> Result<Vec<Done>> {
    let Some(engine) = same(requests)? else {
        return Ok(Vec::new());
    };
    let mut open = 0;
    let ended = engine.wait_until(limit, &mut |state| {
        while let Some(request) = requests.get(open) {
            if !engine.visit_and_is_settled(state, request.key) {
                return false;
            }
            open += 1;
        }
        true
    });
    if !ended && let Some(request) = requests.get(open) {
        // A failed request may be the reason why another is late.
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
            .ok_or_else(|| Error::new(WAIT, Kind::Timeout, "a request has not ended; wait again"))
    };
    requests.iter().map(done).collect()
}

/// Waits on the CPU, at most `limit`, until one of the requests has ended; returns its index.
///
/// # Errors
/// The error of the request that ended first, if it failed; `Timeout` as [`Request::wait`], for the
/// first request; `Invalid` for an empty list or requests of several contexts.
pub fn wait_any(requests: &[Request], limit: Duration) -> Result<(usize, Done)> {
    let mut found = None;
    let Some(engine) = same(requests)? else {
        return Err(Error::new(
            SEVERAL,
            Kind::Invalid,
            "the list of requests is empty",
        ));
    };
    engine.wait_until(limit, &mut |state| {
        found = requests
            .iter()
            .position(|r| engine.visit_and_is_settled(state, r.key));
        found.is_some()
    });
    let late = || requests[0].late(limit);
    let place = found.ok_or_else(late)?;
    let done = engine.answer(WAIT, &mut engine.lock(), requests[place].key)?;
    Ok((place, done.ok_or_else(late)?))
}

/// Waits on the CPU, at most `limit`, until at least one of the requests has ended; returns all
/// that have, with their indices.
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
        // Other failures are returned when their requests are waited for.
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
