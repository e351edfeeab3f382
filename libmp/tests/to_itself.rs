//! Messages of a rank to itself, by `path/copy`: refusals, waits of other streams, memory that is
//! returned, and puts of the CPU without a waiting request.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::gate::Gate;
use common::*;
use gdsync::gpu::{Condition, MemoryKind};
use gdsync::rdma::{Descriptor, post_on};
use mp::{Progress, RecvOp, SendOp};

/// The error of a stream that cannot wait because others do.
const TOO_MANY_WAITS: mp::Kind = mp::Kind::Gdsync(gdsync::Kind::TooManyWaits);

/// A stream of another GPU is refused, as for messages to other ranks.
#[test]
fn stream_of_another_gpu_is_refused() {
    ranks_with(
        1,
        |b| b,
        |ctx| {
            let other = gdsync::Gpu::soft().unwrap();
            let stream = other.stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
            let all = memory.all();
            let posted = [
                ctx.isend_on(&stream, 0, 1, &all),
                ctx.irecv_on(&stream, 0, 1, &all),
                ctx.irecv_on(&stream, mp::Source::Any, 1, &all),
            ];
            for request in posted {
                let e = request.map(drop).unwrap_err();
                assert_eq!(e.kind(), mp::Kind::Gdsync(gdsync::Kind::Foreign), "{e}");
            }
        },
    );
}

/// A receive by the CPU that is posted behind a long message of the CPU: no request waits for its
/// ready word.
fn ready_word(bursts: usize, short: usize, background: bool) {
    let progress = if background {
        Progress::Background
    } else {
        Progress::Manual
    };
    ranks_with(
        1,
        move |b| b.progress(progress),
        move |ctx| {
            let len = bursts * (4 << 20) - short;
            let [a, b] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            let [from, into] = [0, 1].map(|_| ctx.alloc(MemoryKind::Pinned, len).unwrap());
            let small = 64 << 10;
            let [from2, into2] = [0, 1].map(|_| ctx.alloc(MemoryKind::Pinned, small).unwrap());
            // All connections are open.
            for tag in [1, 2] {
                let r = ctx
                    .irecv_on(&b, 0, tag, &into2.slice(0, 8).unwrap())
                    .unwrap();
                let s = ctx
                    .isend_on(&a, 0, tag, &from2.slice(0, 8).unwrap())
                    .unwrap();
                mp::wait_all(&[r, s], LIMIT).unwrap();
            }
            let r1 = ctx.irecv_on(&b, 0, 1, &into.all()).unwrap();
            ctx.synchronize(&b, LIMIT).unwrap();
            // The earlier credits are written.
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(20) {
                ctx.progress();
            }
            let s1 = ctx.isend(0, 1, &from.all()).unwrap();
            let r2 = ctx.irecv(0, 2, &into2.all()).unwrap();
            let s2 = ctx.isend_on(&a, 0, 2, &from2.all()).unwrap();
            s1.wait(LIMIT).unwrap();
            // Nothing blocks the second message.
            let done = ctx.synchronize(&a, LIMIT);
            assert!(done.is_ok(), "{done:?}");
            r1.wait_on(&b).unwrap();
            mp::wait_all(&[r1, r2, s2], LIMIT).unwrap();
        },
    );
}

#[test]
fn ready_word_is_put_behind_a_long_message_with_manual_progress() {
    ready_word(5, 16, false);
}

#[test]
fn ready_word_is_put_behind_a_long_message_with_background_progress() {
    ready_word(5, 16, true);
}

/// Pieces of one memory, at most 8 KiB each.
fn pieces(ctx: &mp::Context) -> impl Fn(usize, usize) -> mp::Slice {
    let memory = ctx.alloc(MemoryKind::Pinned, 1 << 18).unwrap();
    move |i, len| memory.slice(i << 13, len).unwrap()
}

fn idle(stream: &gdsync::Stream) {
    assert!(stream.synchronize(LIMIT).unwrap());
}

