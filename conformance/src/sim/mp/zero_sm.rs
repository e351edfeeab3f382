//! Zero-SM messages: two ranks post messages of drawn lengths and tags, by two streams each and by the CPU, at
//! drawn times, so that either half comes first. They wait by either stream or by the CPU, or drop the requests. A
//! stream uses the memory of a receive until it posts it, and writes that of a send when the send has ended. Or
//! one rank sends all messages, more than there are slots, or more than there are entries.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::Stream;
use gdsync::gpu::{MemoryKind, Region};
use mp::{Context, Memory, RecvOp, Request, SendOp};

use super::Wire;
use super::job::{Job, Settings};
use crate::mp::pair::message;
use crate::sim::world::{LIMIT, Rank, play};

/// The longest pause between two messages.
const LULL: Duration = Duration::from_micros(60);
/// Value of the bytes that no message writes.
const GUARD: u8 = 0xa5;

/// A message.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    tag: u32,
    len: usize,
    /// The length of its receive.
    room: usize,
}

/// What both ranks know.
struct Plan {
    messages: Vec<Message>,
    /// Messages go in one direction, under one tag: their receives are waited for in order.
    ordered: bool,
    kind: MemoryKind,
}

impl Plan {
    fn draw(rng: &mut Rng, eager: usize) -> Plan {
        let lens = [0, 1, 8, eager, eager + 1, 3000, 20_000];
        let ordered = rng.bool();
        let count = match (ordered, rng.u8(0..8)) {
            (true, 0) => 600,
            (true, _) => rng.usize(1..60),
            (false, _) => rng.usize(1..14),
        };
        let most = if count > 100 { 4 } else { lens.len() };
        let sender = rng.usize(0..2);
        let messages = (0..count).map(|_| {
            let len = lens[rng.usize(0..most)];
            Message {
                from: if ordered { sender } else { rng.usize(0..2) },
                tag: if ordered { 0 } else { rng.u32(0..2) },
                len,
                room: len + [0, 0, 1, 900][rng.usize(0..4)],
            }
        });
        Plan {
            messages: messages.collect(),
            ordered,
            kind: [MemoryKind::Pinned, MemoryKind::Device][rng.usize(0..2)],
        }
    }
}

/// Runs the messages.
///
/// # Errors
/// The check that failed, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let settings = Settings::draw(&mut rng);
    let plan = Rc::new(Plan::draw(&mut rng, settings.eager));
    let job = Job::new(seed, 2, settings).over(Wire::Mapped);
    play(seed, 2, move |rank| {
        let own = Rng::with_seed(seed ^ (rank.me as u64 + 1) << 32);
        let member = job.join(&rank);
        let ctx = &member.ctx;
        let alloc = |len: usize| ctx.gpu().alloc(plan.kind, len).expect("memory");
        let longest = plan.messages.iter().map(|m| m.room).max().unwrap_or(0) + 1;
        let mut side = Side {
            rank: &rank,
            ctx,
            plan: &plan,
            own,
            streams: [(); 2].map(|()| ctx.gpu().stream().expect("a stream")),
            junk: alloc(longest),
            sends: Vec::new(),
            receives: Vec::new(),
            got: Vec::new(),
        };
        side.junk.write(0, &vec![GUARD; longest]).expect("written");
        side.run();
        drop(side);
        member.leave();
    })
}

/// A request of a message, and its memory.
struct Posted {
    request: Request,
    message: usize,
    memory: Memory,
}

/// A rank's part.
struct Side<'a> {
    rank: &'a Rank,
    ctx: &'a Context,
    plan: &'a Plan,
    /// Draws what this rank alone decides.
    own: Rng,
    streams: [Stream; 2],
    /// Guard bytes.
    junk: Region,
    sends: Vec<Posted>,
    receives: Vec<Posted>,
    /// What streams have found in the memory of receives, by message.
    got: Vec<(usize, Region)>,
}

