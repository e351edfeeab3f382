//! What a running grid asks of the GPU: stores and loads that take part in the memory
//! model, fences, and the time. Plain loads and stores of a kernel go straight to memory; those
//! that talk to another device (doorbells, flags, completion words) come through here, so
//! that weak memory can hold them back and put them out of order.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::gpu::Core;
use crate::kernel::GridConfig;
use crate::store_buffer::StoreBuffer;

/// The memory and clock that the device functions use. Called only while the grid runs, on
/// the thread that steps the engine.
pub(crate) trait StoreHook: Send + Sync {
    /// Stores four bytes; visible to others at once, or late if memory is weak.
    ///
    /// # Safety
    /// `ptr` is aligned and valid for an atomic store, as a kernel sees memory, until the
    /// grid is done.
    unsafe fn store32(&self, ptr: *mut u32, value: u32);

    /// Stores eight bytes; if memory is weak and no fence came just before, the two halves may
    /// become visible apart.
    ///
    /// # Safety
    /// As for [`store32`](Self::store32).
    unsafe fn store64(&self, ptr: *mut u64, value: u64);

    /// Loads four bytes with acquire ordering; the stream's own held-back stores are seen.
    ///
    /// # Safety
    /// As for [`store32`](Self::store32), for a load.
    unsafe fn load32(&self, ptr: *const u32) -> u32;

    /// Loads eight bytes with acquire ordering; the stream's own held-back stores are seen.
    ///
    /// # Safety
    /// As for [`store32`](Self::store32), for a load.
    unsafe fn load64(&self, ptr: *const u64) -> u64;

    /// Before an atomic operation on `len` bytes at `ptr`: makes the stream's own held-back
    /// stores to them visible.
    fn settle(&self, ptr: *const u8, len: usize);

    /// A system fence: every earlier store of the stream is visible when this returns.
    fn fence(&self);

    /// The time of the step in progress, in nanoseconds of the driver's clock.
    fn now_ns(&self) -> u64;
}

/// What a grid is given besides its arguments.
#[derive(Clone)]
pub(crate) struct KernelContext {
    /// The memory and clock of the stream that the grid runs on.
    pub(crate) hook: Arc<dyn StoreHook>,
    /// How the grid is run.
    pub(crate) config: GridConfig,
}

/// Memory and clock of a stream.
pub(crate) struct StreamMemory {
    core: Arc<Core>,
    /// Stores that others do not see yet; `None`: memory is strong. Only the engine's thread
    /// takes the lock.
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

    /// The stores that others do not see yet, if memory is weak.
    #[inline]
    pub(crate) fn weak(&self) -> Option<MutexGuard<'_, StoreBuffer>> {
        let buffer = self.weak.as_ref()?;
        Some(buffer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_now(&self, ns: u64) {
        self.now_ns.store(ns, Ordering::Relaxed);
    }

    /// The buffer, if memory is weak, and where the engine finds what kernels see at `ptr`.
    /// Memory that the GPU does not know is never held back.
    fn held_back(&self, ptr: u64, len: usize) -> Option<(MutexGuard<'_, StoreBuffer>, *mut u8)> {
        let buffer = self.weak()?;
        Some((buffer, self.core.table.alias(ptr, len)?))
    }
}

impl StoreHook for StreamMemory {
    unsafe fn store32(&self, ptr: *mut u32, value: u32) {
        match self.held_back(ptr as u64, 4) {
            // SAFETY: the alias is the same memory and lies in a live allocation, which is not
            // unmapped before this stream's launch has retired with an empty buffer.
            Some((mut buffer, alias)) => unsafe {
                buffer.store(alias, &value.to_ne_bytes(), false);
            },
            // SAFETY: the caller's promise.
            None => unsafe { AtomicU32::from_ptr(ptr) }.store(value, Ordering::Relaxed),
        }
    }

    unsafe fn store64(&self, ptr: *mut u64, value: u64) {
        match self.held_back(ptr as u64, 8) {
            Some((mut buffer, alias)) => {
                let tear = !buffer.just_fenced();
                // SAFETY: as in `store32`.
                unsafe { buffer.store(alias, &value.to_ne_bytes(), tear) };
            }
            // SAFETY: the caller's promise.
            None => unsafe { AtomicU64::from_ptr(ptr) }.store(value, Ordering::Relaxed),
        }
    }

    unsafe fn load32(&self, ptr: *const u32) -> u32 {
        match self.held_back(ptr as u64, 4) {
            // SAFETY: the alias is the same memory, as aligned as the pointer.
            Some((buffer, alias)) => (unsafe { buffer.load(alias, 4) }) as u32,
            // SAFETY: the caller's promise.
            None => unsafe { AtomicU32::from_ptr(ptr.cast_mut()) }.load(Ordering::Acquire),
        }
    }

    unsafe fn load64(&self, ptr: *const u64) -> u64 {
        match self.held_back(ptr as u64, 8) {
            // SAFETY: as in `load32`.
            Some((buffer, alias)) => unsafe { buffer.load(alias, 8) },
            // SAFETY: the caller's promise.
            None => unsafe { AtomicU64::from_ptr(ptr.cast_mut()) }.load(Ordering::Acquire),
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
