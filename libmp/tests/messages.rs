//! Messages between ranks that are threads of this process: sizes, order, vectors, wildcards,
//! truncation, cancelling, by the CPU and on streams.

mod common;

use std::time::Duration;

use common::{LIMIT, pattern, ranks, ranks_with};
use gdsync::gpu::MemoryKind;
use mp::{Builder, Kind, RecvOp, SendOp, SizeSource, Source};

const SIZES: [usize; 10] = [0, 1, 4, 64, 4095, 4096, 4097, 65536, 1 << 20, 3_000_001];

#[test]
fn cpu_messages_of_all_sizes_arrive() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        for (i, len) in SIZES.into_iter().enumerate() {
            let memory = ctx.alloc(MemoryKind::Pinned, 2 * len + 16).unwrap();
            memory.write(0, &pattern(ctx.rank(), i, len)).unwrap();
            let into = memory.slice(len, len + 8).unwrap();
            let recv = ctx.irecv(peer, 5, &into).unwrap();
            let send = ctx.isend(peer, 5, &memory.slice(0, len).unwrap()).unwrap();
            send.wait(LIMIT).unwrap();
            let done = recv.wait(LIMIT).unwrap();
            assert_eq!((done.source(), done.tag, done.len), (peer, 5, len as u64));
            let mut got = vec![0; len + 8];
            memory.read(len, &mut got).unwrap();
            assert_eq!(got[..len], pattern(peer, i, len), "{len} bytes");
            assert_eq!(got[len..], [0; 8]);
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn stream_messages_of_all_sizes_arrive() {
    for kind in [MemoryKind::Pinned, MemoryKind::Device] {
        ranks(2, move |ctx| {
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            for (i, len) in SIZES.into_iter().enumerate() {
                let memory = ctx.alloc(kind, 2 * len + 16).unwrap();
                memory.write(0, &pattern(ctx.rank(), i, len)).unwrap();
                let into = memory.slice(len, len + 8).unwrap();
                let recv = ctx.irecv_on(&stream, peer, 5, &into).unwrap();
                let data = memory.slice(0, len).unwrap();
                let send = ctx.isend_on(&stream, peer, 5, &data).unwrap();
                recv.wait_on(&stream).unwrap();
                send.wait_on(&stream).unwrap();
                assert!(stream.synchronize(LIMIT).unwrap());
                let done = recv.wait(LIMIT).unwrap();
                assert_eq!((done.source(), done.tag, done.len), (peer, 5, len as u64));
                let mut got = vec![0; len + 8];
                memory.read(len, &mut got).unwrap();
                assert_eq!(got[..len], pattern(peer, i, len), "{len} bytes");
                assert_eq!(got[len..], [0; 8]);
                send.wait(LIMIT).unwrap();
            }
            ctx.close(LIMIT).unwrap();
        });
    }
}

#[test]
fn many_laps_keep_their_order_without_a_cpu_wait() {
    ranks(2, |ctx| {
        const N: usize = 1000;
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let out = ctx.alloc(MemoryKind::Pinned, 8 * N).unwrap();
        let into = ctx.alloc(MemoryKind::Device, 8 * N).unwrap();
        for i in 0..N {
            out.write(8 * i, &(i as u64 ^ 0xabcd).to_le_bytes())
                .unwrap();
        }
        for i in 0..N {
            let recv = ctx
                .irecv_on(&stream, peer, 1, &into.slice(8 * i, 8).unwrap())
                .unwrap();
            drop(
                ctx.isend_on(&stream, peer, 1, &out.slice(8 * i, 8).unwrap())
                    .unwrap(),
            );
            recv.wait_on(&stream).unwrap();
        }
        assert!(stream.synchronize(LIMIT).unwrap());
        let mut got = vec![0; 8 * N];
        into.read(0, &mut got).unwrap();
        for i in 0..N {
            let word = u64::from_le_bytes(got[8 * i..][..8].try_into().unwrap());
            assert_eq!(word, i as u64 ^ 0xabcd);
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn tags_match_exactly_and_vectors_gather_and_scatter() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16).unwrap();
        memory.write(0, &pattern(ctx.rank(), 1, 30_000)).unwrap();
        for total in [600, 30_000] {
            let each = total / 30;
            let out: Vec<_> = (0..30)
                .map(|i| memory.slice(i * each, each).unwrap())
                .collect();
            let base = 32_000;
            let into: Vec<_> = (0..15)
                .map(|i| memory.slice(base + i * (2 * each + 1), 2 * each).unwrap())
                .collect();
            let second = ctx.irecvv(peer, 8, &into).unwrap();
            let spare = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let first = ctx.irecv(peer, 7, &spare.all()).unwrap();
            let a = ctx.isendv(peer, 8, &out).unwrap();
            let b = ctx.isend(peer, 7, &memory.slice(0, 3).unwrap()).unwrap();
            mp::wait_all(&[a, b, first, second], LIMIT).unwrap();
            let whole = pattern(peer, 1, 30_000);
            for i in 0..15 {
                let mut got = vec![0; 2 * each];
                memory.read(base + i * (2 * each + 1), &mut got).unwrap();
                assert_eq!(got, whole[i * 2 * each..][..2 * each]);
            }
        }
    });
}

#[test]
fn too_long_messages_fail_on_both_sides() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 17).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        for (tag, sent, room) in [(1, 100, 50), (2, 9000, 100), (3, 60_000, 5000)] {
            for on_stream in [false, true] {
                let tag = tag + 10 * u32::from(on_stream);
                let data = memory.slice(0, sent).unwrap();
                let into = memory.slice(65536, room).unwrap();
                let (send, recv) = match on_stream {
                    false => {
                        let recv = ctx.irecv(peer, tag, &into).unwrap();
                        (ctx.isend(peer, tag, &data).unwrap(), recv)
                    }
                    true => {
                        let recv = ctx.irecv_on(&stream, peer, tag, &into).unwrap();
                        let send = ctx.isend_on(&stream, peer, tag, &data).unwrap();
                        recv.wait_on(&stream).unwrap();
                        assert!(stream.synchronize(LIMIT).unwrap());
                        (send, recv)
                    }
                };
                let e = recv.wait(LIMIT).unwrap_err();
                assert_eq!((e.kind(), e.rank()), (Kind::Truncated, Some(peer)), "{e}");
                match send.wait(LIMIT) {
                    Err(e) => assert_eq!(e.kind(), Kind::Truncated, "{e}"),
                    Ok(_) => assert!(sent <= 4096, "a large sender knows"),
                }
                // An eager sender learns of it later.
                let deadline = std::time::Instant::now() + LIMIT;
                while send.test().is_ok() {
                    assert!(std::time::Instant::now() < deadline);
                    std::thread::yield_now();
                }
                assert!(ctx.error().is_some());
            }
        }
        // The peer is still there.
        let recv = ctx.irecv(peer, 99, &memory.slice(0, 8).unwrap()).unwrap();
        ctx.isend(peer, 99, &memory.slice(8, 8).unwrap())
            .unwrap()
            .wait(LIMIT)
            .unwrap();
        recv.wait(LIMIT).unwrap();
    });
}

