//! Memory that messages are sent from and received into.
//!
//! [`Memory`] is a region of the GPU's or of the host, registered with the context's NIC;
//! [`Slice`] some bytes of it. Both are handles: what is in flight keeps the memory alive, so
//! nothing need be borrowed. Bytes are copied in and out.

use std::fmt;
use std::sync::Arc;

use gdsync::gpu::Region;
use gdsync::rdma::Mr;

use crate::error::{Error, Kind, Result};

/// Registered memory. Clones are the same memory.
#[derive(Clone)]
pub struct Memory(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    mr: Mr,
    /// The application's buffer behind it, given back by [`Memory::into_vec`]. After `mr`: the
    /// registration ends first.
    owner: Option<Vec<u8>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.region())
    }
}

impl Memory {
    pub(crate) fn new(mr: Mr, owner: Option<Vec<u8>>) -> Memory {
        Memory(Arc::new(Inner { mr, owner }))
    }

    /// The memory itself.
    pub fn region(&self) -> &Region {
        self.0.mr.region()
    }

    /// Its registration.
    pub fn mr(&self) -> &Mr {
        &self.0.mr
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.region().len()
    }

    /// Never: memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The `len` bytes at `offset`; `len` may be 0.
    ///
    /// # Errors
    /// `Invalid` if they do not lie in the memory.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Slice> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let what = format!("{len} bytes at {offset} of {self:?}");
            return Err(Error::new("carve slice", Kind::Invalid, what).with_limit(self.len()));
        }
        Ok(Slice {
            memory: self.clone(),
            offset,
            len,
        })
    }

    /// All of it.
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

    /// Gives the buffer back that [`Context::adopt_vec`](crate::Context::adopt_vec) took.
    ///
    /// # Errors
    /// The memory itself, while other handles, registrations or messages in flight use it, or if
    /// it was not made of a buffer.
    pub fn into_vec(self) -> Result<Vec<u8>, Memory> {
        if self.0.owner.is_none() {
            return Err(self);
        }
        let inner = Arc::try_unwrap(self.0).map_err(Memory)?;
        match inner.mr.try_close() {
            Ok(()) => Ok(inner.owner.unwrap_or_default()),
            Err(mr) => Err(Memory(Arc::new(Inner { mr, ..inner }))),
        }
    }
}

/// Some bytes of a [`Memory`].
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
    /// The memory it lies in.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where it begins, in bytes.
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

    /// Its address, as the GPU and the NIC see it.
    pub(crate) fn addr(&self) -> u64 {
        self.memory.region().addr().0 + self.offset as u64
    }
}
