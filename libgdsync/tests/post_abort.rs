//! Prepare, post and abort on a real device: posted requests arrive once and in order, from any
//! poster; aborted requests never arrive.

mod common;

use std::collections::VecDeque;

use common::*;
use gds_sim::seeds;

/// Receives of the receiving end.
const ROOM: u32 = 64;

/// The receiving end: records the numbers of messages, in the order of their arrival.
struct Sink {
    qp: Qp,
    mem: Mr,
    posted: VecDeque<ReceiveRequest>,
    got: Vec<u32>,
}

impl Sink {
    /// Records the arrived messages, and posts more receives.
    fn step(&mut self) {
        while let Some(oldest) = self.posted.front().copied() {
            if self.qp.poll(oldest).unwrap().is_none() {
                break;
            }
            let imm = self.qp.received(oldest).unwrap().imm;
            self.got.push(imm.expect("every message has a number"));
            self.posted.pop_front();
        }
        // The result of a receive is kept while no more than a queue's length are unread.
        while self.posted.len() < ROOM as usize {
            let Ok(recv) = self.qp.prepare_receive(&[sge(&self.mem, 0, 64)]) else {
                break;
            };
            self.qp.post_receive(recv).unwrap();
            self.posted.push_back(recv);
        }
    }
}

/// A request that is prepared, and neither posted nor removed.
struct Prepared {
    request: SendRequest,
    number: u32,
    signaled: bool,
    aborted: bool,
}

/// A sender with a short queue, two streams, and a model of its history.
struct World {
    gpu: Gpu,
    a: Qp,
    mem: Mr,
    sink: Sink,
    streams: [Stream; 2],
    gates: Vec<Gate>,
    next: u32,
    prepared: Vec<Prepared>,
    /// The numbers of the posted messages, and those that can be waited for.
    sent: Vec<u32>,
    loud: Vec<SendRequest>,
}

impl World {
    fn new(gpu: &Gpu, config: &QpConfig, blocks: u32, start: u32) -> World {
        let at = |config: QpConfig| config.start(start);
        let near = at(sized(config, blocks, config.recv_entries));
        let far = at(sized(config, config.send_blocks, ROOM));
        let p = Pair::of(gpu, Net::Hub, &near, &far);
        let mem = p.mem_a(MemoryKind::Pinned, 64);
        let mut sink = Sink {
            mem: p.mem_b(MemoryKind::Pinned, 64),
            qp: p.b,
            posted: VecDeque::new(),
            got: Vec::new(),
        };
        sink.step();
        World {
            gpu: gpu.clone(),
            mem,
            streams: [gpu.stream().unwrap(), gpu.stream().unwrap()],
            a: p.a,
            sink,
            gates: Vec::new(),
            next: 0,
            prepared: Vec::new(),
            sent: Vec::new(),
            loud: Vec::new(),
        }
    }

    /// Prepares a message of `blocks` blocks; `false` if there is no room.
    fn prepare(&mut self, blocks: usize, signaled: bool) -> bool {
        // One segment is for control, the others are pieces of one byte.
        let list = [sge(&self.mem, 0, 1); 11];
        let work = Work::send(&list[..4 * blocks - 1]).with_imm(self.next);
        let work = if signaled { work.signaled() } else { work };
        match self.a.prepare(&work) {
            Ok(request) => {
                self.prepared.push(Prepared {
                    request,
                    number: self.next,
                    signaled,
                    aborted: false,
                });
                self.next += 1;
                true
            }
            Err(e) => {
                assert_eq!(e.kind(), Kind::QueueFull, "{e:?}");
                false
            }
        }
    }

    /// Aborts the request at this place: the newest is removed together with all holes before it.
    fn abort(&mut self, at: usize) {
        let newest = at + 1 == self.prepared.len();
        self.a.abort(self.prepared[at].request).unwrap();
        self.prepared[at].aborted = true;
        if newest {
            while self.prepared.last().is_some_and(|p| p.aborted) {
                let gone = self.prepared.pop().unwrap().request;
                assert_eq!(kind(self.a.poll(gone)), Some(Kind::NoSuchRequest));
            }
        } else {
            let hole = self.prepared[at].request;
            assert_eq!(self.a.poll(hole).unwrap(), Some(Status::ABORTED));
        }
    }

