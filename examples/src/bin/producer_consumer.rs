//! Two ranks and their streams: one produces items into a ring of slots, the other consumes them.
//!
//! Shows flow control by one-sided operations. The producer's kernel writes an item, and its stream
//! puts the item into a slot of the consumer, with a signal behind it. The consumer's stream waits
//! for the signal, a kernel checks the item, and the stream returns a credit for the slot. No CPU
//! takes part: it enqueues the work and waits at the end.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use mp::Context;
use mp::gdsync::gpu::{Condition, MemoryKind};
use mp_examples::items::Items;
use mp_examples::kernels::WORD;
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 2 target/release/producer_consumer
          1000 items of 8 KiB, in a ring of 8 slots
  target/release/producer_consumer --ranks-as-threads 2 --slots 1 --words 100 --items 50
          items of 800 bytes, one at a time, two ranks as threads of one process";

/// Rank 0 produces items on its stream, rank 1 consumes them on its stream.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Number of items
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    items: u64,
    /// Slots of the ring: items that the producer may be ahead of the consumer
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    slots: u64,
    /// Words of an item, 8 bytes each
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    words: u64,
}

const LIMIT: Duration = Duration::from_secs(60);
const PRODUCER: u32 = 0;
const CONSUMER: u32 = 1;
/// Items between two waits of the CPU: a stream that waits takes some hundred operations ahead.
const AHEAD: u64 = 100;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, &cli))
}

fn play(ctx: &Context, cli: &Cli) -> Result<()> {
    ranks::expect(ctx, 2)?;
    let kernels = Items::load(ctx.gpu())?;
    let stream = ctx.gpu().stream()?;

    // The same memory at both ranks: the slots, a word for the signals of the other rank, and the
    // counts of the kernel that checks. The producer's slots are the sources of its puts.
    let (bytes, ring) = (cli.words as usize * WORD, cli.slots as usize);
    let signal = ring * bytes;
    let memory = ctx.alloc(MemoryKind::Device, signal + 3 * WORD)?; // zeroed
    let window = ctx.window(&memory)?;
    let found = memory.slice(signal + WORD, 2 * WORD)?;

    let start = Instant::now();
    for item in 0..cli.items {
        let offset = (item % cli.slots) as usize * bytes;
        let slot = memory.slice(offset, bytes)?;
        if ctx.rank() == PRODUCER {
            // The credit says that the slot is free at both ranks: the consumer has taken what the
            // put has read.
            if let Some(free) = item.checked_sub(cli.slots) {
                window.wait_signal_on(&stream, CONSUMER, signal, Condition::Geq, free + 1)?;
            }
            // SAFETY: the memory lives until the stream has been synchronised, and the slot is free.
            unsafe { kernels.write(&stream, &slot, item)? };
            // The request can be dropped: the put completes by itself.
            drop(window.put_signal_on(&stream, CONSUMER, offset, &slot, signal, item + 1)?);
        } else {
            window.wait_signal_on(&stream, PRODUCER, signal, Condition::Geq, item + 1)?;
            // SAFETY: as above; the item has arrived, and its slot is not reused before the credit.
            unsafe { kernels.check(&stream, &slot, item, &found)? };
            drop(window.signal_on(&stream, PRODUCER, signal, item + 1)?);
        }
        if item % AHEAD == AHEAD - 1 {
            ctx.synchronize(&stream, LIMIT)?;
        }
    }
    if ctx.rank() == PRODUCER {
        // The consumer writes credits into this memory, which must stay until the last one.
        window.wait_signal_on(&stream, CONSUMER, signal, Condition::Geq, cli.items)?;
    }
    ctx.synchronize(&stream, LIMIT)?;
    let rate = cli.items as f64 / start.elapsed().as_secs_f64();

    if ctx.rank() == CONSUMER {
        let mut counts = [0_u64; 2];
        found.read_slice(0, &mut counts)?;
        let (compared, wrong) = (counts[0], counts[1]);
        ensure!(wrong == 0, "{wrong} words of {compared} are wrong");
        let all = cli.items * cli.words;
        ensure!(compared == all, "{compared} words were compared, not {all}");
        println!(
            "producer_consumer: {} items of {bytes} bytes through {ring} slots, {rate:.0} items a \
             second, every word is right: ok",
            cli.items
        );
    }
    Ok(())
}
