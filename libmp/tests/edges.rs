//! The limits of a channel: rings and windows that are full, messages one byte too long, receives
//! behind others in a slot or tag, and what is left of a lost rank.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Context, Full, Kind, Progress, Source};
use sim::{Death, Gate, LARGE, LIMIT, SMALL, millis, play, secs, slice};

const DEPTH: u32 = 2;
/// As the library's limit of messages that are not taken: words hold 16 bits of a number.
const WINDOW: u64 = 8192;

#[test]
fn sends_are_refused_while_a_window_of_messages_is_not_taken() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open(|b| b);
            let into = slice(&ctx, SMALL);
            ctx.irecv(0, 1, &into).unwrap().wait(LIMIT).unwrap();
            return rank.barrier();
        }
        let ctx = rank.open_manual(|b| b.full(Full::Fail));
        let data = slice(&ctx, SMALL);
        let first = ctx.isend(1, 1, &data).unwrap();
        rank.progress_until(&ctx, "the first message", || {
            first.test().unwrap().is_some()
        });
        let mut sent = Vec::new();
        let e = loop {
            match ctx.isend(1, 1, &data) {
                Ok(send) => sent.push(send),
                Err(e) => break e,
            }
            assert!(sent.len() as u64 <= WINDOW);
        };
        assert_eq!((e.kind(), e.limit_value()), (Kind::QueueFull, Some(WINDOW)));
        rank.barrier();
    });
}

#[test]
fn receives_are_refused_while_the_ring_is_full_of_pending_ones() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.full(Full::Fail).depth(DEPTH));
        let memory = slice(&ctx, SMALL);
        if rank.me == 0 {
            let posted = [(); DEPTH as usize].map(|()| ctx.irecv(1, 1, &memory).unwrap());
            let e = ctx.irecv(1, 1, &memory).unwrap_err();
            assert_eq!(
                (e.kind(), e.limit_value()),
                (Kind::QueueFull, Some(DEPTH.into()))
            );
            rank.barrier();
            for recv in &posted {
                recv.wait(LIMIT).unwrap();
            }
        } else {
            rank.barrier();
            for _ in 0..DEPTH {
                ctx.isend(0, 1, &memory).unwrap().wait(LIMIT).unwrap();
            }
        }
        rank.barrier();
    });
}

#[test]
fn receive_from_a_rank_is_refused_while_one_from_any_rank_is_pending() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(5)));
        let memory = slice(&ctx, SMALL);
        if rank.me == 0 {
            let any = ctx.irecv(Source::Any, 1, &memory).unwrap();
            let e = ctx.irecv(1, 1, &memory).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Busy, Some(1)));
            // Other tags are not affected.
            ctx.irecv(1, 2, &memory).unwrap().wait(LIMIT).unwrap();
            rank.barrier();
            any.wait(LIMIT).unwrap();
        } else {
            ctx.isend(0, 2, &memory).unwrap().wait(LIMIT).unwrap();
            rank.barrier();
            ctx.isend(0, 1, &memory).unwrap().wait(LIMIT).unwrap();
        }
        rank.barrier();
    });
}

#[test]
fn large_message_one_byte_too_long_is_truncated_and_writes_nothing() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(5)));
        let memory = ctx.alloc(MemoryKind::Pinned, LARGE + 1).unwrap();
        memory.write(0, &[rank.me as u8; LARGE + 1]).unwrap();
        let request = match rank.me {
            0 => ctx.irecv(1, 1, &memory.slice(0, LARGE).unwrap()),
            _ => ctx.isend(0, 1, &memory.all()),
        };
        let e = request.unwrap().wait(LIMIT).unwrap_err();
        assert_eq!(e.kind(), Kind::Truncated);
        let mut bytes = [0; LARGE + 1];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == rank.me as u8));
        rank.barrier();
    });
}

#[test]
fn receive_whose_message_has_arrived_cannot_be_cancelled() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open(|b| b);
            let data = slice(&ctx, SMALL);
            ctx.isend(0, 1, &data).unwrap().wait(LIMIT).unwrap();
            rank.barrier();
            return rank.barrier();
        }
        let ctx = rank.open_manual(|b| b);
        let recv = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap();
        rank.barrier();
        assert_eq!(recv.cancel().unwrap_err().kind(), Kind::Unsupported);
        rank.progress_until(&ctx, "the message", || recv.test().unwrap().is_some());
        rank.barrier();
    });
}

