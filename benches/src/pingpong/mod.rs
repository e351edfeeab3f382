//! Ping-pong: each rank enqueues kernel, send and wait on its stream ahead of time, opens a
//! gate, and sleeps until the stream is done. Every byte that arrives is verified by a kernel.

mod plot;
mod proof;
mod rounds;
mod show;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::gpu::CUDA;
use crate::options::{self, Launch, Layer, Layers, Ranks, Setup};
use crate::rank::{Job, Note, Rank};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::world;
use proof::{CpuTimes, Trace};
use rounds::{Player, WARM_UP};

/// Bytes that the iterations of a size move in one direction, if their number is not given.
const VOLUME: u64 = 1 << 30;
/// Iterations of a size, if their number is not given.
const ITERATIONS: (u64, u64) = (100, 5000);
/// Iterations of the run whose submissions are traced.
const TRACED: u64 = 4;

/// The operation of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// SEND into a receive that the peer has posted.
    Send,
    /// RDMA WRITE with immediate data, which completes such a receive.
    Write,
}

/// Options of `mpbench pingpong`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Sizes of messages in bytes: `8`, `64Ki`, `1Mi`.
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = options::size,
          default_value = "8,64,1Ki,4Ki,64Ki,256Ki,1Mi")]
    pub sizes: Vec<u64>,
    /// Round trips for each size [default: 5000, fewer for large messages].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub iterations: Option<u64>,
    /// The library that carries the messages; `both` alternates, batch by batch.
    #[arg(long, value_enum, default_value = "gdsync")]
    pub layer: Layers,
    /// The operation of gdsync's messages.
    #[arg(long, value_enum, default_value = "send")]
    pub operation: Operation,
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    #[command(flatten)]
    pub setup: Setup,
    /// Draws a chart of latency over size into this SVG file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub svg: Option<PathBuf>,
    /// Flips one bit of this message, to test that the benchmark detects it.
    #[arg(long, value_name = "ITERATION", hide = true)]
    pub corrupt: Option<u64>,
}

impl Options {
    fn iterations(&self, size: u64) -> u64 {
        let (few, many) = ITERATIONS;
        self.iterations
            .unwrap_or_else(|| (VOLUME / size).clamp(few, many))
    }

    /// Round trips of the whole run, for the progress bar.
    fn work(&self) -> u64 {
        let each: u64 = self.sizes.iter().map(|&size| self.iterations(size)).sum();
        each * self.layer.each().len() as u64
    }

    /// The largest size in bytes.
    fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(8)
    }
}

/// The first report of rank 0.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Names of its GPU, NIC and settings.
    pub names: Names,
    /// How the ranks run.
    pub ranks: Ranks,
}

/// The figures of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The layer that carried the messages.
    pub layer: Layer,
    /// Bytes of a message.
    pub size: u64,
    /// Number of measured round trips.
    pub iterations: u64,
    /// Half a round trip, kernels included, in nanoseconds.
    pub latency_ns: Summary,
    /// Median time of the kernel in each, which verifies one payload and writes another, in
    /// nanoseconds.
    pub kernel_ns: u64,
    /// Bandwidth in one direction in bytes a second, from the mean latency.
    pub bandwidth: f64,
    /// CPU overhead of enqueuing one operation (kernel, send, wait), in nanoseconds.
    pub enqueue_ns: f64,
}

/// The last report of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// The layer.
    pub layer: Layer,
    /// Processor time between gates and last completions.
    pub cpu: CpuTimes,
    /// A few submissions, as the stream received them.
    pub trace: Trace,
}

/// A part of the result.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    Header(Header),
    Row(Row),
}

/// All figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Names of GPU, NIC and settings.
    pub header: Header,
    /// The rows, by size and layer.
    pub sizes: Vec<Row>,
    /// The proofs, by layer and rank.
    pub proof: Vec<Proof>,
    /// The comparison of the layers, if both ran.
    pub ratios: Vec<Ratio>,
}

