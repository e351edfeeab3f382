//! What a device on the bus, a NIC, sees of a GPU's memory or of pinned host memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::Fault;
use crate::backing::Backing;
use crate::posted::Posted;
use crate::span::Span;

/// Memory as a device on the bus sees it; keeps the memory alive, clones share.
///
/// Writes are *posted*: they return before they have arrived, and arrive in order. Reads and
/// atomics arrive after the writes before them. With [weak memory](crate::Weak), writes into
/// *device* memory arrive late, and what else can be seen, such as a completion in host
/// memory, may be seen before; a wait that flushes, or
/// [`Gpu::flush_remote_writes`](crate::Gpu::flush_remote_writes), lets them arrive. So does a read by a NIC. Where the GPU orders them
/// ([`Config::ordered_writes`](crate::Config)), writes into host memory are late too, and all
/// arrive in the order in which they were made.
#[derive(Clone, Debug)]
pub struct Window {
    memory: Arc<Backing>,
    span: Span,
    /// The way to memory that is weak.
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

    /// The memory, once what was written before has arrived.
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
    /// They lie outside of the window.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), Fault> {
        self.arrived().read(offset, data)
    }

    /// Writes bytes (posted), ascending.
    ///
    /// # Errors
    /// They lie outside of the window; nothing was written.
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
    /// It lies outside of the window or is not aligned.
    pub fn load32(&self, offset: u64) -> Result<u32, Fault> {
        Ok(self.arrived().word32(offset)?.load(Ordering::Acquire))
    }

    /// Loads a word with acquire ordering.
    ///
    /// # Errors
    /// It lies outside of the window or is not aligned.
    pub fn load64(&self, offset: u64) -> Result<u64, Fault> {
        Ok(self.arrived().word64(offset)?.load(Ordering::Acquire))
    }

    /// Stores a word (posted) with release ordering: whoever sees it with an acquire load
    /// sees what was written before it through windows of the same memory kind.
    ///
    /// # Errors
    /// It lies outside of the window or is not aligned.
    pub fn store32(&self, offset: u64, value: u32) -> Result<(), Fault> {
        let word = self.span.word32(offset)?;
        match &self.posted {
            None => word.store(value, Ordering::Release),
            Some(posted) => posted.write32(&self.memory, offset, value),
        }
        Ok(())
    }

    /// Exchanges a word; returns what was there.
    ///
    /// # Errors
    /// It lies outside of the window or is not aligned.
    pub fn swap64(&self, offset: u64, value: u64) -> Result<u64, Fault> {
        Ok(self.arrived().word64(offset)?.swap(value, Ordering::AcqRel))
    }

    /// Stores `new` if the word is `current`; returns what was there.
    ///
    /// # Errors
    /// It lies outside of the window or is not aligned.
    pub fn compare_swap64(&self, offset: u64, current: u64, new: u64) -> Result<u64, Fault> {
        let word = self.arrived().word64(offset)?;
        let was = word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(was.unwrap_or_else(|other| other))
    }

    /// Adds to a word, modulo 2^64; returns what was there.
    ///
    /// # Errors
    /// It lies outside of the window or is not aligned.
    pub fn fetch_add64(&self, offset: u64, value: u64) -> Result<u64, Fault> {
        Ok(self
            .arrived()
            .word64(offset)?
            .fetch_add(value, Ordering::AcqRel))
    }
}
