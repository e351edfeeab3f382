//! [`Request`]: the handle on a send, a receive or an operation of a window, and the CPU's waits for
//! several requests.

use std::ffi::CStr;
use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::DevicePtr;

use super::Context;
use crate::error::{Error, Kind, Result};
use crate::request::Done;
use crate::request::entry::Operation;
use crate::request::table::RequestKey;
use crate::trace::Facts;
use crate::two_sided::engine::Engine;
use crate::two_sided::wait::WAIT;
use crate::two_sided::{Captured, Started, of_graph};

const POST: &str = "post request";
const TEST: &str = "test request";
const SEVERAL: &str = "wait for requests";

/// A handle on a send, a receive or an operation of a [`Window`](crate::Window) in flight.
///
/// A send has ended when its memory may be written again: this is local, the peer may not have
/// received an eager message yet. A receive has ended when the message is in place.
/// [`Window`](crate::Window) says when its operations have ended. The CPU tests
/// ([`test`](Request::test)) or waits ([`wait`](Request::wait)), a stream waits
/// ([`wait_on`](Request::wait_on)), a kernel reads [`result_word`](Request::result_word).
///
/// Dropping the handle *detaches* the request. The drop never blocks, the message moves as if the
/// handle were held, and the memory it uses is kept until the request has ended. A failure that no
/// call has returned is logged then, and [`Context::synchronize`] or [`Context::close`] returns it.
/// If a prepared request is dropped before it is posted, it is cancelled. If later requests of its
/// tag have numbers, its number stays in use, and the matching request of the peer ends with
/// `Truncated`.
///
/// ```
/// use std::time::Duration;
///
/// # use mp::{Context, gdsync::gpu::MemoryKind};
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let peer = 1 - ctx.rank(); // a job of two ranks
///     let stream = ctx.gpu().stream()?;
///     let memory = ctx.alloc(MemoryKind::Device, 64)?;
///     let recv = ctx.irecv_on(&stream, peer, 7, &memory.slice(32, 32)?)?;
///     let send = ctx.isend_on(&stream, peer, 7, &memory.slice(0, 8)?)?;
///
///     recv.wait_on(&stream)?; // the stream waits; the call returns at once
///     let done = recv.wait(Duration::from_secs(10))?; // the CPU waits
///     assert_eq!((done.peer, done.tag, done.len), (peer, 7, 8));
///     send.wait(Duration::from_secs(10))?;
///     Ok(())
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(2) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #             ctx.close(Duration::from_secs(10)).unwrap();
/// #         });
/// #     }
/// # });
/// ```
#[must_use = "a request that is dropped cannot be waited for"]
pub struct Request {
    context: Context,
    of: Started,
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Started::Listed(key) = self.of {
            let engine = self.context.engine();
            let mut state = engine.lock();
            engine.drop_handle(&mut state, key);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Started::Listed(key) = self.of else {
            return f.write_str("a message of a graph");
        };
        let state = self.engine().lock();
        match state.requests.get(key) {
            Some(e) => match &e.operation {
                Operation::Send(send) => write!(f, "{}: {:?}", e.name(), send.state),
                Operation::Receive(receive) => write!(f, "{}: {:?}", e.name(), receive.state),
                Operation::Transfer(transfer) => write!(f, "{}: {:?}", e.name(), transfer.state),
                Operation::Signal(wait) => write!(f, "{}: {:?}", e.name(), wait.state),
                Operation::Step(step) => write!(f, "{}: {:?}", e.name(), step.done),
                Operation::Collective(call) => write!(f, "{}: {:?}", e.name(), call.done),
                Operation::ZeroSm(message) => write!(f, "{}: {message:?}", e.name()),
            },
            None => f.write_str("an unknown request (already released)"),
        }
    }
}

impl Request {
    pub(crate) fn new(context: &Context, key: RequestKey) -> Request {
        Request::of(context, Started::Listed(key))
    }

