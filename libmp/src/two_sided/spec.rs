//! Operations: all options of a send or a receive.

use std::time::Duration;

use gdsync::gpu::Word64;
use gdsync::rdma::Doorbell;
use gdsync::{Gpu, Stream};

use crate::error::{Error, Kind, Result};
use crate::path::uncaptured;
use crate::region::Slice;

/// The side that executes a request: the CPU or a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum On<'a> {
    #[default]
    Cpu,
    /// The doorbell, if it differs from the context's.
    Stream(&'a Stream, Option<Doorbell>),
}

impl<'a> On<'a> {
    pub fn stream(&self) -> Option<&'a Stream> {
        match self {
            On::Cpu => None,
            On::Stream(stream, _) => Some(stream),
        }
    }

    /// Refuses a stream of another GPU, and a stream that is being captured.
    #[inline]
    pub fn check(&self, gpu: &Gpu, operation: &'static str) -> Result<()> {
        let Some(stream) = self.stream() else {
            return Ok(());
        };
        if !stream.gpu().is(gpu) {
            let what = format!("{stream:?} does not belong to {gpu:?}");
            return Err(Error::new(
                operation,
                Kind::Gdsync(gdsync::Kind::Foreign),
                what,
            ));
        }
        uncaptured(stream, operation)
    }
}

/// The source of a message's length.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum SizeSource<'a> {
    /// The total length of the segments.
    #[default]
    Segments,
    /// The value of a word when the stream reaches the send; a kernel may have computed it. The
    /// message has one segment. The segment's length is the maximum length of the message and
    /// decides between eager and rendezvous. A longer length fails the send and, as truncated, the
    /// receive.
    Word {
        /// Length in bytes.
        len: &'a Word64,
        /// The offset of the message in the segment, in bytes; `None`: 0.
        offset: Option<&'a Word64>,
    },
}

/// A message to send.
///
/// It borrows slices, words and stream until [`Context::post_send`](crate::Context::post_send)
/// takes it; then the request keeps the memory:
///
/// ```compile_fail,E0505
/// # use mp::{Context, Request, SendOp, Slice};
/// fn send(ctx: &Context, stream: gdsync::Stream, data: &Slice) -> mp::Result<Request> {
///     let message = SendOp::new(1, 7, std::slice::from_ref(data)).on(&stream);
///     drop(stream); // `message` borrows it
///     ctx.post_send(&message)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendOp<'a> {
    pub(crate) to: u32,
    pub(crate) tag: u32,
    pub(crate) segments: &'a [Slice],
    pub(crate) size: SizeSource<'a>,
    pub(crate) on: On<'a>,
    pub(crate) timeout: Option<Duration>,
}

impl<'a> SendOp<'a> {
    /// Sends the bytes of `segments`, concatenated, to rank `to`. At most 30 segments; at most 16
    /// GiB in one segment, 1 GiB in several. The CPU posts the send unless [`on`](SendOp::on) is
    /// called.
    pub fn new(to: u32, tag: u32, segments: &'a [Slice]) -> SendOp<'a> {
        SendOp {
            to,
            tag,
            segments,
            size: SizeSource::Segments,
            on: On::Cpu,
            timeout: None,
        }
    }

    /// Posts on the stream.
    #[must_use]
    pub fn on(mut self, stream: &'a Stream) -> SendOp<'a> {
        self.on = On::Stream(stream, None);
        self
    }

    /// Posts on the stream; a CPU thread writes the doorbell ([`Doorbell::CpuThread`]).
    #[must_use]
    pub fn by_cpu_thread(mut self, stream: &'a Stream) -> SendOp<'a> {
        self.on = On::Stream(stream, Some(Doorbell::CpuThread));
        self
    }

    /// Sets the source of the message's length; default: the segments.
    #[must_use]
    pub fn size(mut self, size: SizeSource<'a>) -> SendOp<'a> {
        self.size = size;
        self
    }

    /// Sets the timeout of this request; default: the context's.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> SendOp<'a> {
        self.timeout = Some(limit);
        self
    }
}

/// The rank whose message a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A message of this rank.
    Rank(u32),
    /// The first message that arrives, from any rank. The CPU matches it, in the background work:
    /// the receive depends on the CPU and cannot be part of a graph.
    Any,
}

impl From<u32> for Source {
    fn from(rank: u32) -> Source {
        Source::Rank(rank)
    }
}

/// A message to receive.
#[derive(Clone, Copy, Debug)]
pub struct RecvOp<'a> {
    pub(crate) from: Source,
    pub(crate) tag: u32,
    pub(crate) segments: &'a [Slice],
    pub(crate) on: On<'a>,
    pub(crate) timeout: Option<Duration>,
}

impl<'a> RecvOp<'a> {
    /// Receives a message from `from` into `segments`, in their order. At most 30 segments; at most
    /// 16 GiB in one segment, 1 GiB in several. The CPU posts the receive unless [`on`](RecvOp::on)
    /// is called.
    pub fn new(from: impl Into<Source>, tag: u32, segments: &'a [Slice]) -> RecvOp<'a> {
        RecvOp {
            from: from.into(),
            tag,
            segments,
            on: On::Cpu,
            timeout: None,
        }
    }

    /// Posts on the stream: the memory may be written from when the stream reaches the receive.
    #[must_use]
    pub fn on(mut self, stream: &'a Stream) -> RecvOp<'a> {
        self.on = On::Stream(stream, None);
        self
    }

    /// Posts on the stream; a CPU thread writes the doorbell ([`Doorbell::CpuThread`]).
    #[must_use]
    pub fn by_cpu_thread(mut self, stream: &'a Stream) -> RecvOp<'a> {
        self.on = On::Stream(stream, Some(Doorbell::CpuThread));
        self
    }

    /// Sets the timeout of this request; default: the context's.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> RecvOp<'a> {
        self.timeout = Some(limit);
        self
    }
}
