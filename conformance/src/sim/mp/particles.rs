//! The particles of the examples on ranks that are fibers: messages whose lengths the GPU computes,
//! in an order of phases. Every rank has the particles of the serial run, under any schedule, or an
//! error that names the rank that is lost.

use std::rc::Rc;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use particles::{Config, Grid};

use super::death;
use super::job::{Job, Settings, Wire};
use crate::sim::world::{LIMIT, play};

/// Draws a run on one of these grids.
fn draw(rng: &mut Rng, grids: &[[u32; 3]]) -> Config {
    let grid = grids[rng.usize(0..grids.len())];
    let cells = grid.map(|ranks| {
        if ranks == 1 {
            rng.u32(3..=4)
        } else {
            2 * ranks
        }
    });
    Config {
        grid: Some(Grid(grid)),
        cells: Grid(cells),
        steps: rng.u64(1..=4),
        batch: rng.u64(1..=3),
        seed: rng.u64(..),
        serial: true,
        limit: LIMIT,
    }
}

/// Draws settings with room for the tags of six directions and of notes.
fn settings(rng: &mut Rng) -> Settings {
    Settings {
        channels: rng.usize(7..=9),
        ..Settings::draw(rng)
    }
}

fn ranks(config: &Config) -> u32 {
    config.grid.and_then(Grid::product).unwrap_or(1)
}

/// Runs the particles of `seed` under the schedule of `seed`, without any loss.
///
/// # Errors
/// A particle that differs from the serial run, or any other failure, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let grids = [[1, 1, 1], [2, 1, 1], [1, 1, 2], [1, 3, 1], [2, 2, 1]];
    let config = Rc::new(draw(&mut rng, &grids));
    let ranks = ranks(&config);
    let job = Job::new(seed, ranks, settings(&mut rng)).over(wire);
    play(seed, ranks as usize, move |rank| {
        let member = job.join(&rank);
        let outcome = particles::run(&member.ctx, &config).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(outcome.failures(), [""; 0], "{config:?}");
        assert_eq!(outcome.differing, 0, "{config:?}");
        // A rank that leaves early would be lost to the others.
        rank.barrier();
        member.leave();
    })
}

/// Runs particles without end under the schedule of `seed` until the process of a rank dies. Every
/// other rank gets an error that names it, in time.
///
/// # Errors
/// The first difference, with the seed.
pub fn run_until_a_rank_dies(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let mut config = draw(&mut rng, &[[2, 1, 1], [1, 3, 1], [2, 2, 1]]);
    config.steps = u64::MAX;
    config.serial = false;
    let settings = settings(&mut rng);
    let ranks = ranks(&config);
    death::run(seed, ranks, settings, move |ctx, lost| {
        let e = particles::run(ctx, &config).expect_err("the run has no end");
        assert_eq!(e.rank(), Some(lost), "rank {}: {e:?}", ctx.rank());
        e
    })
}
