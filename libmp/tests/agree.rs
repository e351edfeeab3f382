//! Agreements on lost ranks: each kind of loss, before and during the call; ranks that do not call;
//! ranks that others gave up.

#[path = "common/sim.rs"]
mod sim;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mp::{Agreed, Context, Kind, Progress, RecvOp};
use sim::{
    Death, LIMIT, Rank, exchange, exchange_on, millis, pair, peer_failed, play, secs, slice,
};

fn lost(agreed: mp::Result<Agreed>) -> Vec<u32> {
    agreed.unwrap().lost
}

#[test]
fn ranks_that_live_lose_none_and_agree_on_the_greatest_value() {
    for ranks in [1, 2, 5] {
        play(u64::from(ranks), ranks, |rank| {
            let ctx = rank.open(|b| b);
            for round in 0..5 {
                rank.pass(millis(u64::from(rank.me) * 3));
                let agreed = ctx.agree(10 * round + u64::from(rank.me), LIMIT).unwrap();
                let value = 10 * round + u64::from(rank.ranks) - 1;
                assert_eq!((agreed.lost, agreed.value), (vec![], value));
                assert!(!ctx.is_asked_to_agree() || round < 4);
            }
            rank.barrier();
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}

/// Rank 3 of four dies; no rank has exchanged a message with it, or rank 1 alone has.
#[test]
fn survivors_name_the_rank_that_died_and_continue() {
    for death in Death::ALL {
        for known in [false, true] {
            println!("{death:?} {known}");
            play(1, 4, move |rank| {
                let ctx = rank.open(|b| death.build(b).timeout(secs(1)));
                if known && rank.me % 2 == 1 {
                    exchange(&ctx, 4 - rank.me, 1);
                }
                rank.barrier();
                if rank.me == 3 {
                    return death.end(rank, ctx, 2);
                }
                if death == Death::IsCut {
                    // Its process runs: it is lost when a request with it has failed.
                    if rank.me == 1 {
                        let send = ctx.isend(3, 2, &slice(&ctx, 8));
                        peer_failed(&send.and_then(|s| s.wait(LIMIT)).unwrap_err(), 3);
                    }
                    rank.pass(secs(10));
                }
                for round in 0..3 {
                    let agreed = ctx.agree(round, secs(2)).unwrap();
                    assert_eq!((agreed.lost, agreed.value), (vec![3], round));
                }
                for other in (0..3).filter(|other| *other != rank.me) {
                    exchange(&ctx, other, 5);
                }
                rank.come();
                // No rank drops its context before all have finished.
                assert_eq!(lost(ctx.agree(0, secs(2))), [3]);
                let e = ctx.isend(3, 2, &slice(&ctx, 8)).map(drop).unwrap_err();
                peer_failed(&e, 3);
            });
        }
    }
}

/// Three of six ranks die one after the other, each a little after the survivors have called.
#[test]
fn ranks_die_during_agreements() {
    for seed in 0..20 {
        let sets = Rc::new(RefCell::new(Vec::new()));
        let all = Rc::clone(&sets);
        play(seed, 6, move |rank| {
            let ctx = rank.open(|b| b.timeout(secs(1)));
            rank.barrier();
            for round in 0..3 {
                if rank.me == 5 - round {
                    rank.pass(Duration::from_micros(seed * 100));
                    if seed % 2 == 0 {
                        drop(ctx.agree(0, Duration::ZERO));
                    }
                    let death = [Death::Leaves, Death::Freezes][(seed / 2 % 2) as usize];
                    return death.end(rank, ctx, u64::MAX);
                }
                let agreed = ctx.agree(0, secs(2)).unwrap();
                all.borrow_mut().push((round, agreed.lost));
            }
        });
        let sets = sets.borrow();
        for (round, set) in sets.iter() {
            let (_, first) = sets.iter().find(|(of, _)| of == round).unwrap();
            assert_eq!(set, first, "seed {seed}");
            let count = *round as usize;
            let before: Vec<u32> = (6 - round..6).collect();
            let died = &set[set.len() - count.min(set.len())..];
            assert_eq!(died, before, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn a_rank_that_does_not_call_is_missing_and_may_call_later() {
    play(1, 3, |rank| {
        let ctx = rank.open(|b| b);
        if rank.me == 2 {
            rank.barrier();
            assert!(ctx.is_asked_to_agree());
            assert_eq!(lost(ctx.agree(9, LIMIT)), []);
        } else {
            let e = ctx.agree(1, secs(2)).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(2)), "{e}");
            assert!(e.to_string().contains("rank 2 did not call"), "{e}");
            assert!(!ctx.is_asked_to_agree());
            rank.barrier();
            // The first value counts.
            let agreed = ctx.agree(100, LIMIT).unwrap();
            assert_eq!((agreed.lost, agreed.value), (vec![], 9));
        }
        rank.barrier();
    });
}

/// A rank without background work answers pings while it calls `progress`, and counts as lost when
/// it does not.
#[test]
fn a_rank_that_does_no_background_work_is_lost() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.progress(Progress::Manual));
        let done = |e: mp::Result<Agreed>| e.map(drop);
        if rank.me == 0 {
            let e = done(ctx.agree(0, secs(2))).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(1)), "{e}");
            rank.barrier();
            assert_eq!(lost(ctx.agree(0, secs(2))), [1]);
            rank.barrier();
        } else {
            rank.progress_until(&ctx, "the other rank does not call", || rank.has_come(0, 1));
            rank.barrier();
            rank.barrier();
            let e = done(ctx.agree(0, secs(2))).unwrap_err();
            peer_failed(&e, 0);
            assert!(e.to_string().contains("given this rank up"), "{e}");
            peer_failed(&done(ctx.agree(0, secs(2))).unwrap_err(), 0);
        }
        rank.come();
        rank.until("the end", || rank.has_come(1 - rank.me, 3));
    });
}

