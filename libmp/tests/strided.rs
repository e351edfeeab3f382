//! Messages of strided pieces: columns, rows and faces, as a list or packed, by the CPU and on
//! streams.

mod common;

use std::slice;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::gate::Gate;
use common::packing::Packing;
use common::{LIMIT, pattern, ranks, ranks_with, read};
use gdsync::gpu::{MemoryKind, Observer, Passed, Region, Stream, Work};
use mp::{
    Builder, Context, Full, Kind, Memory, NULL_RANK, Path, PathChoice, RecvOp, Request, SendOp,
    SizeSource, Source, Strided,
};

const ROOM: usize = 1 << 20;

/// Block length, distance and count of the pieces of a row; distance and count of rows; the offset.
type Shape = (usize, usize, usize, usize, usize, usize);

/// Below 31 pieces and above, below the eager limit and above, aligned and not.
const SHAPES: [Shape; 9] = [
    (8, 64, 20, 0, 1, 0),
    (800, 1000, 30, 0, 1, 3),
    (8, 64, 31, 0, 1, 8),
    (8, 800, 1000, 0, 1, 16),
    (16, 48, 40, 4800, 50, 32),
    (3, 7, 100, 701, 100, 5),
    (999, 1001, 900, 0, 1, 1),
    (8, 8000, 60, 16, 100, 0),
    (8, 8, 1000, 0, 1, 24),
];

fn strided(memory: &Memory, (block, row, rows, plane, planes, offset): Shape) -> Strided {
    let pieces = memory.strided(offset, block, row, rows).unwrap();
    pieces.repeated(plane, planes).unwrap()
}

/// The bytes of the pieces, one after the other.
fn packed(memory: &Memory, (block, row, rows, plane, planes, offset): Shape) -> Vec<u8> {
    let all = read(memory, 0, ROOM);
    let at = |i| offset + i / rows * plane + i % rows * row;
    (0..rows * planes)
        .flat_map(|i| all[at(i)..][..block].to_vec())
        .collect()
}

/// Writes `bytes` to the first pieces of `whole`.
fn unpacked(whole: &mut [u8], (block, row, rows, plane, _, offset): Shape, bytes: &[u8]) {
    for (i, piece) in bytes.chunks(block).enumerate() {
        let at = offset + i / rows * plane + i % rows * row;
        whole[at..][..piece.len()].copy_from_slice(piece);
    }
}

fn memories(ctx: &Context, kind: MemoryKind) -> [Memory; 2] {
    let [out, into] = [0, 1].map(|_| ctx.alloc(kind, ROOM).unwrap());
    out.write(0, &pattern(ctx.rank(), 1, ROOM)).unwrap();
    into.write(0, &pattern(9, 9, ROOM)).unwrap();
    [out, into]
}

