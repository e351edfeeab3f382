//! Collective calls that fail: refused arguments, ranks that are absent, die or make another call.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Collectives, Context, Error, Kind, Memory, Op, PathChoice, SendOp, Slice};
use sim::gate::Gate;
use sim::{Death, LIMIT, Rank, millis, pair, peer_failed, play, secs};

const KIND: MemoryKind = MemoryKind::Pinned;

fn invalid(e: mp::Result<()>, text: &str) -> Error {
    let e = e.unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid, "{e}");
    assert!(e.to_string().contains(text), "{e}");
    e
}

#[test]
fn bad_arguments_are_refused_and_the_object_stays_usable() {
    pair(
        |b| b,
        |rank, ctx| {
            let e = ctx.collectives(1 << 24).map(drop).unwrap_err();
            assert_eq!(
                (e.kind(), e.limit()),
                (Kind::Invalid, Some((1 << 24) - 1)),
                "{e}"
            );
            let mut all = ctx.collectives(64).unwrap();
            assert_eq!(all.max_bytes(), 64);
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(KIND, 256).unwrap();
            let slice = |len| memory.slice(0, len).unwrap();
            let long = "a contribution of 72 bytes is too long";
            let e = invalid(all.all_reduce(&mut [0u64; 9], Op::Sum, LIMIT), long);
            assert_eq!(e.limit(), Some(64), "{e}");
            invalid(all.broadcast(0, &mut [0u64; 9], LIMIT), long);
            invalid(all.all_gather(&[0u64; 9], &mut [0; 18], LIMIT), long);
            invalid(all.all_reduce_on::<u64>(&stream, &slice(72), Op::Sum), long);
            invalid(all.all_to_all_on(&stream, &slice(144), &slice(144)), long);
            let e = invalid(all.broadcast(2, &mut [0u8], LIMIT), "the root, rank 2,");
            assert_eq!(e.rank(), Some(2));
            let lens = "the memory of the result has 8 bytes in place of 16";
            invalid(all.all_gather(&[0u64], &mut [0], LIMIT), lens);
            invalid(all.all_gather_on(&stream, &slice(8), &slice(8)), lens);
            let odd = "the memory of the contributions has 3 bytes in place of 2";
            invalid(all.all_to_all(&[0u8; 3], &mut [0; 2], LIMIT), odd);
            let v = all.all_to_all_v(&[0u8; 3], &[1, 1, 1], &mut [0; 2], &[1, 1], LIMIT);
            invalid(v, "3 lengths are given for 2 ranks");
            let mut lens = [1, 1];
            lens[rank.me as usize] = 2;
            let v = all.all_to_all_v(&[0u8; 2], &[1, 1], &mut [0; 3], &lens, LIMIT);
            invalid(v, "this rank sends 1 bytes to itself and receives 2");
            let bits = "f64 has no bitwise operations";
            invalid(all.all_reduce(&mut [0.0], Op::And, LIMIT), bits);
            invalid(all.all_reduce_on::<f64>(&stream, &slice(8), Op::Or), bits);
            let whole = "does not contain whole, aligned elements of f32";
            invalid(all.all_reduce_on::<f32>(&stream, &slice(6), Op::Sum), whole);
            let skewed = memory.slice(2, 8).unwrap();
            invalid(all.all_reduce_on::<f32>(&stream, &skewed, Op::Sum), whole);
            let other = rank.open(|b| b.name("other"));
            let foreign = other.alloc(KIND, 8).unwrap().all();
            let e = all.broadcast_on(&stream, 0, &foreign);
            invalid(e, "is registered by another context");
            let e = all.barrier_on(&other.gpu().stream().unwrap()).unwrap_err();
            assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::Foreign), "{e}");
            // Nothing was posted.
            all.barrier(LIMIT).unwrap();
            all.barrier_on(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
        },
    );
}

