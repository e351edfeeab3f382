//! Calls for several requests that exceed a limit: of a stream, or of a queue.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::soft::SoftOptions;
use mp::{Context, Full, Kind, RecvOp, Request, SendOp};
use sim::{LARGE, LIMIT, SMALL, play, send, slice};

/// Messages of a call, and the submissions that a waiting stream holds.
const MANY: usize = 100;
const BOUND: usize = 64;

/// A stream cannot hold a kernel for each message: the call is refused, and does not block.
#[test]
fn waits_that_exceed_the_stream_are_refused_as_a_whole() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default().stream_bound(BOUND), true);
        let ctx = rank.open_at(&place, |b| b.full(Full::Fail).depth(128));
        if rank.me == 1 {
            rank.barrier();
            (0..MANY).for_each(|_| send(&ctx, 0, 1, SMALL));
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let recvs: Vec<Request> = (0..MANY)
            .map(|_| ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap())
            .collect();
        let e = ctx.wait_all_on(&stream, &recvs).unwrap_err();
        assert_eq!(
            (e.kind(), e.limit()),
            (Kind::QueueFull, Some(BOUND as u64)),
            "{e}"
        );
        assert!(stream.synchronize(LIMIT).unwrap(), "a part is enqueued");
        ctx.wait_all_on(&stream, &recvs[..MANY / 4]).unwrap();
        rank.barrier();
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&recvs, LIMIT).unwrap();
        rank.barrier();
    });
}

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
