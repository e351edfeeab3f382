//! The calls of [`Context`] that send and receive: prepared and posted apart, posted by the CPU,
//! posted by a stream.

use gdsync::Stream;

use super::{Context, Request};
use crate::error::Result;
use crate::region::Slice;
use crate::request::table::RequestKey;
use crate::two_sided::{RecvOp, SendOp, Source, of_graph};

/// # Zero-SM messages
///
/// [`SendOp::zero_sm`] and [`RecvOp::zero_sm`] make a message between two ranks of a host a *zero-SM
/// message*, and [`Builder::zero_sm`](crate::Builder::zero_sm) or `MP_ZERO_SM` all messages that name another
/// rank of the host: copy engines and memory operations of streams move it, and no kernel. A kernel of the
/// application that fills the GPU does not delay it, and it takes no processor from such a kernel. Its latency
/// is higher than that of other messages.
///
/// - *Matching.* Zero-SM messages match each other in the order in which the two ranks post them under a tag,
///   and never match other messages: both ranks use the option, or the same default. A half whose match does
///   not have it waits until the time limit.
/// - *Order.* If the receive is posted before the send, the sender's stream waits until the receiver's stream
///   has reached the receive, and copies to its memory. Else a message of at most the eager limit goes to one
///   of 16 slots of the receiver, and the stream that waits for the receive copies it from there. A longer one
///   stays in the memory of the send until that stream copies it: the send ends then, and its stream
///   continues at once. *Before* means the calls of the two host threads. If the CPU waits for the receive or
///   tests it, or if its handle was dropped, the CPU copies in place of that stream.
///   A send of any length may thus hold its stream until its receive is reached, as a message above the eager
///   limit does; `docs/deadlocks.md` has the rules. The first call under a tag, or with some memory, waits for
///   the background work of the other rank.
/// - *Flow control.* A rank is at most 256 messages of a tag ahead of what both ranks have ended; beyond that
///   a call finds the queue full ([`Builder::full`](crate::Builder::full)).
/// - *Completion and failures* are as for other messages, with two exceptions. [`Request::result_word`] has
///   the result of a success only when a call has tested the request or the background work has ended it. A
///   stream that is released because the other rank failed still executes its copies, so the memory of a
///   receive may be written after its failure.
///
/// Both ranks map each other's memory ([`Path::Ipc`](crate::Path::Ipc)). The message has at most one segment, and
/// is posted by the call that prepares it, by the CPU or by a stream that is not being captured. The memory is
/// of [`Context::alloc`]; a send of at most the eager limit may use any. Everything else is refused with
/// `Unsupported`, and so are receives from [`Source::Any`]. A copy from host memory to host memory is a kernel on
/// CUDA.
///
/// ```
/// # use std::time::Duration;
/// # use mp::{Context, RecvOp, SendOp, gdsync::gpu::MemoryKind};
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let peer = 1 - ctx.rank(); // a job of two ranks
///     let stream = ctx.gpu().stream()?;
///     let memory = ctx.alloc(MemoryKind::Device, 128 << 10)?;
///     let (data, room) = ([memory.slice(0, 64 << 10)?], [memory.slice(64 << 10, 64 << 10)?]);
///
///     let recv = ctx.post_recv(&RecvOp::new(peer, 7, &room).on(&stream).zero_sm(true))?;
///     let send = ctx.post_send(&SendOp::new(peer, 7, &data).on(&stream).zero_sm(true))?;
///     recv.wait_on(&stream)?; // kernels enqueued from here on may read `room`
///     send.wait_on(&stream)?; // kernels enqueued from here on may write `data`
///     ctx.synchronize(&stream, Duration::from_secs(10))
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(2) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).path(mp::PathChoice::Ipc).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #             ctx.close(Duration::from_secs(10)).unwrap();
/// #         });
/// #     }
/// # });
/// ```
///
/// # Messages in graphs
///
/// A stream that [`Stream::begin_capture`] captures records [`isend_on`](Context::isend_on),
/// [`irecv_on`](Context::irecv_on), [`sendrecv_on`](Context::sendrecv_on),
/// [`Request::wait_on`] and [`wait_all_on`](Context::wait_all_on), and [`Stream::end_capture`] returns
/// their graph. Each launch of the graph (each *replay*) moves each of its messages once, without the CPU.
/// Memory, length, rank and tag are those of the capture; the payload is what the memory has when the
/// replay reaches the send.
///
/// - *Matching.* The k-th captured send to a rank under a tag matches the k-th captured receive there from
///   this rank under the tag, as persistent requests of MPI match. Replay r of the one matches replay r of
///   the other. Captured messages and others never match each other, so both may use one tag. A capture
///   waits for the background work of the other rank, not for its capture: the two programs may capture in
///   any order.
/// - *Flow control.* A send is at most four replays ahead of its receive, above 4 KiB two: then it waits until
///   a message is taken. Above 256 KiB (6 KiB on software GPUs) it waits until the replay of its receive has
///   reached the `irecv_on`. The replay of a receive waits for its message at `wait_on`.
/// - *Completion.* A captured [`Request`] is not waited for by the CPU. [`synchronize`](Context::synchronize)
///   of the stream on which the graph is launched waits for the messages of the replays, and returns a
///   failure. [`Request::result_word`] has the result of the last replay of a receive. A captured receive
///   needs a captured wait; without it no replay takes its messages, and its sender waits.
/// - *Failures.* If the other rank fails, dies or drops its context, or if a replay waits longer than
///   [`Builder::timeout`](crate::Builder::timeout), its kernels end without their messages, and so does every
///   later replay at once. The status is in [`error_word`](Context::error_word) before the stream continues.
/// - *Lifetime.* The context keeps the memory of captured messages until it is dropped, and the graph until
///   the graph is dropped. Launches behind the drop of the context move nothing.
///
/// Both ranks are on one host and map each other's memory ([`Path::Ipc`](crate::Path::Ipc)). Launches of one
/// graph run one after the other; the application does not run two copies of one graph at a time.
///
/// ```
/// # use std::time::Duration;
/// # use mp::{Context, gdsync::gpu::MemoryKind};
/// fn rank(ctx: &Context) -> mp::Result<()> {
///     let (rank, peer) = (ctx.rank(), 1 - ctx.rank()); // a job of two ranks
///     let stream = ctx.gpu().stream()?;
///     let memory = ctx.alloc(MemoryKind::Device, 128)?;
///     let (data, room) = (memory.slice(0, 64)?, memory.slice(64, 64)?);
///
///     stream.begin_capture()?;
///     let recv = ctx.irecv_on(&stream, peer, 7, &room)?;
///     ctx.isend_on(&stream, peer, 7, &data)?.wait_on(&stream)?;
///     recv.wait_on(&stream)?; // kernels recorded from here on may read `room`
///     let step = stream.end_capture()?;
///
///     for i in 0..100_u8 {
///         memory.write(0, &[i + rank as u8; 64])?;
///         step.launch(&stream)?;
///         ctx.synchronize(&stream, Duration::from_secs(10))?;
///         let mut got = [0; 64];
///         memory.read(64, &mut got)?;
///         assert_eq!(got, [i + peer as u8; 64]);
///     }
///     Ok(())
/// }
/// # std::thread::scope(|threads| {
/// #     for job in mp::bootstrap::Local::ranks(2) {
/// #         threads.spawn(move || {
/// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
/// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).path(mp::PathChoice::Ipc).build().unwrap();
/// #             rank(&ctx).unwrap();
/// #             ctx.close(Duration::from_secs(10)).unwrap();
/// #         });
/// #     }
/// # });
/// ```
impl Context {
    /// Prepares a send without posting it. The send gets its number under its rank and tag, which
    /// fixes the receive that it matches. Nothing is sent until [`Request::post`].
    ///
    /// The first use of a rank, of a tag or of a stream opens a connection. It waits on the CPU for
    /// the background work of the other rank, at most
    /// [`Builder::timeout`](crate::Builder::timeout). So may the first message of at most the eager
    /// limit under a tag whose earlier messages, or whose receives, are above it.
    ///
    /// # Errors
    /// No number is used then, and nothing is sent.
    /// - `Invalid` for a rank outside the job, memory of another context, or segments or lengths
    ///   out of range.
    /// - `Unsupported` for a length word with several segments, and for a stream that is being captured:
    ///   use [`post_send`](Context::post_send). On a GPU that runs no kernels, also for a stream's send
    ///   above the eager limit, with a length word, of more than 30 pieces, or to this rank itself.
    /// - For a stream that is being captured ([messages in graphs](Context#messages-in-graphs)),
    ///   [`post_send`](Context::post_send) returns `Unsupported` for several segments, a length word, a
    ///   time limit of its own, a receive from any rank, and a rank that is not reached by mapped memory;
    ///   `Truncated` if the message is longer than its receive; `Invalid` if it repeats a failed capture
    ///   with another length.
    /// - `Unsupported` for what cannot be a [zero-SM message](Context#zero-sm-messages), if it is to be one.
    /// - `PeerFailed` if the rank was given up; `Protocol` if it has another version or settings.
    /// - `Timeout`, naming the rank, if it does not answer; `BootstrapLost` if it cannot be asked.
    /// - `QueueFull` if too many messages under the tag are in flight, or too many requests are
    ///   unfinished or held; [`Builder::full`](crate::Builder::full) sets whether the call waits
    ///   for room first.
    /// - Errors of gdsync, for instance if no memory is available.
    pub fn prepare_send(&self, send: &SendOp<'_>) -> Result<Request> {
        let _call = self
            .engine()
            .observers
            .call(c"prepare_send", || send.facts());
        Ok(Request::of(self, self.engine().send(send, false)?))
    }

