//! What enqueueing costs the host: requests are prepared and posted on a stream that stands at
//! a closed gate, so nothing but the enqueueing runs. In bursts, since a stream holds a bounded
//! number of submissions; behind each burst the gate opens and the stream drains, untimed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use gdsync::gpu::{MemoryKind, Word32};
use gdsync::memop::Condition;
use gdsync::rdma::{Descriptor, Mr, Qp, SendRequest, Sge, WaitOptions, Work};
use serde::{Deserialize, Serialize};

use crate::alloc;
use crate::cli::{Run, Setup};
use crate::endpoint::{Endpoint, Names};
use crate::report::{self, Report, Target};
use crate::stats::{Samples, Summary};
use crate::table::Table;

/// Requests of a burst.
const BURST: usize = 512;
/// Descriptors of a list.
const LIST: usize = 16;
/// Blocks of the send queue: two bursts.
const QUEUE: u32 = 1024;
/// Bursts before anything is timed: every slot of every queue has been used then.
const WARM_UP: u64 = 8;
/// Every so many requests one raises a completion.
const SIGNALED: usize = 16;
/// Bytes of a message.
const MESSAGE: u32 = 8;

/// Options of `mpbench post`.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct Options {
    /// Bursts of 512 requests, for each way of posting.
    #[arg(long, default_value = "400", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub bursts: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub setup: Setup,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// One way of posting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Descriptors of one call.
    pub descriptors: usize,
    /// Preparing one request, in nanoseconds: a distribution of the means of bursts. `None`
    /// where it is part of the call.
    pub prepare_ns: Option<Summary>,
    /// One call, in nanoseconds, likewise.
    pub call_ns: Summary,
    /// Heap allocations of the process during all timed bursts.
    pub allocations: u64,
}

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// With what.
    pub names: Names,
    /// Each way.
    pub rows: Vec<Row>,
}

/// A way of posting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Prepare and post one request, again and again.
    Single,
    /// Sixteen sends in a list.
    Sends,
    /// Four times send, wait for it, write a word, wait for the word.
    Mixed,
}

impl Way {
    const ALL: [Way; 3] = [Way::Single, Way::Sends, Way::Mixed];

    fn name(self) -> &'static str {
        match self {
            Way::Single => "prepare and post one send",
            Way::Sends => "post a list of 16 sends",
            Way::Mixed => "post a list of 4 (send, wait, write, wait for value)",
        }
    }

    /// Requests of one call.
    fn requests(self) -> usize {
        match self {
            Way::Single => 1,
            Way::Sends => LIST,
            Way::Mixed => LIST / 4,
        }
    }
}

struct Bench {
    endpoint: Endpoint,
    qp: Qp,
    _peer: Qp,
    from: Mr,
    to: Mr,
    gate: Word32,
    word: Word32,
    gates: u32,
    requests: Vec<SendRequest>,
    deadline: Instant,
}

/// What a burst took.
struct Times {
    prepare: Option<Duration>,
    calls: Duration,
}

