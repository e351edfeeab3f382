//! Zero-SM messages, on the threads and the GPU of the machine: which half is first, lengths, waits of
//! streams and of the CPU, drops, limits and refusals. `conformance` plays them under random schedules.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{pattern, ranks_with, read};
use gdsync::Stream;
use gdsync::gpu::MemoryKind;
use mp::{
    Builder, Context, Full, Kind, Memory, PathChoice, Progress, RecvOp, Request, SendOp,
    SizeSource, Slice, Source,
};

const LIMIT: Duration = Duration::from_secs(60);
const TAG: u32 = 7;
/// Lengths around the eager limit, which divides messages by slots from others.
const LENS: [usize; 8] = [0, 1, 8, 4095, 4096, 4097, 100_000, 1 << 20];

fn mapped(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc)
}

fn send(ctx: &Context, stream: &Stream, tag: u32, data: &Slice) -> Request {
    let data = std::slice::from_ref(data);
    let op = SendOp::new(1 - ctx.rank(), tag, data).on(stream);
    ctx.post_send(&op.zero_sm(true)).unwrap()
}

fn receive(ctx: &Context, stream: &Stream, tag: u32, into: &Slice) -> Request {
    let into = std::slice::from_ref(into);
    let op = RecvOp::new(1 - ctx.rank(), tag, into).on(stream);
    ctx.post_recv(&op.zero_sm(true)).unwrap()
}

/// Waits until the other rank has called this as often.
fn meet(ctx: &Context, word: &Memory) {
    let peer = 1 - ctx.rank();
    let one = word.slice(0, 1).unwrap();
    ctx.sendrecv((peer, 99, &one), (peer, 99, &one), LIMIT)
        .unwrap();
}

/// Which of the two halves of a message is posted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Send,
    Receive,
    Any,
}

/// The party that waits for the receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Own,
    OtherStream,
    Cpu,
}

#[test]
fn messages_of_all_lengths_arrive_whichever_half_is_first_and_whichever_party_waits() {
    ranks_with(2, mapped, |ctx| {
        let me = ctx.rank();
        let [stream, other] = [0; 2].map(|_| ctx.gpu().stream().unwrap());
        let memory = ctx.alloc(MemoryKind::Device, 1 << 20).unwrap();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let mut round = 0;
        for first in [First::Send, First::Receive, First::Any] {
            for waits in [Waits::Own, Waits::OtherStream, Waits::Cpu] {
                for len in LENS {
                    round += 1;
                    let slice = memory.slice(0, len).unwrap();
                    let sends = me == round % 2;
                    memory
                        .write(
                            0,
                            &if sends {
                                pattern(0, round as usize, len)
                            } else {
                                vec![0; len]
                            },
                        )
                        .unwrap();
                    if sends && first == First::Receive || !sends && first == First::Send {
                        meet(&ctx, &word);
                    }
                    let request = match sends {
                        true => send(&ctx, &stream, TAG, &slice),
                        false => receive(&ctx, &stream, TAG, &slice),
                    };
                    if sends && first == First::Send || !sends && first == First::Receive {
                        meet(&ctx, &word);
                    }
                    match waits {
                        Waits::Own => request.wait_on(&stream).unwrap(),
                        Waits::OtherStream => request.wait_on(&other).unwrap(),
                        Waits::Cpu => assert_eq!(request.wait(LIMIT).unwrap().len, len as u64),
                    }
                    ctx.synchronize(&stream, LIMIT).unwrap();
                    ctx.synchronize(&other, LIMIT).unwrap();
                    let case = format!("{first:?} {waits:?} {len}");
                    let done = request.wait(LIMIT).unwrap();
                    assert_eq!((done.len, done.tag), (len as u64, TAG), "{case}");
                    if !sends {
                        assert!(
                            read(&memory, 0, len) == pattern(0, round as usize, len),
                            "{case}"
                        );
                    }
                }
            }
        }
    });
}

