//! Requests that are bound to a stream when they are posted, and waits for receives that another
//! stream posted.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{Context, Kind, NULL_RANK, RecvOp, Request, SendOp, SizeSource, Slice, Source};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, Rank, SMALL, by_nic, millis, pair, slice};

const SIZES: [usize; 2] = [SMALL, LARGE];

fn payload(from: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8 ^ from as u8).collect()
}

fn content(of: &Slice) -> Vec<u8> {
    let mut got = vec![0; of.len()];
    of.memory().read(of.offset(), &mut got).unwrap();
    got
}

fn prepare_send(ctx: &Context, to: u32, tag: u32, data: &Slice) -> Request {
    ctx.prepare_send(&SendOp::from((to, tag, data))).unwrap()
}

fn prepare_recv(ctx: &Context, from: impl Into<Source>, tag: u32, into: &Slice) -> Request {
    ctx.prepare_recv(&RecvOp::from((from, tag, into))).unwrap()
}

fn synchronize(stream: &Stream) {
    assert!(stream.synchronize(LIMIT).unwrap());
}

#[test]
fn a_request_without_a_stream_is_posted_where_its_stream_has_come_to() {
    pair(
        |b| b,
        |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            for (tag, len) in (0..).zip(SIZES) {
                let gate = Gate::new(ctx.gpu());
                let (data, into) = (slice(ctx, len), slice(ctx, len));
                let recv = prepare_recv(ctx, rank.peer(), tag, &into);
                let send = prepare_send(ctx, rank.peer(), tag, &data);
                gate.hold(&stream);
                recv.post_on(&stream).unwrap();
                send.post_on(&stream).unwrap();
                recv.wait_on(&stream).unwrap();
                send.wait_on(&stream).unwrap();
                rank.barrier();
                rank.pass(millis(5));
                // The stream has not reached the send, so its memory may still be written.
                let words = payload(rank.me, len);
                data.memory().write(0, &words).unwrap();
                assert_eq!(recv.test().unwrap(), None);
                rank.barrier();
                gate.open();
                synchronize(&stream);
                assert_eq!(recv.wait(LIMIT).unwrap().len, len as u64);
                send.wait(LIMIT).unwrap();
                assert_eq!(content(&into), payload(rank.peer(), len));
            }
            assert_eq!(ctx.error(), None);
        },
    );
}

/// Pieces, strided pieces, a length in a word, any rank, and the null rank.
#[test]
fn requests_of_all_kinds_are_bound_when_they_are_posted() {
    pair(
        |b| b,
        |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            let length = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
            let length = length.region().word64(0).unwrap();
            for (tag, len) in (0..).step_by(4).zip([400, 40_000]) {
                let (data, into) = (slice(ctx, 2 * len), slice(ctx, 2 * len));
                data.memory().write(0, &payload(rank.me, 2 * len)).unwrap();
                let halves =
                    |of: &Slice| [0, len / 2].map(|at| (of.memory().slice(at, len / 2)).unwrap());
                let (from, to) = (halves(&data), halves(&into));
                let columns =
                    |of: &Slice| of.memory().strided(0, len / 100, len / 50, 100).unwrap();
                let (narrow, wide) = (columns(&data), columns(&into));
                let one = [data.memory().slice(0, len).unwrap()];
                let size = SizeSource::Word {
                    len: &length,
                    offset: None,
                };
                let (peer, any) = (rank.peer(), [into.memory().slice(0, len).unwrap()]);
                for (tag, send, recv, arrives) in [
                    (
                        tag,
                        SendOp::new(peer, tag, &from),
                        RecvOp::new(peer, tag, &to),
                        len,
                    ),
                    (
                        tag + 1,
                        SendOp::strided(peer, tag + 1, &narrow),
                        RecvOp::strided(peer, tag + 1, &wide),
                        len,
                    ),
                    (
                        tag + 2,
                        SendOp::new(peer, tag + 2, &one).size(size),
                        RecvOp::new(peer, tag + 2, &any),
                        len - 3,
                    ),
                    (
                        tag + 3,
                        SendOp::new(peer, tag + 3, &one),
                        RecvOp::new(Source::Any, tag + 3, &any),
                        len,
                    ),
                ] {
                    length.store(0).unwrap();
                    let recv = ctx.prepare_recv(&recv).unwrap();
                    let send = ctx.prepare_send(&send).unwrap();
                    // The word is read when the stream reaches the send.
                    length.store((len - 3) as u64).unwrap();
                    recv.post_on(&stream).unwrap();
                    send.post_on(&stream).unwrap();
                    recv.wait_on(&stream).unwrap();
                    send.wait_on(&stream).unwrap();
                    synchronize(&stream);
                    assert_eq!(recv.wait(LIMIT).unwrap().len, arrives as u64, "tag {tag}");
                    send.wait(LIMIT).unwrap();
                    let (came, went) = (content(&into), payload(peer, 2 * len));
                    assert_eq!(came[..len / 100], went[..len / 100], "tag {tag}");
                    into.memory().write(0, &vec![0; 2 * len]).unwrap();
                }
                let send = prepare_send(ctx, NULL_RANK, tag, &data);
                send.post_on(&stream).unwrap();
                send.wait(millis(0)).unwrap();
            }
            assert_eq!(ctx.error(), None);
        },
    );
}

