//! Ranks with different setups, malformed control messages, and unusual jobs: many ranks, many
//! streams, several contexts, manual progress.

#[path = "common/sim.rs"]
mod sim;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdsync::Status;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Bootstrap, Builder, Connect, Context, Kind, Result, Source};
use sim::{LARGE, LIMIT, Place, Rank, SMALL, millis, peer_failed, play, recv_on, secs};
use sim::{exchange, exchange_on, slice};

fn build(builder: Builder) -> Builder {
    builder.timeout(secs(5)).depth(4)
}

#[test]
fn different_setup_is_reported_on_both_sides() {
    type Setup = fn(Builder) -> Builder;
    let setups: [(Setup, [(u32, u32); 2]); 2] = [
        (|b| b.eager_limit(1024), [(4, 4096), (4, 1024)]),
        (|b| b.depth(8), [(4, 4096), (8, 4096)]),
    ];
    for (other, shapes) in setups {
        for connect in [Connect::Lazy, Connect::UpFront] {
            play(1, 3, move |rank| {
                let builder = Context::builder().bootstrap(rank.bootstrap());
                let place = rank.place(SoftOptions::default(), true);
                let builder = build(builder.gpu(&place.gpu).device(&place.device));
                let differs = usize::from(rank.me == 1);
                let builder = [build, other][differs](builder);
                let named = |e: mp::Error, with: u32| {
                    assert_eq!(e.kind(), Kind::Protocol, "{e:?}");
                    assert_eq!(e.rank(), Some(with), "{e:?}");
                    let (here, there) = (shapes[differs], shapes[1 - differs]);
                    let expected = format!(
                        "a depth of {} messages and an eager limit of {} bytes, and this rank has \
                         {} and {}",
                        there.0, there.1, here.0, here.1
                    );
                    assert!(e.to_string().contains(&expected), "{e}");
                };
                if connect == Connect::UpFront {
                    let e = builder.connect(connect).build().unwrap_err();
                    let with = if rank.me == 1 { e.rank().unwrap() } else { 1 };
                    assert_ne!(with, rank.me);
                    named(e, with);
                    return rank.barrier();
                }
                let ctx = builder.build().unwrap();
                let slice = slice(&ctx, SMALL);
                match rank.me {
                    0 => named(ctx.isend(1, 1, &slice).unwrap_err(), 1),
                    1 => named(ctx.irecv(0, 1, &slice).unwrap_err(), 0),
                    _ => {}
                }
                others_talk(rank, &ctx);
            });
        }
    }
}

/// Ranks 0 and 2 have equal setups and still exchange messages.
fn others_talk(rank: &Rank, ctx: &Context) {
    rank.barrier();
    if rank.me != 1 {
        exchange(ctx, 2 - rank.me, 5);
    }
    rank.barrier();
}

/// A peer keeps 4096 channels per direction: each side may open half of them.
#[test]
fn more_tags_than_a_peer_keeps_are_refused() {
    const MOST: usize = 2048;
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let builder = |tags| {
            let builder = Context::builder().bootstrap(rank.bootstrap());
            builder.gpu(&place.gpu).device(&place.device).channels(tags)
        };
        for tags in [3, MOST + 1] {
            let e = builder(tags).build().unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid);
            assert_eq!(e.limit(), Some(MOST as u64), "{e}");
        }
        builder(MOST).build().unwrap();
    });
}

/// The error names this rank's resources, not the peer's message.
#[test]
fn a_rank_without_memory_for_a_lane_reports_its_own_failure() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let ctx = rank.open_at(&place, build);
        let slice = slice(&ctx, SMALL);
        rank.barrier();
        if rank.me == 0 {
            let e = match ctx.isend(1, 1, &slice) {
                Ok(send) => send.wait(LIMIT).unwrap_err(),
                Err(e) => e,
            };
            peer_failed(&e, 1);
            return rank.barrier();
        }
        let mut held = Vec::new();
        let mut len = 1 << 40;
        while len >= 4096 {
            match place.gpu.alloc(MemoryKind::Pinned, len) {
                Ok(region) => held.push(region),
                Err(_) => len /= 2,
            }
        }
        rank.barrier();
        let e = ctx.irecv(0, 1, &slice).unwrap_err();
        assert_eq!(e.kind(), Kind::PeerFailed(Status::BAD_RESPONSE), "{e:?}");
        let text = e.to_string();
        assert!(text.contains("this rank cannot open its side"), "{text}");
        assert!(text.contains("bytes in use"), "{text}");
    });
}

