//! Messages in graphs: two ranks capture messages of drawn lengths, tags and directions, each in an order
//! of its own, and launch their graphs many times ahead. Between the launches they exchange messages
//! outside of graphs under the same tags. Or one rank sends all messages, and its stream is ahead. Every
//! replay sends another payload.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::Stream;
use gdsync::gpu::{Graph, MemoryKind};
use mp::{Context, Memory, Request};

use super::Wire;
use super::job::{Job, Member, Settings};
use crate::mp::pair::message;
use crate::sim::world::{LIMIT, Rank, play};

/// Longer than a stream takes for all that it can do.
const LULL: Duration = Duration::from_millis(2);
/// Value of the bytes that no message writes.
const GUARD: u8 = 0xa5;

/// A captured message.
#[derive(Clone, Copy, Debug)]
struct Captured {
    from: usize,
    tag: u32,
    len: usize,
    /// The length of its receive.
    room: usize,
}

/// What both ranks know.
struct Plan {
    captured: Vec<Captured>,
    replays: usize,
    /// By replay: the messages outside of graphs behind it, by sender: tag and length.
    between: Vec<[Option<(u32, usize)>; 2]>,
    /// The rank that launches late.
    late: Option<usize>,
    /// By rank: it captures its receives before its sends.
    receives_first: [bool; 2],
    kind: MemoryKind,
}

impl Plan {
    fn draw(rng: &mut Rng, eager: usize) -> Plan {
        // Below and above the eager limit, and above all rooms.
        let lens = [0, 1, 8, eager, eager + 1, 3000, 6144, 6145, 20_000];
        let len = |rng: &mut Rng| lens[rng.usize(0..lens.len())];
        let sender = [None, Some(0), Some(1)][rng.usize(0..3)];
        let captured = (0..rng.usize(1..7)).map(|_| {
            let len = len(rng);
            Captured {
                from: sender.unwrap_or_else(|| rng.usize(0..2)),
                tag: rng.u32(0..2),
                len,
                room: len + [0, 0, 1, 9000][rng.usize(0..4)],
            }
        });
        let captured = captured.collect();
        let replays = rng.usize(2..10);
        let between = (0..replays).map(|_| {
            [(); 2].map(|()| {
                let any = rng.u8(0..3) == 0 && sender.is_none();
                any.then(|| (rng.u32(0..2), len(rng)))
            })
        });
        let between = between.collect();
        // A send may wait for its receive: one of the ranks captures receives first.
        let first = rng.usize(0..3);
        Plan {
            captured,
            replays,
            between,
            late: sender.map(|sender| 1 - sender),
            receives_first: [0, 1].map(|rank| first == 2 || first == rank),
            kind: [MemoryKind::Pinned, MemoryKind::Device][rng.usize(0..2)],
        }
    }

    /// The bytes of captured message `i` in a replay.
    fn bytes(&self, replay: usize, i: usize) -> Vec<u8> {
        message(replay * 64 + i + 1, self.captured[i].len)
    }

    /// The captured messages that a rank sends, or receives.
    fn of(&self, rank: usize, sends: bool) -> impl Iterator<Item = (usize, &Captured)> {
        let all = self.captured.iter().enumerate();
        all.filter(move |(_, one)| (one.from == rank) == sends)
    }
}

/// Runs the graphs.
///
/// # Errors
/// The check that failed, with the seed.
pub fn run(seed: u64) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let settings = Settings::draw(&mut rng);
    let plan = Rc::new(Plan::draw(&mut rng, settings.eager));
    let job = Job::new(seed, 2, settings).over(Wire::Mapped);
    play(seed, 2, move |rank| {
        let mut own = Rng::with_seed(seed ^ (rank.me as u64 + 1) << 32);
        let member = job.join(&rank);
        Side::new(&rank, &member, &plan, &mut own).run(&rank, &plan);
        member.leave();
    })
}

/// A rank's part.
struct Side<'a> {
    ctx: &'a Context,
    stream: Stream,
    graph: Graph,
    /// By captured message: its memory, and what each replay sends from there, or has received there.
    memory: Vec<(Memory, Memory)>,
}

