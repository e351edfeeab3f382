//! A stencil on a column of ranks: each rank exchanges the edge rows of its strip with its two
//! neighbours.
//!
//! Shows a halo exchange in its simplest form. One stream posts the receives and the sends, runs
//! the kernel that needs no halo during the transfer, waits for the messages, and runs the kernel
//! that reads the halo. The CPU enqueues all steps and waits once.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use mp::Context;
use mp::gdsync::gpu::MemoryKind;
use mp_examples::kernels::{Kernels, Step, WORD};
use mp_examples::ranks::{self, Options};
use mp_examples::strips::serial;
use zerocopy::IntoBytes;

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 4 target/release/halo_simple
          four ranks on this host, with strips of 16 rows of 64 cells (8 bytes each)
  target/release/halo_simple --ranks-as-threads 3 --width 1000 --steps 50
          three ranks as threads; a row of 8000 bytes is a rendezvous message";

/// Ranks compute a stencil in strips of rows and compare every cell with a serial run.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Number of steps; all are enqueued before any wait
    #[arg(long, default_value_t = 100)]
    steps: u64,
    /// Cells of a row, 8 bytes each
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    width: u32,
    /// Rows of each rank's strip
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    rows: u32,
}

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 1;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, &cli))
}

fn play(ctx: &Context, cli: &Cli) -> Result<()> {
    let (me, ranks) = (ctx.rank(), ctx.size());
    let (width, rows) = (cli.width as usize, cli.rows as usize);
    let kernels = Kernels::load(ctx.gpu())?;
    let stream = ctx.gpu().stream()?;

    // A strip has a ring of one cell around it: the halo rows, and columns that stay zero. A kernel
    // reads one of two strips and writes the other.
    let pitch = width + 2;
    let strip = || ctx.alloc(MemoryKind::Device, (rows + 2) * pitch * WORD); // zeroed
    let strips = [strip()?, strip()?];
    let whole = serial(width, rows * ranks as usize, 0);
    let mine = (1 + me as usize * rows) * pitch..(1 + (me as usize + 1) * rows) * pitch;
    strips[0].write(pitch * WORD, whole[mine.clone()].as_bytes())?;

    // Each neighbour, the row that it gets, and the halo row that it sends.
    let above = (me > 0).then(|| (me - 1, 1, 0));
    let below = (me + 1 < ranks).then_some((me + 1, rows, rows + 1));
    let neighbours: Vec<_> = above.into_iter().chain(below).collect();

    for step in 0..cli.steps as usize {
        let [from, to] = [&strips[step % 2], &strips[(step + 1) % 2]];
        let row = |y: usize| from.slice((y * pitch + 1) * WORD, width * WORD);
        let mut requests = Vec::new();
        // Receives come first: a long message waits for its receive.
        for &(rank, _, halo) in &neighbours {
            requests.push(ctx.irecv_on(&stream, rank, TAG, &row(halo)?)?);
        }
        for &(rank, edge, _) in &neighbours {
            requests.push(ctx.isend_on(&stream, rank, TAG, &row(edge)?)?);
        }
        let [past, future] = [from, to].map(|strip| strip.region().addr());
        let step = Step::new(past, future, cli.width, cli.rows);
        // SAFETY: the strips live until the stream has been synchronised. Messages write only the
        // halo, which this kernel does not read.
        unsafe { kernels.interior(&stream, &step)? };
        for request in &requests {
            request.wait_on(&stream)?;
        }
        // SAFETY: as above; the messages have arrived.
        unsafe { kernels.boundary(&stream, &step)? };
    }
    ctx.synchronize(&stream, LIMIT)?;

    let mut cells = vec![0_u64; rows * pitch];
    strips[cli.steps as usize % 2].read(pitch * WORD, cells.as_mut_bytes())?;
    let whole = serial(width, rows * ranks as usize, cli.steps);
    let differing = cells.iter().zip(&whole[mine]).filter(|(a, b)| a != b);
    let differing = differing.count();
    ensure!(
        differing == 0,
        "{differing} cells differ from the serial run"
    );
    println!(
        "halo_simple: rank {me} of {ranks}: {rows} rows of {width} cells, {} steps, every cell \
         equals the serial run: ok",
        cli.steps
    );
    Ok(())
}