    /// The first `n` requests that can be posted now, as places.
    fn due(&self, n: usize) -> Vec<usize> {
        let live = (0..self.prepared.len()).filter(|i| !self.prepared[*i].aborted);
        live.take(n).collect()
    }

    /// Records that everything up to this place was posted.
    fn posted(&mut self, upto: usize) {
        for p in self.prepared.drain(..=upto).filter(|p| !p.aborted) {
            self.sent.push(p.number);
            if p.signaled {
                self.loud.push(p.request);
            }
        }
    }

    fn post_by_cpu(&mut self, limit: Option<Duration>) {
        let Some(at) = self.due(1).first().copied() else {
            return;
        };
        let request = self.prepared[at].request;
        let result = match limit {
            None => self.a.post(request),
            Some(limit) => self.a.post_within(request, limit),
        };
        match result {
            Ok(()) => self.posted(at),
            Err(e) => assert_eq!(e.kind(), Kind::Busy, "{e:?}"),
        }
    }

    /// Posts the next `n` requests on a stream in one list; with `wait`, the list waits for those
    /// that can be waited for.
    fn post_on(&mut self, stream: usize, n: usize, wait: bool) {
        let due = self.due(n);
        let mut list = Vec::new();
        for i in &due {
            let p = &self.prepared[*i];
            list.push(Descriptor::Send(p.request));
            if wait && p.signaled {
                list.push(Descriptor::wait(p.request));
            }
        }
        self.a.post_on(&self.streams[stream], &list).unwrap();
        if let Some(last) = due.last() {
            self.posted(*last);
        }
    }

    fn open_gates(&mut self) {
        for gate in self.gates.drain(..) {
            gate.open();
        }
    }

    /// Ends the remaining requests; all posted messages have arrived, in order, and no others.
    fn settle(&mut self, what: &str) {
        self.open_gates();
        let (gpu, sink) = (self.gpu.clone(), &mut self.sink);
        let sent = self.sent.len();
        until(&gpu, what, || {
            sink.step();
            sink.got.len() >= sent
        });
        for stream in &self.streams {
            finish(stream, what);
        }
        assert_eq!(self.sink.got, self.sent, "{what}");
        self.sent.clear();
        self.sink.got.clear();
        for request in self.loud.drain(..) {
            assert_eq!(kind(self.a.wait(request, LIMIT)), None, "{what}");
        }
        assert_eq!(self.a.error(), None, "{what}");
    }
}

/// A random action.
fn act(w: &mut World, rng: &mut fastrand::Rng, virtual_time: bool) {
    let stream = rng.usize(..2);
    match rng.u32(..16) {
        0..=4 => {
            w.prepare(rng.usize(1..=3), rng.bool());
        }
        5 | 6 => {
            let live: Vec<usize> = w.due(usize::MAX);
            if let Some(at) = rng.choice(&live) {
                w.abort(*at);
            }
        }
        7 => w.post_by_cpu(None),
        8 | 9 => w.post_on(stream, rng.usize(1..=3), rng.bool()),
        10 => {
            // Every request but the first in line is refused, and nothing changes.
            let live = w.due(usize::MAX);
            if let Some(at) = live.get(1..).and_then(|later| rng.choice(later)) {
                let request = w.prepared[*at].request;
                let result = match rng.bool() {
                    true => w.a.post(request),
                    false => {
                        let list = [Descriptor::Send(request)];
                        w.a.post_on(&w.streams[stream], &list)
                    }
                };
                assert_eq!(kind(result), Some(Kind::OutOfOrder));
            }
        }
        11 if w.gates.len() < 4 => {
            let gate = Gate::new(&w.gpu);
            w.a.post_on(&w.streams[stream], &[gate.wait()]).unwrap();
            w.gates.push(gate);
        }
        12 => {
            if let Some(request) = rng.choice(&w.loud).copied() {
                let wait = [Descriptor::wait(request)];
                w.a.post_on(&w.streams[stream], &wait).unwrap();
            }
        }
        13 => w.open_gates(),
        14 => w.sink.step(),
        _ if virtual_time => pass(&w.gpu, Duration::from_nanos(rng.u64(..20_000))),
        _ => std::thread::yield_now(),
    }
}