impl<'a> Side<'a> {
    /// Captures the graph.
    fn new(rank: &Rank, member: &'a Member, plan: &Plan, own: &mut Rng) -> Side<'a> {
        let ctx = &member.ctx;
        let stream = ctx.gpu().stream().expect("a stream");
        let alloc = |len: usize| ctx.alloc(plan.kind, len.max(1)).expect("memory");
        let pair = |one: &Captured| (alloc(one.room), alloc(one.room * plan.replays));
        let memory: Vec<_> = plan.captured.iter().map(pair).collect();
        let peer = 1 - rank.me as u32;
        let slice = |i: usize, len| memory[i].0.slice(0, len).expect("a slice");
        stream.begin_capture().expect("a capture");
        let send = || {
            plan.of(rank.me, true)
                .map(|(i, one)| ctx.isend_on(&stream, peer, one.tag, &slice(i, one.len)))
                .collect::<mp::Result<Vec<Request>>>()
                .expect("captured")
        };
        let receive = || {
            plan.of(rank.me, false)
                .map(|(i, one)| ctx.irecv_on(&stream, peer, one.tag, &slice(i, one.room)))
                .collect::<mp::Result<Vec<Request>>>()
                .expect("captured")
        };
        let (sends, mut receives) = match plan.receives_first[rank.me] {
            true => {
                let receives = receive();
                (send(), receives)
            }
            false => (send(), receive()),
        };
        own.shuffle(&mut receives);
        let together = own.usize(0..=receives.len());
        let (one_by_one, together) = receives.split_at(together);
        for request in one_by_one.iter().chain(&sends) {
            request.wait_on(&stream).expect("captured");
        }
        ctx.wait_all_on(&stream, together).expect("captured");
        drop((sends, receives));
        let graph = stream.end_capture().expect("a graph");
        Side {
            ctx,
            stream,
            graph,
            memory,
        }
    }

    fn run(&self, rank: &Rank, plan: &Plan) {
        let me = rank.me;
        for (i, one) in plan.of(me, true) {
            let table = (0..plan.replays).flat_map(|replay| plan.bytes(replay, i));
            let table: Vec<u8> = table.collect();
            self.memory[i].1.write(0, &table).expect("written");
            assert!(table.len() == one.len * plan.replays);
        }
        for (i, one) in plan.of(me, false) {
            let guard = vec![GUARD; one.room];
            self.memory[i].0.write(0, &guard).expect("written");
        }
        if plan.late == Some(me) {
            rank.pass(LULL);
        }
        let mut between = Vec::new();
        for replay in 0..plan.replays {
            self.copy_all(plan.of(me, true), replay, |one| one.len, true);
            self.graph.launch(&self.stream).expect("launched");
            self.copy_all(plan.of(me, false), replay, |one| one.room, false);
            between.extend(self.exchange(me, plan, replay));
        }
        self.ctx.synchronize(&self.stream, LIMIT).expect("replayed");
        for (memory, len, n) in between {
            let mut got = vec![0; len];
            memory.read(0, &mut got).expect("read");
            assert!(got == message(n, len), "a message outside of graphs");
        }
        for (i, one) in plan.of(me, false) {
            let mut got = vec![0; one.room * plan.replays];
            self.memory[i].1.read(0, &mut got).expect("read");
            for replay in 0..plan.replays {
                let mut wanted = plan.bytes(replay, i);
                wanted.resize(one.room, GUARD);
                let got = &got[replay * one.room..][..one.room];
                assert!(got == wanted, "replay {replay}, message {i}: {one:?}");
            }
        }
        // A rank that leaves ends what its peer waits for.
        rank.barrier();
    }

    /// Enqueues copies from the tables to the messages that are sent (`sends`), or back.
    fn copy_all<'p>(
        &self,
        all: impl Iterator<Item = (usize, &'p Captured)>,
        replay: usize,
        len: impl Fn(&Captured) -> usize,
        sends: bool,
    ) {
        for (i, one) in all {
            let (message, table) = &self.memory[i];
            let len = len(one);
            if len == 0 {
                continue;
            }
            let message = message.region().span(0, len).expect("a span");
            let table = table.region().span(replay * len, len).expect("a span");
            let (to, from) = match sends {
                true => (message, table),
                false => (table, message),
            };
            self.stream.copy(&to, &from).expect("enqueued");
        }
    }

    /// Enqueues the messages outside of graphs behind a replay. Returns the one that is received: its
    /// memory, its length, and which bytes it has.
    fn exchange(&self, me: usize, plan: &Plan, replay: usize) -> Option<(Memory, usize, usize)> {
        let peer = 1 - me;
        let number = |from: usize| 10_000 + replay * 2 + from;
        let alloc = |len: usize| self.ctx.alloc(plan.kind, len.max(1)).expect("memory");
        let received = plan.between[replay][peer].map(|(tag, len)| {
            let memory = alloc(len);
            let into = memory.slice(0, len).expect("a slice");
            let posted = self.ctx.irecv_on(&self.stream, peer as u32, tag, &into);
            (posted.expect("posted"), (memory, len, number(peer)))
        });
        if let Some((tag, len)) = plan.between[replay][me] {
            let memory = alloc(len);
            memory.write(0, &message(number(me), len)).expect("written");
            let data = memory.slice(0, len).expect("a slice");
            let sent = self.ctx.isend_on(&self.stream, peer as u32, tag, &data);
            drop(sent.expect("posted"));
        }
        received.map(|(request, expected)| {
            request.wait_on(&self.stream).expect("enqueued");
            expected
        })
    }
}
