//! Bandwidth of large messages: rank 0 fills rank 1's slots with several messages in flight; each
//! process has its own NIC. Rank 1's kernels verify the received bytes at the end. If both layers
//! run, they alternate, and their rounds are compared.

mod flow;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::gpu::Region;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::kernel::{Tally, Turn, Turns};
use crate::options::{self, Launch, Layer, Layers, Poster, Ranks, Setup};
use crate::pattern;
use crate::rank::{Job, Rank};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::table;
use crate::world;
use flow::{Flow, Messages, Writes};

/// The first tags of the measured payloads, and of those before the measurement.
const MEASURED: u64 = 1 << 20;
const WARM_UP: u64 = 1 << 21;
/// Most rounds in which the messages are sent.
const ROUNDS: u64 = 20;

/// Options of `mpbench write_bw`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Size of a message in bytes: `64Ki`, `1Mi`.
    #[arg(long, value_parser = options::size, default_value = "1Mi")]
    pub size: u64,
    /// Number of messages of each library.
    #[arg(long, default_value = "4000", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Number of messages in flight; each has separate memory.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u64).range(1..=32))]
    pub depth: u64,
    /// The library that carries the messages; `both` alternates.
    #[arg(long, value_enum, default_value = "gdsync")]
    pub layer: Layers,
    /// The poster of the messages.
    #[arg(long, value_enum, default_value = "cpu")]
    pub poster: Poster,
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    #[command(flatten)]
    pub setup: Setup,
}

impl Options {
    /// Bytes of all slots together.
    fn slots(&self) -> Result<u64> {
        let slots = self.size.checked_mul(self.depth);
        slots.context("the slots are too large")
    }

    /// Number of messages of each round.
    fn round(&self) -> u64 {
        self.messages.div_ceil(ROUNDS).max(self.depth)
    }

    /// Number of rounds of each layer.
    fn rounds(&self) -> u64 {
        self.messages.div_ceil(self.round())
    }
}

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Names of GPU, NIC and settings.
    pub names: Names,
    /// How the ranks run.
    pub ranks: Ranks,
    /// Bytes of a message.
    pub size: u64,
    /// The rows, by layer.
    pub rows: Vec<Row>,
    /// mp's median bandwidth as a multiple of gdsync's, if both were measured.
    pub ratio: Option<f64>,
    /// Bytes that kernels verified at the end: every slot, of every layer.
    pub verified: u64,
}

/// The results of one layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The layer.
    pub layer: Layer,
    /// Number of messages.
    pub messages: u64,
    /// Time of all rounds, each from the first post to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
    /// Mean time of a message in each round, in nanoseconds.
    pub message_ns: Summary,
    /// Bandwidth in bytes a second, over all rounds.
    pub bandwidth: f64,
}

/// A layer and its messages' tags.
struct Side<'e> {
    layer: Layer,
    flow: Box<dyn Flow + 'e>,
    samples: Samples,
    elapsed_ns: u64,
}

/// Writes and verifies slots.
struct Verifier<'e> {
    endpoint: &'e Endpoint,
    turns: Turns,
    tally: Tally,
    size: u64,
    depth: u64,
}

impl Job for Options {
    const NAME: &'static str = "write_bw";

    fn needs_mp(&self) -> bool {
        self.layer != Layers::Gdsync
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let mut sides = Vec::new();
        for &layer in self.layer.each() {
            sides.push(Side {
                layer,
                flow: match layer {
                    Layer::Gdsync => Box::new(Writes::new(rank, &endpoint, self)?),
                    Layer::Mp => Box::new(Messages::new(rank, &endpoint, self)?),
                },
                samples: Samples::default(),
                elapsed_ns: 0,
            });
        }
        let verifier = Verifier {
            turns: Turns::new(&endpoint.gpu)?,
            tally: Tally::new(&endpoint.gpu)?,
            size: self.size,
            depth: self.depth,
            endpoint: &endpoint,
        };
        // Neither rank continues before the memory has its initial contents.
        for tag in [WARM_UP, MEASURED] {
            for side in &mut sides {
                if rank.number == 0 {
                    verifier.fill(rank, side.flow.region(), tag)?;
                }
                rank.link.barrier()?;
                side.flow.run(rank, self.depth)?;
                rank.link.barrier()?;
            }
        }
        for _ in 0..self.rounds() {
            for side in &mut sides {
                rank.link.barrier()?;
                let start = Instant::now();
                side.flow.run(rank, self.round())?;
                let ns = start.elapsed().as_nanos() as u64;
                side.elapsed_ns += ns;
                side.samples.record(ns / self.round());
                rank.link.barrier()?;
            }
        }
        for side in &mut sides {
            side.flow.finish(rank)?;
            rank.link.barrier()?;
            if rank.number == 1 {
                verifier.verify(rank, side.flow.region())?;
            }
            rank.link.barrier()?;
        }
        Ok(serde_json::to_value(figures(self, &sides)?)?)
    }
}

