//! One message after the other on one stream, from a NIC to itself: the time from the stream's
//! doorbell until the stream has passed the wait for the completion.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use gdsync::rdma::{Descriptor, SendRequest};
use serde::Serialize;
use serde_json::json;

use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::{Names, Rig};
use crate::gpu::CUDA;
use crate::options::{self, Lowering, Setup};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::table::{self, Table, us};

/// Messages of a chain: as many as fit behind a waiting stream.
const CHAIN: u64 = 200;
/// Blocks of the send queue: more than a chain needs.
const QUEUE: u32 = 512;
/// Chains, and single messages, before the measurement.
const WARM_UP: u64 = 3;

/// Options of `mpbench loopback`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Size in bytes of a message, an RDMA write.
    #[arg(long, value_parser = options::size, default_value = "8")]
    pub size: u64,
    /// Number of chains of 200 messages; each is timed as a whole.
    #[arg(long, default_value = "100", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub chains: u64,
    /// Number of messages that are timed one by one.
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub singles: u64,
    #[command(flatten)]
    pub setup: Setup,
}

/// The figures of one lowering.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The lowering.
    pub names: Names,
    /// Time of a message in a chain, in nanoseconds: the distribution of the means of chains.
    pub chained_ns: Summary,
    /// Time of a single message, in nanoseconds: from the host's store that releases the stream to
    /// the host's load that detects the stream past the completion.
    pub single_ns: Summary,
    /// The same without a message.
    pub empty_ns: Summary,
}

struct Bench {
    rig: Rig,
    size: u64,
    /// Number of chains and single messages so far, from which the payload is made.
    round: u64,
    requests: Vec<SendRequest>,
}

impl Benchmark for Options {
    const NAME: &'static str = "loopback";
    const ABOUT: &'static str = "Latency from the doorbell to the completion, both by one stream";
    const EXAMPLES: Examples = [
        (
            "--size 4Ki",
            "writes of 4 KiB, in chains of 200 and one by one",
        ),
        (
            "--gpu cuda --lowering memops --singles 100",
            "8 bytes on CUDA by memory operations, 100 single messages",
        ),
    ];
    const VERIFIED: Option<&str> =
        Some("the bytes in memory were right after each chain and each single message");

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        ensure!(self.size <= 1 << 20, "messages of at most 1Mi are sent");
        let lowerings = match self.setup.lowering {
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
                ..self.setup.clone()
            };
            let mut bench = Bench {
                rig: Rig::new(&setup, QUEUE, self.size, limit)?,
                size: self.size,
                round: 0,
                requests: Vec::with_capacity(CHAIN as usize),
            };
            // Without a choice, `auto` is the same as one of the others.
            let names = bench.rig.names();
            if rows.iter().any(|row| row.names.lowering == names.lowering) {
                continue;
            }
            let row = bench.measure(self)?;
            if rows.is_empty() {
                println!(
                    "mpbench loopback: doorbell to completion seen by the stream, writes of {} in {} memory",
                    table::bytes(self.size),
                    names.memory
                );
                println!("{}; {}", names.gpu, names.provider);
                table.row(&heads);
            }
            table.row(&[
                row.names.lowering.clone(),
                us(row.chained_ns.median),
                us(row.chained_ns.p99),
                us(row.single_ns.median),
                us(row.single_ns.p99),
                us(row.empty_ns.median),
            ]);
            rows.push(row);
        }
        println!(
            "chained: one of {CHAIN} in a row; single: host to stream, message, stream to host; medians"
        );
        let small = |row: &&Row| {
            self.size == 8 && row.names.runtime == CUDA && row.names.memory == "pinned"
        };
        let target = |row: &Row| {
            let lowering = &row.names.lowering;
            let name = format!("loopback: 8 B, doorbell to completion, {lowering}");
            Target::at_most(&name, row.chained_ns.median as f64 / 1000.0, 7.0, "us")
        };
        let targets = rows.iter().filter(small).map(target).collect();
        Outcome::of(&json!({ "rows": rows }), targets)
    }
}

impl Bench {
    fn measure(&mut self, options: &Options) -> Result<Row> {
        let (mut chained, mut single, mut empty) =
            (Samples::default(), Samples::default(), Samples::default());
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
            names: self.rig.names(),
            chained_ns: chained.summary(),
            single_ns: single.summary(),
            empty_ns: empty.summary(),
        })
    }

    /// Enqueues `count` messages in a row; returns the time from gate to bell.
    fn messages(&mut self, count: u64) -> Result<Duration> {
        self.round += 1;
        let payload: Vec<u8> = (0..self.size)
            .map(|i| (self.round + i).to_le_bytes()[0])
            .collect();
        self.rig.from.region().write(0, &payload)?;
        self.requests.clear();
        for _ in 0..count {
            self.requests
                .push(self.rig.prepare(u32::try_from(self.size)?, true)?);
        }
        let Rig {
            endpoint, qp, gate, ..
        } = &mut self.rig;
        gate.close(&endpoint.stream)?;
        for request in &self.requests {
            let list = [Descriptor::Send(*request), Descriptor::wait(*request)];
            qp.post_on(&endpoint.stream, &list)?;
        }
        self.rig.bell.enqueue(&self.rig.endpoint.stream)?;
        let start = Instant::now();
        self.rig.gate.open()?;
        let end = self.rig.poll_bell()?;
        if count > 0 {
            let mut arrived = vec![0; payload.len()];
            self.rig.to.region().read(0, &mut arrived)?;
            ensure!(
                arrived == payload,
                "the last message is complete but is not there"
            );
        }
        self.rig.qp.quiet(self.rig.left())?;
        Ok(end - start)
    }
}
