//! NVTX: named ranges on the timelines of NVIDIA's profilers, by a library that is loaded if the
//! machine has it. Without a profiler, a range is a load and a branch of that library.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

gdsync_sys::dl_api! {
    /// The functions of NVTX.
    ///
    /// # Safety
    /// The message is a C string; a thread pops as many ranges as it pushed.
    pub(super) struct Nvtx("NVTX") {
        sonames: ["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"],
        env: "GDS_NVTX_LIB",
        required {
            /// Begins a range of this thread; returns its depth.
            fn nvtxRangePushA(message: *const c_char) -> c_int;
            /// Ends the innermost range of this thread.
            fn nvtxRangePop() -> c_int;
        }
        optional {}
    }
}

impl Nvtx {
    /// A range of this thread, until it is dropped.
    pub fn range(&'static self, name: &'static CStr) -> Range {
        // SAFETY: a C string that lives as long as the process.
        unsafe { (self.nvtxRangePushA)(name.as_ptr()) };
        Range(self, PhantomData)
    }
}

/// A range that has begun. It stays on its thread.
pub(super) struct Range(&'static Nvtx, PhantomData<*const ()>);

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: this thread pushed the range.
        unsafe { (self.0.nvtxRangePop)() };
    }
}
