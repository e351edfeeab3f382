//! What graphs with messages refuse, and how they end: errors of captures, waits of the CPU, lengths that
//! differ, time limits, ranks that die or leave, contexts that are dropped before their graphs.

#[path = "common/sim.rs"]
mod sim;

use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Graph, MemoryKind, Stream};
use gdsync::rdma::Doorbell;
use mp::{
    Builder, Context, Kind, NULL_RANK, PathChoice, RecvOp, Request, SendOp, SizeSource, Slice,
    Source,
};
use sim::{Death, LIMIT, Rank, SMALL, millis, pair, play, secs};
use softgpu::Weak;

/// Longer than all rooms of a software GPU.
const LONG: usize = 20_000;
const TAG: u32 = 3;

fn mapped(builder: Builder) -> Builder {
    builder.path(PathChoice::Ipc)
}

/// Memory of its own for a message.
fn slice(ctx: &Context, len: usize) -> Slice {
    let memory = ctx.alloc(MemoryKind::Pinned, len.max(1)).unwrap();
    memory.slice(0, len).unwrap()
}

/// A graph of one message to each other rank, and one from it: receives, sends, waits.
fn exchange(ctx: &Context, stream: &Stream, len: usize) -> Graph {
    let peer = 1 - ctx.rank();
    stream.begin_capture().unwrap();
    let got = ctx.irecv_on(stream, peer, TAG, &slice(ctx, len)).unwrap();
    let sent = ctx.isend_on(stream, peer, TAG, &slice(ctx, len)).unwrap();
    ctx.wait_all_on(stream, &[got, sent]).unwrap();
    stream.end_capture().unwrap()
}

/// Runs `call` on a stream that is being captured.
fn captured<T>(ctx: &Context, call: impl FnOnce(&Stream) -> T) -> T {
    let stream = ctx.gpu().stream().unwrap();
    stream.begin_capture().unwrap();
    let result = call(&stream);
    stream.end_capture().unwrap();
    result
}

#[test]
fn capture_over_the_nic_is_an_error_that_names_the_remedy() {
    pair(
        |b| b.path(PathChoice::Nic),
        |_, ctx| {
            let peer = 1 - ctx.rank();
            for sends in [true, false] {
                let memory = slice(ctx, SMALL);
                let e = captured(ctx, |stream| match sends {
                    true => ctx.isend_on(stream, peer, TAG, &memory).unwrap_err(),
                    false => ctx.irecv_on(stream, peer, TAG, &memory).unwrap_err(),
                });
                assert_eq!((e.kind(), e.rank()), (Kind::Unsupported, Some(peer)), "{e}");
                let text = e.to_string();
                assert!(text.contains("Nic") && text.contains("MP_PATH=ipc"), "{e}");
            }
        },
    );
}

