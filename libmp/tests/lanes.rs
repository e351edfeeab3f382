//! The queue pair on which a stream posts: a new one while the limit permits, then one whose stream
//! was dropped, and if all are in use the one with the fewest streams.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use mp::{Builder, SendOp};
use sim::{LIMIT, Rank, pair, play, recv, secs, send, slice};

/// More than the eager limit: the send blocks its stream until the receive is posted.
const LARGE: usize = 64 << 10;
const SMALL: usize = 64;
const STREAMS: usize = 7;

fn build(builder: Builder) -> Builder {
    builder.timeout(secs(5))
}

/// Two streams. The first is blocked at a send whose receive the peer posts only after the second
/// stream's message has arrived: the two must not share a queue pair.
fn depend(rank: &Rank, ctx: &mp::Context, streams: [&Stream; 2]) {
    if rank.me == 0 {
        let [first, second] = streams;
        let first = ctx.isend_on(first, 1, 1, &slice(ctx, LARGE)).unwrap();
        let second = ctx.isend_on(second, 1, 2, &slice(ctx, SMALL)).unwrap();
        second.wait(LIMIT).unwrap();
        first.wait(LIMIT).unwrap();
    } else {
        recv(ctx, 0, 2, SMALL);
        recv(ctx, 0, 1, LARGE);
    }
}

/// One short message from rank 0 on each of the streams.
fn use_all(rank: &Rank, ctx: &mp::Context, streams: &[Stream]) {
    for stream in streams {
        if rank.me == 0 {
            let send = ctx.isend_on(stream, 1, 3, &slice(ctx, SMALL)).unwrap();
            send.wait(LIMIT).unwrap();
        } else {
            recv(ctx, 0, 3, SMALL);
        }
    }
}

fn streams(ctx: &mp::Context, count: usize) -> Vec<Stream> {
    (0..count).map(|_| ctx.gpu().stream().unwrap()).collect()
}

/// A stream whose number equals that of `other` modulo the number of streams with their own queue
/// pair.
fn alike(ctx: &mp::Context, other: &Stream) -> Stream {
    loop {
        let stream = ctx.gpu().stream().unwrap();
        if (stream.id() - other.id()).is_multiple_of(STREAMS as u64) {
            return stream;
        }
    }
}

#[test]
fn queue_pairs_of_dropped_streams_are_reused() {
    for seed in 0..4 {
        play(seed, 2, |rank| {
            let ctx = rank.open(build);
            for _ in 0..3 {
                let gone = streams(&ctx, STREAMS);
                use_all(rank, &ctx, &gone);
                drop(gone);
                let first = ctx.gpu().stream().unwrap();
                let second = alike(&ctx, &first);
                depend(rank, &ctx, [&first, &second]);
            }
            rank.barrier();
            ctx.close(LIMIT).unwrap();
        });
    }
}

/// While seven streams exist, the eighth and the ninth share different queue pairs.
#[test]
fn streams_that_share_a_queue_pair_share_the_least_used() {
    pair(build, |rank, ctx| {
        let alive = streams(ctx, STREAMS);
        use_all(rank, ctx, &alive);
        let first = ctx.gpu().stream().unwrap();
        let second = alike(ctx, &first);
        depend(rank, ctx, [&first, &second]);
        // A stream does not change its queue pair while it lives.
        depend(rank, ctx, [&alive[0], &alive[6]]);
        rank.barrier();
        ctx.close(LIMIT).unwrap();
    });
}

/// A stream that is blocked at a send keeps its queue pair, with or without a handle on the stream.
#[test]
fn a_stream_without_handles_that_has_work_keeps_its_queue_pair() {
    for seed in 0..4 {
        play(seed, 2, |rank| {
            let ctx = rank.open(build);
            let mut gone = streams(&ctx, STREAMS);
            use_all(rank, &ctx, &gone);
            let standing = gone.remove(0);
            drop(gone);
            if rank.me == 0 {
                let first = ctx.isend_on(&standing, 1, 1, &slice(&ctx, LARGE));
                let first = first.unwrap();
                drop(standing);
                for _ in 0..2 * STREAMS {
                    let stream = ctx.gpu().stream().unwrap();
                    let second = ctx.isend_on(&stream, 1, 2, &slice(&ctx, SMALL));
                    second.unwrap().wait(LIMIT).unwrap();
                }
                first.wait(LIMIT).unwrap();
            } else {
                (0..2 * STREAMS).for_each(|_| recv(&ctx, 0, 2, SMALL));
                recv(&ctx, 0, 1, LARGE);
            }
            rank.barrier();
            ctx.close(LIMIT).unwrap();
        });
    }
}

/// A receive longer than the eager limit writes its ready word on the stream's queue pair. The
/// acknowledgement of a short message that it receives goes over the CPU's queue pair. The sender
/// may then free the tag's memory before the stream's queue pair has written there.
#[test]
fn tag_is_not_retired_while_a_ready_word_is_pending_on_another_queue_pair() {
    for seed in 0..16 {
        play(seed, 2, move |rank| {
            let faults = vmlx5::fabric::faults::Faults {
                seed,
                loss: if rank.me == 0 { 0.25 } else { 0.0 },
                ..Default::default()
            };
            let place = rank.place_with(Default::default(), true, faults);
            let ctx = rank.open_at(&place, |b| b.channels(8).depth(2).timeout(secs(50)));
            let stream = ctx.gpu().stream().unwrap();
            for tag in 0..60 {
                if rank.me == 1 {
                    send(&ctx, 0, tag, SMALL);
                } else {
                    let recv = ctx.irecv_on(&stream, 1, tag, &slice(&ctx, LARGE));
                    recv.unwrap().wait(LIMIT).unwrap();
                }
            }
            rank.barrier();
            rank.pass(secs(1));
            assert_eq!(ctx.error(), None);
            rank.barrier();
        });
    }
}

/// No request can be posted behind a prepared request, and a prepared request of a dropped stream
/// is never posted.
#[test]
fn a_queue_pair_with_a_request_that_is_not_posted_is_taken_last() {
    pair(build, |rank, ctx| {
        let mut streams = streams(ctx, STREAMS);
        use_all(rank, ctx, &streams);
        if rank.me == 0 {
            let gone = streams.remove(0);
            let segments = [slice(ctx, SMALL)];
            let send = SendOp::new(1, 4, &segments).on(&gone);
            let prepared = ctx.prepare_send(&send).unwrap();
            drop(gone);
            use_all(rank, ctx, &[ctx.gpu().stream().unwrap()]);
            drop(prepared);
        } else {
            use_all(rank, ctx, &streams[..1]);
        }
    });
}
