//! `Context::stats` compared with what a program did: sends, receives, puts, gets, signals, steps of
//! neighbourhoods, collective calls and waits by peer and path, calls that found a queue full, and requests that reached their time limit.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::{Condition, MemoryKind};
use mp::{Full, Kind, Neighbour, Op, Path, Source, wait_all};
use sim::{LARGE, LIMIT, SMALL, pair, play, recv, secs, send, slice};

#[test]
fn messages_and_waits_count_by_peer_and_path() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b);
        let (next, last) = rank.neighbours();
        let stream = ctx.gpu().stream().unwrap();
        for (tag, len) in [(1, SMALL), (2, LARGE), (3, SMALL)] {
            let recv = ctx.irecv_on(&stream, last, tag, &slice(&ctx, len)).unwrap();
            let send = ctx.isend_on(&stream, next, tag, &slice(&ctx, len)).unwrap();
            recv.wait_on(&stream).unwrap();
            drop((recv, send));
        }
        // To itself, by the CPU.
        let recv = ctx.irecv(rank.me, 4, &slice(&ctx, LARGE)).unwrap();
        let send = ctx.isend(rank.me, 4, &slice(&ctx, SMALL)).unwrap();
        wait_all(&[recv, send], LIMIT).unwrap();
        ctx.synchronize(&stream, LIMIT).unwrap();
        ctx.flush(LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();

        let stats = ctx.stats();
        println!("{stats}");
        let (out, into, me) = (stats.of(next), stats.of(last), stats.of(rank.me));
        assert_eq!(
            (out.sends, out.receives, out.eager, out.large),
            (3, 0, 2, 1)
        );
        assert_eq!(
            (into.sends, into.receives, into.eager, into.large),
            (0, 3, 2, 1)
        );
        let bytes = (2 * SMALL + LARGE) as u64;
        assert_eq!((out.bytes_out, out.bytes_in), (bytes, 0));
        assert_eq!((into.bytes_out, into.bytes_in), (0, bytes));
        assert_eq!((out.waits, into.waits, me.waits), (0, 3, 2));
        assert_eq!(
            (me.sends, me.receives, me.eager, me.bytes_in),
            (1, 1, 2, SMALL as u64)
        );
        assert_eq!(stats.by(Path::Local), me);
        let (path, _) = ctx.path(next).unwrap();
        assert_eq!(stats.by(path).messages(), 6);
        assert_eq!(stats.total().messages(), 8);
        let total = stats.total();
        assert_eq!((total.retries, total.timeouts, total.failures), (0, 0, 0));
        assert_eq!(stats.peers.len(), 3);
        rank.leave();
    });
}

#[test]
fn one_sided_operations_count_by_kind() {
    pair(
        |b| b,
        |rank, ctx| {
            let window = ctx
                .window(&ctx.alloc(MemoryKind::Pinned, 128).unwrap())
                .unwrap();
            let peer = rank.peer();
            let data = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let at = |at: usize, len: usize| data.slice(at, len).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            let put = window.put(peer, 0, &at(0, 10)).unwrap();
            put.wait(LIMIT).unwrap();
            window
                .get(peer, 0, &at(0, 20))
                .unwrap()
                .wait(LIMIT)
                .unwrap();
            let old = window.fetch_add(peer, 64, 1, &at(32, 8)).unwrap();
            old.wait(LIMIT).unwrap();
            let both = window.put_signal_on(&stream, peer, 16, &at(0, 8), 72, 1);
            both.unwrap().wait_on(&stream).unwrap();
            window.signal(peer, 80, 1).unwrap().wait(LIMIT).unwrap();
            window
                .wait_signal(peer, 80, Condition::Eq, 1, LIMIT)
                .unwrap();
            window
                .wait_signal_on(&stream, peer, 72, Condition::Eq, 1)
                .unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
            let counts = ctx.stats().of(peer);
            assert_eq!((counts.puts, counts.gets), (2, 1));
            assert_eq!((counts.signals, counts.atomics), (2, 1));
            assert_eq!((counts.bytes_out, counts.bytes_in), (18, 20));
            assert_eq!((counts.messages(), counts.waits), (0, 7));
        },
    );
}