/// A change that a bootstrap makes to a message.
type Fault = fn(&mut fastrand::Rng, &[u8]) -> Vec<Vec<u8>>;

/// A bootstrap that applies a fault to each message to rank 0, after the first few.
#[derive(Debug)]
struct Corrupt {
    inner: Arc<dyn Bootstrap>,
    state: Mutex<(fastrand::Rng, usize)>,
    fault: Fault,
}

impl Corrupt {
    /// The bootstrap of a rank; only that of rank 1 applies faults.
    fn of(rank: &Rank, rng: fastrand::Rng, good: usize, fault: Fault) -> Arc<dyn Bootstrap> {
        let (inner, state) = (rank.bootstrap(), Mutex::new((rng, good)));
        match rank.me {
            1 => Arc::new(Corrupt {
                inner,
                state,
                fault,
            }),
            _ => inner,
        }
    }
}

impl Bootstrap for Corrupt {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn job(&self) -> u64 {
        self.inner.job()
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()> {
        let (rng, good) = &mut *self.state.lock().unwrap();
        if to != 0 || *good > 0 {
            *good -= usize::from(to == 0);
            return self.inner.send(to, topic, message);
        }
        let mut faulty = (self.fault)(rng, message).into_iter();
        faulty.try_for_each(|bytes| self.inner.send(to, topic, &bytes))
    }

    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>> {
        self.inner.receive(topic)
    }

    fn forget(&self, topic: u64) {
        self.inner.forget(topic);
    }

    fn gone(&self, rank: u32) -> bool {
        self.inner.gone(rank)
    }

    fn host(&self, rank: u32) -> Option<u64> {
        self.inner.host(rank)
    }

    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> Result<()> {
        self.inner.send_fd(to, topic, fd)
    }

