//! The limits of a channel: full rings and windows, messages one byte too long, receives behind
//! others in a slot or tag, and requests with a lost rank.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Builder, Context, Error, Full, Kind, Progress, RecvOp, Request, SendOp, Source};
use sim::gate::Gate;
use sim::{Death, LARGE, LIMIT, Rank, SMALL, by_nic, millis, pair, peer_failed, play};
use sim::{recv, recv_on, secs, send, slice};

const DEPTH: u32 = 2;
/// The library's limit of messages that are not received: words contain 16 bits of a number.
const WINDOW: u64 = 8192;

fn build(builder: Builder) -> Builder {
    builder.timeout(secs(5))
}

/// Few slots, and enough time for the other rank to start.
fn slots(builder: Builder) -> Builder {
    builder.depth(DEPTH).timeout(secs(20))
}

/// Few channels, which tags use in turn.
fn channels(builder: Builder) -> Builder {
    builder.channels(4).timeout(secs(50))
}

/// Posts until the call is refused; the error must contain the limit.
fn refused_at(limit: u64, mut post: impl FnMut() -> mp::Result<Request>) -> Vec<Request> {
    let mut posted = Vec::new();
    let e = loop {
        match post() {
            Ok(request) => posted.push(request),
            Err(e) => break e,
        }
        assert!(posted.len() as u64 <= limit);
    };
    assert_eq!((e.kind(), e.limit()), (Kind::QueueFull, Some(limit)));
    posted
}

#[test]
fn sends_are_refused_while_a_window_of_messages_is_not_taken() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            recv(&rank.open(|b| b), 0, 1, SMALL);
            return rank.barrier();
        }
        let ctx = rank.open_manual(|b| b.full(Full::Fail));
        let data = slice(&ctx, SMALL);
        let first = ctx.isend(1, 1, &data).unwrap();
        rank.progress_until(&ctx, "the first message", || {
            first.test().unwrap().is_some()
        });
        refused_at(WINDOW, || ctx.isend(1, 1, &data));
        rank.barrier();
    });
}

#[test]
fn receives_are_refused_while_the_ring_is_full_of_pending_ones() {
    let build = |b: Builder| b.full(Full::Fail).depth(DEPTH);
    pair(build, |rank, ctx| {
        if rank.me == 1 {
            rank.barrier();
            return (0..DEPTH).for_each(|_| send(ctx, 0, 1, SMALL));
        }
        let memory = slice(ctx, SMALL);
        let posted = refused_at(DEPTH.into(), || ctx.irecv(1, 1, &memory));
        assert_eq!(posted.len(), DEPTH as usize);
        rank.barrier();
        mp::wait_all(&posted, LIMIT).unwrap();
    });
}

/// A receive that a stream waits for frees its place in the ring for the next one.
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
        refused_at(WINDOW, || {
            let recv = ctx.irecv_on(&stream, 1, 1, &memory)?;
            recv.wait_on(&stream).unwrap();
            Ok(recv)
        });
        rank.barrier();
    });
}

#[test]
fn receive_from_a_rank_is_refused_while_one_from_any_rank_is_pending() {
    pair(build, |rank, ctx| {
        if rank.me == 1 {
            send(ctx, 0, 2, SMALL);
            rank.barrier();
            return send(ctx, 0, 1, SMALL);
        }
        let memory = slice(ctx, SMALL);
        let any = ctx.irecv(Source::Any, 1, &memory).unwrap();
        let e = ctx.irecv(1, 1, &memory).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Busy, Some(1)));
        // Other tags are not affected.
        recv(ctx, 1, 2, SMALL);
        rank.barrier();
        any.wait(LIMIT).unwrap();
    });
}

#[test]
fn large_message_one_byte_too_long_is_truncated_and_writes_nothing() {
    pair(build, |rank, ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, LARGE + 1).unwrap();
        memory.write(0, &[rank.me as u8; LARGE + 1]).unwrap();
        let request = match rank.me {
            0 => ctx.irecv(1, 1, &memory.slice(0, LARGE).unwrap()),
            _ => ctx.isend(0, 1, &memory.all()),
        };
        truncated(&request.unwrap());
        let mut bytes = [0; LARGE + 1];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == rank.me as u8));
    });
}

