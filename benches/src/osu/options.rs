//! The options that the benchmarks share. They name the ways: each operation by each poster.

use std::fmt;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::rounds::Pattern;
use super::sizes::Sizes;
use crate::options::{Launch, Poster, Setup};

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

impl Way {
    /// Fails for an operation that the target does not notice, and so cannot answer.
    pub fn answered(self) -> Result<()> {
        let answered = matches!(self.op, Op::Send | Op::PutSignal);
        ensure!(
            answered,
            "{self}: the target does not notice it; use send or put-signal"
        );
        Ok(())
    }
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
    pub validation: bool,
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
    #[command(flatten)]
    #[serde(flatten)]
    pub launch: Launch,
    /// Messages of streams are zero-SM messages: copy engines and memory operations carry them, and no
    /// kernel; with mapped memory only.
    #[arg(long)]
    #[serde(default)]
    pub zero_sm: bool,
    #[command(flatten)]
    pub setup: Setup,
    /// Flips one bit of the payloads of this round, to test that the benchmark detects it.
    #[arg(long, value_name = "ROUND", hide = true)]
    pub corrupt: Option<u64>,
}

impl Common {
    /// These sizes in one way.
    pub fn one(sizes: Sizes, way: Way, [iterations, warmup]: [u64; 2], setup: &Setup) -> Common {
        Common {
            sizes,
            iterations: Some(iterations),
            warmup: Some(warmup),
            validation: false,
            ops: vec![way.op],
            posters: vec![way.poster],
            launch: Launch::default(),
            zero_sm: false,
            setup: setup.clone(),
            corrupt: None,
        }
    }

    /// Fails for zero-SM messages that no stream posts.
    pub fn check(&self) -> Result<()> {
        let by_streams = self.posters.iter().all(|poster| *poster == Poster::Stream);
        let sends = self.ops.iter().all(|op| *op == Op::Send);
        ensure!(
            !self.zero_sm || by_streams && sends,
            "--zero-sm needs messages of streams; use --op send --poster stream"
        );
        Ok(())
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