/// The numbers of calls pass the greatest one of their field in the words, and the greatest of all.
#[test]
fn numbers_of_calls_may_wrap() {
    for start in [(1 << 24) - 3, u64::from(u32::MAX) - 2, u64::MAX - 2] {
        pair(
            move |b| b.start(start),
            |rank, ctx| {
                let mut all = ctx.collectives(8).unwrap();
                let stream = ctx.gpu().stream().unwrap();
                let data = ctx.alloc(KIND, 8).unwrap();
                for call in 0..4_u64 {
                    let mut sum = [call + u64::from(rank.me)];
                    data.write(0, &sum[0].to_ne_bytes()).unwrap();
                    all.all_reduce_on::<u64>(&stream, &data.all(), Op::Sum)
                        .unwrap();
                    all.all_reduce(&mut sum, Op::Sum, LIMIT).unwrap();
                    ctx.synchronize(&stream, LIMIT).unwrap();
                    let mut by_stream = [0; 8];
                    data.read(0, &mut by_stream).unwrap();
                    assert_eq!(
                        (sum[0], u64::from_ne_bytes(by_stream)),
                        (2 * call + 1, sum[0])
                    );
                }
            },
        );
    }
}

#[test]
fn a_gpu_without_kernels_makes_calls_by_the_cpu_only() {
    play(1, 2, |rank| {
        let mut options = SoftOptions::default();
        options.caps.kernels = false;
        let ctx = rank.open_at(&rank.place(options, true), |b| b);
        let mut all = ctx.collectives(8).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        let e = all.barrier_on(&stream).unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported, "{e}");
        let mut sum = [1u32];
        all.all_reduce(&mut sum, Op::Sum, LIMIT).unwrap();
        assert_eq!(sum, [2]);
        rank.barrier();
    });
}

