//! Ping-pong: each rank enqueues kernel, send and wait on its stream ahead of time, opens a
//! gate, and sleeps until the stream is done. Every byte that arrives is verified by a kernel.

mod proof;
mod rounds;
mod show;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::{self, Ranks, Run, Setup};
use crate::endpoint::{Endpoint, Names};
use crate::gpu::CUDA;
use crate::plot;
use crate::rank::{Job, Note, Rank};
use crate::report::{self, Report, Target};
use crate::stats::{Samples, Summary};
use crate::world;
use proof::{CpuTimes, Trace};
use rounds::{Player, WARM_UP};

/// Bytes that a size's iterations move in one direction, if their number is not given.
const VOLUME: u64 = 1 << 30;
/// Iterations of a size, if their number is not given.
const ITERATIONS: (u64, u64) = (100, 5000);
/// Iterations of the run whose submissions are traced.
const TRACED: u64 = 4;

/// How messages travel.
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
    /// Sizes of messages.
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',', value_parser = cli::size,
          default_value = "8,64,1Ki,4Ki,64Ki,256Ki,1Mi")]
    pub sizes: Vec<u64>,
    /// Round trips for each size [default: 5000, fewer for large messages].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub iterations: Option<u64>,
    /// How messages travel.
    #[arg(long, value_enum, default_value = "send")]
    pub operation: Operation,
    /// Run both ranks in this process, as threads.
    #[arg(long)]
    pub threads: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
    /// Draw latency over size into this file.
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub svg: Option<PathBuf>,
    /// Get one bit of this message wrong, to see that it is noticed.
    #[arg(long, value_name = "ITERATION", hide = true)]
    pub corrupt: Option<u64>,
}

impl Options {
    fn iterations(&self, size: u64) -> u64 {
        let (few, many) = ITERATIONS;
        self.iterations
            .unwrap_or_else(|| (VOLUME / size).clamp(few, many))
    }

    /// Round trips of the whole run that count as progress.
    fn work(&self) -> u64 {
        self.sizes.iter().map(|&size| self.iterations(size)).sum()
    }

    fn ranks(&self) -> Ranks {
        if self.threads {
            Ranks::Threads
        } else {
            Ranks::Processes
        }
    }
}

/// What rank 0 tells first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Header {
    /// What it plays with.
    pub names: Names,
    /// Where the ranks live.
    pub ranks: Ranks,
}

/// The figures of one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Bytes of a message.
    pub size: u64,
    /// Round trips that were measured.
    pub iterations: u64,
    /// Half a round trip, kernels included, in nanoseconds.
    pub latency_ns: Summary,
    /// What the kernel takes of each, by its median: verifying one payload, writing another.
    pub kernel_ns: u64,
    /// Bytes a second in one direction, of the mean latency.
    pub bandwidth: f64,
    /// What it cost the host to enqueue one operation (kernel, send, wait), in nanoseconds.
    pub enqueue_ns: f64,
}

/// What a rank has to say at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Processor time between gates and last completions.
    pub cpu: CpuTimes,
    /// A few submissions as they were handed to the stream.
    pub trace: Trace,
}

/// A part of the result.
#[derive(Debug, Serialize, Deserialize)]
enum Part {
    Header(Header),
    Row(Row),
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With what.
    pub header: Header,
    /// Each size.
    pub sizes: Vec<Row>,
    /// Each rank.
    pub proof: Vec<Outcome>,
}

/// One rank's part.
pub fn play(rank: &mut Rank, options: &Options) -> Result<Value> {
    let endpoint = Endpoint::open(&options.setup, rank.number)?;
    let mut player = Player::new(rank, &endpoint, options)?;
    if rank.number == 0 {
        let names = endpoint.names(player.qp(), options.setup.memory(&endpoint.gpu));
        rank.part(&Part::Header(Header {
            names,
            ranks: options.ranks(),
        }))?;
    }
    let mut cpu = CpuTimes::default();
    for &size in &options.sizes {
        let row = measure(rank, &mut player, &mut cpu, size, options.iterations(size))
            .with_context(|| format!("messages of {size} bytes"))?;
        if rank.number == 0 {
            rank.part(&Part::Row(row))?;
        }
    }
    let trace = trace(rank, &endpoint, &mut player, options.sizes[0])?;
    player.finish(rank)?;
    Ok(serde_json::to_value(Outcome { cpu, trace })?)
}