/// Rank 0 gives rank 1 up, which lives: rank 1 is lost, and does not take rank 0 with it.
#[test]
fn a_rank_that_one_rank_gave_up_is_lost_to_all() {
    for seed in 0..10 {
        play(seed, 4, |rank| {
            let ctx = rank.open(|b| b);
            if rank.me < 2 {
                exchange(&ctx, rank.peer(), 1);
            }
            rank.barrier();
            if rank.me == 0 {
                let into = [slice(&ctx, 8)];
                let recv = RecvOp::new(1, 2, &into).timeout(millis(10));
                let recv = ctx.post_recv(&recv).unwrap();
                peer_failed(&recv.wait(LIMIT).unwrap_err(), 1);
            }
            rank.barrier();
            rank.pass(millis(5));
            let agreed = ctx.agree(0, secs(10));
            match rank.me {
                1 => {
                    let e = agreed.unwrap_err();
                    assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
                }
                _ => assert_eq!(lost(agreed), [1]),
            }
            rank.barrier();
        });
    }
}

/// The streams and requests of survivors that wait for a lost rank end.
#[test]
fn an_agreement_ends_requests_with_lost_ranks() {
    play(1, 3, |rank| {
        let ctx: Context = rank.open(|b| b.timeout(LIMIT / 2));
        let stream = ctx.gpu().stream().unwrap();
        for other in (0..3).filter(|other| *other != rank.me) {
            exchange_on(&ctx, other, 1, &stream);
        }
        rank.barrier();
        if rank.me == 2 {
            return Death::Freezes.end(rank, ctx, 1);
        }
        let recv = ctx.irecv_on(&stream, 2, 1, &slice(&ctx, 8)).unwrap();
        recv.wait_on(&stream).unwrap();
        assert_eq!(lost(ctx.agree(0, secs(2))), [2]);
        peer_failed(&ctx.synchronize(&stream, secs(1)).unwrap_err(), 2);
        peer_failed(&recv.wait(secs(1)).unwrap_err(), 2);
    });
}

