//! Messages between ranks that are threads of this process: sizes, order, vectors, wildcards,
//! truncation, cancelling, by the CPU and on streams.

mod common;

use std::array;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::gate::Gate;
use common::{LIMIT, pattern, ranks, ranks_with, read};
use gdsync::gpu::MemoryKind;
use mp::{Builder, Context, Kind, RecvOp, Request, SendOp, SizeSource, Source};

const SIZES: [usize; 13] = [
    0,
    1,
    4,
    64,
    4095,
    4096,
    4097,
    65536,
    65537,
    256 << 10,
    (256 << 10) + 1,
    1 << 20,
    3_000_001,
];

#[test]
fn messages_of_all_sizes_arrive() {
    let on_streams = [MemoryKind::Pinned, MemoryKind::Device].map(|kind| (kind, true));
    for (kind, on_stream) in [(MemoryKind::Pinned, false)].into_iter().chain(on_streams) {
        ranks(2, move |ctx| {
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            for (i, len) in SIZES.into_iter().enumerate() {
                let memory = ctx.alloc(kind, 2 * len + 16).unwrap();
                memory.write(0, &pattern(ctx.rank(), i, len)).unwrap();
                let into = memory.slice(len, len + 8).unwrap();
                let data = memory.slice(0, len).unwrap();
                let (recv, send) = match on_stream {
                    true => {
                        let recv = ctx.irecv_on(&stream, peer, 5, &into).unwrap();
                        let send = ctx.isend_on(&stream, peer, 5, &data).unwrap();
                        recv.wait_on(&stream).unwrap();
                        send.wait_on(&stream).unwrap();
                        assert!(stream.synchronize(LIMIT).unwrap());
                        (recv, send)
                    }
                    false => {
                        let recv = ctx.irecv(peer, 5, &into).unwrap();
                        (recv, ctx.isend(peer, 5, &data).unwrap())
                    }
                };
                send.wait(LIMIT).unwrap();
                let done = recv.wait(LIMIT).unwrap();
                assert_eq!((done.source(), done.tag, done.len), (peer, 5, len as u64));
                let got = read(&memory, len, len + 8);
                assert_eq!(got[..len], pattern(peer, i, len), "{len} bytes");
                assert_eq!(got[len..], [0; 8]);
            }
            ctx.close(LIMIT).unwrap();
        });
    }
}

/// The tags have no memory for eager messages when the streams begin to wait.
#[test]
fn stream_takes_in_the_first_eager_messages_of_tags_with_large_ones() {
    let both = Barrier::new(2);
    ranks(2, move |ctx| {
        const LARGE: usize = 300_000;
        const SMALL: [usize; 4] = [0, 1, 100, 4096];
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let out = ctx.alloc(MemoryKind::Pinned, LARGE).unwrap();
        let into = ctx.alloc(MemoryKind::Device, SMALL.len() * LARGE).unwrap();
        let slots = || (0..SMALL.len()).map(|i| into.slice(i * LARGE, LARGE).unwrap());
        for (tag, together) in [(1, false), (2, true)] {
            let recv = ctx.irecv(peer, tag, &slots().next().unwrap()).unwrap();
            ctx.isend(peer, tag, &out.all())
                .unwrap()
                .wait(LIMIT)
                .unwrap();
            recv.wait(LIMIT).unwrap();
            into.write(0, &vec![0; SMALL.len() * LARGE]).unwrap();
            let post = |into| ctx.irecv_on(&stream, peer, tag, &into).unwrap();
            let recvs: Vec<Request> = slots().map(post).collect();
            match together {
                true => ctx.wait_all_on(&stream, &recvs).unwrap(),
                false => recvs.iter().for_each(|recv| recv.wait_on(&stream).unwrap()),
            }
            both.wait();
            out.write(0, &pattern(ctx.rank(), 0, LARGE)).unwrap();
            for len in SMALL {
                let data = out.slice(0, len).unwrap();
                ctx.isend(peer, tag, &data).unwrap().wait(LIMIT).unwrap();
            }
            assert!(stream.synchronize(LIMIT).unwrap());
            for (i, len) in SMALL.into_iter().enumerate() {
                assert_eq!(recvs[i].wait(LIMIT).unwrap().len, len as u64);
                let got = read(&into, i * LARGE, len + 1);
                assert_eq!(got[..len], pattern(peer, 0, LARGE)[..len], "{len} bytes");
                assert_eq!(got[len], 0);
            }
            both.wait();
        }
        ctx.close(LIMIT).unwrap();
    });
}

