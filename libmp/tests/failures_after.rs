//! After a death: messages that the rank had sent are received; calls that need the rank, its first
//! use and blocked calls included, end with an error that names it.

#[path = "common/sim.rs"]
mod sim;

use std::time::Duration;

use mp::gdsync::gpu::MemoryKind;
use mp::{Builder, Kind, PathChoice, RecvOp, Request, SendOp, Source};
use sim::{
    Death, LARGE, LIMIT, SMALL, millis, peer_failed, play, recv, recv_on, secs, send, slice,
};

const TIMEOUT: Duration = secs(2);
const SLACK: Duration = millis(100);
/// The rank that dies.
const VICTIM: u32 = 1;
/// The rank that survives with the other one.
const FRIEND: u32 = 2;

fn build(builder: Builder) -> Builder {
    builder.timeout(TIMEOUT).depth(8)
}

/// The error of a rank that is dead or does not answer.
fn names_the_victim(e: &mp::Error) {
    assert_eq!(e.rank(), Some(VICTIM), "{e:?}");
    let known = matches!(e.kind(), Kind::PeerFailed(_) | Kind::Timeout);
    assert!(known, "{e:?}");
}

#[test]
fn arrived_messages_of_a_dead_rank_are_received() {
    for death in Death::ALL {
        play(3, 2, move |rank| {
            let ctx = rank.open(build);
            let slice = slice(&ctx, SMALL);
            let into = slice.memory();
            let stream = ctx.gpu().stream().unwrap();
            // The first use of a rank by a stream needs an answer of that rank.
            let recv = ctx.irecv_on(&stream, rank.peer(), 2, &slice);
            let sent = ctx.isend_on(&stream, rank.peer(), 2, &slice);
            sent.unwrap().wait(LIMIT).unwrap();
            recv.unwrap().wait(LIMIT).unwrap();
            if rank.me == VICTIM {
                for i in 0..6 {
                    into.write(0, &[i; SMALL]).unwrap();
                    ctx.isend(0, 1, &slice).unwrap().wait(LIMIT).unwrap();
                }
                rank.barrier();
                return death.end(rank, ctx, 2);
            }
            rank.barrier();
            rank.pass(millis(50));
            let one = [slice.clone()];
            let waits = |from: Source| {
                let recv = recv_on(&ctx, &stream, from, 1, &slice);
                assert!(stream.synchronize(LIMIT).unwrap());
                Ok(recv)
            };
            let receive = |how: usize| -> mp::Result<Request> {
                match how {
                    0 => ctx.irecv(VICTIM, 1, &slice),
                    1 => waits(VICTIM.into()),
                    2 => ctx.irecv(Source::Any, 1, &slice),
                    3 => ctx.irecv_on(&stream, VICTIM, 1, &slice),
                    4 => waits(Source::Any),
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
fn first_use_of_a_dead_rank_fails_and_names_it() {
    for death in Death::ALL {
        for sends in [false, true] {
            play(4, 3, move |rank| {
                let ctx = rank.open(|b| death.build(build(b)));
                rank.barrier();
                match rank.me {
                    VICTIM => return death.end(rank, ctx, 3),
                    FRIEND => {
                        send(&ctx, 0, 1, SMALL);
                        return rank.until("the end", || rank.has_come(0, 3));
                    }
                    _ => rank.pass(millis(50)),
                }
                let before = rank.host.now();
                let slice = slice(&ctx, SMALL);
                let one = [slice.clone()];
                let e = match sends {
                    true => ctx.isend(VICTIM, 1, &slice),
                    false => ctx.post_recv(&RecvOp::new(VICTIM, 1, &one).timeout(TIMEOUT)),
                }
                .and_then(|r| r.wait(LIMIT))
                .unwrap_err();
                names_the_victim(&e);
                let took = rank.host.now().since(before);
                assert!(took < TIMEOUT + SLACK, "{death:?}: {took:?}");
                if death == Death::Leaves {
                    assert!(took < SLACK, "the departure is already known: {took:?}");
                }
                recv(&ctx, FRIEND, 1, SMALL);
                rank.come();
                rank.come();
            });
        }
    }
}

/// A stream waits for a send to a dead rank, which the library has not given up yet, and for a receive from
/// another rank, in one call: the receive is not affected.
#[test]
fn a_failed_send_does_not_affect_a_receive_of_the_same_wait() {
    for death in [Death::IsCut, Death::Freezes] {
        play(6, 3, move |rank| {
            let ctx = rank.open_manual(|b| build(b).path(PathChoice::Nic));
            let stream = ctx.gpu().stream().unwrap();
            let one = slice(&ctx, SMALL);
            // All ranks are connected by a lane of the stream.
            for peer in (0..3).filter(|peer| *peer != rank.me) {
                let got = ctx.irecv_on(&stream, peer, 1, &one).unwrap();
                let sent = ctx.isend_on(&stream, peer, 1, &one).unwrap();
                sent.wait(LIMIT).unwrap();
                got.wait(LIMIT).unwrap();
            }
            rank.barrier();
            if rank.me == VICTIM {
                return death.end(rank, ctx, 2);
            }
            rank.pass(millis(50));
            if rank.me == FRIEND {
                rank.until("the wait", || rank.has_come(0, 2));
                send(&ctx, 0, 1, SMALL);
                rank.come();
                return;
            }
            let sent = ctx.isend_on(&stream, VICTIM, 1, &one).unwrap();
            // The NIC has given up, and the library has not looked.
            rank.pass(secs(4));
            let got = ctx.irecv_on(&stream, FRIEND, 1, &one).unwrap();
            let both = [sent, got];
            if let Err(e) = ctx.wait_all_on(&stream, &both) {
                names_the_victim(&e);
            }
            rank.come();
            both[1].wait(LIMIT).unwrap();
            names_the_victim(&both[0].wait(LIMIT).unwrap_err());
            assert!(stream.synchronize(LIMIT).unwrap());
            rank.until("the end of the send", || rank.has_come(FRIEND, 2));
        });
    }
}

/// A stream continues behind a send in many pieces once they are packed. Its failure is found all the same.
#[test]
fn synchronize_waits_for_a_packed_send_that_its_stream_has_passed() {
    for (death, together) in [(Death::IsCut, false), (Death::Freezes, true)] {
        play(7, 2, move |rank| {
            let ctx = rank.open(|b| build(b).path(PathChoice::Nic));
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Pinned, 1000).unwrap();
            let pieces = memory.strided(0, 4, 8, 100).unwrap();
            let post = || {
                let send = SendOp::strided(rank.peer(), 1, &pieces).on(&stream);
                let sends = [(); 2].map(|()| ctx.post_send(&send).unwrap());
                match together {
                    true => ctx.wait_all_on(&stream, &sends).unwrap(),
                    false => sends.iter().for_each(|sent| sent.wait_on(&stream).unwrap()),
                }
                sends
            };
            let into = memory.slice(0, 400).unwrap();
            let got = [(); 2].map(|()| ctx.irecv(rank.peer(), 1, &into).unwrap());
            let [_, sent] = post();
            mp::wait_all(&got, LIMIT).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            assert!(sent.test().unwrap().is_some());
            rank.barrier();
            if rank.me == VICTIM {
                return death.end(rank, ctx, 2);
            }
            rank.pass(millis(50));
            let before = rank.host.now();
            let [sent, _] = post();
            assert!(stream.synchronize(LIMIT).unwrap());
            let took = rank.host.now().since(before);
            assert!(took < SLACK && sent.test().unwrap().is_none(), "{took:?}");
            let e = ctx.synchronize(&stream, millis(1)).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(VICTIM)), "{e}");
            peer_failed(&ctx.synchronize(&stream, LIMIT).unwrap_err(), VICTIM);
            rank.come();
        });
    }
}

/// Calls that are blocked when the rank dies: for room in a queue, for a message, for the end.
#[test]
fn blocked_calls_end_when_the_peer_dies() {
    for death in Death::ALL {
        for how in 0..3 {
            play(5, 2, move |rank| {
                let ctx = rank.open(build);
                if rank.me == VICTIM {
                    rank.barrier();
                    rank.pass(millis(100));
                    return death.end(rank, ctx, 2);
                }
                let stream = ctx.gpu().stream().unwrap();
                let (small, large) = (slice(&ctx, SMALL), slice(&ctx, LARGE));
                let sent = ctx.isend_on(&stream, VICTIM, 1, &large).unwrap();
                let recv = recv_on(&ctx, &stream, VICTIM, 2, &small);
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
                    peer_failed(&request.wait(LIMIT).unwrap_err(), VICTIM);
                }
                if how == 0 {
                    // Requests whose handles were dropped.
                    names_the_victim(&ctx.close(LIMIT).unwrap_err());
                }
                ctx.close(LIMIT).unwrap();
                rank.barrier();
            });
        }
    }
}

/// A receive from any rank does not match an announced message of a dead rank.
#[test]
fn announced_message_of_a_dead_rank_matches_no_receive() {
    for death in [Death::Leaves, Death::Closes] {
        play(6, 3, move |rank| {
            let ctx = rank.open(build);
            if rank.me == VICTIM {
                let announced = ctx.isend(0, 1, &slice(&ctx, LARGE)).unwrap();
                rank.pass(millis(20));
                assert!(announced.test().unwrap().is_none());
                rank.barrier();
                drop(announced);
                return death.end(rank, ctx, 3);
            }
            rank.barrier();
            if rank.me == FRIEND {
                rank.barrier();
                send(&ctx, 0, 1, LARGE);
                ctx.close(LIMIT).unwrap();
                return rank.barrier();
            }
            rank.pass(millis(50));
            let first = ctx.irecv(Source::Any, 1, &slice(&ctx, LARGE)).unwrap();
            rank.barrier();
            let done = first.wait(LIMIT).unwrap();
            assert_eq!((done.source(), done.len), (FRIEND, LARGE as u64));
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}
