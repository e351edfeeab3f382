//! `write_lat`: the measurement of `ib_write_lat` of perftest, by streams. Two ranks write eight
//! bytes into each other's memory in turn, and each waits for the other's write by polling that
//! memory. As in perftest, no kernel runs and no completion is waited for; but streams post and
//! poll, and a whole batch is enqueued before it begins.
//!
//! Each message is the number of its round, and the wait is for exactly that number, so every byte
//! is compared. Every four rounds rank 0's stream runs a kernel that stores the time; the time of
//! the kernel itself is subtracted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::gpu::{Condition, Word64};
use gdsync::rdma::{Descriptor, Mr, Qp, RemoteMemory, SendRequest, Work};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names, exchange_memory};
use crate::gate::{Gate, check_qp};
use crate::kernel::{Stamps, Tally, Turn, Turns};
use crate::options::{Launch, Ranks, Setup};
use crate::rank::{Job, Rank};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::table::{micros, us};
use crate::world;

/// Bytes of a message.
const SIZE: u64 = 8;
/// Round trips between two stored times.
const STRETCH: u64 = 4;
/// Intervals between stored times in a batch.
const STRETCHES: u64 = 100;
/// Round trips before the first stored time, in which the ranks' gates open one after the other.
const LEAD: u64 = 2;
/// Kernels after a batch, whose own time is measured.
const ALONE: u64 = 5;
/// Round trips of a batch.
const BATCH: u64 = LEAD + STRETCH * STRETCHES;
/// Stored times of a batch.
const STAMPS: usize = (STRETCHES + ALONE) as usize + 1;
/// Entries of the send queue: a batch, and the entries of the previous one that may be in use.
const QUEUE: u32 = 1024;
/// Batches before the measurement.
const WARM_UP: u64 = 2;

/// Options of `mpbench write_lat`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of batches of 400 round trips.
    #[arg(short = 'n', long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub batches: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    #[command(flatten)]
    pub setup: Setup,
    /// Result of ib_write_lat on the same NIC in microseconds; the target is at most twice this.
    #[arg(long, value_name = "US")]
    pub ib_write_lat: Option<f64>,
    /// Waits for a wrong number in this round, to test that the benchmark detects it.
    #[arg(long, value_name = "ROUND", hide = true)]
    pub corrupt: Option<u64>,
}

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Names of GPU, NIC and settings.
    pub names: Names,
    /// How the ranks run.
    pub ranks: Ranks,
    /// Number of measured round trips.
    pub rounds: u64,
    /// Half a round trip in nanoseconds; each sample is the mean of four.
    pub latency_ns: Summary,
}

struct Player<'e> {
    endpoint: &'e Endpoint,
    number: u32,
    qp: Qp,
    arriving: Mr,
    word: Word64,
    theirs: RemoteMemory,
    turns: Turns,
    tally: Tally,
    stamps: Stamps,
    gate: Gate,
    /// Number of round trips so far.
    played: u64,
    corrupt: Option<u64>,
}

