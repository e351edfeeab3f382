//! [`SendOp`] and [`RecvOp`]: all options of a send or a receive, as the application gives them.

use std::ffi::CStr;
use std::time::Duration;

use gdsync::gpu::Word64;
use gdsync::rdma::Doorbell;
use gdsync::{Gpu, Stream};

use crate::error::{Error, Kind, Result};
use crate::path::uncaptured;
use crate::region::{Slice, Strided};
use crate::trace::Facts;

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

    /// The name of a call: by the CPU, or by a stream.
    #[inline]
    pub fn call(&self, cpu: &'static CStr, stream: &'static CStr) -> &'static CStr {
        match self {
            On::Cpu => cpu,
            On::Stream(..) => stream,
        }
    }

    /// Refuses a stream of another GPU, and a stream that is being captured.
    #[inline]
    pub fn check(&self, gpu: &Gpu, operation: &'static str) -> Result<()> {
        self.check_gpu(gpu, operation)?;
        self.stream()
            .map_or(Ok(()), |stream| uncaptured(stream, operation))
    }

    /// Refuses a stream of another GPU. Returns the stream if it is being captured.
    #[inline]
    pub fn captured(&self, gpu: &Gpu, operation: &'static str) -> Result<Option<&'a Stream>> {
        self.check_gpu(gpu, operation)?;
        match self.stream() {
            Some(stream) if stream.is_capturing()? => Ok(Some(stream)),
            _ => Ok(None),
        }
    }

    #[inline]
    fn check_gpu(&self, gpu: &Gpu, operation: &'static str) -> Result<()> {
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
        Ok(())
    }
}

/// The source of a message's length, for [`SendOp::size`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum SizeSource<'a> {
    /// The total length of the segments.
    #[default]
    Segments,
    /// The value of a word when the stream reaches the send; a kernel may have computed it. For a
    /// send by the CPU, its value when the send is posted. The message has one segment. The
    /// segment's length is the maximum length of the message and decides between eager and
    /// rendezvous. A longer length fails the send and, as `Truncated`, the receive; for a send by
    /// the CPU, the call that posts it returns `Invalid`.
    Word {
        /// The word with the length in bytes.
        len: &'a Word64,
        /// The word with the offset of the message in the segment, in bytes; `None`: 0.
        offset: Option<&'a Word64>,
    },
}

/// A send with all its options, for [`Context::post_send`](crate::Context::post_send) and
/// [`Context::prepare_send`](crate::Context::prepare_send).
///
/// ```
/// use std::time::Duration;
///
/// use mp::{RecvOp, SendOp, SizeSource, Source};
/// # use mp::{Context, bootstrap::Local, gdsync::{Gpu, gpu::MemoryKind}};
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
/// # let peer = 0; // this rank itself
///
/// let stream = ctx.gpu().stream()?;
/// let memory = ctx.alloc(MemoryKind::Device, 4096)?;
/// let length = ctx.alloc(MemoryKind::Device, 8)?.region().word64(0)?;
/// length.store(100)?; // or a kernel of the stream stores it
///
/// let into = [memory.slice(2048, 2048)?];
/// let recv = ctx.post_recv(&RecvOp::new(Source::Rank(peer), 7, &into).on(&stream))?;
///
/// let data = [memory.slice(0, 1024)?]; // the message has at most 1024 bytes
/// let size = SizeSource::Word { len: &length, offset: None };
/// let send = SendOp::new(peer, 7, &data).size(size).on(&stream).timeout(Duration::from_secs(5));
/// let send = ctx.post_send(&send)?;
///
/// recv.wait_on(&stream)?;
/// ctx.synchronize(&stream, Duration::from_secs(10))?;
/// assert_eq!(recv.wait(Duration::ZERO)?.len, 100);
/// send.wait(Duration::from_secs(10))?;
/// # Ok::<(), mp::Error>(())
/// ```
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
    /// Pieces that do not fit a list; then there are no segments.
    pub(crate) packed: Option<&'a Strided>,
    pub(crate) size: SizeSource<'a>,
    pub(crate) on: On<'a>,
    pub(crate) timeout: Option<Duration>,
    /// `None`: as the context says.
    pub(crate) zero_sm: Option<bool>,
}

