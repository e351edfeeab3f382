//! The timeline of `Builder::trace`: its file is parsed and compared with what a program did, under
//! the simulation and on threads; a rank that is lost, a full ring, and a file that cannot be
//! written.

#[path = "common/sim.rs"]
mod sim;

use std::path::{Path, PathBuf};
use std::time::Duration;

use gdsync::gpu::{Condition, MemoryKind};
use mp::bootstrap::Local;
use mp::{Context, Kind, Neighbour, Op, RecvOp, SendOp};
use serde_json::Value;
use sim::{LARGE, LIMIT, SMALL, Witness, millis, play, recv_on, secs, slice};

/// A file of this test, removed with those of its ranks.
#[derive(Clone)]
struct File(PathBuf);

impl File {
    fn new(test: &str) -> File {
        let name = format!("mp-trace-{test}-{}.json", std::process::id());
        File(std::env::temp_dir().join(name))
    }

    fn of(&self, rank: u32) -> PathBuf {
        self.0.with_extension(format!("{rank}.json"))
    }

    fn read(&self, rank: u32) -> Timeline {
        let text = std::fs::read_to_string(self.of(rank)).unwrap();
        let _ = std::fs::remove_file(self.of(rank));
        Timeline(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }
}

struct Timeline(Value);

/// Nanoseconds.
fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1000.0).round() as u64
}

impl Timeline {
    fn events(&self) -> impl Iterator<Item = &Value> {
        self.0["traceEvents"].as_array().unwrap().iter()
    }

    /// The boxes of the CPU's threads, or those of streams.
    fn boxes(&self, streams: bool) -> Vec<&Value> {
        let tid = |e: &Value| e["tid"].as_u64().unwrap();
        let shown = self.events().filter(|e| e["ph"] == "X");
        shown.filter(|e| (tid(e) >= 1000) == streams).collect()
    }

    fn count(&self, streams: bool, name: &str) -> usize {
        let boxes = self.boxes(streams);
        boxes.iter().filter(|e| e["name"] == name).count()
    }

    /// Checks what holds for each timeline.
    fn check(&self) {
        let mut ends = std::collections::BTreeMap::new();
        for shown in self.boxes(true) {
            let (start, end) = (ns(&shown["ts"]), ns(&shown["ts"]) + ns(&shown["dur"]));
            assert!(ns(&shown["args"]["posted"]) <= start, "{shown}");
            let last = ends.insert(shown["tid"].as_u64(), end).unwrap_or(0);
            assert!(
                start >= last,
                "a stream executes one submission at a time: {shown}"
            );
        }
        for shown in self.boxes(false) {
            assert!(shown["dur"].as_f64().unwrap() >= 0.0, "{shown}");
        }
        let of = |phase: &str| -> Vec<_> {
            let flows = self.events().filter(|e| e["ph"] == phase);
            flows
                .map(|e| e["id"].as_str().unwrap().to_owned())
                .collect()
        };
        let (starts, ends) = (of("s"), of("f"));
        assert!(
            ends.iter().all(|id| starts.contains(id)),
            "{starts:?} {ends:?}"
        );
    }
}

/// An exchange with the other rank of two on a stream, with a kernel behind it.
fn exchange(ctx: &Context, len: usize) {
    let stream = ctx.gpu().stream().unwrap();
    let peer = 1 - ctx.rank();
    let (data, into) = (slice(ctx, len), slice(ctx, len));
    let recv = ctx.irecv_on(&stream, peer, 7, &into).unwrap();
    let send = ctx.isend_on(&stream, peer, 7, &data).unwrap();
    recv.wait_on(&stream).unwrap();
    send.wait_on(&stream).unwrap();
    let witness = Witness::launch(&stream, ctx, &recv);
    ctx.synchronize(&stream, LIMIT).unwrap();
    witness.seen();
}

