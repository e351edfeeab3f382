//! AMD GPUs, by the HIP runtime, which the library loads when the first GPU is opened.
//!
//! `calls` is the runtime's table as [`Driver`](super::driver::Driver); the rest of the runtime is in
//! `gpu/driver`. What differs from CUDA:
//!
//! - A device has one context. Its frees block until its streams are idle; `gpu/driver/context` says
//!   what the library does then.
//! - Memory operations are single calls (`submit`): AMD's runtime does not order the operations of
//!   one `hipStreamBatchMemOp`.
//! - A GEQ wait compares unsigned numbers and is not cyclic. Waits have masks.
//! - Streams, NICs and other GPUs may access words only in fine-grained memory. The library allocates
//!   device memory fine-grained, or maps it uncached (HIP 7); memory of the application may be
//!   coarse-grained (`hipMalloc`).
//! - HIP opens no IPC handle in the process that made it (`exported`).

mod calls;
mod code;
mod device;
mod exported;
mod open;
mod submit;

use super::Gpu;
use super::runtime::Opener;

pub use device::{hip_architecture, hip_caps, hip_refusal, hip_runtime_refusal};

pub(super) const OPENER: Opener = Opener {
    name: "hip",
    numbered: true,
    open: |index| index.map_or_else(open::by_local_rank, Gpu::hip),
};