    pub(super) fn of(context: &Context, of: Started) -> Request {
        let context = context.clone();
        Request { context, of }
    }

    /// The message of a graph.
    pub(super) fn captured(&self) -> Option<&Captured> {
        match &self.of {
            Started::Listed(_) => None,
            Started::Captured(captured) => Some(captured),
        }
    }

    /// Its key in the table of its context.
    ///
    /// # Errors
    /// `Unsupported` for a message of a graph.
    fn listed(&self, operation: &'static str) -> Result<RequestKey> {
        match self.of {
            Started::Listed(key) => Ok(key),
            Started::Captured(_) => Err(of_graph(operation)),
        }
    }

    fn engine(&self) -> &Engine {
        self.context.engine()
    }

    /// Observes a call about this request.
    #[inline]
    fn observe(&self, name: &'static CStr, stream: Option<&Stream>) -> Option<impl Drop> {
        let engine = self.engine();
        engine.observers.call(name, || Facts {
            stream: stream.map(Stream::id),
            ..engine.facts(self.key())
        })
    }

    /// Its key in the table of its context; for a message of a graph, the key of no request.
    pub(super) fn key(&self) -> RequestKey {
        self.listed(WAIT).unwrap_or_default()
    }

    /// Refuses a request of another context, and a message of a graph.
    pub(super) fn check(&self, engine: &Engine) -> Result<()> {
        self.check_context(engine)?;
        self.listed(SEVERAL).map(drop)
    }

    /// Refuses a request of another context.
    pub(super) fn check_context(&self, engine: &Engine) -> Result<()> {
        match std::ptr::eq(self.engine(), engine) {
            true => Ok(()),
            false => {
                let what = "the request belongs to another context; name requests of one context";
                Err(Error::new(SEVERAL, Kind::Invalid, what))
            }
        }
    }

    /// Posts a prepared request ([`Context::prepare_send`], [`Context::prepare_recv`],
    /// [`Window::prepare_put`](crate::Window::prepare_put)): by the CPU, or on its stream, behind all
    /// work that is enqueued on the stream so far. Requests of one stream to or from one rank are
    /// posted in the order in which they were prepared.
    ///
    /// # Errors
    /// The request stays prepared, unless only a part of it was enqueued.
    /// - `Busy` if it was posted before, or has ended; or if a post of it on a stream was refused behind the
    ///   kernel that packs it: it can then be posted only on that stream, or cancelled.
    /// - `Gdsync(OutOfOrder)` if an earlier request is neither posted nor cancelled.
    /// - `QueueFull` as configured by [`Builder::full`](crate::Builder::full);
    ///   `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    /// - `PeerFailed` if the peer was given up.
    /// - `Invalid` if the last handle on the stream that it was prepared on is dropped, and for a
    ///   length or offset word that exceeds the segment of a send by the CPU.
    /// - `Unsupported` while the stream is being captured into a graph.
    /// - Errors of gdsync. If only a part of the request could be enqueued, the peer is given up.
    pub fn post(&self) -> Result<()> {
        let _call = self.observe(c"post", None);
        self.engine().post(self.listed(POST)?)
    }

    /// Posts a prepared request on `stream`, behind all work that is enqueued on the stream so far.
    /// The request was prepared without a stream (then this call binds it to the stream), or for
    /// this stream.
    ///
    /// The first use of the stream with the peer opens a connection, as for
    /// [`Context::prepare_send`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, RecvOp, SendOp, bootstrap::Local, gdsync::{Gpu, gpu::MemoryKind}};
    /// # let alone = Local::ranks(1).remove(0);
    /// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
    /// # let peer = 0; // this rank itself
    /// let memory = ctx.alloc(MemoryKind::Device, 128)?;
    /// let (data, into) = (memory.slice(0, 64)?, memory.slice(64, 64)?);
    /// let recv = ctx.prepare_recv(&RecvOp::from((peer, 7, &into)))?;
    /// let send = ctx.prepare_send(&SendOp::from((peer, 7, &data)))?;
    ///
    /// let stream = ctx.gpu().stream()?; // chosen when the message is due
    /// recv.post_on(&stream)?;
    /// send.post_on(&stream)?;
    /// recv.wait_on(&stream)?;
    /// ctx.synchronize(&stream, Duration::from_secs(10))?;
    /// # Ok::<(), mp::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Request::post`], and, for a request without a stream, those of
    /// [`Context::prepare_send`] for a stream. The request stays prepared then, unless only a part
    /// of it was enqueued. `Invalid` if it was prepared for another stream.
    pub fn post_on(&self, stream: &Stream) -> Result<()> {
        let _call = self.observe(c"post_on", Some(stream));
        self.engine().post_on(self.listed(POST)?, stream)
    }

