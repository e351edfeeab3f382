//! Waits for words of registered memory, and ready words: bad arguments, ranks that are lost, and
//! the order of ready words. `conformance` has every condition over every runtime.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use gdsync::gpu::{Condition, MemoryKind};
use mp::{Kind, NULL_RANK, Result};
use sim::{Death, LIMIT, millis, pair, peer_failed, play, secs, slice};

const GEQ: Condition = Condition::Geq;

fn kind<T>(result: Result<T>) -> Kind {
    let e = result.map(drop).unwrap_err();
    println!("{e}");
    e.kind()
}

#[test]
fn words_that_are_none_are_refused() {
    pair(
        |b| b,
        |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let other = rank.open(|b| b.name("other"));
            let foreign = other.alloc(MemoryKind::Pinned, 64).unwrap();
            for (bad, value, why) in [
                (memory.slice(4, 8), 1, "not aligned to 8 bytes"),
                (memory.slice(2, 4), 1, "not aligned to 4 bytes"),
                (memory.slice(0, 0), 1, "not a word"),
                (memory.slice(0, 2), 1, "not a word"),
                (memory.slice(0, 16), 1, "not a word"),
                (
                    memory.slice(0, 4),
                    1 << 32,
                    "does not fit a word of 32 bits",
                ),
                (foreign.slice(0, 8), 1, "another context"),
            ] {
                let bad = bad.unwrap();
                for refused in [
                    ctx.wait_value(None, &bad, GEQ, value, LIMIT),
                    ctx.wait_value_on(&stream, None, &bad, GEQ, value),
                    ctx.write_value_on(&stream, &bad, value),
                ] {
                    let e = refused.unwrap_err();
                    assert_eq!(e.kind(), Kind::Invalid, "{e}");
                    assert!(e.to_string().contains(why), "{e}");
                }
            }
            assert_eq!(kind(memory.slice(60, 8)), Kind::Invalid);
            let word = memory.slice(8, 8).unwrap();
            for refused in [
                ctx.wait_value(2, &word, GEQ, 1, LIMIT),
                ctx.wait_value_on(&stream, 2, &word, GEQ, 1),
                ctx.wait_ready(2, LIMIT),
                ctx.wait_ready_on(&stream, 2),
                ctx.test_ready(2).map(drop),
                ctx.send_ready(2),
                ctx.send_ready_on(&stream, 2),
            ] {
                let e = refused.unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(2)), "{e}");
            }
            // A stream of another GPU.
            let place = rank.place(Default::default(), true);
            let far = place.gpu.stream().unwrap();
            for refused in [
                ctx.wait_value_on(&far, None, &word, GEQ, 1),
                ctx.wait_value_on(&far, rank.peer(), &word, GEQ, 1),
                ctx.write_value_on(&far, &word, 1),
                ctx.wait_ready_on(&far, rank.peer()),
                ctx.send_ready_on(&far, rank.peer()),
            ] {
                assert_eq!(kind(refused), Kind::Gdsync(gdsync::Kind::Foreign));
            }
            // The null rank stores nothing: there is no wait.
            ctx.wait_value(NULL_RANK, &word, GEQ, 1, millis(1)).unwrap();
            ctx.wait_value_on(&stream, NULL_RANK, &word, GEQ, 1)
                .unwrap();
            ctx.send_ready(NULL_RANK).unwrap();
            ctx.wait_ready(NULL_RANK, millis(1)).unwrap();
            ctx.wait_ready_on(&stream, NULL_RANK).unwrap();
            assert!(ctx.test_ready(NULL_RANK).unwrap());
            // All of it was refused: nothing waits, and nothing was stored.
            ctx.synchronize(&stream, LIMIT).unwrap();
            assert_eq!(memory.region().word64(8).unwrap().load().unwrap(), 0);
            rank.barrier();
        },
    );
}

/// A word of memory that is registered on the fly, and one of GPU memory that another rank puts to.
#[test]
fn any_registered_word_can_be_waited_for() {
    pair(
        |b| b,
        |rank, ctx| {
            let (stream, other) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
            let own: &'static mut [u32; 4] = Box::leak(Box::new([0; 4]));
            let addr = gdsync::gpu::DevicePtr(own.as_ptr() as u64 + 4);
            // SAFETY: the memory is leaked, and no reference to it is used from here on.
            let narrow = unsafe { ctx.slice_at(addr, 4) }.unwrap();
            ctx.wait_value_on(&stream, None, &narrow, Condition::Eq, 7)
                .unwrap();
            ctx.write_value_on(&other, &narrow, 7).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            ctx.wait_value(None, &narrow, Condition::And, 4, LIMIT)
                .unwrap();

            let memory = ctx.alloc(MemoryKind::Device, 64).unwrap();
            let window = ctx.window(&memory).unwrap();
            let data = slice(ctx, 32);
            data.memory().write(0, &[9; 32]).unwrap();
            let word = memory.slice(40, 8).unwrap();
            let put = window.put_signal(rank.peer(), 0, &data, 40, 3).unwrap();
            ctx.wait_value_on(&stream, rank.peer(), &word, Condition::Eq, 3)
                .unwrap();
            ctx.wait_value(rank.peer(), &word, Condition::Eq, 3, LIMIT)
                .unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            let mut bytes = [0; 32];
            memory.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, [9; 32]);
            put.wait(LIMIT).unwrap();
            rank.barrier();
        },
    );
}

