//! A rank dies while another rank has requests with it, in every phase of a request. Messages that
//! have arrived are received. All other requests end with an error that names the rank. Streams
//! continue, and a third rank continues to exchange messages.

#[path = "common/sim.rs"]
mod sim;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use gdsync::Status;
use gdsync::gpu::{MemoryKind, Stream};
use mp::{Builder, Context, Kind, Memory, RecvOp, Request, SendOp, Slice, Source};
use sim::{Death, LARGE, LIMIT, Rank, SMALL, Witness, millis, peer_failed, play, secs, send};
use sim::{exchange, exchange_on, slice};

const TIMEOUT: Duration = secs(2);
const DEPTH: usize = 4;
/// The rank that dies.
const VICTIM: u32 = 1;
/// The rank that survives with the other one.
const FRIEND: u32 = 2;

fn build(builder: Builder) -> Builder {
    builder.timeout(TIMEOUT).depth(DEPTH as u32)
}

/// The surviving rank's requests with the rank that dies.
struct Survivor<'a> {
    ctx: &'a Context,
    stream: &'a Stream,
    memory: Memory,
    /// A CPU thread posts for the streams.
    by_cpu_thread: bool,
    /// Requests that must fail.
    lost: RefCell<Vec<Request>>,
    /// Receives whose message has arrived, with its length.
    fine: RefCell<Vec<(Request, u64)>>,
    /// Kernels behind stream waits, by their place in `lost`.
    saw: RefCell<Vec<(usize, Witness)>>,
}

impl Survivor<'_> {
    fn slice(&self, len: usize) -> Slice {
        self.memory.slice(0, len).unwrap()
    }

    fn loses(&self, request: Request) {
        self.lost.borrow_mut().push(request);
    }

    fn gets(&self, request: Request, len: usize) {
        self.fine.borrow_mut().push((request, len as u64));
    }

    /// Enqueues a stream wait for a request that must fail, and a kernel that reads the request's
    /// result.
    fn waits(&self, request: Request) {
        request.wait_on(self.stream).unwrap();
        let seen = Witness::launch(self.stream, self.ctx, &request);
        let mut lost = self.lost.borrow_mut();
        self.saw.borrow_mut().push((lost.len(), seen));
        lost.push(request);
    }

    fn isend(&self, len: usize) -> Request {
        self.ctx.isend(VICTIM, 1, &self.slice(len)).unwrap()
    }

    fn isend_on(&self, len: usize) -> Request {
        let data = [self.slice(len)];
        let send = SendOp::new(VICTIM, 1, &data);
        let send = match self.by_cpu_thread {
            true => send.by_cpu_thread(self.stream),
            false => send.on(self.stream),
        };
        self.ctx.post_send(&send).unwrap()
    }

    /// A receive by the CPU has only its own time limit.
    fn irecv(&self, len: usize) -> Request {
        let into = [self.slice(len)];
        self.ctx
            .post_recv(&RecvOp::new(VICTIM, 1, &into).timeout(TIMEOUT))
            .unwrap()
    }

    fn irecv_on(&self, len: usize) -> Request {
        let into = [self.slice(len)];
        let recv = RecvOp::new(VICTIM, 1, &into);
        let recv = match self.by_cpu_thread {
            true => recv.by_cpu_thread(self.stream),
            false => recv.on(self.stream),
        };
        self.ctx.post_recv(&recv).unwrap()
    }
}

/// A phase of requests: what the survivor does before the other rank dies, and the number of small
/// messages that the other rank sends before.
type Phase = (&'static str, usize, fn(&Survivor<'_>));