/// A message is longer than its receive, whichever half is first: nothing is written, both ranks find the
/// failure, and later messages arrive.
#[test]
fn message_that_is_longer_than_its_receive_fails_on_both_ranks() {
    const ROOM: usize = 5;
    ranks_with(2, mapped, |ctx| {
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Device, 100_000).unwrap();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let sends = ctx.rank() == 0;
        let cases = [
            (First::Send, false),
            (First::Receive, false),
            (First::Send, true),
            (First::Receive, true),
        ];
        for (first, dropped) in cases {
            for len in [6, 4096, 4097, 100_000] {
                let case = format!("{first:?} {len}, dropped: {dropped}");
                if !sends {
                    memory.write(0, &[0xee; 64]).unwrap();
                }
                if sends == (first == First::Receive) {
                    meet(&ctx, &word);
                }
                let slice = memory.slice(0, if sends { len } else { ROOM }).unwrap();
                let request = match sends {
                    true => send(&ctx, &stream, TAG, &slice),
                    false => receive(&ctx, &stream, TAG, &slice),
                };
                if sends != (first == First::Receive) {
                    meet(&ctx, &word);
                }
                let _ = request.wait_on(&stream);
                if dropped {
                    drop(request);
                    assert!(
                        stream.synchronize(LIMIT).unwrap(),
                        "{case}: the stream waits"
                    );
                    meet(&ctx, &word);
                    continue;
                }
                let done = stream.synchronize(LIMIT).unwrap();
                assert!(done, "{case}: the stream waits");
                let late = sends && first == First::Send && len <= 4096;
                let mut waited = request.wait(LIMIT);
                if late && waited.is_ok() {
                    // As of other short messages, the failure is known later.
                    let host = ctx.gpu().host();
                    host.wait_until(Some(host.now() + LIMIT), &mut || {
                        waited = request.wait(LIMIT);
                        waited.is_err()
                    });
                }
                let e = waited.unwrap_err();
                assert_eq!(
                    (e.kind(), e.rank()),
                    (Kind::Truncated, Some(1 - ctx.rank())),
                    "{case}: {e}"
                );
                assert!(ctx.error().is_some(), "{case}");
                if !sends {
                    assert_eq!(read(&memory, 0, 64), [0xee; 64], "{case}");
                }
                // The channel continues.
                let slice = memory.slice(0, ROOM).unwrap();
                let request = match sends {
                    true => send(&ctx, &stream, TAG, &slice),
                    false => receive(&ctx, &stream, TAG, &slice),
                };
                request.wait(LIMIT).unwrap();
            }
        }
    });
}

/// Messages of which the receiver takes none in: their number is limited.
#[test]
fn sender_that_is_ahead_finds_its_queue_full_and_continues_when_messages_are_received() {
    const ENTRIES: usize = 256;
    let first = AtomicBool::new(true);
    let build = move |builder: Builder| match first.swap(false, Ordering::Relaxed) {
        true => mapped(builder).full(Full::Fail),
        false => mapped(builder),
    };
    ranks_with(2, build, |ctx| {
        let streams = [0; 2].map(|_| ctx.gpu().stream().unwrap());
        let memory = ctx.alloc(MemoryKind::Device, 8 * 2 * ENTRIES).unwrap();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let peer = 1 - ctx.rank();
        let slice = |i: usize| memory.slice(8 * i, 8).unwrap();
        if ctx.rank() == 0 {
            memory.write(0, &pattern(0, 0, 8 * 2 * ENTRIES)).unwrap();
            for i in 0..ENTRIES {
                drop(send(&ctx, &streams[0], TAG, &slice(i)));
            }
            let data = [slice(0)];
            let op = SendOp::new(peer, TAG, &data).on(&streams[0]).zero_sm(true);
            let e = ctx.post_send(&op).unwrap_err();
            assert_eq!(
                (e.kind(), e.limit(), e.rank()),
                (Kind::QueueFull, Some(256), Some(peer)),
                "{e}"
            );
            meet(&ctx, &word);
            meet(&ctx, &word);
            // Another stream uses the entries again.
            for i in ENTRIES..2 * ENTRIES {
                let data = [slice(i)];
                let op = SendOp::new(peer, TAG, &data).on(&streams[1]).zero_sm(true);
                let host = ctx.gpu().host();
                let mut sent = ctx.post_send(&op);
                host.wait_until(Some(host.now() + LIMIT), &mut || {
                    if sent.is_err() {
                        ctx.progress();
                        sent = ctx.post_send(&op);
                    }
                    sent.is_ok()
                });
                drop(sent.unwrap());
            }
        } else {
            meet(&ctx, &word);
            for round in 0..2 {
                for i in round * ENTRIES..(round + 1) * ENTRIES {
                    let request = receive(&ctx, &streams[round], TAG, &slice(i));
                    request.wait_on(&streams[1 - round]).unwrap();
                }
                for stream in &streams {
                    ctx.synchronize(stream, LIMIT).unwrap();
                }
                if round == 0 {
                    meet(&ctx, &word);
                }
            }
            assert!(read(&memory, 0, 8 * 2 * ENTRIES) == pattern(0, 0, 8 * 2 * ENTRIES));
        }
    });
}