    /// Returns the result of the request, or `None` while it has not ended. It does not wait. It
    /// advances the request as far as possible now.
    ///
    /// The memory of a receive that a stream posted belongs to the stream until the stream has
    /// reached the receive. The stream stores a mark there, after which the CPU takes the message
    /// in. If the GPU had no second stream when the receive was posted, the first call enqueues the
    /// mark, after all work of the stream so far.
    ///
    /// # Errors
    /// - `Truncated` if the message was longer than the receive, on both sides.
    /// - `PeerFailed` if the peer died, left or was given up, naming it; `Protocol` if the peer
    ///   sent an invalid control message.
    /// - `Failed` with the status if the request failed on this side; `Failed(TIMEOUT)` for a
    ///   receive from any rank whose timeout has expired.
    /// - `Cancelled` after [`cancel`](Request::cancel); `NoSuchRequest` if it was not posted.
    /// - `Unsupported` for a captured request, which moves a message at each replay.
    ///
    /// Every later call returns the same failure again.
    pub fn test(&self) -> Result<Option<Done>> {
        let engine = self.engine();
        let key = self.listed(TEST)?;
        let mut state = engine.lock();
        engine.visit(&mut state, key);
        engine.answer(TEST, &mut state, key)
    }

    /// Waits on the CPU, at most `limit`, until the request has ended, and returns its result. With
    /// a limit of 0 the call tests once. For a receive that a stream posted see [`Request::test`].
    ///
    /// # Errors
    /// As [`Request::test`]; `Timeout`, naming the rank, after `limit`: the request is still in
    /// flight, and the call may be repeated.
    pub fn wait(&self, limit: Duration) -> Result<Done> {
        let engine = self.engine();
        let _call = self.observe(c"wait", None);
        let key = self.listed(WAIT)?;
        let (mut answer, mut counted) = (Ok(None), false);
        engine.wait_for_requests(limit, &mut |state| {
            if !std::mem::replace(&mut counted, true) {
                state.count_wait(key);
            }
            if !engine.visit_and_is_settled(state, key) {
                return ControlFlow::Continue(Some(key));
            }
            answer = engine.answer(WAIT, state, key);
            ControlFlow::Break(())
        });
        answer?.ok_or_else(|| self.late(limit))
    }

    #[cold]
    fn late(&self, limit: Duration) -> Error {
        let engine = self.engine();
        let state = engine.lock();
        let Some(entry) = state.requests.get(self.key()) else {
            return Error::unknown_request(WAIT);
        };
        let text = engine.late_text(&state, entry, limit);
        let error = Error::new(WAIT, Kind::Timeout, text);
        entry.name().attribute(error)
    }

