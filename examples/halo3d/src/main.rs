//! A stencil with 26 neighbours, compared cell by cell with a serial run.
//!
//! The command line of the application; the library [`halo3d`] explains the method.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use halo3d::Config;
use mp::Context;
use mp_examples::grid::Grid;
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 8 target/release/halo3d
          a grid of 2x2x2 ranks on this host, 50 steps of 16x16x16 cells
  target/release/halo3d --ranks-as-threads 3 --grid 1x3x1 --cells 24x20x8
          three ranks as threads of one process";

/// Ranks compute a stencil of 27 points and compare every cell with a serial run.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Ranks along x, y and z, for example 2x2x1 [default: the grid with the smallest surface]
    #[arg(long)]
    grid: Option<Grid>,
    /// Cells of the whole box along x, y and z
    #[arg(long, default_value = "16x16x16")]
    cells: Grid,
    /// Number of steps
    #[arg(long, default_value_t = 50)]
    steps: u64,
    /// Longest wait of the CPU, in seconds
    #[arg(long, default_value_t = 30)]
    limit: u64,
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let limit = Duration::from_secs(cli.limit);
    ranks::play(
        &cli.ranks,
        |b| b.timeout(limit),
        |ctx| play(ctx, &cli, limit),
    )
}

fn play(ctx: &Context, cli: &Cli, limit: Duration) -> Result<()> {
    let config = Config {
        grid: cli.grid,
        cells: cli.cells,
        steps: cli.steps,
        limit,
    };
    let (cells, differing) = halo3d::run(ctx, &config)?;
    ensure!(
        differing == 0,
        "{differing} of {cells} cells differ from the serial run"
    );
    println!(
        "halo3d: rank {} of {}: {} steps, all {cells} cells of its part of two fields of {} equal \
         the serial run: ok",
        ctx.rank(),
        ctx.size(),
        config.steps,
        config.cells,
    );
    Ok(())
}
