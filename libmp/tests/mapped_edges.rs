//! Programs by mapped memory that once hung or lost their peer: late claims, launches of messages of
//! several lengths, streams that are nearly full, credits and lines of refused messages.
#[path = "common/sim.rs"]
mod sim;

use gdsync::Status;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{MemoryKind, Stream};
use mp::{
    Builder, Context, Full, Kind, PathChoice, Progress, Request, SendOp, SizeSource, Slice, Source,
};
use sim::gate::Gate;
use sim::{LIMIT, Rank, SMALL, millis, play, recv, recv_on, secs, send, slice};

fn mapped(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc).timeout(secs(5))
}

const TAG: u32 = 1;
const LATE: u32 = 50;

/// Two streams wait for one receive from any rank, the second one once it is matched. The first stream waits
/// for the word in host memory, so the kernel of the second one may not end the receive in device memory.
/// With `same`, one stream waits twice, and may not wait for a kernel behind its own wait.
fn any_rank_waited_for_twice(same: bool, all: bool) {
    play(1, 2, move |rank| {
        let manual = rank.me == 1;
        let place = rank.place(SoftOptions::default(), !manual);
        let ctx = rank.open_at(&place, |b| match manual {
            true => mapped(b).progress(Progress::Manual),
            false => mapped(b),
        });
        let [a, b] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        if rank.me == 1 {
            for _ in 0..2 {
                let sent = ctx.isend_on(&a, 0, TAG, &slice(&ctx, SMALL)).unwrap();
                sent.wait(LIMIT).unwrap();
            }
            let n = rank.come();
            rank.progress_until(&ctx, "start", || rank.has_come(0, n));
            let long = slice(&ctx, 300_000);
            let sent = ctx.isend(0, TAG, &long).unwrap();
            rank.pass(millis(5));
            rank.barrier(); // announced
            rank.barrier(); // waited for
            sent.wait(LIMIT).unwrap();
            let n = rank.come();
            return rank.progress_until(&ctx, "end", || rank.has_come(0, n));
        }
        let into = slice(&ctx, 300_000);
        for stream in [&a, &b] {
            recv_on(&ctx, stream, 1, TAG, &into).wait(LIMIT).unwrap();
        }
        rank.barrier();
        let got = ctx.irecv(Source::Any, TAG, &into).unwrap();
        got.wait_on(&a).unwrap();
        rank.barrier(); // announced
        rank.pass(millis(5));
        let second = if same { &a } else { &b };
        match all {
            false => got.wait_on(second).unwrap(),
            true => {
                let to = slice(&ctx, SMALL);
                let list = [
                    got,
                    ctx.irecv_on(second, 0, 77, &to).unwrap(),
                    ctx.isend_on(second, 0, 77, &slice(&ctx, SMALL)).unwrap(),
                ];
                ctx.wait_all_on(second, &list).unwrap();
            }
        }
        rank.barrier(); // waited for
        let ends = [&b, &a].map(|stream| ctx.synchronize(stream, secs(20)).err());
        rank.barrier();
        assert!(ends.iter().all(Option::is_none), "{ends:?}");
    });
}

#[test]
fn two_streams_wait_for_a_receive_from_any_rank() {
    any_rank_waited_for_twice(false, false);
}

#[test]
fn two_streams_wait_for_a_receive_from_any_rank_by_wait_all() {
    any_rank_waited_for_twice(false, true);
}

#[test]
fn one_stream_waits_twice_for_a_receive_from_any_rank() {
    any_rank_waited_for_twice(true, false);
}

/// Rank 0 receives two messages of `len` bytes from rank 1 under each of these tags: from then on rank 1
/// has the rooms, and a device block.
fn warm(rank: &Rank, ctx: &Context, tags: impl Iterator<Item = u32>, len: usize) {
    let stream = ctx.gpu().stream().unwrap();
    for tag in tags {
        for _ in 0..2 {
            let memory = slice(ctx, len);
            match rank.me {
                0 => _ = recv_on(ctx, &stream, 1, tag, &memory).wait(LIMIT).unwrap(),
                _ => {
                    _ = ctx
                        .isend_on(&stream, 0, tag, &memory)
                        .unwrap()
                        .wait(LIMIT)
                        .unwrap()
                }
            }
        }
    }
    ctx.synchronize(&stream, LIMIT).unwrap();
}