#[test]
fn many_laps_stay_in_order_without_a_cpu_wait() {
    ranks(2, |ctx| {
        const N: usize = 1000;
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let out = ctx.alloc(MemoryKind::Pinned, 8 * N).unwrap();
        let into = ctx.alloc(MemoryKind::Device, 8 * N).unwrap();
        for i in 0..N {
            let word = i as u64 ^ 0xabcd;
            out.write(8 * i, &word.to_le_bytes()).unwrap();
        }
        for i in 0..N {
            let [data, into] = [&out, &into].map(|m| m.slice(8 * i, 8).unwrap());
            let recv = ctx.irecv_on(&stream, peer, 1, &into).unwrap();
            drop(ctx.isend_on(&stream, peer, 1, &data).unwrap());
            recv.wait_on(&stream).unwrap();
        }
        assert!(stream.synchronize(LIMIT).unwrap());
        let got = read(&into, 0, 8 * N);
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
            let out: [_; 30] = array::from_fn(|i| memory.slice(i * each, each).unwrap());
            let at = |i: usize| 32_000 + i * (2 * each + 1);
            let into: [_; 15] = array::from_fn(|i| memory.slice(at(i), 2 * each).unwrap());
            let second = ctx.irecvv(peer, 8, &into).unwrap();
            let spare = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let first = ctx.irecv(peer, 7, &spare.all()).unwrap();
            let a = ctx.isendv(peer, 8, &out).unwrap();
            let b = ctx.isend(peer, 7, &memory.slice(0, 3).unwrap()).unwrap();
            mp::wait_all(&[a, b, first, second], LIMIT).unwrap();
            let whole = pattern(peer, 1, 30_000);
            for i in 0..15 {
                let got = read(&memory, at(i), 2 * each);
                assert_eq!(got, whole[i * 2 * each..][..2 * each]);
            }
        }
    });
}

#[test]
fn truncated_messages_fail_on_both_sides() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 19).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        // Two are above the eager limit of every path.
        for (tag, sent, room) in [(1, 100, 50), (2, 300_000, 100), (3, 400_000, 5000)] {
            for on_stream in [false, true] {
                let tag = tag + 10 * u32::from(on_stream);
                let data = memory.slice(0, sent).unwrap();
                let into = memory.slice(450_000, room).unwrap();
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
                    Ok(_) => assert!(sent <= 4096, "a large send succeeded"),
                }
                // An eager sender gets the error later.
                fails(&send);
                assert!(ctx.error().is_some());
            }
        }
        // The peer is still alive.
        let recv = ctx.irecv(peer, 99, &memory.slice(0, 8).unwrap()).unwrap();
        let send = ctx.isend(peer, 99, &memory.slice(8, 8).unwrap()).unwrap();
        mp::wait_all(&[send, recv], LIMIT).unwrap();
    });
}

/// Waits until a request has failed.
fn fails(request: &Request) {
    let deadline = Instant::now() + LIMIT;
    while request.test().is_ok() {
        assert!(Instant::now() < deadline, "the request did not fail");
        std::thread::yield_now();
    }
}

#[test]
fn receives_from_any_rank_report_sender_and_length() {
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
                    let got = read(&memory, 0, len);
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
fn message_lengths_are_read_from_words() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        for (n, most) in [4096, 300_000].into_iter().enumerate() {
            let memory = ctx.alloc(MemoryKind::Device, 2 * most).unwrap();
            memory.write(0, &pattern(ctx.rank(), n, most)).unwrap();
            let words = ctx.gpu().alloc(MemoryKind::Pinned, 16).unwrap();
            let (len, offset) = (words.word64(0).unwrap(), words.word64(8).unwrap());
            let data = [memory.slice(0, most).unwrap()];
            let into = memory.slice(most, most).unwrap();
            let exchange = |bytes, at: Option<u64>| {
                len.store(bytes).unwrap();
                offset.store(at.unwrap_or(0)).unwrap();
                let size = SizeSource::Word {
                    len: &len,
                    offset: at.map(|_| &offset),
                };
                let recv = ctx.irecv_on(&stream, peer, 2, &into).unwrap();
                let send = SendOp::new(peer, 2, &data).size(size).on(&stream);
                let send = ctx.post_send(&send).unwrap();
                recv.wait_on(&stream).unwrap();
                // A request that has failed already is refused here.
                if at.is_some() {
                    send.wait_on(&stream).unwrap();
                }
                assert!(stream.synchronize(LIMIT).unwrap());
                (recv.wait(LIMIT), send.wait(LIMIT))
            };
            for (bytes, at) in [(10, 100), (0, 0), (most as u64, 0), (most as u64 - 7, 7)] {
                let (received, sent) = exchange(bytes, Some(at));
                assert_eq!(received.unwrap().len, bytes);
                sent.unwrap();
                let got = read(&memory, most, bytes as usize);
                assert_eq!(got, pattern(peer, n, most)[at as usize..][..bytes as usize]);
            }
            // Longer than declared: both sides fail, and later messages succeed.
            let (received, sent) = exchange(most as u64 + 1, None);
            assert_eq!(received.unwrap_err().kind(), Kind::Truncated);
            let e = sent.unwrap_err();
            assert!(e.status().is_some(), "{e}");
        }
    });
}

