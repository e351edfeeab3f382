//! Traps of a port from MPI or libmp, those of `docs/porting.md`: the program that falls into the
//! trap, and its correction. Other tests of that page stand beside the calls that they test.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::Stream;
use mp::{Builder, Context, Kind, Request, Slice};
use sim::gate::Gate;
use sim::{LARGE, LIMIT, Rank, SMALL, millis, pair, secs, slice};

const SIZES: [usize; 2] = [SMALL, LARGE];
const TAG: u32 = 1;

/// Message `i` of a rank.
fn payload(from: u32, i: usize, len: usize) -> Vec<u8> {
    vec![(16 * i) as u8 + from as u8 + 1; len]
}

fn filled(ctx: &Context, i: usize, len: usize) -> Slice {
    let data = slice(ctx, len);
    let bytes = payload(ctx.rank(), i, len);
    data.memory().write(0, &bytes).unwrap();
    data
}

fn content(of: &Slice) -> Vec<u8> {
    let mut bytes = vec![0; of.len()];
    of.memory().read(of.offset(), &mut bytes).unwrap();
    bytes
}

/// What a port makes of a ready word, which says that the receive buffer may be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    /// It drops the word; the CPU posts the receive.
    Dropped,
    /// The stream sends the word behind the unpack, and the sender waits for it.
    ByHand,
    /// The stream posts the receive behind the unpack.
    ByTheReceive,
}

/// Receives two messages into one buffer and unpacks the first on a stream that is late. Returns
/// what was unpacked.
fn unpack(rank: &Rank, ctx: &Context, ready: Ready, len: usize) -> Vec<u8> {
    let (stream, late) = (ctx.gpu().stream().unwrap(), Gate::new(ctx.gpu()));
    let [buffer, unpacked] = [(); 2].map(|()| slice(ctx, len));
    let first = ctx.irecv(0, TAG, &buffer).unwrap();
    first.wait(LIMIT).unwrap();
    late.hold(&stream);
    let [from, to] = [&buffer, &unpacked].map(|s| s.memory().region().span(0, len).unwrap());
    stream.copy(&to, &from).unwrap();
    let next = match ready {
        Ready::ByTheReceive => ctx.irecv_on(&stream, 0, TAG, &buffer).unwrap(),
        _ => ctx.irecv(0, TAG, &buffer).unwrap(),
    };
    match ready {
        Ready::Dropped => drop(next.wait(LIMIT).unwrap()),
        Ready::ByHand => ctx.send_ready_on(&stream, 0).unwrap(),
        Ready::ByTheReceive => {}
    }
    if ready != Ready::Dropped {
        rank.pass(millis(20));
        assert_eq!(next.test().unwrap(), None, "it overwrites what is unpacked");
    }
    late.open();
    assert!(stream.synchronize(LIMIT).unwrap());
    next.wait(LIMIT).unwrap();
    assert_eq!(content(&buffer), payload(0, 1, len));
    content(&unpacked)
}

/// The buffer of a receive of the CPU is used from the call on, whatever streams do with it.
#[test]
fn receive_of_the_cpu_overwrites_a_buffer_that_a_stream_still_unpacks() {
    for (ready, unpacked) in [
        (Ready::Dropped, 1),
        (Ready::ByHand, 0),
        (Ready::ByTheReceive, 0),
    ] {
        for len in SIZES {
            pair(
                |b| b,
                move |rank, ctx| {
                    if rank.me == 1 {
                        let found = unpack(rank, ctx, ready, len);
                        return assert_eq!(found, payload(0, unpacked, len), "{ready:?}");
                    }
                    for i in 0..2 {
                        if ready == Ready::ByHand && i == 1 {
                            ctx.wait_ready(1, LIMIT).unwrap();
                        }
                        let sent = ctx.isend(1, TAG, &filled(ctx, i, len)).unwrap();
                        sent.wait(LIMIT).unwrap();
                    }
                },
            );
        }
    }
}

/// Messages of each rank; one more than `DEPTH`.
const MESSAGES: usize = DEPTH as usize + 1;
const DEPTH: u32 = 4;
const TIMEOUT: std::time::Duration = secs(5);

