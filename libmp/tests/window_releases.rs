//! Streams that wait for signals of ranks that are lost: they are released, and each wait without a
//! signal fails.

#[path = "common/sim.rs"]
mod sim;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use gdsync::gpu::{Condition, MemoryKind};
use mp::{Context, Kind, NULL_RANK, Window};
use sim::gate::Gate;
use sim::{Death, LIMIT, millis, pair, peer_failed, play, secs};

/// A window of all ranks, each with `len` bytes.
fn window(ctx: &Context, kind: MemoryKind, len: usize) -> Window {
    ctx.window(&ctx.alloc(kind, len).unwrap()).unwrap()
}

/// Streams that wait for different values of one word are all released when the rank dies.
#[test]
fn streams_at_one_word_are_all_released() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(5)));
        let window = window(&ctx, MemoryKind::Pinned, 64);
        let streams = [(); 4].map(|()| ctx.gpu().stream().unwrap());
        if rank.me == 0 {
            for (i, stream) in streams.iter().enumerate() {
                for value in [i as u64 + 1, i as u64 + 11] {
                    let waits = window.wait_signal_on(stream, 1, 8, Condition::Eq, value);
                    waits.unwrap();
                }
            }
        }
        rank.barrier();
        if rank.me == 1 {
            return Death::Leaves.end(rank, ctx, 2);
        }
        for stream in &streams {
            peer_failed(&ctx.synchronize(stream, LIMIT).unwrap_err(), 1);
        }
        rank.barrier();
    });
}

/// A stream that waits for a signal is released when the context is dropped.
#[test]
fn dropping_the_context_releases_streams() {
    pair(
        |b| b,
        |rank, _| {
            if rank.me == 0 {
                let own = rank.open(|b| b.name("own"));
                let window = own
                    .expose(&own.alloc(MemoryKind::Pinned, 64).unwrap())
                    .unwrap();
                let stream = own.gpu().stream().unwrap();
                let waits = window.wait_signal_on(&stream, rank.peer(), 0, Condition::Geq, 1);
                waits.unwrap();
                let e = own.close(millis(10)).unwrap_err();
                assert_eq!(e.kind(), Kind::Timeout, "{e}");
                assert!(!stream.synchronize(Duration::ZERO).unwrap());
                drop(window);
                drop(own);
                assert!(stream.synchronize(LIMIT).unwrap());
            }
            rank.barrier();
        },
    );
}

/// The signal arrives, then its rank leaves, then the stream reaches the wait: nothing has failed.
#[test]
fn a_signal_that_has_arrived_is_not_lost_with_its_rank() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b);
        let window = window(&ctx, MemoryKind::Pinned, 64);
        let geq = Condition::Geq;
        if rank.me == 1 {
            window.signal(0, 8, 1).unwrap().wait(LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
            drop(window);
            return Death::Leaves.end(rank, ctx, 0);
        }
        let stream = ctx.gpu().stream().unwrap();
        let gate = Gate::new(ctx.gpu());
        gate.hold(&stream);
        window.wait_signal_on(&stream, 1, 8, geq, 1).unwrap();
        // Rank 1 leaves.
        let e = window.wait_signal(1, 16, geq, 1, LIMIT).unwrap_err();
        peer_failed(&e, 1);
        assert_eq!(ctx.error(), None);
        gate.open();
        ctx.synchronize(&stream, LIMIT).unwrap();
        assert_eq!(ctx.error(), None);
    });
}

/// Ends two requests, so that the next two have the opposite order in the table of requests.
fn reverse_the_table(window: &Window) {
    let word = window.memory().slice(0, 8).unwrap();
    let ended = [(); 2].map(|()| window.put(NULL_RANK, 0, &word).unwrap());
    ended.into_iter().for_each(drop);
}

