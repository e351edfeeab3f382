//! The memory interface of a stream for the device functions of its kernels: strong, or delayed by
//! a store buffer.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Core;
use crate::kernel::StoreHook;
use crate::span;
use crate::store_buffer::StoreBuffer;

/// Memory and clock of a stream.
pub(crate) struct StreamMemory {
    core: Arc<Core>,
    /// Stores that are not yet visible to others; `None`: memory is strong. Only the engine's
    /// thread takes the lock.
    weak: Option<Mutex<StoreBuffer>>,
    /// The time of the step in progress; written and read by the engine's thread alone.
    now_ns: AtomicU64,
}

impl StreamMemory {
    pub(crate) fn new(core: Arc<Core>, weak: Option<StoreBuffer>) -> StreamMemory {
        StreamMemory {
            core,
            weak: weak.map(Mutex::new),
            now_ns: AtomicU64::new(0),
        }
    }

    /// The stores that are not yet visible to others, if memory is weak.
    #[inline]
    pub(crate) fn weak(&self) -> Option<MutexGuard<'_, StoreBuffer>> {
        let buffer = self.weak.as_ref()?;
        Some(buffer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_now(&self, ns: u64) {
        self.now_ns.store(ns, Ordering::Relaxed);
    }

    /// The buffer, if memory is weak, and the engine's address of the memory that kernels address
    /// by `ptr`. Stores to memory that is not in the GPU's table are never held back.
    fn held_back(&self, ptr: u64, len: usize) -> Option<(MutexGuard<'_, StoreBuffer>, *mut u8)> {
        let buffer = self.weak()?;
        Some((buffer, self.core.table.alias(ptr, len)?))
    }
}

impl StoreHook for StreamMemory {
    unsafe fn store(&self, ptr: *mut u8, value: u64, wide: bool, whole: bool) {
        match self.held_back(ptr as u64, if wide { 8 } else { 4 }) {
            Some((mut buffer, alias)) => {
                let tear = wide && !whole && !buffer.just_fenced();
                // SAFETY: the alias is the same memory and is within a live allocation, which is
                // not unmapped before this stream's launch has retired with an empty buffer.
                unsafe { buffer.store_word(alias, value, wide, tear) };
            }
            // SAFETY: the caller's promise.
            None => unsafe { span::store(ptr, value, wide, Ordering::Relaxed) },
        }
    }

    unsafe fn load(&self, ptr: *const u8, wide: bool) -> u64 {
        match self.held_back(ptr as u64, if wide { 8 } else { 4 }) {
            // SAFETY: the alias is the same memory, as aligned as the pointer.
            Some((buffer, alias)) => unsafe { buffer.load(alias, wide) },
            // SAFETY: the caller's promise.
            None => unsafe { span::load(ptr, wide) },
        }
    }

    fn settle(&self, ptr: *const u8, len: usize) {
        if let Some((mut buffer, alias)) = self.held_back(ptr as u64, len) {
            buffer.settle(alias, len);
        }
    }

    fn fence(&self) {
        if let Some(mut buffer) = self.weak() {
            buffer.drain();
        }
        fence(Ordering::SeqCst);
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }
}