/// Without a background thread the calls themselves do the background work.
#[test]
fn calls_progress_without_a_background_thread() {
    play(1, 3, |rank| {
        let ctx = rank.open_manual(|b| b);
        let mut all = ctx.collectives(8).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        for _ in 0..20 {
            let mut sum = [rank.me];
            all.all_reduce(&mut sum, Op::Sum, LIMIT).unwrap();
            assert_eq!(sum, [3]);
            all.barrier_on(&stream).unwrap();
        }
        ctx.synchronize(&stream, LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
        let end = rank.come();
        rank.progress_until(&ctx, "another rank ends", || {
            (0..3).all(|other| rank.has_come(other, end))
        });
    });
}

/// A rank drops its object, and another makes a call.
#[test]
fn rank_that_has_dropped_its_object_is_named() {
    for by_stream in [false, true] {
        pair(
            |b| b,
            move |rank, ctx| {
                let mut all = ctx.collectives(8).unwrap();
                let stream = ctx.gpu().stream().unwrap();
                all.barrier(LIMIT).unwrap();
                all.barrier_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                rank.barrier();
                if rank.me == 1 {
                    drop(all);
                    rank.barrier();
                } else {
                    rank.barrier();
                    // On mapped memory, the release must be known here.
                    rank.pass(millis(500));
                    let by = by_stream.then_some(&stream);
                    peer_failed(&barrier(ctx, &mut all, by, LIMIT).unwrap_err(), 1);
                }
            },
        );
    }
}

/// A stream that has not executed its call delays a call of the CPU, which does not fail the object.
#[test]
fn cpu_waits_for_the_stream_of_the_call_before() {
    pair(
        |b| b,
        |rank, ctx| {
            let mut all = ctx.collectives(8).unwrap();
            let [stream, other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            all.barrier_on(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            let gate = ctx.gpu().alloc(KIND, 8).unwrap().word64(0).unwrap();
            let wait = gdsync::rdma::Descriptor::wait_value;
            let list = [wait(&gate, gdsync::gpu::Condition::Eq, 1)];
            gdsync::rdma::post_on(&stream, &mut [], &list).unwrap();
            all.barrier_on(&stream).unwrap();
            let e = all.barrier(millis(5)).unwrap_err();
            assert_eq!(
                (e.kind(), e.rank()),
                (Kind::Timeout, Some(rank.peer())),
                "{e}"
            );
            assert!(e.to_string().contains("the call may be repeated"), "{e}");
            // Another stream waits, too.
            all.barrier_on(&other).unwrap();
            assert!(!other.synchronize(millis(5)).unwrap());
            rank.barrier();
            gate.store(1).unwrap();
            all.barrier(LIMIT).unwrap();
            assert!(other.synchronize(LIMIT).unwrap() && stream.synchronize(LIMIT).unwrap());
            rank.barrier();
        },
    );
}

#[test]
fn objects_of_different_lengths_are_refused() {
    pair(
        |b| b,
        |rank, ctx| {
            let e = ctx.collectives(64 << rank.me).map(drop).unwrap_err();
            assert_eq!(
                (e.kind(), e.rank()),
                (Kind::Protocol, Some(rank.peer())),
                "{e}"
            );
        },
    );
}

/// A call by the CPU, or by a stream that is waited for.
fn barrier(
    ctx: &Context,
    all: &mut Collectives,
    by: Option<&Stream>,
    limit: Duration,
) -> mp::Result<()> {
    match by {
        None => all.barrier(limit),
        Some(stream) => {
            all.barrier_on(stream)?;
            ctx.synchronize(stream, LIMIT)
        }
    }
}

/// Ranks 1 and 3 of 4 make no second call: the others name them, within the limit, and can still
/// send messages to them. The absent ranks get the same failure when they call.
#[test]
fn absent_ranks_are_named_within_the_limit() {
    for by_stream in [false, true] {
        play(1, 4, move |rank| {
            let limit = secs(3);
            let ctx = rank.open(|b| b.timeout(limit));
            let mut all = ctx.collectives(8).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            let by = by_stream.then_some(&stream);
            barrier(&ctx, &mut all, by, limit).unwrap();
            let present = rank.me.is_multiple_of(2);
            if present {
                let start = rank.host.now();
                let e = barrier(&ctx, &mut all, by, limit).unwrap_err();
                let kind = match by {
                    None => Kind::Timeout,
                    Some(_) => Kind::Failed(gdsync::Status::TIMEOUT),
                };
                assert_eq!((e.kind(), e.rank()), (kind, Some(1)), "{e}");
                assert!(rank.host.now().since(start) < secs(4));
                // The first rank to find it names all; the other may have it from that one.
                let named = e
                    .to_string()
                    .contains("rank 1, 3 did not join call 2 within 3 s");
                assert!(named || e.to_string().contains("as rank"), "{e}");
                assert!(stream.synchronize(LIMIT).unwrap());
            } else {
                rank.pass(secs(8));
                let e = all.barrier(limit).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)), "{e}");
            }
            // The object has failed, the ranks have not.
            assert_eq!(all.barrier(limit).unwrap_err().rank(), Some(1));
            assert_eq!(all.barrier_on(&stream).unwrap_err().rank(), Some(1));
            rank.barrier();
            drop(all);
            let (to, from) = rank.neighbours();
            let recv = ctx.irecv(from, 0, &sim::slice(&ctx, 8)).unwrap();
            sim::send(&ctx, to, 0, 8);
            recv.wait(LIMIT).unwrap();
            let mut all = ctx.collectives(8).unwrap();
            all.barrier(LIMIT).unwrap();
            rank.barrier();
        });
    }
}

#[test]
fn the_rank_that_does_not_make_the_object_is_named() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(3)));
        if rank.me != 1 {
            let e = ctx.collectives(8).map(drop).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(1)), "{e}");
            let text = "call Context::collectives on all ranks";
            assert!(e.to_string().contains(text), "{e}");
        }
        rank.barrier();
    });
}

