//! Exchanges with neighbours that fail: neighbours that do not match, calls in a wrong order,
//! refused streams, neighbours that die or are late.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Context, Error, Kind, Memory, Neighbour, Neighbourhood, PathChoice, SendOp};
use sim::gate::Gate;
use sim::{Death, LIMIT, Rank, STEP_WAYS, pair, peer_failed, play, secs, step_on};

const LEN: usize = 500;

/// A rank's exchange with all other ranks, and its memory: what is sent, then by rank what is
/// received.
struct Part {
    ctx: Context,
    halo: Neighbourhood,
    field: Memory,
    ranks: u32,
    /// Streams make steps by one call.
    whole: bool,
}

/// The tag of the data from one rank to another.
fn tag(from: u32, to: u32) -> u32 {
    100 * from + to
}

fn fill(rank: u32, step: u64) -> u8 {
    16 * (rank as u8 + 1) + step as u8
}

impl Part {
    fn new(rank: &Rank, ctx: &Context, packed: bool) -> Part {
        let (me, ranks) = (rank.me, rank.ranks);
        let field = ctx
            .alloc(MemoryKind::Device, LEN * (1 + ranks as usize))
            .unwrap();
        let others = (0..ranks).filter(|other| *other != me);
        let named = others.map(|other| {
            let one = Neighbour::new(other, tag(me, other), tag(other, me));
            let at = LEN * (1 + other as usize);
            match packed {
                false => one
                    .send(&field.slice(0, LEN).unwrap())
                    .receive(&field.slice(at, LEN).unwrap()),
                true => one
                    .send(field.strided(0, 5, 10, 50).unwrap())
                    .receive(field.strided(at, 5, 10, 50).unwrap()),
            }
        });
        let halo = ctx.neighbourhood().neighbours(named).build().unwrap();
        Part {
            ctx: ctx.clone(),
            halo,
            field,
            ranks,
            whole: false,
        }
    }

    fn whole(self, whole: bool) -> Part {
        Part { whole, ..self }
    }

    fn step(&self, stream: &Stream) -> mp::Result<()> {
        step_on(&self.halo, stream, self.whole)
    }

    fn write(&self, step: u64) {
        self.field
            .write(0, &[fill(self.ctx.rank(), step); LEN])
            .unwrap();
    }

    /// Checks what has arrived from these ranks.
    fn check(&self, from: impl Iterator<Item = u32>, step: u64) {
        for rank in from.filter(|rank| *rank != self.ctx.rank()) {
            let mut got = [0];
            self.field
                .read(LEN * (1 + rank as usize), &mut got)
                .unwrap();
            assert_eq!(got, [fill(rank, step)], "from rank {rank} in step {step}");
        }
    }

    /// A step, with a wait for it.
    fn play(&self, stream: &Stream, step: u64) {
        self.write(step);
        self.step(stream).unwrap();
        self.ctx.synchronize(stream, LIMIT).unwrap();
        self.check(0..self.ranks, step);
    }
}

fn kind_of(e: mp::Result<Neighbourhood>) -> Error {
    e.map(drop).unwrap_err()
}

#[test]
fn both_ends_refuse_sizes_that_differ_and_may_build_again() {
    pair(
        |b| b,
        |rank, ctx| {
            let peer = rank.peer();
            let memory = ctx.alloc(MemoryKind::Pinned, 1000).unwrap();
            let slice = |len| memory.slice(0, len).unwrap();
            let (sends, receives) = [(100, 64), (64, 96)][rank.me as usize];
            let build = |sends, receives| {
                let one = Neighbour::new(peer, rank.me, peer);
                let one = one.send(&slice(sends)).receive(&slice(receives));
                ctx.neighbourhood().neighbour(one).build()
            };
            let e = kind_of(build(sends, receives));
            assert_eq!(
                (e.kind(), e.rank(), e.tag()),
                (Kind::Invalid, Some(peer), Some(peer))
            );
            let says = [
                "this rank sends 100 bytes to rank 1 (send tag 0, receive tag 1), and rank 1 \
                 receives 96 bytes",
                "this rank receives 96 bytes from rank 0 (send tag 1, receive tag 0), and rank 0 \
                 sends 100 bytes",
            ];
            assert!(e.to_string().contains(says[rank.me as usize]), "{e}");
            drop(build(64, 64).unwrap());
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        },
    );
}

