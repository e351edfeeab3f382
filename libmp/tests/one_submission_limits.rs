//! Calls for several requests that exceed the limit of a queue.

#[path = "common/sim.rs"]
mod sim;

use mp::{Context, Full, Kind, RecvOp, Request, SendOp};
use sim::{LARGE, LIMIT, SMALL, play, slice};

/// Messages of a call in each direction.
const MANY: usize = 100;

/// Prepared messages of this rank to itself.
fn to_itself(ctx: &Context, len: usize) -> Vec<Request> {
    let recv = |tag| {
        let into = slice(ctx, len);
        ctx.prepare_recv(&RecvOp::from((ctx.rank(), tag, &into)))
            .unwrap()
    };
    let send = |tag| {
        let data = slice(ctx, len);
        ctx.prepare_send(&SendOp::from((ctx.rank(), tag, &data)))
            .unwrap()
    };
    (0..MANY as u32)
        .map(recv)
        .chain((0..MANY as u32).map(send))
        .collect()
}

#[test]
fn many_messages_to_itself_are_posted_all_or_none() {
    for len in [SMALL, LARGE] {
        play(1, 1, move |rank| {
            let ctx = rank.open(|b| b.full(Full::Fail));
            let stream = ctx.gpu().stream().unwrap();
            let all = to_itself(&ctx, len);
            if let Err(e) = ctx.post_all_on(&stream, &all) {
                assert_eq!(e.kind(), Kind::QueueFull, "{e}");
                // None is posted: each can be.
                for at in 0..MANY {
                    for one in [at, MANY + at] {
                        ctx.post_all_on(&stream, &all[one..=one]).unwrap();
                    }
                    assert!(stream.synchronize(LIMIT).unwrap());
                }
            }
            assert!(stream.synchronize(LIMIT).unwrap());
            mp::wait_all(&all, LIMIT).unwrap();
        });
    }
}