#[test]
fn anybody_may_be_received_from() {
    ranks(4, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 20).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        for (tag, len) in [(3, 8), (4, 20_000)] {
            if ctx.rank() == 0 {
                let mut seen = [0; 4];
                for i in 0..9 {
                    let into = memory.slice(0, len).unwrap();
                    let request = match i % 2 {
                        0 => ctx.irecv(Source::Any, tag, &into).unwrap(),
                        _ => {
                            let request = ctx.irecv_on(&stream, Source::Any, tag, &into).unwrap();
                            request.wait_on(&stream).unwrap();
                            assert!(stream.synchronize(LIMIT).unwrap());
                            request
                        }
                    };
                    let done = request.wait(LIMIT).unwrap();
                    let mut got = vec![0; len];
                    memory.read(0, &mut got).unwrap();
                    let from = done.source();
                    assert_eq!(got, pattern(from, seen[from as usize], len));
                    seen[from as usize] += 1;
                }
                assert_eq!(seen, [0, 3, 3, 3]);
            } else {
                for i in 0..3 {
                    memory.write(0, &pattern(ctx.rank(), i, len)).unwrap();
                    let data = memory.slice(0, len).unwrap();
                    ctx.isend(0, tag, &data).unwrap().wait(LIMIT).unwrap();
                }
            }
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn lengths_come_from_words() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        for (n, most) in [4096, 100_000].into_iter().enumerate() {
            let memory = ctx.alloc(MemoryKind::Device, 2 * most).unwrap();
            memory.write(0, &pattern(ctx.rank(), n, most)).unwrap();
            let words = ctx.gpu().alloc(MemoryKind::Pinned, 16).unwrap();
            let (len, offset) = (words.word64(0).unwrap(), words.word64(8).unwrap());
            for (bytes, at) in [(10, 100), (0, 0), (most as u64, 0), (most as u64 - 7, 7)] {
                len.store(bytes).unwrap();
                offset.store(at).unwrap();
                let data = [memory.slice(0, most).unwrap()];
                let size = SizeSource::Word {
                    len: &len,
                    offset: Some(&offset),
                };
                let into = memory.slice(most, most).unwrap();
                let recv = ctx.irecv_on(&stream, peer, 2, &into).unwrap();
                let send = ctx
                    .post_send(&SendOp::new(peer, 2, &data).size(size).on(&stream))
                    .unwrap();
                recv.wait_on(&stream).unwrap();
                send.wait_on(&stream).unwrap();
                assert!(stream.synchronize(LIMIT).unwrap());
                assert_eq!(recv.wait(LIMIT).unwrap().len, bytes);
                let mut got = vec![0; bytes as usize];
                memory.read(most, &mut got).unwrap();
                assert_eq!(got, pattern(peer, n, most)[at as usize..][..bytes as usize]);
            }
            // Longer than declared: both sides fail, and go on.
            len.store(most as u64 + 1).unwrap();
            offset.store(0).unwrap();
            let data = [memory.slice(0, most).unwrap()];
            let size = SizeSource::Word {
                len: &len,
                offset: None,
            };
            let into = [memory.slice(most, most).unwrap()];
            let recv = ctx
                .post_recv(&RecvOp::new(peer, 2, &into).on(&stream))
                .unwrap();
            let send = ctx
                .post_send(&SendOp::new(peer, 2, &data).size(size).on(&stream))
                .unwrap();
            recv.wait_on(&stream).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap());
            assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            let e = send.wait(LIMIT).unwrap_err();
            assert!(e.status().is_some(), "{e}");
        }
    });
}

