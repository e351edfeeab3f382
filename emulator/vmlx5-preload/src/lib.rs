//! `libvmlx5.so`: virtual ConnectX devices for a program that uses libibverbs and libmlx5 as they
//! are, preloaded with `LD_PRELOAD`.
//!
//! The library stands between the program and the C library for the few calls by which libibverbs
//! reaches a kernel: it shows a tree of device files ([`tree`]), answers `open`, `write`, `ioctl`
//! and `mmap` on them ([`interpose`], [`descriptors`], [`files`]), and has one thread that steps the NICs
//! ([`engine`]). Payloads, rings and doorbells are the program's own memory, which may vanish
//! under the NIC at any time ([`guard`]).
//!
//! Every other call goes to the kernel as it came, also before this library is set up and in a
//! child after `fork`. Nothing is allocated on such a call.

mod config;
mod descriptors;
mod engine;
mod files;
mod guard;
mod interpose;
mod mapping;
mod process;
mod sys;
mod trace;
mod tree;

/// Runs before the program's `main`: shows the tree of devices to libibverbs.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    process::start();
}
