//! The options that the benchmarks share, the ways in which they send, and their tables.

use std::fmt;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::Play;
use super::rounds::Pattern;
use super::sizes::Sizes;
use crate::endpoint::Names;
use crate::options::{Poster, Setup};
use crate::table::Table;

/// Greatest size for which the default numbers of iterations are those of small messages.
const SMALL: u64 = 8 << 10;

/// The operation that carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Two-sided messages: `isend` and `irecv`.
    Send,
    /// Puts, and a wait until they are visible at the target (`quiet`).
    Put,
    /// Gets.
    Get,
    /// Puts with a signal behind each, for which the target waits.
    PutSignal,
}

/// An operation, and its poster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The operation.
    pub op: Op,
    /// Its poster.
    pub poster: Poster,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Send => "send",
            Op::Put => "put",
            Op::Get => "get",
            Op::PutSignal => "put-signal",
        };
        write!(f, "{op} by {}", self.poster.name())
    }
}

/// The options of all benchmarks.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Common {
    /// Sizes of the messages in bytes, from MIN (1) to MAX; each is twice the one before.
    #[arg(short = 'm', long = "message-size", value_name = "[MIN:]MAX",
          value_parser = Sizes::parse, default_value = "1:1Mi")]
    pub sizes: Sizes,
    /// Measured iterations of each size [default: 10000 for latency and 100 for windows; above
    /// 8 KiB 1000 and 20].
    #[arg(short = 'i', long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: Option<u64>,
    /// Rounds before the measurement of each size, of which every byte is compared [default: 100
    /// for latency and 10 for windows; above 8 KiB 10 and 2].
    #[arg(short = 'x', long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    warmup: Option<u64>,
    /// Adds a column with the result of the comparison of bytes.
    #[arg(short = 'c', long)]
    validation: bool,
    /// The operations; several are measured in turn and compared with the first.
    #[arg(long = "op", value_enum, value_delimiter = ',', default_value = "send")]
    ops: Vec<Op>,
    /// The posters of the operations.
    #[arg(
        long = "poster",
        value_enum,
        value_delimiter = ',',
        default_value = "cpu"
    )]
    posters: Vec<Poster>,
    /// Runs the ranks as threads of this process.
    #[arg(long)]
    pub threads: bool,
    #[command(flatten)]
    pub setup: Setup,
    /// Flips one bit of the payloads of this round, to test that the benchmark detects it.
    #[arg(long, value_name = "ROUND", hide = true)]
    pub corrupt: Option<u64>,
}

impl Common {
    /// One size in one way.
    pub fn one(
        size: u64,
        way: Way,
        [iterations, warmup]: [u64; 2],
        (threads, setup): (bool, Setup),
    ) -> Common {
        Common {
            sizes: Sizes {
                min: size,
                max: size,
            },
            iterations: Some(iterations),
            warmup: Some(warmup),
            validation: false,
            ops: vec![way.op],
            posters: vec![way.poster],
            threads,
            setup,
            corrupt: None,
        }
    }

    /// Each operation by each poster.
    pub fn ways(&self) -> Vec<Way> {
        let by = |op| self.posters.iter().map(move |&poster| Way { op, poster });
        self.ops.iter().copied().flat_map(by).collect()
    }

    /// Measured iterations of a size.
    pub fn iterations(&self, pattern: Pattern, size: u64) -> u64 {
        self.iterations.unwrap_or(match (pattern, size <= SMALL) {
            (Pattern::Latency, true) => 10_000,
            (Pattern::Latency, false) => 1000,
            (_, true) => 100,
            (_, false) => 20,
        })
    }

    /// Rounds before the measurement of a size.
    pub fn warmup(&self, pattern: Pattern, size: u64) -> u64 {
        self.warmup.unwrap_or(match (pattern, size <= SMALL) {
            (Pattern::Latency, true) => 100,
            (Pattern::Latency, false) | (_, true) => 10,
            (_, false) => 2,
        })
    }
}

/// The options of benchmarks with several operations in flight.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Windowed {
    /// Operations of a window: they are in flight together, and each iteration ends when all have
    /// arrived.
    #[arg(short = 'W', long = "window-size", default_value = "64",
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub window: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: Common,
}

