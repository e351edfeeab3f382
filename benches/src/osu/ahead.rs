//! `ahead`: the latency of messages that streams send while the CPU thread polls, and while it
//! sleeps; and the batches behind a gate with which it and `all_pairs` measure.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use gdsync::gpu::Graph;
use mp::{Context, Memory};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::end::{End, Timer};
use super::options::{Common, Op, Way};
use super::rounds::{self, Pattern};
use super::sizes::Sizes;
use super::{Play, VERIFIED};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::options::{Launch, Poster, Setup};
use crate::rank::{Job, Rank};
use crate::start::barrier_by;
use crate::stats::{Samples, Summary};
use crate::table::Table;
use crate::world;

/// Most messages of a batch in each direction: a stream takes so many behind a closed gate.
const BATCH: u64 = 32;
/// The tag of messages that synchronise the ranks.
const BARRIER: u32 = 103;

/// An end of a pair with its timer.
pub struct Timed<'e> {
    pub end: End<'e>,
    pub timer: Timer,
    /// The graph of the last batch, and what it contains.
    graph: Option<(Captured, Graph)>,
}

/// The rounds of a graph: their size and their number.
type Captured = (u64, u64);

/// Batches of rounds that are enqueued behind a gate and timed by the GPU. All ranks of the job run
/// them, each with the ends that take part.
pub struct Batches<'r> {
    rank: &'r Rank,
    endpoint: &'r Endpoint,
    context: Context,
    nothing: Memory,
    /// The rounds of a batch are captured into a graph, which each batch launches.
    graph: bool,
}

/// The results of a batch.
pub struct Batch {
    /// Nanoseconds of a round, for each end.
    pub rounds_ns: Vec<u64>,
    /// The time from the opening of the gate until the host knew that all had ended.
    pub elapsed: Duration,
    /// Whether all had ended before the host looked.
    pub ended_unseen: bool,
}