#[test]
fn receives_that_are_dropped_without_a_wait_take_their_messages_in() {
    ranks_with(2, mapped, |ctx| {
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Device, 100_000).unwrap();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let sends = ctx.rank() == 0;
        for first in [First::Send, First::Receive] {
            // More short messages than there are slots.
            for len in [100_000; 3].into_iter().chain([64; 40]) {
                let slice = memory.slice(0, len).unwrap();
                if first == First::Receive && sends {
                    meet(&ctx, &word);
                }
                let request = match sends {
                    true => send(&ctx, &stream, TAG, &slice),
                    false => receive(&ctx, &stream, TAG, &slice),
                };
                if first == First::Receive && !sends {
                    meet(&ctx, &word);
                }
                match sends {
                    true => _ = request.wait(LIMIT).unwrap(),
                    false => drop(request),
                }
            }
        }
        // The last message has arrived before its receiver leaves.
        meet(&ctx, &word);
        ctx.close(LIMIT).unwrap();
        assert!(ctx.take_error().is_none());
    });
}

/// Messages of several tags in both directions, mixed with others of the same tags, in an order of waits that
/// differs from that of the messages.
#[test]
fn messages_of_several_tags_mix_with_others_and_are_waited_for_in_any_order() {
    const EACH: usize = 8;
    const TAGS: u32 = 3;
    ranks_with(2, mapped, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let [stream, other] = [0; 2].map(|_| ctx.gpu().stream().unwrap());
        let lens = [8, 5000, 0, 4096, 70_000, 1, 4097, 300];
        let mut rng = fastrand::Rng::with_seed(u64::from(me));
        for round in 0..10 {
            let mut receives = Vec::new();
            let mut sends = Vec::new();
            for tag in 0..TAGS {
                for i in 0..EACH {
                    let (len, zero_sm) = (lens[(i + round) % EACH], i % 3 != 0);
                    let n = (round * TAGS as usize + tag as usize) * EACH + i;
                    let into = ctx.alloc(MemoryKind::Device, len.max(1)).unwrap();
                    let out = ctx.alloc(MemoryKind::Device, len.max(1)).unwrap();
                    out.write(0, &pattern(me, n, len)).unwrap();
                    let [room, data] = [&into, &out].map(|memory| [memory.slice(0, len).unwrap()]);
                    let op = RecvOp::new(peer, tag, &room).on(&stream).zero_sm(zero_sm);
                    receives.push((ctx.post_recv(&op).unwrap(), into, n, len));
                    let op = SendOp::new(peer, tag, &data).on(&stream).zero_sm(zero_sm);
                    sends.push(ctx.post_send(&op).unwrap());
                }
            }
            rng.shuffle(&mut receives);
            let together = receives.split_off(receives.len() / 2);
            for (request, ..) in &receives {
                match rng.u8(0..3) {
                    0 => request.wait_on(&stream).unwrap(),
                    1 => request.wait_on(&other).unwrap(),
                    _ => _ = request.wait(LIMIT).unwrap(),
                }
            }
            let (requests, rest): (Vec<_>, Vec<_>) = together
                .into_iter()
                .map(|(request, into, n, len)| (request, (into, n, len)))
                .unzip();
            ctx.wait_all_on(&other, &requests).unwrap();
            ctx.wait_all_on(&other, &sends).unwrap();
            ctx.synchronize(&other, LIMIT).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            let done = receives.iter().map(|(_, into, n, len)| (into, *n, *len));
            for (into, n, len) in done.chain(rest.iter().map(|(into, n, len)| (into, *n, *len))) {
                assert!(
                    read(into, 0, len) == pattern(peer, n, len),
                    "rank {me}, message {n}"
                );
            }
            mp::wait_all(&requests, LIMIT).unwrap();
            mp::wait_all(&sends, LIMIT).unwrap();
        }
    });
}

