//! An exchange with many neighbours, as a halo exchange does it: the host's time to enqueue a step,
//! and the GPU's time of a step. The ways run in turn: a [`Neighbourhood`] by three calls or by one, and messages.
//!
//! A batch of steps is enqueued behind a gate, so that the GPU never waits for the CPU. Kernels
//! before and behind the steps of a batch store the time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use mp::{Context, Memory, Neighbour, Neighbourhood, Slice};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::gate::{Bell, Gate};
use crate::kernel::{Stamps, Tally, Turn, Turns};
use crate::options::{self, Launch, Setup};
use crate::pattern;
use crate::rank::{Job, Rank};
use crate::report::Target;
use crate::start::barrier_by;
use crate::stats::{Samples, Summary};
use crate::table::{self, Table};
use crate::world;

/// The tag of messages that synchronise the ranks; the messages of neighbour `n` have tag `n`.
const BARRIER: u32 = 1000;
/// Most steps of a batch.
const BATCH: u64 = 32;
/// Most neighbours of all steps of a batch, without and with messages: a stream and a send queue
/// take their operations behind a closed gate.
const ENQUEUED: [u64; 2] = [240, 64];
/// The number of neighbours and the size to which the targets apply.
const TARGET: (u32, u64) = (26, 8 << 10);
/// The same for a step by one call.
const TARGET_BY_ONE_CALL: (u32, u64) = (26, 4 << 10);

/// How a step is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// `ready_on`, `send_on` and `wait_on` of a neighbourhood.
    Neighbourhood,
    /// `exchange_on` of a neighbourhood.
    Exchange,
    /// `irecv_on` and `isend_on` with each neighbour, and `wait_all_on`.
    Messages,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Neighbourhood => "neighbourhood",
            Way::Exchange => "exchange",
            Way::Messages => "messages",
        }
    }
}

/// Options of `mpbench neighbours`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of neighbours. They are spread over the other ranks; with more than two ranks their
    /// number is even.
    #[arg(short = 'n', long, default_value = "26", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub neighbours: u32,
    /// Size of the data of each neighbour, each way, in bytes: `8`, `64Ki`.
    #[arg(short = 's', long, value_parser = options::size, default_value = "8Ki")]
    pub size: u64,
    /// Number of ranks. A rank can be at most 21 neighbours of another one.
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub ranks: u32,
    /// Measured steps of each way.
    #[arg(short = 'i', long = "steps", default_value = "2000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: u64,
    /// Steps before the measurement, of which every byte is compared.
    #[arg(short = 'x', long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub warmup: u64,
    /// The ways; several run in turn, and are compared with the first.
    #[arg(
        long = "way",
        value_enum,
        value_delimiter = ',',
        default_value = "neighbourhood,messages"
    )]
    pub ways: Vec<Way>,
    /// Receives into two buffers in turn, so that no neighbour waits for the step before.
    #[arg(long)]
    pub double: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    #[command(flatten)]
    pub setup: Setup,
    /// Flips one bit of what is sent in this step, to test that the benchmark detects it.
    #[arg(long, value_name = "STEP", hide = true)]
    pub corrupt: Option<u64>,
}

impl Options {
    /// The rank of a neighbour of `me`, and the neighbour there that is this rank: both send to
    /// each other.
    fn other(&self, me: u32, neighbour: u32) -> (u32, u32) {
        if self.ranks == 2 {
            return (1 - me, neighbour);
        }
        let distance = 1 + neighbour / 2 % (self.ranks - 1);
        let forward = neighbour.is_multiple_of(2);
        let by = if forward {
            distance
        } else {
            self.ranks - distance
        };
        ((me + by) % self.ranks, neighbour ^ 1)
    }
}

/// The results of a way.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    way: Way,
    /// The host's time to enqueue a step, in nanoseconds.
    host_ns: Summary,
    /// The GPU's mean time of a step in each batch, in nanoseconds.
    gpu_ns: Summary,
}

