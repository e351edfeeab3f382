//! CPU overhead of posting: requests are prepared and posted on a stream that waits at a closed
//! gate, so that only the enqueuing runs. It runs in bursts, since a stream accepts a bounded
//! number of submissions; after each burst the gate opens and the stream drains, untimed.
//!
//! On CUDA each burst of calls has a counterpart of bare driver calls with the same number of
//! memory operations, on the same stream: the difference is the overhead of the library.

mod mp;
pub mod providers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use gdsync::gpu::{Condition, MemoryKind, Word32};
use gdsync::rdma::{Descriptor, SendRequest};
use serde::Serialize;
use serde_json::json;

use crate::alloc;
use crate::bare::Bare;
use crate::benchmark::{Benchmark, Examples, Outcome};
use crate::endpoint::Rig;
use crate::options::{Layer, Layers, Setup};
use crate::report::Target;
use crate::stats::{Samples, Summary};
use crate::table::Table;

/// Requests of a burst on a soft GPU.
const BURST: usize = 512;
/// Requests of a burst on CUDA, together with as many bare calls: a waiting stream takes about
/// 1,000.
const BURST_CUDA: usize = 192;
/// Descriptors of a list.
const LIST: usize = 16;
/// Blocks of the send queue: two bursts or more.
const QUEUE: u32 = 1024;
/// Bursts before the measurement: they use every slot of every queue.
const WARM_UP: u64 = 8;
/// One in this many requests is signaled.
const SIGNALED: usize = 16;
/// Bytes of a message.
const MESSAGE: u32 = 8;

/// Options of `mpbench post`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Options {
    /// Number of bursts of 512 requests (192 on CUDA), for each method of posting.
    #[arg(long, default_value = "400", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub bursts: u64,
    /// The library whose requests are measured.
    #[arg(long, value_enum, default_value = "gdsync")]
    pub layer: Layers,
    #[command(flatten)]
    pub setup: Setup,
}

/// One method of posting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The library.
    pub layer: Layer,
    /// The name of the method.
    pub name: String,
    /// Number of descriptors of one call.
    pub descriptors: usize,
    /// Time of preparing one request, in nanoseconds: the distribution of the means of bursts.
    /// `None` where it is part of the call.
    pub prepare_ns: Option<Summary>,
    /// Time of one call, in nanoseconds: the distribution of the means of bursts.
    pub call_ns: Summary,
    /// Number of memory operations of a call, if it consists of these only, in one submission.
    pub operations: Option<usize>,
    /// The driver's own call with the same number. `None` where there is no such call.
    pub bare_ns: Option<Summary>,
    /// Heap allocations of the process during all timed bursts.
    pub allocations: u64,
}

/// A method of posting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Prepares and posts one request at a time.
    Single,
    /// Posts sixteen sends in one list.
    Sends,
    /// Posts a list of four times: send, wait for it, write a word, wait for the word.
    Mixed,
}

impl Method {
    const ALL: [Method; 3] = [Method::Single, Method::Sends, Method::Mixed];

    fn name(self) -> &'static str {
        match self {
            Method::Single => "prepare and post one send",
            Method::Sends => "post a list of 16 sends",
            Method::Mixed => "post a list of 4 (send, wait, write, wait for value)",
        }
    }

    /// Expected memory operations of a call, if all are possible: record and doorbell once for all
    /// consecutive sends. For waits the number depends on the positions of the queues.
    fn operations(self) -> Option<usize> {
        match self {
            Method::Single | Method::Sends => Some(2),
            Method::Mixed => None,
        }
    }

    /// Requests of one call.
    fn requests(self) -> usize {
        match self {
            Method::Single => 1,
            Method::Sends => LIST,
            Method::Mixed => LIST / 4,
        }
    }
}

struct Bench {
    rig: Rig,
    word: Word32,
    burst: usize,
    bare: Option<Bare>,
    requests: Vec<SendRequest>,
}

/// Times of a burst.
struct Times {
    prepare: Option<Duration>,
    calls: Duration,
}

impl Row {
    /// Overhead of a call above the driver's own, by medians, in nanoseconds.
    fn above_ns(&self) -> Option<f64> {
        let bare = self.bare_ns.as_ref()?;
        Some(self.call_ns.median as f64 - bare.median as f64)
    }
}

impl Benchmark for Options {
    const NAME: &'static str = "post";
    const ABOUT: &'static str = "CPU overhead of preparing a request and posting it on a stream";
    const EXAMPLES: Examples = [
        (
            "--layer both",
            "CPU overhead of gdsync and of mp, 400 bursts for each method",
        ),
        (
            "--gpu cuda --lowering memops --bursts 50",
            "on CUDA, compared with the call of the driver",
        ),
    ];