/// The next slot still holds the word of the message that used it before.
#[test]
fn receive_from_a_lost_rank_is_refused_when_its_messages_are_taken() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let ctx = rank.open_at(&place, |b| b.depth(DEPTH).timeout(secs(5)));
        let memory = slice(&ctx, SMALL);
        for _ in 0..2 * DEPTH {
            let request = match rank.me {
                0 => ctx.irecv(1, 1, &memory),
                _ => ctx.isend(0, 1, &memory),
            };
            request.unwrap().wait(LIMIT).unwrap();
        }
        rank.barrier();
        if rank.me == 1 {
            return Death::Leaves.end(rank, &place, ctx, 2);
        }
        rank.pass(secs(1));
        let e = ctx.irecv(1, 1, &memory).unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
        rank.barrier();
    });
}

/// A receive with room for more than an eager message writes no ready word to a lost sender.
#[test]
fn stream_receives_a_message_of_a_lost_rank_into_a_larger_segment() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let ctx = rank.open_at(&place, |b| b.timeout(secs(5)));
        let memory = slice(&ctx, LARGE);
        let small = slice(&ctx, SMALL);
        let stream = ctx.gpu().stream().unwrap();
        if rank.me == 1 {
            for _ in 0..2 {
                ctx.isend(0, 1, &small).unwrap().wait(LIMIT).unwrap();
            }
            rank.barrier();
            return Death::Leaves.end(rank, &place, ctx, 2);
        }
        let recv = || ctx.irecv_on(&stream, 1, 1, &memory).unwrap();
        recv().wait(LIMIT).unwrap();
        rank.barrier();
        rank.pass(secs(1));
        recv().wait(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn rank_that_leaves_after_its_messages_arrived_sets_no_error() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let ctx = rank.open_at(&place, |b| b.timeout(secs(5)));
        let memory = slice(&ctx, SMALL);
        if rank.me == 1 {
            ctx.isend(0, 1, &memory).unwrap().wait(LIMIT).unwrap();
            rank.barrier();
            return Death::Leaves.end(rank, &place, ctx, 2);
        }
        let stream = ctx.gpu().stream().unwrap();
        // The message is taken in only when the receive is waited for.
        let recv = ctx.irecv_on(&stream, 1, 1, &memory).unwrap();
        rank.barrier();
        rank.pass(secs(1));
        assert_eq!(ctx.error(), None);
        recv.wait(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn tag_of_a_pending_receive_is_not_retired() {
    const TAGS: u32 = 8;
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.channels(4).timeout(secs(50)));
        let memory = slice(&ctx, SMALL);
        let say = |tag| ctx.isend(1, tag, &memory).unwrap().wait(LIMIT).unwrap();
        let hear = |tag| ctx.irecv(0, tag, &memory).unwrap();
        if rank.me == 0 {
            say(0);
            rank.barrier();
            for tag in 1..TAGS {
                say(tag);
                rank.pass(millis(50));
            }
            say(0);
        } else {
            hear(0).wait(LIMIT).unwrap();
            let last = hear(0);
            rank.barrier();
            for tag in 1..TAGS {
                hear(tag).wait(LIMIT).unwrap();
            }
            last.wait(LIMIT).unwrap();
        }
        rank.barrier();
    });
}

/// A message that arrived before the wait began does not prove that its sender is alive.
#[test]
fn rank_not_heard_since_the_wait_began_is_not_reported_alive() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(60)));
        let memory = slice(&ctx, SMALL);
        if rank.me == 1 {
            ctx.isend(0, 1, &memory).unwrap().wait(LIMIT).unwrap();
            return rank.barrier();
        }
        ctx.irecv(1, 1, &memory).unwrap().wait(LIMIT).unwrap();
        rank.pass(secs(1));
        let segments = [memory.clone()];
        let recv = mp::RecvOp::new(Source::Rank(1), 1, &segments).timeout(secs(1));
        let text = ctx
            .post_recv(&recv)
            .unwrap()
            .wait(LIMIT)
            .unwrap_err()
            .to_string();
        assert!(text.contains("whether rank 1 lives is not known"), "{text}");
        rank.barrier();
    });
}