#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    rows: Vec<Row>,
}

/// A rank's objects.
struct Player<'e> {
    options: &'e Options,
    rank: &'e Rank,
    endpoint: &'e Endpoint,
    context: Context,
    neighbourhood: Neighbourhood,
    memory: Memory,
    /// What is sent to each neighbour, and received from it.
    pieces: Vec<[Slice; 2]>,
    turns: Turns,
    tally: Tally,
    stamps: Stamps,
    gate: Gate,
    bell: Bell,
}

impl<'e> Player<'e> {
    fn new(options: &'e Options, rank: &'e Rank, endpoint: &'e Endpoint) -> Result<Player<'e>> {
        let gpu = &endpoint.gpu;
        let context = rank.context(endpoint, &options.setup)?;
        let size = usize::try_from(options.size)?;
        let place = size.next_multiple_of(64);
        let count = options.neighbours as usize;
        let memory = context.alloc(options.setup.memory(gpu), 2 * count * place)?;
        let piece = |i: usize| memory.slice(i * place, size);
        let pieces = (0..count).map(|n| Ok([piece(n)?, piece(count + n)?]));
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        let neighbour = |(n, [sent, received]): (u32, &[Slice; 2])| {
            let (other, there) = options.other(rank.number, n);
            let neighbour = Neighbour::new(other, n, there);
            neighbour.send(sent).receive(received)
        };
        let all = (0..).zip(&pieces).map(neighbour);
        let builder = context.neighbourhood().double_buffered(options.double);
        Ok(Player {
            neighbourhood: builder.neighbours(all).build()?,
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            stamps: Stamps::new(gpu, 2)?,
            gate: Gate::new(gpu)?,
            bell: Bell::new(gpu)?,
            options,
            rank,
            endpoint,
            context,
            memory,
            pieces,
        })
    }

    /// A barrier of all ranks.
    fn barrier(&self) -> Result<()> {
        let nothing = self.memory.slice(0, 0)?;
        barrier_by(&self.context, BARRIER, &nothing, self.rank.left())
    }

    /// Enqueues a step.
    fn step(&self, way: Way) -> Result<()> {
        let stream = &self.endpoint.stream;
        match way {
            Way::Neighbourhood => {
                self.neighbourhood.ready_on(stream)?;
                self.neighbourhood.send_on(stream)?;
                return Ok(self.neighbourhood.wait_on(stream)?);
            }
            Way::Exchange => return Ok(self.neighbourhood.exchange_on(stream)?),
            Way::Messages => {}
        }
        let mut requests = Vec::with_capacity(2 * self.pieces.len());
        for (n, [_, received]) in (0..).zip(&self.pieces) {
            let (other, there) = self.options.other(self.rank.number, n);
            requests.push(self.context.irecv_on(stream, other, there, received)?);
        }
        for (n, [sent, _]) in (0..).zip(&self.pieces) {
            let (other, _) = self.options.other(self.rank.number, n);
            requests.push(self.context.isend_on(stream, other, n, sent)?);
        }
        Ok(self.context.wait_all_on(stream, &requests)?)
    }

    /// Enqueues the time, as the `i`-th of a batch.
    fn stamp(&self, i: u64) -> Result<()> {
        let turn = Turn::new(8, &self.tally).stamp(&self.stamps.0, 8 * i);
        // SAFETY: the stamps live as long as this player, which waits for its stream.
        unsafe { self.turns.launch(&self.endpoint.stream, &turn) }
    }

    /// Runs a batch of `steps`, and one step before them, in which the gates open one after the
    /// other.
    fn batch(&mut self, way: Way, steps: u64, host: &mut Samples, gpu: &mut Samples) -> Result<()> {
        let stream = &self.endpoint.stream;
        self.gate.close(stream)?;
        self.step(way)?;
        self.stamp(0)?;
        for _ in 0..steps {
            let start = Instant::now();
            self.step(way)?;
            host.record(start.elapsed().as_nanos() as u64);
        }
        self.stamp(1)?;
        self.bell.enqueue(stream)?;
        self.barrier()?;
        self.gate.open()?;
        self.bell.poll(Instant::now() + self.rank.left())?;
        self.context.synchronize(stream, self.rank.left())?;
        gpu.record(self.stamps.gaps(2)?[0] / steps);
        Ok(())
    }

    /// Runs one step, and compares every byte.
    fn verified(&self, way: Way, step: u64) -> Result<()> {
        self.fill(step)?;
        self.barrier()?;
        self.step(way)?;
        let stream = &self.endpoint.stream;
        self.context.synchronize(stream, self.rank.left())?;
        self.compare(step)?;
        self.barrier()
    }

    /// What a rank sends to one of its neighbours in a step.
    fn contents(&self, rank: u32, neighbour: u32, step: u64, len: usize) -> Vec<u8> {
        let number = u64::from(rank * self.options.neighbours + neighbour);
        pattern::bytes(pattern::tag(step << 32 | number, 0), len)
    }

    /// Writes the data of a step, and clears what was received.
    fn fill(&self, step: u64) -> Result<()> {
        for (n, [sent, received]) in (0..).zip(&self.pieces) {
            let mut bytes = self.contents(self.rank.number, n, step, sent.len());
            bytes[0] ^= u8::from(self.options.corrupt == Some(step));
            sent.write_slice(0, &bytes)?;
            received.write_slice(0, &vec![0xee_u8; received.len()])?;
        }
        Ok(())
    }

    /// Compares the received data with that of a step.
    fn compare(&self, step: u64) -> Result<()> {
        for (n, [_, received]) in (0..).zip(&self.pieces) {
            let (other, there) = self.options.other(self.rank.number, n);
            let mut got = vec![0_u8; received.len()];
            received.read_slice(0, &mut got)?;
            let right = got == self.contents(other, there, step, got.len());
            ensure!(
                right,
                "step {step}: wrong bytes from neighbour {n}, rank {other}"
            );
        }
        Ok(())
    }
}

impl Job for Options {
    const NAME: &'static str = "neighbours";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let mut player = Player::new(self, rank, &endpoint)?;
        for step in 0..self.warmup {
            for &way in &self.ways {
                player.verified(way, step)?;
            }
        }
        // The data of the measured steps, which are compared at the end.
        player.fill(self.warmup)?;
        player.barrier()?;
        let each = |way: &Way| (*way, [(); 2].map(|()| Samples::default()));
        let mut samples: Vec<(Way, [Samples; 2])> = self.ways.iter().map(each).collect();
        let enqueued = ENQUEUED[usize::from(self.ways.contains(&Way::Messages))];
        // One step is enqueued before each batch.
        let steps = enqueued / u64::from(self.neighbours);
        let most = steps.saturating_sub(1).clamp(1, BATCH);
        let mut left = self.steps;
        while left > 0 {
            let steps = most.min(left);
            for (way, [host, gpu]) in &mut samples {
                player.batch(*way, steps, host, gpu)?;
            }
            left -= steps;
        }
        player.compare(self.warmup)?;
        player.barrier()?;
        let Player {
            context,
            neighbourhood,
            memory,
            ..
        } = player;
        drop(neighbourhood);
        let made = endpoint.made_of(&context, &self.setup, memory.region().kind())?;
        context.close(rank.left())?;
        let names = made.names;
        let rows = samples.into_iter().map(|(way, [host, gpu])| Row {
            way,
            host_ns: host.summary(),
            gpu_ns: gpu.summary(),
        });
        let rows = rows.collect();
        Ok(serde_json::to_value(Played { names, rows })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "neighbours";
    const ABOUT: &'static str = "Exchange with many neighbours: host time and GPU time of a step";
    const EXAMPLES: Examples = [
        (
            "-n 26 -s 8Ki --ranks 27",
            "26 neighbours of 8 KiB, each another process",
        ),
        (
            "-n 4 -s 64Ki --way neighbourhood --double --threads",
            "a neighbourhood alone, with double buffering, between three threads",
        ),
    ];
    const VERIFIED: Option<&str> =
        Some("every byte of the warm-up steps and of the last step is right");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        ensure!(
            self.ranks == 2 || self.neighbours.is_multiple_of(2),
            "{} neighbours of {} ranks: with more than two ranks their number is even, because \
             each is a neighbour in both directions",
            self.neighbours,
            self.ranks
        );
        let ranks = self.launch.ranks();
        let count = self.ranks as usize;
        let Some(mut all) = world::run_ranks::<Played>(ranks, count, self, limit)? else {
            return Ok(None);
        };
        ensure!(!all.is_empty(), "no result");
        let Played { names, rows } = all.swap_remove(0);
        println!("mpbench neighbours: {names}; {} memory", names.memory);
        println!(
            "{} neighbours of {} each way, {} ranks; medians of a step",
            self.neighbours,
            table::bytes(self.size),
            self.ranks
        );
        let table = Table::start(&["way          ", "host", "GPU"], 10);
        for row in &rows {
            let times = [&row.host_ns, &row.gpu_ns].map(|ns| table::us(ns.median));
            table.row(&[&[row.way.name().to_owned()], &times[..]].concat());
        }
        let first = rows.first().context("no way")?;
        let over = |a: &Summary, b: &Summary| a.median as f64 / b.median.max(1) as f64;
        let mut ratios = Vec::new();
        for row in &rows[1..] {
            let (host, gpu) = (
                over(&row.host_ns, &first.host_ns),
                over(&row.gpu_ns, &first.gpu_ns),
            );
            let (way, to) = (row.way.name(), first.way.name());
            println!(
                "{way}: {host:.2} times the host time and {gpu:.2} times the GPU time of {to}"
            );
            ratios.push(json!({ "way": row.way, "host": host, "gpu": gpu }));
        }
        let figures = json!({
            "names": names,
            "ranks": ranks,
            "rows": rows,
            "ratios": ratios,
        });
        Outcome::of(&figures, self.targets(&names, &rows))
    }
}

impl Options {
    fn targets(&self, names: &Names, rows: &[Row]) -> Vec<Target> {
        let row_of = |way| rows.iter().find(|row| row.way == way);
        let (row, size, gpu) = match (self.neighbours, self.size) {
            TARGET => (row_of(Way::Neighbourhood), "8 KiB", 25.0),
            TARGET_BY_ONE_CALL => (row_of(Way::Exchange), "4 KiB by one call", 15.0),
            _ => return Vec::new(),
        };
        let Some(row) = row else {
            return Vec::new();
        };
        let target = |time: &str, ns: &Summary, most| {
            let name = format!("neighbours: {time} time of a step, 26 of {size}");
            Target::at_most(&name, ns.median as f64 / 1000.0, most, "us")
        };
        match names.runtime.as_str() {
            "soft" => vec![target("host", &row.host_ns, 8.0)],
            _ => vec![
                target("host", &row.host_ns, 10.0),
                target("GPU", &row.gpu_ns, gpu),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn neighbours_name_each_other() {
        for (ranks, neighbours) in [(2, 7), (3, 26), (4, 6), (27, 26)] {
            let words = format!("mpbench --ranks {ranks} -n {neighbours}");
            let options = Line::parse_from(words.split(' ')).options;
            for (me, n) in (0..ranks).flat_map(|me| (0..neighbours).map(move |n| (me, n))) {
                let (other, there) = options.other(me, n);
                assert!(other < ranks && other != me && there < neighbours);
                assert_eq!(options.other(other, there), (me, n));
            }
        }
    }
}
