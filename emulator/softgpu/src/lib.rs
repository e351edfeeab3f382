//! A software GPU: memory, streams, memory operations, events and kernels, executed on the CPU
//! by a step machine.
//!
//! It exists so that a library that drives GPUs runs, whole and unchanged, where there is no
//! GPU, and so that the library can be tested against behaviour that hardware shows once in a
//! million runs: the [`Engine`] owns no thread and reads no clock, so under a deterministic
//! driver a run replays exactly, and with [`Weak`] memory on, everything that fences and
//! flushes do not order really happens out of order.
//!
//! What it takes from CUDA: streams run in order; an enqueue past
//! [`Config::stream_bound`] blocks; a stream at an unsatisfied wait holds a hardware channel,
//! and when all [`Config::channels`] are held, every other stream of the GPU starts nothing
//! new; `GEQ` compares cyclically; a fault of a kernel stops the GPU for good; freed memory is
//! unmapped when what was enqueued before has completed.
//!
//! # Memory model
//! Without [`Config::weak`] every write is visible at once and in order. With it:
//!
//! - writes by memory operations and by the device functions of kernels are held back per
//!   stream and become visible in any order, same bytes excepted; 64-bit writes without a fence
//!   may tear; a fence, a fenced write (for what is before it), a kernel's start and end, a copy
//!   and an event record let everything out, and so does completion: who sees the stream idle
//!   sees what it wrote;
//! - writes by NICs ([`Window`]) into device memory arrive late but in order; writes into host
//!   memory are not held back, so a completion there can be seen before the payload it
//!   announces, unless the wait for it flushes.

mod addr;
mod backing;
mod budget;
mod config;
mod error;
mod event;
mod gpu;
mod kernel;
mod op;
mod posted;
mod protect;
#[doc(hidden)]
pub mod queue;
mod span;
mod store_buffer;
mod table;
mod window;

pub use addr::DevAddr;
pub use config::{Caps, Config, Weak};
pub use error::{DeviceError, Error, Fault, Object};
pub use event::Event;
pub use gpu::{CpuView, DeviceMemory, Ends, Engine, Gpu, HostRegistration, PinnedMemory, Stream};
pub use kernel::{
    Dims, Entry, Fault as KernelFault, GridConfig, GridPool, Kernel, LaunchError, MAX_ARGS,
    MAX_BLOCK_THREADS, MAX_DYNAMIC_SHARED,
};
pub use op::{Cond, InlineData, MemOp};
pub use window::Window;
