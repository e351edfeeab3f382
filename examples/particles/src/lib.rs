//! A Lennard-Jones fluid in a periodic box, on a grid of ranks, after the benchmark CoMD.
//!
//! The box is divided into cells, and each rank has a block of them. In each step (velocity Verlet)
//! particles move, migrate to neighbours, and are copied to the halos of neighbours. One exchange
//! does both: three phases along x, y and z, with two messages each. The length of a message is a
//! word that a kernel computes, and the CPU never reads it. The CPU enqueues a batch of steps, and
//! waits only between batches:
//!
//! ```text
//! advance, { pack, send both, wait for both, unpack } for x, y, z, force, advance, ...
//! ```
//!
//! Positions, velocities and forces are integers, as on the computer Anton. Integer sums do not
//! depend on the order of their terms. Any number of ranks therefore computes the same bits as the
//! serial run, and the momentum does not change by a bit.
//!
//! - [`Grid`]: the ranks and the cells. [`physics`]: units, potential, the serial run.
//! - `kernels`: parameters and launches. `exchange`: the messages of a step. `run`: the steps.
//! - `lost`: the loss of a rank. `checks`: the sums over all ranks, and the verdict.

mod checks;
mod config;
mod exchange;
mod kernels;
mod lost;
pub mod physics;
mod run;

use mp::{Context, Result};

pub use checks::{ENERGY_LIMIT, Outcome, SERIAL_LIMIT};
pub use config::Config;
pub use mp_examples::grid::Grid;

/// Runs this rank's part of the box, and checks the result over all ranks.
///
/// # Errors
/// `Invalid` if the grid does not fit the ranks or the cells, if a batch is empty, and if a cell
/// has more particles than its capacity, or a particle is too fast; the other ranks get an error
/// that names the rank. `PeerFailed`, naming a rank, if that rank is lost. `Timeout` if a wait of
/// the CPU exceeds the limit. Other errors of the context if a message failed otherwise.
pub fn run(ctx: &Context, config: &Config) -> Result<Outcome> {
    let (ranks, own) = config.share(ctx)?;
    let end = run::Run::new(ctx, config, ranks, own)?.play()?;
    Outcome::new(ctx, config, &end)
}
