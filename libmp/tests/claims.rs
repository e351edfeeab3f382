//! Streams that receive a message without a connection to the peer, and eager messages under a tag
//! without rooms for them: the call opens what is missing, and waits for it once, up to its time
//! limit.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use mp::{Builder, Context, Full, Kind};
use sim::{LARGE, LIMIT, Rank, SMALL, millis, peer_failed, play, recv, secs, send, slice};

const T: Duration = secs(4);
/// Slack for rounds of the background work.
const SLACK: Duration = millis(20);

fn build(builder: Builder) -> Builder {
    builder.timeout(T).depth(4)
}

/// Rank 1: sends the message that connects both ranks, then stops all work.
fn sends_and_stops(rank: &Rank) -> Context {
    let ctx = rank.open_manual(build);
    let first = ctx.isend(0, 1, &slice(&ctx, SMALL)).unwrap();
    first.wait(LIMIT).unwrap();
    rank.barrier();
    ctx
}

/// Rank 0: receives it.
fn receives(rank: &Rank, full: Full) -> Context {
    let ctx = rank.open(|b| build(b).full(full));
    recv(&ctx, 1, 1, SMALL);
    rank.barrier();
    ctx
}

#[test]
fn silent_rank_is_waited_for_once_and_named() {
    for full in [Full::Wait, Full::Fail] {
        play(1, 2, move |rank| {
            if rank.me == 1 {
                let ctx = sends_and_stops(rank);
                rank.barrier();
                drop(ctx.isend(0, 1, &slice(&ctx, SMALL)).unwrap());
                return rank.progress_until(&ctx, "the other", || rank.has_come(0, 3));
            }
            let ctx = receives(rank, full);
            let stream = ctx.gpu().stream().unwrap();
            let recv = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap();
            let before = rank.host.now();
            let e = recv.wait_on(&stream).unwrap_err();
            let took = rank.host.now().since(before);
            assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)), "{e}");
            assert!((T..T + SLACK).contains(&took), "{took:?}");
            // The call has no lasting effect: it succeeds once the peer answers.
            rank.barrier();
            recv.wait_on(&stream).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
            assert_eq!(recv.wait(LIMIT).unwrap().source(), 1);
            assert_eq!(ctx.error(), None);
            rank.come();
        });
    }
}

#[test]
fn rank_that_dies_during_the_wait_is_not_waited_for() {
    play(2, 2, |rank| {
        if rank.me == 1 {
            let ctx = sends_and_stops(rank);
            rank.pass(secs(1));
            drop(ctx);
            return rank.leave();
        }
        let ctx = receives(rank, Full::Wait);
        let stream = ctx.gpu().stream().unwrap();
        let recv = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap();
        let before = rank.host.now();
        let e = recv.wait_on(&stream).unwrap_err();
        let took = rank.host.now().since(before);
        peer_failed(&e, 1);
        assert!(
            (secs(1) - SLACK..secs(1) + SLACK).contains(&took),
            "{took:?}"
        );
        assert!(stream.is_idle().unwrap());
    });
}

/// Rank 1: receives a message above the eager limit, then stops all work.
fn receives_and_stops(rank: &Rank) -> Context {
    let ctx = rank.open_manual(build);
    recv(&ctx, 0, 1, LARGE);
    rank.barrier();
    ctx
}

/// Rank 0: sends it.
fn sends(rank: &Rank) -> Context {
    let ctx = rank.open(build);
    send(&ctx, 1, 1, LARGE);
    rank.barrier();
    ctx
}

#[test]
fn first_eager_message_behind_large_ones_waits_once_for_the_other_rank() {
    play(3, 2, |rank| {
        if rank.me == 1 {
            let ctx = receives_and_stops(rank);
            rank.barrier();
            recv(&ctx, 0, 1, LARGE);
            rank.barrier();
            rank.barrier();
            return recv(&ctx, 0, 1, LARGE);
        }
        let ctx = sends(rank);
        let small = slice(&ctx, SMALL);
        let before = rank.host.now();
        let e = ctx.isend(1, 1, &small).unwrap_err();
        let took = rank.host.now().since(before);
        assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)), "{e}");
        assert!((T..T + SLACK).contains(&took), "{took:?}");
        rank.barrier();
        // The first call has no lasting effect.
        ctx.isend(1, 1, &small).unwrap().wait(LIMIT).unwrap();
        rank.barrier();
        // The other rank does no work meanwhile, and is not needed.
        ctx.isend(1, 1, &small).unwrap().wait(LIMIT).unwrap();
        assert_eq!(ctx.error(), None);
        rank.barrier();
    });
}

#[test]
fn rank_that_dies_before_it_makes_rooms_is_not_waited_for() {
    play(4, 2, |rank| {
        if rank.me == 1 {
            let ctx = receives_and_stops(rank);
            rank.pass(secs(1));
            drop(ctx);
            return rank.leave();
        }
        let ctx = sends(rank);
        let before = rank.host.now();
        let e = ctx.isend(1, 1, &slice(&ctx, SMALL)).unwrap_err();
        let took = rank.host.now().since(before);
        peer_failed(&e, 1);
        assert!((secs(1)..secs(1) + SLACK).contains(&took), "{took:?}");
    });
}