impl SendOp<'_> {
    /// What observers of the call show.
    pub(crate) fn facts(&self) -> Facts {
        let bytes = self.segments.iter().map(|s| s.len() as u64).sum();
        Facts {
            peer: Some(self.to),
            tag: Some(self.tag),
            bytes: Some(self.packed.map_or(bytes, |pieces| pieces.len() as u64)),
            stream: self.on.stream().map(Stream::id),
        }
    }
}

impl RecvOp<'_> {
    /// What observers of the call show.
    pub(crate) fn facts(&self) -> Facts {
        let bytes = self.segments.iter().map(|s| s.len() as u64).sum();
        let peer = match self.from {
            Source::Rank(rank) => Some(rank),
            Source::Any => None,
        };
        Facts {
            peer,
            tag: Some(self.tag),
            bytes: Some(self.packed.map_or(bytes, |pieces| pieces.len() as u64)),
            stream: self.on.stream().map(Stream::id),
        }
    }
}

impl<'a> SendOp<'a> {
    /// A send of the bytes of `segments`, concatenated, to rank `to`, or to
    /// [`NULL_RANK`](crate::NULL_RANK), under `tag`. At most 30 segments; 0 bytes to 16 GiB in one
    /// segment, to 1 GiB in several. The CPU posts the send unless [`on`](SendOp::on) is called.
    pub fn new(to: u32, tag: u32, segments: &'a [Slice]) -> SendOp<'a> {
        SendOp {
            to,
            tag,
            segments,
            packed: None,
            size: SizeSource::Segments,
            on: On::Cpu,
            timeout: None,
            zero_sm: None,
        }
    }

    /// A send of strided pieces, as one message of 0 bytes to 1 GiB, otherwise as
    /// [`SendOp::new`].
    pub fn strided(to: u32, tag: u32, data: &'a Strided) -> SendOp<'a> {
        SendOp {
            packed: data.is_long().then_some(data),
            ..SendOp::new(to, tag, data.pieces())
        }
    }

    /// Posts on the stream: the memory is read when the stream reaches the send. See
    /// [`Context::isend_on`](crate::Context::isend_on).
    #[must_use]
    pub fn on(mut self, stream: &'a Stream) -> SendOp<'a> {
        self.on = On::Stream(stream, None);
        self
    }

    /// Posts on the stream, as [`on`](SendOp::on); a CPU thread writes the NIC's doorbell
    /// ([`Doorbell::CpuThread`]) when the stream reaches the send.
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

    /// Makes the send a zero-SM message (`true`), or not (`false`); default:
    /// [`Builder::zero_sm`](crate::Builder::zero_sm). See
    /// [zero-SM messages](crate::Context#zero-sm-messages).
    #[must_use]
    pub fn zero_sm(mut self, on: bool) -> SendOp<'a> {
        self.zero_sm = Some(on);
        self
    }

    /// Sets the timeout of this request, after which the peer is given up. Default: the context's
    /// ([`Builder::timeout`](crate::Builder::timeout)).
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> SendOp<'a> {
        self.timeout = Some(limit);
        self
    }
}

/// Rank, tag and the bytes of the message.
impl<'a> From<(u32, u32, &'a Slice)> for SendOp<'a> {
    fn from((to, tag, data): (u32, u32, &'a Slice)) -> SendOp<'a> {
        SendOp::new(to, tag, std::slice::from_ref(data))
    }
}

/// Rank, tag and the pieces of the message.
impl<'a> From<(u32, u32, &'a Strided)> for SendOp<'a> {
    fn from((to, tag, data): (u32, u32, &'a Strided)) -> SendOp<'a> {
        SendOp::strided(to, tag, data)
    }
}

/// The rank whose message a receive takes. A `u32` converts to [`Source::Rank`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A message of this rank, or no message of [`NULL_RANK`](crate::NULL_RANK).
    Rank(u32),
    /// The first message under the tag that arrives and that no other receive matches, from any
    /// rank. The CPU matches it, in the background work: the receive depends on the CPU. Receives
    /// under one tag match in the order in which they were posted.
    /// [`Done::peer`](crate::Done::peer) is the rank of the message.
    Any,
}

