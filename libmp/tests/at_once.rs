//! Short messages that the CPU copies at once: their results and failures, messages of every shape beside each
//! other, the other requests of a call that waits, and credits.

#[path = "common/sim.rs"]
mod sim;

use gdsync::Status;
use gdsync::gpu::MemoryKind;
use mp::{Context, Kind, Memory, PathChoice, RecvOp, Request, SendOp, Source};

use sim::{LARGE, LIMIT, SMALL, Witness, millis, pair, play, slice};

const PATHS: [PathChoice; 2] = [PathChoice::Ipc, PathChoice::Nic];

/// The payload of message `i`; no byte is 0.
fn pattern(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + i * 6) as u8 | 1).collect()
}

fn read(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes).unwrap();
    bytes
}

/// The status and the length that a kernel reads from the result word.
fn result(ctx: &Context, request: &Request) -> (Status, u64) {
    let stream = ctx.gpu().stream().unwrap();
    let witness = Witness::launch(&stream, ctx, request);
    assert!(stream.synchronize(LIMIT).unwrap());
    let (_, status, len) = witness.seen();
    (status, len)
}

/// The address of the word is asked for before the end of a receive, behind it, or never; the next
/// requests have the same words.
#[test]
fn kernels_find_the_results_of_messages_by_the_cpu() {
    for path in PATHS {
        pair(
            move |b| b.path(path),
            |rank, ctx| {
                let success = (Status::SUCCESS, SMALL as u64);
                let (data, room) = (slice(ctx, SMALL), slice(ctx, 2 * SMALL));
                for early in [true, false, false, true] {
                    let recv = ctx.irecv(rank.peer(), 1, &room).unwrap();
                    if early {
                        assert_eq!(result(ctx, &recv), (Status(0), 0));
                    }
                    rank.barrier();
                    let send = ctx.isend(rank.peer(), 1, &data).unwrap();
                    let unseen = ctx.isend(rank.peer(), 2, &data).unwrap();
                    recv.wait(LIMIT).unwrap();
                    send.wait(LIMIT).unwrap();
                    assert_eq!(result(ctx, &recv), success);
                    assert_eq!(result(ctx, &send), success);
                    unseen.wait(LIMIT).unwrap();
                    sim::recv(ctx, rank.peer(), 2, SMALL);
                }
            },
        );
    }
}

/// A send that has ended fails later, when the receiver reports that it has no room.
#[test]
fn both_ranks_find_that_a_message_was_too_long() {
    for path in PATHS {
        pair(
            move |b| b.path(path),
            |rank, ctx| {
                let truncated = |e: &mp::Error| e.kind() == Kind::Truncated;
                let data = slice(ctx, SMALL);
                if rank.me == 0 {
                    let send = ctx.isend(1, 1, &data).unwrap();
                    rank.until("the send did not fail", || {
                        send.test().is_err_and(|e| truncated(&e))
                    });
                    assert_eq!(result(ctx, &send), (Status::TRUNCATED, SMALL as u64));
                } else {
                    let room = slice(ctx, SMALL - 1);
                    let recv = ctx.irecv(0, 1, &room).unwrap();
                    let e = recv.wait(LIMIT).unwrap_err();
                    assert!(truncated(&e), "{e}");
                    assert_eq!(read(room.memory(), 0, SMALL - 1), vec![0; SMALL - 1]);
                }
                rank.barrier();
                // The slot is free again.
                for _ in 0..20 {
                    match rank.me {
                        0 => sim::send(ctx, 1, 1, SMALL),
                        _ => sim::recv(ctx, 0, 1, SMALL),
                    }
                }
                let _ = ctx.take_error();
            },
        );
    }
}

/// A message of a number of bytes, and how it is sent and received.
#[derive(Clone, Copy)]
struct Shape {
    len: usize,
    /// Pieces of the send, and of the receive.
    pieces: [usize; 2],
    /// The receive is from any rank.
    any: bool,
    /// The request is dropped at once.
    dropped: [bool; 2],
}

fn shapes(seed: u64) -> Vec<Shape> {
    let mut random = fastrand::Rng::with_seed(seed);
    let one = |random: &mut fastrand::Rng| Shape {
        len: random.choice([0, 1, SMALL, 100, 4096, LARGE]).unwrap(),
        pieces: [random.usize(1..3), random.usize(1..3)],
        any: random.u8(..8) == 0,
        dropped: [random.u8(..4) == 0, random.u8(..4) == 0],
    };
    (0..150).map(|_| one(&mut random)).collect()
}