#[test]
fn captures_refuse_what_needs_the_cpu_or_has_no_fixed_length() {
    pair(mapped, |_, ctx| {
        let peer = 1 - ctx.rank();
        let [one, two] = [slice(ctx, SMALL), slice(ctx, SMALL)];
        let both = [one.clone(), two.clone()];
        let len = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let len = &len.region().word64(0).unwrap();
        let ready = ctx.prepare_send(&SendOp::from((peer, 9, &one))).unwrap();
        type Call<'a> = Box<dyn Fn(&Stream) -> mp::Result<()> + 'a>;
        let calls: [(&str, Call<'_>); 9] = [
            (
                "name the rank",
                Box::new(|s| ctx.irecv_on(s, Source::Any, TAG, &one).map(drop)),
            ),
            (
                "one segment",
                Box::new(|s| ctx.isendv_on(s, peer, TAG, &both).map(drop)),
            ),
            (
                "one segment",
                Box::new(|s| ctx.irecvv_on(s, peer, TAG, &both).map(drop)),
            ),
            (
                "length is fixed",
                Box::new(|s| {
                    let size = SizeSource::Word { len, offset: None };
                    let send = SendOp::from((peer, TAG, &one)).size(size).on(s);
                    ctx.post_send(&send).map(drop)
                }),
            ),
            (
                "one call",
                Box::new(|s| {
                    ctx.prepare_send(&SendOp::from((peer, TAG, &one)).on(s))
                        .map(drop)
                }),
            ),
            (
                "one call",
                Box::new(|s| {
                    ctx.prepare_recv(&RecvOp::from((peer, TAG, &one)).on(s))
                        .map(drop)
                }),
            ),
            (
                "time limit of the context",
                Box::new(|s| {
                    let recv = RecvOp::from((peer, TAG, &one)).timeout(secs(1)).on(s);
                    ctx.post_recv(&recv).map(drop)
                }),
            ),
            ("end the capture", Box::new(|s| ready.post_on(s))),
            (
                "end the capture",
                Box::new(|s| ctx.post_all_on(s, std::slice::from_ref(&ready))),
            ),
        ];
        captured(ctx, |stream| {
            for (text, call) in &calls {
                let e = call(stream).unwrap_err();
                assert_eq!(e.kind(), Kind::Unsupported, "{e}");
                assert!(e.to_string().contains(text), "{text}: {e}");
            }
        });
        ready.cancel().unwrap();
    });
}

#[test]
fn cpu_and_other_streams_cannot_wait_for_a_captured_message() {
    pair(mapped, |_, ctx| {
        let peer = 1 - ctx.rank();
        let [stream, other] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        stream.begin_capture().unwrap();
        other.begin_capture().unwrap();
        let sent = ctx
            .isend_on(&stream, peer, TAG, &slice(ctx, SMALL))
            .unwrap();
        let got = ctx
            .irecv_on(&stream, peer, TAG, &slice(ctx, SMALL))
            .unwrap();
        let unsupported = |e: mp::Error, text: &str| {
            assert_eq!(e.kind(), Kind::Unsupported, "{e}");
            assert!(e.to_string().contains(text), "{text}: {e}");
        };
        for _ in 0..2 {
            unsupported(sent.wait_on(&other).unwrap_err(), "that captured a send");
            unsupported(got.wait_on(&other).unwrap_err(), "that captured a receive");
            got.wait_on(&stream).unwrap();
        }
        let free = ctx.gpu().stream().unwrap();
        for request in [&sent, &got] {
            let belongs = "belongs to a graph";
            unsupported(request.test().unwrap_err(), belongs);
            unsupported(request.wait(LIMIT).unwrap_err(), belongs);
            unsupported(request.wait_on(&free).unwrap_err(), belongs);
            unsupported(request.post().unwrap_err(), belongs);
            unsupported(request.post_on(&stream).unwrap_err(), belongs);
            unsupported(request.cancel().unwrap_err(), belongs);
            let all = std::slice::from_ref(request);
            unsupported(mp::wait_all(all, LIMIT).unwrap_err(), belongs);
            unsupported(mp::wait_any(all, LIMIT).unwrap_err(), belongs);
            unsupported(ctx.post_all_on(&free, all).unwrap_err(), belongs);
            unsupported(ctx.wait_all_on(&free, all).unwrap_err(), belongs);
            assert_eq!(format!("{request:?}"), "a message of a graph");
        }
        let outside = ctx.irecv(peer, 9, &slice(ctx, SMALL)).unwrap();
        unsupported(
            ctx.wait_all_on(&stream, &[got, outside]).unwrap_err(),
            "belongs to a graph",
        );
        stream.end_capture().unwrap();
        other.end_capture().unwrap();
    });
}

/// The result word has the length of the message of the last replay, for kernels behind the wait.
#[test]
fn result_word_of_a_captured_receive_has_the_length_of_the_message() {
    pair(mapped, |rank, ctx| {
        let peer = 1 - ctx.rank();
        let stream = ctx.gpu().stream().unwrap();
        let word = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        for len in [0, SMALL, LONG] {
            stream.begin_capture().unwrap();
            let got = ctx
                .irecv_on(&stream, peer, TAG, &slice(ctx, LONG + 1))
                .unwrap();
            let sent = ctx.isend_on(&stream, peer, TAG, &slice(ctx, len)).unwrap();
            let none = ctx
                .irecv_on(&stream, NULL_RANK, TAG, &slice(ctx, 8))
                .unwrap();
            none.wait_on(&stream).unwrap();
            ctx.wait_all_on(&stream, &[]).unwrap();
            got.wait_on(&stream).unwrap();
            sent.wait_on(&stream).unwrap();
            let (result, nothing) = (got.result_word(), none.result_word());
            let graph = stream.end_capture().unwrap();
            for _ in 0..3 {
                graph.launch(&stream).unwrap();
                ctx.synchronize(&stream, LIMIT).unwrap();
                assert_eq!(read(ctx, result.0), 1 << 48 | len as u64);
                assert_eq!(read(ctx, nothing.0), 1 << 48);
            }
            rank.barrier();
        }
        drop(word);
    });
}

/// The word of the software GPU at an address.
fn read(_ctx: &Context, addr: u64) -> u64 {
    // SAFETY: the word lives as long as its request and its graph, and no kernel stores it now. The memory
    // of a software GPU is memory of the process.
    unsafe { std::ptr::read_volatile(addr as *const u64) }
}

/// The rank that captures second, or both, find a message that is longer than its receive.
#[test]
fn message_that_is_longer_than_its_receive_is_an_error_of_a_capture() {
    for (first, len) in [(0, SMALL), (1, SMALL), (2, SMALL), (0, LONG), (1, LONG)] {
        pair(mapped, move |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            let capture = |extra: usize| -> mp::Result<Request> {
                let memory = slice(ctx, len + extra);
                match rank.me {
                    0 => ctx.isend_on(&stream, 1, TAG, &memory),
                    _ => ctx.irecv_on(&stream, 0, TAG, &memory),
                }
            };
            stream.begin_capture().unwrap();
            if rank.me != first && first < 2 {
                rank.barrier();
            }
            let tried = capture(usize::from(rank.me == 0));
            if rank.me == first {
                rank.barrier();
            }
            let fails = rank.me != first && first < 2;
            if let Err(e) = &tried {
                assert_eq!(e.kind(), Kind::Truncated, "{e}");
                assert_eq!(e.rank(), Some(1 - rank.me));
                match first {
                    // Its peer may know the length of the failed attempt.
                    2 => match capture(17) {
                        Ok(longer) => {
                            assert_eq!(rank.me, 1);
                            drop(longer);
                        }
                        Err(e) => {
                            let kinds = [Kind::Invalid, Kind::Truncated];
                            assert!(kinds.contains(&e.kind()), "{e}");
                        }
                    },
                    _ => drop(capture(usize::from(rank.me == 1)).unwrap()),
                }
            }
            assert!(tried.is_err() || !fails, "rank {}", rank.me);
            stream.end_capture().unwrap();
            rank.barrier();
            drop(tried);
        });
    }
}