#[track_caller]
fn truncated(request: &Request) -> Error {
    let e = request.wait(LIMIT).unwrap_err();
    assert_eq!(e.kind(), Kind::Truncated);
    e
}

#[test]
fn receive_whose_message_has_arrived_cannot_be_cancelled() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open(|b| b);
            send(&ctx, 0, 1, SMALL);
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

/// The next slot still contains the word of its previous message.
#[test]
fn receive_from_a_lost_rank_is_refused_when_its_messages_are_taken() {
    play(1, 2, |rank| {
        let ctx = rank.open(slots);
        if rank.me == 1 {
            (0..2 * DEPTH).for_each(|_| send(&ctx, 0, 1, SMALL));
            rank.barrier();
            return Death::Leaves.end(rank, ctx, 2);
        }
        (0..2 * DEPTH).for_each(|_| recv(&ctx, 1, 1, SMALL));
        rank.barrier();
        rank.pass(secs(1));
        peer_failed(&ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap_err(), 1);
        rank.barrier();
    });
}

/// A receive with room for more than an eager message writes no ready word to a lost sender.
#[test]
fn stream_receives_a_message_of_a_lost_rank_into_a_larger_segment() {
    play(1, 2, |rank| {
        let ctx = rank.open(build);
        if rank.me == 1 {
            (0..2).for_each(|_| send(&ctx, 0, 1, SMALL));
            rank.barrier();
            return Death::Leaves.end(rank, ctx, 2);
        }
        let (memory, stream) = (slice(&ctx, LARGE), ctx.gpu().stream().unwrap());
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
        let ctx = rank.open(build);
        if rank.me == 1 {
            send(&ctx, 0, 1, SMALL);
            rank.barrier();
            return Death::Leaves.end(rank, ctx, 2);
        }
        let stream = ctx.gpu().stream().unwrap();
        // The message is received only when the receive is waited for.
        let recv = ctx.irecv_on(&stream, 1, 1, &slice(&ctx, SMALL)).unwrap();
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
    pair(channels, |rank, ctx| {
        if rank.me == 0 {
            send(ctx, 1, 0, SMALL);
            rank.barrier();
            for tag in 1..TAGS {
                send(ctx, 1, tag, SMALL);
                rank.pass(millis(50));
            }
            send(ctx, 1, 0, SMALL);
        } else {
            recv(ctx, 0, 0, SMALL);
            let last = ctx.irecv(0, 0, &slice(ctx, SMALL)).unwrap();
            rank.barrier();
            (1..TAGS).for_each(|tag| recv(ctx, 0, tag, SMALL));
            last.wait(LIMIT).unwrap();
        }
    });
}

/// Rank 0's error of a receive with this time limit.
fn timed_out(ctx: &Context, seconds: u64) -> String {
    let segments = [slice(ctx, SMALL)];
    let recv = RecvOp::new(1, 1, &segments).timeout(secs(seconds));
    let e = ctx.post_recv(&recv).unwrap().wait(LIMIT).unwrap_err();
    e.to_string()
}

/// A message that arrived before the wait began does not prove that its sender is alive.
#[test]
fn rank_without_a_message_since_the_wait_began_is_not_reported_alive() {
    pair(slots, |rank, ctx| {
        if rank.me == 1 {
            return send(ctx, 0, 1, SMALL);
        }
        recv(ctx, 1, 1, SMALL);
        rank.pass(secs(1));
        let text = timed_out(ctx, 1);
        assert!(
            text.contains("it is not known whether rank 1 is alive"),
            "{text}"
        );
    });
}

#[test]
fn old_answer_does_not_report_a_rank_alive() {
    play(1, 2, |rank| {
        let ctx = rank.open(|b| b.timeout(secs(2)));
        if rank.me == 1 {
            send(&ctx, 0, 1, SMALL);
            rank.barrier();
            // Rank 0 probes after a second, and this rank answers.
            rank.pass(millis(1500));
            return Death::Freezes.end(rank, ctx, 2);
        }
        recv(&ctx, 1, 1, SMALL);
        rank.barrier();
        let text = timed_out(&ctx, 10);
        assert!(text.contains("rank 1 has not answered a ping"), "{text}");
        rank.barrier();
    });
}

/// A ready word that is written before the slot's previous message is received would overwrite the
/// word that the sender still has to read.
#[test]
fn receives_of_one_slot_on_two_streams_write_ready_words_in_order() {
    const COUNT: usize = 2 * DEPTH as usize;
    pair(slots, |rank, ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, COUNT * LARGE).unwrap();
        let place = |n: usize| memory.slice(n * LARGE, LARGE).unwrap();
        if rank.me == 1 {
            rank.barrier();
            for n in 0..COUNT {
                memory.write(n * LARGE, &[n as u8 + 1; LARGE]).unwrap();
                ctx.isend(0, 1, &place(n)).unwrap().wait(LIMIT).unwrap();
            }
            return;
        }
        let streams = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        for n in 0..COUNT {
            let recv = ctx.irecv_on(&streams[0], 1, 1, &place(n)).unwrap();
            recv.wait_on(&streams[1]).unwrap();
        }
        rank.pass(secs(1));
        rank.barrier();
        ctx.synchronize(&streams[1], LIMIT).unwrap();
        for n in 0..COUNT {
            let mut got = [0; LARGE];
            memory.read(n * LARGE, &mut got).unwrap();
            assert!(got == [n as u8 + 1; LARGE], "message {n}");
        }
    });
}