impl<'r> Batches<'r> {
    /// `graph`: the rounds of a batch are a graph, which is captured once for each size.
    pub fn new(
        rank: &'r Rank,
        endpoint: &'r Endpoint,
        setup: &Setup,
        graph: bool,
    ) -> Result<Batches<'r>> {
        let context = End::context(rank, endpoint, setup, 2 * BATCH)?;
        let nothing = context.alloc(mp::gdsync::gpu::MemoryKind::Pinned, 8)?;
        Ok(Batches {
            rank,
            endpoint,
            context,
            nothing,
            graph,
        })
    }

    /// An end of a pair, with a stream of its own, which posts receives so many rounds ahead. All ranks
    /// call it.
    pub fn end(&self, common: &Common, ahead: usize) -> Result<Timed<'r>> {
        let (gpu, context) = (&self.endpoint.gpu, &self.context);
        Ok(Timed {
            timer: Timer::new(gpu)?,
            end: End::over(
                self.rank,
                self.endpoint,
                context,
                gpu.stream()?,
                common,
                ahead,
            )?,
            graph: None,
        })
    }

    fn barrier(&self) -> Result<()> {
        let nothing = self.nothing.slice(0, 0)?;
        barrier_by(&self.context, BARRIER, &nothing, self.rank.left())
    }

    /// Runs a batch of `count` rounds on each end. The host opens the gate and polls, or first
    /// sleeps for the time `sleep`.
    fn batch(
        &self,
        ends: &mut [Timed<'_>],
        play: &Play,
        (op, size, count): (Op, u64, u64),
        sleep: Duration,
    ) -> Result<Batch> {
        let round = |end: &mut End<'_>| rounds::round(end, play.pattern, op, play.window);
        if self.graph {
            for Timed { end, graph, .. } in &mut *ends {
                if graph.as_ref().is_none_or(|(of, _)| *of != (size, count)) {
                    *graph = Some(((size, count), end.capture(count, round)?));
                }
            }
        }
        for Timed { end, timer, graph } in &mut *ends {
            let graph = graph.as_ref().map(|(_, graph)| graph);
            end.enqueue(timer, count, graph, round)?;
        }
        self.barrier()?;
        let start = Instant::now();
        ends.iter().try_for_each(|timed| timed.timer.open())?;
        if !sleep.is_zero() {
            std::thread::sleep(sleep);
        }
        let ended_unseen = ends.iter().all(|timed| timed.end.has_ended());
        ends.iter().try_for_each(|timed| timed.end.finish())?;
        let elapsed = start.elapsed();
        let of = |timed: &Timed<'_>| Ok(timed.timer.elapsed()? / count);
        Ok(Batch {
            rounds_ns: ends.iter().map(of).collect::<Result<_>>()?,
            elapsed,
            ended_unseen,
        })
    }

    /// Measures one size in one way: verified rounds, then batches of which the last round is
    /// verified. `each` receives each batch, and returns for how long the host sleeps in the next.
    pub fn measure(
        &self,
        ends: &mut [Timed<'_>],
        play: &Play,
        (size, way): (u64, Way),
        mut each: impl FnMut(&Batch) -> Duration,
    ) -> Result<()> {
        let common = &play.common;
        let warmup = common.warmup(play.pattern, size);
        let most = (BATCH / play.window).max(1);
        for timed in &mut *ends {
            timed.end.set(way, size)?;
        }
        for number in 0..=warmup {
            let mut left = match number < warmup {
                true => 1,
                false => common.iterations(play.pattern, size),
            };
            for Timed { end, .. } in &*ends {
                end.fill(number, common.corrupt == Some(number))?;
            }
            let mut sleep = Duration::ZERO;
            while left > 0 {
                let count = most.min(left);
                let batch = self.batch(ends, play, (way.op, size, count), sleep)?;
                if number == warmup {
                    sleep = each(&batch);
                }
                left -= count;
            }
            self.barrier()?;
            for Timed { end, .. } in &*ends {
                if rounds::receives(play.pattern, way.op, end.is_first()) {
                    end.compare(number)?;
                }
            }
        }
        Ok(())
    }

    /// Leaves the job, and returns the names of the parts.
    pub fn close(self, ends: Vec<Timed<'_>>, setup: &Setup) -> Result<Names> {
        self.barrier()?;
        let end = ends.into_iter().next().context("no end")?.end;
        end.close(setup)
    }
}

/// Options of `mpbench ahead`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Sizes of the messages in bytes, from MIN (1) to MAX; each is twice the one before.
    #[arg(short = 'm', long = "message-size", value_name = "[MIN:]MAX",
          value_parser = Sizes::parse, default_value = "8:64Ki")]
    sizes: Sizes,
    /// Measured round trips of each size: half of them while the CPU thread polls, half while it
    /// sleeps.
    #[arg(short = 'i', long, default_value = "2000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: u64,
    /// Rounds before the measurement of each size, of which every byte is compared.
    #[arg(short = 'x', long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    warmup: u64,
    /// The operation: send or put-signal.
    #[arg(long, value_enum, default_value = "send")]
    op: Op,
    /// Number of rounds by which receives are posted ahead, into as many buffers in turn; 0: each
    /// receive is posted just before the wait for it.
    #[arg(long, value_name = "ROUNDS", default_value = "0", value_parser = clap::value_parser!(u64).range(0..=15))]
    receives_ahead: u64,
    #[command(flatten)]
    #[serde(flatten)]
    launch: Launch,
    /// Captures the rounds of a batch into a graph, with the receives that are ahead of them, and
    /// measures its launches; with mapped memory only.
    #[arg(long)]
    graph: bool,
    /// The messages are zero-SM messages: copy engines and memory operations carry them, and no kernel; with
    /// mapped memory only.
    #[arg(long, conflicts_with = "graph")]
    #[serde(default)]
    zero_sm: bool,
    #[command(flatten)]
    setup: Setup,
    /// Flips one bit of the payloads of this round, to test that the benchmark detects it.
    #[arg(long, value_name = "ROUND", hide = true)]
    corrupt: Option<u64>,
}

/// The results of a size.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    size: u64,
    /// One way in nanoseconds, the mean of each batch, while the CPU thread polls.
    polling_ns: Summary,
    /// The same while it sleeps.
    sleeping_ns: Summary,
    /// The second median as a multiple of the first.
    ratio: f64,
    /// The number of batches that ended before the CPU thread awoke.
    ended_asleep: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    rows: Vec<Row>,
}

impl Options {
    fn way(&self) -> Way {
        Way {
            op: self.op,
            poster: Poster::Stream,
        }
    }