    fn run(&self, limit: Duration) -> Result<Option<Outcome>> {
        let mut bench = Bench::new(&self.setup, limit)?;
        let (names, burst) = (bench.rig.names(), bench.burst);
        println!(
            "mpbench post: 8-byte RDMA writes, enqueued on a stream that stands at a closed gate"
        );
        println!("{names}");
        let first = format!("medians of bursts of {:<31}", format!("{burst} requests"));
        let heads = [
            "prepare one",
            "call",
            "p99",
            "bare call",
            "above it",
            "allocations",
        ];
        let table = Table::start(&[&[first.as_str()], &heads[..]].concat(), 9);
        let mut rows = Vec::new();
        for layer in self.layer.each() {
            rows.extend(match layer {
                Layer::Gdsync => bench.rows(self.bursts)?,
                Layer::Mp => mp::measure(self, limit)?,
            });
        }
        rows.iter().for_each(|row| table.row(&cells(row)));
        let soft = names.runtime == "soft";
        let mut targets: Vec<Target> = rows.iter().filter_map(|row| target(row, soft)).collect();
        let allocations = rows.iter().map(|row| row.allocations).sum::<u64>() as f64;
        targets.push(Target::at_most(
            "post: heap allocations",
            allocations,
            0.0,
            "",
        ));
        let figures = json!({ "names": names, "burst": burst, "rows": rows });
        Outcome::of(&figures, targets)
    }
}

fn cells(row: &Row) -> [String; 7] {
    let ns = |v: u64| format!("{v} ns");
    let median =
        |s: &Option<Summary>, none: &str| s.as_ref().map_or(none.to_owned(), |s| ns(s.median));
    let above = row.above_ns().map(|above| format!("{above:.0} ns"));
    [
        match row.layer {
            Layer::Gdsync => row.name.clone(),
            Layer::Mp => format!("mp: {}", row.name),
        },
        median(&row.prepare_ns, "included"),
        ns(row.call_ns.median),
        ns(row.call_ns.p99),
        median(&row.bare_ns, "-"),
        above.unwrap_or("-".to_owned()),
        row.allocations.to_string(),
    ]
}

fn target(row: &Row, soft: bool) -> Option<Target> {
    let name = format!("post: {}", row.name);
    let ns = row.call_ns.median as f64;
    let at_most = |limit| Some(Target::at_most(&name, ns, limit, "ns"));
    match (row.layer, soft, row.above_ns()) {
        (Layer::Gdsync, true, _) if row.descriptors == 1 => at_most(300.0),
        (Layer::Gdsync, true, _) => at_most(1000.0),
        (Layer::Mp, true, _) => at_most(600.0),
        (_, false, Some(above)) if row.descriptors <= 2 => {
            let name = format!("{name}, above the bare driver calls");
            Some(Target::at_most(&name, above, 600.0, "ns"))
        }
        _ => None,
    }
}

impl Bench {
    fn new(setup: &Setup, limit: Duration) -> Result<Bench> {
        let rig = Rig::new(setup, QUEUE, 4096, limit)?;
        let gpu = &rig.endpoint.gpu;
        let burst = match gpu.is_software() {
            true => BURST,
            false => BURST_CUDA,
        };
        Ok(Bench {
            word: gpu.alloc(MemoryKind::Pinned, 64)?.word32(0)?,
            bare: Bare::new(&rig.endpoint.stream)?,
            burst,
            requests: Vec::with_capacity(burst),
            rig,
        })
    }

    fn rows(&mut self, bursts: u64) -> Result<Vec<Row>> {
        let measured = Method::ALL.map(|method| self.measure(method, bursts));
        let mut rows = measured.into_iter().collect::<Result<Vec<Row>>>()?;
        // Tracing has a cost, so it is last.
        for (method, row) in Method::ALL.into_iter().zip(&mut rows) {
            row.operations = self.operations(method)?;
            if row.operations != method.operations() {
                row.bare_ns = None;
            }
        }
        Ok(rows)
    }

