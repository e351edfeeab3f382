//! Calls for many requests: the submissions that they take, and calls that exceed the limit of a
//! queue or of a stream.

#[path = "common/sim.rs"]
mod sim;

use std::sync::{Arc, Mutex};

use gds_step::Time;
use gdsync::Stream;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Observer, Passed, Work};
use gdsync::rdma::QpConfig;
use mp::{Builder, Context, Full, Kind, NicOptions, RecvOp, Request, SendOp};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, Rank, SMALL, by_nic, play, secs, send, slice};

/// Messages of a call in each direction.
const MANY: usize = 100;

/// Submissions that a stream holds before it blocks the caller.
const BOUND: usize = 64;

/// A context whose streams hold [`BOUND`] submissions, and whose queues hold many more puts.
fn bounded(rank: &Rank, build: impl FnOnce(Builder) -> Builder) -> Context {
    let place = rank.place(SoftOptions::default().stream_bound(BOUND), true);
    let queues = QpConfig::default().send_blocks(1024);
    let nic = NicOptions::default().queues(queues);
    rank.open_at(&place, |b| build(b.depth(512).nic(nic)))
}

/// The names of the kernels on one stream; other submissions are "".
#[derive(Default)]
struct Seen(Mutex<Vec<(u64, String)>>);

impl Observer for Seen {
    fn enqueued(&self, stream: u64, work: Work<'_>, _: Time, _: Option<Passed>) {
        let name = match work {
            Work::Kernel(name) => name,
            _ => "",
        };
        self.0.lock().unwrap().push((stream, name.to_owned()));
    }
}

/// What `call` submits to a stream.
fn submitted(stream: &Stream, call: impl FnOnce()) -> Vec<String> {
    let seen = Arc::new(Seen::default());
    let observer: Arc<dyn Observer> = Arc::clone(&seen) as _;
    stream.gpu().observe(&observer).unwrap();
    call();
    let all = seen.0.lock().unwrap();
    let own = all.iter().filter(|(id, _)| *id == stream.id());
    own.map(|(_, name)| name.clone()).collect()
}

fn receive_many(ctx: &Context, count: usize, len: usize) -> Vec<Request> {
    let recv = |_| ctx.irecv(1, 1, &slice(ctx, len)).unwrap();
    (0..count).map(recv).collect()
}

#[test]
fn wait_for_many_receives_is_a_list_and_a_kernel_for_each_23_of_them() {
    const EACH: usize = 23;
    for len in [SMALL, LARGE] {
        play(1, 2, move |rank| {
            let ctx = rank.open(|b| by_nic(b).depth(128));
            let stream = ctx.gpu().stream().unwrap();
            for (count, kernels) in [
                (1, 1),
                (2, 1),
                (8, 1),
                (EACH, 1),
                (EACH + 1, 2),
                (MANY, MANY.div_ceil(EACH)),
            ] {
                if rank.me == 1 {
                    rank.barrier();
                    (0..count).for_each(|_| send(&ctx, 0, 1, len));
                    continue;
                }
                let recvs = receive_many(&ctx, count, len);
                let work = submitted(&stream, || ctx.wait_all_on(&stream, &recvs).unwrap());
                let launched = work.iter().filter(|name| name.starts_with("mp_unpack"));
                assert_eq!(launched.count(), kernels, "{count}: {work:?}");
                // The list, and from time to time the returns of credits.
                assert!(work.len() <= kernels + 2, "{count}: {work:?}");
                rank.barrier();
                assert!(stream.synchronize(LIMIT).unwrap());
                mp::wait_all(&recvs, LIMIT).unwrap();
            }
            rank.barrier();
        });
    }
}

/// The sender's first message needs an answer of the receiver's library, which a blocked caller
/// would not let it send.
#[test]
fn waits_for_more_receives_than_a_stream_holds_submissions_do_not_block() {
    for len in [SMALL, LARGE] {
        for count in [MANY, 3 * MANY] {
            play(1, 2, move |rank| {
                let ctx = bounded(rank, |b| b);
                if rank.me == 1 {
                    rank.barrier();
                    (0..count).for_each(|_| send(&ctx, 0, 1, len));
                    return rank.barrier();
                }
                let stream = ctx.gpu().stream().unwrap();
                let recvs = receive_many(&ctx, count, len);
                ctx.wait_all_on(&stream, &recvs).unwrap();
                rank.barrier();
                assert!(stream.synchronize(LIMIT).unwrap());
                mp::wait_all(&recvs, LIMIT).unwrap();
                rank.barrier();
            });
        }
    }
}

/// No receive is posted, so a kernel completes each send.
#[test]
fn posts_of_more_large_sends_than_a_stream_holds_submissions_do_not_block() {
    play(1, 2, |rank| {
        let ctx = bounded(rank, |b| b);
        if rank.me == 1 {
            rank.barrier();
            let recv = |_| ctx.irecv(0, 1, &slice(&ctx, LARGE)).unwrap();
            let recvs: Vec<Request> = (0..MANY).map(recv).collect();
            mp::wait_all(&recvs, LIMIT).unwrap();
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let send = |_| {
            let data = slice(&ctx, LARGE);
            ctx.prepare_send(&SendOp::from((1, 1, &data))).unwrap()
        };
        let sends: Vec<Request> = (0..MANY).map(send).collect();
        let work = submitted(&stream, || ctx.post_all_on(&stream, &sends).unwrap());
        let launched = work.iter().filter(|name| name.starts_with("mp_stamp"));
        assert_eq!(launched.count(), MANY.div_ceil(30), "{work:?}");
        rank.barrier();
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&sends, LIMIT).unwrap();
        rank.barrier();
    });
}

