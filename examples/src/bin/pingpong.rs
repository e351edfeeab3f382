//! Messages of changing lengths between two ranks, and the error of a dead peer.
//!
//! Shows that a program needs no call to detect a dead peer. A request with the peer, and a wait
//! for a message from it, return an error that names the rank and the kind of failure, at the
//! latest when the time limit of the context has passed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use mp::gdsync::gpu::{MemoryKind, Stream};
use mp::{Context, Kind, Memory};
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 2 target/release/pingpong --rounds 100 --longest 64
          100 round trips of messages of 1 to 64 bytes, which are eager messages
  target/release/pingpong --ranks-as-threads 2
          1000 round trips of messages of 1 to 20000 bytes, two ranks as threads";

/// Two ranks send each other messages of changing lengths and compare every byte.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
    /// Number of round trips
    #[arg(long, default_value_t = 1000)]
    rounds: u64,
    /// Longest message, in bytes; with enough rounds, every length up to it occurs
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    longest: u32,
    /// Time limit for the detection of a failed peer, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Run until the peer fails: the error must name it and arrive within the time limit
    #[arg(long)]
    until_it_fails: bool,
}

const TAG: u32 = 1;
/// Difference of the lengths of two consecutive rounds, in bytes: short messages follow long ones.
const STRIDE: u64 = 7919;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let limit = Duration::from_secs(cli.timeout);
    // The context detects the failure within its own, shorter time limit.
    let set = |b: mp::Builder| b.timeout(limit * 3 / 4);
    ranks::play(&cli.ranks, set, |ctx| {
        ranks::expect(ctx, 2)?;
        let exchange = Exchange {
            ctx,
            stream: ctx.gpu().stream()?,
            memory: ctx.alloc(MemoryKind::Device, cli.longest as usize)?,
            limit,
        };
        match cli.until_it_fails {
            true => exchange.until_it_fails(),
            false => exchange.play(cli.rounds),
        }
    })
}

/// One rank's side of the exchange.
struct Exchange<'c> {
    ctx: &'c Context,
    stream: Stream,
    memory: Memory,
    limit: Duration,
}

impl Exchange<'_> {
    fn play(&self, rounds: u64) -> Result<()> {
        (0..rounds).try_for_each(|round| self.round(round))?;
        let (rank, longest) = (self.ctx.rank(), self.memory.len());
        let bytes: u64 = (0..rounds).map(|round| self.len(round)).sum();
        println!(
            "pingpong: rank {rank} had {rounds} messages of 1 to {longest} bytes, {bytes} in all, \
             every byte is right: ok"
        );
        Ok(())
    }

    fn until_it_fails(&self) -> Result<()> {
        let (peer, limit) = (1 - self.ctx.rank(), self.limit);
        let (mut rounds, mut last) = (0, Instant::now());
        let error = loop {
            match self.round(rounds) {
                Ok(()) => (rounds, last) = (rounds + 1, Instant::now()),
                Err(e) => break e,
            }
        };
        let silent = last.elapsed();
        let known = error.downcast_ref::<mp::Error>();
        let Some((Some(rank), Kind::PeerFailed(why))) = known.map(|e| (e.rank(), e.kind())) else {
            return Err(error).context("the error is not a failure of the peer");
        };
        ensure!(
            rank == peer && silent <= limit,
            "the error came {silent:.1?} after the last round; the limit is {limit:?}: {error:#}"
        );
        println!("pingpong: the error: {error:#}");
        println!(
            "pingpong: after {rounds} rounds with every byte right, rank {peer} is gone: \
             PeerFailed({why:?}), {silent:.1?} after the last round, limit {limit:?}: ok"
        );
        Ok(())
    }

    /// Exchanges one message in each direction, that of rank 0 first.
    fn round(&self, round: u64) -> Result<()> {
        let (ctx, stream, memory) = (self.ctx, &self.stream, &self.memory);
        let peer = 1 - ctx.rank();
        // Longer than the time limit of the context, whose error must come first.
        let limit = 2 * self.limit;
        for from in [0, 1] {
            let message = self.message(round, from);
            if from == ctx.rank() {
                memory.write(0, &message)?;
                let data = memory.slice(0, message.len())?;
                ctx.isend_on(stream, peer, TAG, &data)?.wait(limit)?;
            } else {
                memory.write(0, &vec![0; memory.len()])?;
                let received = ctx.irecv_on(stream, peer, TAG, &memory.all())?;
                received.wait_on(stream)?;
                let mut got = vec![0; received.wait(limit)?.len as usize];
                memory.read(0, &mut got)?;
                let wrong = got.iter().zip(&message).position(|(a, b)| a != b);
                ensure!(
                    got == message,
                    "in round {round}, a byte is wrong: {wrong:?}"
                );
            }
        }
        Ok(())
    }

    /// The length of the messages of a round.
    fn len(&self, round: u64) -> u64 {
        1 + round * STRIDE % self.memory.len() as u64
    }

    /// The message that rank `from` sends in this round.
    fn message(&self, round: u64, from: u32) -> Vec<u8> {
        let byte = |i: u64| (round * 31 + u64::from(from) * 7 + i + i / 251) as u8;
        (0..self.len(round)).map(byte).collect()
    }
}
