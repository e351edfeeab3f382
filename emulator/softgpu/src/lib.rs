//! A software GPU: memory, streams, memory operations, events and kernels, executed on the CPU
//! by a step machine.
//!
//! With it, a library that drives GPUs runs, complete and unchanged, on machines without a GPU. It
//! also tests the library against behaviour that hardware shows once in a million runs. The
//! [`Engine`] owns no thread and reads no clock, so a run under a deterministic driver replays
//! exactly. With [`Weak`] memory, operations that no fence or flush orders do take effect out of
//! order.
//!
//! Properties of CUDA: streams run in order. An enqueue above [`Config::stream_bound`] blocks. A
//! stream at an unsatisfied wait holds a hardware channel; while all [`Config::channels`] are held,
//! no other stream of the GPU starts an operation. `GEQ` compares cyclically, unless [`Caps::cyclic`] is off. A fault of a kernel
//! stops the GPU permanently. Freed memory is unmapped after all earlier operations have completed.
//!
//! # Memory model
//! Without [`Config::weak`] every write is visible at once and in order. With it:
//!
//! - Writes by memory operations and by the device functions of kernels are held back per stream.
//!   They become visible in any order, except writes to the same bytes. 64-bit writes without a
//!   fence may tear, except those that the device code declares whole. A fence, a fenced write (for the writes before it), the start and the end of a
//!   kernel, a copy and an event record make all earlier writes visible. So does completion: an
//!   observer that finds the stream idle observes its writes.
//! - Writes by NICs ([`Window`]) into device memory arrive late but in order. Writes into host
//!   memory are not held back. A completion in host memory can therefore be observed before its
//!   payload in device memory, unless the wait for the completion flushes.

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
mod stamp;
mod store_buffer;
mod table;
mod window;

pub use addr::DevAddr;
pub use budget::Reserved;
pub use config::{Caps, Config, Weak};
pub use error::{DeviceError, Error, Fault, Object};
pub use event::Event;
pub use gpu::{
    CpuView, DeviceMemory, Ends, Engine, Gpu, Graph, HostRegistration, PinnedMemory, Stream,
};
pub use kernel::{
    Dims, Entry, Fault as KernelFault, GridConfig, GridPool, Kernel, LaunchError, MAX_ARGS,
    MAX_BLOCK_THREADS, MAX_DYNAMIC_SHARED,
};
pub use op::{Cond, InlineData, MemOp};
pub use stamp::Stamp;
pub use window::Window;
