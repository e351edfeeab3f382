//! Errors reach the application: `close` returns failures that no other call has returned. Texts
//! name direction, rank, tag, number and limit, and say whether the peer is alive.

#[path = "common/sim.rs"]
mod sim;

use std::ops::Range;
use std::time::Duration;

use gdsync::Status;
use gdsync::gpu::{MemoryKind, Stream};
use mp::{Builder, Context, Error, Kind, RecvOp, Request, SendOp, Source};
use sim::{
    Death, LIMIT, Rank, SMALL, by_nic, millis, pair, play, recv, recv_on, secs, send, slice,
};

const LARGE: usize = 1 << 20;
const TIMEOUT: Duration = secs(2);

fn limited(builder: Builder) -> Builder {
    builder.timeout(TIMEOUT)
}

fn with_tags(builder: Builder) -> Builder {
    builder.channels(256)
}

#[test]
fn close_returns_failures_of_the_readme_program() {
    for crossed in [false, true] {
        pair(limited, move |rank, ctx| {
            let (tag, room) = match crossed {
                true => (8 + rank.me, LARGE),
                false => (7, LARGE / 2),
            };
            let stream = ctx.gpu().stream().unwrap();
            let (data, into) = (slice(ctx, LARGE), slice(ctx, room));
            let recv = ctx.irecv_on(&stream, rank.peer(), tag, &into).unwrap();
            let send = ctx.isend_on(&stream, rank.peer(), 7, &data).unwrap();
            recv.wait_on(&stream).unwrap();
            drop(send);
            assert!(stream.synchronize(LIMIT).unwrap());
            let e = ctx.close(LIMIT).expect_err("the message was lost");
            match crossed {
                true => assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}"),
                false => assert_eq!((e.kind(), e.rank()), (Kind::Truncated, Some(rank.peer()))),
            }
            rank.barrier();
        });
    }
}

#[test]
fn a_failure_is_returned_once() {
    pair(with_tags, |rank, ctx| {
        if rank.me == 1 {
            send_and_drop(ctx, 1..5);
            rank.barrier();
            // The receiver reports on a short message after the send has ended.
            let e = ctx.close(LIMIT).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Truncated, Some(0)), "{e}");
            assert_eq!((e.tag(), e.number()), (Some(1), Some(0)));
            assert_eq!(
                e.to_string(),
                "close context: send of 8 bytes to rank 0, tag 1, message 0: the message is \
                 longer than its receive (3 other requests failed as well)"
            );
            return ctx.close(LIMIT).unwrap();
        }
        let (a, b) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
        let short = slice(ctx, 1);
        let on = |stream, tag| recv_on(ctx, stream, 1, tag, &short);
        let recvs = [on(&a, 1), on(&b, 2), on(&b, 3), on(&a, 4)];
        // The request returns the failure.
        let e = recvs[3].wait(LIMIT).unwrap_err();
        assert_eq!(
            e.to_string(),
            "wait for request: receive from rank 1, tag 4, message 0: the message has 8 bytes, \
             and its receive has room for 1"
        );
        // The stream returns the failure; it has no other failed request.
        let e = ctx.synchronize(&a, LIMIT).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Truncated, Some(1)));
        assert_eq!(e.tag(), Some(1));
        assert!(!e.to_string().contains("failed as well"), "{e}");
        ctx.synchronize(&a, LIMIT).unwrap();
        let e = ctx.synchronize(&b, LIMIT).unwrap_err();
        assert_eq!(e.tag(), Some(2));
        let others = "(1 other request failed as well)";
        assert!(e.to_string().contains(others), "{e}");
        ctx.close(LIMIT).unwrap();
        // The handles still return the failure, and the context's error stays set.
        assert!(recvs.iter().all(|recv| recv.test().is_err()));
        assert_eq!(ctx.error(), Some(Status::TRUNCATED));
        drop(recvs);
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
}

/// Sends a short message to rank 0 under each tag.
fn send_and_drop(ctx: &Context, tags: Range<u32>) {
    let data = slice(ctx, SMALL);
    for tag in tags {
        drop(ctx.isend(0, tag, &data).unwrap());
    }
}

