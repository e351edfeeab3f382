//! Windows: puts, gets, signals and atomics by the CPU and by streams, to other ranks and to the
//! rank itself, over NICs that place WRITEs in order and out of order.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::soft::{SoftOptions, Weak};
use gdsync::gpu::{Condition, MemoryKind};
use mp::{Context, Kind, Memory, Path, PathChoice, Window};
use sim::{LIMIT, Rank, millis, pair, play};
use vmlx5::fabric::faults::Faults;

/// Layout of the windows: data, and words behind them.
const ROOM: usize = 40_000;
const SIGNAL: usize = ROOM;
const ACK: usize = ROOM + 8;
const COUNTER: usize = ROOM + 16;
const LEN: usize = ROOM + 64;

/// A context whose NIC delays this share of the pieces of WRITEs.
fn open(rank: &Rank, ooo: f64) -> Context {
    let faults = Faults {
        seed: rank.me.into(),
        ooo,
        ..Faults::default()
    };
    let place = rank.place_with(SoftOptions::default(), true, faults);
    rank.open_at(&place, |b| b)
}

fn bytes(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

fn word(memory: &Memory, at: usize) -> u64 {
    memory.region().word64(at).unwrap().load().unwrap()
}

/// A window of all ranks, each with `len` bytes.
fn window(ctx: &Context, kind: MemoryKind, len: usize) -> Window {
    ctx.window(&ctx.alloc(kind, len).unwrap()).unwrap()
}

/// Puts of several lengths to `to`, each with a signal that `to` waits for; this rank does the same
/// for `from`. The next round begins when the target has acknowledged the bytes by a signal.
fn exchange(ctx: &Context, kind: MemoryKind, by_stream: bool, to: u32, from: u32) {
    let window = window(ctx, kind, LEN);
    let stream = ctx.gpu().stream().unwrap();
    let data = ctx.alloc(kind, ROOM).unwrap();
    for round in 1..=12_u64 {
        let len = [0, 1, 8, 3000, 20_000, ROOM][round as usize % 6];
        let payload = |rank: u32| vec![rank as u8 * 64 + round as u8; len];
        data.write(0, &payload(ctx.rank())).unwrap();
        // The last bytes come by a put of their own, before the signal.
        let (head, tail) = (len / 3, len - len / 3);
        let [head, tail] = [(0, head), (head, tail)].map(|(at, len)| data.slice(at, len).unwrap());
        let at = tail.offset();
        if by_stream {
            let first = window.put_on(&stream, to, 0, &head).unwrap();
            let put = window.put_signal_on(&stream, to, at, &tail, SIGNAL, round);
            drop(put.unwrap());
            first.wait_on(&stream).unwrap();
            let geq = Condition::Geq;
            window
                .wait_signal_on(&stream, from, SIGNAL, geq, round)
                .unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
        } else {
            drop(window.put(to, 0, &head).unwrap());
            let put = window.put_signal(to, at, &tail, SIGNAL, round).unwrap();
            let eq = Condition::Eq;
            window.wait_signal(from, SIGNAL, eq, round, LIMIT).unwrap();
            let done = put.wait(LIMIT).unwrap();
            assert_eq!((done.peer, done.len), (to, tail.len() as u64));
        }
        assert!(
            bytes(window.memory(), 0, len) == payload(from),
            "wrong bytes"
        );
        match by_stream {
            true => {
                drop(window.signal_on(&stream, from, ACK, round).unwrap());
                let geq = Condition::Geq;
                window.wait_signal_on(&stream, to, ACK, geq, round).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
            }
            false => {
                drop(window.signal(from, ACK, round).unwrap());
                let geq = Condition::Geq;
                window.wait_signal(to, ACK, geq, round, LIMIT).unwrap();
            }
        }
    }
}

/// Runs [`exchange`] around a ring of ranks.
fn ring(seed: u64, ranks: u32, ooo: f64, kind: MemoryKind, by_stream: bool) {
    play(seed, ranks, move |rank| {
        let ctx = open(rank, ooo);
        let (to, from) = rank.neighbours();
        exchange(&ctx, kind, by_stream, to, from);
        ctx.close(LIMIT).unwrap();
        rank.leave();
    });
}

#[test]
fn puts_are_visible_before_their_signal() {
    for (seed, ooo) in [(1, 0.0), (2, 0.5), (3, 0.9)] {
        for ranks in [1, 2, 3] {
            for kind in [MemoryKind::Pinned, MemoryKind::Device] {
                for by_stream in [false, true] {
                    println!("{seed} {ooo} {ranks} {kind:?} {by_stream}");
                    ring(seed, ranks, ooo, kind, by_stream);
                }
            }
        }
    }
}

/// The record of a window goes to another rank by a message; puts need no collective call.
#[test]
fn a_window_is_attached_by_its_record() {
    pair(
        |b| b,
        |rank, ctx| {
            let peer = rank.peer();
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let window = ctx.expose(&memory).unwrap();
            assert_eq!(window.len_of(rank.me), Some(64));
            assert_eq!(window.len_of(peer), None);
            let e = window.put(peer, 0, &memory.slice(0, 8).unwrap());
            let e = e.map(drop).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(peer)), "{e}");

            let record = window.record();
            assert!(record.len() <= 512, "{}", record.len());
            let mine = ctx.alloc(MemoryKind::Pinned, 512).unwrap();
            let theirs = ctx.alloc(MemoryKind::Pinned, 512).unwrap();
            mine.write(0, &record).unwrap();
            let recv = ctx.irecv(peer, 0, &theirs.all()).unwrap();
            let sent = ctx.isend(peer, 0, &mine.slice(0, record.len()).unwrap());
            sent.unwrap().wait(LIMIT).unwrap();
            let len = recv.wait(LIMIT).unwrap().len as usize;
            let record = bytes(&theirs, 0, len);
            for len in 0..len {
                let e = window.attach(&record[..len]).unwrap_err();
                assert_eq!(e.kind(), Kind::Protocol, "{e}");
            }
            assert_eq!(window.attach(&record).unwrap(), peer);
            let e = window.attach(&record).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Busy, Some(peer)), "{e}");

            // After quiet the bytes are there, without an action of the target.
            mine.write(0, &[rank.me as u8 + 7; 16]).unwrap();
            drop(window.put(peer, 8, &mine.slice(0, 16).unwrap()).unwrap());
            window.quiet(LIMIT).unwrap();
            rank.barrier();
            assert_eq!(bytes(&memory, 8, 16), [peer as u8 + 7; 16]);
        },
    );
}