const PHASES: &[Phase] = &[
    ("a send by the CPU without room", 0, |s| {
        for _ in 0..DEPTH {
            let sent = s.isend(SMALL);
            sent.wait(LIMIT).unwrap();
            s.gets(sent, SMALL);
        }
        s.loses(s.isend(SMALL));
        s.loses(s.isend(LARGE));
    }),
    ("a send by the CPU that was announced", 0, |s| {
        s.loses(s.isend(LARGE))
    }),
    (
        "a stream that waits for the result of a send by the CPU",
        0,
        |s| s.waits(s.isend(LARGE)),
    ),
    ("a stream that is blocked at a send without room", 0, |s| {
        for _ in 0..DEPTH {
            s.gets(s.isend_on(SMALL), SMALL);
        }
        s.waits(s.isend_on(SMALL));
    }),
    (
        "a stream that is blocked at a send that was announced",
        0,
        |s| s.waits(s.isend_on(LARGE)),
    ),
    ("sends of a stream over several laps", 0, |s| {
        for _ in 0..DEPTH {
            s.gets(s.isend_on(SMALL), SMALL);
        }
        for _ in 0..3 * DEPTH {
            s.waits(s.isend_on(SMALL));
            s.loses(s.isend_on(LARGE));
        }
    }),
    ("receives by the CPU", 0, |s| {
        s.loses(s.irecv(SMALL));
        s.loses(s.irecv(LARGE));
    }),
    (
        "receives by the CPU, one of which has its message",
        1,
        |s| {
            s.gets(s.irecv(SMALL), SMALL);
            s.loses(s.irecv(SMALL));
        },
    ),
    ("a receive that a stream posted", 0, |s| {
        let into = [s.slice(LARGE)];
        let recv = RecvOp::new(VICTIM, 1, &into).on(s.stream).timeout(TIMEOUT);
        s.loses(s.ctx.post_recv(&recv).unwrap());
    }),
    ("a stream that is blocked at a small receive", 0, |s| {
        s.waits(s.irecv_on(SMALL))
    }),
    ("a stream that is blocked at a large receive", 0, |s| {
        s.waits(s.irecv_on(LARGE))
    }),
    (
        "a stream that is blocked at a large receive by the CPU",
        0,
        |s| s.waits(s.irecv(LARGE)),
    ),
    ("a stream that is blocked at the second receive", 1, |s| {
        for i in 0..3 {
            let recv = s.irecv_on(SMALL);
            match i {
                0 => {
                    recv.wait_on(s.stream).unwrap();
                    s.gets(recv, SMALL);
                }
                _ => s.waits(recv),
            }
        }
    }),
    ("receives of a stream over several laps", DEPTH, |s| {
        for i in 0..3 * DEPTH {
            let recv = s.irecv_on(if i % 3 == 2 { LARGE } else { SMALL });
            match i < DEPTH {
                true => {
                    recv.wait_on(s.stream).unwrap();
                    s.gets(recv, SMALL);
                }
                false => s.waits(recv),
            }
        }
    }),
    ("both ways at once", 0, |s| {
        let recv = s.irecv_on(LARGE);
        let send = s.isend_on(LARGE);
        s.waits(recv);
        s.waits(send);
    }),
];

