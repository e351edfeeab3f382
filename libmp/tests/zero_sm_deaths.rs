//! A rank dies while another rank has zero-SM messages with it, in every phase: messages that have arrived are
//! received, all others end with an error that names the rank, and streams continue.

#[path = "common/sim.rs"]
mod sim;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Builder, Context, Memory, PathChoice, RecvOp, Request, SendOp};
use sim::gate::Gate;
use sim::{Death, LARGE, LIMIT, Rank, SMALL, Witness, exchange, millis, peer_failed, play, secs};

const TIMEOUT: Duration = secs(2);
/// The rank that dies.
const VICTIM: u32 = 1;
/// Short messages whose receives are not posted, before a stream waits.
const SLOTS: usize = 16;

fn build(builder: Builder) -> Builder {
    builder.timeout(TIMEOUT).path(PathChoice::Ipc)
}

fn send(ctx: &Context, stream: &Stream, memory: &Memory, len: usize) -> Request {
    let data = [memory.slice(0, len).unwrap()];
    let op = SendOp::new(1 - ctx.rank(), 1, &data).on(stream);
    ctx.post_send(&op.zero_sm(true)).unwrap()
}

fn receive(ctx: &Context, stream: &Stream, memory: &Memory, len: usize) -> Request {
    let into = [memory.slice(0, len).unwrap()];
    let op = RecvOp::new(1 - ctx.rank(), 1, &into).on(stream);
    ctx.post_recv(&op.zero_sm(true)).unwrap()
}

/// The surviving rank's requests.
struct Survivor<'a> {
    ctx: &'a Context,
    streams: [Stream; 2],
    memory: Memory,
    /// Requests that must fail.
    lost: RefCell<Vec<Request>>,
    /// Requests that must succeed.
    fine: RefCell<Vec<Request>>,
    /// Kernels behind stream waits, by their place in `lost`.
    saw: RefCell<Vec<(usize, Witness)>>,
}

impl Survivor<'_> {
    fn send(&self, len: usize) -> Request {
        send(self.ctx, &self.streams[0], &self.memory, len)
    }

    fn receive(&self, len: usize) -> Request {
        receive(self.ctx, &self.streams[0], &self.memory, len)
    }

    fn loses(&self, request: Request) {
        self.lost.borrow_mut().push(request);
    }

    /// Makes a stream wait for a request that must fail, and launches a kernel that reads the result.
    fn waits(&self, request: Request, stream: usize) {
        request.wait_on(&self.streams[stream]).unwrap();
        let seen = Witness::launch(&self.streams[stream], self.ctx, &request);
        let mut lost = self.lost.borrow_mut();
        self.saw.borrow_mut().push((lost.len(), seen));
        lost.push(request);
    }
}

