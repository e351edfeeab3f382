//! What a send or a receive is to be: everything a caller can say.

use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::Word64;
use gdsync::rdma::Doorbell;

use crate::error::Result;
use crate::path::uncaptured;
use crate::region::Slice;

/// Who does the work of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum On<'a> {
    #[default]
    Cpu,
    /// The doorbell, if not the context's.
    Stream(&'a Stream, Option<Doorbell>),
}

impl<'a> On<'a> {
    pub fn stream(&self) -> Option<&'a Stream> {
        match self {
            On::Cpu => None,
            On::Stream(stream, _) => Some(stream),
        }
    }

    /// Refuses a stream that is being captured.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        self.stream()
            .map_or(Ok(()), |stream| uncaptured(stream, operation))
    }
}

/// How long a message is.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum SizeSource<'a> {
    /// As its segments.
    #[default]
    Segments,
    /// As a word says when the stream gets there; a kernel may have computed it. The message has
    /// one segment, whose length is the most it can be and decides whether it goes eagerly. A
    /// length beyond it fails the send and, as too long, the receive.
    Word {
        /// Length in bytes.
        len: &'a Word64,
        /// Where the message begins in the segment, in bytes; `None`: at its start.
        offset: Option<&'a Word64>,
    },
}

/// A message to be sent.
///
/// It borrows slices, words and stream until
/// [`Context::post_send`](crate::Context::post_send) takes it; then the request keeps the memory:
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
    /// The bytes of `segments` in their order, at most 30 of them, to rank `to`: 16 GiB of one
    /// segment, 1 GiB of several. The CPU posts it
    /// unless [`on`](SendOp::on) says otherwise.
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

    /// The stream posts it.
    #[must_use]
    pub fn on(mut self, stream: &'a Stream) -> SendOp<'a> {
        self.on = On::Stream(stream, None);
        self
    }

    /// The stream posts it, and a CPU thread rings the NIC for it ([`Doorbell::CpuThread`]).
    #[must_use]
    pub fn by_cpu_thread(mut self, stream: &'a Stream) -> SendOp<'a> {
        self.on = On::Stream(stream, Some(Doorbell::CpuThread));
        self
    }

    /// Its length is not that of its segments.
    #[must_use]
    pub fn size(mut self, size: SizeSource<'a>) -> SendOp<'a> {
        self.size = size;
        self
    }

    /// A time limit of its own, in place of the context's.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> SendOp<'a> {
        self.timeout = Some(limit);
        self
    }
}

/// Whose message a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// That of one rank.
    Rank(u32),
    /// The first that comes, of whatever rank. The CPU matches it, in the background work: such a
    /// receive is not independent of the CPU and cannot be part of a graph.
    Any,
}

impl From<u32> for Source {
    fn from(rank: u32) -> Source {
        Source::Rank(rank)
    }
}

/// A message to be received.
#[derive(Clone, Copy, Debug)]
pub struct RecvOp<'a> {
    pub(crate) from: Source,
    pub(crate) tag: u32,
    pub(crate) segments: &'a [Slice],
    pub(crate) on: On<'a>,
    pub(crate) timeout: Option<Duration>,
}

impl<'a> RecvOp<'a> {
    /// A message from `from` into `segments` in their order, at most 30 of them: 16 GiB in one
    /// segment, 1 GiB in several. The CPU posts it
    /// unless [`on`](RecvOp::on) says otherwise.
    pub fn new(from: impl Into<Source>, tag: u32, segments: &'a [Slice]) -> RecvOp<'a> {
        RecvOp {
            from: from.into(),
            tag,
            segments,
            on: On::Cpu,
            timeout: None,
        }
    }

    /// The stream posts it: the memory may be written from when the stream gets there.
    #[must_use]
    pub fn on(mut self, stream: &'a Stream) -> RecvOp<'a> {
        self.on = On::Stream(stream, None);
        self
    }

    /// The stream posts it, and a CPU thread rings the NIC for it ([`Doorbell::CpuThread`]).
    #[must_use]
    pub fn by_cpu_thread(mut self, stream: &'a Stream) -> RecvOp<'a> {
        self.on = On::Stream(stream, Some(Doorbell::CpuThread));
        self
    }

    /// A time limit of its own, in place of the context's.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> RecvOp<'a> {
        self.timeout = Some(limit);
        self
    }
}
