//! Shared code of the example programs, and the parts of them that are also tests of the library.
//!
//! The programs, in order of complexity: `sendrecv` (messages by the CPU), `sendrecv_stream`
//! (messages in order with a stream's kernels), `ring` (a kernel of each rank between a receive and
//! a send), `pingpong` (messages of changing lengths, and a dead peer), [`halo2d`] (a stencil whose
//! halo exchange overlaps with its computation). Each process is one rank of a job that a launcher
//! starts, or runs all ranks as threads:
//!
//! ```text
//! mprun -n 4 target/release/halo2d
//! cargo run --release -p mp-examples --bin halo2d -- --ranks-as-threads 4
//! ```

pub mod halo2d;
pub mod kernels;
pub mod ranks;