#[test]
fn a_wait_for_a_word_ends_with_the_rank_that_stores_it() {
    for death in Death::ALL {
        for bytes in [4, 8] {
            play(1, 2, move |rank| {
                let ctx = rank.open(|b| b.timeout(secs(2)));
                let stream = ctx.gpu().stream().unwrap();
                let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
                let (word, after) = (memory.slice(0, bytes).unwrap(), memory.slice(8, 8).unwrap());
                sim::exchange(&ctx, rank.peer(), 1);
                if rank.me == 1 {
                    rank.barrier();
                    return death.end(rank, ctx, 2);
                }
                let and = Condition::And;
                ctx.wait_value_on(&stream, 1, &word, and, 4).unwrap();
                rank.barrier();
                ctx.write_value_on(&stream, &after, 1).unwrap();
                peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
                ctx.wait_value(None, &after, Condition::Eq, 1, LIMIT)
                    .unwrap();
                let far = memory.slice(16, bytes).unwrap();
                for e in [
                    ctx.wait_value(1, &far, GEQ, 1, LIMIT),
                    ctx.wait_value_on(&stream, 1, &far, GEQ, 1),
                    ctx.wait_ready(1, LIMIT),
                    ctx.wait_ready_on(&stream, 1),
                    ctx.test_ready(1).map(drop),
                    ctx.send_ready(1),
                    ctx.send_ready_on(&stream, 1),
                ] {
                    peer_failed(&e.unwrap_err(), 1);
                }
                // The value of the release is no store of the rank. Another value is.
                let e = ctx.wait_value(1, &word, Condition::And, 4, LIMIT);
                peer_failed(&e.unwrap_err(), 1);
                memory.write(0, &5_u64.to_le_bytes()[..bytes]).unwrap();
                ctx.wait_value(1, &word, Condition::And, 4, LIMIT).unwrap();
                rank.come();
            });
        }
    }
}

#[test]
fn a_word_that_is_not_stored_is_a_timeout_that_names_it() {
    pair(
        |b| b,
        |rank, ctx| {
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            memory.write(4, &5_u32.to_ne_bytes()).unwrap();
            let word = memory.slice(4, 4).unwrap();
            let e = ctx
                .wait_value(None, &word, Condition::Eq, 6, millis(5))
                .unwrap_err();
            let reason = "the word at offset 4 of";
            assert_eq!((e.kind(), e.rank()), (Kind::Timeout, None), "{e}");
            assert!(
                e.to_string().contains(reason) && e.to_string().contains("is 0x5"),
                "{e}"
            );
            for e in [
                ctx.wait_value(rank.peer(), &word, Condition::Eq, 6, millis(5)),
                ctx.wait_ready(rank.peer(), millis(5)),
            ] {
                let e = e.unwrap_err();
                assert_eq!(
                    (e.kind(), e.rank()),
                    (Kind::Timeout, Some(rank.peer())),
                    "{e}"
                );
            }
            assert!(!ctx.test_ready(rank.peer()).unwrap());
            rank.barrier();
        },
    );
}

/// Ready words around a ring of ranks, by the CPU and on streams, from counts that wrap.
#[test]
fn each_ready_word_satisfies_one_wait() {
    for (seed, ranks, start) in [(1, 1, 0), (2, 2, 3), (3, 3, 0), (4, 3, 7)] {
        for by_stream in [false, true] {
            play(seed, ranks, move |rank| {
                let ctx = rank.open(|b| b.start(start));
                let stream = ctx.gpu().stream().unwrap();
                let (to, from) = rank.neighbours();
                for round in 0..10 {
                    let burst = 1 + round % 3;
                    for _ in 0..burst {
                        match by_stream {
                            true => ctx.send_ready_on(&stream, to).unwrap(),
                            false => ctx.send_ready(to).unwrap(),
                        }
                    }
                    for i in 0..burst {
                        match (by_stream, i) {
                            (true, _) => ctx.wait_ready_on(&stream, from).unwrap(),
                            (false, 0) => ctx.wait_ready(from, LIMIT).unwrap(),
                            (false, _) => {
                                rank.until("a ready word", || ctx.test_ready(from).unwrap())
                            }
                        }
                    }
                    ctx.synchronize(&stream, LIMIT).unwrap();
                    rank.barrier();
                    // None is left.
                    assert!(!ctx.test_ready(from).unwrap());
                    let e = ctx.wait_ready(from, Duration::ZERO).unwrap_err();
                    assert_eq!(e.kind(), Kind::Timeout, "{e}");
                    rank.barrier();
                }
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            });
        }
    }
}

