//! The benchmarks with the options and columns of the OSU micro-benchmarks: `latency`, `bandwidth`,
//! `bibw` and `rate`, of two-sided and of one-sided operations, posted by the CPU or by a stream.
//!
//! `end` has the operations of one rank and the checks of its bytes, `rounds` the patterns,
//! `options` the ways (an operation and its poster), and `results` the tables. If the options name
//! several ways, they run in turn for each size, and the report has their ratios. `pairs` measures
//! the latency between all pairs of ranks, one after the other, and `all_pairs` all at once; `ahead`
//! measures with a CPU thread that sleeps, and `overlap` beside a kernel that computes.

pub mod ahead;
pub mod all_pairs;
mod end;
mod options;
pub mod overlap;
pub mod pairs;
mod results;
mod rounds;
mod sizes;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::rank::{Job, Rank};
use crate::world;
use end::End;
use options::{Common, Way, Windowed};
use results::Row;
use rounds::Pattern;

const VERIFIED: &str = "every byte of the warm-up rounds and of the last round is right";

/// Options of `mpbench latency`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Latency {
    #[command(flatten)]
    #[serde(flatten)]
    common: Common,
}

/// Options of `mpbench bandwidth`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Bandwidth {
    #[command(flatten)]
    #[serde(flatten)]
    windowed: Windowed,
}

/// Options of `mpbench bibw`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Bibw {
    #[command(flatten)]
    #[serde(flatten)]
    windowed: Windowed,
}

/// Options of `mpbench rate`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Rate {
    /// Pairs of ranks that send at the same time.
    #[arg(short = 'p', long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..=64))]
    pairs: u32,
    #[command(flatten)]
    #[serde(flatten)]
    windowed: Windowed,
}

impl Benchmark for Latency {
    const NAME: &'static str = "latency";
    const ABOUT: &'static str =
        "Latency of messages and of one-sided operations, as osu_latency reports it";
    const EXAMPLES: Examples = [
        (
            "-m 1:64Ki -i 1000 -x 10",
            "one-way latency of messages of 1 byte to 64 KiB, 1000 round trips each",
        ),
        (
            "--op send,put-signal,put,get --poster stream -d H",
            "messages beside one-sided operations, by streams, in pinned memory",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let play = Play::new(Pattern::Latency, &self.common);
        play.run(Self::NAME, limit)
    }
}

impl Benchmark for Bandwidth {
    const NAME: &'static str = "bandwidth";
    const ABOUT: &'static str =
        "Bandwidth of windows of messages or one-sided operations, as osu_bw reports it";
    const EXAMPLES: Examples = [
        ("-m 4Ki:4Mi -W 64", "64 messages in flight"),
        (
            "--op send,put --poster cpu,stream",
            "messages and puts, each by the CPU and by a stream, in turn, with their ratios",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let play = Play::windowed(Pattern::Bandwidth, &self.windowed);
        play.run(Self::NAME, limit)
    }
}

impl Benchmark for Bibw {
    const NAME: &'static str = "bibw";
    const ABOUT: &'static str = "Bandwidth in both directions at once, as osu_bibw reports it";
    const EXAMPLES: Examples = [
        ("-m 1Mi -W 16", "16 messages in flight each way"),
        (
            "--op put-signal --poster stream --threads",
            "puts with signals, by the streams of two threads",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let play = Play::windowed(Pattern::Bibw, &self.windowed);
        play.run(Self::NAME, limit)
    }
}

impl Benchmark for Rate {
    const NAME: &'static str = "rate";
    const ABOUT: &'static str = "Messages a second of pairs of ranks, as osu_mbw_mr reports it";
    const EXAMPLES: Examples = [
        (
            "-m 8 -W 64 -i 1000",
            "messages of 1 to 8 bytes, 64 in flight",
        ),
        (
            "--pairs 2 --op send,put",
            "two pairs of ranks; messages, and puts",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let mut play = Play::windowed(Pattern::Rate, &self.windowed);
        play.pairs = self.pairs;
        play.run(Self::NAME, limit)
    }
}

/// The job of the ranks: rank `i` of the first half and rank `i` of the second half are a pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Play {
    pattern: Pattern,
    pairs: u32,
    window: u64,
    common: Common,
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    /// The time of all iterations in nanoseconds, by size and way.
    elapsed_ns: Vec<u64>,
}

impl Play {
    fn new(pattern: Pattern, common: &Common) -> Play {
        Play {
            pattern,
            pairs: 1,
            window: 1,
            common: common.clone(),
        }
    }

    fn windowed(pattern: Pattern, windowed: &Windowed) -> Play {
        Play {
            window: windowed.window,
            ..Play::new(pattern, &windowed.common)
        }
    }

    /// The cases in the order in which they run.
    fn cases(&self) -> impl Iterator<Item = (u64, Way)> {
        let ways = self.common.ways();
        let of = move |size| ways.clone().into_iter().map(move |way| (size, way));
        self.common.sizes.each().flat_map(of)
    }

    fn run(&self, name: &str, limit: Duration) -> Result<Option<Outcome>> {
        self.common.check()?;
        let ranks = self.common.launch.ranks();
        let count = 2 * self.pairs as usize;
        let Some(mut played) = world::run_ranks::<Played>(ranks, count, self, limit)? else {
            return Ok(None);
        };
        // Only the first rank of each pair measures; the slowest pair counts.
        played.truncate(self.pairs as usize);
        let names = played.first().context("no result")?.names.clone();
        let longest = |i: usize| played.iter().map(|p| p.elapsed_ns[i]).max();
        let rows = self.cases().enumerate().map(|(i, (size, way))| {
            let iterations = self.common.iterations(self.pattern, size);
            let elapsed = longest(i).context("no result")?;
            Ok(Row::new(self, (size, way), iterations, elapsed))
        });
        let rows = rows.collect::<Result<Vec<Row>>>()?;
        let ratios = results::ratios(&rows);
        results::show(name, self, &names, &rows, &ratios);
        let figures = json!({
            "names": names,
            "ranks": ranks,
            "window": self.window,
            "pairs": self.pairs,
            "rows": rows,
            "ratios": ratios,
        });
        Outcome::of(&figures, Vec::new())
    }
}

impl Job for Play {
    const NAME: &'static str = "osu";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let common = &self.common;
        let endpoint = Endpoint::open(&common.setup, rank.number)?;
        let mut end = End::new(rank, &endpoint, common, self.window)?;
        end.set_peer((rank.number + self.pairs) % (2 * self.pairs));
        let mut elapsed_ns = Vec::new();
        for (size, way) in self.cases() {
            let case = || format!("{size} bytes, {way}");
            let elapsed = rounds::measure(&mut end, self, (size, way)).with_context(case)?;
            elapsed_ns.push(elapsed);
        }
        let names = end.close(&common.setup)?;
        Ok(serde_json::to_value(Played { names, elapsed_ns })?)
    }
}
