//! The figures of a benchmark, and their tables.

use serde::{Deserialize, Serialize};

use super::Play;
use super::options::{Op, Way};
use super::rounds::Pattern;
use crate::endpoint::Names;
use crate::table::Table;

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

/// A figure alone, and beside something else.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Both {
    /// The figure alone.
    pub alone: f64,
    /// The figure beside something else.
    pub beside: f64,
}

impl Both {
    /// The second as a multiple of the first.
    pub fn ratio(self) -> f64 {
        self.beside / self.alone
    }

    /// Both, and the ratio, in a table.
    pub fn cells(self) -> [String; 3] {
        [self.alone, self.beside, self.ratio()].map(|figure| format!("{figure:.2}"))
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
    let zero_sm = match play.common.zero_sm {
        true => "; zero-SM messages",
        false => "",
    };
    for way in &ways {
        println!("# {way}{zero_sm}");
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