/// Two origins of ready words to one rank: the second is refused until the word of the first is
/// sent, since it could overtake it.
#[test]
fn ready_words_of_two_origins_do_not_overtake() {
    pair(
        |b| b,
        |rank, ctx| {
            let gate = ctx.alloc(MemoryKind::Pinned, 8).unwrap().all();
            let streams = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let peer = rank.peer();
            ctx.wait_value_on(&streams[0], None, &gate, GEQ, 1).unwrap();
            ctx.send_ready_on(&streams[0], peer).unwrap();
            for e in [ctx.send_ready(peer), ctx.send_ready_on(&streams[1], peer)] {
                let e = e.unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Busy, Some(peer)), "{e}");
            }
            ctx.send_ready_on(&streams[0], peer).unwrap();
            ctx.write_value_on(&streams[1], &gate, 1).unwrap();
            ctx.synchronize(&streams[0], LIMIT).unwrap();
            rank.until("the word is sent", || ctx.send_ready(peer).is_ok());
            for _ in 0..3 {
                ctx.wait_ready(peer, LIMIT).unwrap();
            }
            assert!(!ctx.test_ready(peer).unwrap());
            rank.barrier();
        },
    );
}

/// The first ready word needs only the background work of the other rank.
#[test]
fn ready_words_need_no_call_of_the_other_rank() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(1)));
        if rank.me == 0 {
            for _ in 0..3 {
                ctx.send_ready(1).unwrap();
            }
        }
        rank.barrier();
        if rank.me == 1 {
            for _ in 0..3 {
                ctx.wait_ready(0, LIMIT).unwrap();
            }
        }
        rank.barrier();
    });
    play(1, 2, |rank| {
        // Without background work it does not answer.
        let ctx = match rank.me {
            0 => rank.open(|b| b.timeout(secs(1))),
            _ => rank.open_manual(|b| b),
        };
        if rank.me == 0 {
            let e = ctx.send_ready(1).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)), "{e}");
        }
        rank.barrier();
    });
}

/// A rank dies before it has answered the first ready word to it, or without ever having been asked.
#[test]
fn the_first_ready_word_with_a_rank_that_dies_is_an_error_in_time() {
    for death in Death::ALL {
        for manual in [false, true] {
            for delay in [0, 1, 200] {
                println!("{death:?} {manual} {delay}");
                play(delay, 2, move |rank| {
                    let timeout = secs(2);
                    // A rank that does no background work answers nothing.
                    let ctx = match rank.me == 1 && manual {
                        true => rank.open_manual(|b| b.timeout(timeout)),
                        false => rank.open(|b| b.timeout(timeout)),
                    };
                    rank.barrier();
                    if rank.me == 1 {
                        rank.pass(Duration::from_micros(delay));
                        return death.end(rank, ctx, 2);
                    }
                    let stream = ctx.gpu().stream().unwrap();
                    for round in 0..2 {
                        let in_time = |e: mp::Error| {
                            let lost = matches!(e.kind(), Kind::PeerFailed(_) | Kind::Timeout);
                            assert!(lost && e.rank() == Some(1), "{e}");
                        };
                        let start = rank.host.now();
                        if let Ok(come) = ctx.test_ready(1).map_err(in_time) {
                            assert!(!come);
                        }
                        // A rank whose NIC is cut answers, and the ready word to it fails later.
                        ctx.send_ready(1).map_err(in_time).ok();
                        match ctx.send_ready_on(&stream, 1) {
                            Err(e) if e.kind() == Kind::Busy => {}
                            sent => drop(sent.map_err(in_time)),
                        }
                        let e = ctx.wait_ready(1, secs(1)).unwrap_err();
                        in_time(e);
                        if let Err(e) = ctx.wait_ready_on(&stream, 1) {
                            in_time(e);
                        } else {
                            in_time(ctx.synchronize(&stream, secs(20)).unwrap_err());
                        }
                        let took = rank.host.now().since(start);
                        assert!(took < secs(10), "round {round}: {took:?}");
                    }
                    rank.come();
                });
            }
        }
    }
}