/// The timelines have the copies and the kernels of streams.
#[test]
fn streams_run_no_kernel_for_zero_sm_messages() {
    for zero_sm in [true, false] {
        let name = format!("zero-sm-{zero_sm}-{}.json", std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let of_ranks = file.clone();
        let build = move |builder: Builder| mapped(builder).zero_sm(zero_sm).trace(&of_ranks);
        ranks_with(2, build, |ctx| {
            let peer = 1 - ctx.rank();
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Device, 20_000).unwrap();
            for len in [8, 10_000] {
                let [out, into] = [0, 10_000].map(|at| memory.slice(at, len).unwrap());
                ctx.sendrecv_on(&stream, (peer, 2, &out), (peer, 2, &into))
                    .unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
            }
        });
        for rank in ["0", "1"] {
            let file = file.with_extension(format!("{rank}.json"));
            let timeline = std::fs::read_to_string(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            let kernels = timeline.matches("mp_").count();
            assert_eq!(kernels == 0, zero_sm, "{timeline}");
            assert!(!zero_sm || timeline.contains("copy"), "{timeline}");
        }
    }
}

/// With the default of the context, all calls that name a rank of the host use zero-SM messages.
#[test]
fn default_of_the_context_applies_to_all_calls() {
    let build = |builder: Builder| mapped(builder).zero_sm(true);
    ranks_with(2, build, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Device, 20_000).unwrap();
        for len in [8, 10_000] {
            let [out, into] = [0, 10_000].map(|at| memory.slice(at, len).unwrap());
            ctx.sendrecv((peer, 2, &out), (peer, 2, &into), LIMIT)
                .unwrap();
        }
        for round in 0..4 {
            for len in [8, 10_000] {
                memory.write(0, &pattern(me, round, len)).unwrap();
                let [out, into] = [0, 10_000].map(|at| memory.slice(at, len).unwrap());
                let receive = ctx.irecv_on(&stream, peer, 1, &into).unwrap();
                let send = ctx.isend_on(&stream, peer, 1, &out).unwrap();
                receive.wait_on(&stream).unwrap();
                send.wait_on(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                assert!(read(&memory, 10_000, len) == pattern(peer, round, len));
                ctx.sendrecv_on(&stream, (peer, 2, &out), (peer, 2, &into))
                    .unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                ctx.sendrecv((peer, 2, &out), (peer, 2, &into), LIMIT)
                    .unwrap();
                let receive = ctx.irecv(peer, 3, &into).unwrap();
                ctx.isend(peer, 3, &out).unwrap().wait(LIMIT).unwrap();
                receive.wait(LIMIT).unwrap();
            }
        }
        let counts = ctx.stats();
        assert!(counts.by(mp::Path::Ipc).messages() >= 64);
        // The null rank, and this rank itself.
        let slice = memory.slice(0, 8).unwrap();
        ctx.isend_on(&stream, mp::NULL_RANK, 1, &slice)
            .unwrap()
            .wait(LIMIT)
            .unwrap();
        let receive = ctx.irecv(me, 1, &memory.slice(8, 8).unwrap()).unwrap();
        ctx.isend(me, 1, &slice).unwrap().wait(LIMIT).unwrap();
        receive.wait(LIMIT).unwrap();
    });
}