/// Quiet, on the CPU and on a stream: the bytes are in memory when it has returned, although the
/// NIC of the target delays pieces.
#[test]
fn quiet_waits_until_puts_are_in_memory() {
    for seed in 0..10 {
        play(seed, 2, |rank| {
            let ctx = open(rank, 0.9);
            let window = window(&ctx, MemoryKind::Pinned, 2 * ROOM);
            let stream = ctx.gpu().stream().unwrap();
            let data = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            let say = |rank: u32| vec![rank as u8 + 3; ROOM];
            data.write(0, &say(rank.me)).unwrap();
            window.quiet(millis(0)).unwrap(); // nothing to wait for
            drop(window.put(rank.peer(), 0, &data.all()).unwrap());
            drop(
                window
                    .put_on(&stream, rank.peer(), ROOM, &data.all())
                    .unwrap(),
            );
            window.quiet(LIMIT).unwrap();
            window.quiet_on(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            rank.barrier();
            assert!(bytes(window.memory(), 0, ROOM) == say(rank.peer()));
            assert!(bytes(window.memory(), ROOM, ROOM) == say(rank.peer()));
            rank.barrier();
        });
    }
}

/// Two puts to the same place: the later one wins, if a fence is between them.
#[test]
fn a_fence_orders_puts() {
    for seed in 0..10 {
        for by_stream in [false, true] {
            play(seed, 2, move |rank| {
                let ctx = open(rank, 0.9);
                let window = window(&ctx, MemoryKind::Pinned, ROOM);
                let stream = ctx.gpu().stream().unwrap();
                let data = ctx.alloc(MemoryKind::Pinned, 4 * ROOM).unwrap();
                window.fence(rank.peer()).unwrap(); // nothing to order
                for i in 0..4 {
                    data.write(i * ROOM, &vec![i as u8 + 1; ROOM]).unwrap();
                    let from = data.slice(i * ROOM, ROOM).unwrap();
                    let put = match by_stream {
                        true => window.put_on(&stream, rank.peer(), 0, &from),
                        false => window.put(rank.peer(), 0, &from),
                    };
                    drop(put.unwrap());
                    match by_stream {
                        true => window.fence_on(&stream, rank.peer()).unwrap(),
                        false => window.fence(rank.peer()).unwrap(),
                    }
                }
                match by_stream {
                    true => window.quiet_on(&stream).unwrap(),
                    false => window.quiet(LIMIT).unwrap(),
                }
                ctx.synchronize(&stream, LIMIT).unwrap();
                rank.barrier();
                assert!(bytes(window.memory(), 0, ROOM) == vec![4; ROOM]);
                rank.barrier();
            });
        }
    }
}

#[test]
fn gets_read_what_earlier_puts_have_written() {
    for (seed, ooo) in [(1, 0.0), (2, 0.9)] {
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            play(seed, 2, move |rank| {
                let ctx = open(rank, ooo);
                let window = window(&ctx, kind, ROOM);
                let stream = ctx.gpu().stream().unwrap();
                let data = ctx.alloc(kind, 2 * ROOM).unwrap();
                for to in [rank.peer(), rank.me] {
                    for by_stream in [false, true] {
                        rank.barrier();
                        let payload = vec![16 * rank.me as u8 + to as u8 + 1; ROOM / 2];
                        data.write(0, &payload).unwrap();
                        data.write(ROOM, &[0; ROOM]).unwrap();
                        // Each rank writes another half.
                        let at = rank.me as usize * ROOM / 2;
                        let from = data.slice(0, ROOM / 2).unwrap();
                        let into = data.slice(ROOM, ROOM / 2).unwrap();
                        let got = if by_stream {
                            drop(window.put_on(&stream, to, at, &from).unwrap());
                            let get = window.get_on(&stream, to, at, &into).unwrap();
                            get.wait_on(&stream).unwrap();
                            ctx.synchronize(&stream, LIMIT).unwrap();
                            get
                        } else {
                            drop(window.put(to, at, &from).unwrap());
                            window.get(to, at, &into).unwrap()
                        };
                        let done = got.wait(LIMIT).unwrap();
                        assert_eq!((done.peer, done.len), (to, ROOM as u64 / 2));
                        assert!(bytes(&data, ROOM, ROOM / 2) == payload, "{to} {by_stream}");
                    }
                }
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            });
        }
    }
}

