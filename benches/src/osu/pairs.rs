//! `pingpong_all`: the latency between all pairs of ranks, one pair at a time.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::end::End;
use super::options::{Common, Op, Way};
use super::results::Row;
use super::rounds::{self, Pattern};
use super::sizes::Sizes;
use super::{Play, VERIFIED};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::options::{self, Launch, Poster, Setup};
use crate::rank::{Job, Rank};
use crate::table::{self, Table};
use crate::world;

/// Options of `mpbench pingpong_all`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of ranks.
    #[arg(short = 'n', long, default_value = "4", value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: u32,
    /// Size of a message in bytes: `8`, `64Ki`.
    #[arg(short = 's', long, value_parser = options::size, default_value = "8")]
    size: u64,
    /// Measured iterations of each pair.
    #[arg(short = 'i', long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: u64,
    /// Rounds before the measurement of each pair, of which every byte is compared.
    #[arg(short = 'x', long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    warmup: u64,
    /// The operation.
    #[arg(long, value_enum, default_value = "send")]
    op: Op,
    /// The poster of the operations.
    #[arg(long, value_enum, default_value = "stream")]
    poster: Poster,
    #[command(flatten)]
    #[serde(flatten)]
    launch: Launch,
    #[command(flatten)]
    setup: Setup,
}

impl Options {
    fn way(&self) -> Way {
        Way {
            op: self.op,
            poster: self.poster,
        }
    }

    fn play(&self) -> Play {
        let counts = [self.iterations, self.warmup];
        let common = Common::one(Sizes::one(self.size), self.way(), counts, &self.setup);
        Play::new(Pattern::Latency, &common)
    }

    /// The pairs, in the order in which they run.
    fn pairs(&self) -> impl Iterator<Item = [u32; 2]> + use<> {
        let ranks = self.ranks;
        (0..ranks).flat_map(move |a| (a + 1..ranks).map(move |b| [a, b]))
    }
}

/// The latencies that a rank has measured, by its peer.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    names: Names,
    latency_us: Vec<(u32, f64)>,
}

impl Job for Options {
    const NAME: &'static str = "pingpong_all";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let (play, case) = (self.play(), (self.size, self.way()));
        let endpoint = Endpoint::open(&self.setup, rank.number)?;
        let mut end = End::new(rank, &endpoint, &play.common, play.window)?;
        let mut latency_us = Vec::new();
        for [a, b] in self.pairs() {
            if rank.number != a && rank.number != b {
                rounds::stand_by(&end, &play, self.size)?;
                continue;
            }
            end.set_peer(a + b - rank.number);
            let elapsed = rounds::measure(&mut end, &play, case);
            let elapsed = elapsed.with_context(|| format!("ranks {a} and {b}"))?;
            if rank.number == a {
                let row = Row::new(&play, case, self.iterations, elapsed);
                latency_us.push((b, row.figure()));
            }
        }
        let names = end.close(&self.setup)?;
        Ok(serde_json::to_value(Measured { names, latency_us })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "pingpong_all";
    const ABOUT: &'static str = "Latency between all pairs of ranks, one pair at a time";
    const EXAMPLES: Examples = [
        ("-n 8 -s 64Ki", "messages of 64 KiB between 8 processes"),
        (
            "--op put-signal --poster cpu --threads",
            "puts with signals by the CPU, between 4 threads",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let ranks = self.launch.ranks();
        let count = self.ranks as usize;
        let Some(all) = world::run_ranks::<Measured>(ranks, count, self, limit)? else {
            return Ok(None);
        };
        let names = &all.first().context("no result")?.names;
        println!("# mpbench pingpong_all: {names}; {} memory", names.memory);
        let size = table::bytes(self.size);
        println!(
            "# latency (us) of {size}, {}, by the numbers of the ranks",
            self.way()
        );
        let heads: Vec<String> = (0..self.ranks).map(|rank| rank.to_string()).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let lines = Table::start(&[&["#"], &heads[..]].concat(), 8);
        let mut pairs = Vec::new();
        for (a, measured) in (0_u32..).zip(&all) {
            let mut cells = vec![String::new(); 1 + self.ranks as usize];
            cells[0] = a.to_string();
            for &(b, us) in &measured.latency_us {
                cells[1 + b as usize] = format!("{us:.2}");
                pairs.push(json!({ "ranks": [a, b], "latency_us": us }));
            }
            lines.row(&cells);
        }
        let figures = json!({ "names": names, "ranks": ranks, "pairs": pairs });
        Outcome::of(&figures, Vec::new())
    }
}
