//! `all_pairs`: latency and bandwidth of each pair of ranks alone, and of all pairs at once.
//!
//! A rank has one stream for each other rank. The rounds are enqueued ahead, so that all pairs run
//! at the same time, and are timed by the GPU.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ahead::{Batches, Timed};
use super::options::{Common, Op, Way};
use super::results::Both;
use super::rounds::Pattern;
use super::sizes::Sizes;
use super::{Play, VERIFIED};
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Endpoint, Names};
use crate::options::{self, Launch, Poster, Setup};
use crate::rank::{Job, Rank};
use crate::stats::Samples;
use crate::table::{self, Table};
use crate::world;

/// Options of `mpbench all_pairs`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of ranks. Each has a stream for each other rank. Six streams of a CUDA context, which
    /// threads on one GPU share, may wait; with CUDA_DEVICE_MAX_CONNECTIONS=32, 30 may.
    #[arg(short = 'n', long, default_value = "4", value_parser = clap::value_parser!(u32).range(2..=31))]
    ranks: u32,
    /// Size of the messages whose latency is measured, in bytes.
    #[arg(short = 's', long, value_parser = options::size, default_value = "8")]
    size: u64,
    /// Size of the messages whose bandwidth is measured, in bytes.
    #[arg(short = 'b', long, value_parser = options::size, default_value = "1Mi")]
    large: u64,
    /// Messages of a window of the measurement of bandwidth, in each direction.
    #[arg(short = 'W', long = "window-size", default_value = "8", value_parser = clap::value_parser!(u64).range(1..=32))]
    window: u64,
    /// Measured round trips of each pair; of windows, a twentieth.
    #[arg(short = 'i', long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: u64,
    /// Rounds before each measurement, of which every byte is compared.
    #[arg(short = 'x', long, default_value = "2", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    warmup: u64,
    /// The operation: send or put-signal.
    #[arg(long, value_enum, default_value = "send")]
    op: Op,
    #[command(flatten)]
    #[serde(flatten)]
    launch: Launch,
    #[command(flatten)]
    setup: Setup,
    /// Flips one bit of the payloads of this round, to test that the benchmark detects it.
    #[arg(long, value_name = "ROUND", hide = true)]
    corrupt: Option<u64>,
}

/// The figures of a pair: alone, and beside all other pairs.
#[derive(Debug, Serialize, Deserialize)]
struct Pair {
    ranks: [u32; 2],
    /// One way.
    latency_us: Both,
    /// Of both directions together.
    megabytes_per_second: Both,
}

/// The results of a rank.
#[derive(Debug, Serialize, Deserialize)]
struct Played {
    names: Names,
    /// The pairs in which it is the first.
    pairs: Vec<Pair>,
}

impl Options {
    fn way(&self) -> Way {
        Way {
            op: self.op,
            poster: Poster::Stream,
        }
    }

    fn play(&self, pattern: Pattern) -> (Play, u64) {
        let (size, count, window) = match pattern {
            Pattern::Latency => (self.size, self.iterations, 1),
            _ => (self.large, self.iterations.div_ceil(20), self.window),
        };
        let counts = [count, self.warmup];
        let sizes = Sizes::one(self.size.max(self.large));
        let mut play = Play::new(
            pattern,
            &Common::one(sizes, self.way(), counts, &self.setup),
        );
        (play.window, play.common.corrupt) = (window, self.corrupt);
        (play, size)
    }