    /// Prepares a receive without posting it. A receive from one rank gets its number, which fixes
    /// the send that it matches; a receive from any rank gets its number when the CPU matches it.
    /// Connections are opened as by [`Context::prepare_send`].
    ///
    /// # Errors
    /// As [`Context::prepare_send`]; `QueueFull` also for more than
    /// [`Builder::depth`](crate::Builder::depth) receives of the rank and tag that are not waited
    /// for; `Busy` for a receive from one rank while an earlier receive from any rank under the same
    /// tag is unmatched. After the rank was given up, an eager message that arrived before can still
    /// be received; otherwise `PeerFailed`.
    pub fn prepare_recv(&self, recv: &RecvOp<'_>) -> Result<Request> {
        let _call = self
            .engine()
            .observers
            .call(c"prepare_recv", || recv.facts());
        Ok(Request::of(self, self.engine().recv(recv, false)?))
    }

    /// Prepares a send and posts it, by the CPU or on its stream. [`Context::isend`] and
    /// [`Context::isend_on`] are short forms.
    ///
    /// # Errors
    /// As [`Context::prepare_send`] and [`Request::post`].
    pub fn post_send(&self, send: &SendOp<'_>) -> Result<Request> {
        let name = send.on.call(c"isend", c"isend_on");
        let _call = self.engine().observers.call(name, || send.facts());
        Ok(Request::of(self, self.engine().send(send, true)?))
    }