/// A stream waits for two values of one word, one after the other: both waits are released.
#[test]
fn waits_of_a_stream_at_one_word_are_released_in_their_order() {
    for condition in [Condition::Eq, Condition::Geq, Condition::And] {
        for reverse in [false, true] {
            play(1, 2, move |rank| {
                let ctx = rank.open(|b| b.timeout(secs(5)));
                let window = window(&ctx, MemoryKind::Pinned, 64);
                let stream = ctx.gpu().stream().unwrap();
                if rank.me == 0 {
                    if reverse {
                        reverse_the_table(&window);
                    }
                    for value in [1, 2] {
                        let waits = window.wait_signal_on(&stream, 1, 8, condition, value);
                        waits.unwrap();
                    }
                }
                rank.barrier();
                if rank.me == 1 {
                    drop(window);
                    return Death::Leaves.end(rank, ctx, 2);
                }
                peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
                rank.barrier();
            });
        }
    }
}

/// As above, when the context is dropped.
#[test]
fn dropping_the_context_releases_all_waits_of_a_stream() {
    for condition in [Condition::Eq, Condition::Geq, Condition::And] {
        for reverse in [false, true] {
            println!("{condition:?} {reverse}");
            pair(
                |b| b,
                move |rank, _| {
                    if rank.me == 0 {
                        let own = rank.open(|b| b.name("own"));
                        let memory = own.alloc(MemoryKind::Pinned, 64).unwrap();
                        let window = own.expose(&memory).unwrap();
                        let stream = own.gpu().stream().unwrap();
                        if reverse {
                            reverse_the_table(&window);
                        }
                        for value in [1, 2] {
                            let waits = window.wait_signal_on(&stream, 1, 8, condition, value);
                            waits.unwrap();
                        }
                        drop(window);
                        drop(own);
                        assert!(stream.synchronize(LIMIT).unwrap());
                    }
                    rank.barrier();
                },
            );
        }
    }
}

/// The signal has arrived, and other work of the stream precedes the wait: the stream waits for no
/// signal.
#[test]
fn a_signal_that_has_arrived_is_not_reported_as_missing() {
    let run = pair(
        |b| b.timeout(secs(30)).watchdog(secs(1)),
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Pinned, 64);
            let signal = window.signal(rank.peer(), 8, 1).unwrap();
            window
                .wait_signal(rank.peer(), 8, Condition::Eq, 1, LIMIT)
                .unwrap();
            signal.wait(LIMIT).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            let gate = Gate::new(ctx.gpu());
            gate.hold(&stream);
            let waits = window.wait_signal_on(&stream, rank.peer(), 8, Condition::Eq, 1);
            waits.unwrap();
            rank.pass(secs(3));
            assert_eq!(ctx.stuck(), []);
            gate.open();
            ctx.synchronize(&stream, LIMIT).unwrap();
        },
    );
    assert_eq!(run.warnings.all().len(), 0, "{:?}", run.warnings.all());
}

/// The value that releases one stream from a lost rank is no signal for other waits at the word.
#[test]
fn release_of_one_wait_is_no_signal_for_others() {
    for values in [[1, 1], [2, 1], [1, 2]] {
        play(1, 2, move |rank| {
            let ctx = rank.open(|b| b.timeout(secs(5)));
            let window = window(&ctx, MemoryKind::Pinned, 64);
            let geq = Condition::Geq;
            let streams = [(); 3].map(|()| ctx.gpu().stream().unwrap());
            if rank.me == 0 {
                for (stream, value) in streams.iter().zip(values) {
                    window.wait_signal_on(stream, 1, 8, geq, value).unwrap();
                }
            }
            rank.barrier();
            if rank.me == 1 {
                drop(window);
                return Death::Leaves.end(rank, ctx, 2);
            }
            for stream in &streams[..2] {
                peer_failed(&ctx.synchronize(stream, LIMIT).unwrap_err(), 1);
            }
            let e = window.wait_signal(1, 8, geq, 1, LIMIT).unwrap_err();
            peer_failed(&e, 1);
            let e = window.wait_signal_on(&streams[2], 1, 8, geq, 1);
            peer_failed(&e.unwrap_err(), 1);
            rank.barrier();
        });
    }
}