/// The word of the receive that is next in the slot comes only behind what waits for the sender.
#[test]
fn a_sender_learns_that_there_is_no_room_though_the_next_receive_of_the_slot_stands_behind_it() {
    let build = |builder: mp::Builder| builder.depth(2);
    ranks_with(2, build, |ctx| {
        const LONG: usize = 9000;
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16).unwrap();
        let small = |at: usize| memory.slice(64 * at, 64).unwrap();
        let long = |at: usize| memory.slice(16384 * at, LONG).unwrap();
        let [a, b] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        let go = 9;
        if ctx.rank() == 0 {
            let recv = ctx.irecv(peer, go, &small(0)).unwrap();
            recv.wait(LIMIT).unwrap();
            let lost = ctx.isend_on(&a, peer, 1, &long(1)).unwrap();
            let second = ctx.isend_on(&a, peer, 1, &small(1)).unwrap();
            let other = ctx.isend_on(&a, peer, 2, &small(2)).unwrap();
            let third = ctx.isend_on(&a, peer, 1, &long(2)).unwrap();
            assert_eq!(lost.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            for request in [second, other, third] {
                request.wait(LIMIT).unwrap();
            }
        } else {
            let short = ctx.irecv_on(&a, peer, 1, &small(0)).unwrap();
            let second = ctx.irecv_on(&a, peer, 1, &small(1)).unwrap();
            let other = ctx.irecv_on(&a, peer, 2, &small(2)).unwrap();
            other.wait_on(&a).unwrap();
            // This stream stands behind the other, which waits for what comes behind the message.
            short.wait_on(&b).unwrap();
            second.wait_on(&b).unwrap();
            let third = ctx.irecv_on(&b, peer, 1, &long(2)).unwrap();
            third.wait_on(&b).unwrap();
            ctx.isend(peer, go, &small(9)).unwrap().wait(LIMIT).unwrap();
            assert_eq!(short.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            for request in [second, other, third] {
                request.wait(LIMIT).unwrap();
            }
        }
        for stream in [a, b] {
            assert!(stream.synchronize(LIMIT).unwrap());
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn unmatched_requests_are_cancelled_and_others_are_not() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16).unwrap();
        let small = memory.slice(0, 8).unwrap();
        let recv = ctx.irecv(peer, 1, &small).unwrap();
        recv.cancel().unwrap();
        assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Cancelled);
        // From here on the peer may send under that tag.
        let ready = ctx.irecv(peer, 2, &small).unwrap();
        ctx.isend(peer, 2, &small).unwrap().wait(LIMIT).unwrap();
        ready.wait(LIMIT).unwrap();
        let any = ctx.irecv(Source::Any, 3, &small).unwrap();
        any.cancel().unwrap();
        let large = ctx.irecv(peer, 1, &memory.all()).unwrap();
        assert_eq!(large.cancel().unwrap_err().kind(), Kind::Unsupported);
        let data = [small.clone()];
        let prepared = ctx.prepare_send(&SendOp::new(peer, 1, &data)).unwrap();
        assert_eq!(
            prepared.wait(Duration::ZERO).unwrap_err().kind(),
            Kind::NoSuchRequest
        );
        prepared.cancel().unwrap();
        assert_eq!(prepared.post().unwrap_err().kind(), Kind::Busy);
        ctx.isend(peer, 1, &small).unwrap().wait(LIMIT).unwrap();
        assert_eq!(large.wait(LIMIT).unwrap().len, 8);
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn there_may_be_any_number_of_tags() {
    ranks_with(
        2,
        |builder| builder.channels(8),
        |ctx| {
            let peer = 1 - ctx.rank();
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let stream = ctx.gpu().stream().unwrap();
            for tag in 0..100 {
                memory.write(0, &pattern(ctx.rank(), tag, 8)).unwrap();
                let (data, into) = (memory.slice(0, 8).unwrap(), memory.slice(8, 8).unwrap());
                // Old tags come back, and begin anew.
                for tag in [tag as u32, tag as u32 % 7 + 1000] {
                    let recv = ctx.irecv_on(&stream, peer, tag, &into).unwrap();
                    let send = ctx.isend_on(&stream, peer, tag, &data).unwrap();
                    recv.wait_on(&stream).unwrap();
                    send.wait_on(&stream).unwrap();
                    assert_eq!(recv.wait(LIMIT).unwrap().tag, tag);
                    send.wait(LIMIT).unwrap();
                }
                let mut got = [0; 8];
                memory.read(8, &mut got).unwrap();
                assert_eq!(got[..], pattern(peer, tag, 8));
            }
        },
    );
}

#[test]
fn buffers_and_bare_addresses_carry_messages() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.adopt_vec(pattern(ctx.rank(), 0, 5000)).unwrap();
        let mut into = vec![0u8; 6000];
        let at = gdsync::gpu::DevicePtr(into.as_mut_ptr() as u64 + 500);
        // SAFETY: `into` lives to the end, and nobody uses it before the message is there.
        let slice = unsafe { ctx.slice_at(at, 5000) }.unwrap();
        let recv = ctx.irecv(peer, 1, &slice).unwrap();
        let send = ctx.isend(peer, 1, &memory.all()).unwrap();
        mp::wait_all(&[send, recv], LIMIT).unwrap();
        assert_eq!(into[500..5500], pattern(peer, 0, 5000));
        assert!(into[..500].iter().chain(&into[5500..]).all(|b| *b == 0));
        // Known memory is found again, whoever asks for which part of it.
        let inner = gdsync::gpu::DevicePtr(memory.region().addr().0 + 10);
        // SAFETY: it lies in memory that a handle is held on.
        let again = unsafe { ctx.slice_at(inner, 100) }.unwrap();
        assert_eq!((again.offset(), again.len()), (10, 100));
        drop((again, slice));
        // The buffer comes back once nothing is in flight any more.
        let buffer = memory.into_vec(LIMIT).unwrap();
        assert_eq!(buffer, pattern(ctx.rank(), 0, 5000));
        let mut got = [0; 3];
        ctx.scope(|s| {
            s.irecv(peer, 2, &mut got)?;
            s.isend(peer, 2, &[7, 8, 9])
        })
        .unwrap();
        assert_eq!(got, [7, 8, 9]);
    });
}

