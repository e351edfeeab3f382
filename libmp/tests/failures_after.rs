//! After a death: what the rank had sent is received by whoever asks, and calls that have to do
//! with it, first uses and waiting ones too, end with its name.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use mp::{Builder, Context, Kind, Memory, RecvOp, Request, Source};
use sim::{Death, LARGE, LIMIT, SMALL, millis, play, secs};

const TIMEOUT: Duration = secs(2);
const SLACK: Duration = millis(100);
/// The rank that dies.
const VICTIM: u32 = 1;
/// The rank that goes on.
const FRIEND: u32 = 2;

fn build(builder: Builder) -> Builder {
    builder.timeout(TIMEOUT).depth(8)
}

fn memory(ctx: &Context, len: usize) -> Memory {
    ctx.alloc(MemoryKind::Pinned, len).unwrap()
}

/// The error of a rank that is dead or does not answer.
fn names_the_victim(e: &mp::Error) {
    assert_eq!(e.rank(), Some(VICTIM), "{e:?}");
    let kind = e.kind();
    let known = matches!(kind, Kind::PeerFailed(_) | Kind::Timeout);
    assert!(known, "{e:?}");
}

#[test]
fn what_had_come_is_received_by_whoever_asks() {
    for death in Death::ALL {
        play(3, 2, move |rank| {
            let place = rank.place(SoftOptions::default(), true);
            let ctx = rank.open_at(&place, build);
            let into = memory(&ctx, SMALL);
            let stream = ctx.gpu().stream().unwrap();
            // A stream's first use of a rank needs that rank's answer.
            let recv = ctx.irecv_on(&stream, rank.peer(), 2, &into.all());
            let sent = ctx.isend_on(&stream, rank.peer(), 2, &into.all());
            sent.unwrap().wait(LIMIT).unwrap();
            recv.unwrap().wait(LIMIT).unwrap();
            if rank.me == VICTIM {
                for i in 0..6 {
                    into.write(0, &[i; SMALL]).unwrap();
                    let sent = ctx.isend(0, 1, &into.all()).unwrap();
                    sent.wait(LIMIT).unwrap();
                }
                rank.barrier();
                return death.end(rank, ctx, 2);
            }
            rank.barrier();
            rank.pass(millis(50));
            let slice = into.all();
            let one = [slice.clone()];
            let receive = |how: usize| -> mp::Result<Request> {
                match how {
                    0 => ctx.irecv(VICTIM, 1, &slice),
                    1 => {
                        let recv = ctx.irecv_on(&stream, VICTIM, 1, &slice)?;
                        recv.wait_on(&stream)?;
                        assert!(stream.synchronize(LIMIT).unwrap());
                        Ok(recv)
                    }
                    2 => ctx.irecv(Source::Any, 1, &slice),
                    3 => ctx.irecv_on(&stream, VICTIM, 1, &slice),
                    4 => {
                        let recv = ctx.irecv_on(&stream, Source::Any, 1, &slice)?;
                        recv.wait_on(&stream)?;
                        assert!(stream.synchronize(LIMIT).unwrap());
                        Ok(recv)
                    }
                    _ => ctx.post_recv(&RecvOp::new(VICTIM, 1, &one).timeout(TIMEOUT)),
                }
            };
            for i in 0..6 {
                let done = receive(i).and_then(|r| r.wait(LIMIT));
                let done = done.unwrap_or_else(|e| panic!("{death:?}, {i}: {e}"));
                assert_eq!((done.source(), done.len), (VICTIM, SMALL as u64));
                let mut got = [0; SMALL];
                into.read(0, &mut got).unwrap();
                assert_eq!(got, [i as u8; SMALL]);
            }
            assert_eq!(ctx.error(), None, "{death:?}");
            let e = receive(6).and_then(|r| r.wait(LIMIT)).unwrap_err();
            names_the_victim(&e);
            rank.barrier();
        });
    }
}

