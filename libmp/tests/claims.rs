//! Streams that are to take a message in and have no way to the peer yet: the call opens it, and
//! waits for that as long as it may, once.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use mp::{Builder, Context, Full, Kind};
use sim::{LIMIT, Rank, SMALL, millis, peer_failed, play, recv, secs, slice};

const T: Duration = secs(4);
/// Rounds of the background work take their time.
const SLACK: Duration = millis(20);

fn build(builder: Builder) -> Builder {
    builder.timeout(T).depth(4)
}

/// Rank 1: sends the message by which both know each other, and does nothing from then on.
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
fn a_silent_rank_is_waited_for_once_and_named() {
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
            // Nothing is lost: it is possible once the peer answers.
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
fn a_rank_that_dies_meanwhile_is_not_waited_for() {
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
        assert!((secs(1)..secs(1) + SLACK).contains(&took), "{took:?}");
        assert!(stream.is_idle().unwrap());
    });
}
