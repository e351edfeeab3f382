//! Any number of ranks in a ring: a token passes around the ring, and a kernel of each rank adds to
//! it between the receive and the send.
//!
//! Shows that the order of one stream per rank is enough for a chain of dependences over many GPUs.
//! No CPU reads the token on its way or announces its arrival.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use mp::Context;
use mp::gdsync::gpu::MemoryKind;
use mp_examples::kernels::{Kernels, WORD};
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 3 target/release/ring
          three ranks on this host, 8 laps
  target/release/ring --ranks-as-threads 5 --laps 300
          five ranks as threads of one process";

/// Ranks pass a token around a ring on their streams; each adds its number plus one.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Number of laps of the token
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    laps: u64,
}

const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: u32 = 1;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, cli.laps))
}

fn play(ctx: &Context, laps: u64) -> Result<()> {
    let (me, ranks) = (ctx.rank(), ctx.size());
    let (before, after) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
    let mine = u64::from(me) + 1;

    let kernels = Kernels::load(ctx.gpu())?;
    let memory = ctx.alloc(MemoryKind::Device, WORD)?; // zeroed
    let stream = ctx.gpu().stream()?;
    for lap in 0..laps {
        // Rank 0 has the token at the start and at the end.
        if me != 0 || lap != 0 {
            ctx.irecv_on(&stream, before, TOKEN, &memory.all())?
                .wait_on(&stream)?;
        }
        // SAFETY: the word lives until the stream has been synchronised, and messages use it before
        // and after the kernel in the stream's order.
        unsafe { kernels.add(&stream, memory.region().addr(), 1, mine)? };
        ctx.isend_on(&stream, after, TOKEN, &memory.all())?
            .wait_on(&stream)?;
    }
    if me == 0 {
        ctx.irecv_on(&stream, before, TOKEN, &memory.all())?
            .wait_on(&stream)?;
    }
    ctx.synchronize(&stream, LIMIT)?;

    // The expected word: the laps that the token has completed, and the ranks of this lap so far.
    let mut bytes = [0; WORD];
    memory.read(0, &mut bytes)?;
    let token = u64::from_ne_bytes(bytes);
    let n = u64::from(ranks);
    let lap = n * (n + 1) / 2;
    let right = match me {
        0 => laps * lap,
        _ => (laps - 1) * lap + mine * (mine + 1) / 2,
    };
    ensure!(token == right, "the token is {token}, not {right}");
    if me == 0 {
        println!("ring: {ranks} ranks, {laps} laps, the token is {token} as it should be: ok");
    }
    Ok(())
}
