//! Windows that fail: refused arguments, ranks that do not take part or die, signals that do not
//! arrive, memory that is released.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use gdsync::gpu::{Condition, MemoryKind};
use mp::{Context, Kind, Memory, NULL_RANK, Window};
use sim::{Death, LIMIT, millis, pair, peer_failed, play, secs};

/// Layout of the windows: data, and words behind them.
const ROOM: usize = 40_000;
const SIGNAL: usize = ROOM;
const ACK: usize = ROOM + 8;
const COUNTER: usize = ROOM + 16;
const LEN: usize = ROOM + 64;

fn bytes(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

/// A window of all ranks, each with `len` bytes.
fn window(ctx: &Context, kind: MemoryKind, len: usize) -> Window {
    ctx.window(&ctx.alloc(kind, len).unwrap()).unwrap()
}

#[test]
fn bad_arguments_are_refused_and_nothing_is_posted() {
    pair(
        |b| b,
        |rank, ctx| {
            let (peer, me) = (rank.peer(), rank.me);
            // The windows have different lengths.
            let len = 4096 + 64 * me as usize;
            let window = window(ctx, MemoryKind::Pinned, len);
            let theirs = 4096 + 64 * peer as usize;
            assert_eq!(window.len_of(peer), Some(theirs as u64));
            let stream = ctx.gpu().stream().unwrap();
            let slice = |len| ctx.alloc(MemoryKind::Pinned, len).unwrap().all();
            let (small, large) = (slice(8), slice(8192));
            let past = |e: mp::Result<mp::Request>| {
                let e = e.map(drop).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(peer)), "{e}");
                assert_eq!(e.limit(), Some(theirs as u64), "{e}");
                e.to_string()
            };
            let e = past(window.put(peer, theirs - 7, &small));
            let expected = format!(
                "put: 8 bytes at offset {} exceed the window of rank {peer} (limit {theirs} bytes)",
                theirs - 7
            );
            assert_eq!(e, expected);
            past(window.put(peer, 0, &large));
            past(window.put(peer, usize::MAX - 3, &small));
            past(window.put_on(&stream, peer, theirs, &small));
            past(window.get(peer, theirs - 7, &small));
            past(window.get_on(&stream, peer, theirs - 7, &small));
            past(window.put_signal(peer, 0, &small, theirs, 1));
            past(window.signal(peer, theirs, 1));
            past(window.signal_on(&stream, peer, theirs, 1));
            past(window.fetch_add(peer, theirs, 1, &small));
            past(window.compare_swap_on(&stream, peer, theirs, 1, 2, &small));
            // Not aligned.
            for e in [
                window.signal(peer, 4, 1),
                window.put_signal(peer, 0, &small, 12, 1),
                window.fetch_add(peer, 1, 1, &small),
                window.fetch_add(peer, 0, 1, &large),
                window.put(2, 0, &small),
            ] {
                assert_eq!(e.map(drop).unwrap_err().kind(), Kind::Invalid);
            }
            let geq = Condition::Geq;
            for (from, offset) in [(peer, 4), (peer, len), (2, 0)] {
                let e = window.wait_signal(from, offset, geq, 1, LIMIT).unwrap_err();
                assert_eq!(e.kind(), Kind::Invalid, "{e}");
                let e = window.wait_signal_on(&stream, from, offset, geq, 1);
                assert_eq!(e.unwrap_err().kind(), Kind::Invalid);
            }
            // Memory of another context, and shorter than a word.
            let other = rank.open(|b| b.name("other"));
            let foreign = other.alloc(MemoryKind::Pinned, 64).unwrap();
            let e = window.put(peer, 0, &foreign.all()).map(drop).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
            let e = ctx.expose(&foreign).map(drop).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
            let short = ctx.alloc(MemoryKind::Pinned, 7).unwrap();
            let e = ctx.expose(&short).map(drop).unwrap_err();
            assert_eq!((e.kind(), e.limit()), (Kind::Invalid, Some(8)), "{e}");
            assert!(ctx.synchronize(&stream, LIMIT).is_ok());
            // All of it was refused: the window still works.
            window
                .put(peer, theirs - 8, &small)
                .unwrap()
                .wait(LIMIT)
                .unwrap();
            ctx.close(LIMIT).unwrap();
            rank.barrier();
            assert!(bytes(window.memory(), 0, 64).iter().all(|byte| *byte == 0));
        },
    );
}