/// Another call, root, length, type or operation on one rank is an error that names a rank and what
/// it has called, on every rank; the result is unchanged.
#[test]
fn another_call_on_one_rank_is_an_error_that_names_it() {
    type Call = fn(&mut Collectives, &mut [u32], Option<(&Stream, &mp::Memory)>) -> mp::Result<()>;
    let calls: [(Call, &str); 5] = [
        (
            |all, data, on| match on {
                None => all.all_reduce(data, Op::Sum, LIMIT),
                Some((s, m)) => all.all_reduce_on::<u32>(s, &m.all(), Op::Sum),
            },
            "all-reduce (sum) of 8 bytes of u32",
        ),
        (
            |all, data, on| match on {
                None => all.all_reduce(data, Op::Max, LIMIT),
                Some((s, m)) => all.all_reduce_on::<u32>(s, &m.all(), Op::Max),
            },
            "all-reduce (maximum) of 8 bytes of u32",
        ),
        (
            |all, data, on| match on {
                None => all.broadcast(0, data, LIMIT),
                Some((s, m)) => all.broadcast_on(s, 0, &m.all()),
            },
            "broadcast of 8 bytes from rank 0",
        ),
        (
            |all, data, on| match on {
                None => all.broadcast(1, data, LIMIT),
                Some((s, m)) => all.broadcast_on(s, 1, &m.all()),
            },
            "broadcast of 8 bytes from rank 1",
        ),
        (
            |all, _, on| match on {
                None => all.barrier(LIMIT),
                Some((s, _)) => all.barrier_on(s),
            },
            "barrier",
        ),
    ];
    for i in 0..calls.len() {
        for by_stream in [false, true] {
            play(1, 3, move |rank| {
                let ctx = rank.open(|b| b);
                let mut all = ctx.collectives(8).unwrap();
                let stream = ctx.gpu().stream().unwrap();
                let memory = ctx.alloc(KIND, 8).unwrap();
                memory.write_slice(0, &[rank.me, 7]).unwrap();
                let mut data = [rank.me, 7];
                let other = if rank.me == 2 {
                    (i + 1) % calls.len()
                } else {
                    i
                };
                let on = by_stream.then_some((&stream, &memory));
                let e = calls[other].0(&mut all, &mut data, on);
                let e = match by_stream {
                    true => e.and_then(|()| ctx.synchronize(&stream, LIMIT)),
                    false => e,
                };
                let e = e.unwrap_err();
                assert_eq!(e.kind(), Kind::Protocol, "{e}");
                // Ranks 0 and 1 find rank 2; rank 2 finds one of them; or another rank reports it.
                let text = e.to_string();
                if !text.contains("as rank") {
                    let called = match (rank.me, e.rank()) {
                        (2, Some(0 | 1)) => calls[i].1,
                        (0 | 1, Some(2)) => calls[(i + 1) % calls.len()].1,
                        other => panic!("{other:?}: {e}"),
                    };
                    assert!(text.contains(called), "{e}");
                }
                memory.read_slice(0, &mut data).unwrap();
                assert_eq!(data, [rank.me, 7]);
                assert!(all.barrier(LIMIT).is_err());
                rank.barrier();
            });
        }
    }
}

#[test]
fn other_lengths_between_two_ranks_are_an_error() {
    for by_stream in [false, true] {
        play(1, 2, move |rank| {
            let ctx = rank.open(|b| b);
            let mut all = ctx.collectives(8).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(KIND, 64).unwrap();
            // Rank 1 sends 3 bytes, and rank 0 receives 2.
            let sends = [[1, 2], [3, 1]][rank.me as usize];
            let receives = [[1, 2], [2, 1]][rank.me as usize];
            let (from, into): (usize, usize) = (sends.iter().sum(), receives.iter().sum());
            let e = if by_stream {
                let (from, into) = (memory.slice(0, from), memory.slice(32, into));
                let (from, into) = (from.unwrap(), into.unwrap());
                let e = all.all_to_all_v_on(&stream, &from, &sends, &into, &receives);
                e.and_then(|()| ctx.synchronize(&stream, LIMIT))
            } else {
                all.all_to_all_v(
                    &vec![0u8; from],
                    &sends,
                    &mut vec![0; into],
                    &receives,
                    LIMIT,
                )
            };
            if rank.me == 0 {
                let e = e.unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Protocol, Some(1)), "{e}");
                assert!(e.to_string().contains("all-to-all-v of 3 bytes"), "{e}");
            }
            // Rank 1 has received what it was to receive; its next call fails, as rank 0 reports.
            let e = all.barrier(LIMIT).unwrap_err();
            assert_eq!(e.kind(), Kind::Protocol, "{e}");
            rank.barrier();
        });
    }
}