    /// The median nanoseconds of a round of each end: alone, and at once.
    fn measure(
        &self,
        rank: u32,
        batches: &Batches<'_>,
        ends: &mut [Timed<'_>],
        pattern: Pattern,
    ) -> Result<Vec<[u64; 2]>> {
        let (play, size) = self.play(pattern);
        let measure = |ends: &mut [Timed<'_>]| -> Result<Vec<u64>> {
            let mut samples: Vec<Samples> = ends.iter().map(|_| Samples::default()).collect();
            batches.measure(ends, &play, (size, self.way()), |batch| {
                for (samples, ns) in samples.iter_mut().zip(&batch.rounds_ns) {
                    samples.record(*ns);
                }
                Duration::ZERO
            })?;
            Ok(samples.iter().map(|s| s.summary().median).collect())
        };
        let mut alone = vec![0; ends.len()];
        for a in 0..self.ranks {
            for b in a + 1..self.ranks {
                let peer = match rank {
                    r if r == a => Some(b),
                    r if r == b => Some(a),
                    _ => None,
                };
                let i = peer.and_then(|peer| ends.iter().position(|t| t.end.peer() == peer));
                match i {
                    Some(i) => alone[i] = measure(&mut ends[i..=i])?[0],
                    None => measure(&mut []).map(drop)?,
                }
            }
        }
        let at_once = measure(ends)?;
        Ok(alone
            .into_iter()
            .zip(at_once)
            .map(<[u64; 2]>::from)
            .collect())
    }
}

impl Job for Options {
    const NAME: &'static str = "all_pairs";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let me = rank.number;
        let endpoint = Endpoint::open(&self.setup, me)?;
        let batches = Batches::new(rank, &endpoint, &self.setup, false)?;
        let (play, _) = self.play(Pattern::Latency);
        let mut ends = Vec::new();
        // The ends of a pair have the same place in both ranks, since their windows are made
        // together: end `i` connects the ranks whose numbers add up to `i`.
        for i in 0..self.ranks {
            let mut timed = batches.end(&play.common, 0)?;
            timed.end.set_peer((i + self.ranks - me) % self.ranks);
            if timed.end.peer() != me {
                ends.push(timed);
            }
        }
        let latency = self.measure(me, &batches, &mut ends, Pattern::Latency)?;
        let bandwidth = self.measure(me, &batches, &mut ends, Pattern::Bibw)?;
        let window_bytes = (2 * self.window * self.large) as f64;
        let both = |[alone, beside]: [u64; 2], of: &dyn Fn(f64) -> f64| Both {
            alone: of(alone as f64),
            beside: of(beside as f64),
        };
        let pair = |(i, timed): (usize, &Timed<'_>)| Pair {
            ranks: [me, timed.end.peer()],
            latency_us: both(latency[i], &|ns| ns / 2000.0),
            megabytes_per_second: both(bandwidth[i], &|ns| window_bytes * 1000.0 / ns),
        };
        let firsts = ends.iter().enumerate().filter(|(_, t)| t.end.is_first());
        let pairs = firsts.map(pair).collect();
        let names = batches.close(ends, &self.setup)?;
        Ok(serde_json::to_value(Played { names, pairs })?)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "all_pairs";
    const ABOUT: &'static str =
        "Latency and bandwidth of each pair of ranks alone, and of all pairs at once";
    const EXAMPLES: Examples = [
        (
            "-n 4 -b 64Mi -W 2 --gpu cuda:0,cuda:1,cuda:2,cuda:3",
            "four GPUs; windows of two messages of 64 MiB each way",
        ),
        (
            "-n 3 --op put-signal --threads",
            "puts with signals, between three threads",
        ),
    ];
    const VERIFIED: Option<&str> = Some(VERIFIED);

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        self.way().answered()?;
        let ranks = self.launch.ranks();
        let count = self.ranks as usize;
        let Some(all) = world::run_ranks::<Played>(ranks, count, self, limit)? else {
            return Ok(None);
        };
        let names = all.first().context("no result")?.names.clone();
        let mut pairs: Vec<Pair> = all.into_iter().flat_map(|played| played.pairs).collect();
        pairs.sort_by_key(|pair| pair.ranks);
        println!("# mpbench all_pairs: {names}; {} memory", names.memory);
        println!(
            "# {}; latency (us) of {}, bandwidth both ways (MB/s) of windows of {} of {}",
            self.way(),
            table::bytes(self.size),
            self.window,
            table::bytes(self.large)
        );
        let heads = [
            "# pair",
            "latency alone",
            "at once",
            "ratio",
            "MB/s alone",
            "at once",
            "ratio",
        ];
        let table = Table::start(&heads, 8);
        for pair in &pairs {
            let [a, b] = pair.ranks;
            let name = [format!("{a}, {b}")];
            let (latency, bandwidth) = (pair.latency_us.cells(), pair.megabytes_per_second.cells());
            table.row(&[&name[..], &latency[..], &bandwidth[..]].concat());
        }
        // The slowest pair counts for all, as they run for the same time.
        let least = |of: fn(&Both) -> f64| {
            let each = pairs.iter().map(|pair| of(&pair.megabytes_per_second));
            each.fold(f64::INFINITY, f64::min)
        };
        let sum = pairs.len() as f64 * least(|both| both.beside);
        let ratio = sum / least(|both| both.alone);
        println!("# all pairs at once: {sum:.2} MB/s, {ratio:.2} times the slowest pair alone");
        let figures = json!({
            "names": names,
            "ranks": ranks,
            "pairs": pairs,
            "sum_megabytes_per_second": sum,
            "sum_over_slowest_alone": ratio,
        });
        Outcome::of(&figures, Vec::new())
    }
}
