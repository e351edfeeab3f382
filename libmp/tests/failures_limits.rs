//! Time limits of contexts and of requests: when they start, which requests they end, and which
//! they do not affect. Requests whose handles are dropped, and contexts that are closed too early.

#[path = "common/sim.rs"]
mod sim;

use std::array;
use std::time::Duration;

use gdsync::{Status, Stream};
use mp::{Builder, Context, Kind, RecvOp, Request, SendOp, Source};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, SMALL, Witness, millis, pair, peer_failed, play};
use sim::{recv, recv_on, secs, send, slice};

/// Slack for rounds of the background work and of streams.
const SLACK: Duration = millis(20);

fn limit(limit: Duration) -> impl Fn(Builder) -> Builder + Clone {
    move |builder| builder.timeout(limit).depth(4)
}

/// A request that is never matched, of a stream or of the CPU.
fn unanswered(ctx: &Context, stream: Option<&Stream>, receives: bool, own: Option<u64>) -> Request {
    let one = [slice(ctx, LARGE)];
    let (mut send, mut recv) = (SendOp::new(1, 1, &one), RecvOp::new(1, 1, &one));
    if let Some(stream) = stream {
        (send, recv) = (send.on(stream), recv.on(stream));
    }
    if let Some(own) = own {
        (send, recv) = (send.timeout(secs(own)), recv.timeout(secs(own)));
    }
    if !receives {
        return ctx.post_send(&send).unwrap();
    }
    let recv = ctx.post_recv(&recv).unwrap();
    if let Some(stream) = stream {
        recv.wait_on(stream).unwrap();
    }
    recv
}

#[test]
fn request_timeout_overrides_that_of_the_context() {
    for (on_stream, receives) in [(true, true), (true, false), (false, false), (false, true)] {
        // The context's limit, a shorter and a longer one.
        for (own, expected) in [(None, 4), (Some(1), 1), (Some(6), 6)] {
            if own.is_none() && receives && !on_stream {
                // A wait by the CPU has its own limit.
                continue;
            }
            pair(limit(secs(4)), move |rank, ctx| {
                if rank.me == 1 {
                    return;
                }
                let stream = ctx.gpu().stream().unwrap();
                let before = rank.host.now();
                let request = unanswered(ctx, on_stream.then_some(&stream), receives, own);
                // A wait with a shorter limit times out without consequence.
                let e = request.wait(millis(500)).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)), "{e}");
                let e = request.wait(LIMIT).unwrap_err();
                assert_eq!(e.kind(), Kind::PeerFailed(Status::TIMEOUT), "{e}");
                assert_eq!(e.rank(), Some(1), "{e}");
                let (took, expected) = (rank.host.now().since(before), secs(expected));
                assert!(
                    (expected..expected + SLACK).contains(&took),
                    "{request:?}: {took:?} in place of {expected:?}"
                );
                assert!(stream.synchronize(SLACK).unwrap());
                assert_eq!(ctx.error(), Some(Status::TIMEOUT));
            });
        }
    }
}

