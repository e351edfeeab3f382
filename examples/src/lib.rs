//! What the example programs share, and the parts of them that are tests of the library too.
//!
//! The programs, from the simplest on: `sendrecv` (messages by the CPU), `sendrecv_stream`
//! (messages in order with a stream's kernels), `ring` (each rank's kernel between a receive and
//! a send), `pingpong` (messages of changing lengths, and a peer that falls silent), [`halo2d`] (a
//! stencil whose halos travel while its middle is computed). Each is one rank of a job that a
//! launcher starts, or all of them as threads:
//!
//! ```text
//! mprun -n 4 target/release/halo2d
//! cargo run --release -p mp-examples --bin halo2d -- --ranks-as-threads 4
//! ```

pub mod halo2d;
pub mod kernels;
pub mod ranks;
