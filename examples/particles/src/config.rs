//! The parameters of a run, and their validation.

use std::time::Duration;

use mp::{Context, Error, Kind, Result};

use crate::Grid;

/// Most cells along an axis of the box. With it, the sums of energies fit 64 bits.
const MOST_CELLS: u32 = 128;

/// The parameters of a run. They are the same in all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The grid of ranks; `None`: [`Grid::of`] their number.
    pub grid: Option<Grid>,
    /// Cells of the whole box; 8 particles each on average.
    pub cells: Grid,
    /// Number of steps.
    pub steps: u64,
    /// Steps that are enqueued before the CPU waits for them.
    pub batch: u64,
    /// The seed of the initial state.
    pub seed: u64,
    /// Whether each rank compares its particles with a serial run.
    pub serial: bool,
    /// Longest single wait of the CPU.
    pub limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            grid: None,
            cells: Grid([4, 4, 4]),
            steps: 200,
            batch: 10,
            seed: 1,
            serial: true,
            limit: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// The grid of ranks, and the cells of each rank.
    ///
    /// # Errors
    /// Those of [`crate::run`] with the kind `Invalid`.
    pub(crate) fn share(&self, ctx: &Context) -> Result<(Grid, Grid)> {
        let invalid = |what: String| Error::new("run particles", Kind::Invalid, what);
        let ranks = self.grid.unwrap_or_else(|| Grid::of(ctx.size()));
        if ranks.product() != Some(ctx.size()) {
            let size = ctx.size();
            return Err(invalid(format!(
                "a grid of {ranks} does not fit {size} ranks"
            )));
        }
        if self.batch == 0 {
            return Err(invalid("a batch needs at least one step".to_owned()));
        }
        let mut own = [0; 3];
        for (axis, own) in own.iter_mut().enumerate() {
            let (cells, ranks) = (self.cells.0[axis], ranks.0[axis]);
            *own = cells / ranks;
            if *own < 2 || *own * ranks != cells || !(3..=MOST_CELLS).contains(&cells) {
                return Err(invalid(format!(
                    "{cells} cells along an axis of {ranks} ranks are not possible; it needs 3 to \
                     {MOST_CELLS} cells, a multiple of the ranks, and 2 cells on each rank"
                )));
            }
        }
        Ok((ranks, Grid(own)))
    }

    /// Steps between two sums of energy and momentum, of which there are at most `most`.
    pub(crate) fn interval(&self, most: u64) -> u64 {
        self.steps.div_ceil(most).max(1)
    }
}
