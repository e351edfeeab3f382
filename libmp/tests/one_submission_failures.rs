//! Failures among the messages for which a stream waits, or which it posts, in one call.

#[path = "common/sim.rs"]
mod sim;

use mp::SendOp;
use sim::{LARGE, SMALL, pair, peer_failed, secs, slice};

/// Of the messages for which a stream waits in one call, one does not come: it is found behind
/// those that have come.
#[test]
fn a_missing_message_is_named_and_times_out_behind_those_that_have_come() {
    for tags in [[1, 2], [2, 1]] {
        pair(
            |b| b.timeout(secs(3)).watchdog(secs(1)),
            move |rank, ctx| {
                let stream = ctx.gpu().stream().unwrap();
                let data = slice(ctx, SMALL);
                if rank.me == 1 {
                    drop(ctx.isend_on(&stream, 0, 1, &data).unwrap());
                    rank.barrier();
                    return;
                }
                let receive = |tag| ctx.irecv_on(&stream, 1, tag, &data).unwrap();
                ctx.wait_all_on(&stream, &tags.map(receive)).unwrap();
                rank.pass(secs(2));
                let stuck: Vec<u32> = ctx.stuck().iter().map(|stuck| stuck.tag).collect();
                assert_eq!(stuck, [2]);
                let e = ctx.synchronize(&stream, secs(10)).unwrap_err();
                peer_failed(&e, 1);
                assert_eq!(e.tag(), Some(2), "{e}");
                rank.barrier();
            },
        );
    }
}

/// As above, for the receives of large sends that a stream posts in one call.
#[test]
fn a_missing_receive_is_named_and_times_out_behind_those_that_are_posted() {
    for tags in [[1, 2], [2, 1]] {
        pair(
            |b| b.timeout(secs(3)).watchdog(secs(1)),
            move |rank, ctx| {
                let stream = ctx.gpu().stream().unwrap();
                let data = slice(ctx, LARGE);
                if rank.me == 1 {
                    drop(ctx.irecv_on(&stream, 0, 1, &data).unwrap());
                    rank.barrier();
                    return;
                }
                let send = |tag| ctx.prepare_send(&SendOp::from((1, tag, &data))).unwrap();
                ctx.post_all_on(&stream, &tags.map(send)).unwrap();
                rank.pass(secs(2));
                let stuck: Vec<u32> = ctx.stuck().iter().map(|stuck| stuck.tag).collect();
                assert_eq!(stuck, [2]);
                let e = ctx.synchronize(&stream, secs(10)).unwrap_err();
                peer_failed(&e, 1);
                assert_eq!(e.tag(), Some(2), "{e}");
                rank.barrier();
            },
        );
    }
}
