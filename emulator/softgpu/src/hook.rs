//! What a running grid asks of the GPU: stores and loads that take part in the memory
//! model, fences, and the time. Defined here, used by the kernels, implemented by the engine
//! (see `port.rs`).

use std::sync::Arc;

/// The memory and clock that the library's device functions use.
///
/// Plain loads and stores of a kernel go straight to memory. Those that talk to another
/// device (doorbells, flags, completion words) come through here, so that weak memory
/// can hold them back and put them out of order. Called only while the grid runs, on the
/// thread that steps the engine.
pub(crate) trait StoreHook: Send + Sync {
    /// Stores four bytes; visible to others at once, or late if memory is weak.
    ///
    /// # Safety
    /// `ptr` is aligned and valid for a write as the kernel sees memory (the address of a
    /// [`DevAddr`](crate::DevAddr), or ordinary memory of the process).
    unsafe fn store32(&self, ptr: *mut u32, value: u32);

    /// Stores eight bytes; if memory is weak, the two halves may become visible apart.
    ///
    /// # Safety
    /// As for [`store32`](Self::store32).
    unsafe fn store64(&self, ptr: *mut u64, value: u64);

    /// Loads four bytes with acquire ordering; the stream's own held-back stores are seen.
    ///
    /// # Safety
    /// As for [`store32`](Self::store32), for a read.
    unsafe fn load32(&self, ptr: *const u32) -> u32;

    /// Loads eight bytes with acquire ordering; the stream's own held-back stores are seen.
    ///
    /// # Safety
    /// As for [`store32`](Self::store32), for a read.
    unsafe fn load64(&self, ptr: *const u64) -> u64;

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
}
