//! Operations of windows that are prepared, and posted later: by the CPU, on a stream, several in
//! one submission.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Condition, MemoryKind};
use mp::{Context, Kind, Memory, NULL_RANK, RecvOp, Request, SendOp, Window};
use sim::gate::Gate;
use sim::{LIMIT, Rank, SMALL, by_nic, millis, pair, play, slice};
use vmlx5::fabric::faults::Faults;

/// Layout of the windows: a part for each rank, and words behind them.
const PART: usize = 3000;
const RANKS: u32 = 3;
const SIGNAL: usize = PART * RANKS as usize;
const COUNTER: usize = SIGNAL + 8 * RANKS as usize;
const LEN: usize = COUNTER + 16;

fn window(ctx: &Context, kind: MemoryKind) -> Window {
    ctx.window(&ctx.alloc(kind, LEN).unwrap()).unwrap()
}

fn bytes(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

fn synchronize(ctx: &Context, stream: &Stream) {
    ctx.synchronize(stream, LIMIT).unwrap();
}

/// How prepared requests are posted.
#[derive(Clone, Copy, Debug)]
enum Post {
    Cpu,
    Stream,
    AllOnStream,
}

impl Post {
    const ALL: [Post; 3] = [Post::Cpu, Post::Stream, Post::AllOnStream];

    fn post(self, ctx: &Context, stream: &Stream, requests: &[Request]) {
        match self {
            Post::Cpu => requests.iter().try_for_each(Request::post),
            Post::Stream => requests.iter().try_for_each(|one| one.post_on(stream)),
            Post::AllOnStream => ctx.post_all_on(stream, requests),
        }
        .unwrap();
    }
}

/// The part of this rank in the window of each rank: bytes in two puts and a signal, read back by a
/// get, and counted. The sources are written after the preparation.
fn round(rank: &Rank, ctx: &Context, window: &Window, stream: &Stream, post: Post, round: u64) {
    let kind = window.memory().region().kind();
    let part = PART * rank.me as usize;
    let signal = SIGNAL + 8 * rank.me as usize;
    let say = |rank: u32| vec![rank as u8 * 32 + round as u8; PART];
    let data = ctx.alloc(kind, PART).unwrap();
    let [head, tail] = [data.slice(0, 100), data.slice(100, PART - 100)].map(Result::unwrap);
    let back = ctx.alloc(kind, PART * RANKS as usize).unwrap();
    let old = ctx.alloc(MemoryKind::Pinned, 16 * RANKS as usize).unwrap();
    let mut requests = Vec::new();
    for to in 0..RANKS {
        let into = back.slice(PART * to as usize, PART).unwrap();
        let [old, older] = [0, 8].map(|at| old.slice(16 * to as usize + at, 8).unwrap());
        requests.extend([
            window.prepare_put(to, part, &head).unwrap(),
            window.prepare_put(to, part + 100, &tail).unwrap(),
            window.prepare_signal(to, signal, round).unwrap(),
            window.prepare_get(to, part, &into).unwrap(),
        ]);
        if to != rank.me {
            let swap = window.prepare_compare_swap(to, COUNTER + 8, 7, 8, &older);
            requests.extend([
                window.prepare_fetch_add(to, COUNTER, 1, &old).unwrap(),
                swap.unwrap(),
            ]);
        }
    }
    let before = bytes(window.memory(), 0, SIGNAL);
    rank.barrier();
    rank.pass(millis(5));
    assert!(bytes(window.memory(), 0, SIGNAL) == before, "{post:?}");
    rank.barrier();
    data.write(0, &say(rank.me)).unwrap();
    post.post(ctx, stream, &requests);
    for from in 0..RANKS {
        let signal = SIGNAL + 8 * from as usize;
        let wait = window.wait_signal(from, signal, Condition::Geq, round, LIMIT);
        wait.unwrap();
        let at = PART * from as usize;
        assert!(bytes(window.memory(), at, PART) == say(from), "{post:?}");
    }
    let ended = mp::wait_all(&requests, LIMIT).unwrap();
    assert_eq!((ended[1].peer, ended[1].len), (0, PART as u64 - 100));
    for to in 0..RANKS as usize {
        assert!(bytes(&back, PART * to, PART) == say(rank.me), "{post:?}");
    }
    synchronize(ctx, stream);
    rank.barrier();
    let counted = window.memory().region().word64(COUNTER).unwrap().load();
    assert_eq!(counted.unwrap(), round * (u64::from(RANKS) - 1), "{post:?}");
    rank.barrier();
}

#[test]
fn prepared_operations_are_executed_when_they_are_posted() {
    for (seed, ooo) in [(1, 0.0), (2, 0.9)] {
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            play(seed, RANKS, move |rank| {
                let faults = Faults {
                    seed: rank.me.into(),
                    ooo,
                    ..Faults::default()
                };
                let place = rank.place_with(SoftOptions::default(), true, faults);
                let ctx = rank.open_at(&place, |b| b);
                let (window, stream) = (window(&ctx, kind), ctx.gpu().stream().unwrap());
                for (number, post) in (1..).zip(Post::ALL) {
                    round(rank, &ctx, &window, &stream, post, number);
                }
                ctx.close(LIMIT).unwrap();
            });
        }
    }
}

