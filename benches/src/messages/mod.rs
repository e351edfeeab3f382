//! `messages`: the correctness of two-sided messages that the streams of two ranks post, in both
//! directions at once: millions of them, of random lengths, tags, places and times, of which kernels
//! compare every byte, and every byte beside them.
//!
//! `plan` draws the program from a seed, `kernels` fills and compares, and `play` executes the part of
//! a rank.

mod kernels;
mod plan;
mod play;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::options::{self, Launch, Setup};
use crate::rank::{Job, Rank};
use crate::world;
use plan::{Choice, STREAMS};
use play::Player;

/// The longest `--longest`.
const LONGEST: u64 = 16 << 20;

/// Options of `mpbench messages`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of messages of both ranks together.
    #[arg(long, default_value = "100000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    messages: u64,
    /// The longest message in bytes, at most 16 MiB. All lengths from 0 on occur, short ones more
    /// often.
    #[arg(long, value_name = "BYTES", default_value = "256Ki", value_parser = length)]
    longest: u64,
    /// Number of tags.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u32).range(1..=64))]
    tags: u32,
    /// Seed of the program, which both ranks draw.
    #[arg(long, default_value = "1")]
    seed: u64,
    #[command(flatten)]
    #[serde(flatten)]
    launch: Launch,
    #[command(flatten)]
    setup: Setup,
    /// Flips one bit of this message, to test that the benchmark detects it.
    #[arg(long, value_name = "MESSAGE", hide = true)]
    spoil: Option<u64>,
}

fn length(text: &str) -> Result<u64, String> {
    let bytes = options::size(text)?;
    match bytes <= LONGEST {
        true => Ok(bytes),
        false => Err(format!("messages have at most {LONGEST} bytes")),
    }
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    counts: Counts,
    /// The time of the whole program, and the host's time in it to draw and to enqueue.
    elapsed_ns: u64,
    enqueue_ns: u64,
}

/// Counts of a program. Both ranks count the same messages; calls and compared bytes are of one rank.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counts {
    messages: u64,
    bytes: u64,
    /// Number of different lengths, and of different tags.
    lengths: u64,
    tags: u64,
    /// Receives that the program posts before their sends, and after them.
    before: u64,
    after: u64,
    /// Calls of this rank that post, and that make a stream wait.
    posts: u64,
    waits: u64,
    /// Bytes that kernels of this rank have compared: of messages, and beside them.
    received: u64,
    beside: u64,
}

impl Options {
    fn choice(&self) -> Choice {
        Choice {
            seed: self.seed,
            messages: self.messages,
            tags: self.tags,
            longest: self.longest as u32,
            spoil: self.spoil,
        }
    }
}

impl Job for Options {
    const NAME: &'static str = "messages";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let mut player = Player::new(rank, &endpoint, &self.setup, self.choice())?;
        let [elapsed_ns, enqueue_ns] = player.run()?.map(|time| time.as_nanos() as u64);
        let (counts, names) = player.close(&self.setup)?;
        Ok(serde_json::to_value(Played {
            names,
            counts,
            elapsed_ns,
            enqueue_ns,
        })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "messages";
    const ABOUT: &'static str = "Correctness of messages by streams: random lengths, tags, places and times, every byte compared";
    const EXAMPLES: Examples = [
        (
            "--messages 1000000 --seed 7 --timeout 600",
            "a million messages of 0 bytes to 256 KiB, in at most 10 minutes",
        ),
        (
            "--gpu cuda:0,cuda:1 -d device --messages 20000000 --timeout 600",
            "20 million messages between two GPUs, in device memory",
        ),
    ];
    const VERIFIED: Option<&str> =
        Some("every byte of every message is right, and no byte beside them was written");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        if let Some(spoil) = self.spoil {
            ensure!(spoil < self.messages, "there is no message {spoil}");
        }
        let ranks = self.launch.ranks();
        let Some(played) = world::run_ranks::<Played>(ranks, plan::RANKS, self, limit)? else {
            return Ok(None);
        };
        let elapsed_ns = played.iter().map(|rank| rank.elapsed_ns).max();
        let seconds = elapsed_ns.context("no result")? as f64 / 1e9;
        let [Played { names, counts, .. }, other] = &played[..] else {
            anyhow::bail!("{} ranks instead of 2", played.len());
        };
        println!(
            "# mpbench messages: {names}; {} memory; seed {}",
            names.memory, self.seed
        );
        println!(
            "# {} messages of {} lengths, {} bytes, under {} tags, by {STREAMS} streams of each rank",
            counts.messages, counts.lengths, counts.bytes, counts.tags
        );
        println!(
            "# {} receives posted before their sends, {} after them",
            counts.before, counts.after
        );
        println!(
            "# compared: {} bytes of messages, {} bytes beside them",
            counts.received + other.counts.received,
            counts.beside + other.counts.beside
        );
        let each = |seconds: f64| seconds * 1e6 / counts.messages as f64;
        let host = played.iter().map(|rank| rank.enqueue_ns).max();
        println!(
            "# {seconds:.2} s: {:.2} us for each message, {:.2} us of them to enqueue it on a rank",
            each(seconds),
            each(host.unwrap_or_default() as f64 / 1e9)
        );
        let figures = json!({
            "names": names,
            "ranks": ranks,
            "streams": STREAMS,
            "messages": counts.messages,
            "bytes": counts.bytes,
            "lengths": counts.lengths,
            "tags": counts.tags,
            "before": counts.before,
            "after": counts.after,
            "by_rank": played,
            "elapsed_ns": elapsed_ns,
        });
        Outcome::of(&figures, Vec::new())
    }
}