/// The ready word of the next receive in the slot is written only after the work that waits for the
/// sender.
#[test]
fn sender_gets_truncated_error_while_the_next_receive_of_the_slot_is_blocked() {
    let build = |builder: Builder| builder.depth(2);
    ranks_with(2, build, |ctx| {
        const LONG: usize = 300_000;
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 21).unwrap();
        let small = |at: usize| memory.slice(64 * at, 64).unwrap();
        let long = |at: usize| memory.slice(at << 19, LONG).unwrap();
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
            // Stream b waits behind stream a, which waits for a message that was sent after the
            // truncated one.
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
        let memory = ctx.alloc(MemoryKind::Pinned, 1 << 19).unwrap();
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
fn number_of_tags_is_unlimited() {
    let build = |builder: Builder| builder.channels(8);
    ranks_with(2, build, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        for tag in 0..100 {
            memory.write(0, &pattern(ctx.rank(), tag, 8)).unwrap();
            let (data, into) = (memory.slice(0, 8).unwrap(), memory.slice(8, 8).unwrap());
            // Earlier tags are used again, and their numbers restart.
            for tag in [tag as u32, tag as u32 % 7 + 1000] {
                let recv = ctx.irecv_on(&stream, peer, tag, &into).unwrap();
                let send = ctx.isend_on(&stream, peer, tag, &data).unwrap();
                recv.wait_on(&stream).unwrap();
                send.wait_on(&stream).unwrap();
                assert_eq!(recv.wait(LIMIT).unwrap().tag, tag);
                send.wait(LIMIT).unwrap();
            }
            assert_eq!(read(&memory, 8, 8), pattern(peer, tag, 8));
        }
    });
}

#[test]
fn buffers_and_raw_addresses_carry_messages() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.adopt_vec(pattern(ctx.rank(), 0, 5000)).unwrap();
        let mut into = vec![0u8; 6000];
        let at = gdsync::gpu::DevicePtr(into.as_mut_ptr() as u64 + 500);
        // SAFETY: `into` lives until the end, and no code uses it before the message has arrived.
        let slice = unsafe { ctx.slice_at(at, 5000) }.unwrap();
        let recv = ctx.irecv(peer, 1, &slice).unwrap();
        let send = ctx.isend(peer, 1, &memory.all()).unwrap();
        mp::wait_all(&[send, recv], LIMIT).unwrap();
        assert_eq!(into[500..5500], pattern(peer, 0, 5000));
        assert!(into[..500].iter().chain(&into[5500..]).all(|b| *b == 0));
        // The context finds registered memory again, for any part of it.
        let inner = gdsync::gpu::DevicePtr(memory.region().addr().0 + 10);
        // SAFETY: the address is in memory on which a handle is held.
        let again = unsafe { ctx.slice_at(inner, 100) }.unwrap();
        assert_eq!((again.offset(), again.len()), (10, 100));
        drop((again, slice));
        // The buffer is returned once no request uses it.
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

/// A stream that is late for its wait finds the word of its own request.
#[test]
fn words_of_a_request_stay_valid_until_the_stream_has_read_them() {
    ranks(1, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let (first, late) = (ctx.gpu().stream().unwrap(), ctx.gpu().stream().unwrap());
        let gate = Gate::new(ctx.gpu());
        gate.hold(&late);
        let (data, into) = (memory.slice(0, 8).unwrap(), memory.slice(8, 8).unwrap());
        let recv = ctx.irecv_on(&first, 0, 1, &into).unwrap();
        recv.wait_on(&first).unwrap();
        recv.wait_on(&late).unwrap();
        ctx.isend(0, 1, &data).unwrap().wait(LIMIT).unwrap();
        assert!(first.synchronize(LIMIT).unwrap());
        recv.wait(LIMIT).unwrap();
        drop(recv);
        // Requests that are never done take the places of those that are done.
        let receive = |tag| ctx.irecv(Source::Any, tag, &into).unwrap();
        let open: Vec<_> = (2..600).map(receive).collect();
        gate.open();
        assert!(late.synchronize(LIMIT).unwrap());
        drop(open);
    });
}