    /// Makes `stream` wait until the request has ended; the call itself does not wait for that.
    /// Work that is enqueued on the stream behind it finds a received message in place, and may
    /// write the memory of a send. If the request has ended already, nothing is enqueued.
    ///
    /// Exception: the stream that posted a packed send waits only until the message is packed, and the
    /// request ends later; a failure may be stored in [`Context::error_word`] behind the wait.
    /// [`Context::synchronize`] waits for that end. Packed are messages of more than 30 pieces
    /// ([`Strided`](crate::Strided)), and, except on a software GPU (`MP_TCP_PACK`), those of one piece of
    /// up to 256 KiB of device memory by [`Path::Tcp`](crate::Path::Tcp) that name their stream when they
    /// are prepared.
    ///
    /// A failure also releases the stream, after the status is stored in [`Context::error_word`]
    /// and, for a receive, in [`Request::result_word`]. A kernel behind the wait checks one of
    /// these words before it uses the message; the CPU finds the failure by
    /// [`Context::synchronize`].
    ///
    /// If another stream posted the receive, `stream` also waits until that stream has reached the
    /// receive, because only then may the memory be used. It does not wait for later work of that
    /// stream. Exception: if the GPU had no second stream when the receive was posted, `stream`
    /// waits for the work that the posting stream has so far.
    ///
    /// # Errors
    /// - `NoSuchRequest` if it was not posted.
    /// - The failure of the request, as [`Request::test`], if it has failed already.
    /// - `PeerFailed` or `Protocol` if the peer was given up and the message has not arrived.
    /// - `QueueFull` as configured by [`Builder::full`](crate::Builder::full);
    ///   `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    /// - `Unsupported` on a GPU that runs no kernels; for a stream that is being captured into a graph, if
    ///   the request is not ([messages in graphs](Context#messages-in-graphs)), and the reverse; and for a
    ///   captured request for which another stream waits.
    /// - `Timeout` or `BootstrapLost` if the stream's connection to the peer cannot be opened;
    ///   other errors of gdsync.
    pub fn wait_on(&self, stream: &Stream) -> Result<()> {
        let _call = self.observe(c"wait_on", Some(stream));
        match &self.of {
            Started::Listed(key) => self.engine().wait_on(*key, stream),
            Started::Captured(captured) => {
                let one = std::iter::once(&**captured);
                self.engine().wait_on_captured(one, stream)
            }
        }
    }

    /// Cancels the request, which ends with `Cancelled` and gives its number back. These requests
    /// can be cancelled:
    /// - a receive from any rank that is unmatched;
    /// - the last request prepared under its tag and rank, if it is not posted, or is a send by the
    ///   CPU of which nothing was sent yet, or a receive by the CPU of at most the eager limit
    ///   whose message has not arrived.
    ///
    /// # Errors
    /// `Unsupported` for any other request, which continues. `NoSuchRequest` for an unknown one.
    pub fn cancel(&self) -> Result<()> {
        let key = self.listed("cancel request")?;
        let engine = self.engine();
        let mut state = engine.lock();
        engine.cancel(&mut state, key)
    }

    /// The GPU address of the request's result word, for kernels behind the wait: 64 bits,
    /// `status << 48 | length`, with the [`gdsync::Status`] (1 is success) and the length
    /// of the message in bytes. The word of a receive holds the result when a stream has passed
    /// [`Request::wait_on`]; before that its value is undefined. The word of
    /// a send may stay 0 after a success until a call tests the send. The word belongs to the
    /// request as long as this handle lives. The word of a [zero-SM](Context#zero-sm-messages) receive has
    /// a failure when a stream has passed the wait, but a success only when the library has ended the
    /// request. Call it behind `wait_on`: after an earlier call, the
    /// kernel that receives the message stores the result to host memory, which takes about 1 us.
    pub fn result_word(&self) -> DevicePtr {
        match &self.of {
            Started::Listed(key) => self.engine().lock().requests.shown_result(*key),
            Started::Captured(captured) => captured.result(),
        }
    }
}

/// The engine of the requests, if they belong to one context, or an error.
fn same(requests: &[Request]) -> Result<Option<&Engine>> {
    let Some(first) = requests.first() else {
        return Ok(None);
    };
    let engine = first.engine();
    requests.iter().try_for_each(|r| r.listed(WAIT).map(drop))?;
    match requests.iter().all(|r| std::ptr::eq(r.engine(), engine)) {
        true => Ok(Some(engine)),
        false => {
            let what = "the requests belong to several contexts; wait for each context separately";
            Err(Error::new(SEVERAL, Kind::Invalid, what))
        }
    }
}

