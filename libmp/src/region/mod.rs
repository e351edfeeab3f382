//! Registered memory for messages: [`Memory`] and [`Slice`].
//!
//! [`Memory`] is a region of GPU or host memory that is registered with the context's NIC;
//! [`Slice`] is a range of its bytes. Both are handles: a message in flight keeps the memory alive,
//! so no borrow is needed. Bytes are copied in and out; `typed` has both as elements of a type,
//! and [`Strided`] pieces at equal distances.

mod strided;
mod typed;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gdsync::gpu::Region;

use crate::error::{Error, Kind, Result};
use crate::path::{Keys, MOST_BYTES, Piece, Span};

pub use strided::Strided;

/// GPU or host memory that is registered with the NIC of a context, for messages.
///
/// [`Context::alloc`](crate::Context::alloc) allocates it;
/// [`register`](crate::Context::register), [`adopt_vec`](crate::Context::adopt_vec) and related
/// calls register memory that exists. Clones refer to the same memory. A message in flight holds
/// the memory, so a handle may be dropped at any time.
///
/// ```
/// # use mp::{Context, bootstrap::Local, gdsync::Gpu};
/// use mp::gdsync::gpu::MemoryKind;
/// # let alone = Local::ranks(1).remove(0);
/// # let ctx = Context::builder().bootstrap(alone).gpu(&Gpu::soft()?).build()?;
///
/// let memory = ctx.alloc(MemoryKind::Device, 4096)?; // zeroed
/// memory.write(1024, b"data")?; // copied by the CPU or a copy engine, by no stream
/// let slice = memory.slice(1024, 4)?; // what sends and receives take
/// assert_eq!((slice.offset(), slice.len()), (1024, 4));
///
/// let mut bytes = [0; 5];
/// memory.read(1024, &mut bytes)?;
/// assert_eq!(&bytes, b"data\0");
/// # Ok::<(), mp::Error>(())
/// ```
#[derive(Clone)]
pub struct Memory(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    keys: Keys,
    /// The identifier of the stream on which a kernel was enqueued for a call that was refused; or 0. The kernel
    /// may write to it until it is released. Relaxed: the lock of the state orders the accesses.
    stray: AtomicU64,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.region())
    }
}

impl Memory {
    pub(crate) fn new(keys: Keys) -> Memory {
        let stray = AtomicU64::new(0);
        Memory(Arc::new(Inner { keys, stray }))
    }

    /// Notes that a kernel that was enqueued on a stream for a call that was refused may write to this memory. From
    /// then on only that stream packs into it, and it is not cached. gdsync keeps what is released until streams
    /// have run the work enqueued by then.
    #[cold]
    pub(crate) fn set_stray(&self, stream: u64) {
        self.0.stray.store(stream, Ordering::Relaxed);
    }

    /// The stream of [`Memory::set_stray`].
    pub(crate) fn stray(&self) -> Option<u64> {
        Some(self.0.stray.load(Ordering::Relaxed)).filter(|stream| *stream != 0)
    }

    /// The region of gdsync, for kernels and stream operations: its GPU address, its words.
    pub fn region(&self) -> &Region {
        self.0.keys.region()
    }