impl<'e> Player<'e> {
    fn new(rank: &mut Rank, endpoint: &'e Endpoint, options: &Options) -> Result<Player<'e>> {
        let gpu = &endpoint.gpu;
        let arriving = endpoint.memory(options.setup.memory(gpu), 64)?;
        Ok(Player {
            qp: endpoint.connect(&options.setup.queues(QUEUE), &mut rank.link)?,
            word: arriving.region().word64(0)?,
            theirs: exchange_memory(&arriving, &mut rank.link)?,
            arriving,
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            stamps: Stamps::new(gpu, STAMPS)?,
            gate: Gate::new(gpu)?,
            number: rank.number,
            played: 0,
            corrupt: options.corrupt,
            endpoint,
        })
    }

    /// Enqueues a batch, opens the gate, and sleeps until the stream is done. On rank 0, adds half
    /// of each interval's round-trip time to `samples`.
    fn batch(&mut self, rank: &mut Rank, samples: Option<&mut Samples>) -> Result<()> {
        self.gate.close(&self.endpoint.stream)?;
        let mut last = None;
        for i in 0..BATCH {
            if self.number == 0 && i >= LEAD && (i - LEAD).is_multiple_of(STRETCH) {
                self.stamp((i - LEAD) / STRETCH)?;
            }
            last = Some(self.round(i + 1 == BATCH)?);
        }
        if self.number == 0 {
            (STRETCHES..STAMPS as u64).try_for_each(|i| self.stamp(i))?;
        }
        rank.link.barrier()?;
        self.gate.open()?;
        rank.park(&self.endpoint.stream)?;
        check_qp(self.qp.error())?;
        if let Some(last) = last {
            self.qp.wait(last, rank.left())?;
        }
        let arrived = self.word.load()?;
        ensure!(
            arrived == self.played,
            "{arrived} arrived last, not {}",
            self.played
        );
        if let (0, Some(samples)) = (self.number, samples) {
            let mut gaps = self.stamps.gaps(STAMPS)?;
            let mut kernels = gaps.split_off(STRETCHES as usize);
            kernels.sort_unstable();
            let kernel = kernels[kernels.len() / 2];
            let halves = gaps
                .iter()
                .map(|ns| ns.saturating_sub(kernel) / (2 * STRETCH));
            halves.for_each(|ns| samples.record(ns));
        }
        Ok(())
    }

    fn round(&mut self, last: bool) -> Result<SendRequest> {
        self.played += 1;
        let number = self.played.to_ne_bytes();
        let pieces: [&[u8]; 1] = [&number];
        let work = Work::write_inline(&pieces, self.theirs.span(0, SIZE)?);
        // The free entries of the queue are known when the last request of a batch is known.
        let work = if last { work.signaled() } else { work };
        let write = self.qp.prepare(&work)?;
        let wrong = u64::from(self.corrupt == Some(self.played));
        let wait = Descriptor::wait_value(&self.word, Condition::Eq, self.played ^ (wrong << 63));
        let list = match self.number {
            0 => [Descriptor::Send(write), wait],
            _ => [wait, Descriptor::Send(write)],
        };
        self.qp.post_on(&self.endpoint.stream, &list)?;
        Ok(write)
    }

    fn stamp(&self, number: u64) -> Result<()> {
        let turn = Turn::new(SIZE, &self.tally).stamp(&self.stamps.0, 8 * number);
        // SAFETY: the regions live as long as the player, which is dropped after the stream is
        // done or when the process fails.
        unsafe { self.turns.launch(&self.endpoint.stream, &turn) }
    }
}

impl Job for Options {
    const NAME: &'static str = "write_lat";

    fn needs_mp(&self) -> bool {
        false
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let mut player = Player::new(rank, &endpoint, self)?;
        for _ in 0..WARM_UP {
            player.batch(rank, None)?;
        }
        let mut samples = Samples::default();
        for _ in 0..self.batches {
            player.batch(rank, Some(&mut samples))?;
        }
        player.qp.quiet(rank.left())?;
        rank.link.barrier()?;
        let figures = (rank.number == 0).then(|| Figures {
            names: endpoint.names(&player.qp, player.arriving.region().kind()),
            ranks: self.launch.ranks(),
            rounds: self.batches * STRETCH * STRETCHES,
            latency_ns: samples.summary(),
        });
        Ok(serde_json::to_value(figures)?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "write_lat";
    const ABOUT: &'static str =
        "Latency as ib_write_lat measures it, by streams: writes in turn, detected in memory";
    const EXAMPLES: Examples = [
        (
            "--batches 100",
            "latency of writes of 8 bytes, 40000 round trips",
        ),
        (
            "--provider mlx5 --ib-write-lat 1.5",
            "compared with the 1.5 us that ib_write_lat printed for the same NIC",
        ),
    ];
    const VERIFIED: Option<&str> = Some("every message had the number of its round");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let ranks = self.launch.ranks();
        let Some([first, _]) = world::run(ranks, self, limit, &mut |_, _| {})? else {
            return Ok(None);
        };
        let figures: Option<Figures> = serde_json::from_value(first).context("reading a result")?;
        let figures = figures.context("rank 0 has no figures")?;
        let Figures {
            names, latency_ns, ..
        } = &figures;
        println!(
            "write_lat: writes of {SIZE} B in {} memory by streams, two {}",
            names.memory,
            match figures.ranks {
                Ranks::Threads => "threads",
                _ => "processes",
            }
        );
        println!("{names}");
        println!(
            "{} round trips, half of one, by fours: {} at least, {} median, {} mean, {} at most",
            figures.rounds,
            us(latency_ns.min),
            us(latency_ns.median),
            micros(latency_ns.mean),
            us(latency_ns.max)
        );
        let target = self.ib_write_lat.map(|theirs| {
            let ours = latency_ns.median as f64 / 1000.0;
            let times = ours / theirs;
            println!("ib_write_lat took {theirs} us: {times:.2} times that");
            let name = "write of 8 B by streams, median one-way";
            Target::at_most(name, ours, 2.0 * theirs, "us")
        });
        Outcome::of(&figures, target.into_iter().collect())
    }
}