#[test]
fn failures_of_dropped_requests_are_logged_and_bounded() {
    const MANY: u32 = 100;
    let run = pair(with_tags, |rank, ctx| {
        if rank.me == 1 {
            send_and_drop(ctx, 0..MANY);
            return rank.barrier();
        }
        let short = slice(ctx, 1);
        for tag in 0..MANY {
            drop(ctx.irecv(1, tag, &short).unwrap());
        }
        rank.barrier();
        let e = ctx.close(LIMIT).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Truncated, Some(1)));
        assert_eq!(e.number(), Some(0));
        assert!(e.to_string().contains("(99 other requests failed"), "{e}");
        assert!(ctx.take_error().is_none());
        ctx.close(LIMIT).unwrap();
    });
    let all = run.warnings.all();
    let texts = [
        "receive from rank 1, tag 7, message 0: the message has 8 bytes, and its receive has room \
         for 1",
        "send of 8 bytes to rank 0, tag 7, message 0: the message is longer than its receive",
    ];
    for (rank, text) in texts.into_iter().enumerate() {
        let who = format!("rank {rank}: a request that was dropped failed: ");
        let mine = all.iter().filter(|line| line.starts_with(&who));
        assert_eq!(mine.clone().count(), 64, "{all:#?}");
        assert!(mine.clone().any(|line| line.ends_with(text)), "{all:#?}");
    }
    let last = |line: &&String| line.contains("are counted, not named");
    assert_eq!(all.iter().filter(last).count(), 2, "{all:#?}");
    assert_eq!(all.len(), 130, "{all:#?}");
}