/// Both ranks post all receives before they send.
fn receives_first(
    depth: u32,
    on_stream: bool,
    len: usize,
    body: impl Fn(&Rank, &dyn Fn(usize) -> mp::Result<Request>, &dyn Fn()) + Clone + 'static,
) {
    let build = move |b: Builder| b.depth(depth).timeout(TIMEOUT);
    pair(build, move |rank, ctx| {
        let peer = rank.peer();
        let stream: Stream = ctx.gpu().stream().unwrap();
        let into: Vec<Slice> = (0..MESSAGES).map(|_| slice(ctx, len)).collect();
        let post = |i: usize| match on_stream {
            true => ctx.irecv_on(&stream, peer, TAG, &into[i]),
            false => ctx.irecv(peer, TAG, &into[i]),
        };
        let send = || {
            for i in 0..MESSAGES {
                drop(ctx.isend(peer, TAG, &filled(ctx, i, len)).unwrap());
            }
        };
        body(rank, &post, &send);
        for (i, into) in into.iter().enumerate() {
            assert_eq!(content(into), payload(peer, i, len), "message {i}");
        }
        ctx.flush(LIMIT).unwrap();
    });
}

/// The refused call leaves the posted receives and the ranks as they are.
#[test]
fn receive_beyond_the_depth_is_refused_after_twice_the_timeout() {
    for (on_stream, len) in [(false, SMALL), (false, LARGE), (true, SMALL), (true, LARGE)] {
        receives_first(DEPTH, on_stream, len, |rank, post, send| {
            let mut posted: Vec<Request> = (0..MESSAGES - 1).map(|i| post(i).unwrap()).collect();
            let before = rank.host.now();
            let e = post(MESSAGES - 1).unwrap_err();
            let passed = rank.host.now() - before;
            assert!(
                passed >= 2 * TIMEOUT && passed < 2 * TIMEOUT + millis(20),
                "{passed:?}: {e}"
            );
            assert_eq!((e.kind(), e.rank()), (Kind::QueueFull, Some(rank.peer())));
            let text = e.to_string();
            for words in ["wait for the oldest", "limit 4 receives"] {
                assert!(text.contains(words), "{text}");
            }
            rank.barrier();
            send();
            posted.remove(0).wait(LIMIT).unwrap();
            posted.push(post(MESSAGES - 1).unwrap());
            mp::wait_all(&posted, LIMIT).unwrap();
        });
    }
}

#[test]
fn receives_up_to_the_depth_may_be_posted_first_by_both_ranks() {
    for (on_stream, len) in [(false, SMALL), (false, LARGE), (true, SMALL), (true, LARGE)] {
        receives_first(2 * DEPTH, on_stream, len, |_, post, send| {
            let posted: Vec<Request> = (0..MESSAGES).map(|i| post(i).unwrap()).collect();
            send();
            mp::wait_all(&posted, LIMIT).unwrap();
        });
    }
}

/// A fine level on a stream that is late, and a coarse level by the CPU, under one tag: numbers are
/// given by the calls, so the messages of the CPU overtake and reach their own receives.
#[test]
fn levels_of_the_cpu_and_of_a_stream_match_in_the_order_of_the_calls() {
    for len in SIZES {
        pair(
            |b| b,
            move |rank, ctx| {
                let (peer, late) = (rank.peer(), Gate::new(ctx.gpu()));
                let stream = ctx.gpu().stream().unwrap();
                let [fine, coarse] = [(); 2].map(|()| slice(ctx, len));
                late.hold(&stream);
                let requests = [
                    ctx.irecv_on(&stream, peer, TAG, &fine).unwrap(),
                    ctx.isend_on(&stream, peer, TAG, &filled(ctx, 0, len))
                        .unwrap(),
                ];
                ctx.wait_all_on(&stream, &requests).unwrap();

                let by_cpu = [
                    ctx.irecv(peer, TAG, &coarse).unwrap(),
                    ctx.isend(peer, TAG, &filled(ctx, 1, len)).unwrap(),
                ];
                mp::wait_all(&by_cpu, LIMIT).unwrap();
                assert_eq!(content(&coarse), payload(peer, 1, len));
                assert_eq!(requests[0].test().unwrap(), None);
                rank.barrier();

                late.open();
                ctx.synchronize(&stream, LIMIT).unwrap();
                assert_eq!(content(&fine), payload(peer, 0, len));
            },
        );
    }
}
