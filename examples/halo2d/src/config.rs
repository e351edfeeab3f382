//! The parameters of a run, and their validation.

use std::fmt;
use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Error, Kind, Result};

use crate::grid::{Grid, Size, Tile};

/// The side that posts the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Model {
    /// The CPU, which waits for each iteration's packing and messages.
    Cpu,
    /// The stream, in order with its kernels.
    Stream,
    /// The stream, with a CPU thread that writes the doorbell.
    #[value(alias = "proxy")]
    CpuThread,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 3] = [Model::Cpu, Model::Stream, Model::CpuThread];
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Cpu => "cpu",
            Model::Stream => "stream",
            Model::CpuThread => "cpu-thread",
        })
    }
}

/// The parameters of a run. They are the same in all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The grid of ranks; `None`: [`Grid::of`] their number.
    pub grid: Option<Grid>,
    /// Size of the whole field in cells.
    pub size: Size,
    /// Number of iterations.
    pub iterations: u64,
    /// Iterations that are enqueued without a wait between them.
    pub batch: u64,
    /// Batches that are enqueued before the CPU waits for the oldest one.
    pub batches_in_flight: usize,
    /// The side that posts.
    pub model: Model,
    /// The kind of memory of fields and buffers.
    pub memory: MemoryKind,
    /// The seed of the field's initial cells.
    pub seed: u64,
    /// Longest single wait of the CPU.
    pub limit: Duration,
    /// The time that a rank waits before it calls [`mp::Context::agree`], and the time after which
    /// that call counts a silent rank as lost. It must be less than a third of the context's time
    /// limit: a silent rank is then found before the ranks that wait for it time out, too. The last
    /// rank may start up to eight times as long after the others. A rank that waits for room
    /// ([`mp::Full::Wait`]) calls it only after that wait.
    pub answer_limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            grid: None,
            size: Size {
                width: 64,
                height: 48,
            },
            iterations: 100,
            batch: 4,
            batches_in_flight: 4,
            model: Model::Stream,
            memory: MemoryKind::Device,
            seed: 1,
            limit: Duration::from_secs(30),
            answer_limit: Duration::from_secs(8),
        }
    }
}

impl Config {
    /// This rank's tile.
    ///
    /// # Errors
    /// Those of [`crate::run`] with the kind `Invalid`.
    pub(crate) fn tile(&self, ctx: &Context) -> Result<Tile> {
        let invalid = |what: String| Err(Error::new("run halo2d", Kind::Invalid, what));
        let grid = self.grid(ctx);
        if grid.ranks() != Some(ctx.size()) {
            return invalid(format!(
                "a grid of {grid} does not fit {} ranks",
                ctx.size()
            ));
        }
        if grid.columns > self.size.width || grid.rows > self.size.height {
            return invalid(format!(
                "a field of {} cells is too small for a grid of {grid}",
                self.size
            ));
        }
        if self.batch == 0 || self.batches_in_flight == 0 {
            return invalid(
                "a batch needs at least one iteration, and one batch must be in flight".to_owned(),
            );
        }
        let tile = grid.tile(ctx.rank(), self.size);
        // Kernels use 32-bit numbers of cells.
        if u64::from(tile.width()) * u64::from(tile.height()) > u64::from(i32::MAX as u32) {
            let (width, height) = (tile.width(), tile.height());
            return invalid(format!(
                "a tile of {width}x{height} is too large; use more ranks"
            ));
        }
        Ok(tile)
    }

    /// The grid of ranks.
    pub(crate) fn grid(&self, ctx: &Context) -> Grid {
        self.grid.unwrap_or_else(|| Grid::of(ctx.size()))
    }
}
