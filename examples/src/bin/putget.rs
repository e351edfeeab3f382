//! Any number of ranks with one-sided operations: each rank writes and reads the memory of all
//! others, without a receive.
//!
//! Shows puts, signals, gets and atomic additions, in one round posted by the CPU, and in another by
//! a stream. The CPU enqueues the whole round of the stream and waits once.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use mp::gdsync::gpu::{Condition::Geq, MemoryKind::Device};
use mp::{Context, Memory, Window, wait_all};
use mp_examples::kernels::WORD;
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 3 target/release/putget
          three ranks on this host, blocks of 1000 words
  target/release/putget --ranks-as-threads 5 --words 1
          five ranks as threads of one process, blocks of 8 bytes";

/// Each rank puts a block of words into the memory of all others, and gets it back.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Words of a block, 8 bytes each
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    words: u32,
}

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(&cli.ranks, |b| b, |ctx| play(ctx, cli.words as usize))
}

fn play(ctx: &Context, words: usize) -> Result<()> {
    let (me, ranks) = (ctx.rank(), ctx.size());
    by_cpu(&Blocks::new(ctx, words, 1)?)?;
    by_stream(ctx, &Blocks::new(ctx, words, 2)?)?;
    ctx.collectives(WORD)?.barrier(LIMIT)?; // no rank leaves while another waits
    println!("putget: rank {me} of {ranks}: blocks of {words} words put and got, all right: ok");
    Ok(())
}

/// The window has a block of each rank, a counter, and the signal of each rank. The local memory has
/// the same parts: the blocks got back from each rank, and the former values of their counters.
struct Blocks {
    bytes: usize,
    ranks: u32,
    me: u32,
    window: Window,
    local: Memory,
}

impl Blocks {
    #[rustfmt::skip]
    fn new(ctx: &Context, words: usize, round: u64) -> Result<Blocks> {
        let (bytes, ranks, me) = (words * WORD, ctx.size(), ctx.rank());
        let all = ranks as usize * (bytes + WORD) + WORD;
        let (shared, local) = (ctx.alloc(Device, all)?, ctx.alloc(Device, all)?); // zeroed
        shared.write_slice(me as usize * words, &block(me, words, round))?;
        let window = ctx.window(&shared)?; // all ranks call it
        Ok(Blocks { bytes, ranks, me, window, local })
    }

    fn others(&self) -> impl Iterator<Item = u32> {
        (0..self.ranks).filter(|rank| *rank != self.me)
    }

    /// The offset of a rank's block; the counter is behind the last block.
    fn at(&self, rank: u32) -> usize {
        rank as usize * self.bytes
    }
    /// The offset of a rank's word.
    fn word(&self, rank: u32) -> usize {
        self.at(self.ranks) + (1 + rank as usize) * WORD
    }

    fn check(&self, round: u64) -> Result<()> {
        for rank in self.others() {
            for (memory, of) in [(self.window.memory(), rank), (&self.local, self.me)] {
                let mut words = vec![0_u64; self.bytes / WORD];
                memory.read_slice(self.at(rank) / WORD, &mut words)?;
                let right = words == block(of, words.len(), round);
                ensure!(right, "the block of rank {of} at place {rank} is wrong");
            }
        }
        Ok(())
    }
}

/// The words of a rank's block in a round.
fn block(rank: u32, words: usize, round: u64) -> Vec<u64> {
    let first = round << 48 | u64::from(rank) << 32;
    (first..first + words as u64).collect()
}

fn by_cpu(b: &Blocks) -> Result<()> {
    let (window, mine, counter) = (&b.window, b.at(b.me), b.at(b.ranks));
    let block = window.memory().slice(mine, b.bytes)?;
    let mut requests = vec![];
    for rank in b.others() {
        // The signal becomes visible behind the put, and the get reads what the put has written.
        requests.push(window.put_signal(rank, mine, &block, b.word(b.me), 1)?);
        let back = b.local.slice(b.at(rank), b.bytes)?;
        requests.push(window.get(rank, mine, &back)?);
    }
    wait_all(&requests, LIMIT)?;
    for rank in b.others() {
        window.wait_signal(rank, b.word(rank), Geq, 1, LIMIT)?;
        let former = b.local.slice(b.word(rank), WORD)?;
        window.fetch_add(rank, counter, 1, &former)?.wait(LIMIT)?;
    }
    // All others have added 1: their operations on this memory have ended.
    for rank in b.others() {
        window.wait_signal(rank, counter, Geq, u64::from(b.ranks) - 1, LIMIT)?;
    }
    b.check(1)
}

fn by_stream(ctx: &Context, b: &Blocks) -> Result<()> {
    let stream = ctx.gpu().stream()?;
    let (window, mine, counter) = (&b.window, b.at(b.me), b.at(b.ranks));
    let block = window.memory().slice(mine, b.bytes)?;
    let mut requests = vec![];
    for rank in b.others() {
        // A put and a signal, which `put_signal_on` does in one call.
        requests.push(window.put_on(&stream, rank, mine, &block)?);
        requests.push(window.signal_on(&stream, rank, b.word(b.me), 1)?);
        let back = b.local.slice(b.at(rank), b.bytes)?;
        requests.push(window.get_on(&stream, rank, mine, &back)?);
    }
    ctx.wait_all_on(&stream, &requests)?;
    for rank in b.others() {
        window.wait_signal_on(&stream, rank, b.word(rank), Geq, 1)?;
        let former = b.local.slice(b.word(rank), WORD)?;
        let add = window.fetch_add_on(&stream, rank, counter, 1, &former)?;
        add.wait_on(&stream)?;
    }
    for rank in b.others() {
        window.wait_signal_on(&stream, rank, counter, Geq, u64::from(b.ranks) - 1)?;
    }
    ctx.synchronize(&stream, LIMIT)?;
    b.check(2)
}