/// Each receive of strided pieces has kernels of its own.
#[test]
fn waits_that_a_stream_cannot_hold_are_refused_as_a_whole() {
    play(1, 2, |rank| {
        let ctx = bounded(rank, |b| b);
        if rank.me == 1 {
            rank.barrier();
            (0..MANY).for_each(|_| send(&ctx, 0, 1, 400));
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let recv = |_| {
            let columns = slice(&ctx, 800).memory().strided(0, 1, 2, 400).unwrap();
            ctx.post_recv(&RecvOp::strided(1, 1, &columns)).unwrap()
        };
        let recvs: Vec<Request> = (0..MANY).map(recv).collect();
        let work = submitted(&stream, || {
            let e = ctx.wait_all_on(&stream, &recvs).unwrap_err();
            let limit = Some(BOUND as u64);
            assert_eq!((e.kind(), e.limit()), (Kind::Invalid, limit), "{e}");
        });
        assert_eq!(work, [""; 0]);
        ctx.wait_all_on(&stream, &recvs[..10]).unwrap();
        rank.barrier();
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&recvs, LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn wait_behind_a_full_stream_that_waits_is_refused_and_can_be_repeated() {
    play(1, 2, |rank| {
        let ctx = bounded(rank, |b| b.full(Full::Fail));
        if rank.me == 1 {
            rank.barrier();
            (0..3).for_each(|_| send(&ctx, 0, 1, SMALL));
            return rank.barrier();
        }
        let (stream, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
        let recvs = receive_many(&ctx, 3, SMALL);
        gate.hold(&stream);
        for _ in 0..BOUND - 2 {
            stream.record().unwrap();
        }
        let e = ctx.wait_all_on(&stream, &recvs).unwrap_err();
        let limit = Some(BOUND as u64);
        assert_eq!((e.kind(), e.limit()), (Kind::QueueFull, limit), "{e}");
        rank.barrier();
        gate.open();
        assert!(stream.synchronize(LIMIT).unwrap());
        ctx.wait_all_on(&stream, &recvs).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&recvs, LIMIT).unwrap();
        rank.barrier();
    });
}

/// Prepared messages of this rank to itself.
fn to_itself(ctx: &Context, len: usize) -> Vec<Request> {
    let recv = |tag| {
        let into = slice(ctx, len);
        ctx.prepare_recv(&RecvOp::from((ctx.rank(), tag, &into)))
            .unwrap()
    };
    let send = |tag| {
        let data = slice(ctx, len);
        ctx.prepare_send(&SendOp::from((ctx.rank(), tag, &data)))
            .unwrap()
    };
    (0..MANY as u32)
        .map(recv)
        .chain((0..MANY as u32).map(send))
        .collect()
}

#[test]
fn many_messages_to_itself_are_posted_all_or_none() {
    for len in [SMALL, LARGE] {
        play(1, 1, move |rank| {
            let ctx = rank.open(|b| b.full(Full::Fail));
            let stream = ctx.gpu().stream().unwrap();
            let all = to_itself(&ctx, len);
            if let Err(e) = ctx.post_all_on(&stream, &all) {
                assert_eq!(e.kind(), Kind::QueueFull, "{e}");
                // None is posted: each can be.
                for at in 0..MANY {
                    for one in [at, MANY + at] {
                        ctx.post_all_on(&stream, &all[one..=one]).unwrap();
                    }
                    assert!(stream.synchronize(LIMIT).unwrap());
                }
            }
            assert!(stream.synchronize(LIMIT).unwrap());
            mp::wait_all(&all, LIMIT).unwrap();
        });
    }
}

/// The context waits for room. A queue that is empty returns none.
#[test]
fn messages_that_never_fit_the_queue_are_refused_at_once() {
    const BLOCKS: u32 = 32;
    play(1, 2, |rank| {
        let queues = QpConfig::default().send_blocks(BLOCKS);
        let nic = NicOptions::default().queues(queues);
        let timeout = secs(10);
        let ctx = rank.open(|b| by_nic(b).timeout(timeout).nic(nic));
        let recv = |into| ctx.irecv(0, 1, into).unwrap();
        if rank.me == 1 {
            let into = slice(&ctx, SMALL);
            let all: Vec<_> = (0..MANY / 2).map(|_| recv(&into)).collect();
            mp::wait_all(&all, LIMIT).unwrap();
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let data = slice(&ctx, SMALL);
        let send = |_| ctx.prepare_send(&SendOp::from((1, 1, &data))).unwrap();
        let all: Vec<_> = (0..MANY / 2).map(send).collect();
        let start = rank.host.now();
        let e = ctx.post_all_on(&stream, &all).unwrap_err();
        assert_eq!(
            (e.kind(), e.rank(), e.limit()),
            (Kind::QueueFull, Some(1), Some(BLOCKS.into())),
            "{e}"
        );
        assert!(rank.host.now().since(start) < timeout);
        // Some of them fit, and then the others, which wait for room.
        let (some, others) = all.split_at(4);
        ctx.post_all_on(&stream, some).unwrap();
        others
            .chunks(4)
            .for_each(|some| ctx.post_all_on(&stream, some).unwrap());
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&all, LIMIT).unwrap();
        rank.barrier();
    });
}