/// A rank dies; some calls of the others are enqueued already. All get an error that names it, no
/// stream is left behind, and the survivors continue.
#[test]
fn the_death_of_a_rank_is_an_error_that_names_it() {
    for death in Death::ALL {
        for by_stream in [false, true] {
            println!("{death:?} {by_stream}");
            play(1, 4, move |rank| {
                let ctx = rank.open(|b| death.build_one_sided(b).timeout(secs(5)));
                let mut all = ctx.collectives(64).unwrap();
                let stream = ctx.gpu().stream().unwrap();
                all.barrier(LIMIT).unwrap();
                all.barrier_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                for _ in 0..4 {
                    if by_stream && rank.me != 1 {
                        all.barrier_on(&stream).unwrap();
                    }
                }
                rank.barrier();
                if rank.me == 1 {
                    drop(all);
                    return death.end(rank, ctx, 2);
                }
                let start = rank.host.now();
                let e = if by_stream {
                    let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
                    assert!(ctx.error().is_some());
                    e
                } else {
                    all.barrier(secs(5)).unwrap_err()
                };
                assert!(rank.host.now().since(start) < secs(20));
                peer_failed(&e, 1);
                assert_eq!(all.barrier(LIMIT).unwrap_err().rank(), Some(1));
                assert_eq!(all.barrier_on(&stream).unwrap_err().rank(), Some(1));
                assert!(stream.synchronize(LIMIT).unwrap());
                rank.barrier();
            });
        }
    }
}

/// A rank dies at any moment of many calls. The others end with an error that names it, within the
/// time limits.
#[test]
fn a_rank_may_die_at_any_moment() {
    for seed in 0..40 {
        let death = Death::ALL[seed as usize % 4];
        play(seed, 4, move |rank| {
            let ctx = rank.open(|b| death.build_one_sided(b).timeout(secs(2)));
            let mut all = ctx.collectives(64).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            if rank.me == 1 {
                let calls = seed % 7;
                for i in 0..calls {
                    let by = (i % 2 == 0).then_some(&stream);
                    barrier(&ctx, &mut all, by, LIMIT).unwrap();
                }
                rank.pass(millis(seed % 3));
                drop(all);
                return death.end(rank, ctx, 1);
            }
            let mut round = 0;
            let e = loop {
                let by = (round % 2 == 0).then_some(&stream);
                if let Err(e) = barrier(&ctx, &mut all, by, secs(2)) {
                    break e;
                }
                round += 1;
            };
            assert_eq!(e.rank(), Some(1), "{e}");
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.barrier();
        });
    }
}

/// The context and the object are dropped while a stream waits: the stream is released.
#[test]
fn dropped_context_releases_waiting_streams() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b);
        let mut all = ctx.collectives(8).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        all.barrier_on(&stream).unwrap();
        ctx.synchronize(&stream, LIMIT).unwrap();
        rank.barrier();
        if rank.me == 0 {
            for _ in 0..3 {
                all.barrier_on(&stream).unwrap();
            }
            assert!(!stream.synchronize(millis(10)).unwrap());
        }
        rank.barrier();
        drop((all, ctx));
        assert!(stream.synchronize(LIMIT).unwrap());
        rank.barrier();
    });
}