fn figures(options: &Options, sides: &[Side<'_>]) -> Result<Figures> {
    let messages = options.rounds() * options.round();
    let row = |side: &Side<'_>| Row {
        layer: side.layer,
        messages,
        elapsed_ns: side.elapsed_ns,
        message_ns: side.samples.summary(),
        bandwidth: (options.size * messages) as f64 * 1e9 / side.elapsed_ns.max(1) as f64,
    };
    let rows: Vec<Row> = sides.iter().map(row).collect();
    let ratio = match &rows[..] {
        [below, mp] => Some(below.message_ns.median as f64 / mp.message_ns.median.max(1) as f64),
        _ => None,
    };
    Ok(Figures {
        names: sides[0].flow.names(),
        ranks: options.launch.ranks(),
        size: options.size,
        rows,
        ratio,
        verified: options.slots()? * sides.len() as u64,
    })
}

impl Verifier<'_> {
    fn fill(&self, rank: &Rank, region: &Region, tag: u64) -> Result<()> {
        for slot in 0..self.depth {
            let turn = Turn::new(self.size, &self.tally);
            let turn = turn.write(region, slot * self.size, pattern::tag(tag + slot, 0));
            // SAFETY: the memory lives as long as its flow; the stream is waited for below, and
            // no message from the memory is in flight.
            unsafe { self.turns.launch(&self.endpoint.stream, &turn)? };
        }
        rank.park(&self.endpoint.stream)
    }

    fn verify(&self, rank: &Rank, region: &Region) -> Result<()> {
        for slot in 0..self.depth {
            let turn = Turn::new(self.size, &self.tally);
            let turn = turn.verify(region, slot * self.size, pattern::tag(MEASURED + slot, 0));
            // SAFETY: as above; this only reads.
            unsafe { self.turns.launch(&self.endpoint.stream, &turn)? };
        }
        rank.park(&self.endpoint.stream)?;
        self.tally
            .take(self.size * self.depth)
            .context("verifying payloads")
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "write_bw";
    const ABOUT: &'static str = "Bandwidth of large messages between two processes";
    const EXAMPLES: Examples = [
        (
            "--layer both --depth 16",
            "messages of 1 MiB, 16 in flight, by gdsync and by mp",
        ),
        (
            "--size 64Ki --poster stream",
            "messages of 64 KiB that a stream posts",
        ),
    ];
    const VERIFIED: Option<&str> =
        Some("kernels compared every byte of the last message in each slot");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let ranks = self.launch.ranks();
        let Some([first, _]) = world::run(ranks, self, limit, &mut |_, _| {})? else {
            return Ok(None);
        };
        let figures: Figures = serde_json::from_value(first).context("reading a rank's result")?;
        ensure!(
            figures.rows.iter().all(|row| row.elapsed_ns > 0),
            "nothing was measured"
        );
        let by = self.poster.name();
        println!("mpbench write_bw: {} in flight, posted by {by}", self.depth);
        println!("{}", figures.names);
        for row in &figures.rows {
            println!(
                "{:<6}  {} {} of {} in {:.2} s: {}",
                row.layer.name(),
                row.messages,
                match row.layer {
                    Layer::Gdsync => "RDMA writes",
                    Layer::Mp => "messages",
                },
                table::bytes(figures.size),
                row.elapsed_ns as f64 / 1e9,
                table::per_second(row.bandwidth),
            );
        }
        if let Some(ratio) = figures.ratio {
            println!("mp reaches {ratio:.2} of gdsync, by the medians of rounds");
        }
        println!("{} verified at the end", table::bytes(figures.verified));
        Outcome::of(&figures, targets(&figures, self.poster, by))
    }
}

fn targets(figures: &Figures, poster: Poster, by: &str) -> Vec<Target> {
    if figures.size != 1 << 20 || figures.ranks != Ranks::Processes {
        return Vec::new();
    }
    let below = figures.rows.iter().find(|row| row.layer == Layer::Gdsync);
    let below = below.filter(|_| poster == Poster::Cpu);
    let alone = below.into_iter().flat_map(|row| {
        let name = "write_bw: 1 MiB writes between processes";
        let target = Target::at_least(name, row.bandwidth / 1e9, 2.5, "GB/s");
        figures.names.on_soft(target)
    });
    let beside = figures.ratio.map(|ratio| {
        let name = format!("write_bw: 1 MiB, by {by}, mp beside gdsync, medians");
        Target::at_least(&name, ratio, 0.8, "x")
    });
    alone.chain(beside).collect()
}