/// The sender finds the ready word of the slot's next receive instead of that of its own receive.
#[test]
fn message_whose_receive_has_ended_is_not_written_to_the_next_receive() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open_manual(slots);
            let data = slice(&ctx, LARGE);
            rank.progress_until(&ctx, "the receives", || rank.has_come(0, 1));
            rank.barrier();
            let send = ctx.isend(0, 1, &data).unwrap();
            rank.barrier();
            rank.barrier();
            rank.progress_until(&ctx, "the end", || !matches!(send.test(), Ok(None)));
            assert_eq!(send.test().unwrap_err().kind(), Kind::Truncated);
            rank.barrier();
            rank.barrier();
            // The ready word of the next receive remains.
            for len in [SMALL, LARGE] {
                let send = ctx.isend(0, 1, &slice(&ctx, len)).unwrap();
                rank.progress_until(&ctx, "the next", || send.test().unwrap().is_some());
            }
            return rank.barrier();
        }
        let ctx = rank.open(slots);
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
        rank.barrier();
        recv.wait(LIMIT).unwrap();
        rank.barrier();
    });
}

/// Message numbers restart when a retired tag is used again.
#[test]
fn refusal_under_a_reopened_tag_does_not_end_an_old_request() {
    const TAGS: u32 = 8;
    pair(channels, |rank, ctx| {
        if rank.me == 1 {
            (0..TAGS).for_each(|tag| recv(ctx, 0, tag, SMALL));
            truncated(&ctx.irecv(0, 0, &slice(ctx, 1)).unwrap());
            return;
        }
        let memory = slice(ctx, SMALL);
        let old = ctx.isend(1, 0, &memory).unwrap();
        old.wait(LIMIT).unwrap();
        for tag in 1..TAGS {
            rank.pass(millis(50));
            send(ctx, 1, tag, SMALL);
        }
        let new = ctx.isend(1, 0, &memory).unwrap();
        rank.until("the refusal", || ctx.error().is_some());
        let e = new.wait(LIMIT).unwrap_err();
        assert_eq!((e.kind(), e.number()), (Kind::Truncated, Some(0)));
        old.test().unwrap();
    });
}

