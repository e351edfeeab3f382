//! A 2-D stencil on a grid of ranks, compared cell by cell with a serial run.
//!
//! The command line of the application; the library [`halo2d`] explains the method.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use halo2d::grid::{Grid, Size};
use halo2d::{Config, Model};
use mp::{Context, Full};
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 4 target/release/halo2d
          a grid of 2x2 ranks on this host, 100 iterations of 64x48 cells
  target/release/halo2d --ranks-as-threads 6 --grid 3x2 --size 960x640 --iters 1000
          six ranks as threads of one process";

/// Ranks compute a 2-D stencil and compare every cell with a serial run.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Columns and rows of ranks, for example 3x2 [default: the grid nearest to a square]
    #[arg(long)]
    grid: Option<Grid>,
    /// Columns and rows of cells of the whole field
    #[arg(long, default_value = "64x48")]
    size: Size,
    /// Number of iterations
    #[arg(long, default_value_t = 100)]
    iters: u64,
    /// Iterations that are enqueued between two waits of the CPU
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Batches that are enqueued before the CPU waits for the oldest
    #[arg(long, default_value_t = 4)]
    batches_in_flight: usize,
    /// Side that posts messages: cpu, stream or cpu-thread
    #[arg(long, value_enum, default_value_t = Model::Stream)]
    model: Model,
    /// Eager limit: longest message that is sent before its receive is posted, in bytes
    #[arg(long, default_value_t = 4096)]
    eager: usize,
    /// Seed of the field's initial cells
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest wait of the CPU, in seconds
    #[arg(long, default_value_t = 30)]
    limit: u64,
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let limit = Duration::from_secs(cli.limit);
    let set = |b: mp::Builder| {
        let b = b.eager_limit(cli.eager).timeout(limit);
        // A rank that waits for room must agree with the other ranks on those that are lost.
        b.full(Full::Fail)
    };
    ranks::play(&cli.ranks, set, |ctx| play(ctx, &cli, limit))
}

fn play(ctx: &Context, cli: &Cli, limit: Duration) -> Result<()> {
    let config = Config {
        grid: cli.grid,
        size: cli.size,
        iterations: cli.iters,
        batch: cli.batch,
        batches_in_flight: cli.batches_in_flight,
        model: cli.model,
        seed: cli.seed,
        limit,
        answer_limit: limit / 4,
        ..Config::default()
    };
    let mine = halo2d::run(ctx, &config)?;
    let all = mine.sum(ctx, limit)?;
    if ctx.rank() == 0 {
        println!(
            "halo2d: grid {}, {} iterations of {} cells, {} model, {:.1} us each, {} waits of \
             the CPU; checksum {:#018x}; {} of {} cells differ from the serial run: {}",
            config.grid.unwrap_or_else(|| Grid::of(ctx.size())),
            config.iterations,
            config.size,
            config.model,
            all.elapsed.as_secs_f64() * 1e6 / config.iterations.max(1) as f64,
            all.waits,
            all.checksum,
            all.differing,
            all.cells,
            if all.differing == 0 { "ok" } else { "failed" },
        );
    }
    // A launcher ends all ranks when one fails: no rank fails before rank 0 has printed this line.
    all.sum(ctx, limit)?;
    ensure!(
        all.differing == 0,
        "{} of this rank's cells differ from the serial run",
        mine.differing
    );
    Ok(())
}
