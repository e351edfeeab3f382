//! What a list consists of.

use std::time::Duration;

use crate::gpu::{Condition, DevicePtr, Region, Span, Word32, Word64};
use crate::memop::Width;
use crate::rdma::verbs::{Completion, ReceiveRequest, SendRequest};

/// One thing for a stream to do.
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
    /// Ring for a prepared send.
    Send(SendRequest),
    /// Make a prepared receive available.
    Receive(ReceiveRequest),
    /// Wait until a request has completed with success.
    Wait {
        /// The request.
        completion: Completion,
        /// What the NIC wrote to GPU memory before it wrote the completion is visible to what the
        /// stream does next. Needed for receives and READs into device memory; how it is kept, and
        /// what it costs, [`Device::consistency`](crate::rdma::Device::consistency) tells. Refused as
        /// `Unsupported` where nothing can. If the flush itself fails, all queue pairs of the device
        /// fail with [`Status::NOT_VISIBLE`](crate::Status::NOT_VISIBLE).
        flush: bool,
        /// How long the stream may wait before the queue pair is put in error with
        /// [`Status::TIMEOUT`](crate::Status::TIMEOUT). Counted from when the stream arrives there; of several waits with
        /// limits on one completion queue in one list, from when it arrives at the first.
        timeout: Option<Duration>,
    },
    /// Wait until a word passes: [`Descriptor::wait_value`].
    #[doc(hidden)]
    WaitValue {
        /// The word, of either width.
        word: WordRef<'a>,
        /// How it is compared.
        condition: Condition,
        /// With what.
        value: u64,
        /// Whether what devices wrote before is visible then.
        flush: bool,
    },
    /// Store into a word, after everything the stream wrote before: [`Descriptor::write_value`].
    #[doc(hidden)]
    WriteValue {
        /// The word, of either width.
        word: WordRef<'a>,
        /// What.
        value: u64,
    },
    /// Store bytes that are captured now. Address and length are multiples of 4.
    WriteMemory {
        /// Where.
        to: &'a Span,
        /// What; as long as `to`.
        data: &'a [u8],
    },
    /// What devices wrote to GPU memory so far is visible to what the stream does next.
    Flush,
    /// Does nothing on the stream. Tells the library that what the caller enqueues behind this list
    /// brings `word`, cyclically, to `value`: then the stream is known to have passed the waits
    /// for words in this list. Without, that shows only when the stream has nothing left to do,
    /// and until then it counts among those that wait.
    PassedBy {
        /// The word.
        word: &'a Word64,
        /// The value, or one cyclically greater.
        value: u64,
    },
}

impl<'a> Descriptor<'a> {
    /// A wait until a request has completed with success.
    pub fn wait(completion: impl Into<Completion>) -> Self {
        Descriptor::Wait {
            completion: completion.into(),
            flush: false,
            timeout: None,
        }
    }

    /// As [`Descriptor::wait`], and what the NIC wrote to GPU memory for it is visible then, by
    /// the means that [`Device::consistency`](crate::rdma::Device::consistency) names.
    pub fn wait_flushed(completion: impl Into<Completion>) -> Self {
        Descriptor::Wait {
            completion: completion.into(),
            flush: true,
            timeout: None,
        }
    }

    /// A wait until a word passes, compared with `value`: a `u32` for a [`Word32`], a `u64` for a
    /// [`Word64`].
    pub fn wait_value<W: Word>(word: &'a W, condition: Condition, value: W::Value) -> Self {
        Descriptor::WaitValue {
            word: word.borrowed(),
            condition,
            value: value.into(),
            flush: false,
        }
    }

    /// A store into a word, after everything the stream wrote before: of a `u32` into a [`Word32`],
    /// of a `u64` into a [`Word64`].
    pub fn write_value<W: Word>(word: &'a W, value: W::Value) -> Self {
        Descriptor::WriteValue {
            word: word.borrowed(),
            value: value.into(),
        }
    }

    /// Whether what devices wrote before is visible once a wait has passed; of no effect on
    /// anything else.
    #[must_use]
    pub fn flush(mut self, on: bool) -> Self {
        if let Descriptor::Wait { flush, .. } | Descriptor::WaitValue { flush, .. } = &mut self {
            *flush = on;
        }
        self
    }

    /// Limits a wait for a completion to so long; of no effect on anything else.
    #[must_use]
    pub fn within(mut self, limit: impl Into<Option<Duration>>) -> Self {
        if let Descriptor::Wait { timeout, .. } = &mut self {
            *timeout = limit.into();
        }
        self
    }
}

impl Descriptor<'_> {
    /// The memory of the application's that it names.
    pub(super) fn region(&self) -> Option<&Region> {
        match self {
            Descriptor::WaitValue { word, .. } | Descriptor::WriteValue { word, .. } => {
                Some(word.region())
            }
            Descriptor::PassedBy { word, .. } => Some(word.region()),
            Descriptor::WriteMemory { to, .. } => Some(to.region()),
            _ => None,
        }
    }
}

/// A word of either width.
#[derive(Clone, Copy, Debug)]
pub enum WordRef<'a> {
    /// Of 32 bits.
    Narrow(&'a Word32),
    /// Of 64 bits.
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

/// What a list waits for and stores into.
pub trait Word {
    /// What it holds.
    type Value: Into<u64>;

    /// The word, whatever its width.
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
