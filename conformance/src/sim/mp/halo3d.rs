//! The stencil with 26 neighbours of the examples on ranks that are fibers: one exchange object for
//! two fields. Every cell equals that of the serial run, under any schedule, or the ranks get an
//! error when one of them is lost.

use std::rc::Rc;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use halo3d::Config;
use mp_examples::grid::Grid;

use super::death;
use super::job::{Job, Settings, Wire};
use crate::sim::world::{LIMIT, play};

/// Draws a run; ranks may be their own neighbours, and have blocks of different sizes.
fn draw(rng: &mut Rng) -> Config {
    let grids = [[1, 1, 1], [2, 1, 1], [1, 1, 2], [1, 3, 1], [2, 2, 1]];
    let grid: [u32; 3] = grids[rng.usize(0..grids.len())];
    Config {
        grid: Some(Grid(grid)),
        cells: Grid(grid.map(|ranks| rng.u32(ranks..=6))),
        steps: rng.u64(1..=4),
        limit: LIMIT,
    }
}

/// Draws settings with send queues of the default length, with room for all neighbours, which may
/// be one rank.
fn settings(rng: &mut Rng) -> Settings {
    Settings {
        send_blocks: 64,
        ..Settings::draw(rng)
    }
}

fn ranks(config: &Config) -> u32 {
    config.grid.and_then(Grid::product).unwrap_or(1)
}

/// Runs the stencil of `seed` under the schedule of `seed`, without any loss.
///
/// # Errors
/// A cell that differs from the serial run, or any other failure, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let config = Rc::new(draw(&mut rng));
    let ranks = ranks(&config);
    let job = Job::new(seed, ranks, settings(&mut rng)).over(wire);
    play(seed, ranks as usize, move |rank| {
        let member = job.join(&rank);
        let result = halo3d::run(&member.ctx, &config);
        let (_, differing) = result.unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(differing, 0, "{config:?}");
        // A rank that leaves early would be lost to the others.
        rank.barrier();
        member.leave();
    })
}

/// Runs the stencil without end under the schedule of `seed` until the process of a rank dies.
/// Every other rank gets an error that names a rank, in time: this one, or one that ended because of it.
///
/// # Errors
/// The first difference, with the seed.
pub fn run_until_a_rank_dies(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let mut config = draw(&mut rng);
    while ranks(&config) == 1 {
        config = draw(&mut rng);
    }
    config.steps = u64::MAX;
    let settings = settings(&mut rng);
    death::run(seed, ranks(&config), settings, move |ctx, _| {
        halo3d::run(ctx, &config).expect_err("the run has no end")
    })
}