/// Quiet waits for the puts that were posted by then, although they were prepared.
#[test]
fn quiet_waits_for_prepared_puts_that_are_posted() {
    for seed in 0..5 {
        play(seed, 2, |rank| {
            let faults = Faults {
                seed: rank.me.into(),
                ooo: 0.9,
                ..Faults::default()
            };
            let place = rank.place_with(SoftOptions::default(), true, faults);
            let ctx = rank.open_at(&place, |b| b);
            for post in Post::ALL {
                let (window, stream) = (
                    window(&ctx, MemoryKind::Pinned),
                    ctx.gpu().stream().unwrap(),
                );
                let data = ctx.alloc(MemoryKind::Pinned, PART).unwrap();
                data.write(0, &[rank.me as u8 + 3; PART]).unwrap();
                let put = window.prepare_put(rank.peer(), 0, &data.all()).unwrap();
                post.post(&ctx, &stream, std::slice::from_ref(&put));
                drop(put);
                match post {
                    Post::Cpu => window.quiet(LIMIT).unwrap(),
                    _ => window.quiet_on(&stream).unwrap(),
                }
                synchronize(&ctx, &stream);
                rank.barrier();
                let said = [rank.peer() as u8 + 3; PART];
                assert!(bytes(window.memory(), 0, PART) == said, "{post:?}");
                rank.barrier();
            }
        });
    }
}

