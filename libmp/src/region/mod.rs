//! Registered memory for messages.
//!
//! [`Memory`] is a region of GPU or host memory that is registered with the context's NIC;
//! [`Slice`] is a range of its bytes. Both are handles: a message in flight keeps the memory alive,
//! so no borrow is needed. Bytes are copied in and out.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gdsync::gpu::Region;

use crate::error::{Error, Kind, Result};
use crate::path::{Keys, Piece};

/// Registered memory. Clones refer to the same memory.
#[derive(Clone)]
pub struct Memory(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    keys: Keys,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.region())
    }
}

impl Memory {
    pub(crate) fn new(keys: Keys) -> Memory {
        Memory(Arc::new(Inner { keys }))
    }

    /// The memory itself.
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

    /// The `len` bytes at `offset`, in bytes; `len` may be 0.
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

    /// Copies bytes out.
    ///
    /// # Errors
    /// As [`Region::read`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        Ok(self.region().read(offset, into)?)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`Region::write`].
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
    /// Each error returns the memory as well: `Timeout`, naming what still uses it, or `Invalid` if
    /// the memory was not made from a buffer.
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

/// A range of bytes of a [`Memory`].
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

    /// Its address, which is the same for the GPU and the NIC.
    pub(crate) fn addr(&self) -> u64 {
        self.memory.region().addr().0 + self.offset as u64
    }
}
