//! One message after the other on one stream, from a NIC to itself: what it takes from the
//! doorbell that the stream rings until the stream has seen the completion.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use gdsync::rdma::{Descriptor, Mr, Qp, SendRequest, Sge, Work};
use serde::{Deserialize, Serialize};

use crate::cli::{self, Lowering, Run, Setup};
use crate::endpoint::{Endpoint, Names};
use crate::gate::{Bell, Gate, well};
use crate::gpu::CUDA;
use crate::report::{self, Report, Target};
use crate::stats::{Samples, Summary};
use crate::table::{self, Table, micros};

/// Messages of a chain: what a waiting stream holds besides others' work.
const CHAIN: u64 = 200;
/// Blocks of the send queue: more than a chain.
const QUEUE: u32 = 512;
/// Chains, and single messages, before anything is timed.
const WARM_UP: u64 = 3;

/// Options of `mpbench loopback`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Size of a message, an RDMA write.
    #[arg(long, value_parser = cli::size, default_value = "8")]
    pub size: u64,
    /// Chains of 200 messages, each timed as a whole.
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub chains: u64,
    /// Messages timed one by one.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub singles: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// The figures of one lowering.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// With what.
    pub names: Names,
    /// A message of a chain, in nanoseconds: a distribution of the means of chains.
    pub chained_ns: Summary,
    /// A message alone: from the host's store that lets the stream go to the host's load that
    /// sees the stream past the completion.
    pub single_ns: Summary,
    /// The same way with no message on it.
    pub empty_ns: Summary,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Each lowering.
    pub rows: Vec<Row>,
}

struct Bench {
    endpoint: Endpoint,
    qp: Qp,
    _peer: Qp,
    from: Mr,
    to: Mr,
    gate: Gate,
    bell: Bell,
    size: u64,
    /// Chains and single messages so far: what the payload is made of.
    round: u64,
    requests: Vec<SendRequest>,
    deadline: Instant,
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    ensure!(options.size <= 1 << 20, "messages of at most 1Mi are sent");
    let lowerings = match options.setup.lowering {
        Lowering::Auto => vec![Lowering::Memops, Lowering::Kernel, Lowering::Auto],
        one => vec![one],
    };
    let heads = [
        "lowering",
        "chained",
        "p99",
        "single",
        "p99",
        "nothing sent",
    ];
    let table = Table::new(&heads, 10);
    let mut rows: Vec<Row> = Vec::new();
    for lowering in lowerings {
        let setup = Setup {
            lowering,
            ..options.setup.clone()
        };
        let mut bench = Bench::new(options, &setup)?;
        // Where there is nothing to choose from, `auto` is one of the others.
        let name = bench.names().lowering;
        if rows.iter().any(|row| row.names.lowering == name) {
            continue;
        }
        let row = bench.measure(options)?;
        if rows.is_empty() {
            println!(
                "mpbench loopback: doorbell to completion seen by the stream, writes of {} in {} memory",
                table::bytes(options.size),
                row.names.memory
            );
            println!("{}; {}", row.names.gpu, row.names.provider);
            println!("{}", table.line(&heads));
        }
        println!("{}", table.line(&cells(&row)));
        rows.push(row);
    }
    println!(
        "chained: one of {CHAIN} in a row; single: host to stream, message, stream to host; medians"
    );
    let figures = Figures { rows };
    if let Some(path) = &options.run.json {
        let report = Report::new("loopback", options, &figures, targets(options, &figures))?;
        report::write_json(path, &report)?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 6] {
    let us = |ns: u64| micros(ns as f64);
    [
        row.names.lowering.clone(),
        us(row.chained_ns.median),
        us(row.chained_ns.p99),
        us(row.single_ns.median),
        us(row.single_ns.p99),
        us(row.empty_ns.median),
    ]
}

fn targets(options: &Options, figures: &Figures) -> Vec<Target> {
    let small =
        |row: &&Row| options.size == 8 && row.names.runtime == CUDA && row.names.memory == "pinned";
    let target = |row: &Row| {
        let name = format!(
            "loopback: 8 B, doorbell to completion, {}",
            row.names.lowering
        );
        Target::at_most(&name, row.chained_ns.median as f64 / 1000.0, 7.0, "us")
    };
    figures.rows.iter().filter(small).map(target).collect()
}

impl Bench {
    fn new(options: &Options, setup: &Setup) -> Result<Bench> {
        let endpoint = Endpoint::open(setup, 0)?;
        let (qp, peer) = endpoint.pair(&setup.queues(QUEUE))?;
        let kind = setup.memory(&endpoint.gpu);
        Ok(Bench {
            qp,
            _peer: peer,
            from: endpoint.memory(kind, options.size)?,
            to: endpoint.memory(kind, options.size)?,
            gate: Gate::new(&endpoint.gpu)?,
            bell: Bell::new(&endpoint.gpu)?,
            size: options.size,
            round: 0,
            requests: Vec::with_capacity(CHAIN as usize),
            deadline: Instant::now() + options.run.timeout,
            endpoint,
        })
    }

    fn names(&self) -> Names {
        self.endpoint.names(&self.qp, self.from.region().kind())
    }

    fn measure(&mut self, options: &Options) -> Result<Row> {
        let (mut chained, mut single, mut empty) = (Samples::new(), Samples::new(), Samples::new());
        for i in 0..WARM_UP + options.chains {
            let time = self.messages(CHAIN)?;
            if i >= WARM_UP {
                chained.record(time.as_nanos() as u64 / CHAIN);
            }
        }
        for i in 0..WARM_UP + options.singles {
            let (with, without) = (self.messages(1)?, self.messages(0)?);
            if i >= WARM_UP {
                single.record(with.as_nanos() as u64);
                empty.record(without.as_nanos() as u64);
            }
        }
        Ok(Row {
            names: self.names(),
            chained_ns: chained.summary(),
            single_ns: single.summary(),
            empty_ns: empty.summary(),
        })
    }

    /// Lets `count` messages follow each other; returns the time from gate to bell.
    fn messages(&mut self, count: u64) -> Result<Duration> {
        self.round += 1;
        let payload: Vec<u8> = (0..self.size)
            .map(|i| (self.round + i).to_le_bytes()[0])
            .collect();
        self.from.region().write(0, &payload)?;
        self.requests.clear();
        for _ in 0..count {
            let request = self.prepare()?;
            self.requests.push(request);
        }
        let stream = &self.endpoint.stream;
        self.gate.close(stream)?;
        for request in &self.requests {
            let list = [Descriptor::Send(*request), Descriptor::wait(*request)];
            self.qp.post_on(stream, &list)?;
        }
        self.bell.enqueue(stream)?;
        let start = Instant::now();
        self.gate.open()?;
        let end = self.bell.hear(self.deadline)?;
        well(self.qp.error())?;
        if count > 0 {
            let mut arrived = vec![0; payload.len()];
            self.to.region().read(0, &mut arrived)?;
            ensure!(
                arrived == payload,
                "the last message is complete but is not there"
            );
        }
        self.qp
            .quiet(self.deadline.saturating_duration_since(Instant::now()))?;
        Ok(end - start)
    }

    fn prepare(&mut self) -> Result<SendRequest> {
        let sges = [Sge {
            mr: &self.from,
            offset: 0,
            len: u32::try_from(self.size)?,
        }];
        let work = Work::write(&sges, self.to.remote().span(0, self.size)?);
        Ok(self.qp.prepare(&work.signaled())?)
    }
}