/// Of two long messages in one launch, the shorter one has fewer shares than the launch has blocks, and
/// its receive is named in host memory: the other blocks have nothing to wait for.
#[test]
fn launch_of_messages_of_one_share_and_of_several() {
    for seed in 1..4 {
        play(seed, 2, |rank| {
            let ctx = rank.open(mapped);
            warm(rank, &ctx, 1..3, 10_000);
            let lens = [7_000, 100_000];
            let parts = lens.map(|len| [slice(&ctx, len)]);
            if rank.me == 0 {
                let got = [0, 1].map(|at| ctx.irecv(1, 1 + at as u32, &parts[at][0]).unwrap());
                for got in got {
                    got.wait(LIMIT).unwrap();
                }
                return rank.barrier();
            }
            let stream = ctx.gpu().stream().unwrap();
            let sent = [0, 1].map(|at| {
                ctx.prepare_send(&SendOp::new(0, 1 + at as u32, &parts[at]))
                    .unwrap()
            });
            ctx.post_all_on(&stream, &sent).unwrap();
            for sent in &sent {
                sent.wait(LIMIT).unwrap();
            }
            // What follows on the stream.
            let end = ctx.synchronize(&stream, secs(20));
            rank.barrier();
            end.unwrap();
        });
    }
}

/// Enqueues `count` submissions.
fn fill(ctx: &Context, stream: &Stream, count: usize) -> Slice {
    let memory = slice(ctx, 16);
    let region = memory.memory().region();
    let [to, from] = [0, 8].map(|at| region.span(at, 8).unwrap());
    for _ in 0..count {
        stream.copy(&to, &from).unwrap();
    }
    memory
}

const BOUND: usize = 40;

fn place(rank: &Rank) -> Context {
    let place = rank.place(SoftOptions::default().stream_bound(BOUND), true);
    rank.open_at(&place, |b| mapped(b).depth(2))
}

/// A stream of rank 1 whose lane to rank 0 is open.
fn open_stream(ctx: &Context) -> Stream {
    let stream = ctx.gpu().stream().unwrap();
    let sent = ctx.isend_on(&stream, 0, 60, &slice(ctx, SMALL)).unwrap();
    sent.wait(LIMIT).unwrap();
    stream
}

/// Makes the stream wait for a message of rank 0, with `left` free submissions behind. Returns what the
/// submissions use.
fn wait_and_fill(ctx: &Context, stream: &Stream, left: usize) -> (Request, Slice) {
    let late = recv_on(ctx, stream, 0, LATE, &slice(ctx, SMALL));
    (late, fill(ctx, stream, BOUND - left - 2))
}

/// A long message with a length word, on a stream that waits and has `left` free submissions. The check for
/// room counts the kernels that wait for the credit and for the receive.
fn late_length_with(left: usize, credit: bool) {
    play(1, 2, move |rank| {
        let ctx = place(rank);
        warm(rank, &ctx, 1..2, 10_000);
        if rank.me == 0 {
            rank.barrier();
            rank.pass(millis(20));
            send(&ctx, 1, LATE, SMALL);
            for _ in 0..if credit { 2 } else { 0 } {
                recv(&ctx, 1, TAG, SMALL);
            }
            recv(&ctx, 1, TAG, 200_000);
            return rank.barrier();
        }
        let stream = open_stream(&ctx);
        let sent: Vec<_> = (0..if credit { 2 } else { 0 })
            .map(|_| ctx.isend(0, TAG, &slice(&ctx, SMALL)).unwrap())
            .collect();
        let late = wait_and_fill(&ctx, &stream, left);
        rank.barrier();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let word = word.region().word64(0).unwrap();
        word.store(150_000).unwrap();
        let data = [slice(&ctx, 200_000)];
        let size = SizeSource::Word {
            len: &word,
            offset: None,
        };
        let long = ctx.post_send(&SendOp::new(0, TAG, &data).size(size).on(&stream));
        let long = long.and_then(|long| long.wait(LIMIT));
        drop((late, sent));
        long.unwrap();
        rank.barrier();
    });
}