/// The comparison of mp with gdsync at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// Bytes of a message.
    pub size: u64,
    /// mp's median latency as a multiple of gdsync's.
    pub latency: f64,
    /// mp's bandwidth as a multiple of gdsync's.
    pub bandwidth: f64,
}

impl Job for Options {
    const NAME: &'static str = "pingpong";

    fn needs_mp(&self) -> bool {
        self.layer != Layers::Gdsync
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let mut players = Vec::new();
        for &layer in self.layer.each() {
            players.push(Player::new(rank, &endpoint, self, layer)?);
        }
        if rank.number == 0 {
            rank.part(&Part::Header(Header {
                names: players[0].names(),
                ranks: self.launch.ranks(),
            }))?;
        }
        let mut cpu = vec![CpuTimes::default(); players.len()];
        for &size in &self.sizes {
            let rows = measure(rank, &mut players, &mut cpu, size, self)
                .with_context(|| format!("messages of {size} bytes"))?;
            if rank.number == 0 {
                for row in rows {
                    rank.part(&Part::Row(row))?;
                }
            }
        }
        let mut outcomes = Vec::new();
        for (player, cpu) in players.iter_mut().zip(cpu) {
            let trace = trace(rank, &endpoint, player, self.sizes[0])?;
            outcomes.push(Proof {
                layer: player.layer,
                cpu,
                trace,
            });
        }
        for player in &mut players {
            player.finish(rank)?;
        }
        Ok(serde_json::to_value(outcomes)?)
    }
}

/// Runs a few rounds for each rank's trace, one rank after the other: threads of one process on one
/// CUDA GPU share one tracer.
fn trace(rank: &mut Rank, endpoint: &Endpoint, player: &mut Player, size: u64) -> Result<Trace> {
    let mut lines = Vec::new();
    for turn in 0..2 {
        if turn == rank.number {
            endpoint.gpu.capture_trace();
        }
        player.batch(rank, size, TRACED, &mut CpuTimes::default())?;
        if turn == rank.number {
            lines = endpoint.gpu.finish_trace();
        }
        rank.link.barrier()?;
    }
    let (id, nic) = (endpoint.stream.id(), player.nic());
    Trace::of(&lines, id, TRACED + 1, player.layer, nic)
}

/// Results of one layer's batches of a size.
#[derive(Default)]
struct Sheet {
    latency: Samples,
    kernel: Samples,
    enqueue: f64,
    operations: u64,
}

impl Sheet {
    fn row(&self, layer: Layer, size: u64, iterations: u64) -> Row {
        let latency_ns = self.latency.summary();
        Row {
            layer,
            size,
            iterations,
            bandwidth: size as f64 * 1e9 / latency_ns.mean.max(1.0),
            latency_ns,
            kernel_ns: self.kernel.summary().median,
            enqueue_ns: self.enqueue / self.operations as f64,
        }
    }
}

/// Runs all iterations of a size in batches; the layers alternate.
fn measure(
    rank: &mut Rank,
    players: &mut [Player],
    cpu: &mut [CpuTimes],
    size: u64,
    options: &Options,
) -> Result<Vec<Row>> {
    let iterations = options.iterations(size);
    for player in players.iter_mut() {
        let warm_up = WARM_UP.min(iterations);
        player.batch(rank, size, warm_up, &mut CpuTimes::default())?;
    }
    let mut sheets: Vec<Sheet> = players.iter().map(|_| Sheet::default()).collect();
    let mut left = iterations;
    while left > 0 {
        let n = left.min(rounds::longest(options.layer));
        for ((player, cpu), sheet) in players.iter_mut().zip(&mut *cpu).zip(&mut sheets) {
            let batch = player.batch(rank, size, n, cpu)?;
            batch
                .trips
                .iter()
                .for_each(|ns| sheet.latency.record(ns / 2));
            batch.kernels.iter().for_each(|&ns| sheet.kernel.record(ns));
            sheet.enqueue += batch.enqueue.as_nanos() as f64;
            sheet.operations += batch.operations;
            if rank.number == 0 {
                rank.report_note(Note::Progress(n));
            }
        }
        left -= n;
    }
    let rows = players.iter().zip(&sheets);
    Ok(rows
        .map(|(player, sheet)| sheet.row(player.layer, size, iterations))
        .collect())
}

