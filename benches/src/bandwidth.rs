//! Large messages: rank 0 writes into rank 1's memory, several writes in flight, each process
//! with a NIC of its own. What arrived is verified by rank 1's kernels at the end.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use gdsync::rdma::{Mr, Qp, RemoteMemory, SendRequest, Sge, Work};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::{self, Ranks, Run, Setup};
use crate::endpoint::{Endpoint, Names, exchange_memory};
use crate::kernel::{Tally, Turn, Turns};
use crate::pattern;
use crate::rank::{Job, Rank};
use crate::report::{self, Report, Target};
use crate::table;
use crate::world;

/// Entries of each queue.
const QUEUE: u32 = 64;
/// What the measured writes carry, and what those before carry.
const MEASURED: u64 = 1 << 20;
const WARM_UP: u64 = 1 << 21;

/// Options of `mpbench bandwidth`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Size of a message.
    #[arg(long, value_parser = cli::size, default_value = "1Mi")]
    pub size: u64,
    /// Messages.
    #[arg(long, default_value = "4000", value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,
    /// Messages in flight, each from and to a slot of its own.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u64).range(1..=32))]
    pub depth: u64,
    /// Run both ranks in this process, as threads.
    #[arg(long)]
    pub threads: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// The figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With what.
    pub names: Names,
    /// Where the ranks live.
    pub ranks: Ranks,
    /// Bytes of a message.
    pub size: u64,
    /// Messages.
    pub messages: u64,
    /// From the first post to the last completion, in nanoseconds.
    pub elapsed_ns: u64,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Bytes that kernels verified at the end: every slot.
    pub verified: u64,
}

struct Writer<'e> {
    endpoint: &'e Endpoint,
    qp: Qp,
    memory: Mr,
    theirs: RemoteMemory,
    turns: Turns,
    tally: Tally,
    size: u64,
    depth: u64,
}

/// One rank's part.
pub fn play(rank: &mut Rank, options: &Options) -> Result<Value> {
    let endpoint = Endpoint::open(&options.setup, rank.number)?;
    let config = options.setup.queues(QUEUE);
    let slots = options
        .size
        .checked_mul(options.depth)
        .context("the slots are too large")?;
    let kind = options.setup.memory(&endpoint.gpu);
    let memory = endpoint.memory(kind, slots)?;
    let mut writer = Writer {
        qp: endpoint.connect(&config, &mut rank.link)?,
        theirs: exchange_memory(&memory, &mut rank.link)?,
        memory,
        turns: Turns::new(&endpoint.gpu)?,
        tally: Tally::new(&endpoint.gpu)?,
        size: options.size,
        depth: options.depth,
        endpoint: &endpoint,
    };
    // Until its memory holds what is to be seen at the end, no rank goes on.
    let mut elapsed_ns = 0;
    if rank.number == 0 {
        writer.fill(rank, WARM_UP)?;
        writer.write(rank, options.depth)?;
        writer.fill(rank, MEASURED)?;
        let start = Instant::now();
        writer.write(rank, options.messages.max(options.depth))?;
        elapsed_ns = start.elapsed().as_nanos() as u64;
    }
    rank.link.barrier()?;
    if rank.number == 1 {
        writer.verify(rank)?;
    }
    rank.link.barrier()?;
    let messages = options.messages.max(options.depth);
    Ok(serde_json::to_value(Figures {
        names: endpoint.names(&writer.qp, kind),
        ranks: if options.threads {
            Ranks::Threads
        } else {
            Ranks::Processes
        },
        size: options.size,
        messages,
        elapsed_ns,
        bandwidth: (options.size * messages) as f64 * 1e9 / elapsed_ns.max(1) as f64,
        verified: slots,
    })?)
}

impl Writer<'_> {
    fn fill(&self, rank: &Rank, tag: u64) -> Result<()> {
        for slot in 0..self.depth {
            let turn = Turn::new(self.size, &self.tally);
            let turn = turn.write(
                self.memory.region(),
                slot * self.size,
                pattern::tag(tag + slot, 0),
            );
            // SAFETY: the memory lives as long as this; the stream is waited for below, and no
            // write from the memory is in flight.
            unsafe { self.turns.launch(&self.endpoint.stream, &turn)? };
        }
        rank.park(&self.endpoint.stream)
    }

    fn verify(&self, rank: &Rank) -> Result<()> {
        for slot in 0..self.depth {
            let turn = Turn::new(self.size, &self.tally);
            let turn = turn.verify(
                self.memory.region(),
                slot * self.size,
                pattern::tag(MEASURED + slot, 0),
            );
            // SAFETY: as above; this only reads.
            unsafe { self.turns.launch(&self.endpoint.stream, &turn)? };
        }
        rank.park(&self.endpoint.stream)?;
        self.tally
            .take(self.size * self.depth)
            .context("verifying payloads")
    }

    /// Writes `messages` slots in turn; returns once all are complete.
    fn write(&mut self, rank: &Rank, messages: u64) -> Result<()> {
        let mut flying: VecDeque<SendRequest> = VecDeque::new();
        for i in 0..messages {
            if flying.len() as u64 == self.depth {
                self.complete_one(rank, &mut flying)?;
            }
            let offset = i % self.depth * self.size;
            let sges = [Sge {
                mr: &self.memory,
                offset,
                len: u32::try_from(self.size)?,
            }];
            let work = Work::write(&sges, self.theirs.span(offset, self.size)?).signaled();
            let request = self.qp.prepare(&work)?;
            self.qp.post(request)?;
            flying.push_back(request);
        }
        while !flying.is_empty() {
            self.complete_one(rank, &mut flying)?;
        }
        Ok(())
    }

    fn complete_one(&mut self, rank: &Rank, flying: &mut VecDeque<SendRequest>) -> Result<()> {
        match flying.pop_front() {
            Some(oldest) => Ok(self.qp.wait(oldest, rank.left())?),
            None => Ok(()),
        }
    }
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let job = Job::Bandwidth(options.clone());
    let ranks = if options.threads {
        Ranks::Threads
    } else {
        Ranks::Processes
    };
    let [first, _] = world::run(ranks, &job, options.run.timeout, &mut |_, _| {})?;
    let figures: Figures = serde_json::from_value(first).context("reading a rank's result")?;
    ensure!(figures.elapsed_ns > 0, "nothing was measured");
    println!(
        "mpbench bandwidth: RDMA writes, {} in flight",
        options.depth
    );
    println!("{}; {}", figures.names.gpu, figures.names.provider);
    println!(
        "{} writes of {} in {:.2} s: {}; {} verified at the end",
        figures.messages,
        table::bytes(figures.size),
        figures.elapsed_ns as f64 / 1e9,
        table::per_second(figures.bandwidth),
        table::bytes(figures.verified),
    );
    if let Some(path) = &options.run.json {
        let mut targets = Vec::new();
        if figures.size == 1 << 20 && ranks == Ranks::Processes && figures.names.runtime == "soft" {
            let measured = figures.bandwidth / 1e9;
            let name = "bandwidth: 1 MiB writes between processes";
            targets.push(Target::at_least(name, measured, 2.5, "GB/s"));
        }
        report::write_json(path, &Report::new("bandwidth", options, &figures, targets)?)?;
    }
    Ok(())
}