#[test]
fn what_cannot_be_a_zero_sm_message_is_refused_with_the_remedy() {
    ranks_with(2, mapped, |ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 256).unwrap();
        let one = [memory.slice(0, 8).unwrap()];
        let two = [memory.slice(0, 8).unwrap(), memory.slice(8, 8).unwrap()];
        let word = memory.region().word64(128).unwrap();
        let late = SizeSource::Word {
            len: &word,
            offset: None,
        };
        let own = ctx.adopt_vec(vec![0; 8192]).unwrap();
        let unshared = [own.all()];
        let send = |op: SendOp<'_>| ctx.post_send(&op.on(&stream).zero_sm(true)).map(drop);
        let receive = |op: RecvOp<'_>| ctx.post_recv(&op.on(&stream).zero_sm(true)).map(drop);
        let mut refused = vec![
            (
                "agree on it when it is posted",
                ctx.prepare_send(&SendOp::new(peer, 1, &one).on(&stream).zero_sm(true))
                    .map(drop),
            ),
            (
                "agree on it when it is posted",
                ctx.prepare_recv(&RecvOp::new(peer, 1, &one).zero_sm(true))
                    .map(drop),
            ),
            ("one piece", send(SendOp::new(peer, 1, &two))),
            ("one piece", send(SendOp::new(peer, 1, &one).size(late))),
            ("one piece", receive(RecvOp::new(peer, 1, &two))),
            ("name the rank", receive(RecvOp::new(Source::Any, 1, &one))),
            ("the rank itself", send(SendOp::new(ctx.rank(), 1, &one))),
            (
                "cannot map the memory",
                send(SendOp::new(peer, 1, &unshared)),
            ),
            (
                "cannot map the memory",
                receive(RecvOp::new(peer, 1, &unshared)),
            ),
        ];
        stream.begin_capture().unwrap();
        refused.push(("a graph has none", send(SendOp::new(peer, 1, &one))));
        drop(stream.end_capture().unwrap());
        for (why, result) in refused {
            let e = result.unwrap_err();
            assert_eq!(e.kind(), Kind::Unsupported, "{e}");
            let text = e.to_string();
            assert!(
                text.contains(why) && text.contains("zero_sm(false)"),
                "{why}: {e}"
            );
        }
        // Short messages from such memory need no mapping.
        let short = [own.slice(0, 8).unwrap()];
        let sent = ctx
            .post_send(&SendOp::new(peer, 1, &short).on(&stream).zero_sm(true))
            .unwrap();
        let received = ctx
            .post_recv(&RecvOp::new(peer, 1, &one).on(&stream).zero_sm(true))
            .unwrap();
        received.wait(LIMIT).unwrap();
        sent.wait(LIMIT).unwrap();
        assert!(received.cancel().is_err());
        assert!(format!("{received:?}").contains("ZeroSm"));
    });
}

#[test]
fn path_by_the_nic_is_refused() {
    let build = |builder: Builder| builder.path(PathChoice::Nic);
    ranks_with(2, build, |ctx| {
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let one = [memory.all()];
        let op = SendOp::new(1 - ctx.rank(), 1, &one)
            .on(&stream)
            .zero_sm(true);
        let e = ctx.post_send(&op).unwrap_err();
        assert_eq!(
            (e.kind(), e.rank()),
            (Kind::Unsupported, Some(1 - ctx.rank()))
        );
        assert!(e.to_string().contains("set MP_PATH=ipc"), "{e}");
    });
}

#[test]
fn ranks_with_different_defaults_refuse_each_other() {
    let second = AtomicBool::new(false);
    let build =
        move |builder: Builder| mapped(builder).zero_sm(second.fetch_xor(true, Ordering::Relaxed));
    ranks_with(2, build, |ctx| {
        let memory = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let stream = ctx.gpu().stream().unwrap();
        let e = ctx
            .isend_on(&stream, 1 - ctx.rank(), 1, &memory.all())
            .unwrap_err();
        assert_eq!(e.kind(), Kind::Protocol, "{e}");
        assert!(e.to_string().contains("MP_ZERO_SM"), "{e}");
    });
}

#[test]
fn contexts_with_manual_progress_exchange_messages() {
    let build = |builder: Builder| mapped(builder).progress(Progress::Manual);
    ranks_with(2, build, |ctx| {
        let (me, peer) = (ctx.rank(), 1 - ctx.rank());
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Device, 20_000).unwrap();
        for len in LENS.into_iter().filter(|len| *len <= 10_000) {
            memory.write(0, &pattern(me, len, len)).unwrap();
            let [out, into] = [0, 10_000].map(|at| memory.slice(at, len).unwrap());
            let receive = receive(&ctx, &stream, TAG, &into);
            let send = send(&ctx, &stream, TAG, &out);
            receive.wait(LIMIT).unwrap();
            send.wait(LIMIT).unwrap();
            assert!(read(&memory, 10_000, len) == pattern(peer, len, len));
        }
    });
}
