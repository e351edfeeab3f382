//! Two ranks exchange messages of changing lengths; the program also shows the error of a dead
//! peer.
//!
//! Shows that a program needs no call to detect a dead peer. A request with the peer, and a wait
//! for a message from it, return an error that names the rank and the kind of failure, at the
//! latest when the time limit of the context has passed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use mp::gdsync::gpu::{MemoryKind, Stream};
use mp::{Context, Kind, Memory};
use mp_examples::ranks::{self, Options};

/// Two ranks send each other messages of changing lengths and compare every byte.
#[derive(Parser)]
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
    ranks::play(
        &cli.ranks,
        // The context detects the failure a little later than its time limit.
        |b| b.timeout(limit * 3 / 4),
        |ctx| {
            ranks::expect(ctx, 2)?;
            let mut table = Table::new(ctx, cli.longest, limit)?;
            match cli.until_it_fails {
                true => outlive(&mut table, ctx, limit),
                false => finish(&mut table, cli.rounds),
            }
        },
    )
}

/// The state of a rank in the exchange.
struct Table<'c> {
    ctx: &'c Context,
    stream: Stream,
    leaving: Memory,
    arriving: Memory,
    longest: u64,
    limit: Duration,
    rounds: u64,
    bytes: u64,
    /// When the last message arrived.
    last: Instant,
}

impl Table<'_> {
    fn new(ctx: &Context, longest: u32, limit: Duration) -> Result<Table<'_>> {
        Ok(Table {
            ctx,
            stream: ctx.gpu().stream()?,
            leaving: ctx.alloc(MemoryKind::Device, longest as usize)?,
            arriving: ctx.alloc(MemoryKind::Device, longest as usize)?,
            longest: longest.into(),
            limit,
            rounds: 0,
            bytes: 0,
            last: Instant::now(),
        })
    }

    /// Exchanges one message in each direction.
    fn round(&mut self) -> Result<()> {
        if self.ctx.rank() == 0 {
            self.send()?;
            self.receive()?;
        } else {
            self.receive()?;
            self.send()?;
        }
        self.rounds += 1;
        Ok(())
    }

    fn len(&self) -> usize {
        (1 + self.rounds * STRIDE % self.longest) as usize
    }

    /// The message that rank `from` sends in this round.
    fn message(&self, from: u32) -> Vec<u8> {
        let first = self.rounds * 31 + u64::from(from) * 7;
        (0..self.len() as u64)
            .map(|i| (first + i + i / 251) as u8)
            .collect()
    }

    fn send(&mut self) -> Result<()> {
        let (me, peer) = (self.ctx.rank(), 1 - self.ctx.rank());
        let message = self.message(me);
        self.leaving.write(0, &message)?;
        let data = self.leaving.slice(0, message.len())?;
        let sent = self.ctx.isend_on(&self.stream, peer, TAG, &data)?;
        // Longer than the limit of the context, whose error must come first.
        sent.wait(2 * self.limit)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let peer = 1 - self.ctx.rank();
        let right = self.message(peer);
        self.arriving.write(0, &vec![0; right.len()])?;
        let received = self
            .ctx
            .irecv_on(&self.stream, peer, TAG, &self.arriving.all())?;
        received.wait_on(&self.stream)?;
        let done = received.wait(2 * self.limit)?;
        ensure!(
            done.len == right.len() as u64,
            "in round {}, {} bytes arrived and {} were sent",
            self.rounds,
            done.len,
            right.len()
        );
        let mut got = vec![0; right.len()];
        self.arriving.read(0, &mut got)?;
        if let Some(at) = got.iter().zip(&right).position(|(a, b)| a != b) {
            bail!(
                "in round {}, byte {at} of {} is wrong",
                self.rounds,
                got.len()
            );
        }
        self.bytes += done.len;
        self.last = Instant::now();
        Ok(())
    }
}

fn finish(table: &mut Table<'_>, rounds: u64) -> Result<()> {
    for _ in 0..rounds {
        table.round()?;
    }
    println!(
        "pingpong: rank {} had {rounds} messages of 1 to {} bytes, {} in all, every byte is right: ok",
        table.ctx.rank(),
        table.longest,
        table.bytes
    );
    Ok(())
}

fn outlive(table: &mut Table<'_>, ctx: &Context, limit: Duration) -> Result<()> {
    let error = loop {
        if let Err(e) = table.round() {
            break e;
        }
    };
    let silent = table.last.elapsed();
    let peer = 1 - ctx.rank();
    let known = match error.downcast_ref::<mp::Error>() {
        Some(e) if e.rank() == Some(peer) => e,
        _ => return Err(error),
    };
    let Kind::PeerFailed(status) = known.kind() else {
        return Err(error).context("the error is not a failure of the peer");
    };
    ensure!(
        silent <= limit,
        "the error came after {silent:.1?}; the limit is {limit:?}: {known}"
    );
    println!(
        "pingpong: after {} rounds, every byte of which was right, rank {peer} is gone: \
         PeerFailed({status:?}), told {silent:.1?} after its last message, limit {limit:?}: ok",
        table.rounds
    );
    println!("pingpong: the error says: {known}");
    Ok(())
}