/// Messages that are copied at once and others, under one tag, more than the slots of the channel.
#[test]
fn messages_of_all_shapes_keep_their_order() {
    for (path, seed) in PATHS
        .into_iter()
        .flat_map(|path| (1..5).map(move |seed| (path, seed)))
    {
        let all = shapes(seed);
        play(seed, 2, move |rank| {
            let ctx = &rank.open(|b| b.path(path));
            let memory = ctx.alloc(MemoryKind::Pinned, all.len() * LARGE).unwrap();
            let (mut open, me) = (Vec::new(), usize::from(rank.me == 1));
            for (i, shape) in all.iter().enumerate() {
                let parts = |n: usize| -> Vec<_> {
                    let cut = if n == 1 { 0 } else { shape.len / 3 };
                    let ends = [(0, cut), (cut, shape.len - cut)];
                    let ends = ends.into_iter().skip(2 - n);
                    ends.map(|(at, len)| memory.slice(i * LARGE + at, len).unwrap())
                        .collect()
                };
                let parts = parts(shape.pieces[me]);
                let request = if rank.me == 0 {
                    memory.write(i * LARGE, &pattern(i, shape.len)).unwrap();
                    ctx.post_send(&SendOp::new(1, 1, &parts)).unwrap()
                } else {
                    let from = match shape.any {
                        true => Source::Any,
                        false => Source::Rank(0),
                    };
                    // Only one receive from any rank is open under a tag.
                    if shape.any {
                        mp::wait_all(&std::mem::take(&mut open), LIMIT).unwrap();
                    }
                    let recv = ctx.post_recv(&RecvOp::new(from, 1, &parts)).unwrap();
                    if shape.any {
                        recv.wait(LIMIT).unwrap();
                    }
                    recv
                };
                if !shape.dropped[me] {
                    open.push(request);
                }
                if open.len() == 7 {
                    mp::wait_all(&std::mem::take(&mut open), LIMIT).unwrap();
                }
            }
            mp::wait_all(&open, LIMIT).unwrap();
            rank.until("a message did not arrive", || {
                let receives = ctx.stats().total().receives;
                rank.me == 0 || receives == all.len() as u64
            });
            for (i, shape) in all.iter().enumerate() {
                let (right, got) = (pattern(i, shape.len), read(&memory, i * LARGE, shape.len));
                assert!(got == right, "message {i} of {} bytes", shape.len);
            }
            rank.barrier();
        });
    }
}

/// A call that waits for a short message sends a long one, for which the other rank waits first.
#[test]
fn wait_for_a_short_message_advances_other_requests() {
    for path in PATHS {
        play(1, 2, move |rank| {
            let ctx = &rank.open_manual(|b| b.path(path));
            let (long, short) = (slice(ctx, 100 * LARGE), slice(ctx, SMALL));
            for _ in 0..3 {
                if rank.me == 0 {
                    let send = ctx.isend(1, 1, &long).unwrap();
                    let recv = ctx.irecv(1, 2, &short).unwrap();
                    recv.wait(LIMIT).unwrap();
                    assert!(send.test().unwrap().is_some());
                } else {
                    sim::recv(ctx, 0, 1, 100 * LARGE);
                    sim::send(ctx, 0, 2, SMALL);
                }
            }
            rank.barrier();
        });
    }
}

/// Messages arrive at every depth while runs of credits cross the end of the ring, and streams, which receive every
/// seventh message, begin other runs.
#[test]
fn credits_of_the_cpu_come_back_at_every_depth() {
    for (path, depth) in PATHS
        .into_iter()
        .flat_map(|path| [2, 4, 64, 1024].map(|d| (path, d)))
    {
        let count = 3 * depth as usize + 5;
        pair(
            move |b| b.path(path).depth(depth),
            move |rank, ctx| {
                let stream = ctx.gpu().stream().unwrap();
                let memory = slice(ctx, SMALL);
                for i in 0..count {
                    let (bytes, into) = (pattern(i, SMALL), memory.memory());
                    if rank.me == 0 {
                        into.write(0, &bytes).unwrap();
                        ctx.isend(1, 1, &memory).unwrap().wait(LIMIT).unwrap();
                        continue;
                    }
                    if i % 7 == 6 {
                        sim::recv_on(ctx, &stream, 0, 1, &memory)
                            .wait(LIMIT)
                            .unwrap();
                    } else {
                        let recv = ctx.irecv(0, 1, &memory).unwrap();
                        assert_eq!(recv.wait(LIMIT).unwrap().len, SMALL as u64);
                    }
                    assert_eq!(read(into, 0, SMALL), bytes, "message {i} at depth {depth}");
                }
                let counts = ctx.stats().of(rank.peer());
                let (bytes, all) = ((count * SMALL) as u64, count as u64);
                let moved = match rank.me {
                    0 => (counts.sends, counts.bytes_out),
                    _ => (counts.receives, counts.bytes_in),
                };
                assert_eq!((moved, counts.eager), ((all, bytes), all));
            },
        );
    }
}