/// A sender waits for its receiver when all rooms are in use, and not before.
#[test]
fn sender_is_as_many_replays_ahead_as_its_circuit_has_rooms() {
    for (len, rooms) in [(SMALL, 4), (6144, 2)] {
        pair(mapped, move |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            stream.begin_capture().unwrap();
            match rank.me {
                0 => drop(ctx.isend_on(&stream, 1, TAG, &slice(ctx, len)).unwrap()),
                _ => {
                    let got = ctx.irecv_on(&stream, 0, TAG, &slice(ctx, len)).unwrap();
                    got.wait_on(&stream).unwrap();
                }
            }
            let graph = stream.end_capture().unwrap();
            for _ in 0..3 {
                rank.barrier();
                if rank.me == 1 {
                    rank.barrier();
                }
                for _ in 0..rooms {
                    graph.launch(&stream).unwrap();
                }
                ctx.synchronize(&stream, LIMIT).unwrap();
                if rank.me == 0 {
                    graph.launch(&stream).unwrap();
                    assert!(!stream.synchronize(millis(5)).unwrap());
                    rank.barrier();
                } else {
                    graph.launch(&stream).unwrap();
                }
                ctx.synchronize(&stream, LIMIT).unwrap();
                rank.barrier();
            }
        });
    }
}

#[test]
fn replay_without_its_peer_ends_at_the_time_limit() {
    for len in [SMALL, LONG] {
        pair(
            |b| mapped(b).timeout(secs(2)),
            move |rank, ctx| {
                let stream = ctx.gpu().stream().unwrap();
                let graph = exchange(ctx, &stream, len);
                rank.barrier();
                if rank.me == 1 {
                    rank.barrier();
                    return;
                }
                let start = rank.host.now();
                graph.launch(&stream).unwrap();
                let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
                assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
                assert!(e.to_string().contains("a graph has waited 2 s"), "{e}");
                let waited = rank.host.now().since(start);
                assert!(waited >= secs(2) && waited < secs(3), "{waited:?}");
                assert!(ctx.error().is_some());
                // Later replays end at once.
                for _ in 0..3 {
                    graph.launch(&stream).unwrap();
                    ctx.synchronize(&stream, millis(100)).unwrap_err();
                }
                rank.barrier();
            },
        );
    }
}