/// A stream that comes late to its wait finds the word of its own request there.
#[test]
fn words_are_a_requests_as_long_as_a_stream_needs_them() {
    ranks(1, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let word = ctx.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
        let word = word.word32(0).unwrap();
        let (first, late) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
        let hold = gdsync::rdma::Descriptor::WaitValue32 {
            word: &word,
            condition: gdsync::gpu::Condition::Geq,
            value: 1,
            flush: false,
        };
        gdsync::rdma::post_on(&late, &mut [], &[hold]).unwrap();
        let (data, into) = (memory.slice(0, 8).unwrap(), memory.slice(8, 8).unwrap());
        let recv = ctx.irecv_on(&first, 0, 1, &into).unwrap();
        recv.wait_on(&first).unwrap();
        recv.wait_on(&late).unwrap();
        ctx.isend(0, 1, &data).unwrap().wait(LIMIT).unwrap();
        assert!(first.synchronize(LIMIT).unwrap());
        recv.wait(LIMIT).unwrap();
        drop(recv);
        // Others that are never done take the places of those that are.
        let open: Vec<_> = (2..600)
            .map(|tag| ctx.irecv(Source::Any, tag, &into).unwrap())
            .collect();
        word.store(1).unwrap();
        assert!(late.synchronize(LIMIT).unwrap());
        drop(open);
    });
}