/// A failed request is the answer of a wait for several, although another one is late.
#[test]
fn failure_comes_before_a_request_that_is_late() {
    for path in PATHS {
        pair(
            move |b| b.path(path),
            |rank, ctx| {
                let data = slice(ctx, SMALL);
                if rank.me == 0 {
                    let _ = ctx.isend(1, 1, &data).unwrap();
                    rank.barrier();
                    sim::send(ctx, 1, 2, SMALL);
                } else {
                    let room = slice(ctx, SMALL - 1);
                    let late = ctx.irecv(0, 2, &data).unwrap();
                    let both = [late, ctx.irecv(0, 1, &room).unwrap()];
                    let wait = |limit| mp::wait_all(&both, limit).unwrap_err().kind();
                    let failed = (0..1000).any(|_| wait(millis(1)) != Kind::Timeout);
                    assert!(failed, "the failure of the second request is not returned");
                    assert_eq!(wait(millis(1)), Kind::Truncated);
                    assert!(both[0].test().unwrap().is_none());
                    rank.barrier();
                    both[0].wait(LIMIT).unwrap();
                    assert_eq!(wait(LIMIT), Kind::Truncated);
                }
                let _ = ctx.take_error();
            },
        );
    }
}

/// Receives that end in any order return their credits, so that the next messages are sent at once: no rank
/// does background work meanwhile.
#[test]
fn credits_come_back_whatever_the_order_of_the_waits() {
    const DEPTH: usize = 8;
    let orders = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [7, 6, 5, 4, 3, 2, 1, 0],
        [0, 7, 6, 5, 4, 3, 2, 1],
        [4, 2, 7, 0, 5, 3, 6, 1],
    ];
    for order in orders {
        play(1, 2, move |rank| {
            let ctx = &rank.open_manual(|b| b.path(PathChoice::Ipc).depth(DEPTH as u32));
            let memory = slice(ctx, SMALL);
            for round in 0..5 {
                let all: Vec<_> = (0..DEPTH)
                    .map(|_| match rank.me {
                        0 => ctx.isend(1, 1, &memory).unwrap(),
                        _ => ctx.irecv(0, 1, &memory).unwrap(),
                    })
                    .collect();
                if rank.me == 0 && round > 0 {
                    let sent = all.iter().filter(|send| send.test().unwrap().is_some());
                    assert_eq!(sent.count(), DEPTH, "round {round}, order {order:?}");
                }
                rank.barrier();
                for at in order {
                    all[at].wait(LIMIT).unwrap();
                }
                rank.barrier();
            }
        });
    }
}

/// A stream waits for one message, and the CPU takes later ones, whose slots the sender needs before it sends the
/// first one. `behind`: the stream begins to wait when the CPU has taken one.
#[test]
fn credits_return_beside_a_message_that_a_stream_waits_for() {
    const DEPTH: usize = 4;
    for behind in [false, true] {
        play(1, 2, move |rank| {
            let ctx = &rank.open(|b| b.path(PathChoice::Ipc).depth(DEPTH as u32));
            let stream = ctx.gpu().stream().unwrap();
            let memory = slice(ctx, SMALL);
            // Kernels return credits in device memory from now on.
            for _ in 0..3 * DEPTH {
                if rank.me == 0 {
                    let send = ctx.isend_on(&stream, 1, 1, &memory).unwrap();
                    send.wait(LIMIT).unwrap();
                } else {
                    let recv = sim::recv_on(ctx, &stream, 0, 1, &memory);
                    recv.wait(LIMIT).unwrap();
                }
                rank.barrier();
            }
            if rank.me == 0 {
                let gate = ctx.irecv_on(&stream, 1, 2, &memory).unwrap();
                gate.wait_on(&stream).unwrap();
                let first = ctx.isend_on(&stream, 1, 1, &memory).unwrap();
                let sends = (1..=DEPTH + 1).map(|_| ctx.isend(1, 1, &memory).unwrap());
                mp::wait_all(&sends.collect::<Vec<_>>(), LIMIT).unwrap();
                first.wait(LIMIT).unwrap();
            } else {
                let first = ctx.irecv_on(&stream, 0, 1, &memory).unwrap();
                if !behind {
                    first.wait_on(&stream).unwrap();
                }
                let mut all = Vec::new();
                for i in 1..DEPTH {
                    all.push(ctx.irecv(0, 1, &memory).unwrap());
                    if i == 1 && behind {
                        all[0].wait(LIMIT).unwrap();
                        first.wait_on(&stream).unwrap();
                    }
                }
                mp::wait_all(&all, LIMIT).unwrap();
                let [slot_of_first, last] = [(); 2].map(|()| ctx.irecv(0, 1, &memory).unwrap());
                last.wait(LIMIT).unwrap();
                sim::send(ctx, 0, 2, SMALL);
                slot_of_first.wait(LIMIT).unwrap();
                first.wait(LIMIT).unwrap();
            }
            rank.barrier();
        });
    }
}
