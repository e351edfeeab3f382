//! The calls that send and receive.

use gdsync::Stream;

use super::{Context, Request};
use crate::error::Result;
use crate::region::Slice;
use crate::two_sided::{RecvOp, SendOp, Source};

impl Context {
    /// Prepares a send: it gets its number, and matches the receive of the same number. Nothing is
    /// sent until [`Request::post`].
    ///
    /// # Errors
    /// `Invalid` for a rank, segments or lengths out of range; `Unsupported` for a length word with
    /// several segments, and for a stream that is being captured; `PeerFailed` and `Timeout`,
    /// naming the rank, if the rank cannot be connected; `QueueFull` as configured by
    /// [`Builder::full`](crate::Builder::full).
    pub fn prepare_send(&self, send: &SendOp<'_>) -> Result<Request> {
        Ok(Request::new(self, self.engine().send(send, false)?))
    }

    /// Prepares a receive; a receive from one rank gets its number.
    ///
    /// # Errors
    /// As [`Context::prepare_send`]; `QueueFull` also for more receives without a waiter than the
    /// channel has slots; `Busy` while an earlier receive from any rank under the same tag is
    /// unmatched.
    pub fn prepare_recv(&self, recv: &RecvOp<'_>) -> Result<Request> {
        Ok(Request::new(self, self.engine().recv(recv, false)?))
    }

    /// Prepares a send and posts it.
    ///
    /// # Errors
    /// As [`Context::prepare_send`] and [`Request::post`].
    pub fn post_send(&self, send: &SendOp<'_>) -> Result<Request> {
        Ok(Request::new(self, self.engine().send(send, true)?))
    }

    /// Prepares a receive and posts it.
    ///
    /// # Errors
    /// As [`Context::prepare_recv`] and [`Request::post`].
    pub fn post_recv(&self, recv: &RecvOp<'_>) -> Result<Request> {
        Ok(Request::new(self, self.engine().recv(recv, true)?))
    }

    /// Sends `data` to rank `to`, by the CPU.
    ///
    /// # Errors
    /// As [`Context::post_send`].
    pub fn isend(&self, to: u32, tag: u32, data: &Slice) -> Result<Request> {
        self.isendv(to, tag, std::slice::from_ref(data))
    }

    /// Receives into `into`, by the CPU. A message may be shorter; the rest is not touched.
    ///
    /// # Errors
    /// As [`Context::post_recv`].
    pub fn irecv(&self, from: impl Into<Source>, tag: u32, into: &Slice) -> Result<Request> {
        self.irecvv(from, tag, std::slice::from_ref(into))
    }

    /// Sends the bytes of several slices as one message, by the CPU.
    ///
    /// # Errors
    /// As [`Context::post_send`].
    pub fn isendv(&self, to: u32, tag: u32, data: &[Slice]) -> Result<Request> {
        self.post_send(&SendOp::new(to, tag, data))
    }

    /// Receives a message into several slices, by the CPU.
    ///
    /// # Errors
    /// As [`Context::post_recv`].
    pub fn irecvv(&self, from: impl Into<Source>, tag: u32, into: &[Slice]) -> Result<Request> {
        self.post_recv(&RecvOp::new(from, tag, into))
    }

    /// Sends `data` when the stream reaches the send. The stream continues at once, unless it has
    /// no credit, or the message is longer than the eager limit and its receive is not posted: then
    /// the stream waits for the credit or the receive.
    ///
    /// # Errors
    /// As [`Context::post_send`]; `Gdsync(TooManyWaits)` if too many streams of the GPU wait.
    pub fn isend_on(&self, stream: &Stream, to: u32, tag: u32, data: &Slice) -> Result<Request> {
        self.isendv_on(stream, to, tag, std::slice::from_ref(data))
    }

    /// Receives into `into` from when the stream reaches the receive; the stream continues at once.
    /// [`Request::wait_on`] makes it wait.
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

    /// As [`Context::isend_on`], for several slices.
    ///
    /// # Errors
    /// As [`Context::isend_on`].
    pub fn isendv_on(&self, stream: &Stream, to: u32, tag: u32, data: &[Slice]) -> Result<Request> {
        self.post_send(&SendOp::new(to, tag, data).on(stream))
    }

    /// As [`Context::irecv_on`], into several slices.
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

    /// Makes `stream` wait until all requests have ended.
    ///
    /// # Errors
    /// As [`Request::wait_on`], for the first request that fails; the waits before it are enqueued.
    pub fn wait_all_on(&self, stream: &Stream, requests: &[Request]) -> Result<()> {
        requests.iter().try_for_each(|r| r.wait_on(stream))
    }
}
