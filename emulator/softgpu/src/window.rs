//! The interface of a NIC, a device on the bus, to a GPU's memory or to pinned host memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Fault;
use crate::backing::Backing;
use crate::posted::Posted;
use crate::span::Span;

/// Memory for accesses of a device on the bus. It keeps the memory alive; clones share it.
///
/// Writes are *posted*: they return before they have arrived, and arrive in order. Reads and
/// atomics arrive after all earlier writes. With [weak memory](crate::Weak), writes into *device*
/// memory arrive late. Other writes, for example a completion in host memory, may then be observed
/// before them. A wait that flushes, [`Gpu::flush_remote_writes`](crate::Gpu::flush_remote_writes)
/// and a read by a NIC make them arrive. On a GPU that orders them
/// ([`Config::ordered_writes`](crate::Config)), writes into host memory are late too, and all
/// writes arrive in the order in which they were made.
#[derive(Clone, Debug)]
pub struct Window {
    memory: Arc<Backing>,
    span: Span,
    /// The path to weak memory.
    posted: Option<Arc<Posted>>,
}

impl Window {
    pub(crate) fn new(memory: Arc<Backing>, posted: Option<&Arc<Posted>>) -> Window {
        Window {
            span: memory.span(),
            posted: posted.filter(|posted| posted.carries(&memory)).cloned(),
            memory,
        }
    }

    /// The length in bytes.
    // A window is never empty, as memory is not.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// The memory, after all earlier writes have arrived.
    #[inline]
    fn arrived(&self) -> &Span {
        if let Some(posted) = &self.posted {
            posted.drain();
        }
        &self.span
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// The bytes are out of bounds.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.arrived().read(offset, data)
    }

    /// Writes bytes (posted), ascending.
    ///
    /// # Errors
    /// The bytes are out of bounds; nothing was written.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Fault> {
        match &self.posted {
            None => self.span.write(offset, data),
            Some(posted) => {
                self.span.at(offset, data.len())?;
                posted.write(&self.memory, offset, data);
                Ok(())
            }
        }
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn load32(&self, offset: u64) -> Result<u32, Fault> {
        Ok(self.arrived().word32(offset)?.load(Ordering::Acquire))
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn load64(&self, offset: u64) -> Result<u64, Fault> {
        Ok(self.arrived().word64(offset)?.load(Ordering::Acquire))
    }

    /// Stores a word (posted) with release ordering. An acquire load that observes the word also
    /// observes all earlier writes through windows of the same memory kind.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn store32(&self, offset: u64, value: u32) -> Result<(), Fault> {
        let word = self.span.word32(offset)?;
        match &self.posted {
            None => word.store(value, Ordering::Release),
            Some(posted) => posted.write32(&self.memory, offset, value),
        }
        Ok(())
    }

    /// Exchanges a word; returns the old value.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn swap64(&self, offset: u64, value: u64) -> Result<u64, Fault> {
        Ok(self.arrived().word64(offset)?.swap(value, Ordering::AcqRel))
    }

    /// Stores `new` if the word is `current`; returns the old value.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, Fault> {
        let word = self.arrived().word64(offset)?;
        let was = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(was.unwrap_or_else(|other| other))
    }

    /// Adds to a word, modulo 2^64; returns the old value.
    ///
    /// # Errors
    /// The word is out of bounds or not aligned.
    pub fn fetch_add64(&self, offset: u64, value: u64) -> Result<u64, Fault> {
        Ok(self
            .arrived()
            .word64(offset)?
            .fetch_add(value, Ordering::AcqRel))
    }
}