/// A ready word that is written before the slot's previous message is taken would overwrite the one
/// that the sender still has to read.
#[test]
fn receives_of_one_slot_on_two_streams_write_ready_words_in_order() {
    const COUNT: usize = 2 * DEPTH as usize;
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.depth(DEPTH).timeout(secs(5)));
        let memory = ctx.alloc(MemoryKind::Pinned, COUNT * LARGE).unwrap();
        let place = |n: usize| memory.slice(n * LARGE, LARGE).unwrap();
        if rank.me == 0 {
            let streams = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            for n in 0..COUNT {
                let recv = ctx.irecv_on(&streams[0], 1, 1, &place(n)).unwrap();
                recv.wait_on(&streams[1]).unwrap();
            }
            rank.pass(secs(1));
            rank.barrier();
            ctx.synchronize(&streams[1], LIMIT).unwrap();
        } else {
            rank.barrier();
        }
        for n in 0..COUNT {
            let bytes = [n as u8 + 1; LARGE];
            if rank.me == 0 {
                let mut got = [0; LARGE];
                memory.read(n * LARGE, &mut got).unwrap();
                assert!(got == bytes, "message {n}");
            } else {
                memory.write(n * LARGE, &bytes).unwrap();
                ctx.isend(0, 1, &place(n)).unwrap().wait(LIMIT).unwrap();
            }
        }
        rank.barrier();
    });
}

/// The sender finds the ready word of the slot's next receive in place of its own receive's.
#[test]
fn message_whose_receive_has_ended_is_not_written_to_the_next_receive() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open_manual(|b| b.depth(DEPTH).timeout(secs(20)));
            let data = slice(&ctx, LARGE);
            rank.progress_until(&ctx, "the receives", || rank.has_come(0, 1));
            rank.barrier();
            let send = ctx.isend(0, 1, &data).unwrap();
            rank.barrier();
            rank.barrier();
            rank.progress_until(&ctx, "the end", || !matches!(send.test(), Ok(None)));
            assert_eq!(send.test().unwrap_err().kind(), Kind::Truncated);
            rank.barrier();
            // The ready word of the next receive is kept.
            for len in [SMALL, LARGE] {
                let send = ctx.isend(0, 1, &slice(&ctx, len)).unwrap();
                rank.progress_until(&ctx, "the next", || send.test().unwrap().is_some());
            }
            return rank.barrier();
        }
        let ctx = rank.open(|b| b.depth(DEPTH).timeout(secs(20)));
        let streams = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        for _ in 0..DEPTH {
            let recv = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap();
            recv.wait_on(&streams[1]).unwrap();
        }
        let next = ctx.alloc(MemoryKind::Pinned, LARGE).unwrap();
        next.write(0, &[7; LARGE]).unwrap();
        let recv = ctx.irecv_on(&streams[0], 1, 1, &next.all()).unwrap();
        rank.barrier();
        rank.barrier();
        rank.pass(secs(1));
        rank.barrier();
        rank.barrier();
        let mut bytes = [0; LARGE];
        next.read(0, &mut bytes).unwrap();
        assert!(bytes == [7; LARGE]);
        recv.wait(LIMIT).unwrap();
        rank.barrier();
    });
}

#[test]
fn old_answer_does_not_report_a_rank_alive() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default(), true);
        let ctx = rank.open_at(&place, |b| b.timeout(secs(2)));
        let memory = slice(&ctx, SMALL);
        if rank.me == 1 {
            ctx.isend(0, 1, &memory).unwrap().wait(LIMIT).unwrap();
            rank.barrier();
            // Rank 0 asks after a second, and this rank answers.
            rank.pass(millis(1500));
            return Death::Freezes.end(rank, &place, ctx, 2);
        }
        ctx.irecv(1, 1, &memory).unwrap().wait(LIMIT).unwrap();
        rank.barrier();
        let segments = [memory.clone()];
        let recv = mp::RecvOp::new(Source::Rank(1), 1, &segments).timeout(secs(10));
        let e = ctx.post_recv(&recv).unwrap().wait(LIMIT).unwrap_err();
        assert!(e.to_string().contains("rank 1 was asked"), "{e}");
        rank.barrier();
    });
}