/// Three ranks count in one word: each former value is returned once.
#[test]
fn atomics_are_atomic_among_ranks() {
    for seed in 0..5 {
        play(seed, 3, |rank| {
            const TIMES: usize = 20;
            let ctx = open(rank, 0.0);
            let window = window(&ctx, MemoryKind::Pinned, LEN);
            let stream = ctx.gpu().stream().unwrap();
            let old = ctx.alloc(MemoryKind::Pinned, 8 * TIMES).unwrap();
            let seen = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            if rank.me != 2 {
                for i in 0..TIMES {
                    let old = old.slice(8 * i, 8).unwrap();
                    match i % 2 {
                        0 => drop(window.fetch_add(2, COUNTER, 1, &old).unwrap()),
                        _ => drop(window.fetch_add_on(&stream, 2, COUNTER, 1, &old).unwrap()),
                    }
                }
                // One of the two ranks finds 0.
                let seen = seen.slice(0, 8).unwrap();
                let mine = u64::from(rank.me) + 1;
                let swap = match rank.me {
                    0 => window.compare_swap(2, SIGNAL, 0, mine, &seen),
                    _ => window.compare_swap_on(&stream, 2, SIGNAL, 0, mine, &seen),
                };
                swap.unwrap().wait(LIMIT).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
            }
            ctx.close(LIMIT).unwrap();
            rank.barrier();
            if rank.me == 2 {
                assert_eq!(word(window.memory(), COUNTER), 2 * TIMES as u64);
                assert!([1, 2].contains(&word(window.memory(), SIGNAL)));
                let e = window.fetch_add(2, COUNTER, 1, &seen.slice(0, 8).unwrap());
                assert_eq!(e.map(drop).unwrap_err().kind(), Kind::Unsupported);
            } else {
                let mut all: Vec<u64> = (0..TIMES).map(|i| word(&old, 8 * i)).collect();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), TIMES, "a former value was returned twice");
                assert!(all.iter().all(|value| *value < 2 * TIMES as u64));
                // The other rank's value, if it was the first.
                assert!([0, 2 - u64::from(rank.me)].contains(&word(&seen, 0)));
            }
            rank.barrier();
        });
    }
}