#[test]
fn synchronize_names_what_the_stream_waits_for() {
    let build = |b: Builder| b.timeout(secs(30));
    pair(build, |rank, ctx| {
        if rank.me == 1 {
            rank.barrier();
            return send(ctx, 0, 3, SMALL);
        }
        let stream = ctx.gpu().stream().unwrap();
        let _recv = recv_on(ctx, &stream, 1, 3, &slice(ctx, SMALL));
        let e = ctx.synchronize(&stream, secs(8)).unwrap_err();
        assert_eq!(e.kind(), Kind::Timeout);
        assert_eq!(
            e.to_string(),
            format!(
                "synchronize stream: stream {} did not execute all its work within 8 s: receive \
                 from rank 1, tag 3, message 0: no message has arrived; rank 1 is alive; check \
                 that both ranks use the same tags in the same order",
                stream.id()
            )
        );
        rank.barrier();
        ctx.synchronize(&stream, LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn timeout_of_long_send_says_that_no_receive_was_posted() {
    pair(limited, |rank, ctx| {
        if rank.me == 1 {
            return;
        }
        let stream = ctx.gpu().stream().unwrap();
        let data = slice(ctx, LARGE);
        let send = ctx.isend_on(&stream, 1, 1, &data).unwrap();
        let behind = recv_on(ctx, &stream, 1, 1, &data);
        let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
        assert_eq!(e.kind(), Kind::PeerFailed(Status::TIMEOUT));
        assert_eq!((e.rank(), e.tag(), e.number()), (Some(1), Some(1), Some(0)));
        let text = "send of 1048576 bytes to rank 1, tag 1, message 0: rank 1 has posted no \
                    receive within 2 s (Builder::timeout); rank 1 is alive; post the receive \
                    first: a message above the eager limit (4096 bytes) holds its stream until \
                    then";
        assert_eq!(
            e.to_string(),
            format!("synchronize stream: {text} (1 other request failed as well)")
        );
        // The other request failed only as a consequence.
        let e = behind.wait(LIMIT).unwrap_err();
        let given_up = "rank 1 was given up after another request failed:";
        assert_eq!(
            e.to_string(),
            format!("wait for request: receive from rank 1, tag 1, message 0: {given_up} {text}")
        );
        let e = ctx.isend(1, 5, &data).unwrap_err();
        assert_eq!(e.to_string(), format!("open connection: {given_up} {text}"));
        ctx.close(LIMIT).unwrap();
        drop(send);
    });
}

#[test]
fn timeout_of_short_send_says_how_many_messages_were_taken() {
    for taken in [0, 5] {
        pair(limited, move |rank, ctx| {
            let data = slice(ctx, SMALL);
            if rank.me == 1 {
                // All but the first send.
                let segments = [data];
                let first = ctx.prepare_recv(&RecvOp::new(0, 1, &segments)).unwrap();
                (0..taken).for_each(|_| recv(ctx, 0, 1, SMALL));
                rank.barrier();
                return drop(first);
            }
            let stream = ctx.gpu().stream().unwrap();
            let sends = [(); 17].map(|()| ctx.isend_on(&stream, 1, 1, &data).unwrap());
            let e = sends[16].wait(LIMIT).unwrap_err();
            assert_eq!(
                e.to_string(),
                format!(
                    "wait for request: send of 8 bytes to rank 1, tag 1, message 16: no credit \
                     has arrived within 2 s (Builder::timeout): rank 1 has received {taken} of \
                     the last 16 messages (Builder::depth); rank 1 is alive; check that it posts \
                     a receive for each message"
                )
            );
            rank.barrier();
        });
    }
}

#[test]
fn timeout_of_receive_from_any_rank_says_so() {
    pair(limited, |rank, ctx| {
        if rank.me == 1 {
            return;
        }
        let into = [slice(ctx, SMALL)];
        let recv = RecvOp::new(Source::Any, 5, &into).timeout(millis(2500));
        let _recv = ctx.post_recv(&recv).unwrap();
        rank.pass(secs(3));
        let e = ctx.close(LIMIT).unwrap_err();
        assert_eq!(e.kind(), Kind::Failed(Status::TIMEOUT));
        assert_eq!((e.rank(), e.tag()), (None, Some(5)));
        assert_eq!(
            e.to_string(),
            "close context: receive from any rank, tag 5: no message has arrived within 2.5 s \
             (RecvOp::timeout); check that a rank sends under this tag"
        );
    });
}

/// The errors of a stream that waits for a message and of its receive, by how the peer ended.
#[test]
fn dead_peers_have_other_texts_than_living_ones() {
    let texts = [
        (
            None,
            "no message has arrived within 2 s (Builder::timeout); rank 1 is alive; check that \
             both ranks use the same tags in the same order",
        ),
        (
            Some(Death::Freezes),
            "no message has arrived within 2 s (Builder::timeout); rank 1 has not answered a ping",
        ),
        (
            Some(Death::Leaves),
            "rank 1 dropped its context, or gave this rank up after one of its requests failed",
        ),
    ];
    for (death, text) in texts {
        play(1, 2, move |rank| {
            let ctx = rank.open(limited);
            if rank.me == 1 {
                rank.barrier();
                return match death {
                    Some(death) => death.end(rank, ctx, 2),
                    None => rank.barrier(),
                };
            }
            let stream = ctx.gpu().stream().unwrap();
            let recv = recv_on(&ctx, &stream, 1, 2, &slice(&ctx, SMALL));
            rank.barrier();
            let errors = [
                ctx.synchronize(&stream, LIMIT).unwrap_err(),
                recv.wait(LIMIT).unwrap_err(),
            ];
            for (e, call) in errors
                .iter()
                .zip(["synchronize stream", "wait for request"])
            {
                assert_eq!(e.rank(), Some(1));
                let expected = format!("{call}: receive from rank 1, tag 2, message 0: {text}");
                let found = e.to_string();
                match death {
                    Some(_) => assert!(found.starts_with(&expected), "{found}"),
                    None => assert_eq!(found, expected),
                }
                assert_eq!(found.contains("is alive"), death.is_none(), "{found}");
                let timeout = Kind::PeerFailed(Status::TIMEOUT);
                assert_eq!(e.kind() == timeout, death != Some(Death::Leaves), "{e:?}");
            }
            rank.barrier();
        });
    }
}

#[test]
fn send_to_a_nic_that_does_not_answer_says_that_retries_are_exhausted() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| by_nic(b).timeout(secs(20)));
        if rank.me == 1 {
            recv(&ctx, 0, 3, SMALL);
            return Death::Freezes.end(rank, ctx, 1);
        }
        send(&ctx, 1, 3, SMALL);
        rank.pass(secs(1));
        drop(ctx.isend(1, 3, &slice(&ctx, SMALL)).unwrap());
        let e = ctx.close(LIMIT).unwrap_err();
        assert_eq!(e.kind(), Kind::PeerFailed(Status::TRANSPORT_RETRY), "{e}");
        assert_eq!((e.rank(), e.tag(), e.number()), (Some(1), Some(3), Some(1)));
        assert_eq!(
            e.to_string(),
            "close context: send of 8 bytes to rank 1, tag 3, message 1: rank 1 did not \
             acknowledge a packet, and the retries of the NIC are exhausted: the rank has died, \
             or the network to it is interrupted"
        );
        rank.barrier();
    });
}

