//! A Lennard-Jones fluid in a periodic box, compared with a serial run.
//!
//! The command line of the application; the library [`particles`] explains the method.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use mp::Context;
use mp_examples::ranks::{self, Options};
use particles::{Config, Grid};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 4 target/release/particles
          a grid of 2x2x1 ranks on this host, 200 steps of 512 particles
  target/release/particles --ranks-as-threads 8 --cells 8x8x8 --steps 1000 --no-serial
          eight ranks as threads of one process, without the comparison";

/// Ranks simulate particles in a box and compare all of them with a serial run.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Ranks along x, y and z, for example 2x2x1 [default: the grid with the smallest surface]
    #[arg(long)]
    grid: Option<Grid>,
    /// Cells of the whole box along x, y and z, with 8 particles each; 2 cells or more on each rank
    #[arg(long, default_value = "4x4x4")]
    cells: Grid,
    /// Number of steps
    #[arg(long, default_value_t = 200)]
    steps: u64,
    /// Steps that are enqueued between two waits of the CPU
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=16))]
    batch: u64,
    /// Seed of the initial state
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not compare with the serial run
    #[arg(long)]
    no_serial: bool,
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
        batch: cli.batch,
        seed: cli.seed,
        serial: !cli.no_serial,
        limit,
    };
    let outcome = particles::run(ctx, &config)?;
    let failures = outcome.failures();
    let exact = |is: bool| if is { "exact" } else { "wrong" };
    if ctx.rank() == 0 {
        println!(
            "particles: grid {}, {} steps of {} particles, {:.1} us each; count {}, momentum {}, \
             energy {:.6} within {:.1e}, checksum {:#018x}{}: {}",
            config.grid.unwrap_or_else(|| Grid::of(ctx.size())),
            config.steps,
            outcome.particles,
            outcome.elapsed.as_secs_f64() * 1e6 / config.steps.max(1) as f64,
            exact(outcome.count_is_exact()),
            exact(outcome.momentum_is_exact()),
            outcome.totals[0].energy(),
            outcome.drift(),
            outcome.checksum,
            match config.serial {
                true => format!("; {} differ from the serial run", outcome.differing),
                false => String::new(),
            },
            if failures.is_empty() { "ok" } else { "failed" },
        );
    }
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}