    /// Measures a size: the CPU thread polls and sleeps in turn.
    fn row(&self, batches: &Batches<'_>, ends: &mut [Timed<'_>], size: u64) -> Result<Row> {
        // At least one batch of each kind.
        let counts = [self.iterations.max(2 * BATCH), self.warmup];
        let mut common = Common::one(self.sizes, self.way(), counts, &self.setup);
        common.corrupt = self.corrupt;
        common.zero_sm = self.zero_sm;
        let play = Play::new(Pattern::Latency, &common);
        let (mut polling, mut sleeping) = (Samples::default(), Samples::default());
        let (mut asleep, mut ended_asleep) = (false, 0);
        let mut longest = Duration::ZERO;
        batches.measure(ends, &play, (size, self.way()), |batch| {
            let samples = if asleep { &mut sleeping } else { &mut polling };
            samples.record(batch.rounds_ns[0] / 2);
            match asleep {
                true => ended_asleep += u64::from(batch.ended_unseen),
                false => longest = longest.max(batch.elapsed),
            }
            asleep = !asleep;
            match asleep {
                true => 2 * longest + Duration::from_millis(1),
                false => Duration::ZERO,
            }
        })?;
        let (polling_ns, sleeping_ns) = (polling.summary(), sleeping.summary());
        Ok(Row {
            size,
            ratio: sleeping_ns.median as f64 / polling_ns.median.max(1) as f64,
            polling_ns,
            sleeping_ns,
            ended_asleep,
        })
    }
}

impl Job for Options {
    const NAME: &'static str = "ahead";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let batches = Batches::new(rank, &endpoint, &self.setup, self.graph)?;
        let mut common = Common::one(self.sizes, self.way(), [1; 2], &self.setup);
        common.zero_sm = self.zero_sm;
        let mut ends = vec![batches.end(&common, self.receives_ahead as usize)?];
        ends[0].end.set_peer(1 - rank.number);
        let rows = self.sizes.each().map(|size| {
            let row = self.row(&batches, &mut ends, size);
            row.with_context(|| format!("{size} bytes"))
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let names = batches.close(ends, &self.setup)?;
        Ok(serde_json::to_value(Played { names, rows })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "ahead";
    const ABOUT: &'static str =
        "Latency of messages enqueued ahead, while the CPU thread polls and while it sleeps";
    const EXAMPLES: Examples = [
        (
            "-m 8:1Mi",
            "messages of 8 bytes to 1 MiB between two processes",
        ),
        (
            "-m 8:8 --op put-signal --threads",
            "puts with signals of 8 bytes, between two threads",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        self.way().answered()?;
        ensure!(
            !self.zero_sm || self.op == Op::Send,
            "--zero-sm needs messages; use --op send"
        );
        let ranks = self.launch.ranks();
        let Some(mut all) = world::run_ranks::<Played>(ranks, 2, self, limit)? else {
            return Ok(None);
        };
        let Played { names, rows } = all.swap_remove(0);
        let graph = match (self.graph, self.zero_sm) {
            (true, _) => "; launches of graphs",
            (_, true) => "; zero-SM messages",
            _ => "",
        };
        println!("# mpbench ahead: {names}; {} memory{graph}", names.memory);
        println!(
            "# {}; one way in us, medians of batches, by the GPU's clock",
            self.way()
        );
        let heads = ["# Size", "CPU polls", "CPU sleeps", "ratio"];
        let table = Table::start(&heads, 10);
        let us = |ns: &Summary| format!("{:.2}", ns.median as f64 / 1000.0);
        for row in &rows {
            table.row(&[
                row.size.to_string(),
                us(&row.polling_ns),
                us(&row.sleeping_ns),
                format!("{:.2}", row.ratio),
            ]);
        }
        let ended: u64 = rows.iter().map(|row| row.ended_asleep).sum();
        let slept: u64 = rows.iter().map(|row| row.sleeping_ns.count).sum();
        println!("# {ended} of {slept} batches ended before the CPU thread awoke");
        let figures = json!({ "names": names, "ranks": ranks, "graph": self.graph, "zero_sm": self.zero_sm, "rows": rows });
        Outcome::of(&figures, Vec::new())
    }
}