/// Two neighbours that are one rank share its words, so they are of one neighbourhood there.
#[test]
fn neighbours_that_the_other_rank_has_in_two_neighbourhoods_are_refused() {
    for seed in 0..20 {
        play(seed, 2, move |rank| {
            let ctx = rank.open(|b| b.timeout(secs(3)));
            let (me, peer) = (rank.me, rank.peer());
            let memory = ctx.alloc(MemoryKind::Pinned, 4 * LEN).unwrap();
            let one = |i: usize| {
                Neighbour::new(peer, 2 * i as u32 + me, 2 * i as u32 + peer)
                    .send(&memory.slice(i * LEN, LEN).unwrap())
                    .receive(&memory.slice((2 + i) * LEN, LEN).unwrap())
            };
            let halo = ctx.neighbourhood();
            match me {
                0 => {
                    let e = kind_of(halo.neighbour(one(0)).neighbour(one(1)).build());
                    assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(1)), "{e}");
                    assert!(
                        e.to_string().contains("are of two neighbourhoods there"),
                        "{e}"
                    );
                }
                _ => {
                    for i in 0..2 {
                        // It may succeed: it has what it needs of the other rank.
                        let _ = ctx.neighbourhood().neighbour(one(i)).build();
                    }
                }
            }
            rank.barrier();
        });
    }
}

#[test]
fn neighbour_that_does_not_build_its_side_is_named() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(3)));
        if rank.me != 1 {
            let start = rank.host.now();
            let with = 2 - rank.me;
            let all = [with, 1].map(|other| Neighbour::new(other, 7 + rank.me, 7 + other));
            let e = kind_of(ctx.neighbourhood().neighbours(all).build());
            assert_eq!(
                (e.kind(), e.rank(), e.tag()),
                (Kind::Missing, Some(1), Some(8)),
                "{e}"
            );
            let name = format!("rank 1 (send tag {}, receive tag 8)", 7 + rank.me);
            assert!(e.to_string().contains(&name), "{e}");
            assert!(e.to_string().contains("within 3 s"), "{e}");
            assert!(rank.host.now().since(start) < secs(4));
        }
        rank.barrier();
        // The sides of the first try are withdrawn.
        let part = Part::new(rank, &ctx, false);
        let stream = ctx.gpu().stream().unwrap();
        part.play(&stream, 1);
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn dead_rank_fails_the_build() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(30)));
        if rank.me == 1 {
            return Death::Leaves.end(rank, ctx, 1);
        }
        let all = [2 - rank.me, 1].map(|other| Neighbour::new(other, 0, 0));
        peer_failed(&kind_of(ctx.neighbourhood().neighbours(all).build()), 1);
        rank.barrier();
    });
}

#[test]
fn bad_neighbours_are_refused_by_name() {
    pair(
        |b| b,
        |rank, ctx| {
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap().all();
            let other = rank.open(|b| b.name("other"));
            let foreign = other.alloc(MemoryKind::Pinned, 64).unwrap().all();
            let peer = rank.peer();
            let build = |all: &[Neighbour]| {
                kind_of(ctx.neighbourhood().neighbours(all.iter().cloned()).build())
            };
            let far = Neighbour::new(2, 0, 0).send(&memory);
            let e = build(&[far]);
            assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(2)), "{e}");
            for of_other in [
                Neighbour::new(peer, 0, 0).send(&foreign),
                Neighbour::new(peer, 0, 0).send(&memory).receive(&foreign),
            ] {
                let e = build(&[of_other]);
                assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(peer)), "{e}");
                assert!(
                    e.to_string().contains("registered by another context"),
                    "{e}"
                );
            }
            let twice = Neighbour::new(peer, 1, 2);
            let e = build(&[twice.clone(), twice.clone()]);
            assert_eq!(
                (e.kind(), e.rank(), e.tag()),
                (Kind::Invalid, Some(peer), Some(2)),
                "{e}"
            );
            let many: Vec<_> = (0..22).map(|i| Neighbour::new(peer, i, i)).collect();
            let e = build(&many);
            assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(peer)), "{e}");
            assert_eq!(e.limit(), Some(21), "{e}");
            let alone = Neighbour::new(rank.me, 1, 2).send(&memory);
            let e = build(&[alone]);
            assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(rank.me)), "{e}");
            let short = memory.memory().slice(0, 8).unwrap();
            let itself = Neighbour::new(rank.me, 1, 1).send(&memory).receive(&short);
            let e = build(&[itself]);
            assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(rank.me)), "{e}");
            rank.barrier();
        },
    );
}

