//! The descriptors of a list.

use std::time::Duration;

use crate::gpu::{Condition, DevicePtr, Region, Span, Word32, Word64};
use crate::memop::Width;
use crate::rdma::verbs::{Completion, ReceiveRequest, SendRequest};

/// One action of a stream: an element of the list that [`Qp::post_on`](crate::rdma::Qp::post_on) or
/// [`post_on`](crate::rdma::post_on) enqueues. The stream executes the actions of a list in order,
/// after all earlier work of the stream.
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::gpu::{Condition, MemoryKind};
/// use gdsync::rdma::{Descriptor, Work};
/// # use gdsync::rdma::{Access, Device, QpConfig};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// # let config = QpConfig::default();
/// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// # a.connect(&b.address())?;
/// # b.connect(&a.address())?;
/// # let stream = gpu.stream()?;
/// let memory = pd.register(&gpu.alloc(MemoryKind::Pinned, 64)?, Access::ALL)?;
/// let (ready, sent) = (memory.region().word32(32)?, memory.region().word32(36)?);
/// let recv = b.prepare_receive(&[memory.sge(16, 16)])?;
/// b.post_receive(recv)?;
/// let send = a.prepare(&Work::send(&[memory.sge(0, 16)]).signaled())?;
/// let list = [
///     Descriptor::wait_value(&ready, Condition::Geq, 1), // until the CPU or a kernel stores 1
///     Descriptor::Send(send),
///     Descriptor::wait(send).within(Duration::from_secs(5)),
///     Descriptor::write_value(&sent, 1),
/// ];
/// a.post_on(&stream, &list)?;
/// ready.store(1)?;
/// assert!(stream.synchronize(Duration::from_secs(10))?);
/// assert_eq!((sent.load()?, a.error()), (1, None));
/// # Ok(())
/// # }
/// ```
///
/// A list borrows the words, spans and bytes that it names until it is posted:
///
/// ```compile_fail,E0505
/// # use gdsync::gpu::Word64;
/// # use gdsync::rdma::{Descriptor, Qp};
/// fn mark(qp: &mut Qp, stream: &gdsync::Stream, word: Word64) -> gdsync::Result<()> {
///     let list = [Descriptor::write_value(&word, 1)];
///     drop(word); // `list` borrows it
///     qp.post_on(stream, &list)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Descriptor<'a> {
    /// Post a prepared send: write the doorbell record and the doorbell, fenced against all earlier
    /// writes of the stream. Sends that follow each other in a list share one doorbell.
    Send(SendRequest),
    /// Post a prepared receive: write the doorbell record.
    Receive(ReceiveRequest),
    /// Wait until a request has completed with success: [`Descriptor::wait`]. If it fails, the
    /// watcher stores status and error word first, and then releases the stream. The request must
    /// be posted, and signaled if it is a send.
    Wait {
        /// The completion of the request.
        completion: Completion,
        /// Whether the stream's later work sees the NIC writes to GPU memory that precede the
        /// completion. Required for receives and READs into device memory.
        /// [`Device::consistency`](crate::rdma::Device::consistency) returns the means, which
        /// determines the cost. Refused with `Unsupported` if no means exists. If the flush fails,
        /// all queue pairs of the device fail with
        /// [`Status::NOT_VISIBLE`](crate::Status::NOT_VISIBLE).
        flush: bool,
        /// The time that the stream may wait before the queue pair is put in error with
        /// [`Status::TIMEOUT`](crate::Status::TIMEOUT). It starts when the stream arrives at the
        /// wait; with several limited waits on one completion queue in one list, when the stream
        /// arrives at the first.
        timeout: Option<Duration>,
    },
    /// Wait until a word satisfies a condition ([`Descriptor::wait_value`]).
    #[doc(hidden)]
    WaitValue {
        /// The word, of either width.
        word: WordRef<'a>,
        /// The comparison.
        condition: Condition,
        /// The value to compare with.
        value: u64,
        /// Whether earlier writes of devices are visible after the wait.
        flush: bool,
    },
    /// Wait until a count has reached a value ([`Descriptor::wait_count`]).
    #[doc(hidden)]
    WaitCount {
        /// The word with the count.
        word: &'a Word64,
        /// The value to reach.
        count: u64,
        /// Whether earlier writes of devices are visible after the wait.
        flush: bool,
    },
    /// Store into a word, after all earlier writes of the stream: [`Descriptor::write_value`].
    #[doc(hidden)]
    WriteValue {
        /// The word, of either width.
        word: WordRef<'a>,
        /// The value.
        value: u64,
    },
    /// Store bytes. `data` is copied when the list is posted. Address and length are multiples of 4
    /// bytes. The bytes become visible in any order among themselves, and before a later
    /// [`Descriptor::write_value`] or doorbell of the stream.
    WriteMemory {
        /// The destination.
        to: &'a Span,
        /// The bytes, as many as the length of `to`.
        data: &'a [u8],
    },
    /// Make earlier writes of devices to GPU memory visible to the stream's later work.
    Flush,
    /// Not an action of the stream, but a statement of the caller: work that the caller enqueues
    /// after this list stores `value` into `word`. When the word has reached the value (compared
    /// cyclically), the stream has passed the waits for words in this list, and the library no
    /// longer counts it as waiting. Without this statement it counts as waiting until it is idle.
    /// In a list without waits, the list or later work stores the value, and the statement is about all
    /// earlier waits of the stream.
    PassedBy {
        /// The word, in any memory of the GPU, as for
        /// [`Stream::launch_waiting`](crate::gpu::Stream::launch_waiting).
        word: &'a Word64,
        /// The value; a cyclically greater value counts too.
        value: u64,
    },
}

