//! The library's kernels as the soft GPU runs them: compiled by the host compiler from
//! `device/`.

use std::ffi::c_void;

use crate::gpu::Kernel;
use crate::memop::program::Program;

unsafe extern "C" {
    fn gds_program(params: *const c_void);
}

/// The program kernel.
pub(crate) fn program() -> Kernel {
    // SAFETY: the entry was compiled by build.rs against softgpu's headers and takes a
    // `gds::Program`, whose layout is that of `Program`.
    Kernel::soft(unsafe { softgpu::Kernel::new("gds_program", gds_program, size_of::<Program>()) })
}