/// Rank 1 dies after some replays; the streams of rank 0 continue.
fn dies(seed: u64, death: Death, len: usize) {
    play(seed, 2, move |rank| {
        let ctx = rank.open(|b| death.build(b).path(PathChoice::Ipc).timeout(secs(3)));
        let stream = ctx.gpu().stream().unwrap();
        let graph = exchange(&ctx, &stream, len);
        rank.barrier();
        let replays = 1 + seed % 3;
        if rank.me == 1 {
            for _ in 0..replays {
                graph.launch(&stream).unwrap();
            }
            if seed.is_multiple_of(2) {
                ctx.synchronize(&stream, LIMIT).unwrap();
            }
            death.end(rank, ctx, 2);
            return;
        }
        for _ in 0..replays + 2 {
            graph.launch(&stream).unwrap();
        }
        let e = ctx.synchronize(&stream, LIMIT).unwrap_err();
        assert_eq!(e.rank(), Some(1), "{e}");
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
        graph.launch(&stream).unwrap();
        assert!(stream.synchronize(millis(500)).unwrap());
        let e = ctx.close(LIMIT).unwrap_err();
        assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e}");
        rank.barrier();
    });
}

#[test]
fn death_of_a_rank_ends_the_replays_of_its_peers() {
    for death in [Death::Leaves, Death::Closes, Death::Freezes] {
        for seed in 0..10 {
            dies(seed, death, [SMALL, 5000, LONG][seed as usize % 3]);
        }
    }
}

/// A rank drops its context as soon as its replays have ended. Its peer has all messages.
#[test]
fn rank_that_leaves_behind_its_replays_causes_no_failure() {
    for seed in 0..200 {
        play(seed, 2, move |rank| {
            let weak = Weak::seeded(2 * seed + u64::from(rank.me));
            let place = rank.place(SoftOptions::default().weak(weak), true);
            let ctx = rank.open_at(&place, mapped);
            let stream = ctx.gpu().stream().unwrap();
            let len = [SMALL, 5000, 6144, LONG][seed as usize % 4];
            stream.begin_capture().unwrap();
            match rank.me {
                0 => drop(ctx.isend_on(&stream, 1, TAG, &slice(&ctx, len)).unwrap()),
                _ => {
                    let got = ctx.irecv_on(&stream, 0, TAG, &slice(&ctx, len)).unwrap();
                    got.wait_on(&stream).unwrap();
                }
            }
            let graph = stream.end_capture().unwrap();
            rank.barrier();
            for _ in 0..3 {
                graph.launch(&stream).unwrap();
            }
            ctx.synchronize(&stream, LIMIT).unwrap();
            assert_eq!(ctx.take_error().map(|e| e.to_string()), None);
            drop(ctx);
            rank.barrier();
        });
    }
}

/// The graph keeps the memory that its kernels name. A launch after the drop ends without a message.
#[test]
fn graph_outlives_its_context() {
    for len in [SMALL, 5000, LONG] {
        play(1, 2, move |rank| {
            let place = rank.place(Default::default(), true);
            let ctx = rank.open_at(&place, |b| b.path(PathChoice::Ipc));
            let stream = ctx.gpu().stream().unwrap();
            let graph = exchange(&ctx, &stream, len);
            graph.launch(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            rank.barrier();
            // Rank 0 waits at the drop.
            if rank.me == 0 {
                graph.launch(&stream).unwrap();
                rank.pass(millis(5));
            }
            drop(ctx);
            assert!(stream.synchronize(secs(1)).unwrap());
            rank.barrier();
            for _ in 0..3 {
                graph.launch(&stream).unwrap();
                assert!(stream.synchronize(secs(1)).unwrap());
            }
            rank.barrier();
        });
    }
}

/// A doorbell that a CPU thread writes is of the NIC's path: mapped memory has none.
#[test]
fn doorbell_does_not_matter_in_a_capture() {
    pair(
        |b| b.doorbell(Doorbell::CpuThread).path(PathChoice::Ipc),
        |rank, ctx| {
            let stream = ctx.gpu().stream().unwrap();
            let graph = exchange(ctx, &stream, SMALL);
            graph.launch(&stream).unwrap();
            ctx.synchronize(&stream, LIMIT).unwrap();
            rank.barrier();
        },
    );
}

/// Two graphs of one tag: their messages match in the order in which they are captured, and each graph is
/// launched as often as its counterpart, in any order.
#[test]
fn graphs_of_one_tag_are_launched_in_any_order() {
    pair(mapped, |rank: &Rank, ctx| {
        let stream = ctx.gpu().stream().unwrap();
        let graphs: Vec<Graph> = [SMALL, LONG, 0, 5000]
            .map(|len| exchange(ctx, &stream, len))
            .into();
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 2, 3, 3]] {
            for graph in order {
                graphs[graph].launch(&stream).unwrap();
            }
        }
        ctx.synchronize(&stream, LIMIT).unwrap();
        rank.barrier();
    });
}