#[test]
fn a_call_without_time_does_not_wait_and_continues_in_the_background() {
    pair(
        |b| b,
        |rank: &Rank, ctx| {
            let at_once = ctx.agree(u64::from(rank.me), Duration::ZERO);
            if let Err(e) = &at_once {
                assert!(matches!(e.kind(), Kind::Missing | Kind::Timeout), "{e}");
            }
            rank.pass(millis(50));
            let agreed = at_once.or_else(|_| ctx.agree(7, Duration::ZERO)).unwrap();
            assert_eq!((agreed.lost, agreed.value), (vec![], 1));
        },
    );
}

/// A rank that did no background work between two calls has pinged no rank: none was silent.
#[test]
fn a_pause_of_this_rank_is_no_silence_of_the_others() {
    play(1, 2, |rank| {
        let manual = rank.me == 0;
        let ctx = rank.open(|b| match manual {
            true => b.progress(Progress::Manual),
            false => b,
        });
        if manual {
            let missing = |limit| {
                let e = ctx.agree(0, limit).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Missing, Some(1)), "{e}");
            };
            missing(millis(100));
            rank.pass(secs(10));
            missing(millis(100));
            rank.come();
            assert_eq!(lost(ctx.agree(0, LIMIT)), []);
            rank.progress_until(&ctx, "the end", || rank.has_come(1, 2));
            rank.come();
        } else {
            rank.barrier();
            assert_eq!(lost(ctx.agree(0, LIMIT)), []);
            rank.barrier();
        }
    });
}

/// A call of a second thread would be another agreement, or the same one, by chance.
#[test]
fn a_second_thread_of_a_rank_is_refused() {
    let mut jobs = mp::bootstrap::Local::ranks(2).into_iter();
    let mut open = || {
        let builder = Context::builder().bootstrap(jobs.next().unwrap());
        builder.gpu(&gdsync::Gpu::soft().unwrap()).build().unwrap()
    };
    let (ctx, other) = (open(), open());
    for round in 0..3 {
        std::thread::scope(|threads| {
            let first = threads.spawn(|| ctx.agree(round, LIMIT));
            let host = other.gpu().host();
            let deadline = host.now() + LIMIT;
            // The first call is in progress until the other rank calls.
            assert!(host.wait_until(Some(deadline), &mut || other.is_asked_to_agree()));
            let e = ctx.agree(9, LIMIT).unwrap_err();
            assert_eq!(e.kind(), Kind::Busy, "{e}");
            let agreed = other.agree(0, LIMIT).unwrap();
            assert_eq!((agreed.lost, agreed.value), (vec![], round));
            assert_eq!(first.join().unwrap().unwrap().value, round);
        });
    }
}

/// One survivor makes a window or a collective call, which need the rank that died, and the other one
/// agrees: the call ends with an error that names that rank, and then both agree.
#[test]
fn a_collective_call_and_an_agreement_end_at_once() {
    for death in [Death::Leaves, Death::Closes, Death::Freezes] {
        for makes in [true, false] {
            println!("{death:?} {makes}");
            play(1, 3, move |rank| {
                let ctx = rank.open(|b| b.timeout(secs(3)));
                let mut all = ctx.collectives(8).unwrap();
                let memory = slice(&ctx, 64);
                rank.barrier();
                if rank.me == 2 {
                    drop(all);
                    return death.end(rank, ctx, 2);
                }
                if rank.me == 0 {
                    let made = match makes {
                        true => ctx.window(memory.memory()).map(drop),
                        false => all.barrier(secs(3)),
                    };
                    let e = made.unwrap_err();
                    let kinds = matches!(
                        e.kind(),
                        Kind::PeerFailed(_) | Kind::Missing | Kind::Timeout
                    );
                    assert!(kinds && e.rank().is_some(), "{e}");
                }
                let agreed = ctx.agree(u64::from(rank.me), LIMIT / 4).unwrap();
                assert_eq!((agreed.lost, agreed.value), (vec![2], 1));
                rank.barrier();
            });
        }
    }
}