    /// Prepares a receive and posts it, by the CPU or on its stream. [`Context::irecv`] and
    /// [`Context::irecv_on`] are short forms.
    ///
    /// # Errors
    /// As [`Context::prepare_recv`] and [`Request::post`].
    pub fn post_recv(&self, recv: &RecvOp<'_>) -> Result<Request> {
        let name = recv.on.call(c"irecv", c"irecv_on");
        let _call = self.engine().observers.call(name, || recv.facts());
        Ok(Request::of(self, self.engine().recv(recv, true)?))
    }

    /// Sends `data` to rank `to` under `tag`, by the CPU. The call does not wait for the receive. A
    /// message above the eager limit is sent by the background work when its receive is posted.
    ///
    /// No stream is ordered with the send: the memory must contain the message when this is called,
    /// and stays unchanged until the request has completed ([`Request::test`], [`Request::wait`],
    /// [`Request::wait_on`]). A dropped request completes by itself.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, gdsync::gpu::MemoryKind};
    /// fn rank(ctx: &Context) -> mp::Result<()> {
    ///     let memory = ctx.alloc(MemoryKind::Pinned, 8)?;
    ///     if ctx.rank() == 0 {
    ///         memory.write(0, b"from 0")?;
    ///         let send = ctx.isend(1, 7, &memory.slice(0, 6)?)?;
    ///         send.wait(Duration::from_secs(10))?;
    ///     } else {
    ///         let recv = ctx.irecv(0, 7, &memory.all())?; // room for 8 bytes
    ///         assert_eq!(recv.wait(Duration::from_secs(10))?.len, 6);
    ///     }
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
    ///
    /// # Errors
    /// As [`Context::post_send`].
    pub fn isend(&self, to: u32, tag: u32, data: &Slice) -> Result<Request> {
        self.isendv(to, tag, std::slice::from_ref(data))
    }

    /// Receives a message from rank `from`, or from [`Source::Any`], under `tag` into `into`, by
    /// the CPU. The message may be shorter than `into`; the rest is unchanged. A longer message
    /// ends the request with `Truncated`. [`Context::isend`] has an example.
    ///
    /// No stream is ordered with the receive: the memory may be written from this call until the
    /// request has completed.
    ///
    /// # Errors
    /// As [`Context::post_recv`].
    pub fn irecv(&self, from: impl Into<Source>, tag: u32, into: &Slice) -> Result<Request> {
        self.irecvv(from, tag, std::slice::from_ref(into))
    }