/// One rank does not call `Context::window`: the others name it, within the timeout.
#[test]
fn the_rank_that_does_not_take_part_is_named() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(3)));
        if rank.me != 1 {
            let start = rank.host.now();
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let e = ctx.window(&memory).map(drop).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(1)), "{e}");
            assert!(
                e.to_string()
                    .contains("rank 1 did not make the window within 3 s"),
                "{e}"
            );
            assert!(rank.host.now().since(start) < secs(4));
        }
        rank.barrier();
    });
}

/// One rank dies before it makes the window.
#[test]
fn the_dead_rank_of_a_collective_call_is_named() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(30)));
        if rank.me == 1 {
            return Death::Leaves.end(rank, ctx, 1);
        }
        let start = rank.host.now();
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let e = ctx.window(&memory).map(drop).unwrap_err();
        peer_failed(&e, 1);
        assert!(rank.host.now().since(start) < secs(20));
        rank.barrier();
    });
}

/// A rank dies while others put to it and wait for its signals: every call and every stream gets
/// an error that names it, and the window still serves the survivors.
#[test]
fn the_death_of_a_rank_is_an_error_that_names_it() {
    for death in Death::ALL {
        println!("{death:?}");
        play(1, 3, move |rank| {
            let ctx = rank.open(|b| death.build_one_sided(b).timeout(secs(5)));
            let window = window(&ctx, MemoryKind::Pinned, LEN);
            let [stream, other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let data = ctx.alloc(MemoryKind::Pinned, 64).unwrap().all();
            // All connections are open.
            for to in 0..3 {
                window.put(to, 0, &data).unwrap().wait(LIMIT).unwrap();
                let put = window.put_on(&stream, to, 0, &data).unwrap();
                put.wait(LIMIT).unwrap();
            }
            let geq = Condition::Geq;
            if rank.me != 1 {
                window.wait_signal_on(&stream, 1, SIGNAL, geq, 1).unwrap();
            }
            let with = if rank.me == 0 { 2 } else { 0 };
            let prepare = |to| window.prepare_put(to, 0, &data).unwrap();
            let [late, survives] = [1, with].map(prepare);
            rank.barrier();
            if rank.me == 1 {
                // A request and a window hold their context.
                drop((late, survives));
                drop(window);
                return death.end(rank, ctx, 2);
            }
            // A frozen rank is given up by the timeout of the stream's wait.
            let e = window.wait_signal(1, ACK, geq, 1, LIMIT);
            peer_failed(&e.unwrap_err(), 1);
            peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
            assert!(ctx.error().is_some());
            for e in [
                window.put(1, 0, &data).map(drop),
                window.put_on(&other, 1, 0, &data).map(drop),
                window.get(1, 0, &data).map(drop),
                window.signal(1, 0, 1).map(drop),
                window
                    .fetch_add(1, 0, 1, &data.memory().slice(0, 8).unwrap())
                    .map(drop),
                window.fence(1),
                window.quiet(LIMIT),
                window.quiet_on(&stream),
                window.wait_signal(1, ACK, geq, 1, LIMIT),
                window.wait_signal_on(&other, 1, ACK, geq, 1),
                window.prepare_put(1, 0, &data).map(drop),
                late.post(),
                late.post_on(&stream),
            ] {
                peer_failed(&e.unwrap_err(), 1);
            }
            // Neither request of the list is posted.
            let list = [survives, late];
            peer_failed(&ctx.post_all_on(&other, &list).unwrap_err(), 1);
            assert_eq!(list[0].test().unwrap_err().kind(), Kind::NoSuchRequest);
            list[0].post_on(&other).unwrap();
            list[0].wait(LIMIT).unwrap();
            drop(list);
            // The survivors.
            let with = 2 - rank.me;
            let put = window.put_signal_on(&other, with, 0, &data, COUNTER, 1);
            put.unwrap().wait(LIMIT).unwrap();
            window
                .wait_signal_on(&other, with, COUNTER, geq, 1)
                .unwrap();
            ctx.synchronize(&other, LIMIT).unwrap();
            rank.barrier();
        });
    }
}

/// Puts `data` to rank `with` and waits for its signals, on a stream and by the CPU, until a call
/// fails; `with` does the same.
fn talk_until_it_fails(ctx: &Context, window: &Window, with: u32) -> mp::Error {
    let me = ctx.rank() as usize;
    let stream = ctx.gpu().stream().unwrap();
    let data = ctx.alloc(MemoryKind::Pinned, ROOM / 4).unwrap().all();
    let [mine, theirs] = [me, with as usize].map(|rank| SIGNAL + 8 * rank);
    let geq = Condition::Geq;
    let round = |round: u64| {
        drop(window.put_on(&stream, with, ROOM / 4 * me, &data)?);
        drop(window.put_signal_on(&stream, with, ROOM / 4 * me, &data, mine, 2 * round + 1)?);
        window.wait_signal_on(&stream, with, theirs, geq, 2 * round + 1)?;
        window.quiet_on(&stream)?;
        if round % 4 == 3 {
            ctx.synchronize(&stream, LIMIT)?;
        }
        drop(window.put_signal(with, ROOM / 4 * me, &data, mine, 2 * round + 2)?);
        window.wait_signal(with, theirs, geq, 2 * round + 2, LIMIT)?;
        window.get(with, 0, &data)?.wait(LIMIT).map(drop)
    };
    let e = (0..).find_map(|i| round(i).err()).unwrap();
    // No stream is left behind.
    assert!(stream.synchronize(LIMIT).unwrap());
    e
}

/// A rank dies at any moment of an exchange.
#[test]
fn a_rank_may_die_at_any_moment() {
    for seed in 0..40 {
        let death = Death::ALL[seed as usize % 4];
        play(seed, 3, move |rank| {
            let ctx = rank.open(|b| death.build_one_sided(b).timeout(secs(2)));
            let window = window(&ctx, MemoryKind::Pinned, LEN);
            if rank.me == 1 {
                let when = fastrand::Rng::with_seed(seed).u64(0..3_000_000);
                let end = rank.host.now() + Duration::from_nanos(when);
                let (stream, geq) = (ctx.gpu().stream().unwrap(), Condition::Geq);
                let data = ctx.alloc(MemoryKind::Pinned, ROOM / 4).unwrap().all();
                let mut round = 0;
                while rank.host.now() < end {
                    round += 1;
                    for with in [0, 2] {
                        let place = ROOM / 4;
                        let put =
                            window.put_signal_on(&stream, with, place, &data, SIGNAL + 8, round);
                        drop(put.unwrap());
                    }
                    for with in [0, 2] {
                        let word = SIGNAL + 8 * with as usize;
                        window
                            .wait_signal_on(&stream, with, word, geq, round)
                            .unwrap();
                    }
                    while !stream.synchronize(Duration::ZERO).unwrap() && rank.host.now() < end {
                        rank.pass(Duration::from_micros(5));
                    }
                }
                // A window holds its context.
                drop(window);
                return death.end(rank, ctx, 2);
            }
            peer_failed(&talk_until_it_fails(&ctx, &window, 1), 1);
            rank.barrier();
            // The survivors continue.
            let (with, geq) = (2 - rank.me, Condition::Geq);
            drop(window.signal(with, COUNTER + 16, 1).unwrap());
            window
                .wait_signal(with, COUNTER + 16, geq, 1, LIMIT)
                .unwrap();
            rank.barrier();
        });
    }
}

/// A signal that never comes from a rank that lives: the timeout releases the stream.
#[test]
fn a_stream_that_waits_for_a_signal_has_a_timeout() {
    let run = pair(
        |b| b.timeout(secs(3)).watchdog(secs(1)),
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Device, 64);
            if rank.me == 0 {
                let stream = ctx.gpu().stream().unwrap();
                let waits = window.wait_signal_on(&stream, 1, 8, Condition::Eq, 7);
                waits.unwrap();
                rank.pass(secs(2));
                let stuck = ctx.stuck();
                assert_eq!(stuck.len(), 1, "{stuck:?}");
                assert!(stuck[0].what.contains("no signal"), "{}", stuck[0]);
                let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
                peer_failed(&e, 1);
                assert!(
                    e.to_string().contains("no signal has arrived within 3 s"),
                    "{e}"
                );
                assert!(e.to_string().contains("offset 8"), "{e}");
            }
            rank.barrier();
        },
    );
    assert!(!run.warnings.all().is_empty());
}