#[test]
fn calls_in_a_wrong_order_and_foreign_streams_are_refused_and_change_nothing() {
    for path in [PathChoice::Nic, PathChoice::Ipc] {
        calls_in_a_wrong_order(path);
    }
}

fn calls_in_a_wrong_order(path: PathChoice) {
    pair(
        move |b| b.path(path),
        |rank, ctx| {
            let part = Part::new(rank, ctx, true);
            let halo = &part.halo;
            let [stream, other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let elsewhere = rank.open(|b| b.name("other"));
            let foreign = elsewhere.gpu().stream().unwrap();
            let refused = |e: mp::Result<()>, kind: Kind| {
                let e = e.unwrap_err();
                assert_eq!(e.kind(), kind, "{e}");
            };
            let of_other_gpu = Kind::Gdsync(gdsync::Kind::Foreign);
            for step in 1..=3 {
                part.write(step);
                refused(halo.send_on(&stream), Kind::NoSuchRequest);
                refused(halo.send(LIMIT), Kind::NoSuchRequest);
                refused(halo.wait_on(&stream), Kind::NoSuchRequest);
                refused(halo.ready_on(&foreign), of_other_gpu);
                halo.ready_on(&stream).unwrap();
                refused(halo.ready_on(&stream), Kind::Busy);
                refused(halo.ready(), Kind::Busy);
                refused(halo.send_on(&foreign), of_other_gpu);
                halo.send_on(&stream).unwrap();
                refused(halo.send_on(&stream), Kind::Busy);
                refused(halo.ready_on(&stream), Kind::Busy);
                refused(halo.wait_on(&other), Kind::Invalid);
                refused(halo.wait(LIMIT), Kind::Invalid);
                refused(halo.wait_on(&foreign), of_other_gpu);
                refused(halo.exchange_on(&other), Kind::Invalid);
                halo.wait_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                part.check(0..2, step);
            }
            for step in 4..=6 {
                part.write(step);
                refused(halo.exchange_on(&foreign), of_other_gpu);
                if step == 5 {
                    halo.ready().unwrap();
                    refused(halo.exchange_on(&foreign), of_other_gpu);
                }
                if step == 6 {
                    halo.ready().unwrap();
                    halo.send(LIMIT).unwrap();
                    refused(halo.exchange_on(&stream), Kind::Invalid);
                    halo.wait(LIMIT).unwrap();
                } else {
                    halo.exchange_on(&stream).unwrap();
                }
                refused(halo.send_on(&stream), Kind::NoSuchRequest);
                refused(halo.wait_on(&stream), Kind::NoSuchRequest);
                ctx.synchronize(&stream, LIMIT).unwrap();
                part.check(0..2, step);
            }
            assert_eq!(halo.step(), 6);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        },
    );
}

/// A kernel of a step that is refused would run later, beside the step that another stream makes.
#[test]
fn a_step_out_of_order_launches_no_kernel() {
    pair(
        |b| b.path(PathChoice::Nic),
        |rank, ctx| {
            let (me, peer) = (rank.me, rank.peer());
            let field = ctx.alloc(MemoryKind::Device, 4 * LEN).unwrap();
            let [to_peer, from_peer, to_itself, from_itself] =
                [0, 1, 2, 3].map(|i| field.slice(i * LEN, LEN).unwrap());
            let named = [
                Neighbour::new(peer, tag(me, peer), tag(peer, me))
                    .send(&to_peer)
                    .receive(&from_peer),
                Neighbour::new(me, 1, 1)
                    .send(&to_itself)
                    .receive(&from_itself),
            ];
            let halo = ctx.neighbourhood().neighbours(named).build().unwrap();
            let [a, b] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            halo.ready_on(&a).unwrap();
            let gate = Gate::new(ctx.gpu());
            gate.hold(&a);
            let earlier = SendOp::from((peer, 9, &to_peer)).on(&a);
            let earlier = ctx.prepare_send(&earlier).unwrap();
            field.write(2 * LEN, &[1; LEN]).unwrap();
            let e = halo.send_on(&a).unwrap_err();
            assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::OutOfOrder), "{e}");
            halo.send_on(&b).unwrap();
            halo.wait_on(&b).unwrap();
            ctx.synchronize(&b, LIMIT).unwrap();
            field.write(2 * LEN, &[2; LEN]).unwrap();
            gate.open();
            assert!(a.synchronize(LIMIT).unwrap());
            let mut got = [0; LEN];
            field.read(3 * LEN, &mut got).unwrap();
            assert_eq!(got, [1; LEN]);
            earlier.cancel().unwrap();
            rank.barrier();
        },
    );
}

