//! The kernel interface of an mlx5 device, as libibverbs and libmlx5 use it, over the virtual
//! ConnectX of the crate `vmlx5`: commands written to a device file, ioctls on it, pages mapped
//! from it.
//!
//! A [`Device`] is a NIC and its attributes. [`Device::open`] returns a [`Context`], which stands
//! for an open device file: [`Context::write`] and [`Context::ioctl`] execute commands,
//! [`Context::map`] returns the memory file at an offset of `mmap`. The trait [`User`] has the
//! resources of the process, above all its memory. The interface is therefore a function from bytes
//! to bytes and an `errno`, and can be tested and fuzzed without a library and without preloading.
//!
//! The interface refuses features that are not emulated with the error that a kernel returns for a
//! device without them: memory windows, extended reliable connections, multicast, resizing of
//! queues, flow steering, raw packets, device memory, on-demand paging.
#![forbid(unsafe_code)]

pub mod abi;
pub mod address;
mod command;
mod context;
mod device;
mod directory;
mod doorbells;
mod error;
mod event;
mod targets;
mod trace;
mod transitions;
mod user;

pub use context::{Context, invoked};
pub use device::{Device, DeviceConfig, FIRMWARE, PART, UarMode, VENDOR};
pub use trace::name_of;
pub use user::{DoorbellPage, User};
