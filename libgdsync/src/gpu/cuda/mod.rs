//! NVIDIA GPUs, by the CUDA driver, which the library loads when the first GPU is opened.
//!
//! [`Gpu::cuda`](crate::Gpu::cuda) opens a device in its primary context, which the CUDA runtime,
//! `cust` and `cudarc` use too; `cuda_current` and `cuda_context` use a context of the application.
//! The application hands in streams and memory as raw handles.
//!
//! `calls` is the driver's table as [`Driver`](super::driver::Driver); the rest of the runtime is in
//! `gpu/driver`.

mod calls;
mod dependent;
mod open;
mod peers;
mod probe;
mod submit;

use super::Gpu;
use super::runtime::Opener;

pub use probe::{cuda_caps, cuda_refusal, driver_too_old, wait_limits};

pub(super) const OPENER: Opener = Opener {
    name: "cuda",
    numbered: true,
    open: |index| index.map_or_else(open::by_local_rank, Gpu::cuda),
};