/// Numbers are given when requests are prepared; posts have any order and any streams.
#[test]
fn requests_match_in_the_order_in_which_they_were_prepared() {
    pair(
        |b| b,
        |rank, ctx| {
            let streams = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            for len in SIZES {
                let (data, into) = (
                    [0, 1].map(|_| slice(ctx, len)),
                    [0, 1].map(|_| slice(ctx, len)),
                );
                for (data, from) in data.iter().zip([10, 20]) {
                    data.memory().write(0, &payload(from, len)).unwrap();
                }
                let recvs = into
                    .each_ref()
                    .map(|into| prepare_recv(ctx, rank.peer(), 1, into));
                let sends = data
                    .each_ref()
                    .map(|data| prepare_send(ctx, rank.peer(), 1, data));
                for (second, stream) in [(1, &streams[0]), (0, &streams[1])] {
                    recvs[second].post_on(stream).unwrap();
                    sends[second].post_on(stream).unwrap();
                    recvs[second].wait_on(stream).unwrap();
                }
                streams.iter().for_each(synchronize);
                assert_eq!(content(&into[0]), payload(10, len));
                assert_eq!(content(&into[1]), payload(20, len));
                for send in &sends {
                    send.wait(LIMIT).unwrap();
                }
            }
        },
    );
}

/// A refused post leaves the request as it was: it is posted by the CPU instead.
#[test]
fn a_refused_request_stays_prepared() {
    pair(by_nic, |rank, ctx| {
        let (stream, other) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
        let foreign = gdsync::Gpu::soft_with(rank.host.clone(), Default::default()).unwrap();
        let foreign = foreign.stream().unwrap();
        for (tag, len) in (0..).step_by(2).zip(SIZES) {
            let (data, into) = (slice(ctx, len), slice(ctx, len));
            data.memory().write(0, &payload(rank.me, len)).unwrap();
            let peer = rank.peer();
            // Nothing is posted behind a request of the stream that is prepared and not posted.
            let own = std::slice::from_ref(&data);
            let first = SendOp::new(peer, tag + 1, own).on(&stream);
            let first = ctx.prepare_send(&first).unwrap();
            let recv = prepare_recv(ctx, peer, tag, &into);
            let send = prepare_send(ctx, peer, tag, &data);
            let e = send.post_on(&stream).unwrap_err();
            assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::OutOfOrder), "{e}");
            let e = recv.post_on(&foreign).unwrap_err();
            assert_eq!(e.kind(), Kind::Gdsync(gdsync::Kind::Foreign), "{e}");
            let e = first.post_on(&other).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
            for refused in [&recv, &send, &first] {
                assert_eq!(refused.test().unwrap_err().kind(), Kind::NoSuchRequest);
            }
            first.cancel().unwrap();
            recv.post().unwrap();
            send.post().unwrap();
            assert_eq!(send.post_on(&stream).unwrap_err().kind(), Kind::Busy);
            recv.wait(LIMIT).unwrap();
            send.wait(LIMIT).unwrap();
            assert_eq!(content(&into), payload(peer, len));
            // The lane is usable.
            let recv = ctx.irecv_on(&stream, peer, tag, &into).unwrap();
            ctx.isend_on(&stream, peer, tag, &data)
                .unwrap()
                .wait_on(&stream)
                .unwrap();
            recv.wait_on(&stream).unwrap();
            synchronize(&stream);
        }
    });
}

