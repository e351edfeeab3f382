//! Start time of a job: ranks as processes, from the spawn of the first one until the last one is
//! connected to all its peers or, if connections are lazy, has received a message from one
//! neighbour and sent one to the other.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use gdsync::gpu::MemoryKind;
use mp::{Connect, Context, Slice};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::context;
use crate::endpoint::{Endpoint, Names};
use crate::options::Setup;
use crate::rank::{Job, Rank};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::table::{Table, us};
use crate::world;

/// Blocks of each send queue: the default of a context.
const QUEUE: u32 = 64;
/// Tags of the messages around the ring, and of those that synchronize the ranks at the end.
const RING: u32 = 1;
const END: u32 = 2;

/// Options of `mpbench start`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Number of ranks.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub ranks: u32,
    /// Number of starts of each kind.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub starts: u32,
    #[command(flatten)]
    pub setup: Setup,
}

/// The job of one start, which the ranks receive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// Time of the first process's start by the system's monotonic clock, in nanoseconds.
    begun_ns: u64,
    /// Whether peers are connected before the first message.
    up_front: bool,
    options: Options,
}

/// Times of a rank's milestones after the first process's start, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Steps {
    names: Names,
    /// The rank has joined the job.
    joined: u64,
    /// The rank has opened a GPU and a NIC.
    opened: u64,
    /// The rank is connected to its peers.
    connected: u64,
}

/// Times of the slowest rank, in nanoseconds: distributions over the starts.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whether peers were connected before the first message.
    pub up_front: bool,
    /// Until the rank had joined the job.
    pub joined_ns: Summary,
    /// Until the rank had opened a GPU and a NIC.
    pub opened_ns: Summary,
    /// Until it was connected to all its peers or, with lazy connections, had both messages.
    pub connected_ns: Summary,
}

/// The system's monotonic clock, the same for all processes, in nanoseconds.
fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

impl Job for Start {
    const NAME: &'static str = "start";

    fn needs_mp(&self) -> bool {
        true
    }

    fn play(&self, rank: &mut Rank) -> Result<Value> {
        let since = || now_ns().saturating_sub(self.begun_ns);
        let joined = since();
        let setup = &self.options.setup;
        let endpoint = Endpoint::open(setup, rank.number)?;
        let connect = match self.up_front {
            true => Connect::UpFront,
            false => Connect::Lazy,
        };
        let builder = context::builder(&endpoint, setup, rank.bootstrap()?, QUEUE, rank.left())?;
        let opened = since();
        let context = builder
            .connect(connect)
            .build()
            .context("building a context")?;
        if !self.up_front {
            ring(&context, rank.left())?;
        }
        let connected = since();
        // A rank leaves only after all others have finished.
        barrier(&context, END, rank.left())?;
        let made = endpoint.made_of(&context, setup, setup.memory(&endpoint.gpu))?;
        context.close(rank.left())?;
        Ok(serde_json::to_value(Steps {
            names: made.names,
            joined,
            opened,
            connected,
        })?)
    }
}

/// Sends a message to the next rank and receives one from the previous rank.
fn ring(context: &Context, limit: Duration) -> Result<()> {
    let (rank, size) = (context.rank(), context.size());
    let memory = context.alloc(MemoryKind::Pinned, 8)?;
    memory.write(0, &rank.to_le_bytes())?;
    let before = (rank + size - 1) % size;
    let receive = context.irecv(before, RING, &memory.slice(4, 4)?)?;
    let send = context.isend((rank + 1) % size, RING, &memory.slice(0, 4)?)?;
    receive.wait(limit)?;
    send.wait(limit)?;
    let mut found = [0; 4];
    memory.read(4, &mut found)?;
    ensure!(found == before.to_le_bytes(), "the wrong message arrived");
    Ok(())
}

/// A barrier of all ranks.
pub fn barrier(context: &Context, tag: u32, limit: Duration) -> Result<()> {
    let memory = context.alloc(MemoryKind::Pinned, 8)?;
    barrier_by(context, tag, &memory.slice(0, 0)?, limit)
}

/// As [`barrier`], by messages of `nothing`, an empty slice.
pub fn barrier_by(context: &Context, tag: u32, nothing: &Slice, limit: Duration) -> Result<()> {
    if context.rank() > 0 {
        context.isend(0, tag, nothing)?.wait(limit)?;
        context.irecv(0, tag, nothing)?.wait(limit)?;
        return Ok(());
    }
    for rank in 1..context.size() {
        context.irecv(rank, tag, nothing)?.wait(limit)?;
    }
    for rank in 1..context.size() {
        context.isend(rank, tag, nothing)?.wait(limit)?;
    }
    Ok(())
}

impl Benchmark for Options {
    const NAME: &'static str = "start";
    const ABOUT: &'static str =
        "Time from the start of the first process until all ranks are connected";
    const EXAMPLES: Examples = [
        ("--ranks 8", "time until 8 processes are connected"),
        (
            "--ranks 3 --starts 1 --json start.json",
            "one start of 3 processes, figures also as JSON",
        ),
    ];

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let mut rows = Vec::new();
        let mut names = None;
        for up_front in [true, false] {
            let [mut joined, mut opened, mut connected] = [(); 3].map(|()| Samples::default());
            for _ in 0..self.starts {
                let start = Start {
                    begun_ns: now_ns(),
                    up_front,
                    options: self.clone(),
                };
                let ranks: Vec<Steps> = world::run_many(self.ranks as usize, &start, limit)?;
                let slowest = |step: fn(&Steps) -> u64| ranks.iter().map(step).max().unwrap_or(0);
                joined.record(slowest(|s| s.joined));
                opened.record(slowest(|s| s.opened));
                connected.record(slowest(|s| s.connected));
                names = ranks.into_iter().next().map(|s| s.names).or(names);
            }
            rows.push(Row {
                up_front,
                joined_ns: joined.summary(),
                opened_ns: opened.summary(),
                connected_ns: connected.summary(),
            });
        }
        let names = names.context("no rank sent its names")?;
        println!(
            "mpbench start: {} ranks, a process each, from the first one's start; the slowest rank",
            self.ranks
        );
        println!("{names}");
        let first = "medians of starts       ";
        let table = Table::start(&[first, "joined", "GPU and NIC", "there", "max"], 10);
        for row in &rows {
            table.row(&[
                kind(row).to_owned(),
                us(row.joined_ns.median),
                us(row.opened_ns.median),
                us(row.connected_ns.median),
                us(row.connected_ns.max),
            ]);
        }
        let target = |row: &Row| {
            let name = format!("start: 8 ranks, {}", kind(row));
            let seconds = row.connected_ns.median as f64 / 1e9;
            names.on_soft(Target::at_most(&name, seconds, 1.0, "s"))
        };
        let targets = rows.iter().filter(|_| self.ranks == 8).flat_map(target);
        let figures = json!({ "names": names, "ranks": self.ranks, "rows": rows });
        Outcome::of(&figures, targets.collect())
    }
}

fn kind(row: &Row) -> &'static str {
    match row.up_front {
        true => "all peers connected",
        false => "lazily, a message around",
    }
}