#[test]
fn the_first_use_of_a_rank_that_is_dead_names_it() {
    for death in Death::ALL {
        for send in [false, true] {
            play(4, 3, move |rank| {
                let place = rank.place(SoftOptions::default(), true);
                let ctx = rank.open_at(&place, build);
                rank.barrier();
                let slice = memory(&ctx, SMALL).all();
                match rank.me {
                    VICTIM => return death.end(rank, ctx, 3),
                    FRIEND => {
                        ctx.isend(0, 1, &slice).unwrap().wait(LIMIT).unwrap();
                        return rank.until("the end", || rank.has_come(0, 3));
                    }
                    _ => {}
                }
                rank.pass(millis(50));
                let before = rank.host.now();
                let one = [slice.clone()];
                let e = match send {
                    true => ctx.isend(VICTIM, 1, &slice),
                    false => ctx.post_recv(&RecvOp::new(VICTIM, 1, &one).timeout(TIMEOUT)),
                }
                .and_then(|r| r.wait(LIMIT))
                .unwrap_err();
                names_the_victim(&e);
                let took = rank.host.now().since(before);
                assert!(took < TIMEOUT + SLACK, "{death:?}: {took:?}");
                if death == Death::Leaves {
                    assert!(took < SLACK, "who has left is known: {took:?}");
                }
                let recv = ctx.irecv(FRIEND, 1, &slice).unwrap();
                recv.wait(LIMIT).unwrap();
                rank.come();
                rank.come();
            });
        }
    }
}

/// Calls that stand when the rank dies: for room in a queue, for a message, for the end.
#[test]
fn calls_that_wait_are_told() {
    for death in Death::ALL {
        for how in 0..3 {
            play(5, 2, move |rank| {
                let place = rank.place(SoftOptions::default(), true);
                let ctx = rank.open_at(&place, build);
                let slice = memory(&ctx, LARGE).all();
                let small = slice.memory().slice(0, SMALL).unwrap();
                if rank.me == VICTIM {
                    rank.barrier();
                    rank.pass(millis(100));
                    return death.end(rank, ctx, 2);
                }
                let stream = ctx.gpu().stream().unwrap();
                let sent = ctx.isend_on(&stream, VICTIM, 1, &slice).unwrap();
                let recv = ctx.irecv_on(&stream, VICTIM, 2, &small).unwrap();
                recv.wait_on(&stream).unwrap();
                rank.barrier();
                let before = rank.host.now();
                match how {
                    0 => {
                        let fills = || ctx.isend_on(&stream, VICTIM, 1, &small).map(drop);
                        let e = (0..1000).try_for_each(|_| fills()).unwrap_err();
                        names_the_victim(&e);
                    }
                    1 => names_the_victim(&recv.wait(LIMIT).unwrap_err()),
                    _ => names_the_victim(&ctx.close(LIMIT).unwrap_err()),
                }
                let took = rank.host.now().since(before);
                assert!(took < TIMEOUT + SLACK, "{death:?}, {how}: {took:?}");
                assert!(stream.synchronize(LIMIT).unwrap());
                for request in [sent, recv] {
                    let e = request.wait(LIMIT).unwrap_err();
                    assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
                }
                if how == 0 {
                    // Requests that were dropped.
                    names_the_victim(&ctx.close(LIMIT).unwrap_err());
                }
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            });
        }
    }
}

/// A receive from anybody does not meet what a rank only announced that died.
#[test]
fn an_announcement_of_the_dead_is_no_message() {
    for death in [Death::Leaves, Death::Closes] {
        play(6, 3, move |rank| {
            let place = rank.place(SoftOptions::default(), true);
            let ctx = rank.open_at(&place, build);
            let slice = memory(&ctx, LARGE).all();
            if rank.me == VICTIM {
                let announced = ctx.isend(0, 1, &slice).unwrap();
                rank.pass(millis(20));
                assert!(announced.test().unwrap().is_none());
                rank.barrier();
                drop(announced);
                return death.end(rank, ctx, 3);
            }
            rank.barrier();
            if rank.me == FRIEND {
                rank.barrier();
                let sent = ctx.isend(0, 1, &slice).unwrap();
                sent.wait(LIMIT).unwrap();
                ctx.close(LIMIT).unwrap();
                return rank.barrier();
            }
            rank.pass(millis(50));
            let first = ctx.irecv(Source::Any, 1, &slice).unwrap();
            rank.barrier();
            let done = first.wait(LIMIT).unwrap();
            assert_eq!((done.source(), done.len), (FRIEND, LARGE as u64));
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}
