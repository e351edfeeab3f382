//! The calls of [`Context`] for ready words, by hand.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use gdsync::Stream;

use super::Context;
use crate::error::Result;
use crate::two_sided::On;
use crate::window::ReadyWords;

impl Context {
    fn ready(&self) -> Result<Arc<ReadyWords>> {
        let mut ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(words) = &*ready {
            return Ok(Arc::clone(words));
        }
        let words = Arc::new(ReadyWords::new(self.engine())?);
        Ok(Arc::clone(ready.insert(words)))
    }

    /// Sends a ready word to `rank`, by the CPU: this rank is ready for the next message or put of
    /// that rank. Each call satisfies one wait of that rank for a ready word of this one
    /// ([`wait_ready`](Context::wait_ready), [`wait_ready_on`](Context::wait_ready_on),
    /// [`test_ready`](Context::test_ready)), in their order, also a wait that begins later. The
    /// call does not wait for it. The words are counts of 64 bits that are compared cyclically.
    ///
    /// Messages of this library need no ready words: a receive that is not posted holds back its
    /// message. Ready words are for programs that reuse memory to which other ranks put, and for
    /// programs that are ported from libraries with ready words. The words to one rank are sent by
    /// one origin, the CPU or a stream; another one may follow when the last word is sent.
    ///
    /// The first ready word between two ranks exchanges the addresses of the words: this waits on
    /// the CPU for the background work of the other rank, at most
    /// [`Builder::timeout`](crate::Builder::timeout), as the first message does. The null rank
    /// ([`NULL_RANK`](crate::NULL_RANK)) takes and sends ready words at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use mp::{Context, gdsync::gpu::MemoryKind};
    /// fn rank(ctx: &Context) -> mp::Result<()> {
    ///     let peer = 1 - ctx.rank(); // a job of two ranks
    ///     let stream = ctx.gpu().stream()?;
    ///     let memory = ctx.alloc(MemoryKind::Device, 64)?;
    ///     let window = ctx.window(&memory)?;
    ///     let mut puts = Vec::new();
    ///     for _ in 0..3 {
    ///         ctx.send_ready_on(&stream, peer)?; // a kernel has read the bytes of the last step
    ///         ctx.wait_ready_on(&stream, peer)?; // so has the peer's
    ///         puts.push(window.put_on(&stream, peer, 32, &memory.slice(0, 32)?)?);
    ///     }
    ///     ctx.synchronize(&stream, Duration::from_secs(10))?;
    ///
    ///     ctx.send_ready(peer)?; // the same by the CPU
    ///     ctx.wait_ready(peer, Duration::from_secs(10))?;
    ///     ctx.close(Duration::from_secs(10))
    /// }
    /// # std::thread::scope(|threads| {
    /// #     for job in mp::bootstrap::Local::ranks(2) {
    /// #         threads.spawn(move || {
    /// #             let gpu = mp::gdsync::Gpu::soft().unwrap();
    /// #             let ctx = Context::builder().bootstrap(job).gpu(&gpu).build().unwrap();
    /// #             rank(&ctx).unwrap();
    /// #         });
    /// #     }
    /// # });
    /// ```
    ///
    /// # Errors
    /// No word is sent then, and none is counted.
    /// - `Invalid` for a rank outside the job.
    /// - `PeerFailed`, naming the rank, if it was given up; `Timeout`, naming it, if it does not
    ///   answer at the first use; `BootstrapLost` if it cannot be asked.
    /// - `Busy` if the last word to this rank is posted by a stream and not sent yet.
    /// - `QueueFull` if too many operations are in flight, as for
    ///   [`Window::put`](crate::Window::put); errors of gdsync.
    pub fn send_ready(&self, rank: u32) -> Result<()> {
        let _call = self.observe(c"send_ready", Some(rank), None);
        self.engine().send_ready(&*self.ready()?, On::Cpu, rank)
    }

    /// As [`send_ready`](Context::send_ready), by `stream`, behind its earlier work.
    ///
    /// # Errors
    /// As [`send_ready`](Context::send_ready); `Busy` also if another stream or the CPU has posted
    /// the last word to this rank and it is not sent yet; `Gdsync(Foreign)` for a stream of another
    /// GPU; `Unsupported` for a stream that is being captured into a graph.
    pub fn send_ready_on(&self, stream: &Stream, rank: u32) -> Result<()> {
        let _call = self.observe(c"send_ready_on", Some(rank), Some(stream));
        let on = On::Stream(stream, None);
        self.engine().send_ready(&*self.ready()?, on, rank)
    }

    /// Waits on the CPU, at most `limit`, for the next ready word of `rank`, and takes it. See
    /// [`send_ready`](Context::send_ready).
    ///
    /// # Errors
    /// The word is not taken then. `Invalid` for a rank outside the job; `PeerFailed`, naming the
    /// rank, if it was given up and the word has not arrived; `Timeout` after `limit`; errors of
    /// gdsync.
    pub fn wait_ready(&self, rank: u32, limit: Duration) -> Result<()> {
        let _call = self.observe(c"wait_ready", Some(rank), None);
        self.engine().wait_ready(&*self.ready()?, rank, limit)
    }

    /// Makes `stream` wait for the next ready word of `rank`, and takes it. If the rank is given up,
    /// or after [`Builder::timeout`](crate::Builder::timeout), the stream continues, and
    /// [`synchronize`](Context::synchronize) returns the error.
    ///
    /// # Errors
    /// Nothing is enqueued then, and no word is taken. As [`wait_ready`](Context::wait_ready) and
    /// [`Context::wait_value_on`].
    pub fn wait_ready_on(&self, stream: &Stream, rank: u32) -> Result<()> {
        let _call = self.observe(c"wait_ready_on", Some(rank), Some(stream));
        self.engine().wait_ready_on(&*self.ready()?, stream, rank)
    }

    /// Whether the next ready word of `rank` has arrived; `true` takes it. It does not wait.
    ///
    /// # Errors
    /// As [`wait_ready`](Context::wait_ready), except `Timeout`.
    pub fn test_ready(&self, rank: u32) -> Result<bool> {
        self.engine().test_ready(&*self.ready()?, rank)
    }
}