/// The target drops its window while the origin still puts to it: the key is invalid there.
#[test]
fn a_put_to_memory_that_is_released_fails() {
    pair(
        |b| b.timeout(secs(5)),
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Pinned, 64);
            let data = ctx.alloc(MemoryKind::Pinned, 64).unwrap().all();
            rank.barrier();
            if rank.me == 1 {
                drop(window);
                rank.barrier();
            } else {
                rank.barrier();
                // On mapped memory, the release must be known here.
                rank.pass(millis(500));
                let put = window.put(1, 0, &data);
                peer_failed(&put.and_then(|put| put.wait(LIMIT)).unwrap_err(), 1);
            }
            rank.barrier();
        },
    );
}

/// Operations on the null rank end at once, change nothing, and are checked.
#[test]
fn operations_on_the_null_rank_end_at_once() {
    play(1, 1, |rank| {
        let ctx = rank.open(|b| b);
        let window = window(&ctx, MemoryKind::Pinned, 64);
        let stream = ctx.gpu().stream().unwrap();
        let data = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        data.write(0, &[7; 8]).unwrap();
        let (slice, geq) = (data.all(), Condition::Geq);
        for request in [
            window.put(NULL_RANK, 1 << 40, &slice),
            window.put_on(&stream, NULL_RANK, 0, &slice),
            window.put_signal(NULL_RANK, 0, &slice, 8, 1),
            window.put_signal_on(&stream, NULL_RANK, 0, &slice, 8, 1),
            window.signal(NULL_RANK, 0, 1),
            window.signal_on(&stream, NULL_RANK, 0, 1),
            window.get(NULL_RANK, 0, &slice),
            window.get_on(&stream, NULL_RANK, 0, &slice),
            window.fetch_add(NULL_RANK, 0, 1, &slice),
            window.compare_swap_on(&stream, NULL_RANK, 0, 1, 2, &slice),
        ] {
            let request = request.unwrap();
            assert!(format!("{request:?}").contains("the null rank"));
            request.wait_on(&stream).unwrap();
            let done = request.wait(Duration::ZERO).unwrap();
            assert_eq!((done.peer, done.tag, done.len), (NULL_RANK, 0, 0));
        }
        window.fence(NULL_RANK).unwrap();
        window.fence_on(&stream, NULL_RANK).unwrap();
        let at_once = window.wait_signal(NULL_RANK, 8, geq, 1, Duration::ZERO);
        at_once.unwrap();
        window
            .wait_signal_on(&stream, NULL_RANK, 8, geq, 1)
            .unwrap();
        ctx.synchronize(&stream, LIMIT).unwrap();
        window.quiet(LIMIT).unwrap();
        assert_eq!(bytes(&data, 0, 8), [7; 8]);
        assert_eq!(bytes(window.memory(), 0, 64), [0; 64]);
        assert_eq!(window.len_of(NULL_RANK), None);

        // The memory of this rank is checked.
        let other = rank.open(|b| b.name("other"));
        let foreign = other.alloc(MemoryKind::Pinned, 8).unwrap().all();
        for refused in [
            window.put(NULL_RANK, 0, &foreign).map(drop),
            window
                .fetch_add(
                    NULL_RANK,
                    0,
                    1,
                    &ctx.alloc(MemoryKind::Pinned, 16).unwrap().all(),
                )
                .map(drop),
            window.wait_signal(NULL_RANK, 64, geq, 1, LIMIT),
            window.wait_signal_on(&stream, NULL_RANK, 4, geq, 1),
        ] {
            let e = refused.unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
        }
        ctx.close(LIMIT).unwrap();
        rank.leave();
    });
}

/// A long put of a rank to itself ends although the window is dropped.
#[test]
fn a_put_to_itself_ends_after_its_window_is_dropped() {
    play(1, 1, |rank| {
        let ctx = rank.open(|b| b);
        let len = 8 << 20;
        let window = window(&ctx, MemoryKind::Pinned, len);
        let data = ctx.alloc(MemoryKind::Pinned, len).unwrap().all();
        let put = window.put(0, 0, &data).unwrap();
        drop(window);
        put.wait(LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
        rank.leave();
    });
}
