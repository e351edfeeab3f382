//! CPU overhead of messages: sends and receives, each with its wait, enqueued by two ranks of this
//! process, each on a stream that waits at a closed gate.
//!
//! With the maximum number of slots of a channel, the sender always has credits. With the default
//! number, the streams of a burst wait for credits themselves, one more memory operation a message.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gdsync::gpu::Stream;
use mp::{Context, Memory, Slice};

use super::{Options, Row};
use crate::alloc;
use crate::bare::Bare;
use crate::context;
use crate::endpoint::Endpoint;
use crate::gate::Gate;
use crate::options::Layer;
use crate::pattern;
use crate::stats::Samples;

/// Messages of a burst. A soft GPU allocates no memory for so few kernels. A stream of CUDA accepts
/// their submissions: two for each message, and as many for the bare calls.
const BURST: usize = 48;
/// Blocks of each send queue, of which a message takes two.
const QUEUE: u32 = 128;
/// Bursts before the measurement: they use every slot of every queue, also of the queues that
/// return credits to senders.
const WARM_UP: u64 = 64;
/// Bytes of a message.
const MESSAGE: usize = 8;
/// The maximum and the default number of slots of a channel.
const DEEP: u32 = 1024;
const USUAL: u32 = 16;
/// Memory operations of a send, record and doorbell, and of the wait for its completion: the
/// entry's owner, its success, the mark that it has passed.
const SEND: usize = 2;
const WAIT: usize = 3;

/// One side.
struct Rank {
    context: Context,
    stream: Stream,
    gate: Gate,
    memory: Memory,
    slices: Vec<Slice>,
}

struct Bench {
    endpoint: Endpoint,
    sender: Rank,
    receiver: Rank,
    bare: Option<Bare>,
    /// Memory operations of the send: one more if the stream waits for credits.
    send: usize,
    round: u64,
    deadline: Instant,
}

/// Times of a burst.
struct Times {
    sends: Duration,
    receives: Duration,
    bare: Option<Duration>,
    /// Heap allocations of sends and of receives.
    allocations: [u64; 2],
}

/// The rows of the table for messages.
pub fn measure(options: &Options, limit: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for depth in [DEEP, USUAL] {
        let mut bench = Bench::new(options, depth, limit)?;
        let (sends, receives) = bench.measure(options.bursts)?;
        let operations = bench.operations()?;
        rows.push(bench.send_row(sends, operations));
        if depth == DEEP {
            rows.push(receives);
        }
    }
    Ok(rows)
}

impl Rank {
    fn new(endpoint: &Endpoint, options: &Options, context: Context) -> Result<Rank> {
        let kind = options.setup.memory(&endpoint.gpu);
        let memory = context.alloc(kind, BURST * MESSAGE)?;
        let slice = |i: usize| memory.slice(i * MESSAGE, MESSAGE);
        Ok(Rank {
            stream: endpoint.gpu.stream()?,
            gate: Gate::new(&endpoint.gpu)?,
            slices: (0..BURST).map(slice).collect::<mp::Result<_>>()?,
            memory,
            context,
        })
    }

    fn send(&self, to: u32) -> Result<()> {
        for slice in &self.slices {
            let request = self.context.isend_on(&self.stream, to, 0, slice)?;
            request.wait_on(&self.stream)?;
        }
        Ok(())
    }

    fn receive(&self, from: u32) -> Result<()> {
        for slice in &self.slices {
            let request = self.context.irecv_on(&self.stream, from, 0, slice)?;
            request.wait_on(&self.stream)?;
        }
        Ok(())
    }
}

impl Bench {
    fn new(options: &Options, depth: u32, limit: Duration) -> Result<Bench> {
        let endpoint = Endpoint::open(&options.setup, 0)?;
        let [a, b] = context::pair(&endpoint, &options.setup, (QUEUE, depth), limit)?;
        let sender = Rank::new(&endpoint, options, a)?;
        Ok(Bench {
            bare: Bare::new(&sender.stream)?,
            receiver: Rank::new(&endpoint, options, b)?,
            sender,
            send: SEND + usize::from(depth == USUAL),
            round: 0,
            deadline: Instant::now() + limit,
            endpoint,
        })
    }