impl<'a> Descriptor<'a> {
    /// A wait until a request has completed with success, without a flush and without a time limit:
    /// for sends, and for data in host memory.
    pub fn wait(completion: impl Into<Completion>) -> Self {
        Descriptor::Wait {
            completion: completion.into(),
            flush: false,
            timeout: None,
        }
    }

    /// A wait as [`Descriptor::wait`], with a flush: the NIC writes to GPU memory for this request
    /// are visible after the wait, by the means that
    /// [`Device::consistency`](crate::rdma::Device::consistency) returns.
    pub fn wait_flushed(completion: impl Into<Completion>) -> Self {
        Descriptor::Wait {
            completion: completion.into(),
            flush: true,
            timeout: None,
        }
    }

    /// A wait until a word satisfies `condition`, compared with `value`: a `u32` for a [`Word32`],
    /// a `u64` for a [`Word64`]. It has no time limit: if no store satisfies it, the stream waits
    /// until the process ends.
    pub fn wait_value<W: Word>(word: &'a W, condition: Condition, value: W::Value) -> Self {
        Descriptor::WaitValue {
            word: word.borrowed(),
            condition,
            value: value.into(),
            flush: false,
        }
    }

    /// A wait until a count has reached `count`. The word and `count` are below 2^63, which no
    /// count of events that starts at a low value reaches. If so, this is the wait with
    /// [`Condition::Geq`], and a memory operation also on HIP, where a cyclic comparison takes a
    /// kernel. A word with its highest bit set satisfies it or not, depending on the GPU.
    pub fn wait_count(word: &'a Word64, count: u64) -> Self {
        Descriptor::WaitCount {
            word,
            count,
            flush: false,
        }
    }

    /// A store into a word, after all earlier writes of the stream: of a `u32` into a [`Word32`],
    /// of a `u64` into a [`Word64`].
    pub fn write_value<W: Word>(word: &'a W, value: W::Value) -> Self {
        Descriptor::WriteValue {
            word: word.borrowed(),
            value: value.into(),
        }
    }

    /// Sets whether earlier writes of devices are visible after a wait; no effect on other
    /// descriptors.
    #[must_use]
    pub fn flush(mut self, on: bool) -> Self {
        if let Descriptor::Wait { flush, .. }
        | Descriptor::WaitValue { flush, .. }
        | Descriptor::WaitCount { flush, .. } = &mut self
        {
            *flush = on;
        }
        self
    }

    /// Sets the time limit of a wait for a completion; no effect on other descriptors.
    #[must_use]
    pub fn within(mut self, limit: impl Into<Option<Duration>>) -> Self {
        if let Descriptor::Wait { timeout, .. } = &mut self {
            *timeout = limit.into();
        }
        self
    }
}

impl Descriptor<'_> {
    /// The application's memory that the descriptor names.
    pub(super) fn region(&self) -> Option<&Region> {
        match self {
            Descriptor::WaitValue { word, .. } | Descriptor::WriteValue { word, .. } => {
                Some(word.region())
            }
            Descriptor::PassedBy { word, .. } | Descriptor::WaitCount { word, .. } => {
                Some(word.region())
            }
            Descriptor::WriteMemory { to, .. } => Some(to.region()),
            _ => None,
        }
    }
}

/// A reference to a word of either width, as [`Descriptor::WaitValue`] and
/// [`Descriptor::WriteValue`] contain it. [`Word::borrowed`] makes it.
#[derive(Clone, Copy, Debug)]
pub enum WordRef<'a> {
    /// A word of 32 bits.
    Narrow(&'a Word32),
    /// A word of 64 bits.
    Wide(&'a Word64),
}

impl<'a> WordRef<'a> {
    fn region(&self) -> &'a Region {
        match self {
            WordRef::Narrow(word) => word.region(),
            WordRef::Wide(word) => word.region(),
        }
    }

    /// Its width and its address on the GPU.
    pub(super) fn at(&self) -> (Width, DevicePtr) {
        match self {
            WordRef::Narrow(word) => (Width::Bits32, word.addr()),
            WordRef::Wide(word) => (Width::Bits64, word.addr()),
        }
    }
}

/// A word that a stream can wait for and store into: [`Word32`] or [`Word64`]. The argument of
/// [`Descriptor::wait_value`] and [`Descriptor::write_value`].
pub trait Word {
    /// The type of its value: `u32` or `u64`.
    type Value: Into<u64>;

    /// A reference to the word, independent of the width.
    fn borrowed(&self) -> WordRef<'_>;
}

impl Word for Word32 {
    type Value = u32;

    fn borrowed(&self) -> WordRef<'_> {
        WordRef::Narrow(self)
    }
}

impl Word for Word64 {
    type Value = u64;

    fn borrowed(&self) -> WordRef<'_> {
        WordRef::Wide(self)
    }
}
