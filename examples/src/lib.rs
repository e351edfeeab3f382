//! Shared code of the example programs: their kernels, and the start of their ranks.
//!
//! The programs, in order of complexity: `sendrecv` (messages by the CPU), `sendrecv_stream`
//! (messages in order with a stream's kernels), `ring` (a kernel of each rank between a receive and
//! a send), `halo_simple` (a stencil whose ranks exchange halos with two neighbours), `porting`
//! (the exchange of a stencil in four versions, from the calls of MPI on), `putget` (one-sided
//! operations between all ranks), `producer_consumer` (flow control by one-sided operations,
//! without a CPU), `pingpong` (messages of changing lengths, and the error of a dead peer). The
//! packages `halo2d`, `halo3d` and `particles` are programs of their own. Each process is one rank
//! of a job that a launcher starts, or runs all ranks as threads:
//!
//! ```text
//! target/release/mprun -n 4 target/release/halo_simple
//! cargo run --release -p mp-examples --bin halo_simple -- --ranks-as-threads 4
//! ```

pub mod grid;
pub mod items;
pub mod kernels;
pub mod ranks;
pub mod strips;