/// Every condition, on the CPU and on a stream, against values on both sides of its limit.
#[test]
fn signals_satisfy_conditions_as_their_names_say() {
    use Condition::{And, Eq, Geq, Nor};
    pair(
        |b| b,
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Pinned, 64);
            let stream = ctx.gpu().stream().unwrap();
            let there = window.memory().region().word64(8).unwrap();
            for (condition, value, misses, meets) in [
                (Geq, 5, 4, 6),
                (Geq, u64::MAX, u64::MAX - 1, 1),
                (Eq, 5, 6, 5),
                (And, 0b10, 0b1101, 0b10),
                (And, 1 << 63, 1 << 62, 3 << 62),
                (Nor, 1, u64::MAX - 1, 2),
            ] {
                there.store(misses).unwrap();
                rank.barrier();
                let e = window.wait_signal(rank.peer(), 8, condition, value, millis(5));
                let e = e.unwrap_err();
                assert_eq!(
                    (e.kind(), e.rank()),
                    (Kind::Timeout, Some(rank.peer())),
                    "{e}"
                );
                let waits = window.wait_signal_on(&stream, rank.peer(), 8, condition, value);
                waits.unwrap();
                assert!(
                    !stream.synchronize(millis(5)).unwrap(),
                    "{condition:?} {value}"
                );
                rank.barrier();
                drop(window.signal(rank.peer(), 8, meets).unwrap());
                let met = window.wait_signal(rank.peer(), 8, condition, value, LIMIT);
                met.unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                rank.barrier();
            }
            for (condition, value) in [(And, 0), (Nor, u64::MAX)] {
                let e = window.wait_signal_on(&stream, rank.peer(), 8, condition, value);
                assert_eq!(e.unwrap_err().kind(), Kind::Invalid);
            }
            ctx.close(LIMIT).unwrap();
        },
    );
}

