//! Calls for several requests that exceed a limit: of a stream, or of a queue.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::soft::SoftOptions;
use mp::{Full, Kind, Request};
use sim::{LIMIT, SMALL, play, send, slice};

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