/// Rank 1 stores increasing values into two words and leaves. Streams of rank 0, some of them held
/// at first, wait for values that were stored and for others: every stream continues, and fails
/// exactly if one of its values was not stored.
#[test]
fn random_waits_fail_exactly_if_their_value_was_not_stored() {
    for seed in 0..200 {
        play(seed, 2, move |rank| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let ctx = rank.open(|b| b);
            let window = window(&ctx, MemoryKind::Pinned, 64);
            let last = [rng.u64(0..6), rng.u64(0..6)];
            let pause = |rng: &mut fastrand::Rng| {
                let time = rng.u64(0..1000);
                rank.pass(Duration::from_micros(time));
            };
            if rank.me == 1 {
                for (word, last) in last.into_iter().enumerate() {
                    for value in 1..=last {
                        drop(window.signal(0, 8 * word, value).unwrap());
                        pause(&mut rng);
                    }
                }
                window.quiet(LIMIT).unwrap();
                drop(window);
                return Death::Leaves.end(rank, ctx, 0);
            }
            for _ in 0..rng.u8(0..3) {
                reverse_the_table(&window);
            }
            let streams = [(); 3].map(|()| ctx.gpu().stream().unwrap());
            let gate = Gate::new(ctx.gpu());
            let held = streams.iter().filter(|_| rng.bool());
            held.for_each(|stream| gate.hold(stream));
            let mut stored = [true; 3];
            for _ in 0..rng.u8(1..8) {
                let (at, word, value) = (rng.usize(0..3), rng.usize(0..2), rng.u64(1..8));
                let waits = window.wait_signal_on(&streams[at], 1, 8 * word, Condition::Geq, value);
                match waits {
                    Ok(()) => stored[at] &= value <= last[word],
                    // The rank was lost before.
                    Err(_) => assert!(value > last[word]),
                }
                pause(&mut rng);
            }
            gate.open();
            for (stream, stored) in streams.iter().zip(stored) {
                let end = ctx.synchronize(stream, LIMIT);
                assert_eq!(end.is_ok(), stored, "{end:?}");
                assert!(stream.synchronize(Duration::ZERO).unwrap());
            }
            rank.until("rank 1 leaves", || rank.has_come(1, 1));
        });
    }
}

/// The value that released a stream from a lost rank is a signal when a living rank stores it later:
/// into the same window, into another one over the same memory, or into memory at the same address.
#[test]
fn the_value_of_a_release_is_a_signal_when_a_rank_stores_it_later() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Then {
        SameWindow,
        OtherWindow,
        OtherMemory,
    }
    for then in [Then::SameWindow, Then::OtherWindow, Then::OtherMemory] {
        println!("{then:?}");
        let record = Rc::new(RefCell::new(Vec::new()));
        play(1, 3, move |rank| {
            let ctx = rank.open(|b| b.timeout(secs(5)));
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let mut window = ctx.window(&memory).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            if rank.me == 0 {
                let waits = window.wait_signal_on(&stream, 2, 8, Condition::Geq, 7);
                waits.unwrap();
            }
            rank.barrier();
            if rank.me == 2 {
                drop(window);
                return Death::Leaves.end(rank, ctx, 5);
            }
            if rank.me == 0 {
                peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 2);
            }
            memory.write(8, &[0; 8]).unwrap();
            if then == Then::SameWindow {
                let e = window.wait_signal(1, 8, Condition::Geq, 7, millis(1));
                assert_eq!(e.unwrap_err().kind(), Kind::Timeout);
            } else {
                let memory = match then {
                    Then::OtherMemory => {
                        let before = memory.region().addr();
                        drop((window, memory));
                        rank.pass(millis(100));
                        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
                        println!("{before:?} {:?}", memory.region().addr());
                        memory
                    }
                    _ => memory,
                };
                window = ctx.expose(&memory).unwrap();
                if rank.me == 0 {
                    *record.borrow_mut() = window.record();
                }
                rank.barrier();
                if rank.me == 1 {
                    window.attach(&record.borrow()).unwrap();
                }
            }
            rank.barrier();
            if rank.me == 1 {
                window.signal(0, 8, 7).unwrap().wait(LIMIT).unwrap();
            }
            rank.barrier();
            if rank.me == 0 {
                window.wait_signal(1, 8, Condition::Geq, 7, LIMIT).unwrap();
            }
            rank.barrier();
        });
    }
}