/// Puts to all other ranks, with sends and receives, are one submission.
#[test]
fn puts_and_messages_are_posted_in_one_submission() {
    play(1, RANKS, |rank| {
        let ctx = rank.open(by_nic);
        let (window, stream) = (
            window(&ctx, MemoryKind::Device),
            ctx.gpu().stream().unwrap(),
        );
        let data = slice(&ctx, SMALL);
        data.memory().write(0, &[rank.me as u8 + 1; SMALL]).unwrap();
        for round in 1..4 {
            let (mut requests, mut received) = (Vec::new(), Vec::new());
            for peer in (0..RANKS).filter(|peer| *peer != rank.me) {
                let into = slice(&ctx, SMALL);
                let (at, word) = (
                    PART * rank.me as usize,
                    SIGNAL + 8 * usize::try_from(rank.me).unwrap(),
                );
                let put = window.prepare_put_signal(peer, at, &data, word, round);
                requests.extend([
                    ctx.prepare_send(&SendOp::from((peer, 7, &data))).unwrap(),
                    put.unwrap(),
                    ctx.prepare_recv(&RecvOp::from((peer, 7, &into))).unwrap(),
                ]);
                received.push((peer, into));
            }
            ctx.gpu().capture_trace();
            ctx.post_all_on(&stream, &requests).unwrap();
            let head = format!("stream {}: ", stream.id());
            let mut trace = ctx.gpu().finish_trace();
            trace.retain(|line| line.starts_with(&head));
            assert_eq!(trace.len(), 1, "{trace:?}");
            ctx.wait_all_on(&stream, &requests).unwrap();
            for (peer, into) in received {
                let word = SIGNAL + 8 * peer as usize;
                let wait = window.wait_signal_on(&stream, peer, word, Condition::Geq, round);
                wait.unwrap();
                synchronize(&ctx, &stream);
                let said = vec![peer as u8 + 1; SMALL];
                assert!(bytes(into.memory(), into.offset(), SMALL) == said);
                assert!(bytes(window.memory(), PART * peer as usize, SMALL) == said);
            }
            rank.barrier();
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// A stream that has not reached the put has not read its source.
#[test]
fn a_prepared_put_takes_its_place_in_the_stream_when_it_is_posted() {
    pair(
        |b| b,
        |rank, ctx| {
            let (window, stream) = (window(ctx, MemoryKind::Pinned), ctx.gpu().stream().unwrap());
            let gate = Gate::new(ctx.gpu());
            let data = slice(ctx, 8);
            let put = window.prepare_put_signal(rank.peer(), 0, &data, SIGNAL, 1);
            let put = put.unwrap();
            gate.hold(&stream);
            put.post_on(&stream).unwrap();
            rank.barrier();
            rank.pass(millis(5));
            assert_eq!(put.test().unwrap(), None);
            data.memory()
                .write(data.offset(), &[rank.me as u8 + 1; 8])
                .unwrap();
            rank.barrier();
            gate.open();
            let wait = window.wait_signal(rank.peer(), SIGNAL, Condition::Eq, 1, LIMIT);
            wait.unwrap();
            assert_eq!(bytes(window.memory(), 0, 8), [rank.peer() as u8 + 1; 8]);
            put.wait(LIMIT).unwrap();
        },
    );
}

#[test]
fn bad_arguments_are_refused_when_an_operation_is_prepared() {
    pair(
        |b| b,
        |rank, ctx| {
            let (peer, window) = (rank.peer(), window(ctx, MemoryKind::Pinned));
            let (small, large) = (slice(ctx, 8), slice(ctx, LEN));
            let past = |e: mp::Result<Request>| {
                let e = e.map(drop).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(peer)), "{e}");
                assert_eq!(e.limit(), Some(LEN as u64), "{e}");
            };
            past(window.prepare_put(peer, LEN - 7, &small));
            past(window.prepare_put(peer, 1, &large));
            past(window.prepare_put(peer, usize::MAX - 3, &small));
            past(window.prepare_put_signal(peer, 0, &small, LEN, 1));
            past(window.prepare_signal(peer, LEN, 1));
            past(window.prepare_get(peer, LEN - 7, &small));
            past(window.prepare_fetch_add(peer, LEN, 1, &small));
            past(window.prepare_compare_swap(peer, LEN, 1, 2, &small));
            let other = rank.open(|b| b.name("other"));
            let foreign = slice(&other, 8);
            for e in [
                window.prepare_signal(peer, 4, 1),
                window.prepare_put_signal(peer, 0, &small, 12, 1),
                window.prepare_fetch_add(peer, 0, 1, &large),
                window.prepare_put(2, 0, &small),
                window.prepare_put(peer, 0, &foreign),
            ] {
                assert_eq!(e.map(drop).unwrap_err().kind(), Kind::Invalid);
            }
            // A rank has no atomics with itself; that is found by the post.
            let own = window.prepare_fetch_add(rank.me, COUNTER, 1, &small);
            let (own, stream) = (own.unwrap(), ctx.gpu().stream().unwrap());
            for e in [
                own.post(),
                own.post_on(&stream),
                ctx.post_all_on(&stream, &[own]),
            ] {
                let e = e.unwrap_err();
                assert_eq!(e.kind(), Kind::Unsupported, "{e}");
            }
            assert_eq!(ctx.error(), None);
        },
    );
}

/// A request that is not posted cannot be waited for; it is cancelled, dropped, or posted once.
#[test]
fn a_prepared_request_is_posted_once_or_never() {
    pair(by_nic, |rank, ctx| {
        let (peer, window) = (rank.peer(), window(ctx, MemoryKind::Pinned));
        let [stream, other] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
        let data = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        data.write(0, &[9; 64]).unwrap();
        let prepare = || window.prepare_put(peer, 0, &data.all()).unwrap();
        let kind = |result: mp::Result<()>| result.unwrap_err().kind();

        let put = prepare();
        assert_eq!(kind(put.wait(LIMIT).map(drop)), Kind::NoSuchRequest);
        assert_eq!(kind(put.wait_on(&stream)), Kind::NoSuchRequest);
        put.cancel().unwrap();
        assert_eq!(kind(put.test().map(drop)), Kind::Cancelled);
        assert_eq!(kind(put.post()), Kind::Busy);
        assert_eq!(kind(put.post_on(&stream)), Kind::Busy);
        drop((prepare(), prepare()));
        rank.barrier();
        rank.pass(millis(5));
        assert_eq!(bytes(window.memory(), 0, 64), [0; 64]);
        rank.barrier();

        // The first stream refuses it, because a send is prepared there; another takes it.
        let into = slice(ctx, 64);
        let recv = ctx.irecv(peer, 3, &into).unwrap();
        let all = [data.all()];
        let send = ctx.prepare_send(&SendOp::new(peer, 3, &all).on(&stream));
        let (put, send) = (prepare(), send.unwrap());
        let blocked = Kind::Gdsync(gdsync::Kind::OutOfOrder);
        let full = put.post_on(&stream).unwrap_err();
        assert_eq!(full.kind(), blocked, "{full}");
        assert_eq!(kind(put.test().map(drop)), Kind::NoSuchRequest);
        put.post_on(&other).unwrap();
        for e in [put.post(), put.post_on(&other), put.post_on(&stream)] {
            assert_eq!(kind(e), Kind::Busy);
        }
        send.post().unwrap();
        put.wait(LIMIT).unwrap();
        assert_eq!(kind(put.post()), Kind::Busy);
        recv.wait(LIMIT).unwrap();
        rank.barrier();
        assert_eq!(bytes(window.memory(), 0, 64), [9; 64]);

        let null = window.prepare_put(NULL_RANK, 1 << 40, &data.all()).unwrap();
        assert_eq!(kind(null.test().map(drop)), Kind::NoSuchRequest);
        null.post_on(&stream).unwrap();
        assert_eq!(null.wait(millis(0)).unwrap().len, 0);
        drop(window.prepare_signal(NULL_RANK, 0, 1).unwrap());
        assert_eq!(ctx.error(), None);
    });
}

/// A list with a request that is refused posts none of them; without it the list is posted.
#[test]
fn a_refused_list_posts_nothing() {
    pair(
        |b| b,
        |rank, ctx| {
            let (peer, window) = (rank.peer(), window(ctx, MemoryKind::Pinned));
            let stream = ctx.gpu().stream().unwrap();
            let data = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
            data.write(0, &[5; 8]).unwrap();
            let put = |to, at| window.prepare_put(to, at, &data.all()).unwrap();
            let old = slice(ctx, 8);
            for own in [rank.me, peer] {
                // The last one: this rank itself has no atomics.
                let mut list = vec![
                    put(peer, 0),
                    put(own, 8),
                    window.prepare_signal(peer, 16, 5).unwrap(),
                    window.prepare_fetch_add(rank.me, 24, 1, &old).unwrap(),
                ];
                for _ in 0..2 {
                    let e = ctx.post_all_on(&stream, &list).unwrap_err();
                    assert_eq!(e.kind(), Kind::Unsupported, "{e}");
                }
                for request in &list {
                    assert_eq!(request.test().unwrap_err().kind(), Kind::NoSuchRequest);
                }
                synchronize(ctx, &stream);
                rank.barrier();
                rank.pass(millis(5));
                assert_eq!(bytes(window.memory(), 0, 24), [0; 24]);
                rank.barrier();
                drop(list.pop());
                ctx.post_all_on(&stream, &list).unwrap();
                ctx.wait_all_on(&stream, &list).unwrap();
                let wait = window.wait_signal_on(&stream, peer, 16, Condition::Eq, 5);
                wait.unwrap();
                synchronize(ctx, &stream);
                // The put and the signal of the peer; the put to this rank or of the peer.
                assert_eq!(bytes(window.memory(), 0, 16), [5; 16]);
                rank.barrier();
                window.memory().write(0, &[0; 32]).unwrap();
                rank.barrier();
            }
            assert_eq!(ctx.error(), None);
        },
    );
}

/// The memory of a prepared request is kept until the request has ended, and no longer.
#[test]
fn a_prepared_request_keeps_its_memory() {
    pair(
        |b| b,
        |rank, ctx| {
            let (peer, window) = (rank.peer(), window(ctx, MemoryKind::Pinned));
            let data = ctx.adopt_vec(vec![3; 64]).map_err(|(_, e)| e).unwrap();
            let put = window.prepare_put(peer, 0, &data.all()).unwrap();
            let busy = data
                .into_vec(millis(5))
                .map_err(|(memory, e)| (memory, e.kind()));
            let (data, kind) = busy.unwrap_err();
            assert_eq!(kind, Kind::Timeout);
            drop(put);
            let vec = data.into_vec(LIMIT).map_err(|(_, e)| e).unwrap();
            assert_eq!(vec, [3; 64]);

            let data = ctx.adopt_vec(vec![4; 64]).map_err(|(_, e)| e).unwrap();
            let put = window.prepare_put_signal(peer, 0, &data.all(), SIGNAL, 1);
            let put = put.unwrap();
            drop(data);
            put.post().unwrap();
            let wait = window.wait_signal(peer, SIGNAL, Condition::Eq, 1, LIMIT);
            wait.unwrap();
            assert_eq!(bytes(window.memory(), 0, 64), [4; 64]);
            put.wait(LIMIT).unwrap();
        },
    );
}