/// A contribution of a call that is refused, that of the rank, and the memory of the result, which [`gathered`] checks.
fn contributions(rank: &Rank, ctx: &Context) -> (Memory, [Slice; 3]) {
    let memory = ctx.alloc(KIND, 64).unwrap();
    memory.write(0, &[0xee; 8]).unwrap();
    memory.write(8, &[rank.me as u8 + 1; 8]).unwrap();
    let slices = [(0, 8), (8, 8), (16, 16)].map(|(at, len)| memory.slice(at, len).unwrap());
    (memory, slices)
}

/// Rank 1 contributes when rank 0 has made its call.
fn contributes(rank: &Rank, all: &mut Collectives) {
    rank.barrier();
    let mut got = [0; 16];
    all.all_gather(&[2_u8; 8], &mut got, LIMIT).unwrap();
    assert_eq!(got, [[1; 8], [2; 8]].concat()[..]);
}

fn gathered(memory: &Memory) {
    let mut got = [0; 16];
    memory.read(16, &mut got).unwrap();
    assert_eq!(got, [[1; 8], [2; 8]].concat()[..]);
}

/// The stream of a refused call runs later, while another stream makes the call: it must not replace
/// the contributions of this call.
#[test]
fn a_refused_call_leaves_nothing_on_its_stream() {
    pair(
        |b| b,
        |rank, ctx| {
            let mut all = ctx.collectives(8).unwrap();
            let (memory, [stale, data, into]) = contributions(rank, ctx);
            if rank.me == 1 {
                contributes(rank, &mut all);
                return;
            }
            // All streams wait that may. One of them makes the call; another stream, which has
            // much work, is refused.
            let [first, last] = [(); 2].map(|()| Gate::new(ctx.gpu()));
            let most = ctx.gpu().max_waiting_streams().unwrap();
            let waiting: Vec<_> = (0..most).map(|_| ctx.gpu().stream().unwrap()).collect();
            let (caller, others) = waiting.split_first().unwrap();
            first.hold(caller);
            others.iter().for_each(|stream| last.hold(stream));
            let stream = ctx.gpu().stream().unwrap();
            let e = all.barrier_on(&stream).unwrap_err();
            let too_many = Kind::Gdsync(gdsync::Kind::TooManyWaits);
            assert_eq!(e.kind(), too_many, "{e}");
            let region = |at| memory.region().span(at, 8).unwrap();
            for _ in 0..500 {
                stream.copy(&region(32), &region(40)).unwrap();
            }
            let e = all.all_gather_on(&stream, &stale, &into).unwrap_err();
            assert_eq!(e.kind(), too_many, "{e}");
            all.all_gather_on(caller, &data, &into).unwrap();
            first.open();
            rank.pass(millis(1));
            last.open();
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.barrier();
            ctx.synchronize(caller, LIMIT).unwrap();
            gathered(&memory);
        },
    );
}

/// As before, of a call whose puts cannot be posted yet.
#[test]
fn a_call_out_of_order_leaves_nothing_on_its_stream() {
    pair(
        |b| b.path(PathChoice::Nic),
        |rank, ctx| {
            let mut all = ctx.collectives(8).unwrap();
            let (memory, [stale, data, into]) = contributions(rank, ctx);
            if rank.me == 1 {
                contributes(rank, &mut all);
                rank.barrier();
                return;
            }
            let [refused, caller] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let gate = Gate::new(ctx.gpu());
            gate.hold(&refused);
            let earlier = SendOp::from((1, 9, &data)).on(&refused);
            let earlier = ctx.prepare_send(&earlier).unwrap();
            let e = all.all_gather_on(&refused, &stale, &into).unwrap_err();
            assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::OutOfOrder), "{e}");
            all.all_gather_on(&caller, &data, &into).unwrap();
            gate.open();
            assert!(refused.synchronize(LIMIT).unwrap());
            rank.barrier();
            ctx.synchronize(&caller, LIMIT).unwrap();
            gathered(&memory);
            earlier.cancel().unwrap();
            rank.barrier();
        },
    );
}
