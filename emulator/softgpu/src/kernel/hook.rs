//! The interface of a running grid to the GPU: stores and loads of the memory model, fences, and
//! the time. Plain loads and stores of a kernel access memory directly. Accesses for communication
//! with another device (doorbells, flags, completion words) use this interface, so that weak memory
//! can delay and reorder them.

use std::sync::Arc;

use super::GridConfig;

/// The memory and clock that the device functions use. Called only while the grid runs, on
/// the thread that steps the engine.
pub(crate) trait StoreHook: Send + Sync {
    /// Stores a word: 64 bits if `wide`, else 32 bits. It becomes visible to others at once, or
    /// late if memory is weak. The halves of a wide word may become visible separately, unless it
    /// is `whole` or a fence came directly before.
    ///
    /// # Safety
    /// `ptr` is aligned and valid for an atomic store, in the kernel's address space, until the
    /// grid is done.
    unsafe fn store(&self, ptr: *mut u8, value: u64, wide: bool, whole: bool);

    /// Loads a word with acquire ordering; it observes the stream's own held-back stores.
    ///
    /// # Safety
    /// As for [`store`](Self::store), for a load.
    unsafe fn load(&self, ptr: *const u8, wide: bool) -> u64;

    /// Before an atomic operation on `len` bytes at `ptr`: makes the stream's own held-back
    /// stores to them visible.
    fn settle(&self, ptr: *const u8, len: usize);

    /// A system fence: every earlier store of the stream is visible when this returns.
    fn fence(&self);

    /// The time of the step in progress, in nanoseconds of the driver's clock.
    fn now_ns(&self) -> u64;
}

/// The context of a grid, beside its arguments.
#[derive(Clone)]
pub(crate) struct KernelContext {
    /// The memory and clock of the stream that the grid runs on.
    pub(crate) hook: Arc<dyn StoreHook>,
    /// How the grid is run.
    pub(crate) config: GridConfig,
}
