//! The stencil of the examples on ranks that are fibers: every cell equals that of the serial run,
//! under any schedule.

use std::rc::Rc;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::gpu::MemoryKind;
use halo2d::grid::{Grid, Size};
use halo2d::serial::{self, Field};
use halo2d::{Config, Model};

use super::job::{Job, Settings, Wire};
use crate::sim::world::{LIMIT, play};

/// The stencil, the ranks and the settings of a case.
#[derive(Clone, Debug)]
pub struct Case {
    /// The stencil.
    pub config: Config,
    /// The contexts.
    pub settings: Settings,
}

impl Case {
    /// Draws a case on a grid.
    pub fn draw(rng: &mut Rng, grid: Grid) -> Case {
        let batch = rng.u64(1..=4);
        let config = Config {
            size: Size {
                width: rng.u32(grid.columns..=28),
                height: rng.u32(grid.rows..=28),
            },
            grid: Some(grid),
            iterations: rng.u64(3..=16),
            batch,
            batches_in_flight: rng.usize(1..=3),
            model: Model::ALL[rng.usize(0..3)],
            memory: match rng.u8(0..3) {
                0 => MemoryKind::Pinned,
                _ => MemoryKind::Device,
            },
            seed: rng.u64(..),
            limit: LIMIT,
            answer_limit: LIMIT / 8,
        };
        Case {
            config,
            settings: Settings::draw(rng),
        }
    }

    /// How many ranks it has.
    pub fn ranks(&self) -> u32 {
        self.config.grid.and_then(Grid::ranks).unwrap_or(1)
    }

    /// The checksum of the field at the end.
    pub fn checksum(&self) -> u64 {
        let Config { size, seed, .. } = self.config;
        let grid = Grid {
            columns: 1,
            rows: 1,
        };
        let cells = Field::after(size, seed, self.config.iterations).cut(&grid.tile(0, size));
        let cells_at = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (x, y)));
        let sums = cells
            .iter()
            .zip(cells_at)
            .map(|(cell, (x, y))| serial::checksum(x, y, *cell));
        sums.fold(0, u64::wrapping_add)
    }
}

/// Runs the stencil of `seed` under the schedule of `seed`, without any loss.
///
/// # Errors
/// A cell that differs from the serial run, or any other failure, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let grid = Grid {
        columns: rng.u32(1..=3),
        rows: rng.u32(1..=2),
    };
    let case = Rc::new(Case::draw(&mut rng, grid));
    let job = Job::new(seed, case.ranks(), case.settings.clone()).over(wire);
    let (together, expected) = (rng.bool(), case.checksum());
    play(seed, case.ranks() as usize, move |rank| {
        let member = job.join(&rank);
        let mine = halo2d::run(&member.ctx, &case.config).unwrap_or_else(|e| panic!("{e:?}"));
        assert_eq!(mine.differing, 0, "{:?}", *case);
        let all = mine.sum(&member.ctx, LIMIT).unwrap();
        assert_eq!((all.differing, all.checksum), (0, expected), "{:?}", *case);
        if together {
            rank.barrier();
        }
        member.leave();
    })
}