/// The answers of receives that have nothing to say do not grow so old that they seem new.
#[test]
fn a_long_message_comes_behind_any_number_of_short_ones() {
    for on_stream in [false, true] {
        ranks_with(
            2,
            |builder| builder.eager_limit(64).depth(64),
            move |ctx| {
                const SHORT: usize = 40_000;
                let peer = 1 - ctx.rank();
                let stream = ctx.gpu().stream().unwrap();
                let memory = ctx.alloc(MemoryKind::Pinned, 4096).unwrap();
                let (short, long) = (
                    memory.slice(0, 8).unwrap(),
                    memory.slice(1024, 1000).unwrap(),
                );
                let into = memory.slice(2048, 1000).unwrap();
                memory.write(1024, &pattern(ctx.rank(), 0, 1000)).unwrap();
                for i in 0..=SHORT {
                    let data = if i < SHORT { &short } else { &long };
                    match on_stream {
                        true if ctx.rank() == 0 => {
                            drop(ctx.isend_on(&stream, peer, 1, data).unwrap())
                        }
                        true => {
                            let room = if i < SHORT { &short } else { &into };
                            let recv = ctx.irecv_on(&stream, peer, 1, room).unwrap();
                            recv.wait_on(&stream).unwrap();
                        }
                        false if ctx.rank() == 0 => {
                            ctx.isend(peer, 1, data).unwrap().wait(LIMIT).unwrap();
                        }
                        false => {
                            let room = if i < SHORT { &short } else { &into };
                            ctx.irecv(peer, 1, room).unwrap().wait(LIMIT).unwrap();
                        }
                    }
                }
                assert!(stream.synchronize(LIMIT).unwrap());
                if ctx.rank() == 1 {
                    let mut got = [0; 1000];
                    memory.read(2048, &mut got).unwrap();
                    assert_eq!(got[..], pattern(0, 0, 1000));
                }
                assert_eq!(ctx.error(), None);
            },
        );
    }
}