#[test]
fn requests_do_not_end_before_their_timeout() {
    pair(limit(secs(1)), |rank, ctx| {
        if rank.me == 1 {
            rank.pass(secs(3));
            send(ctx, 0, 1, LARGE);
            rank.pass(secs(3));
            recv(ctx, 0, 2, LARGE);
            rank.pass(secs(3));
            send(ctx, 0, 3, LARGE);
            return send(ctx, 0, 4, LARGE);
        }
        let stream = ctx.gpu().stream().unwrap();
        let slice = slice(ctx, LARGE);
        let one = [slice.clone()];
        let first = ctx.post_recv(&RecvOp::new(1, 1, &one).on(&stream).timeout(secs(5)));
        let first = first.unwrap();
        first.wait_on(&stream).unwrap();
        let second = ctx.post_send(&SendOp::new(1, 2, &one).on(&stream).timeout(secs(5)));
        let second = second.unwrap();
        // No limit, because only the CPU waits.
        let third = ctx.irecv(1, 3, &slice).unwrap();
        let fourth = ctx.irecv(Source::Any, 4, &slice).unwrap();
        mp::wait_all(&[first, second, third, fourth], LIMIT).unwrap();
        assert_eq!(ctx.error(), None);
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn timeout_of_a_receive_from_any_rank_ends_only_that_receive() {
    pair(limit(secs(2)), |rank, ctx| {
        if rank.me == 1 {
            rank.barrier();
            return send(ctx, 0, 1, SMALL);
        }
        let (stream, other) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
        let slice = slice(ctx, SMALL);
        let one = [slice.clone()];
        let before = rank.host.now();
        // Its own limit, that of the context because a stream waits, and none.
        let own = ctx.post_recv(&RecvOp::new(Source::Any, 2, &one).timeout(secs(1)));
        let own = own.unwrap();
        let waited = recv_on(ctx, &stream, Source::Any, 3, &slice);
        let saw = Witness::launch(&stream, ctx, &waited);
        let free = ctx.irecv(Source::Any, 1, &slice).unwrap();
        free.wait_on(&other).unwrap_or_else(|e| panic!("{e}"));
        for (request, limit) in [(&own, secs(1)), (&waited, secs(2))] {
            let e = request.wait(LIMIT).unwrap_err();
            assert_eq!(e.kind(), Kind::Failed(Status::TIMEOUT), "{e}");
            let took = rank.host.now().since(before);
            assert!((limit..limit + SLACK).contains(&took), "{took:?}");
        }
        assert!(stream.synchronize(SLACK).unwrap());
        assert_eq!(saw.seen(), (Status::TIMEOUT, Status::TIMEOUT, 0));
        assert!(other.synchronize(SLACK).unwrap());
        assert!(free.wait(LIMIT).is_err());
        // No rank was treated as failed.
        let again = ctx.irecv(Source::Any, 1, &slice).unwrap();
        rank.barrier();
        assert_eq!(again.wait(LIMIT).unwrap().source(), 1);
        ctx.close(LIMIT).unwrap();
    });
}

/// A stream whose enqueued work takes far longer than the limit exceeds the limit for none of it. A
/// stream that is busy with other work does not exceed the limit for messages that have arrived.
#[test]
fn timeout_starts_when_the_stream_reaches_the_request() {
    let build = |b: Builder| limit(secs(2))(b).watchdog(millis(1500));
    let run = pair(build, |rank, ctx| {
        if rank.me == 1 {
            for _ in 0..8 {
                rank.pass(secs(1));
                send(ctx, 0, 1, LARGE);
            }
            return send(ctx, 0, 2, LARGE);
        }
        let stream = ctx.gpu().stream().unwrap();
        let slice = slice(ctx, LARGE);
        let gate = Gate::new(ctx.gpu());
        let last = ctx.irecv_on(&stream, 1, 2, &slice).unwrap();
        let mut all = Vec::from([(); 8].map(|()| recv_on(ctx, &stream, 1, 1, &slice)));
        gate.hold(&stream);
        last.wait_on(&stream).unwrap();
        all.push(last);
        rank.pass(secs(20));
        assert_eq!(ctx.error(), None);
        gate.open();
        mp::wait_all(&all, LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
    });
    assert_eq!(run.warnings.all(), [""; 0]);
}

#[test]
fn close_names_unfinished_requests() {
    pair(limit(secs(10)), |rank, ctx| {
        if rank.me == 1 {
            rank.barrier();
            send(ctx, 0, 3, SMALL);
            return recv(ctx, 0, 4, LARGE);
        }
        let stream = ctx.gpu().stream().unwrap();
        let (small, large) = (slice(ctx, SMALL), slice(ctx, LARGE));
        let claimed = recv_on(ctx, &stream, 1, 3, &small);
        let sent = ctx.isend(1, 4, &large).unwrap();
        // No call waits for this request.
        let posted = ctx.irecv(1, 5, &small).unwrap();
        let e = ctx.close(secs(1)).unwrap_err();
        assert_eq!(e.kind(), Kind::Timeout);
        let text = e.to_string();
        for part in [
            "2 requests did not end",
            "receive from rank 1, tag 3, message 0",
            "send of 10000 bytes to rank 1, tag 4, message 0",
        ] {
            assert!(text.contains(part), "{text}");
        }
        rank.barrier();
        claimed.wait(LIMIT).unwrap();
        sent.wait(LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
        posted.cancel().unwrap();
    });
}

/// Messages progress as with held handles, and their memory is returned.
#[test]
fn requests_with_dropped_handles_complete_in_every_phase() {
    for dies in [false, true] {
        play(7, 2, move |rank| {
            let ctx = rank.open(limit(secs(2)));
            let stream = ctx.gpu().stream().unwrap();
            let other = ctx.gpu().stream().unwrap();
            let bytes = |i: usize| vec![rank.me as u8 + i as u8; LARGE];
            let buffers: [_; 10] = array::from_fn(|i| ctx.adopt_vec(bytes(i)).unwrap());
            let at = |i: usize, len: usize| buffers[i].slice(0, len).unwrap();
            if rank.me == 0 {
                // Requests that are never posted: the library cancels them, or they end at the death.
                let one = [at(0, SMALL)];
                for prepared in [
                    ctx.prepare_send(&SendOp::new(1, 9, &one)),
                    ctx.prepare_recv(&RecvOp::new(1, 9, &one)),
                    ctx.prepare_recv(&RecvOp::new(Source::Any, 9, &one)),
                ] {
                    drop(prepared.unwrap());
                }
                drop(ctx.isend(1, 0, &at(0, SMALL)).unwrap());
                drop(ctx.isend(1, 1, &at(1, LARGE)).unwrap());
                drop(ctx.isend_on(&stream, 1, 2, &at(2, SMALL)).unwrap());
                drop(ctx.isend_on(&stream, 1, 3, &at(3, LARGE)).unwrap());
                drop(recv_on(&ctx, &other, 1, 4, &at(4, SMALL)));
                drop(recv_on(&ctx, &other, 1, 5, &at(5, LARGE)));
                drop(ctx.irecv(1, 6, &at(6, SMALL)).unwrap());
                drop(ctx.irecv(1, 7, &at(7, LARGE)).unwrap());
                drop(ctx.irecv_on(&other, 1, 8, &at(8, LARGE)).unwrap());
                drop(ctx.irecv(Source::Any, 10, &at(9, LARGE)).unwrap());
                rank.barrier();
                assert!(stream.synchronize(LIMIT).unwrap());
                assert!(other.synchronize(LIMIT).unwrap());
            } else {
                rank.barrier();
                if dies {
                    rank.never_mind();
                    drop(ctx);
                    return rank.leave();
                }
                let answers = [4, 5, 6, 7, 8, 10].map(|tag| {
                    let len = if [4, 6].contains(&tag) { SMALL } else { LARGE };
                    ctx.isend(0, tag, &at(tag as usize % 10, len)).unwrap()
                });
                for tag in [3, 2, 1, 0] {
                    let recv = ctx.irecv(0, tag, &at(9, LARGE)).unwrap();
                    recv.wait(LIMIT).unwrap();
                    let mut got = [0];
                    buffers[9].read(0, &mut got).unwrap();
                    assert_eq!(got, [tag as u8]);
                }
                mp::wait_all(&answers, LIMIT).unwrap();
            }
            if !dies {
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            }
            rank.pass(secs(3));
            for (i, buffer) in buffers.into_iter().enumerate() {
                // The death of a rank does not affect receives from any rank.
                let waits = dies && i == 9;
                let bytes = match buffer.into_vec(Duration::ZERO) {
                    Ok(bytes) => bytes,
                    Err((_, e)) => {
                        assert!(waits, "buffer {i}: {e}");
                        continue;
                    }
                };
                assert!(!waits);
                assert_eq!(bytes.len(), LARGE);
                if rank.me == 0 {
                    let received = [4, 5, 6, 7, 8, 0].get(i.wrapping_sub(4));
                    let expected = received.filter(|_| !dies).map_or(i, |at| at + 1);
                    assert_eq!(bytes[0], expected as u8, "buffer {i}");
                }
            }
            if !dies {
                rank.barrier();
            }
        });
    }
}

/// A stream that is late for the wait for a result finds it, even if the handle was dropped.
#[test]
fn result_is_kept_for_a_late_stream() {
    pair(limit(secs(5)), |rank, ctx| {
        if rank.me == 1 {
            rank.barrier();
            return send(ctx, 0, 1, SMALL);
        }
        let (stream, gate) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
        let slice = slice(ctx, SMALL);
        let any = ctx.irecv(Source::Any, 1, &slice).unwrap();
        gate.hold(&stream);
        any.wait_on(&stream).unwrap();
        rank.barrier();
        any.wait(LIMIT).unwrap();
        drop(any);
        // The next request in the same place does not end.
        let receive = |tag| ctx.irecv(Source::Any, tag, &slice).unwrap();
        let others: Vec<_> = (100..700).map(receive).collect();
        gate.open();
        assert!(stream.synchronize(secs(1)).unwrap(), "waits for another");
        drop(others);
    });
}

/// A mailbox has 2 MiB: a peer that announces tags gets a few mailboxes, and waits for more.
#[test]
fn tags_without_receives_pin_bounded_memory() {
    const PLACES: u32 = 16;
    let build = |b: Builder| b.timeout(secs(5)).depth(16).eager_limit(128 << 10);
    pair(build, |rank, ctx| {
        let small = slice(ctx, SMALL);
        let send = |tag| -> mp::Result<()> { ctx.isend(0, tag, &small)?.wait(LIMIT).map(drop) };
        let receive = |from: Source, tag| {
            let recv = ctx.irecv(from, tag, &small).unwrap();
            assert_eq!(recv.wait(LIMIT).unwrap().source(), 1);
        };
        let one = Source::Rank(1);
        if rank.me == 1 {
            let accepted = (0..3 * PLACES).take_while(|tag| send(*tag).is_ok()).count();
            assert_eq!(accepted as u32, PLACES);
            rank.barrier();
            // Tags with a receive, from this rank or any, do not count.
            send(PLACES).unwrap();
            send(PLACES + 1).unwrap();
            rank.barrier();
            // There is room for a mailbox again, and the message waits in it for a late receive.
            send(PLACES + 2).unwrap();
            assert_eq!(send(PLACES + 3).unwrap_err().kind(), Kind::Timeout);
            rank.barrier();
        } else {
            rank.barrier();
            receive(one, PLACES);
            receive(Source::Any, PLACES + 1);
            receive(one, 0);
            rank.barrier();
            rank.barrier();
            (1..PLACES).for_each(|tag| receive(one, tag));
            receive(one, PLACES + 2);
        }
        rank.barrier();
        ctx.close(LIMIT).unwrap();
    });
}

/// The stream of a send that is given up continues before the send has ended: the wait for the
/// stream returns the failure all the same.
#[test]
fn a_send_that_times_out_is_an_error_of_its_stream_under_every_schedule() {
    for seed in 0..20 {
        play(seed, 2, |rank| {
            let ctx = rank.open(|b| b.timeout(secs(3)));
            if rank.me == 0 {
                let stream = ctx.gpu().stream().unwrap();
                drop(ctx.isend_on(&stream, 1, 1, &slice(&ctx, LARGE)).unwrap());
                peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), 1);
            }
            rank.barrier();
        });
    }
}