/// How far a rank gets in its last step.
const STAGES: u64 = 3;

/// A rank dies in the middle of a step: one error names it, and the data of the survivors is
/// complete, in this step and in the next.
#[test]
fn lost_neighbour_fails_the_step_and_the_others_complete() {
    for (i, death) in (0..Death::ALL.len() as u64 * STAGES).zip(Death::ALL.into_iter().cycle()) {
        let stage = i % STAGES;
        let by_stream = STEP_WAYS.map(|way| (way, true));
        // By mapped memory, calls of the CPU find no silent rank.
        let by_cpu = [(STEP_WAYS[0], false)];
        for ((path, whole), by_stream) in by_stream.into_iter().chain(by_cpu) {
            println!("{death:?} {stage} {path:?} {whole} {by_stream}");
            play(i, 3, move |rank| {
                let ctx = rank.open(|b| death.build_one_sided(b).path(path).timeout(secs(5)));
                let part = Part::new(rank, &ctx, stage == 1).whole(whole);
                let stream = ctx.gpu().stream().unwrap();
                part.play(&stream, 1);
                rank.barrier();
                let halo = &part.halo;
                if rank.me == 1 {
                    if stage > 0 {
                        halo.ready_on(&stream).unwrap();
                    }
                    if stage > 1 {
                        assert!(stream.synchronize(LIMIT).unwrap());
                    }
                    drop(part);
                    return death.end(rank, ctx, 2);
                }
                part.write(2);
                if !by_stream {
                    // The CPU finds a silent rank only by a message that is not acknowledged.
                    rank.pass(secs(1));
                }
                let e = match by_stream {
                    true => {
                        let step = part.step(&stream);
                        step.and_then(|()| ctx.synchronize(&stream, LIMIT))
                            .unwrap_err()
                    }
                    false => {
                        let step = halo.ready();
                        let step = step.and_then(|()| halo.send(LIMIT));
                        step.and_then(|()| halo.wait(LIMIT)).unwrap_err()
                    }
                };
                peer_failed(&e, 1);
                let of_step = (Some(tag(1, rank.me)), Some(2));
                assert_eq!((e.tag(), e.number()), of_step, "{e}");
                part.check([0, 2].into_iter(), 2);
                // Later steps fail as well, and complete with the survivors.
                part.write(3);
                part.step(&stream).unwrap();
                peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
                part.check([0, 2].into_iter(), 3);
                rank.barrier();
            });
        }
    }
}

/// With the longest timeout, a late neighbour that answers is awaited.
#[test]
fn a_late_neighbour_is_awaited_under_the_longest_timeout() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(Duration::MAX));
        let part = Part::new(rank, &ctx, false);
        let stream = ctx.gpu().stream().unwrap();
        rank.barrier();
        if rank.me == 1 {
            rank.pass(secs(20));
        }
        part.play(&stream, 1);
        rank.barrier();
    });
}

/// A rank dies at any moment of many steps that are enqueued ahead.
#[test]
fn neighbour_may_die_at_any_moment() {
    for seed in 0..80 {
        let death = Death::ALL[seed as usize % 4];
        let (path, whole) = STEP_WAYS[seed as usize / 4 % STEP_WAYS.len()];
        play(seed, 3, move |rank| {
            let ctx = rank.open(|b| death.build_one_sided(b).path(path).timeout(secs(2)));
            let part = Part::new(rank, &ctx, seed / 12 % 3 == 0).whole(whole);
            let stream = ctx.gpu().stream().unwrap();
            part.play(&stream, 1);
            if rank.me == 1 {
                let when = fastrand::Rng::with_seed(seed).u64(0..2_000_000);
                let end = rank.host.now() + Duration::from_nanos(when);
                while rank.host.now() < end {
                    part.step(&stream).unwrap();
                    while !stream.synchronize(Duration::ZERO).unwrap() && rank.host.now() < end {
                        rank.pass(Duration::from_micros(5));
                    }
                }
                drop(part);
                return death.end(rank, ctx, 1);
            }
            let e = (2..).find_map(|step: u64| {
                let enqueued = part.step(&stream);
                let ended = match step % 4 {
                    0 => ctx.synchronize(&stream, LIMIT),
                    _ => Ok(()),
                };
                enqueued.and(ended).err()
            });
            let e = e.unwrap();
            // The other survivor may have stopped before.
            assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
            assert_ne!(e.rank(), Some(rank.me));
            assert!(
                stream.synchronize(LIMIT).unwrap(),
                "a stream is left behind"
            );
            rank.barrier();
        });
    }
}