/// Plays a few rounds for each rank's trace, one after the other: threads of one process that
/// use one GPU of CUDA have one tracer.
fn trace(rank: &mut Rank, endpoint: &Endpoint, player: &mut Player, size: u64) -> Result<Trace> {
    let tracer = endpoint.gpu.tracer();
    let mut lines = Vec::new();
    for turn in 0..2 {
        if turn == rank.number {
            tracer.capture();
        }
        player.batch(rank, size, TRACED, &mut CpuTimes::default())?;
        if turn == rank.number {
            lines = tracer.take();
        }
        rank.link.barrier()?;
    }
    Trace::of(&lines, endpoint.stream.id(), TRACED + 1)
}

/// Plays all iterations of a size, in batches.
fn measure(
    rank: &mut Rank,
    player: &mut Player,
    cpu: &mut CpuTimes,
    size: u64,
    iterations: u64,
) -> Result<Row> {
    player.batch(
        rank,
        size,
        WARM_UP.min(iterations),
        &mut CpuTimes::default(),
    )?;
    let (mut latency, mut kernel) = (Samples::new(), Samples::new());
    let (mut enqueue, mut operations) = (0.0, 0);
    let mut left = iterations;
    while left > 0 {
        let n = left.min(rounds::BATCH);
        let batch = player.batch(rank, size, n, cpu)?;
        batch.trips.iter().for_each(|ns| latency.record(ns / 2));
        batch.kernels.iter().for_each(|&ns| kernel.record(ns));
        enqueue += batch.enqueue.as_nanos() as f64;
        operations += batch.operations;
        left -= n;
        if rank.number == 0 {
            rank.tell(Note::Progress(n));
        }
    }
    let latency_ns = latency.summary();
    Ok(Row {
        size,
        iterations,
        bandwidth: size as f64 * 1e9 / latency_ns.mean.max(1.0),
        latency_ns,
        kernel_ns: kernel.summary().median,
        enqueue_ns: enqueue / operations as f64,
    })
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    ensure!(!options.sizes.is_empty(), "no sizes");
    let job = Job::Pingpong(options.clone());
    let screen = show::Screen::new(options.work());
    let (mut header, mut sizes) = (None, Vec::new());
    let mut hear = |_, note| match note {
        Note::Progress(n) => screen.progress(n),
        Note::Part(value) => match serde_json::from_value(value) {
            Ok(Part::Header(h)) => {
                screen.header(options, &h);
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
    let results = world::run(options.ranks(), &job, options.run.timeout, &mut hear);
    screen.clear();
    let outcomes: Vec<Outcome> = results?
        .into_iter()
        .map(serde_json::from_value)
        .collect::<Result<_, _>>()
        .context("reading a rank's result")?;
    let figures = Figures {
        header: header.context("rank 0 told nothing about itself")?,
        sizes,
        proof: outcomes,
    };
    ensure!(
        figures.sizes.len() == options.sizes.len(),
        "a size is missing"
    );
    show::proof(&figures);
    if let Some(path) = &options.run.json {
        let report = Report::new("pingpong", options, &figures, targets(&figures))?;
        report::write_json(path, &report)?;
    }
    if let Some(path) = &options.svg {
        plot::latency(path, &figures)?;
    }
    Ok(())
}

fn targets(figures: &Figures) -> Vec<Target> {
    let Header { names, ranks } = &figures.header;
    let limit = match (names.runtime.as_str(), names.memory.as_str()) {
        ("soft", _) => 15.0,
        (CUDA, "pinned") => 20.0,
        _ => return Vec::new(),
    };
    let small = figures.sizes.iter().find(|row| row.size == 8);
    small
        .filter(|_| *ranks == Ranks::Processes)
        .map(|row| {
            let us = row.latency_ns.median as f64 / 1000.0;
            let name = "pingpong, 8 B between processes, median one-way";
            Target::at_most(name, us, limit, "us")
        })
        .into_iter()
        .collect()
}