#[test]
fn unanswered_connection_says_what_to_check() {
    play(1, 2, |rank| {
        if rank.me == 0 {
            let ctx = rank.open(limited);
            let e = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)));
            assert_eq!(
                e.to_string(),
                "open connection: rank 1 did not answer within 2 s (Builder::timeout); check that \
                 it has built a context named \"mp\", and that it calls progress() if it has \
                 Progress::Manual"
            );
        }
        rank.barrier();
    });
}

/// A request of rank 0 that fails because its receive is too short, the part of rank 1 in it, and
/// the call that returns the failure.
type Unnamed = (fn(&Context), fn(&Rank, &Context) -> Error);

fn sends(ctx: &Context) {
    drop(ctx.isend(0, 1, &slice(ctx, SMALL)).unwrap());
}

const UNNAMED: [Unnamed; 3] = [
    // A send that was tested before it was posted; `close` returns the failure.
    (sends, |rank, ctx| {
        let segments = [slice(ctx, 1)];
        let recv = ctx.prepare_recv(&RecvOp::new(1, 1, &segments)).unwrap();
        assert_eq!(recv.test().unwrap_err().kind(), Kind::NoSuchRequest);
        recv.post().unwrap();
        drop(recv);
        rank.until("the request did not end", || ctx.error().is_some());
        ctx.close(LIMIT).expect_err("the failure is not returned")
    }),
    // A receive from any rank; `synchronize` returns the failure.
    (sends, |rank, ctx| {
        let stream = ctx.gpu().stream().unwrap();
        let any = ctx.irecv_on(&stream, Source::Any, 1, &slice(ctx, 1));
        let _recv: Request = any.unwrap();
        rank.until("the request did not end", || ctx.error().is_some());
        ctx.synchronize(&stream, LIMIT).expect_err("it failed")
    }),
    // A send that another stream posted; `synchronize` of the waiting stream returns the failure.
    (
        |ctx| {
            let recv = ctx.irecv(0, 1, &slice(ctx, SMALL)).unwrap();
            recv.wait(LIMIT).unwrap_err();
        },
        |_, ctx| {
            let (poster, waiter) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
            let send = ctx.isend_on(&poster, 1, 1, &slice(ctx, LARGE)).unwrap();
            send.wait_on(&waiter).unwrap();
            let e = ctx.synchronize(&waiter, LIMIT).expect_err("it failed");
            assert_eq!(e.tag(), Some(1));
            e
        },
    ),
];

#[test]
fn failures_that_no_call_has_returned_are_returned_by_the_next() {
    for (peer, fails) in UNNAMED {
        pair(with_tags, move |rank, ctx| match rank.me {
            0 => {
                let e = fails(rank, ctx);
                assert_eq!(e.kind(), Kind::Truncated, "{e}");
            }
            _ => peer(ctx),
        });
    }
}