#[test]
fn long_message_with_a_length_word_finds_no_room_in_the_middle() {
    let mut failed = Vec::new();
    for credit in [false, true] {
        for left in 3..14 {
            if std::panic::catch_unwind(|| late_length_with(left, credit)).is_err() {
                failed.push((left, credit));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// A send fails by its length word while its stream has no room behind it. The background work ends the
/// request, and does not wait for room.
#[test]
fn send_fails_while_its_stream_is_full() {
    play(1, 2, |rank| {
        let manual = rank.me == 0;
        let place = rank.place(SoftOptions::default().stream_bound(BOUND), !manual);
        let ctx = rank.open_at(&place, |b| match manual {
            true => mapped(b).progress(Progress::Manual),
            false => mapped(b),
        });
        if rank.me == 1 {
            let refused = ctx.irecv(0, TAG, &slice(&ctx, SMALL)).unwrap();
            assert_eq!(refused.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let gate = Gate::new(ctx.gpu());
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let len = &word.region().word64(0).unwrap();
        len.store(SMALL as u64 + 1).unwrap();
        let data = [slice(&ctx, SMALL)];
        let size = SizeSource::Word { len, offset: None };
        let sent = ctx.post_send(&SendOp::new(1, TAG, &data).size(size).on(&stream));
        gate.hold(&stream);
        rank.pass(millis(5)); // the kernel has run
        let mut memory = Vec::new();
        while stream.check_room(1).is_ok() {
            memory.push(fill(&ctx, &stream, 1));
        }
        let failed = sent.unwrap().wait(LIMIT).unwrap_err();
        assert_eq!(failed.status(), Some(Status::LOCAL_LENGTH));
        gate.open();
        assert!(stream.synchronize(LIMIT).unwrap());
        let n = rank.come();
        rank.progress_until(&ctx, "end", || rank.has_come(1, n));
    });
}

/// A receive is dropped while its stream, which does not wait, is full: the mark behind it is retried.
#[test]
fn receive_is_dropped_while_its_stream_is_full() {
    play(1, 2, |rank| {
        let ctx = place(rank);
        warm(rank, &ctx, 1..2, SMALL);
        if rank.me == 1 {
            rank.barrier();
            send(&ctx, 0, TAG, SMALL);
            return rank.barrier();
        }
        let stream = ctx.gpu().stream().unwrap();
        let into = slice(&ctx, SMALL);
        let received = ctx.irecv_on(&stream, 1, TAG, &into).unwrap();
        let memory = fill(&ctx, &stream, BOUND);
        // The engine's lock is held, so nothing would run the stream meanwhile.
        drop(received);
        rank.barrier();
        rank.barrier();
        assert!(stream.synchronize(LIMIT).unwrap());
        drop(memory);
    });
}

/// A stream takes in a receive that a stream without handles has posted. A claim that finds no room enqueues no
/// wait for that stream: each retry would take room.
#[test]
fn refused_claim_behind_a_stream_without_handles_takes_no_room() {
    play(1, 2, |rank| {
        let place = rank.place(SoftOptions::default().stream_bound(BOUND), true);
        let ctx = rank.open_at(&place, |b| mapped(b).full(Full::Fail));
        if rank.me == 1 {
            rank.barrier();
            send(&ctx, 0, TAG, SMALL);
            return rank.barrier();
        }
        let [first, second] = [(); 2].map(|()| Gate::new(ctx.gpu()));
        let poster = ctx.gpu().stream().unwrap();
        first.hold(&poster);
        let received = ctx.irecv_on(&poster, 1, TAG, &slice(&ctx, SMALL)).unwrap();
        drop(poster);
        let stream = ctx.gpu().stream().unwrap();
        second.hold(&stream);
        let mut memory = Vec::new();
        while stream.check_room(3).is_ok() {
            memory.push(fill(&ctx, &stream, 1));
        }
        for _ in 0..2 {
            let refused = received.wait_on(&stream).unwrap_err();
            assert_eq!(refused.kind(), Kind::QueueFull);
        }
        stream.check_room(1).unwrap();
        first.open();
        second.open();
        assert!(stream.synchronize(LIMIT).unwrap());
        rank.barrier();
        received.wait_on(&stream).unwrap();
        received.wait(LIMIT).unwrap();
        rank.barrier();
    });
}

/// One call posts messages of two segments, each of which waits for its credit, and so has two launches.
fn credits_in_one_call(left: usize) {
    const TAGS: u32 = 6;
    play(1, 2, move |rank| {
        let ctx = place(rank);
        warm(rank, &ctx, 1..TAGS + 1, SMALL);
        if rank.me == 0 {
            rank.barrier();
            rank.pass(millis(20));
            send(&ctx, 1, LATE, SMALL);
            for tag in 1..TAGS + 1 {
                for _ in 0..3 {
                    recv(&ctx, 1, tag, 2 * SMALL);
                }
            }
            return rank.barrier();
        }
        let stream = open_stream(&ctx);
        let sent: Vec<_> = (2..2 * TAGS + 2)
            .map(|i| ctx.isend(0, i / 2, &slice(&ctx, SMALL)).unwrap())
            .collect();
        let late = wait_and_fill(&ctx, &stream, left);
        rank.barrier();
        let data = [slice(&ctx, SMALL), slice(&ctx, SMALL)];
        let all: Vec<_> = (1..TAGS + 1)
            .map(|tag| ctx.prepare_send(&SendOp::new(0, tag, &data)).unwrap())
            .collect();
        let posted = ctx.post_all_on(&stream, &all);
        posted.unwrap();
        for sent in all.iter().chain(&sent) {
            sent.wait(LIMIT).unwrap();
        }
        drop(late);
        rank.barrier();
    });
}

#[test]
fn call_of_messages_that_wait_for_credit_finds_no_room_in_the_middle() {
    let lefts =
        std::env::var("LEFT").map_or(3..26, |n| n.parse().map(|n: usize| n..n + 1).unwrap());
    let failed: Vec<_> = lefts
        .filter(|left| std::panic::catch_unwind(|| credits_in_one_call(*left)).is_err())
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// A message that the CPU has taken in is in one run of credits with one that a kernel waits for; its credit
/// is not held back until that one is taken. One call of the sender has both that one and a later message,
/// which waits for the credit and goes in front.
#[test]
fn credit_of_a_taken_message_waits_for_a_later_message() {
    let failed: Vec<_> = (0..2)
        .filter(|extra| std::panic::catch_unwind(|| held_credit(*extra)).is_err())
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

/// `extra`: messages before, by the CPU.
fn held_credit(extra: usize) {
    play(1, 2, move |rank| {
        let ctx = rank.open(|b| mapped(b).depth(4));
        let stream = ctx.gpu().stream().unwrap();
        warm(rank, &ctx, 1..2, 10_000);
        for _ in 0..extra {
            match rank.me {
                0 => recv(&ctx, 1, TAG, 10_000),
                _ => send(&ctx, 0, TAG, SMALL),
            }
        }
        rank.pass(millis(20));
        rank.barrier();
        if rank.me == 0 {
            // One message by the CPU, the next one by a stream.
            let into: Vec<_> = (0..5).map(|_| slice(&ctx, 10_000)).collect();
            let first = ctx.irecv(1, TAG, &into[0]).unwrap();
            let next = ctx.irecv_on(&stream, 1, TAG, &into[1]).unwrap();
            first.wait(LIMIT).unwrap();
            next.wait_on(&stream).unwrap();
            let rest: Vec<_> = (2..5)
                .map(|at| ctx.irecv_on(&stream, 1, TAG, &into[at]).unwrap())
                .collect();
            for got in &rest {
                got.wait_on(&stream).unwrap();
            }
            let end = ctx.synchronize(&stream, LIMIT);
            rank.barrier();
            return end.unwrap();
        }
        let half = slice(&ctx, 5_000);
        let long = [half.clone(), half];
        let short = [slice(&ctx, SMALL)];
        drop(ctx.isend(0, TAG, &short[0]).unwrap());
        let all: Vec<_> = (0..4)
            .map(|at| {
                let parts = if at == 0 { &long[..] } else { &short[..] };
                ctx.prepare_send(&SendOp::new(0, TAG, parts)).unwrap()
            })
            .collect();
        ctx.post_all_on(&stream, &all).unwrap();
        let end = ctx.synchronize(&stream, LIMIT);
        rank.barrier();
        end.unwrap();
    });
}

/// A message that is longer than its receive is refused while its kernel may still write its lines. A kernel
/// of another stream then writes the next message of the slot, whose lines no late line may replace.
#[test]
fn lines_of_a_refused_message_replace_those_of_the_next_one() {
    use gdsync::gpu::soft::Weak;
    const LEN: usize = 6000;
    let failed: Vec<u64> = (0..30)
        .filter(|seed| {
            let seed = *seed;
            let run = || {
                play(seed, 2, move |rank| {
                    let options =
                        SoftOptions::default().weak(Weak::seeded(2 * seed + u64::from(rank.me)));
                    let place = rank.place(options, true);
                    let ctx = rank.open_at(&place, |b| mapped(b).depth(2).eager_limit(8192));
                    let streams = [(); 2].map(|()| ctx.gpu().stream().unwrap());
                    warm(rank, &ctx, 1..2, LEN);
                    let (short, long) = (slice(&ctx, SMALL), slice(&ctx, LEN));
                    for _ in 0..20 {
                        // Too long; short; whole; short.
                        for (at, len) in [(0, LEN), (0, SMALL), (1, LEN), (1, SMALL)] {
                            let room = if at == 0 { &short } else { &long };
                            match rank.me {
                                0 => {
                                    let got = ctx.irecv_on(&streams[0], 1, TAG, room).unwrap();
                                    got.wait_on(&streams[0]).unwrap();
                                    let end = got.wait(LIMIT);
                                    assert!(end.is_ok() || at == 0 && len == LEN, "{end:?}");
                                }
                                _ => {
                                    let data = long.memory().slice(0, len).unwrap();
                                    drop(ctx.isend_on(&streams[at], 0, TAG, &data).unwrap());
                                }
                            }
                        }
                    }
                    for stream in &streams {
                        let _ = ctx.synchronize(stream, LIMIT);
                    }
                    rank.barrier();
                })
            };
            std::panic::catch_unwind(run).is_err()
        })
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}