fn progress_for_a_while(ctx: &mp::Context) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        ctx.progress();
    }
}

/// A round of the CPU ends behind the first of the two words of a message. Streams take that
/// message and put the next one into its slot before the next round.
#[test]
fn round_of_the_cpu_does_not_overwrite_the_word_of_a_later_message() {
    ranks_with(
        1,
        |b| b.progress(Progress::Manual).depth(2).eager_limit(1024),
        |ctx| {
            let [a, b] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            // Two steps of 64 KiB: this message, its two words, 8 bytes and their first word.
            let len = 2 * (64 << 10) - 32;
            let [from, into] = [0, 1].map(|_| ctx.alloc(MemoryKind::Pinned, len).unwrap());
            let piece = pieces(&ctx);
            for tag in [1, 2] {
                let r = ctx.irecv_on(&b, 0, tag, &piece(0, 8)).unwrap();
                r.wait_on(&b).unwrap();
                let s = ctx.isend_on(&a, 0, tag, &piece(1, 8)).unwrap();
                mp::wait_all(&[r, s], LIMIT).unwrap();
            }
            progress_for_a_while(&ctx);
            let mut all = vec![ctx.irecv(0, 1, &into.all()).unwrap()];
            all.push(ctx.isend(0, 1, &from.all()).unwrap());
            let r = ctx.irecv_on(&b, 0, 2, &piece(2, 8)).unwrap();
            r.wait_on(&b).unwrap();
            all.extend([r, ctx.isend(0, 2, &piece(3, 8)).unwrap()]);
            idle(&b);
            let r = ctx.irecv_on(&b, 0, 2, &piece(4, 8)).unwrap();
            r.wait_on(&b).unwrap();
            all.extend([r, ctx.isend_on(&a, 0, 2, &piece(5, 8)).unwrap()]);
            let r = ctx.irecv_on(&b, 0, 2, &piece(6, 4096)).unwrap();
            let gate = Gate::new(ctx.gpu());
            gate.hold(&b);
            r.wait_on(&b).unwrap();
            all.extend([r, ctx.isend_on(&a, 0, 2, &piece(7, 4096)).unwrap()]);
            idle(&a);
            ctx.progress();
            gate.open();
            for request in all {
                request.wait(LIMIT).unwrap();
            }
        },
    );
}

/// A receive refuses a long message, and the next receive in its slot releases both streams: that
/// of the refused message and that of the next one.
#[test]
fn refused_message_leaves_the_stamp_of_the_next_message_in_its_slot() {
    for swapped in [false, true] {
        for len in [32 << 10, 64 << 20] {
            refused_before(swapped, len);
        }
    }
}

fn refused_before(swapped: bool, len: usize) {
    ranks_with(
        1,
        |b| b.progress(Progress::Manual).depth(2).eager_limit(1024),
        move |ctx| {
            let [mut refused, mut next, taker, other] = [0; 4].map(|_| ctx.gpu().stream().unwrap());
            if swapped {
                std::mem::swap(&mut refused, &mut next);
            }
            let [from, into] = [0, 1].map(|_| ctx.alloc(MemoryKind::Pinned, len).unwrap());
            let piece = pieces(&ctx);
            for stream in [&refused, &next, &other, &other] {
                let r = ctx.irecv_on(&taker, 0, 2, &piece(0, 8)).unwrap();
                r.wait_on(&taker).unwrap();
                let s = ctx.isend_on(stream, 0, 2, &piece(1, 8)).unwrap();
                mp::wait_all(&[r, s], LIMIT).unwrap();
            }
            progress_for_a_while(&ctx);
            let take = |slice: &mp::Slice| {
                let receive = ctx.irecv_on(&taker, 0, 2, slice).unwrap();
                receive.wait_on(&taker).unwrap();
                receive
            };
            let _refused = ctx.isend_on(&refused, 0, 2, &piece(2, 4096)).unwrap();
            let _short = take(&piece(3, 8));
            idle(&taker);
            let r1 = take(&piece(4, 8));
            let s1 = ctx.isend_on(&other, 0, 2, &piece(5, 8)).unwrap();
            idle(&taker);
            let s2 = ctx.isend_on(&next, 0, 2, &from.all()).unwrap();
            let r2 = take(&into.all());
            for stream in [&refused, &next, &taker] {
                idle(stream);
            }
            for request in [r1, s1, s2, r2] {
                request.wait(LIMIT).unwrap();
            }
        },
    );
}