    fn receive_fd(&self, topic: u64) -> Result<Option<(u32, OwnedFd)>> {
        self.inner.receive_fd(topic)
    }
}

/// The message with some bits of one byte inverted.
fn flipped(message: &[u8], at: usize, bits: u8) -> Vec<u8> {
    let mut bytes = message.to_vec();
    bytes[at] ^= bits;
    bytes
}

/// Faults that rank 0 always detects: it then treats the sender as failed.
const FAULTS: &[(&str, Fault)] = &[
    ("noise", |rng, message| {
        vec![message.iter().map(|_| rng.u8(..)).collect()]
    }),
    ("nothing", |_, _| vec![Vec::new()]),
    ("half of it", |_, message| {
        vec![message[..message.len() / 2].to_vec()]
    }),
    ("more of it", |_, message| vec![[message, message].concat()]),
    ("another version", |_, message| {
        vec![flipped(message, 4, 0x80)]
    }),
    ("another kind", |_, message| {
        vec![flipped(message, 6, 0xee ^ message[6])]
    }),
    ("a long one", |rng, message| {
        let mut bytes = message.to_vec();
        bytes.resize(60_000, rng.u8(..));
        vec![bytes]
    }),
    ("everything twice, changed", |_, message| {
        let second = flipped(message, message.len() - 1, 1);
        vec![message.to_vec(), flipped(&second, 20 % message.len(), 1)]
    }),
];

#[test]
fn malformed_control_messages_fail_only_their_sender() {
    for (what, fault) in FAULTS {
        for good in [0, 1, 2] {
            let run = play(good as u64, 3, move |rank| {
                let rng = fastrand::Rng::with_seed(9);
                let bootstrap = Corrupt::of(rank, rng, good, *fault);
                let ctx = rank.open(|b| build(b).bootstrap(bootstrap));
                let slice = slice(&ctx, SMALL);
                if rank.me != 2 {
                    let with = rank.peer();
                    // It may connect before the fault, and fail after it.
                    let request = match rank.me {
                        0 => ctx.irecv(with, 1, &slice),
                        _ => ctx.isend(with, 1, &slice),
                    };
                    let e = request
                        .and_then(|r| r.wait(LIMIT))
                        .and_then(|_| ctx.isend(with, 2, &slice))
                        .and_then(|r| r.wait(LIMIT))
                        .expect_err(what);
                    assert_eq!(e.rank(), Some(with), "{what}: {e:?}");
                    let protocol = e.kind() == Kind::Protocol;
                    let failed = matches!(e.kind(), Kind::PeerFailed(_));
                    let late = e.kind() == Kind::Timeout;
                    assert!(protocol || failed || late && rank.me == 1, "{what}: {e:?}");
                }
                others_talk(rank, &ctx);
                if rank.me != 0 {
                    exchange(&ctx, 3 - rank.me, 6);
                }
                rank.barrier();
            });
            let given_up = |line: &String| line.starts_with("rank 0: rank 1 is given up");
            assert!(run.warnings.all().iter().any(given_up), "{what}, {good}");
        }
    }
}

/// Rank 0 survives any change of a message.
#[test]
fn flipped_bits_in_control_messages_are_survived() {
    gds_sim::seeds(40, |seed| -> std::result::Result<(), String> {
        play(seed, 3, move |rank| {
            let mut rng = fastrand::Rng::with_seed(seed);
            let good = rng.usize(0..6);
            let flip: Fault = |rng, message| {
                let at = rng.usize(0..message.len());
                vec![flipped(message, at, 1 << rng.u8(0..8))]
            };
            let bootstrap = Corrupt::of(rank, rng, good, flip);
            let ctx = rank.open(|b| build(b).timeout(secs(1)).bootstrap(bootstrap));
            if rank.me != 2 {
                // The exchange succeeds, or fails with the rank's name.
                let with = rank.peer();
                let attempt = || -> Result<()> {
                    for into in [&slice(&ctx, SMALL), &slice(&ctx, LARGE)] {
                        let recv = ctx.irecv(with, 1, into)?;
                        ctx.isend(with, 1, into)?.wait(secs(3))?;
                        recv.wait(secs(3))?;
                    }
                    Ok(())
                };
                if let Err(e) = attempt() {
                    assert_eq!(e.rank(), Some(with), "{e:?}");
                }
            }
            others_talk(rank, &ctx);
        });
        Ok(())
    });
}

#[test]
fn calls_of_progress_do_the_background_work() {
    for death in [false, true] {
        play(1, 2, move |rank| {
            let ctx = rank.open_manual(build);
            let stream = ctx.gpu().stream().unwrap();
            exchange_on(&ctx, rank.peer(), 1, &stream);
            let (small, large) = (slice(&ctx, SMALL), slice(&ctx, LARGE));
            // With manual progress only.
            let recv = ctx.irecv(Source::Any, 2, &large).unwrap();
            let send = ctx.isend(rank.peer(), 2, &large).unwrap();
            drop(ctx.irecv_on(&stream, rank.peer(), 3, &small).unwrap());
            drop(ctx.isend_on(&stream, rank.peer(), 3, &small).unwrap());
            rank.progress_until(&ctx, "the messages", || {
                send.test().unwrap().is_some() && recv.test().unwrap().is_some()
            });
            ctx.close(LIMIT).unwrap();
            rank.come();
            rank.progress_until(&ctx, "the other", || rank.has_come(rank.peer(), 1));
            if !death {
                return;
            }
            if rank.me == 1 {
                drop((send, recv, ctx));
                return rank.leave();
            }
            let recv = ctx.irecv_on(&stream, 1, 4, &small);
            let recv = recv.and_then(|r| r.wait_on(&stream).map(|()| r));
            rank.progress_until(&ctx, "the end", || stream.is_idle().unwrap());
            let e = recv.and_then(|r| r.wait(LIMIT)).unwrap_err();
            peer_failed(&e, 1);
        });
    }
}

#[test]
fn job_of_160_ranks_exchanges_messages() {
    const N: u32 = 160;
    /// Ranks that share a GPU and a NIC.
    const TOGETHER: u32 = 20;
    let places = Rc::new(RefCell::new(BTreeMap::new()));
    let run = play(1, N, move |rank| {
        let options = SoftOptions::default().channels(32);
        let place: Rc<Place> = {
            let mut places = places.borrow_mut();
            let make = || Rc::new(rank.place(options, true));
            Rc::clone(places.entry(rank.me / TOGETHER).or_insert_with(make))
        };
        let ctx = rank.open_at(&place, |b| b.timeout(secs(20)).depth(4).eager_limit(256));
        let stream = ctx.gpu().stream().unwrap();
        let (next, before) = rank.neighbours();
        // A ring on streams.
        let (out, into) = (slice(&ctx, SMALL), slice(&ctx, SMALL));
        out.memory().write(0, &rank.me.to_le_bytes()).unwrap();
        let recv = ctx.irecv_on(&stream, before, 1, &into).unwrap();
        let send = ctx.isend_on(&stream, next, 1, &out).unwrap();
        recv.wait_on(&stream).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&[recv, send], LIMIT).unwrap();
        let got = || {
            let mut got = [0; 4];
            into.memory().read(0, &mut got).unwrap();
            u32::from_le_bytes(got)
        };
        assert_eq!(got(), before);
        // All send to one rank, which receives from any rank.
        if rank.me == 0 {
            let mut seen = vec![0; N as usize];
            for _ in 1..N {
                let any = ctx.irecv(Source::Any, 2, &into).unwrap();
                let from = any.wait(LIMIT).unwrap().source();
                assert_eq!(got(), from);
                seen[from as usize] += 1;
            }
            assert_eq!(seen[0], 0);
            assert!(seen[1..].iter().all(|n| *n == 1));
        } else {
            ctx.isend(0, 2, &out).unwrap().wait(LIMIT).unwrap();
        }
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
    assert_eq!(run.warnings.all(), [""; 0]);
}

/// More answers to announcements than a queue has room for at once.
#[test]
fn many_receives_from_any_rank_match_at_once() {
    const MANY: usize = 60;
    play(1, 3, |rank| {
        let ctx = rank.open(|b| build(b).depth(64));
        let slice = slice(&ctx, LARGE);
        if rank.me == 0 {
            // All messages are announced by now.
            rank.barrier();
            rank.pass(millis(20));
            let all = [(); 2 * MANY].map(|()| ctx.irecv(Source::Any, 1, &slice).unwrap());
            let done = mp::wait_all(&all, LIMIT).unwrap();
            for from in [1, 2] {
                let count = done.iter().filter(|d| d.source() == from).count();
                assert_eq!(count, MANY);
            }
        } else {
            let all = [(); MANY].map(|()| ctx.isend(0, 1, &slice).unwrap());
            rank.pass(millis(20));
            rank.barrier();
            mp::wait_all(&all, LIMIT).unwrap();
        }
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn contexts_of_different_names_are_independent() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let one = rank.open_at(&place, |b| build(b).name("one"));
        let two = rank.open_at(&place, |b| build(b).name("two").depth(8));
        exchange(&one, rank.peer(), 1);
        exchange(&two, rank.peer(), 1);
        rank.barrier();
        // The end of one context does not end the other.
        let stream = one.gpu().stream().unwrap();
        let small = slice(&one, SMALL);
        if rank.me == 1 {
            rank.barrier();
            drop((stream, small, one));
        } else {
            let lost = recv_on(&one, &stream, 1, 2, &small);
            rank.barrier();
            assert!(stream.synchronize(LIMIT).unwrap());
            let e = lost.wait(LIMIT).unwrap_err();
            assert_eq!(e.kind(), Kind::PeerFailed(Status::REMOTE_ABORTED), "{e}");
            assert_eq!(one.error(), Some(Status::REMOTE_ABORTED));
        }
        exchange(&two, rank.peer(), 3);
        assert_eq!(two.error(), None);
        two.close(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn context_name_can_be_reused() {
    play(1, 2, |rank| {
        for round in 0..3 {
            let ctx = rank.open(build);
            exchange(&ctx, rank.peer(), round);
            ctx.close(LIMIT).unwrap();
            drop(ctx);
            rank.pass(millis(u64::from(rank.me) * 5));
        }
        rank.barrier();
    });
}

#[test]
fn more_streams_than_lanes_exchange_messages() {
    const STREAMS: usize = 20;
    const ROUNDS: usize = 6;
    let run = play(1, 2, |rank| {
        let options = SoftOptions::default().channels(32);
        let ctx = rank.open_at(&rank.place(options, true), |b| build(b).watchdog(secs(1)));
        let streams: Vec<_> = (0..STREAMS).map(|_| ctx.gpu().stream().unwrap()).collect();
        let mut requests = Vec::new();
        for round in 0..ROUNDS {
            let order: Vec<usize> = match (rank.me as usize + round) % 2 {
                0 => (0..STREAMS).collect(),
                _ => (0..STREAMS).rev().collect(),
            };
            let len = if round % 2 == 0 { SMALL } else { LARGE };
            // Receives first: streams that share a lane post in one order.
            let peer = rank.peer();
            let receive =
                |at: &usize| ctx.irecv_on(&streams[*at], peer, *at as u32, &slice(&ctx, len));
            let send =
                |at: &usize| ctx.isend_on(&streams[*at], peer, *at as u32, &slice(&ctx, len));
            let first = requests.len();
            requests.extend(order.iter().map(|at| receive(at).unwrap()));
            requests.extend(order.iter().map(|at| send(at).unwrap()));
            for (at, recv) in order.iter().zip(&requests[first..]) {
                recv.wait_on(&streams[*at]).unwrap();
            }
        }
        for stream in &streams {
            assert!(stream.synchronize(Duration::from_secs(20)).unwrap());
        }
        mp::wait_all(&requests, LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
    assert_eq!(run.warnings.all(), [""; 0]);
}