    /// Times of sends, times of the driver's calls, and the row of the receives.
    fn measure(&mut self, bursts: u64) -> Result<(Row, Row)> {
        let [mut send, mut receive, mut bare] = [(); 3].map(|()| Samples::default());
        let mut allocations = [0; 2];
        for i in 0..WARM_UP + bursts {
            let times = self.burst(i % 2 == 0)?;
            if i < WARM_UP {
                continue;
            }
            let each = |time: Duration| time.as_nanos() as u64 / BURST as u64;
            send.record(each(times.sends));
            receive.record(each(times.receives));
            if let Some(time) = times.bare {
                bare.record(each(time));
            }
            for (sum, made) in allocations.iter_mut().zip(times.allocations) {
                *sum += made;
            }
        }
        let row = |name: &str, samples: Samples, allocations| Row {
            layer: Layer::Mp,
            name: name.to_owned(),
            descriptors: 2,
            prepare_ns: None,
            call_ns: samples.summary(),
            operations: None,
            bare_ns: None,
            allocations,
        };
        let name = match self.send {
            SEND => "isend_on, wait_on",
            _ => "isend_on, wait_on, the stream waits for room",
        };
        let bare = bare.summary();
        let sends = Row {
            bare_ns: (bare.count > 0).then_some(bare),
            ..row(name, send, allocations[0])
        };
        Ok((sends, row("irecv_on, wait_on", receive, allocations[1])))
    }

    /// Enqueues a burst on both sides, runs it, and checks the received messages.
    fn burst(&mut self, bare_first: bool) -> Result<Times> {
        self.round += 1;
        let payload = pattern::bytes(self.round, BURST * MESSAGE);
        self.sender.memory.write(0, &payload)?;
        self.receiver.gate.close(&self.receiver.stream)?;
        let before = alloc::count();
        let start = Instant::now();
        self.receiver.receive(0)?;
        let receives = start.elapsed();
        let received = alloc::count() - before;

        self.sender.gate.close(&self.sender.stream)?;
        // The second measurement finds the driver's memory in the cache, so they alternate.
        let mut bare = None;
        if bare_first {
            bare = self.bare()?;
        }
        let before = alloc::count();
        let start = Instant::now();
        self.sender.send(1)?;
        let sends = start.elapsed();
        let sent = alloc::count() - before;
        if !bare_first {
            bare = self.bare()?;
        }
        self.run()?;
        let mut arrived = vec![0; payload.len()];
        self.receiver.memory.read(0, &mut arrived)?;
        ensure!(arrived == payload, "what arrived is not what was sent");
        Ok(Times {
            sends,
            receives,
            bare,
            allocations: [sent, received],
        })
    }

    /// Makes as many bare calls as the sends of a burst have submissions.
    fn bare(&mut self) -> Result<Option<Duration>> {
        let Some(bare) = &mut self.bare else {
            return Ok(None);
        };
        let start = Instant::now();
        for _ in 0..BURST {
            bare.call(self.send)?;
            bare.call(WAIT)?;
        }
        Ok(Some(start.elapsed()))
    }

    /// Opens the gates and waits for both streams.
    fn run(&self) -> Result<()> {
        for rank in [&self.receiver, &self.sender] {
            rank.gate.open()?;
        }
        for rank in [&self.sender, &self.receiver] {
            let left = self.deadline.saturating_duration_since(Instant::now());
            rank.context.synchronize(&rank.stream, left)?;
        }
        Ok(())
    }

    /// The memory operations of every submission of a burst of sends, by their trace; none if
    /// some are something else. Tracing has a cost, so this is last.
    fn operations(&mut self) -> Result<Vec<usize>> {
        self.receiver.receive(0)?;
        self.sender.gate.close(&self.sender.stream)?;
        self.endpoint.gpu.capture_trace();
        let sent = self.sender.send(1);
        let lines = self.endpoint.gpu.finish_trace();
        sent?;
        self.run()?;
        let head = format!("stream {}: ", self.sender.stream.id());
        let count = |line: &String| -> Option<usize> {
            let what = line.strip_prefix(&head)?;
            what.strip_suffix(" operations")?.parse().ok()
        };
        Ok(lines.iter().filter_map(count).collect())
    }

    /// The row of the sends, if the bare calls match their operations.
    fn send_row(&self, row: Row, operations: Vec<usize>) -> Row {
        let expected = |(i, n): (usize, &usize)| match i % 2 {
            0 => *n == self.send || *n == SEND,
            _ => *n == WAIT,
        };
        let alike = operations.len() == 2 * BURST && operations.iter().enumerate().all(expected);
        Row {
            operations: alike.then_some(self.send + WAIT),
            bare_ns: row.bare_ns.filter(|_| alike),
            ..row
        }
    }
}
