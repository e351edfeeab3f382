//! A halo exchange that is ported from MPI in four versions. `porting/halo.c` is the MPI program,
//! `porting/halo.rs` has the versions, and `docs/porting.md` explains each.
//!
//! The program runs all versions, from the calls of MPI to a loop in which the CPU waits for
//! nothing, and compares their results with a serial run.

#[path = "../../porting/halo.rs"]
mod halo;

use std::ops::Range;

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
    let part = Part::of(me as usize, ranks as usize, width, rows);
    let strip = || ctx.alloc(MemoryKind::Device, part.start.len() * WORD);
    let strips = [strip()?, strip()?];
    let halos = [
        rank.neighbourhood(&strips[0])?,
        rank.neighbourhood(&strips[1])?,
    ];
    let time = ctx.alloc(MemoryKind::Device, WORD)?;
    let mut all = ctx.collectives(WORD)?;

    for version in 1..=4 {
        strips[0].write_slice(0, &part.start)?;
        strips[1].write_slice(0, &vec![0_u64; part.start.len()][..])?;
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
            let (kernels, time_at) = (&rank.kernels, time.region().addr());
            // SAFETY: as for the strips; the calls of the stream have one order.
            unsafe { kernels.add(&rank.stream, time_at, 1, u64::from(me) + 1)? };
            match version {
                4 => rank.reduce_on_stream(&mut all, &time)?,
                _ => rank.reduce_by_cpu(&mut all, &time)?,
            }
        }
        ctx.synchronize(&rank.stream, LIMIT)?;
        let (mut cells, mut now) = (vec![0_u64; part.end.len()], [0_u64]);
        strips[STEPS % 2].read_slice(0, &mut cells)?;
        time.read_slice(0, &mut now)?;
        let equal = cells[part.own.clone()] == part.end[part.own.clone()];
        ensure!(equal, "version {version}: a cell differs");
        let right = now == [STEPS as u64];
        ensure!(right, "version {version}: the time is {now:?}");
    }
    println!("porting: rank {me} of {ranks}: 4 versions equal the serial run: ok");
    Ok(())
}

/// The strip of a rank with its halo, before the first step and behind the last of a serial run.
struct Part {
    start: Vec<u64>,
    end: Vec<u64>,
    /// The cells of the rank.
    own: Range<usize>,
}

impl Part {
    fn of(rank: usize, ranks: usize, width: usize, rows: usize) -> Part {
        let (pitch, len) = (width + 2, (rows + 2) * (width + 2));
        let strip = |steps: usize| {
            let whole = serial(width, rows * ranks, steps as u64);
            whole[rank * rows * pitch..][..len].to_vec()
        };
        let own = pitch..len - pitch;
        let mut start = strip(0);
        start[..own.start].fill(0);
        start[own.end..].fill(0);
        let end = strip(STEPS);
        Part { start, end, own }
    }
}