/// The stream of a send reaches its kernel when this rank was given up and the send has ended.
#[test]
fn kernel_of_a_failed_send_does_not_end_a_later_request() {
    ranks_with(
        2,
        |b| b.eager_limit(1024),
        |ctx| {
            let memory = ctx.alloc(MemoryKind::Pinned, 1 << 16).unwrap();
            let small = |i: usize| memory.slice(i * 64, 8).unwrap();
            let large = memory.slice(1 << 15, 4096).unwrap();
            let tags = [2, 3, 4, 5];
            if ctx.rank() == 1 {
                for tag in tags {
                    ctx.isend(0, tag, &small(0)).unwrap().wait(LIMIT).unwrap();
                }
                ctx.irecv(0, 20, &small(1)).unwrap().wait(LIMIT).unwrap();
                for tag in tags {
                    ctx.isend(0, tag, &small(0)).unwrap().wait(LIMIT).unwrap();
                }
                return;
            }
            let [a, b] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
            for tag in tags {
                let r = ctx.irecv(1, tag, &small(0)).unwrap();
                r.wait_on(&b).unwrap();
                r.wait(LIMIT).unwrap();
            }
            for tag in [1, 9] {
                let r = ctx.irecv(0, tag, &small(0)).unwrap();
                let s = ctx.isend_on(&a, 0, tag, &small(1)).unwrap();
                mp::wait_all(&[r, s], LIMIT).unwrap();
            }
            let gate = Gate::new(ctx.gpu());
            gate.hold(&a);
            let s = ctx.isend_on(&a, 0, 1, &large).unwrap();
            let none = [small(2)];
            let late = ctx
                .post_recv(&RecvOp::new(0, 9, &none).timeout(Duration::from_millis(30)))
                .unwrap();
            assert!(late.wait(LIMIT).is_err() && s.wait(LIMIT).is_err());
            // Later requests, of which one would use the words of the send.
            drop((s, late));
            let receives = tags.map(|tag| {
                let r = ctx.irecv(1, tag, &small(3)).unwrap();
                r.wait_on(&b).unwrap();
                r
            });
            gate.open();
            assert!(a.synchronize(LIMIT).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            ctx.isend(1, 20, &small(4)).unwrap().wait(LIMIT).unwrap();
            for r in receives {
                r.wait(LIMIT).unwrap();
            }
        },
    );
}

/// Words have 16 bits of a message's number, and refused messages store no word of arrival.
#[test]
fn receive_waits_for_its_message_after_refused_messages_in_many_laps() {
    ranks_with(
        1,
        |b| b.depth(2).eager_limit(64),
        |ctx| {
            let piece = pieces(&ctx);
            for i in 0..33_000 {
                let r = ctx.irecv(0, 1, &piece(0, 8)).unwrap();
                let s = ctx.isend(0, 1, &piece(1, 128)).unwrap();
                let ended = [r.wait(LIMIT), s.wait(LIMIT)];
                let long = |e: &mp::Error| e.kind() == mp::Kind::Truncated;
                assert!(ended.iter().all(|e| e.as_ref().is_err_and(long)), "{i}");
            }
            for from in [mp::Source::Rank(0), mp::Source::Any] {
                let r = ctx.irecv(from, 1, &piece(2, 128)).unwrap();
                // The background work looks for the message.
                std::thread::sleep(Duration::from_millis(20));
                let s = ctx.isend(0, 1, &piece(3, 128)).unwrap();
                mp::wait_all(&[r, s], LIMIT).unwrap();
            }
        },
    );
}

/// Messages of all lengths, by the CPU and by streams, at once.
#[test]
fn messages_of_all_lengths_and_posters_arrive() {
    ranks_with(
        1,
        |b| b.depth(4),
        |ctx| {
            // As many as may wait at a time.
            let streams: Vec<_> = (0..6).map(|_| ctx.gpu().stream().unwrap()).collect();
            let lens = [0usize, 1, 8, 100, 4095, 4096, 4097, 70_000, 300_001];
            let room = 300_001;
            let from = ctx.alloc(MemoryKind::Device, room).unwrap();
            let data = pattern(0, 1, room);
            from.write(0, &data).unwrap();
            for round in 0..40usize {
                let mut all = Vec::new();
                let mut into = Vec::new();
                for i in 0..18usize {
                    let len = lens[(i * 7 + round) % lens.len()];
                    let tag = (i % 5) as u32;
                    let memory = ctx
                        .alloc(
                            if i % 2 == 0 {
                                MemoryKind::Pinned
                            } else {
                                MemoryKind::Device
                            },
                            len.max(1),
                        )
                        .unwrap();
                    let stream = &streams[(i + round) % streams.len()];
                    let slice = memory.slice(0, len).unwrap();
                    all.push(match i % 3 {
                        0 => ctx.irecv(0, tag, &slice).unwrap(),
                        1 => ctx.irecv_on(stream, 0, tag, &slice).unwrap(),
                        _ => ctx.irecv(mp::Source::Any, 100 + tag, &slice).unwrap(),
                    });
                    let tag = if i % 3 == 2 { 100 + tag } else { tag };
                    let source = from.slice(0, len).unwrap();
                    let other = &streams[(i * 3 + round) % streams.len()];
                    all.push(match i % 4 {
                        0 | 1 => ctx.isend(0, tag, &source).unwrap(),
                        2 => ctx.isend_on(other, 0, tag, &source).unwrap(),
                        _ => ctx
                            .post_send(
                                &SendOp::new(0, tag, std::slice::from_ref(&source)).on(other),
                            )
                            .unwrap(),
                    });
                    into.push((memory, len));
                }
                mp::wait_all(&all, LIMIT).unwrap();
                for (memory, len) in &into {
                    assert!(
                        read(memory, 0, *len) == data[..*len],
                        "round {round}, {len} bytes"
                    );
                }
            }
        },
    );
}

/// A context is dropped with open messages to itself: streams continue, and nothing remains.
#[test]
fn streams_pass_when_the_context_is_dropped_with_messages_open() {
    for len in [64usize, 64 << 10, 24 << 20] {
        for by_stream in [false, true] {
            let gpu = gpu();
            let ctx = mp::Context::builder()
                .bootstrap(mp::bootstrap::Local::ranks(1).remove(0))
                .gpu(&gpu)
                .build()
                .unwrap();
            let [a, b] = [0, 1].map(|_| gpu.stream().unwrap());
            let gate = gpu
                .alloc(MemoryKind::Pinned, 64)
                .unwrap()
                .word64(0)
                .unwrap();
            let memory = ctx.alloc(MemoryKind::Device, 2 * len).unwrap();
            let [from, into] = [0, 1].map(|i| memory.slice(i * len, len).unwrap());
            let r = ctx.irecv_on(&b, 0, 1, &into).unwrap();
            r.wait_on(&b).unwrap();
            let wait = Descriptor::wait_value(&gate, Condition::Geq, 1);
            let s = if by_stream {
                post_on(&a, &mut [], &[wait]).unwrap();
                ctx.isend_on(&a, 0, 1, &from).unwrap()
            } else {
                ctx.isend(0, 1, &from).unwrap()
            };
            let late = ctx.isend_on(&a, 0, 2, &from).unwrap();
            drop((r, s, late, from, into, memory));
            drop(ctx);
            if by_stream {
                gate.store(1).unwrap();
            }
            for stream in [&a, &b] {
                assert!(
                    stream.synchronize(Duration::from_secs(20)).unwrap(),
                    "{len} bytes, by_stream {by_stream}"
                );
            }
        }
    }
}

/// A buffer cannot be taken back while messages by streams are open.
#[test]
fn buffers_are_given_back_when_streams_have_passed() {
    ranks_with(
        1,
        |b| b,
        |ctx| {
            let a = ctx.gpu().stream().unwrap();
            let gate = ctx
                .gpu()
                .alloc(MemoryKind::Pinned, 64)
                .unwrap()
                .word64(0)
                .unwrap();
            for (turn, len) in [64usize, 64 << 10, 200 << 10]
                .into_iter()
                .cycle()
                .take(30)
                .enumerate()
            {
                let from = ctx
                    .adopt_vec(pattern(0, turn, len))
                    .map_err(|(_, e)| e)
                    .unwrap();
                let into = ctx.adopt_vec(vec![0; len]).map_err(|(_, e)| e).unwrap();
                let wait = Descriptor::wait_value(&gate, Condition::Geq, turn as u64 + 1);
                post_on(&a, &mut [], &[wait]).unwrap();
                let r = ctx.irecv(0, 1, &into.all()).unwrap();
                let s = ctx.isend_on(&a, 0, 1, &from.all()).unwrap();
                let (from, e) = from.into_vec(Duration::from_millis(3)).unwrap_err();
                assert!(
                    e.to_string().contains("hold") || e.to_string().contains("stream"),
                    "{e}"
                );
                let (into, _) = into.into_vec(Duration::from_millis(3)).unwrap_err();
                gate.store(turn as u64 + 1).unwrap();
                mp::wait_all(&[r, s], LIMIT).unwrap();
                let from = from.into_vec(LIMIT).map_err(|(_, e)| e).unwrap();
                let into = into.into_vec(LIMIT).map_err(|(_, e)| e).unwrap();
                assert!(from == into && from == pattern(0, turn, len), "turn {turn}");
            }
        },
    );
}

/// Prepared messages to itself on more streams than lanes, posted in any order, some dropped.
#[test]
fn prepared_messages_are_posted_in_any_order_or_dropped() {
    ranks_with(
        1,
        |b| b.depth(64),
        |ctx| {
            let streams: Vec<_> = (0..10).map(|_| ctx.gpu().stream().unwrap()).collect();
            let lens = [0usize, 5, 4096, 4097, 100_000];
            let from = ctx.alloc(MemoryKind::Device, 100_000).unwrap();
            let data = pattern(0, 5, 100_000);
            from.write(0, &data).unwrap();
            let mut seed = 11u64;
            let mut next = move |n: usize| {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (seed >> 33) as usize % n
            };
            for round in 0..150u32 {
                let count = 8;
                let mut sends = Vec::new();
                let mut receives = Vec::new();
                for i in 0..count {
                    let len = lens[next(lens.len())];
                    let tag = i as u32;
                    let source = from.slice(0, len).unwrap();
                    let op = SendOp::new(0, tag, std::slice::from_ref(&source));
                    let op = match next(4) {
                        0 => op,
                        _ => op.on(&streams[next(10)]),
                    };
                    sends.push(Some(ctx.prepare_send(&op).unwrap()));
                    let into = ctx.alloc(MemoryKind::Pinned, len.max(1)).unwrap();
                    let slice = into.slice(0, len).unwrap();
                    let receive = match next(2) {
                        0 => ctx.irecv(0, tag, &slice).unwrap(),
                        _ => ctx.irecv_on(&streams[next(10)], 0, tag, &slice).unwrap(),
                    };
                    receives.push((receive, into, len, tag));
                }
                let mut posted = Vec::new();
                let mut void = Vec::new();
                while sends.iter().any(Option::is_some) {
                    let at = next(count);
                    let Some(send) = sends[at].take() else {
                        continue;
                    };
                    if next(6) == 0 {
                        // Another request behind it, so that it cannot be cancelled.
                        let source = from.slice(0, 5).unwrap();
                        let behind = ctx.isend(0, at as u32, &source).unwrap();
                        drop(send);
                        let into = ctx.alloc(MemoryKind::Pinned, 5).unwrap();
                        let receive = ctx.irecv(0, at as u32, &into.all()).unwrap();
                        receives.push((receive, into, 5, at as u32 + 1000));
                        posted.push(behind);
                        void.push(at as u32);
                    } else {
                        let start = Instant::now();
                        while let Err(e) = send.post() {
                            assert!(e.kind() == TOO_MANY_WAITS && start.elapsed() < LIMIT, "{e}");
                        }
                        posted.push(send);
                    }
                }
                for (receive, into, len, tag) in receives {
                    let got = receive.wait(LIMIT);
                    if void.contains(&tag) {
                        assert!(got.is_err(), "round {round}, tag {tag}: {got:?}");
                        continue;
                    }
                    assert_eq!(got.unwrap().len, len as u64, "round {round}, tag {tag}");
                    assert!(
                        read(&into, 0, len) == data[..len],
                        "round {round}, tag {tag}, {len} bytes"
                    );
                }
                for send in posted {
                    send.wait(LIMIT).unwrap();
                }
            }
            let _ = ctx.take_error();
        },
    );
}

/// Other streams of the GPU take and leave wait slots while a long message to itself is enqueued:
/// it is refused whole, or taken whole.
#[test]
fn post_is_refused_whole_when_other_streams_take_the_wait_slots() {
    ranks_with(
        1,
        |b| b.full(mp::Full::Fail),
        |ctx| {
            let stop = AtomicBool::new(false);
            let gpu = ctx.gpu().clone();
            std::thread::scope(|scope| {
                for _ in 0..9 {
                    scope.spawn(|| {
                        let stream = gpu.stream().unwrap();
                        let gate = gpu
                            .alloc(MemoryKind::Pinned, 64)
                            .unwrap()
                            .word64(0)
                            .unwrap();
                        let mut n = 0;
                        while !stop.load(Ordering::Relaxed) {
                            n += 1;
                            let wait = Descriptor::wait_value(&gate, Condition::Geq, n);
                            let posted = post_on(&stream, &mut [], &[wait]);
                            std::thread::sleep(Duration::from_micros(200));
                            gate.store(n).unwrap();
                            if posted.is_err() {
                                std::thread::yield_now();
                            }
                        }
                        stream.synchronize(LIMIT).unwrap();
                    });
                }
                let a = ctx.gpu().stream().unwrap();
                let len = 8192;
                let [from, into] = [0, 1].map(|_| ctx.alloc(MemoryKind::Pinned, len).unwrap());
                let (mut refused, mut sent) = (0, 0);
                let start = Instant::now();
                let mut failed = None;
                while start.elapsed() < LIMIT && sent < 100 && failed.is_none() {
                    let Ok(r) = ctx.irecv(0, 1, &into.all()) else {
                        continue;
                    };
                    let s = loop {
                        match ctx.isend_on(&a, 0, 1, &from.all()) {
                            Ok(s) => break Some(s),
                            Err(e) if e.kind() == TOO_MANY_WAITS => refused += 1,
                            Err(e) => {
                                failed = Some(format!("{e}"));
                                break None;
                            }
                        }
                    };
                    let Some(s) = s else { break };
                    sent += 1;
                    if let Err(e) = mp::wait_all(&[s, r], LIMIT) {
                        failed = Some(format!("{e}"));
                    }
                }
                stop.store(true, Ordering::Relaxed);
                assert!(
                    failed.is_none(),
                    "{sent} sent, {refused} refused, {failed:?}"
                );
            });
        },
    );
}