    /// The keys by which peers address it.
    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.region().len()
    }

    /// Always `false`: memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A slice of `len` bytes from byte `offset` on; `len` may be 0, and any alignment
    /// is valid.
    ///
    /// # Errors
    /// `Invalid` if the range exceeds the memory.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let what = format!("{len} bytes at {offset} exceed {self:?}");
            let error = Error::new("slice memory", Kind::Invalid, what);
            return Err(error.with_limit(self.len(), "bytes"));
        }
        Ok(Slice {
            memory: self.clone(),
            offset,
            len,
        })
    }

    /// A slice of all bytes.
    pub fn all(&self) -> Slice {
        Slice {
            memory: self.clone(),
            offset: 0,
            len: self.len(),
        }
    }

    /// Copies the bytes from byte `offset` on into `into`: by the CPU if it can access the memory,
    /// else by a copy engine. The copy is done when the call returns, and no stream is ordered with
    /// it: wait for the streams and the messages that write the memory first.
    ///
    /// # Errors
    /// `Invalid` if the range exceeds the memory; `System` or `Gdsync(DeviceLost)` if the copy
    /// fails.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        Ok(self.region().read(offset, into)?)
    }

    /// Copies `from` to the memory, from byte `offset` on: by the CPU or a copy engine, as
    /// [`read`](Memory::read). Work that is enqueued on a stream after the call finds the bytes.
    ///
    /// # Errors
    /// As [`read`](Memory::read).
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        Ok(self.region().write(offset, from)?)
    }

    /// Returns the buffer that [`Context::adopt_vec`](crate::Context::adopt_vec) took, once nothing
    /// else can access it. Waits, at most `limit`, until this is the last handle on the memory, its
    /// registration and its region, no message in flight uses it, and every stream of the GPU has
    /// executed what was enqueued by then. Requests release the memory in the background work: with
    /// `Progress::Manual`, call this with short limits and call
    /// [`Context::progress`](crate::Context::progress) in between.
    ///
    /// # Errors
    /// Each error returns the memory as well: `Timeout` after `limit`, naming what still uses it;
    /// or `Invalid` if the memory was not made from a buffer.
    pub fn into_vec(self, limit: Duration) -> Result<Vec<u8>, (Memory, Error)> {
        let host = Arc::clone(self.region().gpu().host());
        let deadline = host.now() + limit;
        host.wait_until(Some(deadline), &mut || Arc::strong_count(&self.0) == 1);
        let inner = Arc::try_unwrap(self.0).map_err(|inner| {
            let others = Arc::strong_count(&inner).saturating_sub(1);
            let memory = Memory(inner);
            let what = format!(
                "{others} other handles or messages in flight hold {memory:?}; drop the handles \
                 and wait for the messages"
            );
            (memory, Error::new("return buffer", Kind::Timeout, what))
        })?;
        let left = deadline.since(host.now());
        let taken = inner.keys.into_vec(left);
        taken.map_err(|(keys, e)| (Memory::new(keys), e))
    }
}

/// A range of bytes of a [`Memory`]: what a message is sent from or received into.
///
/// It holds the memory; no borrow is needed. [`Memory::slice`] and [`Memory::all`] make one.
#[derive(Clone)]
pub struct Slice {
    memory: Memory,
    offset: usize,
    len: usize,
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Slice {
            memory,
            offset,
            len,
        } = self;
        write!(f, "{len} bytes at {offset} of {memory:?}")
    }
}

impl Slice {
    /// The memory that contains the slice.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of handles on its memory, with the one that the slice has.
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.memory.0)
    }

    /// The offset of the first byte in the memory, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes, as the source of a put.
    #[inline]
    pub(crate) fn piece(&self) -> Piece<'_> {
        self.memory.keys().piece(self.offset, self.len)
    }

    /// Its first `len` bytes as pieces that one operation each transfers to or from `span`; one
    /// empty piece if there are none.
    pub(crate) fn chunks(&self, len: u64, span: Span) -> impl Iterator<Item = (Piece<'_>, Span)> {
        let keys = self.memory.keys();
        chunks(len).map(move |(at, bytes)| {
            let piece = keys.piece(self.offset + at as usize, bytes as usize);
            (piece, span.behind(at))
        })
    }

    /// Its address, which is the same for the GPU and the NIC.
    pub(crate) fn addr(&self) -> u64 {
        self.memory.region().addr().0 + self.offset as u64
    }
}

/// The offsets and lengths of the parts of `len` bytes that one operation each transfers; at least
/// one.
fn chunks(len: u64) -> impl Iterator<Item = (u64, u64)> {
    let offsets = (0..len.div_ceil(MOST_BYTES).max(1)).map(|i| i * MOST_BYTES);
    offsets.map(move |at| (at, MOST_BYTES.min(len - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_a_long_message_without_gap_or_overlap() {
        let whole = [
            (0, MOST_BYTES),
            (MOST_BYTES, MOST_BYTES),
            (2 * MOST_BYTES, 5),
        ];
        assert!(chunks(2 * MOST_BYTES + 5).eq(whole));
        assert!(chunks(MOST_BYTES).eq([(0, MOST_BYTES)]));
        assert!(chunks(0).eq([(0, 0)]));
    }
}