/// The answers of receives that report nothing do not become so old that they look new.
#[test]
fn long_message_is_received_after_any_number_of_short_ones() {
    let build = |builder: Builder| builder.eager_limit(64).depth(64);
    for on_stream in [false, true] {
        ranks_with(2, build, move |ctx| {
            const SHORT: usize = 40_000;
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Pinned, 4096).unwrap();
            let short = memory.slice(0, 8).unwrap();
            let long = memory.slice(1024, 1000).unwrap();
            let into = memory.slice(2048, 1000).unwrap();
            memory.write(1024, &pattern(ctx.rank(), 0, 1000)).unwrap();
            for i in 0..=SHORT {
                let [data, room] = match i < SHORT {
                    true => [&short, &short],
                    false => [&long, &into],
                };
                match (ctx.rank(), on_stream) {
                    (0, true) => drop(ctx.isend_on(&stream, peer, 1, data).unwrap()),
                    (0, false) => drop(ctx.isend(peer, 1, data).unwrap().wait(LIMIT).unwrap()),
                    (_, true) => {
                        let recv = ctx.irecv_on(&stream, peer, 1, room).unwrap();
                        recv.wait_on(&stream).unwrap();
                    }
                    (_, false) => drop(ctx.irecv(peer, 1, room).unwrap().wait(LIMIT).unwrap()),
                }
            }
            assert!(stream.synchronize(LIMIT).unwrap());
            if ctx.rank() == 1 {
                assert_eq!(read(&memory, 2048, 1000), pattern(0, 0, 1000));
            }
            assert_eq!(ctx.error(), None);
        });
    }
}

#[test]
fn dropped_message_number_is_reported_to_its_match() {
    ranks(2, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 64 << 10).unwrap();
        for len in [8, 20_000] {
            let tag = len as u32;
            let [data, into] = [0, 32 << 10].map(|at| [memory.slice(at, len).unwrap()]);
            if ctx.rank() == 0 {
                let send = SendOp::new(peer, tag, &data).on(&stream);
                let [dropped, next] = [(); 2].map(|()| ctx.prepare_send(&send).unwrap());
                drop(dropped);
                next.post().unwrap();
                // In the other direction: a receive that is dropped consumes its message.
                let recv = RecvOp::new(peer, tag, &into).on(&stream);
                let [dropped, second] = [(); 2].map(|()| ctx.prepare_recv(&recv).unwrap());
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
                fails(&lost);
            }
        }
    });
}

#[test]
fn memory_of_another_context_is_refused_at_once() {
    ranks(1, |ctx| {
        let gpu = ctx.gpu().clone();
        let job = mp::bootstrap::Local::ranks(1).remove(0);
        let other = Context::builder().bootstrap(job).gpu(&gpu);
        let other = other.build().unwrap();
        let memory = other.alloc(MemoryKind::Pinned, 64).unwrap();
        let memory = memory.all();
        for request in [ctx.isend(0, 1, &memory), ctx.irecv(0, 1, &memory)] {
            let e = request.unwrap_err();
            assert_eq!(e.kind(), Kind::Invalid, "{e}");
        }
    });
}

#[test]
fn timeouts_up_to_the_longest_duration_are_accepted() {
    const MANY: usize = 10;
    let build = |b: Builder| b.timeout(Duration::MAX).watchdog(Duration::MAX).depth(2);
    ranks_with(2, build, |ctx| {
        let peer = 1 - ctx.rank();
        let memory = ctx.alloc(MemoryKind::Pinned, 64 * MANY).unwrap();
        let slices = (0..MANY).map(|i| memory.slice(64 * i, 64).unwrap());
        // More receives than there are slots: they wait for a slot.
        let requests: Vec<_> = slices
            .map(|slice| match ctx.rank() {
                0 => ctx.isend(peer, 1, &slice).unwrap(),
                _ => ctx.irecv(peer, 1, &slice).unwrap(),
            })
            .collect();
        mp::wait_all(&requests, Duration::MAX).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        assert!(stream.synchronize(Duration::MAX).unwrap());
        ctx.close(Duration::MAX).unwrap();
    });
}
