//! `overlap`: messages beside a kernel that computes on another stream of the same GPU. The report
//! has the time of the kernel and the latency of the messages, each alone and beside the other.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use gdsync::Gpu;
use gdsync::gpu::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::end::End;
use super::options::{Common, Way};
use super::results::{Both, Row as Messages};
use super::rounds::{self, Pattern};
use super::{Play, VERIFIED};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::gate::Bell;
use crate::kernel::{Computes, Stamps, Tally, Turn, Turns};
use crate::rank::{Job, Rank};
use crate::stats::Samples;
use crate::table::Table;
use crate::world;

/// Kernels that are enqueued ahead.
const AHEAD: u64 = 4;
/// Start times of kernels that are kept.
const KEPT: u64 = 1 << 14;
/// Blocks of the kernel on a software GPU, and on a GPU, where they are several waves.
const BLOCKS: [u32; 2] = [64, 4096];

/// Options of `mpbench overlap`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Blocks of the kernel, of 256 threads; on the software GPU, of one thread [default: 4096; on
    /// the software GPU 64].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    blocks: Option<u32>,
    /// Steps that each thread of the kernel computes.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    rounds: u64,
    /// Least number of kernels of each measurement.
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(1..=KEPT / 2))]
    kernels: u64,
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

/// A kernel that runs again and again on a stream of its own.
struct Load {
    computes: Computes,
    stream: Stream,
    turns: Turns,
    tally: Tally,
    /// When each kernel started, by its number modulo [`KEPT`], and when the last one ended.
    stamps: Stamps,
    bell: Bell,
}

/// What the thread that enqueues the kernels and the thread that measures share. Nothing else
/// depends on the order of these values.
struct Shared {
    /// `true`: enqueue no more. Stored by the thread that measures.
    stop: AtomicBool,
    /// The number of kernels that have ended. Stored by the thread that enqueues.
    ended: AtomicU64,
}

impl Load {
    fn new(gpu: &Gpu, options: &Options) -> Result<Load> {
        let blocks = BLOCKS[usize::from(!gpu.is_software())];
        let blocks = options.blocks.unwrap_or(blocks);
        Ok(Load {
            computes: Computes::new(gpu, blocks, options.rounds)?,
            stream: gpu.stream()?,
            turns: Turns::new(gpu)?,
            tally: Tally::new(gpu)?,
            stamps: Stamps::new(gpu, KEPT as usize)?,
            bell: Bell::new(gpu)?,
        })
    }

    /// The number of kernels enqueued so far.
    fn enqueued(&self) -> u64 {
        u64::from(self.bell.enqueued())
    }

    /// Enqueues the time, as the start of the next kernel.
    fn stamp(&self) -> Result<()> {
        let place = 8 * (self.enqueued() % KEPT);
        let turn = Turn::new(8, &self.tally).stamp(&self.stamps.0, place);
        // SAFETY: the stamps live as long as this object, which waits for its stream.
        unsafe { self.turns.launch(&self.stream, &turn) }
    }

    /// Enqueues kernels until it is stopped, and waits for them.
    fn run(&mut self, shared: &Shared, deadline: Instant) -> Result<()> {
        while !shared.stop.load(Ordering::Relaxed) {
            self.stamp()?;
            // SAFETY: this object lives until the stream is done: the wait below.
            unsafe { self.computes.launch(&self.stream)? };
            self.bell.enqueue(&self.stream)?;
            let ended = self.enqueued().saturating_sub(AHEAD);
            self.bell.poll_nth(ended as u32, deadline)?;
            shared.ended.store(ended, Ordering::Relaxed);
        }
        self.stamp()?;
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(self.stream.synchronize(left)?, "the time limit expired");
        self.computes.check()
    }

    /// Does `work` while the kernels run. `work` receives a function that returns how many kernels
    /// have run beside it so far. Returns the median time of those kernels in microseconds, too.
    fn beside<T>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&dyn Fn() -> u64) -> Result<T>,
    ) -> Result<(T, f64)> {
        let deadline = Instant::now() + limit;
        let shared = Shared {
            stop: AtomicBool::new(false),
            ended: AtomicU64::new(self.enqueued()),
        };
        // Those that run when the work starts do not count.
        let first = self.enqueued() + AHEAD + 1;
        let ran = || shared.ended.load(Ordering::Relaxed).saturating_sub(first);
        let (done, ran) = thread::scope(|scope| {
            let thread = scope.spawn(|| self.run(&shared, deadline));
            while shared.ended.load(Ordering::Relaxed) + AHEAD < first && !thread.is_finished() {
                thread::sleep(Duration::from_micros(100));
            }
            let done = work(&ran);
            let ran = ran();
            shared.stop.store(true, Ordering::Relaxed);
            let ended = thread.join();
            let ended = ended.map_err(|_| anyhow!("the thread of the kernels panicked"))?;
            ended.context("the kernels")?;
            anyhow::Ok((done?, ran))
        })?;
        Ok((done, self.median_us(first..first + ran)?))
    }

    /// The median time of kernels in microseconds. Of more than [`KEPT`], the last count.
    fn median_us(&self, kernels: Range<u64>) -> Result<f64> {
        let mut bytes = vec![0; 8 * KEPT as usize];
        self.stamps.0.read(0, &mut bytes)?;
        let (stamps, _) = bytes.as_chunks::<8>();
        let stamp = |i: u64| u64::from_ne_bytes(stamps[(i % KEPT) as usize]);
        let first = (self.enqueued() + 1).saturating_sub(KEPT);
        let mut samples = Samples::default();
        for i in kernels.start.max(first)..kernels.end {
            let ns = stamp(i + 1).checked_sub(stamp(i));
            samples.record(ns.context("the GPU's clock went back")?);
        }
        let summary = samples.summary();
        ensure!(summary.count > 0, "no kernel ran beside the messages");
        Ok(summary.median as f64 / 1000.0)
    }
}