    fn measure(&mut self, method: Method, bursts: u64) -> Result<Row> {
        let (mut prepare, mut call, mut bare) =
            (Samples::default(), Samples::default(), Samples::default());
        let mut allocations = 0;
        for i in 0..WARM_UP + bursts {
            self.rig.gate.close(&self.rig.endpoint.stream)?;
            // The second measurement finds the driver's memory in the cache, so they alternate.
            let mut driver = None;
            if i % 2 == 0 {
                driver = self.bare(method)?;
            }
            let before = alloc::count();
            let times = self.calls(method, self.burst)?;
            let made = alloc::count() - before;
            if i % 2 == 1 {
                driver = self.bare(method)?;
            }
            self.rig.drain()?;
            if i >= WARM_UP {
                let calls = (self.burst / method.requests()) as u64;
                if let Some(time) = times.prepare {
                    prepare.record(time.as_nanos() as u64 / self.burst as u64);
                }
                if let Some(time) = driver {
                    bare.record(time.as_nanos() as u64 / calls);
                }
                call.record(times.calls.as_nanos() as u64 / calls);
                allocations += made;
            }
        }
        let bare = bare.summary();
        Ok(Row {
            layer: Layer::Gdsync,
            name: method.name().to_owned(),
            descriptors: if method == Method::Single { 1 } else { LIST },
            prepare_ns: (method != Method::Single).then(|| prepare.summary()),
            call_ns: call.summary(),
            operations: None,
            bare_ns: (bare.count > 0).then_some(bare),
            allocations,
        })
    }

    fn calls(&mut self, method: Method, requests: usize) -> Result<Times> {
        match method {
            Method::Single => self.single(requests),
            Method::Sends | Method::Mixed => self.lists(method, requests),
        }
    }

    /// Makes as many bare calls as a burst has; `None` where there are none.
    fn bare(&mut self, method: Method) -> Result<Option<Duration>> {
        let (Some(bare), Some(operations)) = (&mut self.bare, method.operations()) else {
            return Ok(None);
        };
        let start = Instant::now();
        for _ in 0..self.burst / method.requests() {
            bare.call(operations)?;
        }
        Ok(Some(start.elapsed()))
    }

    /// Number of memory operations of one call, from the trace of one; `None` if the call has other
    /// operations, or several submissions.
    fn operations(&mut self, method: Method) -> Result<Option<usize>> {
        self.rig.endpoint.gpu.capture_trace();
        let posted = self.calls(method, method.requests());
        let lines = self.rig.endpoint.gpu.finish_trace();
        posted.context("posting under trace")?;
        self.rig.drain()?;
        Ok(operations_of(&lines))
    }

    fn single(&mut self, requests: usize) -> Result<Times> {
        let start = Instant::now();
        for i in 0..requests {
            let request = self.rig.prepare(MESSAGE, i % SIGNALED == SIGNALED - 1)?;
            let Rig { endpoint, qp, .. } = &mut self.rig;
            qp.post_on(&endpoint.stream, &[Descriptor::Send(request)])?;
        }
        Ok(Times {
            prepare: None,
            calls: start.elapsed(),
        })
    }

    fn lists(&mut self, method: Method, requests: usize) -> Result<Times> {
        let start = Instant::now();
        self.requests.clear();
        for i in 0..requests {
            let request = self.rig.prepare(
                MESSAGE,
                method == Method::Mixed || i % SIGNALED == SIGNALED - 1,
            )?;
            self.requests.push(request);
        }
        let prepare = start.elapsed();
        let start = Instant::now();
        let Rig { endpoint, qp, .. } = &mut self.rig;
        for requests in self.requests.chunks(method.requests()) {
            let list = match method {
                Method::Mixed => std::array::from_fn(|i| mixed(requests[i / 4], &self.word, i % 4)),
                _ => std::array::from_fn::<_, LIST, _>(|i| Descriptor::Send(requests[i])),
            };
            qp.post_on(&endpoint.stream, &list)?;
        }
        Ok(Times {
            prepare: Some(prepare),
            calls: start.elapsed(),
        })
    }
}

/// The operations of the one submission in a trace.
fn operations_of(lines: &[String]) -> Option<usize> {
    let mut heads = lines.iter().filter(|line| line.starts_with("stream "));
    let (head, None) = (heads.next()?, heads.next()) else {
        return None;
    };
    let (_, what) = head.split_once(": ")?;
    what.strip_suffix(" operations")?.parse().ok()
}

/// One of the four steps of a mixed list.
fn mixed(request: SendRequest, word: &Word32, step: usize) -> Descriptor<'_> {
    match step {
        0 => Descriptor::Send(request),
        1 => Descriptor::wait(request),
        2 => Descriptor::write_value(word, 1),
        _ => Descriptor::wait_value(word, Condition::Eq, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn only_a_single_submission_of_memory_operations_is_comparable() {
        assert_eq!(
            operations_of(&lines("stream 3: 2 operations, write32, write64")),
            Some(2)
        );
        let two = "stream 3: 2 operations, write32, write64, stream 3: 1 operations, flush";
        assert_eq!(operations_of(&lines(two)), None);
        assert_eq!(
            operations_of(&["stream 3: kernel, 2 operations".to_owned()]),
            None
        );
        assert_eq!(operations_of(&[]), None);
    }
}