/// By a stream and by the CPU; the peer is two neighbours.
#[test]
fn steps_of_neighbourhoods_and_collective_calls_count_with_their_bytes() {
    pair(
        |b| b,
        |rank, ctx| {
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let at = |at: usize, len: usize| memory.slice(at, len).unwrap();
            let other = 1 - rank.me;
            let lens = [3, 5];
            let (mine, theirs) = (lens[rank.me as usize], lens[other as usize]);
            let one = Neighbour::new(other, rank.me, other)
                .send(&at(0, mine))
                .receive(&at(8, theirs));
            let two = Neighbour::new(other, 2 + rank.me, 2 + other)
                .send(&at(16, mine))
                .receive(&at(24, theirs));
            let halo = ctx.neighbourhood().neighbours([one, two]).build().unwrap();
            let stream = ctx.gpu().stream().unwrap();
            halo.ready_on(&stream).unwrap();
            halo.send_on(&stream).unwrap();
            halo.wait_on(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            halo.ready().unwrap();
            halo.send(LIMIT).unwrap();
            halo.wait(LIMIT).unwrap();
            drop(halo);
            let counts = ctx.stats().of(other);
            let (out, into) = (4 * mine as u64, 4 * theirs as u64);
            assert_eq!((counts.steps, counts.puts, counts.messages()), (4, 0, 0));
            assert_eq!((counts.bytes_out, counts.bytes_in), (out, into));

            let mut all = ctx.collectives(8).unwrap();
            let mut root = [0_u8; 5];
            all.broadcast(0, &mut root, LIMIT).unwrap();
            all.all_reduce_on::<u64>(&stream, &at(32, 8), Op::Sum)
                .unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            all.barrier(LIMIT).unwrap();
            let counts = ctx.stats().of(other);
            let [sent, received] = [[5, 0], [0, 5]][rank.me as usize];
            assert_eq!(counts.collectives, 3);
            assert_eq!(
                (counts.bytes_out, counts.bytes_in),
                (out + sent + 8, into + received + 8)
            );
            assert_eq!((counts.failures, ctx.stats().of(rank.me).steps), (0, 0));
        },
    );
}

/// Without credits a send by the CPU is queued; a full window of sends is what a call finds.
#[test]
fn calls_that_find_a_queue_full_count() {
    pair(
        |b| b.depth(2).full(Full::Fail),
        |rank, ctx| {
            if rank.me == 1 {
                rank.barrier();
                return;
            }
            let (data, mut sends) = (slice(ctx, SMALL), Vec::new());
            let refused = loop {
                match ctx.isend(1, 5, &data) {
                    Ok(send) => sends.push(send),
                    Err(e) => break e,
                }
            };
            assert_eq!(refused.kind(), Kind::QueueFull, "{refused}");
            assert!(ctx.isend(1, 5, &data).is_err());
            assert_eq!(ctx.stats().of(1).retries, 2);
            assert_eq!(ctx.stats().total().retries, 2);
            rank.barrier();
        },
    );
}

#[test]
fn requests_that_reach_their_limit_count_as_timeouts_and_failures() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(2)));
        if rank.me == 1 {
            recv(&ctx, 0, 7, SMALL);
            rank.barrier();
            return;
        }
        send(&ctx, 1, 7, SMALL);
        let stream = ctx.gpu().stream().unwrap();
        let recv = ctx.irecv_on(&stream, 1, 8, &slice(&ctx, SMALL)).unwrap();
        recv.wait_on(&stream).unwrap();
        assert!(ctx.synchronize(&stream, LIMIT).is_err());
        let counts = ctx.stats().of(1);
        assert_eq!((counts.timeouts, counts.failures, counts.sends), (1, 1, 1));

        let any = ctx
            .irecv_on(&stream, Source::Any, 9, &slice(&ctx, SMALL))
            .unwrap();
        any.wait_on(&stream).unwrap();
        assert!(ctx.synchronize(&stream, LIMIT).is_err());
        let stats = ctx.stats();
        assert_eq!(stats.total().timeouts, 2, "{stats}");
        assert_eq!(stats.peers.last().unwrap().peer, None);
        rank.barrier();
    });
}

/// A stream's collective call counts for the rank that did not join it.
#[test]
fn collective_calls_that_reach_the_limit_count() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(2)));
        let mut all = ctx.collectives(8).unwrap();
        if rank.me == 0 {
            let stream = ctx.gpu().stream().unwrap();
            all.barrier_on(&stream).unwrap();
            all.barrier_on(&stream).unwrap();
            assert!(ctx.synchronize(&stream, LIMIT).is_err());
            rank.pass(secs(1));
            let counts = ctx.stats().of(1);
            assert_eq!((counts.timeouts, counts.failures), (1, 2));
        }
        rank.barrier();
    });
}
