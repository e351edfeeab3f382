//! Zero-SM messages at their edges: entries that are used again while a stream has not reached their receive, and
//! losses while the CPU has not copied, or while slots hold messages that are not received.

#[path = "common/sim.rs"]
mod sim;

use std::cell::Cell;
use std::rc::Rc;
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

/// Both ranks post and wait in any order, by streams and by the CPU, and one of them dies: no stream waits forever, and
/// all requests end.
#[test]
fn random_programs_end_when_a_rank_dies() {
    const LENS: [usize; 5] = [0, SMALL, 4096, 4097, LARGE];
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let death = [Death::Leaves, Death::Closes, Death::Freezes][rng.usize(0..3)];
        let dies = millis(rng.u64(0..3));
        play(seed, 2, move |rank| {
            let ctx = rank.open(build);
            let mut rng = fastrand::Rng::with_seed(seed * 2 + u64::from(rank.me));
            let streams = [0; 3].map(|_| ctx.gpu().stream().unwrap());
            let memory = ctx.alloc(MemoryKind::Device, LARGE).unwrap();
            let gate = Gate::new(ctx.gpu());
            if rng.bool() {
                gate.hold(&streams[0]);
            }
            rank.barrier();
            let mut requests = Vec::new();
            let mut post = |rng: &mut fastrand::Rng| {
                let data = [memory.slice(0, LENS[rng.usize(0..5)]).unwrap()];
                let tag = rng.u32(0..2);
                let by = rng.usize(0..4);
                let posted = if rng.bool() {
                    let op = SendOp::new(rank.peer(), tag, &data).zero_sm(true);
                    ctx.post_send(&streams.get(by).map_or(op, |by| op.on(by)))
                } else {
                    let op = RecvOp::new(rank.peer(), tag, &data).zero_sm(true);
                    ctx.post_recv(&streams.get(by).map_or(op, |by| op.on(by)))
                };
                let Ok(request) = posted else { return };
                for _ in 0..rng.usize(0..3) {
                    let _ = request.wait_on(&streams[rng.usize(0..3)]);
                }
                if rng.bool() {
                    requests.push(request);
                }
            };
            for _ in 0..rng.usize(1..60) {
                post(&mut rng);
                if rng.u8(0..8) == 0 {
                    rank.pass(Duration::from_micros(rng.u64(1..200)));
                }
            }
            if rank.me == 1 {
                drop(requests);
                rank.pass(dies);
                if rng.bool() {
                    gate.open();
                }
                drop(memory);
                death.end(rank, ctx, 2);
                gate.open();
                for stream in &streams {
                    assert!(
                        stream.synchronize(LIMIT).unwrap(),
                        "a stream of the rank that died"
                    );
                }
                return;
            }
            rank.pass(millis(rng.u64(0..3)));
            gate.open();
            for stream in &streams {
                assert!(
                    stream.synchronize(LIMIT).unwrap(),
                    "seed {seed}: {:?}",
                    ctx.stuck()
                );
            }
            for request in &requests {
                let Err(e) = request.wait(secs(5)) else {
                    continue;
                };
                let ended = match e.kind() {
                    mp::Kind::PeerFailed(_) | mp::Kind::Truncated => true,
                    // No stream waits for the rank that is frozen.
                    kind => kind == mp::Kind::Timeout && death == Death::Freezes,
                };
                assert!(ended, "seed {seed}, {death:?}: {e}");
            }
            let _ = ctx.take_error();
            let _ = ctx.close(LIMIT);
            rank.barrier();
        });
    }
}

/// A rank gives up a receiver that is alive. What that receives with success is what was sent.
#[test]
fn receives_of_a_rank_that_was_given_up_succeed_with_their_own_message_alone() {
    const MOST: usize = 60;
    const LENS: [usize; 4] = [1, SMALL, 64, 4097];
    let mut lost = [0; 2];
    for seed in 0..60 {
        let (failed, all) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let counts = (Rc::clone(&failed), Rc::clone(&all));
        play(seed, 2, move |rank| {
            let ctx = rank.open(build);
            let mut rng = fastrand::Rng::with_seed(seed);
            let lens: Vec<usize> = (0..MOST).map(|_| LENS[rng.usize(0..4)]).collect();
            let mut rng = fastrand::Rng::with_seed(seed * 2 + u64::from(rank.me));
            let streams = [0; 2].map(|_| ctx.gpu().stream().unwrap());
            let memory = |n: usize| {
                let memory = ctx.alloc(MemoryKind::Device, 4097).unwrap();
                memory.write(0, &[n as u8; 4097]).unwrap();
                memory
            };
            if rank.me == 0 {
                for (n, len) in lens.iter().enumerate() {
                    let memory = memory(n);
                    let data = [memory.slice(0, *len).unwrap()];
                    let op = SendOp::new(1, 1, &data).zero_sm(true);
                    let op = streams.get(rng.usize(0..3)).map_or(op, |by| op.on(by));
                    if ctx.post_send(&op).is_err() {
                        break;
                    }
                    rank.pass(Duration::from_micros(rng.u64(0..100)));
                }
                rank.barrier();
                rank.pass(secs(3));
                return rank.barrier();
            }
            let gate = Gate::new(ctx.gpu());
            gate.hold(&streams[0]);
            let ahead = rng.usize(0..10);
            let mut posted = Vec::new();
            let mut post = |n: usize, stream: &Stream, rng: &mut fastrand::Rng| {
                let memory = memory(0xee);
                let into = [memory.slice(0, lens[n]).unwrap()];
                let op = RecvOp::new(0, 1, &into).on(stream).zero_sm(true);
                let Ok(request) = ctx.post_recv(&op) else {
                    return;
                };
                if rng.bool() {
                    let _ = request.wait_on(stream);
                }
                posted.push((n, request, memory));
            };
            for n in 0..ahead {
                if rng.bool() {
                    rank.pass(Duration::from_micros(rng.u64(0..300)));
                }
                post(n, &streams[0], &mut rng);
            }
            rank.barrier();
            // The other rank finds its time limit exceeded about then.
            rank.pass(millis(1990) + Duration::from_micros(rng.u64(0..20_000)));
            gate.open();
            for n in ahead..MOST {
                post(n, &streams[1], &mut rng);
            }
            for stream in &streams {
                assert!(stream.synchronize(LIMIT).unwrap());
            }
            for (n, request, memory) in &posted {
                all.set(all.get() + 1);
                match request.wait(LIMIT) {
                    Ok(_) => {
                        let mut got = vec![0; lens[*n]];
                        memory.read(0, &mut got).unwrap();
                        assert!(
                            got.iter().all(|b| *b == *n as u8),
                            "seed {seed}, {n}: {got:?}"
                        );
                    }
                    Err(e) => {
                        failed.set(failed.get() + 1);
                        peer_failed(&e, 0);
                    }
                }
            }
            rank.barrier();
        });
        lost[0] += counts.0.get();
        lost[1] += counts.1.get();
    }
    assert!(lost[0] > 0 && lost[0] < lost[1], "{lost:?}");
}