    /// Sends the bytes of at most 30 slices, concatenated, as one message, by the CPU. As
    /// [`Context::isend`].
    ///
    /// # Errors
    /// As [`Context::post_send`].
    pub fn isendv(&self, to: u32, tag: u32, data: &[Slice]) -> Result<Request> {
        self.post_send(&SendOp::new(to, tag, data))
    }

    /// Receives one message into at most 30 slices, in their order, by the CPU. As
    /// [`Context::irecv`].
    ///
    /// # Errors
    /// As [`Context::post_recv`].
    pub fn irecvv(&self, from: impl Into<Source>, tag: u32, into: &[Slice]) -> Result<Request> {
        self.post_recv(&RecvOp::new(from, tag, into))
    }

    /// Enqueues a send of `data` to rank `to` under `tag` on the stream. The memory is read when
    /// the stream reaches the send, behind all earlier work of the stream. A stream that is being captured
    /// records it ([messages in graphs](Context#messages-in-graphs)).
    ///
    /// The stream then continues at once, unless it has no credit ([`Builder::depth`]), or
    /// the message is longer than the eager limit ([`Builder::eager_limit`]): **it waits for
    /// the credit, or until the receive is posted**. Later work of the stream may write the memory
    /// only behind [`Request::wait_on`] of the send.
    ///
    /// [`Builder::depth`]: crate::Builder::depth
    /// [`Builder::eager_limit`]: crate::Builder::eager_limit
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, gdsync::gpu::MemoryKind};
    /// fn rank(ctx: &Context) -> mp::Result<()> {
    ///     let peer = 1 - ctx.rank(); // a job of two ranks
    ///     let stream = ctx.gpu().stream()?;
    ///     let memory = ctx.alloc(MemoryKind::Device, 128 << 10)?;
    ///     let (data, room) = (memory.slice(0, 64 << 10)?, memory.slice(64 << 10, 64 << 10)?);
    ///
    ///     // Both ranks receive first: a send above the eager limit (4 KiB, by TCP 256 KiB) waits until
    ///     // the other rank's stream has reached its receive.
    ///     let recv = ctx.irecv_on(&stream, peer, 7, &room)?;
    ///     let send = ctx.isend_on(&stream, peer, 7, &data)?;
    ///     recv.wait_on(&stream)?; // kernels enqueued from here on may read `room`
    ///     send.wait_on(&stream)?; // kernels enqueued from here on may write `data`
    ///
    ///     ctx.synchronize(&stream, Duration::from_secs(10))
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
    ///
    /// # Errors
    /// As [`Context::post_send`]; `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    pub fn isend_on(&self, stream: &Stream, to: u32, tag: u32, data: &Slice) -> Result<Request> {
        self.isendv_on(stream, to, tag, std::slice::from_ref(data))
    }

    /// Enqueues a receive on the stream: of a message from rank `from`, or from [`Source::Any`],
    /// under `tag` into `into`. The receive is posted, and the memory may be written, when the
    /// stream reaches it; the stream continues at once. [`Request::wait_on`] makes a stream wait
    /// for the message. A stream that is being captured records it
    /// ([messages in graphs](Context#messages-in-graphs)). [`Context::isend_on`] has an example.
    ///
    /// If the CPU or another stream waits for the message, it may also wait for what the program has
    /// enqueued on this stream behind the receive, without this library, until then.
    ///
    /// # Errors
    /// As [`Context::post_recv`].
    pub fn irecv_on(
        &self,
        stream: &Stream,
        from: impl Into<Source>,
        tag: u32,
        into: &Slice,
    ) -> Result<Request> {
        self.irecvv_on(stream, from, tag, std::slice::from_ref(into))
    }

    /// Enqueues a send of at most 30 slices, concatenated, as one message. As
    /// [`Context::isend_on`].
    ///
    /// # Errors
    /// As [`Context::isend_on`].
    pub fn isendv_on(&self, stream: &Stream, to: u32, tag: u32, data: &[Slice]) -> Result<Request> {
        self.post_send(&SendOp::new(to, tag, data).on(stream))
    }

    /// Enqueues a receive of one message into at most 30 slices, in their order. As
    /// [`Context::irecv_on`].
    ///
    /// # Errors
    /// As [`Context::irecv_on`].
    pub fn irecvv_on(
        &self,
        stream: &Stream,
        from: impl Into<Source>,
        tag: u32,
        into: &[Slice],
    ) -> Result<Request> {
        self.post_recv(&RecvOp::new(from, tag, into).on(stream))
    }

    /// Posts prepared requests on `stream` in one submission, however many there are, as
    /// [`Request::post_on`] does for one. They may have different peers and tags; they were prepared
    /// without a stream, or for this stream. Peers see the receives first, then the short sends and
    /// the operations of windows in the order of the list, then the announcements of large sends.
    ///
    /// The stream waits for the receives of all large sends together: no payload above the eager
    /// limit is sent before the last of these receives is posted. A request with this rank itself is
    /// posted behind the others, in submissions of its own.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, RecvOp, SendOp, gdsync::gpu::MemoryKind};
    /// fn exchange(ctx: &Context) -> mp::Result<()> {
    ///     let (rank, size) = (ctx.rank(), ctx.size());
    ///     let stream = ctx.gpu().stream()?;
    ///     let memory = ctx.alloc(MemoryKind::Device, 128 * size as usize)?;
    ///     let mut requests = Vec::new();
    ///     for peer in (0..size).filter(|peer| *peer != rank) {
    ///         let at = 128 * peer as usize;
    ///         let (data, into) = (memory.slice(at, 64)?, memory.slice(at + 64, 64)?);
    ///         requests.push(ctx.prepare_recv(&RecvOp::from((peer, 7, &into)))?);
    ///         requests.push(ctx.prepare_send(&SendOp::from((peer, 7, &data)))?);
    ///     }
    ///     ctx.post_all_on(&stream, &requests)?;
    ///     ctx.wait_all_on(&stream, &requests)?;
    ///     ctx.synchronize(&stream, Duration::from_secs(10))
    /// }
    /// # std::thread::scope(|threads| {
    /// #     for job in mp::bootstrap::Local::ranks(3) {
    /// #         threads.spawn(move || {
    /// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
    /// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
    /// #             exchange(&ctx).unwrap();
    /// #             ctx.close(Duration::from_secs(10)).unwrap();
    /// #         });
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Request::post_on`], for the first request that is refused: then none is posted, and all
    /// stay prepared. Exceptions: a request with this rank itself that is refused behind the others,
    /// and a large send of which only a part could be enqueued; the peer of that send is given up.
    /// `Busy` for a request that is named twice; `Invalid` for requests of another context, and for
    /// more requests than the stream can hold submissions for. The call does not wait for room if the
    /// requests do not fit an empty queue: `QueueFull`, with its limit.
    pub fn post_all_on(&self, stream: &Stream, requests: &[Request]) -> Result<()> {
        let _call = self.observe(c"post_all_on", None, Some(stream));
        let keys = self.keys(requests)?;
        self.engine().post_all_on(keys, stream)
    }

    /// Makes `stream` wait until all requests have ended, as [`Request::wait_on`] does for one. The
    /// requests may have different peers, tags and streams. All waits are one submission, however
    /// many requests there are, and the messages are taken in behind the last of them: up to 23 by
    /// one kernel, and each message of several segments or strided pieces by kernels of its own.
    /// [Zero-SM messages](Context#zero-sm-messages) are waited for one after the other, in front of the
    /// others.
    ///
    /// # Errors
    /// As [`Request::wait_on`], for the first request that fails: the stream then waits for none of
    /// them, except zero-SM messages in front of it, or for receives alone if the end of a send cannot be
    /// waited for. `Invalid` for requests of another context, and for
    /// more requests than the stream can hold submissions for. `Unsupported` for captured requests beside
    /// others.
    pub fn wait_all_on(&self, stream: &Stream, requests: &[Request]) -> Result<()> {
        let _call = self.observe(c"wait_all_on", None, Some(stream));
        if requests.first().and_then(Request::captured).is_some() {
            return self.wait_all_captured(stream, requests);
        }
        let keys = self.keys(requests)?;
        self.engine().wait_all_on(keys, stream)
    }

    /// Makes a graph wait for captured messages.
    fn wait_all_captured(&self, stream: &Stream, requests: &[Request]) -> Result<()> {
        let engine = self.engine();
        requests.iter().try_for_each(|r| r.check_context(engine))?;
        let captured = requests.iter().filter_map(Request::captured);
        match captured.clone().count() == requests.len() {
            true => engine.wait_on_captured(captured, stream),
            false => Err(of_graph("wait on stream")),
        }
    }

    /// The keys of requests of this context.
    fn keys(
        &self,
        requests: &[Request],
    ) -> Result<impl ExactSizeIterator<Item = RequestKey> + Clone> {
        let engine = self.engine();
        requests.iter().try_for_each(|r| r.check(engine))?;
        Ok(requests.iter().map(Request::key))
    }
}