/// Thousands of operations without a wait: the queues are full from time to time, and no memory is
/// kept.
#[test]
fn many_dropped_operations_retire_by_themselves() {
    pair(
        |b| b,
        |rank, ctx| {
            let window = window(ctx, MemoryKind::Pinned, LEN);
            let stream = ctx.gpu().stream().unwrap();
            let data = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let data = data.all();
            for i in 1..=1000 {
                drop(window.put(rank.peer(), 0, &data).unwrap());
                drop(window.put_on(&stream, rank.peer(), 64, &data).unwrap());
                drop(window.signal_on(&stream, rank.peer(), SIGNAL, i).unwrap());
                let geq = Condition::Geq;
                window
                    .wait_signal_on(&stream, rank.peer(), SIGNAL, geq, i)
                    .unwrap();
            }
            ctx.synchronize(&stream, LIMIT).unwrap();
            window.quiet(LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
        },
    );
}

/// A fence orders the puts of all windows to a rank, as a signal does.
#[test]
fn a_fence_orders_the_puts_of_another_window() {
    for seed in 0..10 {
        play(seed, 2, |rank| {
            let ctx = open(rank, 0.9);
            let memory = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            let [first, second] = [(); 2].map(|()| ctx.window(&memory).unwrap());
            let data = ctx.alloc(MemoryKind::Pinned, 2 * ROOM).unwrap();
            data.write(0, &[1; ROOM]).unwrap();
            data.write(ROOM, &[2; ROOM]).unwrap();
            let half = |i| data.slice(i * ROOM, ROOM).unwrap();
            drop(first.put(rank.peer(), 0, &half(0)).unwrap());
            second.fence(rank.peer()).unwrap();
            drop(second.put(rank.peer(), 0, &half(1)).unwrap());
            second.quiet(LIMIT).unwrap();
            rank.barrier();
            assert!(bytes(&memory, 0, ROOM) == [2; ROOM]);
            rank.barrier();
        });
    }
}

/// The signal is in pinned memory, and the bytes that it follows are in a window of GPU memory: a
/// wait for the signal makes these visible as well.
#[test]
fn a_signal_shows_the_puts_of_another_window() {
    for seed in 0..10 {
        play(seed, 2, move |rank| {
            let options = SoftOptions::default().weak(Weak::seeded(seed));
            let ctx = rank.open_at(&rank.place(options, true), |b| b);
            let data = window(&ctx, MemoryKind::Device, ROOM);
            let words = window(&ctx, MemoryKind::Pinned, 16);
            let stream = ctx.gpu().stream().unwrap();
            let from = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            let seen = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            let geq = Condition::Geq;
            for round in 1..=20_u8 {
                from.write(0, &[round; ROOM]).unwrap();
                let put = data.put(rank.peer(), 0, &from.all()).unwrap();
                drop(words.signal(rank.peer(), 0, round.into()).unwrap());
                if round % 2 == 0 {
                    words
                        .wait_signal(rank.peer(), 0, geq, round.into(), LIMIT)
                        .unwrap();
                } else {
                    words
                        .wait_signal_on(&stream, rank.peer(), 0, geq, round.into())
                        .unwrap();
                }
                let here = data.memory().region().span(0, ROOM).unwrap();
                stream
                    .copy(&seen.region().span(0, ROOM).unwrap(), &here)
                    .unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                assert!(bytes(&seen, 0, ROOM) == [round; ROOM], "round {round}");
                put.wait(LIMIT).unwrap();
                rank.barrier();
            }
        });
    }
}

/// One window is in memory that the peer maps, the other in memory that it cannot map. A signal of
/// either shows the puts of the other one, whichever path carries them.
#[test]
fn a_signal_shows_the_puts_of_a_window_on_another_path() {
    /// More than the CPU copies when it posts.
    const MUCH: usize = 300_000;
    for seed in 0..12 {
        play(seed, 2, move |rank| {
            let ctx = rank.open(|b| b.path(PathChoice::Ipc));
            let (me, peer) = (rank.me as u8, rank.peer());
            let own = ctx.adopt_vec(vec![0; MUCH + 16]).map_err(|(_, e)| e);
            let windows = [
                own.unwrap(),
                ctx.alloc(MemoryKind::Pinned, MUCH + 16).unwrap(),
            ];
            let windows = windows.map(|memory| ctx.window(&memory).unwrap());
            let paths = windows.each_ref().map(|window| window.path(peer).unwrap());
            assert_eq!(paths, [Path::Nic, Path::Ipc]);
            assert_eq!(windows[0].path(rank.me), Some(Path::Local));
            assert_eq!(windows[0].path(2), None);
            let stream = ctx.gpu().stream().unwrap();
            let from = ctx.alloc(MemoryKind::Pinned, MUCH).unwrap();
            for round in 1..=12_u8 {
                let [data, words] = [usize::from(round % 2), usize::from(round % 2 == 0)];
                let [data, words] = [data, words].map(|i| &windows[i]);
                let (all, at, value) = (from.all(), MUCH.next_multiple_of(8), round.into());
                from.write(0, &[round ^ me << 7; MUCH]).unwrap();
                match round % 5 {
                    0 => {
                        drop(data.put(peer, 0, &all).unwrap());
                        drop(words.signal(peer, at, value).unwrap());
                    }
                    1 => {
                        data.put_nbi_on(&stream, peer, 0, &all).unwrap();
                        drop(words.signal_on(&stream, peer, at, value).unwrap());
                    }
                    2 => {
                        data.put_nbi(peer, 8, &from.slice(8, MUCH - 8).unwrap())
                            .unwrap();
                        data.put_inline(peer, 0, &[round ^ me << 7; 8]).unwrap();
                        drop(words.signal(peer, at, value).unwrap());
                    }
                    how => {
                        let pair = [
                            data.prepare_put(peer, 0, &all).unwrap(),
                            words.prepare_signal(peer, at, value).unwrap(),
                        ];
                        match how {
                            3 => ctx.post_all_on(&stream, &pair).unwrap(),
                            _ => pair.iter().for_each(|one| one.post_on(&stream).unwrap()),
                        }
                    }
                }
                words
                    .wait_signal(peer, at, Condition::Geq, value, LIMIT)
                    .unwrap();
                let expected = round ^ (peer as u8) << 7;
                let found = bytes(data.memory(), 0, MUCH);
                assert!(found.iter().all(|byte| *byte == expected), "round {round}");
                rank.barrier();
                ctx.synchronize(&stream, LIMIT).unwrap();
                for window in &windows {
                    window.quiet(LIMIT).unwrap();
                }
                rank.barrier();
            }
        });
    }
}

/// The CPU copies a long put in parts, in the background; the NIC does not wait for it.
#[test]
fn a_signal_by_the_nic_shows_a_put_that_the_cpu_copies_in_parts() {
    const LONG: usize = 64 << 20;
    for seed in 0..3 {
        play(seed, 2, move |rank| {
            let ctx = rank.open(|b| b.path(PathChoice::Ipc));
            let own = ctx.adopt_vec(vec![0; 64]).map_err(|(_, e)| e).unwrap();
            let words = ctx.window(&own).unwrap();
            let data = window(&ctx, MemoryKind::Pinned, LONG);
            let paths = [&words, &data].map(|window| window.path(rank.peer()).unwrap());
            assert_eq!(paths, [Path::Nic, Path::Ipc]);
            let last = LONG - 8;
            if rank.me == 0 {
                let from = ctx.alloc(MemoryKind::Pinned, LONG).unwrap();
                from.write(last, &[1; 8]).unwrap();
                let put = data.put(1, 0, &from.all()).unwrap();
                drop(words.signal(1, 8, 1).unwrap());
                put.wait(LIMIT).unwrap();
            } else {
                words.wait_signal(0, 8, Condition::Geq, 1, LIMIT).unwrap();
                assert_eq!(bytes(data.memory(), last, 8), [1; 8]);
            }
            rank.barrier();
        });
    }
}

/// Atomics of ranks that map the memory are those of the NIC, which is atomic with all others.
#[test]
fn atomics_of_mapped_memory_count_with_those_of_ranks_that_do_not_map_it() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.path(PathChoice::Ipc));
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let mapped = ctx.window(&memory).unwrap();
        let old = ctx.alloc(MemoryKind::Pinned, 16).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        assert_eq!(mapped.path(rank.peer()), Some(Path::Ipc));
        for round in 0..20 {
            let [first, second] = [0, 8].map(|at| old.slice(at, 8).unwrap());
            let by_cpu = mapped.fetch_add(rank.peer(), 8, 1, &first).unwrap();
            let by_stream = mapped.fetch_add_on(&stream, rank.peer(), 8, 1, &second);
            by_cpu.wait(LIMIT).unwrap();
            by_stream.unwrap().wait(LIMIT).unwrap();
            let seen = [0, 8].map(|at| word(&old, at));
            assert_eq!(seen[0] + seen[1], 4 * round + 1);
        }
        rank.barrier();
        assert_eq!(word(&memory, 8), 40);
        rank.barrier();
    });
}