/// What the rank that dies does before.
#[derive(Clone, Copy)]
enum Before {
    Nothing,
    /// It sends messages of these lengths.
    Sends(&'static [usize]),
    /// Its stream does not reach its receives of these lengths.
    Holds(&'static [usize]),
}

type Phase = (&'static str, Before, fn(&Survivor<'_>));

const PHASES: &[Phase] = &[
    (
        "a stream that waits until a receive is reached",
        Before::Holds(&[SMALL, LARGE]),
        |s| {
            s.waits(s.send(SMALL), 1);
            s.waits(s.send(LARGE), 0);
        },
    ),
    ("long messages without receives", Before::Nothing, |s| {
        s.loses(s.send(LARGE));
        s.waits(s.send(LARGE), 0);
        s.waits(s.send(LARGE), 1);
    }),
    ("short messages without slots", Before::Nothing, |s| {
        for _ in 0..SLOTS {
            s.fine.borrow_mut().push(s.send(SMALL));
        }
        for _ in 0..3 {
            s.loses(s.send(SMALL));
        }
        s.waits(s.send(SMALL), 1);
    }),
    ("receives without messages", Before::Nothing, |s| {
        s.waits(s.receive(SMALL), 0);
        s.waits(s.receive(LARGE), 1);
        s.loses(s.receive(SMALL));
        s.loses(s.receive(LARGE));
        drop(s.receive(SMALL));
    }),
    (
        "receives, some of which have their messages",
        Before::Sends(&[SMALL, LARGE, SMALL, LARGE]),
        |s| {
            let receives = [SMALL, LARGE].map(|len| s.receive(len));
            receives[1].wait_on(&s.streams[1]).unwrap();
            receives[0].wait_on(&s.streams[1]).unwrap();
            s.fine.borrow_mut().extend(receives);
            s.fine.borrow_mut().push(s.receive(SMALL));
            s.fine.borrow_mut().push(s.receive(LARGE));
            s.waits(s.receive(SMALL), 0);
            s.waits(s.receive(LARGE), 0);
        },
    ),
    ("both directions", Before::Nothing, |s| {
        let receive = s.receive(LARGE);
        let send = s.send(LARGE);
        s.waits(receive, 0);
        s.waits(send, 0);
    }),
];

#[test]
fn death_of_a_peer_ends_zero_sm_messages_in_every_phase() {
    let mut seed = 0;
    let mut failed = Vec::new();
    for death in [Death::Leaves, Death::Closes, Death::Freezes] {
        for phase in PHASES {
            seed += 1;
            let run = move || {
                let run = play(seed, 2, move |rank| dies(rank, death, phase));
                let dead: &[&str] = match death {
                    Death::Freezes => &["rank1"],
                    _ => &[],
                };
                assert_eq!(run.report.unfinished, dead);
                assert_eq!(run.warnings.alarms(), [""; 0], "watchdog limit: 10 s");
            };
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                failed.push(format!("{death:?}: {}", phase.0));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

fn dies(rank: &Rank, death: Death, phase: &Phase) {
    let ctx = rank.open(build);
    let &(_, before, make) = phase;
    let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
    if rank.me == VICTIM {
        let stream = ctx.gpu().stream().unwrap();
        let gate = Gate::new(ctx.gpu());
        match before {
            Before::Nothing => {}
            Before::Sends(lens) => {
                for len in lens {
                    drop(send(&ctx, &stream, &memory, *len));
                }
                assert!(stream.synchronize(LIMIT).unwrap());
            }
            Before::Holds(lens) => {
                gate.hold(&stream);
                for len in lens {
                    drop(receive(&ctx, &stream, &memory, *len));
                }
            }
        }
        // Its own streams wait, too.
        let all = memory.all();
        let waiting = [0; 2].map(|_| ctx.gpu().stream().unwrap());
        let op = RecvOp::from((0, 2, &all)).on(&waiting[0]).zero_sm(true);
        ctx.post_recv(&op).unwrap().wait_on(&waiting[0]).unwrap();
        let op = SendOp::from((0, 2, &all)).on(&waiting[1]).zero_sm(true);
        ctx.post_send(&op).unwrap().wait_on(&waiting[1]).unwrap();
        drop((memory, all));
        rank.barrier();
        rank.pass(millis(50));
        death.end(rank, ctx, 3);
        gate.open();
        for stream in [&waiting[0], &waiting[1], &stream] {
            assert!(
                stream.synchronize(LIMIT).unwrap(),
                "a stream of the rank that died"
            );
        }
        return;
    }
    rank.until("the other rank is ready", || rank.has_come(VICTIM, 1));
    let survivor = Survivor {
        ctx: &ctx,
        streams: [0; 2].map(|_| ctx.gpu().stream().unwrap()),
        memory,
        lost: RefCell::default(),
        fine: RefCell::default(),
        saw: RefCell::default(),
    };
    make(&survivor);
    rank.barrier();
    let start = rank.host.now();
    for stream in &survivor.streams {
        assert!(stream.synchronize(LIMIT).unwrap(), "it is not released");
    }
    for request in survivor.lost.borrow().iter() {
        peer_failed(&request.wait(LIMIT).unwrap_err(), VICTIM);
    }
    let took = rank.host.now().since(start);
    assert!(took < TIMEOUT + millis(100), "it took {took:?}");
    for request in survivor.fine.borrow().iter() {
        request.wait(LIMIT).unwrap();
    }
    for (at, witness) in survivor.saw.borrow().iter() {
        let (error, status, _) = witness.seen();
        let request = &survivor.lost.borrow()[*at];
        assert!(error.is_error(), "{request:?}: the error word was not set");
        if format!("{request:?}").starts_with("receive") {
            assert_eq!(status, error, "{request:?}: its result");
        }
    }
    assert!(ctx.error().is_some());
    assert!(ctx.stuck().is_empty());
    // Later messages are refused.
    let data = [survivor.memory.slice(0, SMALL).unwrap()];
    let op = SendOp::new(VICTIM, 1, &data).on(&survivor.streams[0]);
    let e = ctx.post_send(&op.zero_sm(true)).unwrap_err();
    peer_failed(&e, VICTIM);
    let op = RecvOp::new(VICTIM, 1, &data).on(&survivor.streams[0]);
    let e = ctx.post_recv(&op.zero_sm(true)).unwrap_err();
    peer_failed(&e, VICTIM);
    // Of the request that was dropped.
    let _ = ctx.take_error();
    ctx.close(LIMIT).unwrap();
    rank.barrier();
    rank.barrier();
}

/// What a stream waits for while the other rank lives, and the time limit.
#[test]
fn watchdog_and_time_limit_name_what_a_zero_sm_message_lacks() {
    type Case = (
        &'static str,
        Before,
        fn(&Context, &Stream, &Memory) -> Request,
    );
    let cases: [Case; 4] = [
        (
            "no stream of rank 1 has reached its receive",
            Before::Holds(&[SMALL]),
            |ctx, stream, memory| send(ctx, stream, memory, SMALL),
        ),
        (
            "has not taken in the message 16 before",
            Before::Nothing,
            |ctx, stream, memory| {
                (0..SLOTS).for_each(|_| drop(send(ctx, stream, memory, SMALL)));
                send(ctx, stream, memory, SMALL)
            },
        ),
        (
            "rank 1 has not taken the message in",
            Before::Nothing,
            |ctx, stream, memory| {
                let long = send(ctx, stream, memory, LARGE);
                long.wait_on(stream).unwrap();
                long
            },
        ),
        (
            "no message has arrived",
            Before::Nothing,
            |ctx, stream, memory| {
                let receive = receive(ctx, stream, memory, SMALL);
                receive.wait_on(stream).unwrap();
                receive
            },
        ),
    ];
    for (seed, (lacks, before, make)) in (0..).zip(cases) {
        let run = play(seed, 2, move |rank| {
            let build = |builder: Builder| build(builder).watchdog(millis(500));
            let ctx = rank.open(build);
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
            let gate = Gate::new(ctx.gpu());
            if rank.me == VICTIM {
                if let Before::Holds(lens) = before {
                    gate.hold(&stream);
                    for len in lens {
                        drop(receive(&ctx, &stream, &memory, *len));
                    }
                }
                rank.barrier();
                rank.barrier();
                gate.open();
                return rank.barrier();
            }
            rank.barrier();
            let request = make(&ctx, &stream, &memory);
            rank.pass(millis(800));
            let stuck = ctx.stuck();
            assert_eq!(stuck.len(), 1, "{lacks}: {stuck:?}");
            assert_eq!((stuck[0].stream, stuck[0].tag), (stream.id(), 1));
            assert!(stuck[0].what.contains(lacks), "{lacks}: {}", stuck[0].what);
            let e = request.wait(LIMIT).unwrap_err();
            peer_failed(&e, VICTIM);
            assert!(e.to_string().contains(lacks), "{lacks}: {e}");
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.barrier();
            rank.barrier();
        });
        assert!(run.report.unfinished.is_empty());
    }
}

/// Messages that a rank has sent before it died, by a slot and in its own memory.
#[test]
fn messages_that_a_lost_rank_has_left_are_received() {
    for (seed, death) in (0..).zip([Death::Leaves, Death::Closes, Death::Freezes]) {
        let run = play(seed, 2, move |rank| {
            let ctx = rank.open(build);
            exchange(&ctx, rank.peer(), 9);
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
            if rank.me == VICTIM {
                memory.write(0, &[7; LARGE]).unwrap();
                for len in [SMALL, LARGE, LARGE, SMALL] {
                    drop(send(&ctx, &stream, &memory, len));
                }
                assert!(stream.synchronize(LIMIT).unwrap());
                drop(memory);
                rank.barrier();
                return death.end(rank, ctx, 2);
            }
            rank.barrier();
            // It is lost when this request fails.
            let lost = memory.slice(0, SMALL).unwrap();
            let lost = ctx.irecv_on(&stream, VICTIM, 9, &lost);
            let e = lost.and_then(|lost| {
                lost.wait_on(&stream)?;
                lost.wait(LIMIT)
            });
            peer_failed(&e.unwrap_err(), VICTIM);
            for (len, by_cpu) in [(SMALL, false), (LARGE, false), (LARGE, true), (SMALL, true)] {
                memory.write(0, &[0; LARGE]).unwrap();
                let left = receive(&ctx, &stream, &memory, len);
                if !by_cpu {
                    left.wait_on(&stream).unwrap();
                }
                assert_eq!(left.wait(LIMIT).unwrap().len, len as u64);
                let mut got = vec![0; LARGE];
                memory.read(0, &mut got).unwrap();
                assert!(got[..len].iter().all(|byte| *byte == 7));
                assert!(got[len..].iter().all(|byte| *byte == 0));
            }
            let into = [memory.slice(0, SMALL).unwrap()];
            let op = RecvOp::new(VICTIM, 1, &into).on(&stream).zero_sm(true);
            peer_failed(&ctx.post_recv(&op).unwrap_err(), VICTIM);
            rank.barrier();
        });
        assert_eq!(run.report.unfinished.is_empty(), death != Death::Freezes);
    }
}
