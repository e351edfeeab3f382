//! A stencil on a grid of ranks, its halos exchanged on streams.
//!
//! A field of integers is cut into tiles, one a rank, and its edges are joined. In each iteration
//! every cell becomes what [`serial::rule`] makes of it and its four neighbours; two fields take
//! turns at being the past and the future. The cells in the middle of a tile need no neighbour:
//! they are computed on one stream, while another packs, sends, receives, unpacks, and then
//! computes the cells along the edge. Events between the two say who may go on:
//!
//! ```text
//! inner   ─ interior k ────────────┬─ (edge k) interior k+1 ──────────────┬─
//! edge    ─ pack, send, receive, unpack k ─ (inner k-1) boundary k ─┬─ pack, ... k+1 ─
//! ```
//!
//! In the stream model the CPU only enqueues. It waits once a batch of iterations, for a batch
//! several before the one that it enqueues next, so that the streams always have work.
//!
//! Each of the four messages of an iteration moves another way, to show that there are several:
//! rows lie together and go from field to field as they are. The column that goes east is sent
//! from where it lies, cell by cell (up to [`STRIDED_MAX`]), and received into a buffer, from
//! which a kernel unpacks it. The column that goes west is packed by a kernel and received to
//! where it belongs, cell by cell.
//!
//! If a rank is lost, all others end with an error that names it, whether they are its neighbours
//! or not, and the context is theirs to go on with: `crew` says how.

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

/// Cells of a column that is sent or received from where it lies; longer ones go by a buffer.
pub const STRIDED_MAX: u32 = 24;

/// Who posts the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Model {
    /// The CPU, which waits for each iteration's packing and messages.
    Cpu,
    /// The stream, in order with its kernels.
    Stream,
    /// The library's proxy thread, when the stream tells it to.
    Proxy,
}

impl Model {
    /// All of them.
    pub const ALL: [Model; 3] = [Model::Cpu, Model::Stream, Model::Proxy];
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Cpu => "cpu",
            Model::Stream => "stream",
            Model::Proxy => "proxy",
        })
    }
}

/// What is computed, and how. All ranks have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the ranks stand; `None`: [`Grid::of`] their number.
    pub grid: Option<Grid>,
    /// Cells of the whole field.
    pub size: Size,
    /// Steps.
    pub iterations: u64,
    /// Iterations that are enqueued with no wait between them.
    pub batch: u64,
    /// Batches that are enqueued before the CPU waits for the oldest of them.
    pub batches_in_flight: usize,
    /// Who posts.
    pub model: Model,
    /// Where the fields and buffers lie.
    pub memory: MemoryKind,
    /// What the field holds at the start.
    pub seed: u64,
    /// Longest that the CPU waits at a time.
    pub limit: Duration,
    /// After which time without progress a rank asks the others whether they are there, and how
    /// long they may take to answer; who does not is lost. Less than a third of the context's
    /// time limit, so that a silent rank is found before those that wait for it are taken for
    /// silent, too. Eight times as long may pass until the last rank begins. A context that waits for room ([`mp::Full::Wait`]) does not answer meanwhile.
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

/// What came out: of one rank, or of all ([`Outcome::sum`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Cells computed.
    pub cells: u64,
    /// Cells that are not what the serial run has there.
    pub differing: u64,
    /// Sum of [`serial::checksum`] over the cells: the same whatever the grid.
    pub checksum: u64,
    /// How often the CPU waited between the first iteration and the last one's end.
    pub waits: u64,
    /// Time that the iterations took, by the clock of the GPU's driver.
    pub elapsed: Duration,
}

/// Computes this rank's tile and compares every cell with a serial run of the whole field.
///
/// # Errors
/// `Invalid` if the grid is not one of the context's ranks, has more columns or rows than the
/// field, or a batch is empty; `Timeout` if a stream did not end within the limit. `PeerFailed` or
/// `Timeout`, naming a rank, if that one is lost: the other ranks' errors name it as well, and
/// nothing of the run is under way between them any more. What the context says if a message
/// failed otherwise.
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
            return invalid(format!("a grid of {grid} for {} ranks", ctx.size()));
        }
        if grid.columns > self.size.width || grid.rows > self.size.height {
            return invalid(format!(
                "a field of {} cells for a grid of {grid}",
                self.size
            ));
        }
        if self.batch == 0 || self.batches_in_flight == 0 {
            return invalid("batches of no iterations, or none of them".to_owned());
        }
        let tile = grid.tile(ctx.rank(), self.size);
        // Kernels count cells by 32 bits.
        if u64::from(tile.width()) * u64::from(tile.height()) > u64::from(i32::MAX as u32) {
            return invalid(format!("a tile of {}x{}", tile.width(), tile.height()));
        }
        Ok(tile)
    }

    fn grid(&self, ctx: &Context) -> Grid {
        self.grid.unwrap_or_else(|| Grid::of(ctx.size()))
    }
}

/// Tags of the messages by which outcomes are summed.
const TAG_OUTCOME: u32 = 10;
const TAG_SUM: u32 = 11;

impl Outcome {
    const BYTES: usize = 5 * 8;

    /// Adds up what all ranks found; every rank gets the sum. Time is that of the slowest, and
    /// waits are those of the one that waited most.
    ///
    /// # Errors
    /// What the context says if a message failed.
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
            // Posted before rank 0 can have anything to send.
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