impl From<u32> for Source {
    fn from(rank: u32) -> Source {
        Source::Rank(rank)
    }
}

/// A receive with all its options, for [`Context::post_recv`](crate::Context::post_recv) and
/// [`Context::prepare_recv`](crate::Context::prepare_recv). [`SendOp`] has an example.
#[derive(Clone, Copy, Debug)]
pub struct RecvOp<'a> {
    pub(crate) from: Source,
    pub(crate) tag: u32,
    pub(crate) segments: &'a [Slice],
    /// Pieces that do not fit a list; then there are no segments.
    pub(crate) packed: Option<&'a Strided>,
    pub(crate) on: On<'a>,
    pub(crate) timeout: Option<Duration>,
    /// `None`: as the context says.
    pub(crate) zero_sm: Option<bool>,
}

impl<'a> RecvOp<'a> {
    /// A receive of a message from `from` under `tag` into `segments`, in their order. At most 30
    /// segments; 0 bytes to 16 GiB in one segment, to 1 GiB in several. The CPU posts the receive
    /// unless [`on`](RecvOp::on) is called.
    pub fn new(from: impl Into<Source>, tag: u32, segments: &'a [Slice]) -> RecvOp<'a> {
        RecvOp {
            from: from.into(),
            tag,
            segments,
            packed: None,
            on: On::Cpu,
            timeout: None,
            zero_sm: None,
        }
    }

    /// A receive of a message into strided pieces, in their order, of 0 bytes to 1 GiB, otherwise as
    /// [`RecvOp::new`].
    pub fn strided(from: impl Into<Source>, tag: u32, into: &'a Strided) -> RecvOp<'a> {
        RecvOp {
            packed: into.is_long().then_some(into),
            ..RecvOp::new(from, tag, into.pieces())
        }
    }

    /// Posts on the stream: the memory may be written from when the stream reaches the receive.
    #[must_use]
    pub fn on(mut self, stream: &'a Stream) -> RecvOp<'a> {
        self.on = On::Stream(stream, None);
        self
    }

    /// Posts on the stream, as [`on`](RecvOp::on); a CPU thread writes the NIC's doorbell
    /// ([`Doorbell::CpuThread`]) when the stream reaches the receive.
    #[must_use]
    pub fn by_cpu_thread(mut self, stream: &'a Stream) -> RecvOp<'a> {
        self.on = On::Stream(stream, Some(Doorbell::CpuThread));
        self
    }

    /// Makes the receive a zero-SM message (`true`), or not (`false`); default:
    /// [`Builder::zero_sm`](crate::Builder::zero_sm). See
    /// [zero-SM messages](crate::Context#zero-sm-messages).
    #[must_use]
    pub fn zero_sm(mut self, on: bool) -> RecvOp<'a> {
        self.zero_sm = Some(on);
        self
    }

    /// Sets the timeout of this request, from when it is posted, and anew from when a stream
    /// reaches the wait for it; after it the peer is given up. Default: the context's
    /// ([`Builder::timeout`](crate::Builder::timeout)) if a stream waits for the receive, else
    /// none. A receive from any rank fails alone.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> RecvOp<'a> {
        self.timeout = Some(limit);
        self
    }
}

/// Source, tag and the memory of the message.
impl<'a, S: Into<Source>> From<(S, u32, &'a Slice)> for RecvOp<'a> {
    fn from((from, tag, into): (S, u32, &'a Slice)) -> RecvOp<'a> {
        RecvOp::new(from, tag, std::slice::from_ref(into))
    }
}

/// Source, tag and the pieces of the message.
impl<'a, S: Into<Source>> From<(S, u32, &'a Strided)> for RecvOp<'a> {
    fn from((from, tag, into): (S, u32, &'a Strided)) -> RecvOp<'a> {
        RecvOp::strided(from, tag, into)
    }
}