/// Waits on the CPU, at most `limit`, until all requests have ended; returns their results in the
/// same order. All must belong to one context. An empty list returns at once.
///
/// # Errors
/// The first failure, in the order of the requests, once all have ended or `limit` has passed; the
/// failures of the others count as returned, and their handles return them still. Otherwise
/// `Timeout` as [`Request::wait`], for the first request that has not ended. `NoSuchRequest` for a
/// request that was not posted; `Invalid` for requests of several contexts.
pub fn wait_all(requests: &[Request], limit: Duration) -> Result<Vec<Done>> {
    let Some(engine) = same(requests)? else {
        return Ok(Vec::new());
    };
    let _call = engine.observers.call(c"wait_all", Facts::default);
    let keys = || requests.iter().map(Request::key);
    let (mut open, mut ends) = (0, Vec::with_capacity(requests.len()));
    let mut answered = None;
    engine.wait_for_requests(limit, &mut |state| {
        while let Some(key) = requests.get(open).map(Request::key) {
            if !engine.visit_and_is_settled(state, key) {
                return ControlFlow::Continue(Some(key));
            }
            open += 1;
        }
        answered = Some(engine.answers(state, keys(), &mut ends));
        ControlFlow::Break(())
    });
    // A failed request may be the reason why another is late.
    let late = answered
        .unwrap_or_else(|| engine.answers(&mut engine.lock(), keys(), &mut ends))?
        .map(|at| requests[at].late(limit));
    late.map_or(Ok(ends), Err)
}

/// Waits on the CPU, at most `limit`, until one of the requests has ended; returns its index and
/// its result. If several have ended, it returns the first in the list. All must belong to one
/// context.
///
/// # Errors
/// The failure of that request, if it failed (the error has rank, tag and number, not the index);
/// `Timeout` as [`Request::wait`], for the first request of the list; `NoSuchRequest` for a request
/// that was not posted; `Invalid` for an empty list or requests of several contexts.
pub fn wait_any(requests: &[Request], limit: Duration) -> Result<(usize, Done)> {
    let mut found = None;
    let Some(engine) = same(requests)? else {
        return Err(Error::new(
            SEVERAL,
            Kind::Invalid,
            "the list of requests is empty",
        ));
    };
    let _call = engine.observers.call(c"wait_any", Facts::default);
    engine.wait_until(limit, &mut |state| {
        found = requests
            .iter()
            .position(|r| engine.visit_and_is_settled(state, r.key()));
        found.is_some()
    });
    let late = || requests[0].late(limit);
    let index = found.ok_or_else(late)?;
    let done = {
        let state = &mut *engine.lock();
        state.count_wait(requests[index].key());
        engine.answer(WAIT, state, requests[index].key())?
    };
    Ok((index, done.ok_or_else(late)?))
}

/// Waits on the CPU, at most `limit`, until at least one of the requests has ended; returns the
/// indices and results of all that have ended with success, in the order of the list.
///
/// # Errors
/// As [`wait_any`]: a failure only if that request is the first in the list that has ended. The
/// failures of other requests are returned when these are waited for.
pub fn wait_some(requests: &[Request], limit: Duration) -> Result<Vec<(usize, Done)>> {
    let (first, _) = wait_any(requests, limit)?;
    let mut all = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let engine = request.engine();
        let mut state = engine.lock();
        engine.visit(&mut state, request.key());
        // Other failures are returned when their requests are waited for.
        match engine.outcome(WAIT, &state, request.key()) {
            Ok(Some(done)) => all.push((index, done)),
            Err(_) if index == first => {
                return engine.answer(WAIT, &mut state, request.key()).map(|_| all);
            }
            Ok(None) | Err(_) => {}
        }
    }
    Ok(all)
}
