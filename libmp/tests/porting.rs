//! Calls that shorten a port from MPI: the null rank, memory as elements, a send and a receive in
//! one call, and the flush of sends.

mod common;

use std::sync::Barrier;
use std::time::Duration;

use common::gate::Gate;
use common::{LIMIT, pattern, ranks, ranks_with, read};
use gdsync::gpu::MemoryKind;
use mp::{Builder, Context, Kind, NULL_RANK, Progress, RecvOp, Request, SendOp, Slice, Source};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SHORT: Duration = Duration::from_millis(50);
/// Below and above the eager limit.
const SIZES: [usize; 2] = [100, 300_000];

/// Asserts that the request has ended with the null rank's result.
fn ended_with_null(request: &Request, tag: u32) {
    let done = request.wait(Duration::ZERO).unwrap();
    assert_eq!((done.peer, done.tag, done.len), (NULL_RANK, tag, 0));
    assert_eq!(request.test().unwrap(), Some(done));
}

#[test]
fn requests_with_the_null_rank_end_when_they_are_posted() {
    ranks(2, |ctx| {
        let gate = Gate::new(ctx.gpu());
        let [held, other] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
        gate.hold(&held);
        for len in SIZES {
            let memory = ctx.alloc(MemoryKind::Device, len).unwrap();
            memory.write(0, &pattern(0, 3, len)).unwrap();
            let pieces = [
                memory.slice(0, 1).unwrap(),
                memory.slice(1, len - 1).unwrap(),
            ];
            let (send, recv) = (
                SendOp::new(NULL_RANK, 7, &pieces),
                RecvOp::new(NULL_RANK, 7, &pieces),
            );
            for (send, recv) in [(send, recv), (send.on(&held), recv.on(&held))] {
                let prepared = [
                    ctx.prepare_send(&send).unwrap(),
                    ctx.prepare_recv(&recv).unwrap(),
                ];
                for request in &prepared {
                    let e = request.test().unwrap_err();
                    assert_eq!(e.kind(), Kind::NoSuchRequest, "{e}");
                    request.post().unwrap();
                    assert_eq!(request.post().unwrap_err().kind(), Kind::Busy);
                }
                let posted = [ctx.post_send(&send).unwrap(), ctx.post_recv(&recv).unwrap()];
                for request in prepared.iter().chain(&posted) {
                    // The stream that has not reached the request is not waited for.
                    ended_with_null(request, 7);
                    request.wait_on(&held).unwrap();
                    request.wait_on(&other).unwrap();
                    assert_eq!(request.cancel().unwrap_err().kind(), Kind::Unsupported);
                }
                assert_eq!(mp::wait_all(&posted, Duration::ZERO).unwrap().len(), 2);
            }
            assert_eq!(read(&memory, 0, len), pattern(0, 3, len));
            // Nothing holds the memory.
            drop(pieces);
        }
        assert!(other.synchronize(LIMIT).unwrap());
        gate.open();
        assert!(held.synchronize(LIMIT).unwrap());
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn prepared_request_with_the_null_rank_is_cancelled_or_dropped() {
    ranks(1, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap().all();
        let all = std::slice::from_ref(&memory);
        let send = ctx.prepare_send(&SendOp::new(NULL_RANK, 1, all)).unwrap();
        drop(ctx.prepare_recv(&RecvOp::new(NULL_RANK, 1, all)).unwrap());
        assert!(
            format!("{send:?}").contains("send to the null rank"),
            "{send:?}"
        );
        send.cancel().unwrap();
        let e = send.wait(LIMIT).unwrap_err();
        assert_eq!(
            (e.kind(), e.rank()),
            (Kind::Cancelled, Some(NULL_RANK)),
            "{e}"
        );
        drop(send);
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn receive_from_any_rank_ignores_the_null_rank() {
    static TESTED: Barrier = Barrier::new(2);
    ranks(2, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let [into, other] = [0, 32].map(|at| memory.slice(at, 32).unwrap());
        let any = ctx.irecv(Source::Any, 5, &into).unwrap();
        ended_with_null(&ctx.irecv(NULL_RANK, 5, &other).unwrap(), 5);
        ended_with_null(&ctx.isend(NULL_RANK, 5, &other).unwrap(), 5);
        assert_eq!(any.test().unwrap(), None);
        TESTED.wait();
        memory.write(32, &[ctx.rank() as u8 + 1; 32]).unwrap();
        let peer = 1 - ctx.rank();
        ctx.isend(peer, 5, &other).unwrap().wait(LIMIT).unwrap();
        assert_eq!(any.wait(LIMIT).unwrap().peer, peer);
        assert_eq!(read(&memory, 0, 32), [peer as u8 + 1; 32]);
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn arguments_of_a_request_with_the_null_rank_are_checked() {
    ranks(1, |ctx| {
        let alone = mp::bootstrap::Local::ranks(1).remove(0);
        let foreign = Context::builder().bootstrap(alone).gpu(ctx.gpu());
        let foreign = foreign
            .build()
            .unwrap()
            .alloc(MemoryKind::Pinned, 8)
            .unwrap();
        let e = ctx.isend(NULL_RANK, 1, &foreign.all()).unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid, "{e}");
        let piece = ctx.alloc(MemoryKind::Pinned, 8).unwrap().all();
        let e = ctx
            .irecvv(NULL_RANK, 1, &vec![piece.clone(); 31])
            .unwrap_err();
        assert_eq!((e.kind(), e.limit()), (Kind::Invalid, Some(30)), "{e}");
        // `0 - 1` is no null rank.
        let e = ctx.isend(0u32.wrapping_sub(1), 1, &piece).unwrap_err();
        assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(u32::MAX)), "{e}");
    });
}

#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Particle {
    position: [f64; 3],
    id: u64,
}

#[test]
fn elements_are_sliced_and_copied_by_index() {
    ranks(1, |ctx| {
        for kind in [MemoryKind::Pinned, MemoryKind::Device] {
            let memory = ctx.alloc(kind, 10 * size_of::<Particle>()).unwrap();
            let particle = |id| Particle {
                position: [id as f64, 0.5, -1.0],
                id,
            };
            memory.write_slice(2, &[particle(1), particle(2)]).unwrap();
            let mut got = [Particle::default(); 4];
            memory.read_slice(1, &mut got).unwrap();
            let none = Particle::default();
            assert_eq!(got, [none, particle(1), particle(2), none]);
            let slice = memory.slice_of::<Particle>(2, 3).unwrap();
            assert_eq!((slice.offset(), slice.len()), (64, 96));
            let mut got = [none];
            slice.read_slice(1, &mut got).unwrap();
            assert_eq!(got, [particle(2)]);
            slice.write_slice(2, &[7u64]).unwrap();
            let word = slice.slice_of::<u64>(2, 1).unwrap();
            assert_eq!((word.offset(), word.len()), (80, 8));
            assert_eq!(read(&memory, 80, 8), 7u64.to_ne_bytes());
            // No elements, also behind the last.
            assert!(memory.slice_of::<Particle>(10, 0).unwrap().is_empty());
            memory.write_slice::<u8>(320, &[]).unwrap();
        }
    });
}

#[test]
fn elements_outside_the_memory_or_misaligned_are_refused() {
    ranks(1, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 100).unwrap();
        let whole = memory.all();
        let part = memory.slice(8, 24).unwrap();
        let refused = |slice: &Slice, index, count, limit| {
            let e = slice.slice_of::<f64>(index, count).unwrap_err();
            assert_eq!((e.kind(), e.limit()), (Kind::Invalid, limit), "{e}");
        };
        refused(&whole, 12, 1, Some(12));
        refused(&whole, 13, 0, Some(12));
        refused(&whole, 0, 13, Some(12));
        refused(&whole, usize::MAX, 1, Some(12));
        refused(&whole, 1, usize::MAX, Some(12));
        refused(&whole, usize::MAX / 8, usize::MAX / 8, Some(12));
        refused(&part, 2, 2, Some(3));
        let odd = memory.slice(4, 32).unwrap();
        refused(&odd, 0, 1, None);
        let e = odd.read_slice(1, &mut [0u64]).unwrap_err();
        assert!(
            e.to_string().contains("u64") && e.to_string().contains("8 bytes"),
            "{e}"
        );
        odd.slice_of::<u32>(0, 8).unwrap();
        assert_eq!(
            memory.write_slice(0, &[0u64; 13]).unwrap_err().kind(),
            Kind::Invalid
        );
        assert_eq!(
            part.read_slice(0, &mut [0u8; 25]).unwrap_err().kind(),
            Kind::Invalid
        );
    });
}

/// All ranks shift messages around a ring at once.
fn ring(size: u32, progress: Progress) {
    let build = move |b: Builder| b.progress(progress).depth(2);
    ranks_with(size, build, move |ctx| {
        let rank = ctx.rank();
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
        let stream = ctx.gpu().stream().unwrap();
        for len in SIZES {
            let memory = ctx.alloc(MemoryKind::Device, 2 * len).unwrap();
            let [out, into] = [0, len].map(|at| memory.slice(at, len).unwrap());
            for round in 0..10 {
                memory.write(0, &pattern(rank, round, len)).unwrap();
                if round % 2 == 0 {
                    let done = ctx
                        .sendrecv((right, 7, &out), (left, 7, &into), LIMIT)
                        .unwrap();
                    assert_eq!((done.peer, done.tag, done.len), (left, 7, len as u64));
                } else {
                    let recv = RecvOp::from((left, 8, &into)).timeout(LIMIT);
                    ctx.sendrecv_on(&stream, (right, 8, &out), recv).unwrap();
                    ctx.synchronize(&stream, LIMIT).unwrap();
                }
                assert!(
                    read(&memory, len, len) == pattern(left, round, len),
                    "{round}"
                );
            }
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn all_ranks_send_and_receive_in_one_call_at_once() {
    ring(3, Progress::Background);
    ring(2, Progress::Manual);
    ring(1, Progress::Background);
}

#[test]
fn chain_with_open_ends_shifts_by_one_call() {
    ranks(3, |ctx| {
        let rank = ctx.rank();
        let left = rank.checked_sub(1).unwrap_or(NULL_RANK);
        let right = if rank == 2 { NULL_RANK } else { rank + 1 };
        let stream = ctx.gpu().stream().unwrap();
        for len in SIZES {
            let memory = ctx.alloc(MemoryKind::Pinned, 2 * len).unwrap();
            let [out, into] = [0, len].map(|at| memory.slice(at, len).unwrap());
            memory.write(0, &pattern(rank, 0, len)).unwrap();
            let done = ctx
                .sendrecv((right, 1, &out), (left, 1, &into), LIMIT)
                .unwrap();
            let expected = match rank {
                0 => (NULL_RANK, 0, vec![0; len]),
                _ => (rank - 1, len as u64, pattern(rank - 1, 0, len)),
            };
            assert_eq!((done.peer, done.len), (expected.0, expected.1));
            assert!(read(&memory, len, len) == expected.2);
            memory.write(len, &vec![0; len]).unwrap();
            ctx.sendrecv_on(&stream, (left, 2, &out), (right, 2, &into))
                .unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            let expected = match rank {
                2 => vec![0; len],
                _ => pattern(rank + 1, 0, len),
            };
            assert!(read(&memory, len, len) == expected);
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn refused_pair_posts_nothing() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        for len in SIZES {
            let memory = ctx.alloc(MemoryKind::Pinned, 2 * len).unwrap();
            let [out, into] = [0, len].map(|at| memory.slice(at, len).unwrap());
            memory.write(0, &pattern(ctx.rank(), 1, len)).unwrap();
            for on_stream in [false, true] {
                let shift = |to| match on_stream {
                    false => ctx
                        .sendrecv((to, 3, &out), (peer, 3, &into), LIMIT)
                        .map(drop),
                    true => ctx.sendrecv_on(&stream, (to, 3, &out), (peer, 3, &into)),
                };
                let e = shift(9).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Invalid, Some(9)), "{e}");
                // The receive was cancelled: the next one takes the peer's message.
                shift(peer).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                assert!(read(&memory, len, len) == pattern(peer, 1, len));
            }
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn pair_whose_message_is_missing_times_out_and_continues() {
    static LATE: Barrier = Barrier::new(2);
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let [out, into] = [0, 32].map(|at| memory.slice(at, 32).unwrap());
        memory.write(0, &[ctx.rank() as u8 + 1; 32]).unwrap();
        if ctx.rank() == 0 {
            let e = ctx
                .sendrecv((peer, 1, &out), (peer, 1, &into), SHORT)
                .unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::Timeout, Some(1)), "{e}");
            LATE.wait();
            // The receive that timed out takes the first message, and this one the second.
            ctx.sendrecv((peer, 1, &out), (peer, 1, &into), LIMIT)
                .unwrap();
            ctx.close(LIMIT).unwrap();
            assert_eq!(read(&memory, 32, 32), [2; 32]);
        } else {
            LATE.wait();
            for _ in 0..2 {
                ctx.sendrecv((peer, 1, &out), (peer, 1, &into), LIMIT)
                    .unwrap();
                assert_eq!(read(&memory, 32, 32), [1; 32]);
            }
            ctx.close(LIMIT).unwrap();
        }
    });
}

#[test]
fn flush_waits_for_posted_sends_only() {
    static HELD: Barrier = Barrier::new(2);
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let (gate, stream) = (Gate::new(ctx.gpu()), ctx.gpu().stream().unwrap());
        let memory = ctx.alloc(MemoryKind::Device, 300_000).unwrap();
        let [small, large] = [100, 300_000].map(|len| memory.slice(0, len).unwrap());
        ctx.flush(Duration::ZERO).unwrap();
        if ctx.rank() == 0 {
            // By a stream that has not reached the send, and by the CPU without a receive.
            gate.hold(&stream);
            let held = ctx.isend_on(&stream, peer, 1, &small).unwrap();
            let rest = ctx.isend(peer, 2, &large).unwrap();
            let all = std::slice::from_ref(&small);
            let prepared = ctx.prepare_send(&SendOp::new(peer, 3, all)).unwrap();
            let e = ctx.flush(SHORT).unwrap_err();
            assert_eq!(
                (e.kind(), e.rank(), e.tag()),
                (Kind::Timeout, Some(1), Some(1)),
                "{e}"
            );
            let text = e.to_string();
            assert!(
                text.contains("50 ms") && text.contains("2 sends have not ended"),
                "{text}"
            );
            gate.open();
            held.wait(LIMIT).unwrap();
            let e = ctx.flush(SHORT).unwrap_err();
            assert_eq!((e.kind(), e.tag()), (Kind::Timeout, Some(2)), "{e}");
            assert!(e.to_string().contains("posted no receive"), "{e}");
            HELD.wait();
            ctx.flush(LIMIT).unwrap();
            rest.wait(Duration::ZERO).unwrap();
            prepared.cancel().unwrap();
        } else {
            // Receives do not count.
            let open = ctx.irecv(peer, 9, &small).unwrap();
            ctx.flush(Duration::ZERO).unwrap();
            HELD.wait();
            let recvs = [(1, &small), (2, &large)].map(|(tag, s)| ctx.irecv(peer, tag, s).unwrap());
            mp::wait_all(&recvs, LIMIT).unwrap();
            open.cancel().unwrap();
        }
        // Rank 0 does not leave before.
        HELD.wait();
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn flush_returns_the_failure_of_a_send_once() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 300_000).unwrap();
        if ctx.rank() == 0 {
            drop(ctx.isend(peer, 4, &memory.all()).unwrap());
            let e = ctx.flush(LIMIT).unwrap_err();
            let whole = (e.kind(), e.operation(), e.rank(), e.tag());
            assert_eq!(
                whole,
                (Kind::Truncated, "flush sends", Some(1), Some(4)),
                "{e}"
            );
            ctx.flush(LIMIT).unwrap();
        } else {
            let recv = ctx.irecv(peer, 4, &memory.slice(0, 10).unwrap()).unwrap();
            assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
        }
        ctx.close(LIMIT).unwrap();
    });
}

/// Another thread sends on the stream while pairs are posted there: neither call fails.
#[test]
fn pairs_are_posted_while_another_thread_posts_on_the_stream() {
    const ROUNDS: usize = 300;
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 20_016).unwrap();
        let slice = |at, len| memory.slice(at, len).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let (out, into) = (slice(0, 8), slice(8, 8));
                for _ in 0..ROUNDS {
                    let recv = ctx.irecv(peer, 1, &into).unwrap();
                    drop(ctx.isend_on(&stream, peer, 1, &out).unwrap());
                    recv.wait(LIMIT).unwrap();
                }
            });
            let (out, into) = (slice(16, 10_000), slice(10_016, 10_000));
            for _ in 0..ROUNDS {
                ctx.sendrecv_on(&stream, (peer, 2, &out), (peer, 2, &into))
                    .unwrap();
            }
        });
        ctx.synchronize(&stream, LIMIT).unwrap();
        ctx.close(LIMIT).unwrap();
    });
}
