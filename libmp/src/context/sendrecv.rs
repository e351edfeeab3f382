//! A send and a receive in one call, as `MPI_Sendrecv`.

use std::time::Duration;

use gdsync::Stream;

use super::{Context, Request, wait_all};
use crate::error::Result;
use crate::request::Done;
use crate::two_sided::{RecvOp, SendOp};

impl Context {
    /// Sends a message and receives another, by the CPU, and waits until both have ended, at most
    /// `limit`: `MPI_Sendrecv`. Returns the result of the receive. Each side is
    /// `(rank, tag, &slice)`, or a [`SendOp`] or [`RecvOp`] with all options.
    ///
    /// The receive is posted first, so all ranks may call this at once, also for messages above the
    /// eager limit. The memory of the two messages must not overlap.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, gdsync::gpu::MemoryKind};
    /// fn shift(ctx: &Context) -> mp::Result<()> {
    ///     let (rank, size) = (ctx.rank(), ctx.size());
    ///     let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    ///     let memory = ctx.alloc(MemoryKind::Pinned, 8)?;
    ///     let (out, into) = (memory.slice_of::<u32>(0, 1)?, memory.slice_of::<u32>(1, 1)?);
    ///     out.write_slice(0, &[rank])?;
    ///
    ///     let limit = Duration::from_secs(10);
    ///     let done = ctx.sendrecv((right, 7, &out), (left, 7, &into), limit)?;
    ///     let mut value = [0];
    ///     into.read_slice(0, &mut value)?;
    ///     assert_eq!((done.peer, done.len, value), (left, 4, [left]));
    ///     Ok(())
    /// }
    /// # std::thread::scope(|threads| {
    /// #     for job in mp::bootstrap::Local::ranks(3) {
    /// #         threads.spawn(move || {
    /// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
    /// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
    /// #             shift(&ctx).unwrap();
    /// #             ctx.close(Duration::from_secs(10)).unwrap();
    /// #         });
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// - As [`prepare_recv`](Context::prepare_recv) and [`prepare_send`](Context::prepare_send):
    ///   nothing is posted then.
    /// - As [`Request::post`] for the send: the receive is posted, and takes its message.
    /// - As [`wait_all`]: the failure of the receive, else of the send. After `Timeout` both
    ///   messages continue as dropped requests, and use their memory until they have ended.
    pub fn sendrecv<'a>(
        &self,
        send: impl Into<SendOp<'a>>,
        recv: impl Into<RecvOp<'a>>,
        limit: Duration,
    ) -> Result<Done> {
        let pair = self.post_pair(&send.into(), &recv.into())?;
        Ok(wait_all(&pair, limit)?[0])
    }

    /// Enqueues a receive and a send on the stream, and makes the stream wait for both. Work that
    /// is enqueued behind it finds the received message, and may write the memory of the send. The
    /// call itself does not wait. Each side is `(rank, tag, &slice)`, or a [`SendOp`] or [`RecvOp`]
    /// with all options; one that names a stream is posted on that stream.
    ///
    /// The receive is posted first, so all ranks may enqueue this at once, also for messages above
    /// the eager limit. A stream that is being captured records both
    /// ([messages in graphs](Context#messages-in-graphs)). [`synchronize`](Context::synchronize) returns a failure. For the length or
    /// the result word of the message, call [`irecv_on`](Context::irecv_on) and
    /// [`isend_on`](Context::isend_on) instead.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, gdsync::gpu::MemoryKind};
    /// fn shift(ctx: &Context) -> mp::Result<()> {
    ///     let (rank, size) = (ctx.rank(), ctx.size());
    ///     let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    ///     let stream = ctx.gpu().stream()?;
    ///     let memory = ctx.alloc(MemoryKind::Device, 128 << 10)?;
    ///     let (out, into) = (memory.slice(0, 64 << 10)?, memory.slice(64 << 10, 64 << 10)?);
    ///
    ///     ctx.sendrecv_on(&stream, (right, 7, &out), (left, 7, &into))?;
    ///     // kernels enqueued from here on may read `into` and write `out`
    ///     ctx.synchronize(&stream, Duration::from_secs(10))
    /// }
    /// # std::thread::scope(|threads| {
    /// #     for job in mp::bootstrap::Local::ranks(2) {
    /// #         threads.spawn(move || {
    /// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
    /// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
    /// #             shift(&ctx).unwrap();
    /// #             ctx.close(Duration::from_secs(10)).unwrap();
    /// #         });
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// - As [`prepare_recv`](Context::prepare_recv) and [`prepare_send`](Context::prepare_send):
    ///   nothing is enqueued then.
    /// - As [`post_all_on`](Context::post_all_on): nothing is enqueued then. If a side names a
    ///   stream, or may be a [zero-SM message](Context#zero-sm-messages), as
    ///   [`post_send`](Context::post_send) for the send: the receive continues as a dropped request.
    /// - As [`wait_all_on`](Context::wait_all_on): both continue as dropped requests.
    pub fn sendrecv_on<'a>(
        &self,
        stream: &'a Stream,
        send: impl Into<SendOp<'a>>,
        recv: impl Into<RecvOp<'a>>,
    ) -> Result<()> {
        let (mut send, mut recv) = (send.into(), recv.into());
        if stream.is_capturing()? {
            let recv = self.post_recv(&recv.on(stream))?;
            let send = self.post_send(&send.on(stream))?;
            return self.wait_all_on(stream, &[recv, send]);
        }
        let bare = send.on.stream().is_none() && recv.on.stream().is_none();
        if bare && !self.may_be_zero_sm(&send, &recv) {
            let pair = [self.prepare_recv(&recv)?, self.prepare_send(&send)?];
            self.post_all_on(stream, &pair)?;
            return self.wait_all_on(stream, &pair);
        }
        if send.on.stream().is_none() {
            send = send.on(stream);
        }
        if recv.on.stream().is_none() {
            recv = recv.on(stream);
        }
        let pair = self.post_pair(&send, &recv)?;
        self.wait_all_on(stream, &pair)
    }

    /// Whether a side may be a zero-SM message, which is not prepared before it is posted.
    fn may_be_zero_sm(&self, send: &SendOp<'_>, recv: &RecvOp<'_>) -> bool {
        let engine = self.engine();
        engine.may_be_zero_sm(send.zero_sm) || engine.may_be_zero_sm(recv.zero_sm)
    }

    /// Posts the receive, then the send. Both are prepared first: if one is refused, the other is
    /// cancelled and nothing was posted.
    fn post_pair(&self, send: &SendOp<'_>, recv: &RecvOp<'_>) -> Result<[Request; 2]> {
        if self.may_be_zero_sm(send, recv) {
            return Ok([self.post_recv(recv)?, self.post_send(send)?]);
        }
        self.engine().as_pair(|| {
            let pair = [self.prepare_recv(recv)?, self.prepare_send(send)?];
            pair.iter().try_for_each(Request::post)?;
            Ok(pair)
        })
    }
}
