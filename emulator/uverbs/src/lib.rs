//! The kernel interface of an mlx5 device, as libibverbs and libmlx5 speak it, over the virtual
//! ConnectX of the crate `vmlx5`: commands written to a device file, ioctls on it, pages mapped
//! from it.
//!
//! A [`Device`] is a NIC and its attributes; [`Device::open`] gives a [`Context`], which stands
//! for an open device file: [`Context::write`] and [`Context::ioctl`] carry out commands,
//! [`Context::map`] names the memory file behind an offset of `mmap`. Everything that belongs to
//! the process, its memory above all, is behind the trait [`User`], so the interface can be
//! tested and fuzzed without any library or preloading: it is a function from bytes to bytes and
//! an `errno`.
//!
//! What is not emulated is refused with the error that a kernel gives for a device without it:
//! memory windows, extended reliable connections, multicast, resizing of queues, flow steering,
//! raw packets, memory on the device, memory registered on demand.
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