#[test]
fn death_of_a_peer_ends_requests_in_every_phase() {
    let mut seed = 0;
    let mut failed = Vec::new();
    let by_stream = Death::ALL.map(|death| (death, false));
    let by_thread = [(Death::Leaves, true), (Death::Freezes, true)];
    for (death, by_cpu_thread) in by_stream.into_iter().chain(by_thread) {
        for phase in PHASES {
            seed += 1;
            let run = move || {
                let run = play(seed, 3, move |rank| dies(rank, death, phase, by_cpu_thread));
                let dead: &[&str] = match death {
                    Death::Freezes => &["rank1"],
                    _ => &[],
                };
                assert_eq!(run.report.unfinished, dead);
                assert_eq!(run.warnings.alarms(), [""; 0], "watchdog limit: 10 s");
            };
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                failed.push(format!(
                    "{death:?}, by a CPU thread: {by_cpu_thread}: {}",
                    phase.0
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

fn dies(rank: &Rank, death: Death, phase: &Phase, by_cpu_thread: bool) {
    let ctx = rank.open(build);
    let &(_, sent, make) = phase;
    match rank.me {
        VICTIM => {
            (0..sent).for_each(|_| send(&ctx, 0, 1, SMALL));
            rank.barrier();
            rank.pass(millis(50));
            death.end(rank, ctx, 3);
        }
        FRIEND => {
            exchange(&ctx, 0, 7);
            rank.barrier();
            rank.barrier();
            send(&ctx, 0, 70, SMALL);
            exchange(&ctx, 0, 7);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        }
        _ => survives(rank, &ctx, make, by_cpu_thread),
    }
}

fn survives(rank: &Rank, ctx: &Context, make: fn(&Survivor<'_>), by_cpu_thread: bool) {
    let stream = ctx.gpu().stream().unwrap();
    let survivor = Survivor {
        ctx,
        stream: &stream,
        memory: ctx.alloc(MemoryKind::Pinned, LARGE).unwrap(),
        by_cpu_thread,
        lost: RefCell::default(),
        fine: RefCell::default(),
        saw: RefCell::default(),
    };
    exchange(ctx, FRIEND, 7);
    // Prepared before the death, to be posted after it; a stream posts in the order in which its
    // requests were prepared.
    let spare = ctx.gpu().stream().unwrap();
    let data = [survivor.slice(SMALL)];
    let large = [survivor.slice(LARGE)];
    let prepared = [
        ctx.prepare_send(&SendOp::new(VICTIM, 50, &data)),
        ctx.prepare_send(&SendOp::new(VICTIM, 51, &large).on(&spare)),
        ctx.prepare_recv(&RecvOp::new(VICTIM, 52, &data)),
        ctx.prepare_recv(&RecvOp::new(VICTIM, 53, &large).on(&spare)),
        ctx.prepare_send(&SendOp::new(VICTIM, 54, &data).on(&spare)),
    ];
    let prepared = prepared.map(Result::unwrap);
    make(&survivor);
    let any = ctx.irecv(Source::Any, 70, &slice(ctx, SMALL)).unwrap();
    rank.barrier();
    let start = rank.host.now();
    assert!(
        stream.synchronize(LIMIT).unwrap(),
        "the stream is not released"
    );
    for request in survivor.lost.borrow().iter() {
        peer_failed(&request.wait(LIMIT).unwrap_err(), VICTIM);
    }
    let took = rank.host.now().since(start);
    assert!(took < TIMEOUT + millis(100), "it took {took:?}");
    for (request, len) in survivor.fine.borrow().iter() {
        assert_eq!(request.wait(LIMIT).unwrap().len, *len);
    }
    let reason = late(ctx, &survivor, &prepared);
    for (at, witness) in survivor.saw.borrow().iter() {
        let (error, status, _) = witness.seen();
        let request = &survivor.lost.borrow()[*at];
        assert!(error == reason, "{request:?}: the error word was {error:?}");
        if format!("{request:?}").starts_with("receive") {
            assert_eq!(status, reason, "{request:?}: its result");
        }
    }
    assert!(ctx.error().is_some());
    assert!(ctx.stuck().is_empty());
    // The same stream continues with other ranks.
    rank.barrier();
    let end = ctx.isend(VICTIM, 1, &survivor.slice(SMALL)).unwrap_err();
    assert_eq!(end.rank(), Some(VICTIM), "{end}");
    exchange_on(ctx, FRIEND, 7, &stream);
    // The death does not end a receive from any rank.
    assert_eq!(any.wait(LIMIT).unwrap().source(), FRIEND);
    exchange_on(ctx, ctx.rank(), 7, &stream);
    ctx.close(LIMIT).unwrap();
    rank.barrier();
}

/// Uses the dead rank after its death.
fn late(ctx: &Context, survivor: &Survivor<'_>, prepared: &[Request]) -> Status {
    let memory = survivor.slice(SMALL);
    let all = [
        ctx.isend(VICTIM, 1, &memory),
        ctx.isend_on(survivor.stream, VICTIM, 1, &memory),
        ctx.isend(VICTIM, 1, &survivor.slice(LARGE)),
        ctx.irecv(VICTIM, 60, &memory),
        ctx.irecv_on(survivor.stream, VICTIM, 61, &memory),
    ];
    let mut errors: Vec<_> = all.into_iter().map(|r| r.unwrap_err()).collect();
    // A message might have arrived: a receive reports the death only once it is waited for.
    let mut post = |r: &Request| r.post().and_then(|()| r.wait(LIMIT)).unwrap_err();
    errors.extend(prepared.iter().map(&mut post));
    let mut reasons = errors.iter().map(|e| {
        assert_eq!(e.rank(), Some(VICTIM), "{e}");
        match e.kind() {
            Kind::PeerFailed(status) => status,
            other => panic!("{other:?}: {e}"),
        }
    });
    let first = reasons.next().unwrap();
    assert!(reasons.all(|status| status == first));
    first
}
