//! A stencil on a column of ranks: each rank exchanges the edge rows of its strip with its two
//! neighbours. One stream posts the receives and the sends, runs the kernel that needs no halo
//! during the transfer, waits for the messages, and runs the kernel that reads the halo.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, NULL_RANK};
use mp_examples::kernels::{Kernels, Step, WORD};
use mp_examples::ranks::{self, Options};
use mp_examples::strips::serial;

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
    let (me, ranks, steps) = (ctx.rank(), ctx.size(), cli.steps);
    let (width, rows) = (cli.width as usize, cli.rows as usize);
    let kernels = Kernels::load(ctx.gpu())?;
    let stream = ctx.gpu().stream()?;
    // A strip has a ring of one cell around it: the halo rows, and columns that stay zero. A kernel
    // reads one of two strips and writes the other.
    let pitch = width + 2;
    let strip = || ctx.alloc(MemoryKind::Device, (rows + 2) * pitch * WORD); // zeroed
    let strips = [strip()?, strip()?];
    let mine = (1 + me as usize * rows) * pitch..(1 + (me as usize + 1) * rows) * pitch;
    let whole = |steps| serial(width, rows * ranks as usize, steps);
    strips[0].write_slice(pitch, &whole(0)[mine.clone()])?;
    // A message to or from the null rank is none.
    let above = if me > 0 { me - 1 } else { NULL_RANK };
    let below = if me + 1 < ranks { me + 1 } else { NULL_RANK };
    for step in 0..steps as usize {
        let [from, to] = [&strips[step % 2], &strips[(step + 1) % 2]];
        let row = |y: usize| from.slice_of::<u64>(y * pitch + 1, width);
        let messages = [
            // Receives come first: a long message waits for its receive.
            ctx.irecv_on(&stream, above, TAG, &row(0)?)?,
            ctx.irecv_on(&stream, below, TAG, &row(rows + 1)?)?,
            ctx.isend_on(&stream, above, TAG, &row(1)?)?,
            ctx.isend_on(&stream, below, TAG, &row(rows)?)?,
        ];
        let [past, future] = [from, to].map(|strip| strip.region().addr());
        let step = Step::new(past, future, cli.width, cli.rows);
        // SAFETY: the strips live until the stream is idle. Messages write only the halo.
        unsafe { kernels.interior(&stream, &step)? };
        ctx.wait_all_on(&stream, &messages)?;
        // SAFETY: as above; the messages have arrived.
        unsafe { kernels.boundary(&stream, &step)? };
    }
    ctx.synchronize(&stream, LIMIT)?;
    let mut cells = vec![0_u64; rows * pitch];
    strips[steps as usize % 2].read_slice(pitch, &mut cells)?;
    ensure!(cells == whole(steps)[mine], "cells are wrong");
    let size = format!("{rows} rows of {width} cells, {steps} steps");
    println!("halo_simple: rank {me} of {ranks}: {size}, every cell equals the serial run: ok");
    Ok(())
}