/// The results of a size and a way.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    size: u64,
    #[serde(flatten)]
    way: Way,
    /// Of messages: half a round trip, or an operation.
    latency_us: Both,
    /// Of a kernel.
    kernel_us: Both,
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    rows: Vec<Row>,
}

impl Options {
    /// Measures messages and kernels, alone and beside each other.
    fn row(
        &self,
        end: &mut End<'_>,
        load: &mut Load,
        play: &Play,
        (size, way): (u64, Way),
    ) -> Result<Row> {
        end.barrier()?;
        let limit = end.left();
        let ((), kernel) = load.beside(limit, |ran| {
            let deadline = Instant::now() + limit;
            while ran() < self.kernels {
                ensure!(Instant::now() < deadline, "the time limit expired");
                thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        })?;
        end.barrier()?;
        let alone = rounds::measure(end, play, (size, way))?;
        let round = 1 + play.common.warmup(play.pattern, size);
        end.fill(round, play.common.corrupt == Some(round))?;
        let iterations = play.common.iterations(play.pattern, size);
        let ((count, elapsed), beside) = load.beside(end.left(), |ran| {
            let (mut count, mut elapsed) = (0, 0);
            loop {
                end.barrier()?;
                elapsed += rounds::timed(end, play, way.op, iterations)?;
                count += iterations;
                // Until enough kernels have run on each rank.
                if end.least(ran())? >= self.kernels {
                    break;
                }
            }
            Ok((count, elapsed))
        })?;
        end.barrier()?;
        if rounds::receives(play.pattern, way.op, end.is_first()) {
            end.compare(round)?;
        }
        let latency = |count, elapsed| Messages::new(play, (size, way), count, elapsed).figure();
        Ok(Row {
            size,
            way,
            latency_us: Both {
                alone: latency(iterations, alone),
                beside: latency(count, elapsed),
            },
            kernel_us: Both {
                alone: kernel,
                beside,
            },
        })
    }
}

impl Job for Options {
    const NAME: &'static str = "overlap";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let setup = &self.common.setup;
        let endpoint = Endpoint::open(setup, rank.number)?;
        let mut load = Load::new(&endpoint.gpu, self)?;
        let play = Play::new(Pattern::Latency, &self.common);
        let mut end = End::new(rank, &endpoint, &self.common, 1)?;
        end.set_peer(1 - rank.number);
        let rows = play.cases().map(|(size, way)| {
            let row = self.row(&mut end, &mut load, &play, (size, way));
            row.with_context(|| format!("{size} bytes, {way}"))
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let names = end.close(setup)?;
        Ok(serde_json::to_value(Played { names, rows })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "overlap";
    const ABOUT: &'static str =
        "Messages beside a kernel that computes on the same GPU: how much each slows the other";
    const EXAMPLES: Examples = [
        (
            "-m 8:1Mi --poster cpu,stream --gpu cuda:0,cuda:1",
            "messages by the CPU and by streams, between two GPUs that compute",
        ),
        (
            "-m 8:8 --blocks 132 --rounds 100000",
            "beside a kernel with one block for each SM of an H200",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        self.common.check()?;
        let ranks = self.common.launch.ranks();
        let Some(mut all) = world::run_ranks::<Played>(ranks, 2, self, limit)? else {
            return Ok(None);
        };
        let other = all.pop().context("no result")?;
        let Played { names, mut rows } = all.pop().context("no result")?;
        // The first rank measures the messages; the kernel that slows more counts.
        for (row, other) in rows.iter_mut().zip(other.rows) {
            if other.kernel_us.ratio() > row.kernel_us.ratio() {
                row.kernel_us = other.kernel_us;
            }
        }
        let zero_sm = match self.common.zero_sm {
            true => "; zero-SM messages",
            false => "",
        };
        println!(
            "# mpbench overlap: {names}; {} memory{zero_sm}",
            names.memory
        );
        for way in self.common.ways() {
            println!("# {way}: latency (us) of messages, time (us) of a kernel");
            let heads = [
                "# Size",
                "latency alone",
                "beside",
                "ratio",
                "kernel alone",
                "beside",
                "ratio",
            ];
            let table = Table::start(&heads, 8);
            for row in rows.iter().filter(|row| row.way == way) {
                let [messages, kernel] = [row.latency_us, row.kernel_us].map(Both::cells);
                let size = [row.size.to_string()];
                table.row(&[&size[..], &messages[..], &kernel[..]].concat());
            }
        }
        let ratio = |row: &Row| {
            json!({
                "size": row.size,
                "op": row.way.op,
                "poster": row.way.poster,
                "latency": row.latency_us.ratio(),
                "kernel": row.kernel_us.ratio(),
            })
        };
        let ratios: Vec<Value> = rows.iter().map(ratio).collect();
        let figures = json!({ "names": names, "ranks": ranks, "rows": rows, "ratios": ratios });
        Outcome::of(&figures, Vec::new())
    }
}