/// The command.
pub fn run(options: &Options) -> Result<()> {
    let mut bench = Bench::new(options)?;
    let names = bench.endpoint.names(&bench.qp, bench.from.region().kind());
    println!("mpbench post: 8-byte RDMA writes, enqueued on a stream that stands at a closed gate");
    println!(
        "{}; {}; lowering {}",
        names.gpu, names.provider, names.lowering
    );
    let heads = [
        "medians of bursts of 512 requests                   ",
        "prepare one",
        "call",
        "p99",
        "allocations",
    ];
    let table = Table::new(&heads, 9);
    println!("{}", table.line(&heads));
    let mut rows = Vec::new();
    for way in Way::ALL {
        let row = bench.measure(way, options.bursts)?;
        println!("{}", table.line(&cells(&row)));
        rows.push(row);
    }
    let figures = Figures { names, rows };
    if let Some(path) = &options.run.json {
        let report = Report::new("post", options, &figures, targets(&figures))?;
        report::write_json(path, &report)?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 5] {
    let ns = |v: u64| format!("{v} ns");
    [
        row.name.clone(),
        row.prepare_ns
            .as_ref()
            .map_or("included".to_owned(), |s| ns(s.median)),
        ns(row.call_ns.median),
        ns(row.call_ns.p99),
        row.allocations.to_string(),
    ]
}

fn targets(figures: &Figures) -> Vec<Target> {
    let mut targets: Vec<Target> = figures
        .rows
        .iter()
        .map(|row| {
            let limit = if row.descriptors == 1 { 300.0 } else { 1000.0 };
            Target::at_most(
                &format!("post: {}", row.name),
                row.call_ns.median as f64,
                limit,
                "ns",
            )
        })
        .collect();
    let allocations: u64 = figures.rows.iter().map(|r| r.allocations).sum();
    targets.push(Target::at_most(
        "post: heap allocations",
        allocations as f64,
        0.0,
        "",
    ));
    targets
}

impl Bench {
    fn new(options: &Options) -> Result<Bench> {
        let endpoint = Endpoint::open(&options.setup, 0)?;
        let (qp, peer) = endpoint.pair(&options.setup.queues(QUEUE))?;
        let kind = options.setup.memory(&endpoint.gpu);
        let words = endpoint.gpu.alloc(MemoryKind::Pinned, 128)?;
        Ok(Bench {
            from: endpoint.memory(kind, 4096)?,
            to: endpoint.memory(kind, 4096)?,
            gate: words.word32(0)?,
            word: words.word32(64)?,
            gates: 0,
            requests: Vec::with_capacity(BURST),
            deadline: Instant::now() + options.run.timeout,
            endpoint,
            qp,
            _peer: peer,
        })
    }

    fn measure(&mut self, way: Way, bursts: u64) -> Result<Row> {
        let (mut prepare, mut call) = (Samples::new(), Samples::new());
        let mut allocations = 0;
        for burst in 0..WARM_UP + bursts {
            self.close_gate()?;
            let before = alloc::count();
            let times = match way {
                Way::Single => self.single()?,
                Way::Sends | Way::Mixed => self.lists(way)?,
            };
            let made = alloc::count() - before;
            self.open_gate()?;
            if burst >= WARM_UP {
                let calls = BURST / way.requests();
                if let Some(time) = times.prepare {
                    prepare.record(time.as_nanos() as u64 / BURST as u64);
                }
                call.record(times.calls.as_nanos() as u64 / calls as u64);
                allocations += made;
            }
        }
        Ok(Row {
            name: way.name().to_owned(),
            descriptors: if way == Way::Single { 1 } else { LIST },
            prepare_ns: (way != Way::Single).then(|| prepare.summary()),
            call_ns: call.summary(),
            allocations,
        })
    }

    fn close_gate(&mut self) -> Result<()> {
        self.gates += 1;
        let wait = Descriptor::WaitValue32 {
            word: &self.gate,
            condition: Condition::Geq,
            value: self.gates,
            flush: false,
        };
        Ok(self.qp.post_on(&self.endpoint.stream, &[wait])?)
    }

    /// Lets the burst run, and waits for its end.
    fn open_gate(&mut self) -> Result<()> {
        self.gate.store(self.gates)?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        ensure!(
            self.endpoint.stream.synchronize(left)?,
            "the time limit passed"
        );
        Ok(self.qp.quiet(left)?)
    }

    fn single(&mut self) -> Result<Times> {
        let start = Instant::now();
        for i in 0..BURST {
            let request = self.prepare(i % SIGNALED == SIGNALED - 1)?;
            self.qp
                .post_on(&self.endpoint.stream, &[Descriptor::Send(request)])?;
        }
        Ok(Times {
            prepare: None,
            calls: start.elapsed(),
        })
    }

    fn lists(&mut self, way: Way) -> Result<Times> {
        let start = Instant::now();
        self.requests.clear();
        for i in 0..BURST {
            let request = self.prepare(way == Way::Mixed || i % SIGNALED == SIGNALED - 1)?;
            self.requests.push(request);
        }
        let prepare = start.elapsed();
        let start = Instant::now();
        for requests in self.requests.chunks(way.requests()) {
            let list = match way {
                Way::Mixed => std::array::from_fn(|i| mixed(requests[i / 4], &self.word, i % 4)),
                _ => std::array::from_fn::<_, LIST, _>(|i| Descriptor::Send(requests[i])),
            };
            self.qp.post_on(&self.endpoint.stream, &list)?;
        }
        Ok(Times {
            prepare: Some(prepare),
            calls: start.elapsed(),
        })
    }

    fn prepare(&mut self, signaled: bool) -> Result<SendRequest> {
        let sges = [Sge {
            mr: &self.from,
            offset: 0,
            len: MESSAGE,
        }];
        let work = Work::write(&sges, self.to.remote().span(0, u64::from(MESSAGE))?);
        Ok(self
            .qp
            .prepare(&if signaled { work.signaled() } else { work })?)
    }
}

/// One of the four steps of a mixed list.
fn mixed(request: SendRequest, word: &Word32, step: usize) -> Descriptor<'_> {
    match step {
        0 => Descriptor::Send(request),
        1 => Descriptor::Wait(request.into(), WaitOptions::default()),
        2 => Descriptor::WriteValue32 { word, value: 1 },
        _ => Descriptor::WaitValue32 {
            word,
            condition: Condition::Eq,
            value: 1,
            flush: false,
        },
    }
}
