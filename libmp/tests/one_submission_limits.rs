//! Calls for several requests that exceed the limit of a queue.

#[path = "common/sim.rs"]
mod sim;

use gdsync::rdma::QpConfig;
use mp::{Context, Full, Kind, NicOptions, RecvOp, Request, SendOp};
use sim::{LARGE, LIMIT, SMALL, play, secs, slice};

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

/// The context waits for room. A queue that is empty returns none.
#[test]
fn messages_that_never_fit_the_queue_are_refused_at_once() {
    const BLOCKS: u32 = 32;
    play(1, 2, |rank| {
        let queues = QpConfig::default().send_blocks(BLOCKS);
        let nic = NicOptions::default().queues(queues);
        let timeout = secs(10);
        let ctx = rank.open(|b| b.timeout(timeout).nic(nic));
        let recv = |into| ctx.irecv(0, 1, into).unwrap();
        if rank.me == 1 {
            let into = slice(&ctx, SMALL);
            let all: Vec<_> = (0..MANY / 2).map(|_| recv(&into)).collect();
            mp::wait_all(&all, LIMIT).unwrap();
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let data = slice(&ctx, SMALL);
        let send = |_| ctx.prepare_send(&SendOp::from((1, 1, &data))).unwrap();
        let all: Vec<_> = (0..MANY / 2).map(send).collect();
        let start = rank.host.now();
        let e = ctx.post_all_on(&stream, &all).unwrap_err();
        assert_eq!(
            (e.kind(), e.rank(), e.limit()),
            (Kind::QueueFull, Some(1), Some(BLOCKS.into())),
            "{e}"
        );
        assert!(rank.host.now().since(start) < timeout);
        // Some of them fit, and then the others, which wait for room.
        let (some, others) = all.split_at(4);
        ctx.post_all_on(&stream, some).unwrap();
        others
            .chunks(4)
            .for_each(|some| ctx.post_all_on(&stream, some).unwrap());
        assert!(stream.synchronize(LIMIT).unwrap());
        mp::wait_all(&all, LIMIT).unwrap();
        rank.barrier();
    });
}