#[test]
fn late_neighbour_is_named_and_given_up_after_the_timeout() {
    for ((path, whole), stage) in STEP_WAYS.into_iter().flat_map(|way| [(way, 0), (way, 1)]) {
        let run = pair(
            move |b| b.path(path).timeout(secs(3)).watchdog(secs(1)),
            move |rank, ctx| {
                let part = Part::new(rank, ctx, false).whole(whole);
                let stream = ctx.gpu().stream().unwrap();
                part.play(&stream, 1);
                if rank.me == 1 {
                    if stage == 1 {
                        part.halo.ready_on(&stream).unwrap();
                    }
                    rank.barrier();
                    return;
                }
                part.step(&stream).unwrap();
                rank.pass(secs(2));
                let what = ["ready word", "data"][stage];
                let stuck = ctx.stuck();
                assert_eq!(stuck.len(), 1, "{stuck:?}");
                assert!(
                    stuck[0].what.contains(&format!("its {what} has not")),
                    "{}",
                    stuck[0]
                );
                let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
                peer_failed(&e, 1);
                let reason = format!("its {what} has not arrived within 3 s (Builder::timeout)");
                assert!(e.to_string().contains(&reason), "{e}");
                assert_eq!((e.tag(), e.number()), (Some(tag(1, 0)), Some(2)));
                rank.barrier();
            },
        );
        assert!(
            run.warnings
                .all()
                .iter()
                .any(|line| line.contains("step 2"))
        );
    }
}

/// By the CPU a late neighbour is an error of the call, which may be repeated.
#[test]
fn call_of_the_cpu_that_is_too_early_may_be_repeated() {
    pair(
        |b| b,
        |rank, ctx| {
            let part = Part::new(rank, ctx, true);
            let halo = &part.halo;
            part.write(1);
            if rank.me == 1 {
                rank.barrier();
                halo.ready().unwrap();
                rank.barrier();
                halo.send(LIMIT).unwrap();
                halo.wait(LIMIT).unwrap();
            } else {
                halo.ready().unwrap();
                let e = halo.send(Duration::from_millis(10)).unwrap_err();
                assert_eq!(
                    (e.kind(), e.rank(), e.tag()),
                    (Kind::Timeout, Some(1), Some(tag(1, 0)))
                );
                rank.barrier();
                halo.send(LIMIT).unwrap();
                let e = halo.wait(Duration::from_millis(10)).unwrap_err();
                assert_eq!(
                    (e.kind(), e.rank(), e.number()),
                    (Kind::Timeout, Some(1), Some(1))
                );
                rank.barrier();
                halo.wait(LIMIT).unwrap();
            }
            part.check(0..2, 1);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        },
    );
}

/// A step without its wait ends when the neighbourhood is dropped.
#[test]
fn dropped_neighbourhood_completes_by_itself() {
    pair(
        |b| b,
        |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            for by_stream in [true, false] {
                let part = Part::new(rank, ctx, true);
                part.play(&stream, 1);
                rank.barrier();
                match by_stream {
                    true => {
                        part.halo.ready_on(&stream).unwrap();
                        part.halo.send_on(&stream).unwrap();
                    }
                    false => {
                        part.halo.ready().unwrap();
                        part.halo.send(LIMIT).unwrap();
                    }
                }
                let e = ctx.close(Duration::from_millis(20)).unwrap_err();
                assert!(e.to_string().contains("step 2"), "{e}");
                assert!(stream.synchronize(LIMIT).unwrap());
                rank.barrier();
                drop(part);
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            }
        },
    );
}