/// A receive that a stream waits for leaves its place in the ring to the next one.
#[test]
fn receives_on_a_stream_are_refused_while_a_window_of_messages_is_not_taken() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let _ctx = rank.open(|b| b);
            return rank.barrier();
        }
        let options = SoftOptions::default().stream_bound(4 * WINDOW as usize);
        let place = rank.place(options, false);
        let ctx = rank.open_at(&place, |b| b.full(Full::Fail).progress(Progress::Manual));
        let memory = slice(&ctx, SMALL);
        let stream = ctx.gpu().stream().unwrap();
        let mut posted = Vec::new();
        let e = loop {
            match ctx.irecv_on(&stream, 1, 1, &memory) {
                Ok(recv) => {
                    recv.wait_on(&stream).unwrap();
                    posted.push(recv);
                }
                Err(e) => break e,
            }
            assert!(posted.len() as u64 <= WINDOW);
        };
        assert_eq!((e.kind(), e.limit_value()), (Kind::QueueFull, Some(WINDOW)));
        rank.barrier();
    });
}

/// Numbers start anew when a retired tag is used again.
#[test]
fn refusal_under_a_reopened_tag_does_not_end_an_old_request() {
    const TAGS: u32 = 8;
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.channels(4).timeout(secs(50)));
        let memory = slice(&ctx, SMALL);
        if rank.me == 1 {
            for tag in 0..TAGS {
                ctx.irecv(0, tag, &memory).unwrap().wait(LIMIT).unwrap();
            }
            let recv = ctx.irecv(0, 0, &slice(&ctx, 1)).unwrap();
            assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            return rank.barrier();
        }
        let send = |tag| ctx.isend(1, tag, &memory).unwrap();
        let old = send(0);
        old.wait(LIMIT).unwrap();
        for tag in 1..TAGS {
            rank.pass(millis(50));
            send(tag).wait(LIMIT).unwrap();
        }
        let new = send(0);
        rank.until("the refusal", || ctx.error().is_some());
        let e = new.test().unwrap_err();
        assert_eq!((e.kind(), e.number()), (Kind::Truncated, Some(0)));
        old.test().unwrap();
        rank.barrier();
    });
}

/// The receive ends when the slot's word may already be that of the next message.
#[test]
fn send_dropped_before_it_was_posted_sets_no_error_at_its_rank() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open_manual(|b| b.depth(DEPTH).timeout(secs(20)));
            let stream = ctx.gpu().stream().unwrap();
            let recvs = [(); DEPTH as usize + 1].map(|()| {
                let recv = ctx.irecv_on(&stream, 0, 1, &slice(&ctx, SMALL)).unwrap();
                recv.wait_on(&stream).unwrap();
                recv
            });
            rank.progress_until(&ctx, "the sends", || rank.has_come(0, 1));
            rank.barrier();
            rank.barrier();
            let [first, others @ ..] = &recvs;
            assert_eq!(first.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            for recv in others {
                recv.wait(LIMIT).unwrap();
            }
            rank.barrier();
            return rank.barrier();
        }
        let ctx = rank.open(|b| b.depth(DEPTH).timeout(secs(20)));
        let segments = [slice(&ctx, SMALL)];
        let send = mp::SendOp::new(1, 1, &segments);
        let dropped = ctx.prepare_send(&send).unwrap();
        let others = [(); DEPTH as usize].map(|()| ctx.prepare_send(&send).unwrap());
        drop(dropped);
        rank.barrier();
        for send in &others {
            send.post().unwrap();
            send.wait(LIMIT).unwrap();
        }
        rank.barrier();
        rank.barrier();
        rank.pass(secs(1));
        assert_eq!(ctx.error(), None);
        rank.barrier();
    });
}

/// A long send that is refused has failed; when its receive ends, the receiver reports once more
/// that the message was too long.
#[test]
fn error_of_a_refused_and_dropped_long_send_is_returned_once() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(50)));
        if rank.me == 1 {
            let stream = ctx.gpu().stream().unwrap();
            let gate = Gate::new(ctx.gpu());
            gate.hold(&stream);
            let recv = ctx.irecv_on(&stream, 0, 1, &slice(&ctx, SMALL)).unwrap();
            recv.wait_on(&stream).unwrap();
            rank.barrier();
            gate.open();
            assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            return rank.barrier();
        }
        drop(ctx.isend(1, 1, &slice(&ctx, LARGE)).unwrap());
        rank.until("the refusal", || ctx.error().is_some());
        let e = ctx.take_error().unwrap();
        assert_eq!((e.kind(), e.number()), (Kind::Truncated, Some(0)));
        rank.barrier();
        rank.barrier();
        rank.pass(secs(1));
        assert!(ctx.take_error().is_none());
    });
}