/// Exchanges the pieces of every shape, among `size` ranks in a ring.
fn exchange(size: u32, kind: MemoryKind) {
    ranks(size, move |ctx| {
        let (left, right) = ((ctx.rank() + size - 1) % size, (ctx.rank() + 1) % size);
        let stream = ctx.gpu().stream().unwrap();
        for (i, shape) in SHAPES.into_iter().enumerate() {
            for on_stream in [false, true] {
                let [out, into] = memories(&ctx, kind);
                let [send, recv] = [&out, &into].map(|memory| strided(memory, shape));
                let (to, from) = ((right, 7, &send), (left, 7, &recv));
                if on_stream {
                    ctx.sendrecv_on(&stream, to, from).unwrap();
                    ctx.synchronize(&stream, LIMIT).unwrap();
                } else {
                    let done = ctx.sendrecv(to, from, LIMIT).unwrap();
                    assert_eq!((done.peer, done.len), (left, send.len() as u64));
                }
                out.write(0, &pattern(left, 1, ROOM)).unwrap();
                let mut expected = pattern(9, 9, ROOM);
                unpacked(&mut expected, shape, &packed(&out, shape));
                assert!(read(&into, 0, ROOM) == expected, "shape {i}, {on_stream}");
            }
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn pieces_arrive_in_pieces() {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        exchange(2, kind);
    }
    exchange(1, MemoryKind::Device);
}

#[test]
fn pieces_are_matched_by_a_slice_and_by_other_pieces() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let [out, into] = memories(&ctx, MemoryKind::Device);
        // 4000 bytes (eager) and 280,000 bytes: rows to a slice, a slice to rows, rows to columns.
        for (count, scale) in [(100, 5), (7000, 5)] {
            let rows = (8 * scale, 100, count, 0, 1, 4);
            let columns = (8, 16, count * scale, 0, 1, 0);
            let len = 8 * scale * count;
            let (whole, plain) = (out.slice(64, len).unwrap(), into.slice(64, len).unwrap());
            for (from, to) in [
                (Some(rows), None),
                (None, Some(rows)),
                (Some(rows), Some(columns)),
            ] {
                let fresh = pattern(9, 9, ROOM);
                into.write(0, &fresh).unwrap();
                let [a, b] = [(&out, from), (&into, to)]
                    .map(|(memory, shape)| shape.map(|shape| strided(memory, shape)));
                let send = match &a {
                    Some(pieces) => SendOp::strided(peer, 1, pieces),
                    None => SendOp::from((peer, 1, &whole)),
                };
                let recv = match &b {
                    Some(pieces) => RecvOp::strided(peer, 1, pieces),
                    None => RecvOp::from((peer, 1, &plain)),
                };
                ctx.sendrecv_on(&stream, send, recv).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                let mut expected = fresh;
                let other = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
                other.write(0, &pattern(peer, 1, ROOM)).unwrap();
                let sent = from.map_or(read(&other, 64, len), |shape| packed(&other, shape));
                match to {
                    Some(shape) => unpacked(&mut expected, shape, &sent),
                    None => expected[64..][..len].copy_from_slice(&sent),
                }
                assert!(read(&into, 0, ROOM) == expected, "{from:?} to {to:?}");
            }
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// Posts a receive into pieces, by the CPU or a stream, from one rank or from any.
fn receive(ctx: &Context, how: usize, tag: u32, into: &Strided) -> Request {
    let (peer, stream) = (1 - ctx.rank(), ctx.gpu().stream().unwrap());
    match how {
        0 => ctx.post_recv(&RecvOp::strided(peer, tag, into)).unwrap(),
        1 => ctx
            .post_recv(&RecvOp::strided(Source::Any, tag, into))
            .unwrap(),
        2 | 3 => {
            let recv = RecvOp::strided(peer, tag, into).on(&stream);
            let recv = ctx.post_recv(&recv).unwrap();
            let other = ctx.gpu().stream().unwrap();
            recv.wait_on(if how == 2 { &stream } else { &other })
                .unwrap();
            recv
        }
        _ => {
            let recv = RecvOp::strided(Source::Any, tag, into).on(&stream);
            let recv = ctx.post_recv(&recv).unwrap();
            recv.wait_on(&stream).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
            recv
        }
    }
}

#[test]
fn shorter_message_leaves_the_other_bytes_and_a_longer_one_all() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        for (tag, shape) in [(1, (8, 64, 100, 0, 1, 0)), (2, (40, 64, 1000, 0, 1, 0))] {
            let [out, into] = memories(&ctx, MemoryKind::Device);
            let (pieces, fresh) = (strided(&into, shape), pattern(9, 9, ROOM));
            // Within the limit, so that the length declares the same path at both sides.
            for less in [pieces.len() - 300, 5] {
                for how in 0..4 {
                    let tag = 10 * tag + how as u32;
                    let len = pieces.len() - less;
                    into.write(0, &fresh).unwrap();
                    let send = ctx.isend(peer, tag, &out.slice(0, len).unwrap()).unwrap();
                    let done = receive(&ctx, how, tag, &pieces).wait(LIMIT).unwrap();
                    assert_eq!((done.peer, done.len), (peer, len as u64));
                    send.wait(LIMIT).unwrap();
                    let mut expected = fresh.clone();
                    unpacked(&mut expected, shape, &pattern(peer, 1, ROOM)[..len]);
                    assert!(read(&into, 0, ROOM) == expected, "{len} bytes, {how}");
                }
            }
            into.write(0, &fresh).unwrap();
            for how in 0..4 {
                let tag = 10 * tag + how as u32;
                let more = out.slice(0, pieces.len() + 1).unwrap();
                let send = ctx.isend(peer, tag, &more).unwrap();
                let e = receive(&ctx, how, tag, &pieces).wait(LIMIT).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Truncated, Some(peer)), "{e}");
                let _ = send.wait(LIMIT);
                assert!(read(&into, 0, ROOM) == fresh, "{how}");
            }
        }
        let _ = ctx.take_error();
    });
}