#[test]
fn each_post_has_its_completion_in_order_of_the_stream() {
    let file = File::new("posts");
    for seed in 1..=5 {
        let of_rank = file.clone();
        play(seed, 2, move |rank| {
            let ctx = rank.open(|b| b.trace(&of_rank.0));
            exchange(&ctx, SMALL);
            exchange(&ctx, LARGE);
            // Time that only the wait of rank 0 shows.
            let stream = ctx.gpu().stream().unwrap();
            if rank.me == 1 {
                rank.pass(millis(5));
                let sent = ctx.isend_on(&stream, 0, 8, &slice(&ctx, SMALL)).unwrap();
                sent.wait_on(&stream).unwrap();
            } else {
                drop(recv_on(&ctx, &stream, 1, 8, &slice(&ctx, SMALL)));
            }
            ctx.synchronize(&stream, LIMIT).unwrap();
            ctx.close(LIMIT).unwrap();
            rank.leave();
        });
        for rank in [0, 1] {
            let timeline = file.read(rank);
            timeline.check();
            let receiver = usize::from(rank == 0);
            // The receive of a small message posts nothing: its wait takes the message.
            assert_eq!(timeline.count(false, "irecv_on"), 2 + receiver);
            assert!(timeline.count(true, "irecv_on") >= 1);
            assert_eq!(timeline.count(false, "isend_on"), 3 - receiver);
            assert!(timeline.count(true, "isend_on") >= 3 - receiver);
            assert_eq!(timeline.count(false, "wait_on"), 5);
            assert_eq!(
                timeline.count(true, "look"),
                2,
                "the kernels of the application"
            );
            assert_eq!(
                timeline.events().filter(|e| e["ph"] == "i").count(),
                0,
                "all is passed"
            );
            let boxes = timeline.boxes(true);
            let large = |e: &&&Value| e["args"]["bytes"] == LARGE && e["args"]["peer"] == 1 - rank;
            assert!(
                boxes.iter().filter(large).count() >= 3,
                "a send, a receive, a wait"
            );
            let longest = boxes.iter().max_by_key(|e| ns(&e["dur"])).unwrap();
            if rank == 0 {
                assert_eq!(
                    (&longest["name"], &longest["cat"]),
                    (&"wait_on".into(), &"wait".into())
                );
                // The wait begins when the ranks are connected.
                assert!(ns(&longest["dur"]) >= 4_900_000, "{longest}");
            }
        }
    }
}

/// A call on a stream shows on the CPU's track and, by the same name, on the stream's.
#[test]
fn calls_with_several_peers_and_for_words_are_shown_by_their_names() {
    const ON: [&str; 11] = [
        "neighbours_exchange_on",
        "neighbours_ready_on",
        "neighbours_send_on",
        "neighbours_wait_on",
        "all_reduce_on",
        "send_ready_on",
        "wait_ready_on",
        "wait_value_on",
        "post_all_on",
        "wait_all_on",
        "post_on",
    ];
    let file = File::new("several");
    let of_rank = file.clone();
    play(2, 2, move |rank| {
        let ctx = rank.open(|b| b.trace(&of_rank.0));
        let (me, other) = (rank.me, 1 - rank.me);
        let stream = ctx.gpu().stream().unwrap();
        let memory = ctx.alloc(MemoryKind::Pinned, 64).unwrap();
        let at = |at: usize| memory.slice(at, 8).unwrap();
        let halo = Neighbour::new(other, me, other)
            .send(&at(0))
            .receive(&at(8));
        let halo = ctx.neighbourhood().neighbour(halo).build().unwrap();
        halo.ready_on(&stream).unwrap();
        halo.send_on(&stream).unwrap();
        halo.wait_on(&stream).unwrap();
        halo.exchange_on(&stream).unwrap();
        let mut all = ctx.collectives(8).unwrap();
        all.all_reduce_on::<u64>(&stream, &at(16), Op::Max).unwrap();
        ctx.send_ready_on(&stream, other).unwrap();
        ctx.wait_ready_on(&stream, other).unwrap();
        ctx.wait_value_on(&stream, None, &at(24), Condition::Eq, 0)
            .unwrap();
        let recv = ctx
            .prepare_recv(&RecvOp::from((other, 7, &at(32))))
            .unwrap();
        let send = ctx
            .prepare_send(&SendOp::from((other, 7, &at(40))))
            .unwrap();
        let pair = [recv, send];
        ctx.post_all_on(&stream, &pair).unwrap();
        ctx.wait_all_on(&stream, &pair).unwrap();
        let window = ctx.window(&memory).unwrap();
        let put = window.prepare_put(other, 48, &at(56)).unwrap();
        put.post_on(&stream).unwrap();
        window.fence(other).unwrap();
        ctx.synchronize(&stream, LIMIT).unwrap();
        all.barrier(LIMIT).unwrap();
        ctx.agree(0, LIMIT).unwrap();
        drop((pair, halo, all, put, window));
        ctx.close(LIMIT).unwrap();
        rank.leave();
    });
    for rank in [0, 1] {
        let timeline = file.read(rank);
        timeline.check();
        for name in ON {
            assert_eq!(timeline.count(false, name), 1, "{name}");
            assert!(timeline.count(true, name) >= 1, "{name}");
        }
        for name in ["barrier", "agree", "fence"] {
            assert_eq!(timeline.count(false, name), 1, "{name}");
        }
    }
}