/// Rank 1 posts a receive on one stream, and waits for it on another.
fn two_streams(len: usize, body: impl Fn(&Rank, &Context, &Slice, [&Stream; 2]) + Clone + 'static) {
    pair(
        |b| b,
        move |rank, ctx| {
            let data = slice(ctx, len);
            if rank.me == 0 {
                data.memory().write(0, &payload(0, len)).unwrap();
                let sent = ctx.isend(1, 1, &data).unwrap();
                sent.wait(LIMIT).unwrap();
                return;
            }
            let (poster, waiter) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
            body(rank, ctx, &data, [&poster, &waiter]);
            assert_eq!(content(&data), payload(0, len));
        },
    );
}

#[test]
fn a_stream_does_not_wait_for_later_work_of_the_stream_that_posted_a_receive() {
    for len in SIZES {
        two_streams(len, |_, ctx, into, [poster, waiter]| {
            let recv = ctx.irecv_on(poster, 0, 1, into).unwrap();
            let later = Gate::new(ctx.gpu());
            later.hold(poster);
            recv.wait_on(waiter).unwrap();
            synchronize(waiter);
            recv.wait(LIMIT).unwrap();
            later.open();
            synchronize(poster);
        });
    }
}

#[test]
fn the_cpu_does_not_wait_for_later_work_of_the_stream_that_posted_a_receive() {
    for len in SIZES {
        two_streams(len, |_, ctx, into, [poster, _]| {
            let recv = ctx.irecv_on(poster, 0, 1, into).unwrap();
            let later = Gate::new(ctx.gpu());
            later.hold(poster);
            recv.wait(LIMIT).unwrap();
            later.open();
            synchronize(poster);
        });
    }
}

/// The memory belongs to the first stream until it reaches the receive.
#[test]
fn a_stream_waits_for_earlier_work_of_the_stream_that_posted_a_receive() {
    // The message that arrives is short, so the sender does not wait for the receive.
    for room in SIZES {
        two_streams(SMALL, move |rank, ctx, into, [poster, waiter]| {
            let earlier = Gate::new(ctx.gpu());
            earlier.hold(poster);
            let memory = slice(ctx, room);
            let recv = ctx.irecv_on(poster, 0, 1, &memory).unwrap();
            recv.wait_on(waiter).unwrap();
            rank.pass(millis(20));
            assert_eq!(recv.test().unwrap(), None);
            assert_eq!(content(&memory), vec![0; room]);
            earlier.open();
            synchronize(waiter);
            into.memory().write(0, &content(&memory)[..SMALL]).unwrap();
        });
    }
}

/// A stream that was created after the receive was posted.
#[test]
fn a_later_stream_waits_for_the_stream_that_posted_a_receive() {
    pair(
        |b| b,
        |rank, ctx| {
            if rank.me == 0 {
                return sim::send(ctx, 1, 1, SMALL);
            }
            let (poster, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
            gate.hold(&poster);
            let recv = ctx.irecv_on(&poster, 0, 1, &slice(ctx, SMALL)).unwrap();
            let waiter = ctx.gpu().stream().unwrap();
            recv.wait_on(&waiter).unwrap();
            rank.pass(millis(20));
            assert!(!waiter.is_idle().unwrap());
            gate.open();
            synchronize(&waiter);
            recv.wait(LIMIT).unwrap();
        },
    );
}