#[test]
fn receive_from_any_rank_on_a_stream_takes_pieces() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        for (tag, shape) in [(1, (8, 64, 100, 0, 1, 0)), (2, (40, 64, 1000, 0, 1, 0))] {
            let [out, into] = memories(&ctx, MemoryKind::Pinned);
            let [send, recv] = [&out, &into].map(|memory| strided(memory, shape));
            let send = ctx.post_send(&SendOp::strided(peer, tag, &send)).unwrap();
            receive(&ctx, 4, tag, &recv).wait(LIMIT).unwrap();
            send.wait(LIMIT).unwrap();
            out.write(0, &pattern(peer, 1, ROOM)).unwrap();
            let mut expected = pattern(9, 9, ROOM);
            unpacked(&mut expected, shape, &packed(&out, shape));
            assert!(read(&into, 0, ROOM) == expected);
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// A prepared send reads its pieces when it is posted: by a stream when the stream reaches it.
#[test]
fn pieces_are_read_when_the_send_is_reached() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        for (tag, count) in [(1, 100), (2, 5000)] {
            let shape = (8, 64, count, 0, 1, 0);
            let [out, into] = memories(&ctx, MemoryKind::Device);
            let pieces = strided(&out, shape);
            let (gate, stream) = (Gate::new(ctx.gpu()), ctx.gpu().stream().unwrap());
            let send = SendOp::strided(peer, tag, &pieces);
            let (by_cpu, by_stream) = (
                ctx.prepare_send(&send).unwrap(),
                ctx.prepare_send(&send.on(&stream)).unwrap(),
            );
            let dropped = ctx.prepare_send(&send).unwrap();
            drop(dropped);
            let recvs = [0, 8 * count].map(|at| {
                let slice = into.slice(at, 8 * count).unwrap();
                ctx.irecv(peer, tag, &slice).unwrap()
            });
            out.write(0, &pattern(ctx.rank(), 2, ROOM)).unwrap();
            by_cpu.post().unwrap();
            gate.hold(&stream);
            by_stream.post().unwrap();
            // The CPU has read its message already.
            out.write(0, &pattern(ctx.rank(), 3, ROOM)).unwrap();
            gate.open();
            mp::wait_all(&recvs, LIMIT).unwrap();
            mp::wait_all(&[by_cpu, by_stream], LIMIT).unwrap();
            for (i, round) in [2, 3].into_iter().enumerate() {
                out.write(0, &pattern(peer, round, ROOM)).unwrap();
                let got = read(&into, i * 8 * count, 8 * count);
                assert!(got == packed(&out, shape), "message {i} of {count} pieces");
            }
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn pieces_keep_their_memory_and_queues_that_are_full_are_reported() {
    let build = |b: mp::Builder| b.depth(2).full(Full::Fail);
    ranks_with(2, build, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let shape = (8, 64, 1000, 0, 1, 0);
        for round in 0..20 {
            let [out, into] = memories(&ctx, MemoryKind::Device);
            let room = strided(&into, shape);
            let recv = RecvOp::strided(peer, 1, &room).on(&stream);
            let recvs = [0, 1].map(|_| ctx.post_recv(&recv).unwrap());
            let e = ctx.post_recv(&recv).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::QueueFull, Some(peer)), "{e}");
            let pieces = strided(&out, shape);
            let sends = [0, 1].map(|_| {
                let send = SendOp::strided(peer, 1, &pieces).on(&stream);
                ctx.post_send(&send).unwrap()
            });
            drop((out, pieces));
            for recv in &recvs {
                recv.wait_on(&stream).unwrap();
            }
            ctx.synchronize(&stream, LIMIT).unwrap();
            drop(sends);
            let whole = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            whole.write(0, &pattern(peer, 1, ROOM)).unwrap();
            assert!(packed(&into, shape) == packed(&whole, shape), "{round}");
            mp::wait_all(&recvs, LIMIT).unwrap();
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// A random shape of at least `least` and at most 50,000 bytes.
fn draw(rng: &mut fastrand::Rng, least: usize) -> Shape {
    loop {
        let (block, rows, planes) = (rng.usize(1..200), rng.usize(1..90), rng.usize(1..7));
        let row = block + rng.usize(0..40) / 8 * 8;
        let plane = rows * row + rng.usize(0..3) * 8;
        let fits = (least..=50_000).contains(&(block * rows * planes));
        if fits && plane * planes < ROOM - 64 {
            return (block, row, rows, plane, planes, rng.usize(0..64));
        }
    }
}

/// Messages of random shapes at both ends, many in flight, by the CPU and by streams, prepared or
/// not, some from any rank.
#[test]
fn random_pieces_in_flight_arrive() {
    for seed in 0..12 {
        let build = |b: mp::Builder| b.depth(4).eager_limit(8 << 10);
        ranks_with(2, build, move |ctx| {
            const N: usize = 12;
            let (me, peer) = (ctx.rank(), 1 - ctx.rank());
            let streams = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            // The same numbers at both ranks.
            let mut rng = fastrand::Rng::with_seed(seed);
            let shapes: Vec<_> = (0..N)
                .map(|_| {
                    let sent = draw(&mut rng, 0);
                    let room = draw(&mut rng, sent.0 * sent.2 * sent.4);
                    (sent, room, rng.usize(0..36))
                })
                .collect();
            let memories: Vec<_> = (0..N)
                .map(|i| {
                    let [out, into] =
                        memories(&ctx, [MemoryKind::Pinned, MemoryKind::Device][i % 2]);
                    out.write(0, &pattern(me, i, ROOM)).unwrap();
                    (out, into)
                })
                .collect();
            let tag = |i: usize, how: usize| (i % 3 + how % 2 * 10) as u32;
            let mut all = Vec::new();
            for (i, (_, room, how)) in shapes.iter().enumerate() {
                let pieces = strided(&memories[i].1, *room);
                // Either all receives of a tag are from any rank, or none.
                let from = [Source::Rank(peer), Source::Any][how % 2];
                let recv = RecvOp::strided(from, tag(i, *how), &pieces);
                let recv = if how / 2 % 2 == 0 {
                    recv
                } else {
                    recv.on(&streams[i % 2])
                };
                let request = ctx.prepare_recv(&recv).unwrap();
                request.post().unwrap();
                all.push(request);
            }
            for (i, (sent, _, how)) in shapes.iter().enumerate() {
                let pieces = strided(&memories[i].0, *sent);
                let send = SendOp::strided(peer, tag(i, *how), &pieces);
                let send = match how / 4 % 3 {
                    0 => send,
                    1 => send.on(&streams[i / 2 % 2]),
                    _ => send.by_cpu_thread(&streams[0]),
                };
                all.push(ctx.post_send(&send).unwrap());
            }
            for (i, recv) in all[..N].iter().enumerate() {
                match shapes[i].2 % 5 {
                    0 | 1 => recv.wait_on(&streams[shapes[i].2 % 2]).unwrap(),
                    _ => {}
                }
            }
            mp::wait_all(&all, LIMIT).unwrap();
            let other = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            for (i, (sent, room, _)) in shapes.iter().enumerate() {
                other.write(0, &pattern(peer, i, ROOM)).unwrap();
                let mut expected = pattern(9, 9, ROOM);
                unpacked(&mut expected, *room, &packed(&other, *sent));
                assert!(
                    read(&memories[i].1, 0, ROOM) == expected,
                    "seed {seed}, message {i}"
                );
            }
            ctx.close(LIMIT).unwrap();
        });
    }
}

#[test]
fn dead_peer_releases_the_stream_that_waits_for_pieces() {
    for shape in [(8, 64, 100, 0, 1, 0), (8, 64, 1000, 0, 1, 0)] {
        let open = |job| {
            Context::builder()
                .bootstrap(job)
                .gpu(&common::gpu())
                .build()
        };
        let mut jobs = mp::bootstrap::Local::ranks(2).into_iter().map(open);
        let [ctx, dead] = [0, 1].map(|_| jobs.next().unwrap().unwrap());
        let [out, into] = memories(&ctx, MemoryKind::Device);
        let [send, recv] = [&out, &into].map(|memory| strided(memory, shape));
        let stream = ctx.gpu().stream().unwrap();
        let recv = RecvOp::strided(1, 1, &recv).on(&stream);
        let recv = ctx.post_recv(&recv).unwrap();
        let send = SendOp::strided(1, 2, &send).on(&stream);
        let send = ctx.post_send(&send).unwrap();
        recv.wait_on(&stream).unwrap();
        drop(dead);
        let e = recv.wait(LIMIT).unwrap_err();
        assert_eq!(e.rank(), Some(1), "{e}");
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
        let _ = send.wait(LIMIT);
        assert!(stream.synchronize(LIMIT).unwrap());
        assert!(read(&into, 0, ROOM) == pattern(9, 9, ROOM));
    }
}

#[test]
fn contiguous_pieces_count_as_one() {
    ranks(1, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 4096).unwrap();
        let count = |block, row, rows, plane, planes| {
            let pieces = strided(&memory, (block, row, rows, plane, planes, 0));
            assert_eq!(pieces.len(), block * rows * planes);
            pieces.count()
        };
        assert_eq!(count(8, 8, 100, 0, 1), 1);
        assert_eq!(count(8, 8, 10, 80, 10), 1);
        assert_eq!(count(8, 8, 10, 100, 10), 10);
        assert_eq!(count(8, 16, 10, 160, 10), 100);
        assert_eq!(count(8, 9, 1, 16, 10), 10);
        assert_eq!(count(8, 16, 5, 100, 10), 50);
        assert_eq!(count(0, 16, 5, 100, 10), 0);
        assert_eq!(count(8, 16, 0, 100, 10), 0);
        let none = memory.strided(4096, 8, 64, 0).unwrap();
        assert!(none.is_empty() && none.count() == 0);
        let limit = Duration::from_secs(5);
        assert_eq!(
            ctx.sendrecv((0, 1, &none), (0, 1, &none), limit)
                .unwrap()
                .len,
            0
        );
        let done = ctx.sendrecv((NULL_RANK, 1, &none), (NULL_RANK, 1, &none), limit);
        assert_eq!(done.unwrap().peer, NULL_RANK);
    });
}

#[test]
fn invalid_pieces_are_refused() {
    ranks(1, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 4096).unwrap();
        let refused = |offset, block, row, rows| {
            let e = memory.strided(offset, block, row, rows).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
            e.limit()
        };
        assert_eq!(refused(0, 8, 64, 65), Some(4096));
        assert_eq!(refused(4089, 8, 64, 1), Some(4096));
        assert_eq!(refused(usize::MAX, 8, 64, 2), Some(4096));
        assert_eq!(refused(0, usize::MAX, 64, 2), Some(4096));
        assert_eq!(refused(0, 8, usize::MAX, 2), Some(4096));
        assert_eq!(refused(0, 8, 2, usize::MAX), Some(4096));
        assert_eq!(refused(0, 8, 7, 3), None);
        let pieces = memory.strided(0, 8, 64, 10).unwrap();
        for (stride, count) in [(600, 7), (500, 2), (4, 2)] {
            let e = pieces.repeated(stride, count).unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
        }
        let planes = pieces.repeated(700, 5).unwrap();
        let e = planes.repeated(4000, 1).unwrap_err();
        assert_eq!((e.kind(), e.limit()), (Kind::Invalid, Some(2)), "{e}");
        let alone = mp::bootstrap::Local::ranks(1).remove(0);
        let other = Context::builder()
            .bootstrap(alone)
            .gpu(ctx.gpu())
            .build()
            .unwrap();
        let e = other
            .post_send(&SendOp::strided(0, 1, &planes))
            .unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid, "{e}");
        let length = ctx
            .gpu()
            .alloc(MemoryKind::Pinned, 8)
            .unwrap()
            .word64(0)
            .unwrap();
        let size = SizeSource::Word {
            len: &length,
            offset: None,
        };
        let e = ctx
            .post_send(&SendOp::strided(0, 1, &planes).size(size))
            .unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported, "{e}");
    });
}

