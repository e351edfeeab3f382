//! `libvmlx5.so`: virtual ConnectX devices for a program with unmodified libibverbs and libmlx5,
//! preloaded with `LD_PRELOAD`.
//!
//! The library interposes the few calls of the C library by which libibverbs reaches a kernel. It
//! provides a tree of device files ([`tree`]), answers `open`, `write`, `ioctl` and `mmap` on them
//! ([`interpose`], [`descriptors`], [`files`]), and has one thread that steps the NICs
//! ([`engine`]). Payloads, rings and doorbells are the program's own memory, which the program may
//! unmap at any time ([`guard`]).
//!
//! Every other call goes to the kernel unchanged, also before this library is set up and in a child
//! after `fork`. Nothing is allocated in these calls.

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

/// Runs before the program's `main`: makes the tree of devices available to libibverbs.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    process::start();
}