/// Fails receives of short messages on a stream, one under each tag.
fn fail(rank: &Rank, ctx: &Context, stream: &Stream, tags: Range<u32>) {
    let short = slice(ctx, 1);
    for tag in tags {
        drop(recv_on(ctx, stream, 1, tag, &short));
    }
    assert!(stream.synchronize(LIMIT).unwrap());
    rank.pass(millis(100));
}

/// The failures of a stream may use all places for failures of dropped requests.
#[test]
fn close_returns_failures_that_were_counted_only() {
    pair(with_tags, |rank, ctx| {
        if rank.me == 1 {
            return send_and_drop(ctx, 0..70);
        }
        let (short, stream) = (slice(ctx, 1), ctx.gpu().stream().unwrap());
        fail(rank, ctx, &stream, 0..64);
        for tag in 64..70 {
            drop(ctx.irecv(1, tag, &short).unwrap());
        }
        rank.pass(millis(100));
        let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
        assert!(e.to_string().contains("(63 other requests failed"), "{e}");
        let e = ctx.close(LIMIT).expect_err("six more failed");
        assert!(e.tag() >= Some(64), "{e}");
        assert!(e.to_string().contains("(5 other requests failed"), "{e}");
        ctx.close(LIMIT).unwrap();
    });
}

/// Beyond the failures that are kept, each stream keeps one of its own.
#[test]
fn synchronize_returns_failures_of_its_stream_that_were_counted_only() {
    pair(with_tags, |rank, ctx| {
        if rank.me == 1 {
            return send_and_drop(ctx, 0..76);
        }
        let [a, b, c] = [(); 3].map(|()| ctx.gpu().stream().unwrap());
        fail(rank, ctx, &a, 0..64);
        fail(rank, ctx, &b, 64..70);
        fail(rank, ctx, &c, 70..76);
        for (stream, tags) in [(b, 64..70), (c, 70..76), (a, 0..64)] {
            let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
            assert!(e.tag().is_some_and(|tag| tags.contains(&tag)), "{e}");
            let text = format!("({} other requests failed", tags.len() - 1);
            assert!(e.to_string().contains(&text), "{e}");
            ctx.synchronize(&stream, LIMIT).unwrap();
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// More streams than there are separate counts of failures.
#[test]
fn synchronize_returns_a_counted_failure_of_each_of_many_streams() {
    const STREAMS: u32 = 70;
    const KEPT: u32 = 64;
    pair(with_tags, |rank, ctx| {
        if rank.me == 1 {
            return send_and_drop(ctx, 0..KEPT + STREAMS);
        }
        let streams: Vec<_> = (0..=STREAMS).map(|_| ctx.gpu().stream().unwrap()).collect();
        for tag in 0..KEPT + STREAMS {
            let stream = &streams[(tag + 1).saturating_sub(KEPT) as usize];
            fail(rank, ctx, stream, tag..tag + 1);
        }
        for (i, stream) in streams.iter().enumerate() {
            let Err(e) = ctx.synchronize(stream, LIMIT) else {
                panic!("stream {i} has failed")
            };
            assert_eq!(e.kind(), Kind::Truncated, "{e}");
            ctx.synchronize(stream, LIMIT).unwrap();
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn send_that_is_longer_than_its_segment_is_returned_once() {
    pair(with_tags, |rank, ctx| {
        if rank.me == 1 {
            let recv = ctx.irecv(0, 1, &slice(ctx, 100)).unwrap();
            recv.wait(LIMIT).unwrap_err();
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let word = ctx.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
        let word = word.word64(0).unwrap();
        word.store(200).unwrap();
        let size = mp::SizeSource::Word {
            len: &word,
            offset: None,
        };
        let segments = [slice(ctx, 100)];
        let send = SendOp::new(1, 1, &segments).on(&stream).size(size);
        drop(ctx.post_send(&send).unwrap());
        rank.barrier();
        rank.pass(secs(1));
        let e = ctx.take_error().unwrap();
        assert_eq!(e.kind(), Kind::Failed(Status::LOCAL_LENGTH), "{e}");
        assert!(!e.to_string().contains("failed as well"), "{e}");
        assert!(ctx.take_error().is_none());
    });
}