/// A fence and a quiet of a stream that has posted nothing enqueue nothing on the lane of another
/// stream, which waits.
#[test]
fn a_fence_of_an_unused_stream_waits_for_no_other_stream() {
    play(1, 2, |rank| {
        let ctx = open(rank, 0.9);
        let window = window(&ctx, MemoryKind::Pinned, LEN);
        let (peer, geq) = (rank.peer(), Condition::Geq);
        if rank.me == 1 {
            window.wait_signal(peer, ACK, geq, 1, LIMIT).unwrap();
            drop(window.signal(peer, SIGNAL, 1).unwrap());
        } else {
            let [used, unused] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let data = ctx.alloc(MemoryKind::Pinned, 64).unwrap().all();
            let put = || window.put_on(&used, peer, 0, &data).unwrap();
            put().wait(LIMIT).unwrap();
            window.wait_signal_on(&used, peer, SIGNAL, geq, 1).unwrap();
            drop(put());
            window.fence_on(&unused, peer).unwrap();
            window.quiet_on(&unused).unwrap();
            drop(window.signal_on(&unused, peer, ACK, 1).unwrap());
            ctx.synchronize(&unused, LIMIT).unwrap();
            ctx.synchronize(&used, LIMIT).unwrap();
        }
        rank.barrier();
    });
}