#[test]
fn timeline_of_a_survivor_shows_what_the_lost_rank_left_open() {
    let file = File::new("lost");
    let of_rank = file.clone();
    play(3, 2, move |rank| {
        let ctx = rank.open(|b| b.trace(&of_rank.0).timeout(secs(2)));
        exchange(&ctx, SMALL);
        if rank.me == 1 {
            drop(ctx);
            rank.leave();
            return;
        }
        let stream = ctx.gpu().stream().unwrap();
        let recv = ctx.irecv_on(&stream, 1, 9, &slice(&ctx, SMALL));
        let waits = recv.and_then(|recv| recv.wait_on(&stream));
        assert!(waits.is_err() || ctx.synchronize(&stream, LIMIT).is_err());
        drop(ctx);
        rank.leave();
    });
    for rank in [0, 1] {
        let timeline = file.read(rank);
        timeline.check();
        assert_eq!(timeline.count(true, "look"), 1);
    }
}

#[test]
fn full_timeline_keeps_the_newest_events_and_names_what_it_dropped() {
    let file = File::new("full");
    let of_rank = file.clone();
    let run = play(1, 2, move |rank| {
        let ctx = rank.open(|b| b.trace(&of_rank.0).trace_events(20));
        for _ in 0..10 {
            exchange(&ctx, SMALL);
        }
        ctx.close(LIMIT).unwrap();
        rank.leave();
    });
    for rank in [0, 1] {
        let timeline = file.read(rank);
        timeline.check();
        let shown = timeline.boxes(false).len() + timeline.boxes(true).len();
        assert!(shown <= 20, "{shown}");
        assert_eq!(timeline.count(false, "close"), 1, "the newest call");
        let dropped = timeline.0["otherData"]["dropped"].as_object().unwrap();
        let calls = dropped["CPU thread 0"].as_u64().unwrap();
        assert!(calls >= 10, "{dropped:?}");
    }
    let warnings = run.warnings.all();
    let says = |text: &&String| text.contains("lacks its oldest");
    assert_eq!(warnings.iter().filter(says).count(), 2, "{warnings:?}");
}

#[test]
fn file_that_cannot_be_written_fails_the_build() {
    let file = Path::new("/nowhere/at/all.json");
    let gpu = gdsync::Gpu::soft().unwrap();
    let builder = Context::builder()
        .bootstrap(Local::ranks(1).remove(0))
        .gpu(&gpu);
    let e = builder.trace(file).build().map(drop).unwrap_err();
    assert_eq!(e.kind(), Kind::System, "{e}");
    assert!(e.to_string().contains("/nowhere/at/all.0.json"), "{e}");
}

/// Real threads and the GPU of `GDS_GPU`.
#[test]
fn timeline_on_threads() {
    let file = File::new("live");
    let name = std::env::var("GDS_GPU").unwrap_or_else(|_| "soft".to_owned());
    let ranks = Local::ranks(2).into_iter().map(|bootstrap| {
        let gpu = gdsync::Gpu::open(&name).unwrap();
        let builder = Context::builder().bootstrap(bootstrap).gpu(&gpu);
        let ctx = builder.trace(&file.0).build().unwrap();
        std::thread::spawn(move || {
            let stream = ctx.gpu().stream().unwrap();
            let memory = ctx.alloc(MemoryKind::Device, 2 * LARGE).unwrap();
            let into = memory.slice(0, LARGE).unwrap();
            let data = memory.slice(LARGE, LARGE).unwrap();
            for _ in 0..20 {
                let recv = ctx.irecv_on(&stream, 1 - ctx.rank(), 7, &into).unwrap();
                let send = ctx.isend_on(&stream, 1 - ctx.rank(), 7, &data).unwrap();
                recv.wait_on(&stream).unwrap();
                send.wait_on(&stream).unwrap();
            }
            let limit = Duration::from_secs(60);
            ctx.synchronize(&stream, limit).unwrap();
            ctx.close(limit).unwrap();
        })
    });
    ranks
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|rank| rank.join().unwrap());
    for rank in [0, 1] {
        let timeline = file.read(rank);
        timeline.check();
        assert_eq!(timeline.count(false, "isend_on"), 20);
        assert!(timeline.count(true, "isend_on") >= 20);
    }
}

