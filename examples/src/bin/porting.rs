//! A halo exchange that is ported from MPI in four versions. `porting/halo.c` is the MPI program,
//! `porting/halo.rs` has the versions, and `docs/porting.md` explains each.
//!
//! The program runs all versions, from the calls of MPI to a loop in which the CPU waits for
//! nothing, and compares their results with a serial run.

#[path = "../../porting/halo.rs"]
mod halo;

use anyhow::{Result, ensure};
use clap::Parser;
use halo::{LIMIT, Rank};
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, NULL_RANK};
use mp_examples::kernels::{Kernels, Step, WORD};
use mp_examples::ranks::{self, Options};
use mp_examples::strips::serial;

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 3 target/release/porting
          three ranks on this host, with strips of 16 rows of 64 cells (8 bytes each)
  target/release/porting --ranks-as-threads 3 --width 1000
          three ranks as threads; a row of 8000 bytes is a rendezvous message";

/// Ranks compute a stencil in four versions and compare every cell with a serial run.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Cells of a row, 8 bytes each
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    width: u32,
    /// Rows of each rank's strip
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    rows: u32,
}

const STEPS: usize = 20;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, &cli))
}

fn play(ctx: &Context, cli: &Cli) -> Result<()> {
    let (me, ranks) = (ctx.rank(), ctx.size());
    let (width, rows) = (cli.width as usize, cli.rows as usize);
    let rank = Rank {
        ctx,
        stream: ctx.gpu().stream()?,
        kernels: Kernels::load(ctx.gpu())?,
        width,
        rows,
        above: me.checked_sub(1).unwrap_or(NULL_RANK),
        below: Some(me + 1).filter(|r| *r < ranks).unwrap_or(NULL_RANK),
    };
    let len = (rows + 2) * (width + 2);
    let strip = || ctx.alloc(MemoryKind::Device, len * WORD);
    let strips = [strip()?, strip()?];
    let halos = [
        rank.neighbourhood(&strips[0])?,
        rank.neighbourhood(&strips[1])?,
    ];
    let time = ctx.alloc(MemoryKind::Device, WORD)?;
    let mut all = ctx.collectives(WORD)?;

    // The strip of this rank, with its halo, before the first step and behind the last.
    let whole = rows * ranks as usize;
    let of_mine = me as usize * rows * (width + 2)..;
    let (mut start, end) = (serial(width, whole, 0), serial(width, whole, STEPS as u64));
    let (start, end) = (&mut start[of_mine.clone()][..len], &end[of_mine][..len]);
    let own = (width + 2)..(len - width - 2);
    start[..own.start].fill(0);
    start[own.end..].fill(0);
    for version in 1..=4 {
        strips[0].write_slice(0, start)?;
        strips[1].write_slice(0, &vec![0_u64; len][..])?;
        time.write_slice(0, &[0_u64])?;
        for n in 0..STEPS {
            let [from, to] = [&strips[n % 2], &strips[(n + 1) % 2]];
            let at = [from, to].map(|strip| strip.region().addr());
            let step = Step::new(at[0], at[1], cli.width, cli.rows);
            match version {
                1 => rank.exchange_by_cpu(from, &step)?,
                2 => rank.exchange_on_stream(from, &step)?,
                _ => rank.exchange_with_neighbours(&halos[n % 2], &step)?,
            }
            // Stands for the kernel that computes the time: each rank allows another step.
            // SAFETY: as for the strips; the calls of the stream have one order.
            unsafe {
                rank.kernels
                    .add(&rank.stream, time.region().addr(), 1, u64::from(me) + 1)?
            };
            match version {
                4 => rank.reduce_on_stream(&mut all, &time)?,
                _ => rank.reduce_by_cpu(&mut all, &time)?,
            }
        }
        ctx.synchronize(&rank.stream, LIMIT)?;
        let (mut cells, mut now) = (vec![0_u64; len], [0_u64]);
        strips[STEPS % 2].read_slice(0, &mut cells)?;
        time.read_slice(0, &mut now)?;
        ensure!(
            cells[own.clone()] == end[own.clone()],
            "version {version}: a cell differs"
        );
        ensure!(
            now == [STEPS as u64],
            "version {version}: the time is {now:?}"
        );
    }
    println!("porting: rank {me} of {ranks}: 4 versions equal the serial run: ok");
    Ok(())
}