impl Side<'_> {
    fn run(&mut self) {
        for i in 0..self.plan.messages.len() {
            if self.own.u8(0..3) == 0 {
                let lull = self.own.u64(1..LULL.as_nanos() as u64);
                self.rank.pass(Duration::from_nanos(lull));
            }
            self.post(i);
            // At most ten receives in order are not waited for, or some.
            let late = match self.plan.ordered {
                true => self.receives.len() > self.own.usize(0..10),
                false => self.own.bool(),
            };
            if late && !self.receives.is_empty() {
                let at = match self.plan.ordered {
                    true => 0,
                    false => self.own.usize(0..self.receives.len()),
                };
                let receive = self.receives.remove(at);
                self.take(receive);
            }
        }
        while !self.receives.is_empty() {
            let at = match self.plan.ordered {
                true => 0,
                false => self.own.usize(0..self.receives.len()),
            };
            let receive = self.receives.remove(at);
            self.take(receive);
        }
        self.own.shuffle(&mut self.sends);
        for send in std::mem::take(&mut self.sends) {
            self.reuse(send);
        }
        for stream in &self.streams {
            self.ctx.synchronize(stream, LIMIT).expect("done");
        }
        for (i, region) in &self.got {
            let mut got = vec![0; region.len()];
            region.read(0, &mut got).expect("read");
            self.check(*i, &got);
        }
        // A rank that leaves ends what its peer waits for.
        self.rank.barrier();
    }

    /// Compares what is in the memory of a receive.
    fn check(&self, i: usize, got: &[u8]) {
        let one = self.plan.messages[i];
        let mut wanted = message(i + 1, one.len);
        wanted.resize(got.len(), GUARD);
        assert!(got == wanted, "message {i}: {one:?}");
    }

    /// Posts this rank's half of a message.
    fn post(&mut self, i: usize) {
        let one = self.plan.messages[i];
        let sends = one.from == self.rank.me;
        let len = if sends { one.len } else { one.room };
        let memory = self.ctx.alloc(self.plan.kind, len.max(1)).expect("memory");
        let slice = [memory.slice(0, len).expect("a slice")];
        let stream = self.streams.get(self.own.usize(0..5) / 2);
        let peer = 1 - self.rank.me as u32;
        let posted = if sends {
            memory.write(0, &message(i + 1, len)).expect("written");
            let op = SendOp::new(peer, one.tag, &slice);
            let op = stream.map_or(op, |stream| op.on(stream));
            self.ctx.post_send(&op.zero_sm(true))
        } else {
            let op = RecvOp::new(peer, one.tag, &slice);
            let op = match stream {
                Some(stream) => {
                    // The memory belongs to the stream until it reaches the receive.
                    copy(stream, memory.region(), &self.junk, len);
                    op.on(stream)
                }
                None => {
                    memory.write(0, &vec![GUARD; len]).expect("written");
                    op
                }
            };
            self.ctx.post_recv(&op.zero_sm(true))
        };
        let posted = Posted {
            request: posted.expect("posted"),
            message: i,
            memory,
        };
        match sends {
            true => self.sends.push(posted),
            false => self.receives.push(posted),
        }
    }

    /// Waits for a receive, and looks at its memory.
    fn take(&mut self, receive: Posted) {
        let Posted {
            request,
            message,
            memory,
        } = receive;
        let one = self.plan.messages[message];
        match self.own.u8(0..8) {
            0 => drop(request),
            1 => {
                let done = request.wait(LIMIT).expect("received");
                assert!(done.len == one.len as u64);
                let mut got = vec![0; one.room];
                memory.read(0, &mut got).expect("read");
                self.check(message, &got);
            }
            drawn => {
                let stream = &self.streams[usize::from(drawn) % 2];
                if drawn == 2 {
                    let one = std::slice::from_ref(&request);
                    self.ctx.wait_all_on(stream, one).expect("enqueued");
                } else {
                    request.wait_on(stream).expect("enqueued");
                }
                let gpu = self.ctx.gpu();
                let got = gpu.alloc(self.plan.kind, one.room.max(1)).expect("memory");
                got.write(0, &[GUARD]).expect("written");
                copy(stream, &got, memory.region(), one.room);
                if one.room > 0 {
                    self.got.push((message, got));
                }
            }
        }
    }

    /// Waits for a send, and writes its memory.
    fn reuse(&mut self, send: Posted) {
        let len = self.plan.messages[send.message].len;
        match self.own.u8(0..4) {
            0 => drop(send.request),
            1 => {
                send.request.wait(LIMIT).expect("sent");
                send.memory.write(0, &vec![GUARD; len]).expect("written");
            }
            drawn => {
                let stream = &self.streams[usize::from(drawn) % 2];
                send.request.wait_on(stream).expect("enqueued");
                copy(stream, send.memory.region(), &self.junk, len);
            }
        }
    }
}

/// Enqueues a copy of the first bytes.
fn copy(stream: &Stream, to: &Region, from: &Region, len: usize) {
    if len > 0 {
        let span = |region: &Region| region.span(0, len).expect("a span");
        stream.copy(&span(to), &span(from)).expect("enqueued");
    }
}