/// The comparison of the layers at each size that both have run.
fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let of = |layer: Layer, size: u64| {
        let mut found = rows
            .iter()
            .filter(move |r| r.layer == layer && r.size == size);
        found.next()
    };
    let ratio = |mp: &Row| {
        let below = of(Layer::Gdsync, mp.size)?;
        Some(Ratio {
            size: mp.size,
            latency: mp.latency_ns.median as f64 / below.latency_ns.median.max(1) as f64,
            bandwidth: mp.bandwidth / below.bandwidth,
        })
    };
    let of_mp = rows.iter().filter(|row| row.layer == Layer::Mp);
    of_mp.filter_map(ratio).collect()
}

impl Benchmark for Options {
    const NAME: &'static str = "pingpong";
    const ABOUT: &'static str =
        "One-way latency of ping-pong between the streams of two ranks, while their CPUs sleep";
    const EXAMPLES: Examples = [
        (
            "--sizes 8,64Ki --json pingpong.json",
            "one-way latency of messages of 8 bytes and 64 KiB, figures also as JSON",
        ),
        (
            "--gpu cuda:0,cuda:1 --layer both",
            "each rank on a GPU, by gdsync and by mp",
        ),
    ];
    const VERIFIED: Option<&str> = Some("kernels compared every byte of every message");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        ensure!(!self.sizes.is_empty(), "no sizes");
        let screen = show::Screen::new(self.work());
        let (mut header, mut sizes) = (None, Vec::new());
        let mut progress = |_, note| match note {
            Note::Progress(n) => screen.progress(n),
            Note::Part(value) => match serde_json::from_value(value) {
                Ok(Part::Header(h)) => {
                    screen.header(self, &h);
                    header = Some(h);
                }
                Ok(Part::Row(row)) => {
                    screen.row(&row);
                    sizes.push(row);
                }
                Err(_) => {}
            },
            _ => {}
        };
        let results = world::run(self.launch.ranks(), self, limit, &mut progress);
        screen.clear();
        let Some(results) = results? else {
            return Ok(None);
        };
        let [first, second] = results.map(serde_json::from_value::<Vec<Proof>>);
        let pairs = first?.into_iter().zip(second?);
        let figures = Figures {
            header: header.context("rank 0 sent no first report")?,
            ratios: ratios(&sizes),
            sizes,
            proof: pairs.flat_map(|(a, b)| [a, b]).collect(),
        };
        ensure!(
            figures.sizes.len() == self.sizes.len() * self.layer.each().len(),
            "a size is missing"
        );
        show::ratios(&figures.ratios);
        show::proof(&figures);
        if let Some(path) = &self.svg {
            plot::latency(path, &figures)?;
        }
        Outcome::of(&figures, targets(&figures))
    }
}

fn targets(figures: &Figures) -> Vec<Target> {
    let Header { names, ranks } = &figures.header;
    let limit = match (names.runtime.as_str(), names.memory.as_str()) {
        ("soft", _) => 15.0,
        (CUDA, "pinned") => 20.0,
        _ => return Vec::new(),
    };
    if *ranks != Ranks::Processes {
        return Vec::new();
    }
    let small = |row: &&Row| row.size == 8 && row.layer == Layer::Gdsync;
    let alone = figures.sizes.iter().find(small).map(|row| {
        let us = row.latency_ns.median as f64 / 1000.0;
        let name = "pingpong, 8 B between processes, median one-way";
        Target::at_most(name, us, limit, "us")
    });
    let beside = figures.ratios.iter().find(|r| r.size == 8).map(|ratio| {
        let name = "pingpong, 8 B, mp beside gdsync, medians";
        Target::at_most(name, ratio.latency, 1.2, "x")
    });
    alone.into_iter().chain(beside).collect()
}
