//! A stencil on a grid of ranks, with the halo exchange on streams, overlapped with computation.
//!
//! A periodic field of integers is divided into one tile per rank. In each iteration every cell
//! becomes a function, [`rule`](mp_examples::kernels::rule), of itself and its four neighbours. Two
//! fields alternate as the past and the future. The cells in the interior of a tile need no
//! neighbour rank: one stream computes them, while another packs, sends, receives, unpacks, and
//! then computes the cells along the edge. Events order the two streams:
//!
//! ```text
//! inner   ─ interior k ────────────┬─ (edge k) interior k+1 ──────────────┬─
//! edge    ─ pack, send, receive, unpack k ─ (inner k-1) boundary k ─┬─ pack, ... k+1 ─
//! ```
//!
//! In the stream model the CPU only enqueues. It waits once per batch of iterations, for a batch
//! several before the one that it enqueues next, so that the streams always have work.
//!
//! The four messages of an iteration use different layouts as a demonstration. Rows are contiguous
//! and go from field to field in place. The column that travels east is sent in place, cell by cell
//! (up to [`STRIDED_MAX`] cells), and received into a buffer, from which a kernel unpacks it. A
//! kernel packs the column that travels west, and it is received in place, cell by cell.
//!
//! If a rank is lost, all other ranks, neighbours or not, end with an error that names it, and
//! their context remains usable: `recovery` describes how.
//!
//! - [`grid`]: the decomposition, and [`serial`]: the reference run, need no GPU and no message.
//! - `tile`: the memory of a tile and its transfers. `iterate`: the work on the streams.
//! - `recovery`: what the ranks do when one of them is lost. `outcome`: the sum over all ranks, which
//!   the application implements with messages.

mod config;
pub mod grid;
mod iterate;
mod outcome;
mod recovery;
pub mod serial;
mod tile;

use iterate::Run;
use mp::{Context, Result};
use serial::Field;

pub use config::{Config, Model};
pub use outcome::Outcome;
pub use tile::STRIDED_MAX;

/// Computes this rank's tile and compares every cell with a serial run of the whole field.
///
/// # Errors
/// `Invalid` if the grid does not have the context's number of ranks, has more columns or rows than
/// the field, or if a batch is empty; `Timeout` if a stream did not end within the limit.
/// `PeerFailed` or `Timeout`, naming a rank, if that rank is lost: the errors of the other ranks
/// name it as well, and no message of the run remains in flight between them. Other errors of the
/// context if a message failed otherwise.
pub fn run(ctx: &Context, config: &Config) -> Result<Outcome> {
    let tile = config.tile(ctx)?;
    let (cells, elapsed, waits) = Run::new(ctx, config, &tile)?.play()?;
    let expected = Field::after(config.size, config.seed, config.iterations).cut(&tile);
    let pairs = cells.iter().zip(&expected);
    let sums = cells.iter().zip(tile.places());
    Ok(Outcome {
        cells: cells.len() as u64,
        differing: pairs.filter(|(got, right)| got != right).count() as u64,
        checksum: sums
            .map(|(cell, (x, y))| serial::checksum(x, y, *cell))
            .fold(0, u64::wrapping_add),
        waits,
        elapsed,
    })
}