/// Two ranks on one GPU: the file of each has its calls, and the streams of the GPU.
#[test]
fn contexts_that_share_a_gpu_have_a_timeline_each() {
    let file = File::new("shared");
    let gpu = gdsync::Gpu::soft().unwrap();
    let ranks: Vec<Context> = Local::ranks(2)
        .into_iter()
        .map(|bootstrap| {
            let builder = Context::builder().bootstrap(bootstrap).gpu(&gpu);
            builder.name("both").trace(&file.0).build().unwrap()
        })
        .collect();
    let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
    std::thread::scope(|threads| {
        for (ctx, stream) in ranks.iter().zip(&streams) {
            threads.spawn(move || {
                let peer = 1 - ctx.rank();
                let (data, into) = (slice(ctx, LARGE), slice(ctx, LARGE));
                let recv = ctx.irecv_on(stream, peer, 7, &into).unwrap();
                let send = ctx.isend_on(stream, peer, 7, &data).unwrap();
                recv.wait_on(stream).unwrap();
                send.wait_on(stream).unwrap();
                ctx.synchronize(stream, Duration::from_secs(60)).unwrap();
            });
        }
    });
    drop(ranks);
    let file = File(file.0.with_extension("both.json"));
    for rank in [0, 1] {
        let timeline = file.read(rank);
        timeline.check();
        assert_eq!(timeline.count(false, "isend_on"), 1);
        let of = |stream: u64| {
            let boxes = timeline.boxes(true);
            let own = |e: &&&Value| e["tid"] == 1000 + stream;
            boxes
                .iter()
                .filter(own)
                .map(|e| e["args"]["call"] != 0)
                .collect::<Vec<bool>>()
        };
        let (own, other) = (rank as usize, 1 - rank as usize);
        assert!(of(streams[own].id()).contains(&true));
        let others = of(streams[other].id());
        assert!(
            !others.is_empty() && !others.contains(&true),
            "calls of the other rank"
        );
    }
}

/// The last write of the file has what the streams passed after the one before.
#[test]
fn timeline_has_what_streams_passed_after_the_close() {
    let file = File::new("after");
    let of_rank = file.clone();
    play(1, 1, move |rank| {
        let ctx = rank.open(|b| b.trace(&of_rank.0));
        let stream = ctx.gpu().stream().unwrap();
        let gate = ctx.alloc(MemoryKind::Pinned, 8).unwrap();
        let wait = ctx.wait_value_on(&stream, None, &gate.all(), Condition::Geq, 1);
        wait.unwrap();
        ctx.close(LIMIT).unwrap();
        gate.write(0, &1_u64.to_ne_bytes()).unwrap();
        stream.synchronize(LIMIT).unwrap();
        drop(ctx);
        rank.leave();
    });
    let timeline = file.read(0);
    let open = timeline.events().filter(|e| e["ph"] == "i").count();
    assert_eq!(open, 0, "all is passed");
}

/// Two jobs of one process write the same file: each reader finds the timeline of one of them, whole.
#[test]
fn file_that_two_jobs_write_is_whole_at_any_time() {
    let file = File::new("two");
    let job = |calls: usize| {
        let gpu = gdsync::Gpu::soft().unwrap();
        for _ in 0..20 {
            let builder = Context::builder().bootstrap(Local::ranks(1).remove(0));
            let ctx = builder.gpu(&gpu).trace(&file.0).build().unwrap();
            for _ in 0..calls {
                ctx.agree(0, LIMIT).unwrap();
            }
            ctx.close(LIMIT).unwrap();
        }
    };
    std::thread::scope(|threads| {
        let job = &job;
        let jobs = [300, 30].map(|calls| threads.spawn(move || job(calls)));
        while !jobs.iter().all(|job| job.is_finished()) {
            let text = std::fs::read_to_string(file.of(0)).unwrap_or_else(|_| "{}".to_owned());
            let whole = serde_json::from_str::<Value>(&text);
            assert!(whole.is_ok(), "{} bytes: {whole:?}", text.len());
        }
    });
    let calls = file.read(0).count(false, "agree");
    assert!([30, 300].contains(&calls), "{calls} calls");
    let folder = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let name = file.of(0).file_stem().unwrap().to_owned();
    let left = folder.filter(|entry| {
        let entry = entry.as_ref().unwrap().file_name();
        entry
            .to_string_lossy()
            .starts_with(&*name.to_string_lossy())
    });
    assert_eq!(left.count(), 0, "a part of a file is left");
}