#[test]
fn stream_that_is_late_for_an_arrived_message_causes_no_warning() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(5)));
        let memory = slice(&ctx, SMALL);
        if rank.me == 1 {
            rank.pass(secs(2));
            ctx.isend(0, 1, &memory).unwrap().wait(LIMIT).unwrap();
            rank.barrier();
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let gate = Gate::new(ctx.gpu());
        gate.hold(&stream);
        let recv = ctx.irecv_on(&stream, 1, 1, &memory).unwrap();
        recv.wait_on(&stream).unwrap();
        rank.barrier();
        rank.pass(secs(10));
        assert!(rank.warnings.all().is_empty(), "{:?}", rank.warnings.all());
        gate.open();
        recv.wait(LIMIT).unwrap();
        ctx.isend(1, 2, &memory).unwrap().wait(LIMIT).unwrap();
        rank.barrier();
    });
}

/// More than one round takes in.
const REFUSED: usize = 200;

/// Has rank 1 refuse so many messages of rank 0, which does not listen, and leave.
fn refuses_and_leaves(rank: &sim::Rank) -> Option<(Context, Vec<mp::Request>)> {
    let place = rank.place(SoftOptions::default(), true);
    let build = |b: mp::Builder| b.depth(256).timeout(secs(5));
    if rank.me == 1 {
        let ctx = rank.open_at(&place, build);
        let into = slice(&ctx, SMALL - 1);
        rank.barrier();
        for _ in 0..REFUSED {
            let e = ctx.irecv(0, 1, &into).unwrap().wait(LIMIT).unwrap_err();
            assert_eq!(e.kind(), Kind::Truncated);
        }
        Death::Leaves.end(rank, &place, ctx, 2);
        return None;
    }
    let ctx = rank.open_manual(build);
    let data = slice(&ctx, SMALL);
    let sends = (0..REFUSED).map(|_| ctx.isend(1, 1, &data).unwrap());
    let sends: Vec<_> = sends.collect();
    rank.progress_until(&ctx, "the sends", || {
        sends.iter().all(|send| send.test().unwrap().is_some())
    });
    rank.barrier();
    rank.until("rank 1 leaves", || rank.has_come(1, 2));
    rank.pass(secs(1));
    Some((ctx, sends))
}

#[test]
fn all_refusals_of_a_rank_that_left_are_heard() {
    play(1, 2, |rank| {
        let Some((ctx, sends)) = refuses_and_leaves(rank) else {
            return;
        };
        rank.progress_until(&ctx, "the end", || {
            ctx.isend(1, 1, &slice(&ctx, 1)).is_err()
        });
        for send in &sends {
            assert_eq!(send.test().unwrap_err().kind(), Kind::Truncated);
        }
        rank.barrier();
    });
}

/// The bootstrap tells that it is gone when something is to be said to it.
#[test]
fn refusals_of_a_rank_that_left_are_heard_before_it_is_found_gone() {
    play(1, 2, |rank| {
        let Some((ctx, sends)) = refuses_and_leaves(rank) else {
            return;
        };
        let e = ctx.isend(1, 2, &slice(&ctx, 1)).unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
        for send in &sends {
            assert_eq!(send.test().unwrap_err().kind(), Kind::Truncated);
        }
        rank.barrier();
    });
}

/// The NIC finds that it is gone before the bootstrap is asked.
#[test]
fn refusals_of_a_rank_that_the_nic_found_gone_are_heard() {
    play(1, 2, |rank| {
        let Some((ctx, sends)) = refuses_and_leaves(rank) else {
            return;
        };
        let last = ctx.isend(1, 1, &slice(&ctx, SMALL)).unwrap();
        rank.pass(secs(4));
        rank.progress_until(&ctx, "the end", || {
            ctx.isend(1, 1, &slice(&ctx, 1)).is_err()
        });
        let e = last.wait(LIMIT).unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
        rank.progress_until(&ctx, "all refusals", || {
            sends.iter().all(|send| send.test().is_err())
        });
        for send in &sends {
            assert_eq!(send.test().unwrap_err().kind(), Kind::Truncated);
        }
        rank.barrier();
    });
}