#[test]
fn a_number_that_was_dropped_is_told_to_its_match() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 64 << 10).unwrap();
        for len in [8, 20_000] {
            let tag = len as u32;
            let (data, into) = (
                memory.slice(0, len).unwrap(),
                memory.slice(32 << 10, len).unwrap(),
            );
            let (data, into) = ([data], [into]);
            if ctx.rank() == 0 {
                let dropped = ctx
                    .prepare_send(&SendOp::new(peer, tag, &data).on(&stream))
                    .unwrap();
                let next = ctx
                    .prepare_send(&SendOp::new(peer, tag, &data).on(&stream))
                    .unwrap();
                drop(dropped);
                next.post().unwrap();
                // The other way round: a receive that is dropped takes its message along.
                let dropped = ctx
                    .prepare_recv(&RecvOp::new(peer, tag, &into).on(&stream))
                    .unwrap();
                let second = ctx
                    .prepare_recv(&RecvOp::new(peer, tag, &into).on(&stream))
                    .unwrap();
                drop(dropped);
                second.post().unwrap();
                second.wait(LIMIT).unwrap();
                next.wait(LIMIT).unwrap();
            } else {
                let first = ctx.irecvv(peer, tag, &into).unwrap();
                let second = ctx.irecvv(peer, tag, &into).unwrap();
                assert_eq!(first.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
                assert_eq!(second.wait(LIMIT).unwrap().len, len as u64);
                let lost = ctx.isendv(peer, tag, &data).unwrap();
                ctx.isendv(peer, tag, &data).unwrap().wait(LIMIT).unwrap();
                let deadline = std::time::Instant::now() + LIMIT;
                while lost.test().is_ok() {
                    assert!(std::time::Instant::now() < deadline, "it is told");
                    std::thread::yield_now();
                }
            }
        }
    });
}

#[test]
fn memory_of_another_context_is_refused_at_once() {
    ranks(1, |ctx| {
        let gpu = ctx.gpu().clone();
        let job = mp::bootstrap::Local::ranks(1).remove(0);
        let other = mp::Context::builder()
            .bootstrap(job)
            .gpu(&gpu)
            .build()
            .unwrap();
        let memory = other.alloc(MemoryKind::Pinned, 64).unwrap();
        let e = ctx.isend(0, 1, &memory.all()).unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid, "{e}");
        let e = ctx.irecv(0, 1, &memory.all()).unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid, "{e}");
    });
}

#[test]
fn time_limits_may_be_as_long_as_durations_get() {
    const MANY: usize = 10;
    let build = |b: Builder| b.timeout(Duration::MAX).watchdog(Duration::MAX).depth(2);
    ranks_with(2, build, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 64 * MANY).unwrap();
        let slices = (0..MANY).map(|i| memory.slice(64 * i, 64).unwrap());
        // More receives than there are slots: they wait for room.
        let requests: Vec<_> = slices
            .map(|slice| match ctx.rank() {
                0 => ctx.isend(peer, 1, &slice).unwrap(),
                _ => ctx.irecv(peer, 1, &slice).unwrap(),
            })
            .collect();
        mp::wait_all(&requests, Duration::MAX).unwrap();
        assert!(
            ctx.gpu()
                .stream()
                .unwrap()
                .synchronize(Duration::MAX)
                .unwrap()
        );
        ctx.close(Duration::MAX).unwrap();
    });
}