/// The result of a size and a way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The size in bytes.
    pub size: u64,
    /// The operation and its poster.
    #[serde(flatten)]
    pub way: Way,
    /// Measured iterations.
    pub iterations: u64,
    /// Their time in nanoseconds.
    pub elapsed_ns: u64,
    /// The latency in microseconds: half a round trip of messages and signals, a whole operation
    /// for puts and gets. Only of `latency`.
    pub latency_us: Option<f64>,
    /// Megabytes a second, of all pairs and directions. Not of `latency`.
    pub megabytes_per_second: Option<f64>,
    /// Operations a second, of all pairs and directions.
    pub messages_per_second: f64,
}

impl Row {
    pub fn new(play: &Play, (size, way): (u64, Way), iterations: u64, elapsed_ns: u64) -> Row {
        let each = match (play.pattern, way.op) {
            (Pattern::Latency, Op::Send | Op::PutSignal) | (Pattern::Bibw, _) => 2,
            _ => 1,
        };
        let operations = each * iterations * play.window * u64::from(play.pairs);
        let per_second = operations as f64 * 1e9 / elapsed_ns.max(1) as f64;
        let is_latency = play.pattern == Pattern::Latency;
        Row {
            size,
            way,
            iterations,
            elapsed_ns,
            latency_us: is_latency.then_some(1e6 / per_second),
            megabytes_per_second: (!is_latency).then_some(per_second * size as f64 / 1e6),
            messages_per_second: per_second,
        }
    }

    /// The latency or the bandwidth.
    pub fn figure(&self) -> f64 {
        let figure = self.latency_us.or(self.megabytes_per_second);
        figure.unwrap_or(self.messages_per_second)
    }
}

/// The figure of a way as a multiple of that of the first way, for one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// The size in bytes.
    pub size: u64,
    /// The operation and its poster.
    #[serde(flatten)]
    pub way: Way,
    /// Its latency, or its bandwidth, divided by that of the first way.
    pub ratio: f64,
}

/// The ratios of all ways but the first.
pub fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let first = |row: &Row| rows.iter().find(|first| first.size == row.size);
    let others = rows
        .iter()
        .filter(|row| first(row).is_some_and(|f| f.way != row.way));
    let ratio = |row: &Row| Ratio {
        size: row.size,
        way: row.way,
        ratio: row.figure() / first(row).map_or(f64::NAN, Row::figure),
    };
    others.map(ratio).collect()
}

/// Prints a table for each way, and one with their ratios.
pub fn show(name: &str, play: &Play, names: &Names, rows: &[Row], ratios: &[Ratio]) {
    println!("# mpbench {name}: {names}; {} memory", names.memory);
    if play.pattern != Pattern::Latency {
        println!("# pairs: {}, window size: {}", play.pairs, play.window);
    }
    let ways = play.common.ways();
    for way in &ways {
        println!("# {way}");
        let mut heads = match play.pattern {
            Pattern::Latency => vec!["# Size", "Latency (us)"],
            Pattern::Bandwidth | Pattern::Bibw => vec!["# Size", "Bandwidth (MB/s)"],
            Pattern::Rate => vec!["# Size", "MB/s", "Messages/s"],
        };
        if play.common.validation {
            heads.push("Validation");
        }
        let table = Table::start(&heads, 10);
        for row in rows.iter().filter(|row| row.way == *way) {
            let mut cells = vec![row.size.to_string(), format!("{:.2}", row.figure())];
            if play.pattern == Pattern::Rate {
                cells.push(format!("{:.2}", row.messages_per_second));
            }
            if play.common.validation {
                // A wrong byte ends the benchmark.
                cells.push("Pass".to_owned());
            }
            table.row(&cells);
        }
    }
    let Some((first, others)) = ways.split_first().filter(|(_, others)| !others.is_empty()) else {
        return;
    };
    println!("# ratio to {first}");
    let heads: Vec<String> = others.iter().map(Way::to_string).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let table = Table::start(&[&["# Size"], &heads[..]].concat(), 10);
    for size in play.common.sizes.each() {
        let of_size = ratios.iter().filter(|ratio| ratio.size == size);
        let cells = of_size.map(|ratio| format!("{:.2}", ratio.ratio));
        let row: Vec<String> = [size.to_string()].into_iter().chain(cells).collect();
        table.row(&row);
    }
}