/// While so many streams wait that no other one may, a send that must wait for its receive or for credit is refused
/// before it is packed.
#[test]
fn a_refused_send_is_not_packed() {
    ranks_with(
        2,
        |b| b.depth(2),
        |ctx| {
            let (me, peer) = (ctx.rank(), 1 - ctx.rank());
            let [out, into] = memories(&ctx, MemoryKind::Pinned);
            let shapes = [(800, 1000, 1000, 0, 1, 0), (8, 100, 100, 0, 1, 0)];
            let go = into.slice(900_000, 8).unwrap();
            if me == 1 {
                // The sends have begun to wait.
                let gone = ctx.irecv(peer, 2, &go).unwrap();
                gone.wait(LIMIT).unwrap();
                for _ in 0..2 {
                    ctx.irecv(peer, 1, &go).unwrap().wait(LIMIT).unwrap();
                }
                out.write(0, &pattern(peer, 1, ROOM)).unwrap();
                for shape in shapes {
                    let expected = packed(&out, shape);
                    let whole = into.slice(0, expected.len()).unwrap();
                    ctx.irecv(peer, 1, &whole).unwrap().wait(LIMIT).unwrap();
                    assert!(read(&into, 0, expected.len()) == expected, "{shape:?}");
                }
                return ctx.close(LIMIT).unwrap();
            }
            let stream = ctx.gpu().stream().unwrap();
            let pieces = shapes.map(|shape| strided(&out, shape));
            let sends = pieces
                .each_ref()
                .map(|pieces| SendOp::strided(peer, 1, pieces).on(&stream));
            // The slots of all credits.
            let fillers = [(); 2].map(|()| ctx.isend(peer, 1, &go).unwrap());
            let packing = Packing::of(ctx.gpu());
            let gate = Gate::new(ctx.gpu());
            let most = ctx.gpu().max_waiting_streams().unwrap();
            let waiting: Vec<_> = (0..most).map(|_| ctx.gpu().stream().unwrap()).collect();
            waiting.iter().for_each(|stream| gate.hold(stream));
            for send in &sends {
                let e = ctx.post_send(send).unwrap_err();
                let too_many = Kind::Gdsync(gdsync::Kind::TooManyWaits);
                assert_eq!(e.kind(), too_many, "{e}");
                assert_eq!(packing.count(), 0);
            }
            gate.open();
            for stream in &waiting {
                assert!(stream.synchronize(LIMIT).unwrap());
            }
            let sent = sends.each_ref().map(|send| ctx.post_send(send).unwrap());
            assert_eq!(packing.count(), 2);
            ctx.isend(peer, 2, &go).unwrap().wait(LIMIT).unwrap();
            mp::wait_all(&fillers, LIMIT).unwrap();
            mp::wait_all(&sent, LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
        },
    );
}

/// How the post of a packed send is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refused {
    /// An earlier request of its stream is neither posted nor cancelled.
    OutOfOrder,
    /// As `OutOfOrder`, in a list.
    InList,
    /// Another thread fills the stream behind the kernel that packs.
    Full,
    /// As `Full`, of a prepared request, which is then cancelled.
    FullPrepared,
    /// As `FullPrepared`, of a request that is then posted again.
    FullRepeated,
}