/// A random history, on a queue of some length with any first index.
fn live(gpu: &Gpu, config: &QpConfig, seed: u64, acts: u32, virtual_time: bool, what: &str) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let blocks = [4, 8, 16][rng.usize(..3)];
    let start = [0, 0xfff0 + rng.u32(..32), rng.u32(..)][rng.usize(..3)];
    let what = format!("{what}, seed {seed:#x}, {blocks} blocks from {start:#x}");
    let mut w = World::new(gpu, config, blocks, start);
    for i in 0..acts {
        act(&mut w, &mut rng, virtual_time);
        if i % 100 == 99 {
            w.settle(&what);
        }
    }
    while !w.prepared.is_empty() {
        match rng.bool() {
            true => w.abort(w.due(usize::MAX).pop().unwrap()),
            false => {
                w.open_gates();
                w.post_by_cpu(Some(LIMIT));
            }
        }
    }
    w.settle(&what);
}

#[test]
fn random_history_in_simulations() {
    seeds(40, |seed| {
        for (path, config) in paths() {
            let (_sim, gpu) = play(seed);
            live(&gpu, &config, seed, 300, true, path);
        }
        Ok::<_, String>(())
    });
}

#[test]
fn random_history_on_the_live_driver() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        for seed in 0..40 {
            live(&gpu, &config, seed, 400, false, path);
        }
    }
}

/// The action on one of four requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Abort,
    ByCpu,
    ByStream(usize),
}

const DEEDS: [Deed; 4] = [
    Deed::Abort,
    Deed::ByCpu,
    Deed::ByStream(0),
    Deed::ByStream(1),
];

#[test]
fn four_requests_posted_or_aborted_in_every_order_by_cpu_and_streams() {
    let orders: Vec<[usize; 4]> = (0..256usize)
        .map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6])
        .filter(|o| (0..4).all(|i| o.contains(&i)))
        .collect();
    assert_eq!(orders.len(), 24);
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let mut w = World::new(&gpu, &config, 16, 0);
        for (n, order) in orders.iter().enumerate() {
            for deeds in 0..256usize {
                let deeds = [0, 2, 4, 6].map(|shift| DEEDS[deeds >> shift & 3]);
                four(&mut w, order, &deeds, n as u32);
                w.sink.step();
            }
            w.settle(&format!("{path}, order {order:?}"));
        }
    }
}

/// Prepares four requests and applies, in this order, its action to each. A post out of order is
/// refused; the CPU posts the remaining requests at the end.
fn four(w: &mut World, order: &[usize; 4], deeds: &[Deed; 4], seed: u32) {
    let mut names = Vec::new();
    for i in 0..4 {
        let signaled = (seed >> i & 1) == 0;
        let gpu = w.gpu.clone();
        until(&gpu, "room for four", || {
            w.sink.step();
            w.prepare(1, signaled)
        });
        names.push(w.prepared.last().unwrap().request);
    }
    for i in order {
        let place = |w: &World| w.prepared.iter().position(|p| p.request == names[*i]);
        let Some(at) = place(w) else {
            unreachable!("each is touched once: {order:?} {deeds:?}")
        };
        let first = w.due(1) == [at];
        match deeds[*i] {
            Deed::Abort => w.abort(at),
            Deed::ByCpu if first => w.post_by_cpu(Some(LIMIT)),
            Deed::ByStream(stream) if first => w.post_on(stream, 1, at % 2 == 0),
            Deed::ByCpu => {
                let result = w.a.post(names[*i]);
                assert_eq!(kind(result), Some(Kind::OutOfOrder), "{order:?} {deeds:?}");
            }
            Deed::ByStream(stream) => {
                let result =
                    w.a.post_on(&w.streams[stream], &[Descriptor::Send(names[*i])]);
                assert_eq!(kind(result), Some(Kind::OutOfOrder), "{order:?} {deeds:?}");
            }
        }
    }
    while w.prepared.iter().any(|p| !p.aborted) {
        w.post_by_cpu(Some(LIMIT));
    }
}
