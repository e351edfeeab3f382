//! Zero-SM messages at their edges: entries that are used again while a stream has not reached their receive, and
//! losses while the CPU has not copied, or while slots hold messages that nobody has received.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Stream};
use mp::{Builder, Context, Memory, PathChoice, RecvOp, Request, SendOp};
use sim::gate::Gate;
use sim::{Death, LARGE, LIMIT, SMALL, millis, peer_failed, play, secs};

const ENTRIES: usize = 256;
const SLOTS: usize = 16;
const TIMEOUT: Duration = secs(2);

fn build(builder: Builder) -> Builder {
    builder.timeout(TIMEOUT).path(PathChoice::Ipc)
}

fn send(ctx: &Context, on: Option<&Stream>, memory: &Memory, len: usize) -> Request {
    let data = [memory.slice(0, len).unwrap()];
    let op = SendOp::new(1 - ctx.rank(), 1, &data).zero_sm(true);
    let op = on.map_or(op, |stream| op.on(stream));
    ctx.post_send(&op).unwrap()
}

fn receive(ctx: &Context, stream: &Stream, memory: &Memory, len: usize) -> Request {
    let into = [memory.slice(0, len).unwrap()];
    let op = RecvOp::new(1 - ctx.rank(), 1, &into).on(stream);
    ctx.post_recv(&op.zero_sm(true)).unwrap()
}

/// The receive of a message that was too long ends before its stream reaches it. The entry serves another message
/// before the stream does.
#[test]
fn stream_that_reaches_a_failed_receive_late_does_not_hide_a_later_receive() {
    for (seed, send_first) in (0..).zip([false, true]) {
        play(seed, 2, move |rank| {
            let ctx = rank.open(build);
            let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
            let [held, stream] = [0; 2].map(|_| ctx.gpu().stream().unwrap());
            let gate = Gate::new(ctx.gpu());
            if rank.me == 0 {
                if !send_first {
                    rank.barrier();
                }
                let cut = send(&ctx, Some(&stream), &memory, LARGE);
                if send_first {
                    rank.barrier();
                }
                cut.wait(LIMIT).unwrap_err();
                rank.barrier();
                for _ in 1..ENTRIES {
                    send(&ctx, Some(&stream), &memory, SMALL)
                        .wait(LIMIT)
                        .unwrap();
                }
                rank.barrier();
                // The receive of this message is posted.
                rank.barrier();
                let last = send(&ctx, Some(&stream), &memory, SMALL);
                last.wait(LIMIT).unwrap();
                rank.barrier();
            } else {
                gate.hold(&held);
                if send_first {
                    rank.barrier();
                }
                let cut = receive(&ctx, &held, &memory, SMALL);
                if !send_first {
                    rank.barrier();
                }
                cut.wait(LIMIT).unwrap_err();
                rank.barrier();
                for _ in 1..ENTRIES {
                    receive(&ctx, &stream, &memory, SMALL).wait(LIMIT).unwrap();
                }
                rank.barrier();
                rank.pass(millis(20));
                let last = {
                    let into = [memory.slice(0, SMALL).unwrap()];
                    let op = RecvOp::new(0, 1, &into).on(&stream).zero_sm(true);
                    // The entry may be in use until the held stream has come to it.
                    let posted = ctx.post_recv(&op);
                    gate.open();
                    assert!(held.synchronize(LIMIT).unwrap());
                    posted.unwrap_or_else(|e| {
                        assert_eq!(e.kind(), mp::Kind::QueueFull, "{e}");
                        rank.pass(millis(20));
                        ctx.post_recv(&op).unwrap()
                    })
                };
                assert!(stream.synchronize(LIMIT).unwrap());
                rank.barrier();
                last.wait(LIMIT).unwrap();
                rank.barrier();
            }
            // The errors of the message that was too long.
            let _ = ctx.take_error();
            ctx.close(LIMIT).unwrap();
        });
    }
}

/// The CPU has a send to copy: for a receive that a stream has not reached, or to a slot that is not free.
#[test]
fn streams_that_wait_for_sends_of_the_cpu_are_released_when_the_receiver_is_lost() {
    let mut seed = 0;
    for death in [Death::Leaves, Death::Closes, Death::Freezes] {
        for held in [false, true] {
            seed += 1;
            play(seed, 2, move |rank| {
                let ctx = rank.open(build);
                let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
                let stream = ctx.gpu().stream().unwrap();
                let gate = Gate::new(ctx.gpu());
                if rank.me == 1 {
                    if held {
                        gate.hold(&stream);
                        drop(receive(&ctx, &stream, &memory, SMALL));
                    }
                    drop(memory);
                    rank.barrier();
                    rank.pass(millis(50));
                    rank.barrier();
                    death.end(rank, ctx, 3);
                    gate.open();
                    assert!(stream.synchronize(LIMIT).unwrap());
                    return;
                }
                rank.barrier();
                let before = if held { 0 } else { SLOTS };
                (0..before).for_each(|_| drop(send(&ctx, None, &memory, SMALL)));
                let lost = send(&ctx, None, &memory, SMALL);
                lost.wait_on(&stream).unwrap();
                rank.barrier();
                assert!(
                    stream.synchronize(LIMIT).unwrap(),
                    "{death:?} {held}: it is not released"
                );
                peer_failed(&lost.wait(LIMIT).unwrap_err(), 1);
                assert!(ctx.error().is_some());
                let _ = ctx.take_error();
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            });
        }
    }
}

/// A stream waits for a slot when the receiver is given up, and copies then. No other message is received in place of
/// that of the slot.
#[test]
fn messages_in_slots_are_not_exchanged_for_others_when_their_sender_gives_up() {
    play(1, 2, move |rank| {
        let ctx = rank.open(build);
        let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        if rank.me == 0 {
            for n in 0..=SLOTS {
                memory.write(0, &[n as u8; SMALL]).unwrap();
                let sent = send(&ctx, Some(&stream), &memory, SMALL);
                if n < SLOTS {
                    assert!(stream.synchronize(LIMIT).unwrap());
                    sent.wait(LIMIT).unwrap();
                    continue;
                }
                // Nothing is received within the time limit.
                peer_failed(&sent.wait(LIMIT).unwrap_err(), 1);
            }
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.barrier();
            return rank.barrier();
        }
        rank.barrier();
        rank.pass(millis(50));
        for n in 0..SLOTS {
            let into = [memory.slice(0, SMALL).unwrap()];
            let op = RecvOp::new(0, 1, &into).on(&stream).zero_sm(true);
            let received = ctx.post_recv(&op).and_then(|left| left.wait(LIMIT));
            let mut got = [0xee; SMALL];
            memory.read(0, &mut got).unwrap();
            match received {
                Ok(_) => assert_eq!(got, [n as u8; SMALL], "message {n}"),
                Err(e) => peer_failed(&e, 0),
            }
        }
        rank.barrier();
    });
}