/// Fills a stream behind the first kernel that packs.
struct Filler(Mutex<Option<Stream>>, Region);

impl Filler {
    /// Fills `stream` as long as the result is held.
    fn of(stream: &Stream) -> Arc<Filler> {
        let region = stream.gpu().alloc(MemoryKind::Device, 64).unwrap();
        let filler = Arc::new(Filler(Mutex::new(Some(stream.clone())), region));
        let observer: Arc<dyn Observer> = Arc::clone(&filler) as _;
        stream.gpu().observe(&observer).unwrap();
        filler
    }
}

impl Observer for Filler {
    fn enqueued(&self, _: u64, work: Work<'_>, _: gds_step::Time, _: Option<Passed>) {
        if format!("{work:?}").contains("mp_strided")
            && let Some(stream) = self.0.lock().unwrap().take()
        {
            let [from, to] = [0, 8].map(|at| self.1.span(at, 8).unwrap());
            let fill = move || {
                while stream.check_free().is_ok() {
                    stream.copy(&to, &from).unwrap();
                }
            };
            thread::spawn(fill).join().unwrap();
        }
    }
}

/// A kernel that was enqueued for a send that was refused writes to no memory of another send.
#[test]
fn a_refused_send_writes_to_no_other_one() {
    let all = [
        Refused::OutOfOrder,
        Refused::InList,
        Refused::Full,
        Refused::FullPrepared,
        Refused::FullRepeated,
    ];
    for (path, refused) in [PathChoice::Nic, PathChoice::Tcp]
        .into_iter()
        .flat_map(|path| all.map(|refused| (path, refused)))
    {
        let build = |b: Builder| b.full(Full::Fail).path(path);
        ranks_with(2, build, move |ctx| {
            let peer = 1 - ctx.rank();
            let memory = ctx.alloc(MemoryKind::Pinned, 2 * ROOM).unwrap();
            let go = memory.slice(ROOM - 8, 8).unwrap();
            ctx.sendrecv((peer, 3, &go), (peer, 3, &go), LIMIT).unwrap();
            // The first message is eager, and the second one is not; they take staging memory of the same size.
            let eager = match ctx.path(peer).unwrap().0 {
                Path::Tcp => 256 << 10,
                _ => 4096,
            };
            let lens = [eager, eager + 8];
            let into = |len| memory.slice(0, len).unwrap();
            if ctx.rank() == 1 {
                if !matches!(refused, Refused::Full | Refused::FullPrepared) {
                    ctx.irecv(peer, 1, &into(lens[0]))
                        .unwrap()
                        .wait(LIMIT)
                        .unwrap();
                    assert!(read(&memory, 0, lens[0]) == vec![1; lens[0]]);
                }
                ctx.irecv(peer, 3, &go).unwrap().wait(LIMIT).unwrap();
                ctx.irecv(peer, 2, &into(lens[1]))
                    .unwrap()
                    .wait(LIMIT)
                    .unwrap();
                assert!(
                    read(&memory, 0, lens[1]) == vec![2; lens[1]],
                    "{path:?} {refused:?}"
                );
                return ctx.close(LIMIT).unwrap();
            }
            memory.write(0, &[1; ROOM]).unwrap();
            memory.write(ROOM, &[2; ROOM]).unwrap();
            let [first, second] =
                [0, 1].map(|i| memory.strided(i * ROOM, 8, 16, lens[i] / 8).unwrap());
            let [a, b, c] = [(); 3].map(|()| ctx.gpu().stream().unwrap());
            let packing = Packing::of(ctx.gpu());
            let gate = Gate::new(ctx.gpu());
            gate.hold(&a);
            let send = SendOp::strided(peer, 1, &first);
            let earlier = SendOp::from((peer, 3, &go));
            let (mut last, mut again) = (None, None);
            match refused {
                Refused::Full | Refused::FullPrepared | Refused::FullRepeated => {
                    let _filler = Filler::of(&a);
                    let full = |e: mp::Error| {
                        assert_eq!((e.kind(), packing.count()), (Kind::QueueFull, 1), "{e}");
                    };
                    if refused == Refused::Full {
                        full(ctx.post_send(&send.on(&a)).unwrap_err());
                    } else {
                        let sent = ctx.prepare_send(&send).unwrap();
                        let list = slice::from_ref(&sent);
                        full(sent.post_on(&a).unwrap_err());
                        // The kernel on `a` has not run.
                        let elsewhere = [sent.post_on(&b), sent.post(), ctx.post_all_on(&b, list)];
                        for e in elsewhere.map(Result::unwrap_err) {
                            assert_eq!((e.kind(), packing.count()), (Kind::Busy, 1), "{e}");
                        }
                        match refused {
                            Refused::FullRepeated => again = Some(sent),
                            _ => sent.cancel().unwrap(),
                        }
                    }
                }
                _ => {
                    let sent = ctx.prepare_send(&send).unwrap();
                    let earlier = ctx.prepare_send(&earlier.on(&a)).unwrap();
                    let e = match refused {
                        Refused::InList => ctx.post_all_on(&a, slice::from_ref(&sent)),
                        _ => sent.post_on(&a),
                    };
                    let (e, kind) = (e.unwrap_err(), Kind::Gdsync(gdsync::Kind::OutOfOrder));
                    assert_eq!((e.kind(), packing.count()), (kind, 0), "{e}");
                    sent.post_on(&b).unwrap();
                    sent.wait(LIMIT).unwrap();
                    last = Some(earlier);
                }
            }
            // It takes the staging memory that is free, and waits for its receive.
            let other = SendOp::strided(peer, 2, &second).on(&c);
            let other = ctx.post_send(&other).unwrap();
            gate.open();
            assert!(a.synchronize(LIMIT).unwrap());
            if let Some(again) = again {
                again.post_on(&a).unwrap();
                again.wait(LIMIT).unwrap();
            }
            match last {
                Some(last) => last.post().unwrap(),
                None => drop(ctx.post_send(&SendOp::from((peer, 3, &go))).unwrap()),
            }
            other.wait(LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
        });
    }
}
