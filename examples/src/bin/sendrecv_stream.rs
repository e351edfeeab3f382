//! Two ranks and their streams: kernels and messages in one order, and a CPU that has nothing to
//! do with it.
//!
//! Teaches: a message posted on a stream is sent when the stream comes to it, and the stream goes
//! on behind a receive when the message is there. So the kernels before and after need no other
//! synchronisation, and everything can be enqueued before anything has happened.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use mp::Context;
use mp::gdsync::gpu::MemoryKind;
use mp_examples::kernels::{Kernels, WORD};
use mp_examples::ranks::{self, Options};

/// Two ranks pass an array to and fro on their streams, each adding to it by a kernel.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// How often the array goes there and back; all of it is enqueued before any wait
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Words of the array, of 8 bytes each
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..))]
    words: u64,
}

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 1;
/// What rank 0 adds, and what rank 1 adds.
const ADDED: [u64; 2] = [1, 1000];

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, &cli))
}

fn play(ctx: &Context, cli: &Cli) -> Result<()> {
    ranks::expect(ctx, 2)?;
    let (me, peer) = (ctx.rank(), 1 - ctx.rank());
    let kernels = Kernels::load(ctx.gpu())?;
    let memory = ctx.alloc(MemoryKind::Device, cli.words as usize * WORD)?;
    let array = memory.region().addr();
    let stream = ctx.gpu().stream()?;

    let add = || {
        // SAFETY: the array lives until the stream has been synchronised, and the stream's order
        // keeps kernels and messages from using it at once.
        unsafe { kernels.add(&stream, array, cli.words, ADDED[me as usize]) }
    };
    let receive = || {
        ctx.irecv_on(&stream, peer, TAG, &memory.all())?
            .wait_on(&stream)
    };
    // The wait keeps the next kernel or receive from changing what is still being sent. The
    // request itself is dropped: the stream knows all that is needed.
    let send = || {
        ctx.isend_on(&stream, peer, TAG, &memory.all())?
            .wait_on(&stream)
    };

    let start = Instant::now();
    for _ in 0..cli.rounds {
        if me == 0 {
            add()?;
            send()?;
            receive()?;
        } else {
            receive()?;
            add()?;
            send()?;
        }
    }
    let enqueued = start.elapsed();

    // The only wait of the CPU.
    ctx.synchronize(&stream, LIMIT)?;
    let done = start.elapsed();

    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes)?;
    let right = cli.rounds * (ADDED[0] + ADDED[1]);
    let (words, _) = bytes.as_chunks();
    let wrong = words.iter().position(|w| u64::from_ne_bytes(*w) != right);
    if let Some(i) = wrong {
        let got = u64::from_ne_bytes(words[i]);
        return Err(anyhow::anyhow!("word {i} is {got}, not {right}")).context("the array");
    }
    if me == 0 {
        println!(
            "sendrecv_stream: {} words went there and back {} times; enqueued in {enqueued:.1?}, \
             done after {done:.1?}, every word is {right}: ok",
            cli.words, cli.rounds
        );
    }
    Ok(())
}