/// The receive ends when the slot's word may already belong to the next message.
#[test]
fn send_dropped_before_it_was_posted_sets_no_error_at_its_rank() {
    play(1, 2, |rank| {
        if rank.me == 1 {
            let ctx = rank.open_manual(slots);
            let stream = ctx.gpu().stream().unwrap();
            let recvs = [(); DEPTH as usize + 1]
                .map(|()| recv_on(&ctx, &stream, 0, 1, &slice(&ctx, SMALL)));
            rank.progress_until(&ctx, "the sends", || rank.has_come(0, 1));
            rank.barrier();
            rank.barrier();
            truncated(&recvs[0]);
            mp::wait_all(&recvs[1..], LIMIT).unwrap();
            rank.barrier();
            return rank.barrier();
        }
        let ctx = rank.open(slots);
        let segments = [slice(&ctx, SMALL)];
        let send = SendOp::new(1, 1, &segments);
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

/// A long send that is refused has failed; when its receive ends, the receiver reports the
/// truncation again.
#[test]
fn error_of_a_refused_and_dropped_long_send_is_returned_once() {
    pair(channels, |rank, ctx| {
        if rank.me == 1 {
            let stream = ctx.gpu().stream().unwrap();
            let gate = Gate::new(ctx.gpu());
            gate.hold(&stream);
            let recv = recv_on(ctx, &stream, 0, 1, &slice(ctx, SMALL));
            rank.barrier();
            gate.open();
            truncated(&recv);
            return rank.barrier();
        }
        drop(ctx.isend(1, 1, &slice(ctx, LARGE)).unwrap());
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
    pair(build, |rank, ctx| {
        if rank.me == 1 {
            rank.pass(secs(2));
            send(ctx, 0, 1, SMALL);
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let gate = Gate::new(ctx.gpu());
        gate.hold(&stream);
        let recv = recv_on(ctx, &stream, 1, 1, &slice(ctx, SMALL));
        rank.barrier();
        rank.pass(secs(10));
        assert!(rank.warnings.all().is_empty(), "{:?}", rank.warnings.all());
        gate.open();
        recv.wait(LIMIT).unwrap();
        send(ctx, 1, 2, SMALL);
    });
}

/// Rank 1 refuses more messages of rank 0 than one round processes, while rank 0 does not poll, and
/// leaves. Rank 0 then finds that rank 1 is gone, and that all messages were refused.
fn refuses_and_leaves(finds: fn(&Rank, &Context, &[Request])) {
    const REFUSED: usize = 200;
    let build = |b: Builder| by_nic(build(b)).depth(256);
    play(1, 2, move |rank| {
        if rank.me == 1 {
            let ctx = rank.open(build);
            let into = slice(&ctx, SMALL - 1);
            rank.barrier();
            for _ in 0..REFUSED {
                truncated(&ctx.irecv(0, 1, &into).unwrap());
            }
            drop(into);
            return Death::Leaves.end(rank, ctx, 2);
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
        finds(rank, &ctx, &sends);
        for send in &sends {
            assert_eq!(send.test().unwrap_err().kind(), Kind::Truncated);
        }
        rank.barrier();
    });
}

fn is_gone(rank: &Rank, ctx: &Context) {
    rank.progress_until(ctx, "the end", || ctx.isend(1, 1, &slice(ctx, 1)).is_err());
}

#[test]
fn all_refusals_of_a_rank_that_left_are_received() {
    refuses_and_leaves(|rank, ctx, _| is_gone(rank, ctx));
}

/// The bootstrap reports the rank as gone when a control message is sent to it.
#[test]
fn refusals_of_a_rank_that_left_are_received_before_it_is_found_gone() {
    refuses_and_leaves(|_, ctx, _| {
        peer_failed(&ctx.isend(1, 2, &slice(ctx, 1)).unwrap_err(), 1);
    });
}

/// The NIC reports the rank as gone before the bootstrap is asked.
#[test]
fn refusals_of_a_rank_that_the_nic_found_gone_are_received() {
    refuses_and_leaves(|rank, ctx, sends| {
        let last = ctx.isend(1, 1, &slice(ctx, SMALL)).unwrap();
        rank.pass(secs(4));
        is_gone(rank, ctx);
        peer_failed(&last.wait(LIMIT).unwrap_err(), 1);
        rank.progress_until(ctx, "all refusals", || {
            sends.iter().all(|send| send.test().is_err())
        });
    });
}

/// The stream may reach the receive later: the time limit applies to the message.
#[test]
fn timeout_of_a_receive_with_arrived_message_does_not_fail_its_sender() {
    pair(build, |rank, ctx| {
        if rank.me == 1 {
            send(ctx, 0, 1, SMALL);
            rank.barrier();
            return recv(ctx, 0, 2, SMALL);
        }
        let (stream, one) = (ctx.gpu().stream().unwrap(), [slice(ctx, SMALL)]);
        let recv = RecvOp::new(1, 1, &one).on(&stream).timeout(secs(1));
        let recv = ctx.post_recv(&recv).unwrap();
        rank.barrier();
        rank.pass(secs(3));
        assert_eq!(ctx.error(), None);
        recv.wait(LIMIT).unwrap();
        send(ctx, 1, 2, SMALL);
    });
}
