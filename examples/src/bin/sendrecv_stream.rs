//! Two ranks and their streams: kernels and messages in one order, without the CPU.
//!
//! Shows that a stream sends a message when it reaches the send, and continues after a receive when
//! the message has arrived. Kernels before and after need no other synchronisation, and the program
//! can enqueue everything before the first operation executes.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use mp::Context;
use mp::gdsync::gpu::MemoryKind;
use mp_examples::kernels::{Kernels, WORD};
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 2 target/release/sendrecv_stream --rounds 50 --words 512
          an array of 4 KiB, the longest eager message, there and back 50 times
  target/release/sendrecv_stream --ranks-as-threads 2
          an array of 64 KiB, 8 times, two ranks as threads of one process";

/// Two ranks pass an array back and forth on their streams; a kernel of each adds to it.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Number of round trips of the array; all are enqueued before any wait
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Words of the array, 8 bytes each
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..))]
    words: u64,
}

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 1;
/// The numbers that rank 0 and rank 1 add.
const ADDED: [u64; 2] = [1, 1000];

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, &cli))
}

fn play(ctx: &Context, cli: &Cli) -> Result<()> {
    ranks::expect(ctx, 2)?;
    let (me, peer) = (ctx.rank(), 1 - ctx.rank());
    let kernels = Kernels::load(ctx.gpu())?;
    // Zeroed. The section "Data of your own" of examples/README.md fills it with other values.
    let memory = ctx.alloc(MemoryKind::Device, cli.words as usize * WORD)?;
    let array = memory.region().addr();
    let stream = ctx.gpu().stream()?;

    let add = || {
        // SAFETY: the array lives until the stream has been synchronised, and the stream's order
        // keeps kernels and messages from using it at the same time.
        unsafe { kernels.add(&stream, array, cli.words, ADDED[me as usize]) }
    };
    let receive = || {
        ctx.irecv_on(&stream, peer, TAG, &memory.all())?
            .wait_on(&stream)
    };
    // The wait keeps the next kernel or receive from overwriting data that is still being sent. The
    // request itself can be dropped: the stream holds all that it needs.
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
        anyhow::bail!("word {i} of the array is {got}, not {right}");
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
