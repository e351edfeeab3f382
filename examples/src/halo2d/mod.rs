//! A stencil on a grid of ranks, with the halo exchange on streams.
//!
//! A periodic field of integers is divided into one tile per rank. In each iteration every cell
//! becomes a function, [`serial::rule`], of itself and its four neighbours. Two fields alternate as
//! the past and the future. The cells in the interior of a tile need no neighbour rank: one stream
//! computes them, while another packs, sends, receives, unpacks, and then computes the cells along
//! the edge. Events order the two streams:
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
//! their context remains usable: `crew` describes how.

mod crew;
pub mod grid;
mod iterate;
pub mod serial;
mod tile;

use std::fmt;
use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Error, Kind, Request, Result};

use grid::{Grid, Size, Tile};
use iterate::Run;
use serial::Field;

/// Longest column, in cells, that is sent or received in place; longer ones use a buffer.
pub const STRIDED_MAX: u32 = 24;

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
    /// The time without progress after which a rank probes the other ranks, and the time limit for
    /// their answers; a rank that does not answer is lost. It must be less than a third of the
    /// context's time limit: a silent rank is then found before the ranks that wait for it are
    /// treated as silent, too. The last rank may start up to eight times as long after the others.
    /// A context that waits for room ([`mp::Full::Wait`]) does not answer during the wait.
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

/// The result of one rank, or of all ranks ([`Outcome::sum`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Cells computed.
    pub cells: u64,
    /// Cells that differ from the serial run.
    pub differing: u64,
    /// Sum of [`serial::checksum`] over the cells; it does not depend on the grid.
    pub checksum: u64,
    /// Waits of the CPU between the first iteration and the end of the last one.
    pub waits: u64,
    /// Elapsed time of the iterations, by the clock of the GPU's driver.
    pub elapsed: Duration,
}

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

impl Config {
    /// This rank's tile.
    fn tile(&self, ctx: &Context) -> Result<Tile> {
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

    fn grid(&self, ctx: &Context) -> Grid {
        self.grid.unwrap_or_else(|| Grid::of(ctx.size()))
    }
}

/// Tag of the messages by which outcomes are summed.
const TAG_OUTCOME: u32 = 10;
const TAG_SUM: u32 = 11;

impl Outcome {
    const BYTES: usize = 5 * 8;

    /// Sums the outcomes of all ranks; every rank gets the sum. Time and waits are the maximum over
    /// the ranks.
    ///
    /// # Errors
    /// The context's error if a message failed.
    pub fn sum(self, ctx: &Context, limit: Duration) -> Result<Outcome> {
        let memory = ctx.alloc(MemoryKind::Pinned, 2 * Outcome::BYTES)?;
        let (out, into) = (
            memory.slice(0, Outcome::BYTES)?,
            memory.slice(Outcome::BYTES, Outcome::BYTES)?,
        );
        let send = |to, tag, outcome: &Outcome| {
            memory.write(out.offset(), &outcome.to_bytes())?;
            ctx.isend(to, tag, &out)?.wait(limit)
        };
        let take = |receive: Request| {
            receive.wait(limit)?;
            let mut bytes = [0; Outcome::BYTES];
            memory.read(into.offset(), &mut bytes)?;
            Ok::<_, Error>(Outcome::from_bytes(&bytes))
        };
        if ctx.rank() != 0 {
            // Posted before rank 0 can send.
            let sum = ctx.irecv(0, TAG_SUM, &into)?;
            send(0, TAG_OUTCOME, &self)?;
            return take(sum);
        }
        let mut sum = self;
        for rank in 1..ctx.size() {
            sum = sum.plus(&take(ctx.irecv(rank, TAG_OUTCOME, &into)?)?);
        }
        for rank in 1..ctx.size() {
            send(rank, TAG_SUM, &sum)?;
        }
        Ok(sum)
    }

    fn plus(&self, other: &Outcome) -> Outcome {
        Outcome {
            cells: self.cells + other.cells,
            differing: self.differing + other.differing,
            checksum: self.checksum.wrapping_add(other.checksum),
            waits: self.waits.max(other.waits),
            elapsed: self.elapsed.max(other.elapsed),
        }
    }

    fn to_bytes(self) -> [u8; Outcome::BYTES] {
        let nanos = u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX);
        let words = [self.cells, self.differing, self.checksum, self.waits, nanos];
        let mut bytes = [0; Outcome::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; Outcome::BYTES]) -> Outcome {
        let (words, _) = bytes.as_chunks();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        Outcome {
            cells: word(0),
            differing: word(1),
            checksum: word(2),
            waits: word(3),
            elapsed: Duration::from_nanos(word(4)),
        }
    }
}
