//! Contexts whose bootstrap has lost the other ranks, and how often contexts ask a bootstrap which
//! ranks are gone.

#[path = "common/sim.rs"]
mod sim;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gdsync::Gpu;
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Condition, MemoryKind};
use mp::bootstrap::Local;
use mp::{Bootstrap, Builder, Context, Error, Kind, Neighbour, Result, Source};
use sim::gate;
use sim::{LARGE, LIMIT, Rank, SMALL, exchange, millis, play, recv, secs, send, slice};
use vmlx5::fabric::faults::Faults;

/// The store that the ranks share, and how often each rank asked which ranks are gone.
#[derive(Clone, Debug, Default)]
struct Store {
    dead: Arc<AtomicBool>,
    looks: Arc<[AtomicU64; 4]>,
    /// A bit for each rank that is gone.
    gone: Arc<AtomicU64>,
    /// A call of `gone` does not return while this gate is closed.
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    closed: AtomicBool,
    /// A call of `gone` has reached the gate.
    reached: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        while self.closed.load(Ordering::Relaxed) {
            self.reached.store(true, Ordering::Relaxed);
            std::thread::sleep(millis(1));
        }
    }
}

impl Store {
    fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    fn revive(&self) {
        self.dead.store(false, Ordering::Relaxed);
    }

    fn looks(&self, rank: u32) -> u64 {
        self.looks[rank as usize].load(Ordering::Relaxed)
    }

    /// The bootstrap of a rank at this store.
    fn of(&self, rank: &Rank) -> Arc<dyn Bootstrap> {
        let (inner, store) = (rank.bootstrap(), self.clone());
        Arc::new(AtStore { inner, store })
    }

    fn open(&self, rank: &Rank, build: impl FnOnce(Builder) -> Builder) -> Context {
        let bootstrap = self.of(rank);
        rank.open(|b| build(b.bootstrap(bootstrap).timeout(secs(5)).depth(4)))
    }
}

/// As `Tcp`: without the store, messages that have arrived are received; all other operations fail.
#[derive(Debug)]
struct AtStore {
    inner: Arc<dyn Bootstrap>,
    store: Store,
}

impl AtStore {
    fn reach(&self, operation: &'static str) -> Result<()> {
        match self.store.dead.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::new(operation, Kind::System, "the store is gone")),
        }
    }
}

impl Bootstrap for AtStore {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn job(&self) -> u64 {
        self.inner.job()
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> Result<()> {
        self.reach("send control message")?;
        self.inner.send(to, topic, message)
    }

    fn receive(&self, topic: u64) -> Result<Option<(u32, Vec<u8>)>> {
        match self.inner.receive(topic)? {
            Some(message) => Ok(Some(message)),
            None => self.reach("receive control message").map(|()| None),
        }
    }

    fn gone(&self, rank: u32) -> bool {
        self.store.looks[self.rank() as usize].fetch_add(1, Ordering::Relaxed);
        self.store.gate.pass();
        self.store.gone.load(Ordering::Relaxed) >> rank & 1 == 1
    }
}

/// Stops the store once all ranks have reached this point.
fn lose(rank: &Rank, store: &Store) {
    rank.barrier();
    store.die();
    rank.barrier();
}

#[test]
fn open_peers_and_tags_stay_usable_without_the_store_and_close_succeeds() {
    let store = Store::default();
    let run = play(1, 3, move |rank| {
        let ctx = store.open(rank, |b| b);
        if rank.me < 2 {
            exchange(&ctx, rank.peer(), 1);
            exchange(&ctx, rank.peer(), 2);
        }
        lose(rank, &store);
        if rank.me < 2 {
            // The receiver cannot report the truncation to the sender.
            let (short, long) = (slice(&ctx, SMALL), slice(&ctx, 2 * SMALL));
            let recv = ctx.irecv(rank.peer(), 1, &short).unwrap();
            let send = ctx.isend(rank.peer(), 1, &long).unwrap();
            send.wait(LIMIT).unwrap();
            assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
            exchange(&ctx, rank.peer(), 1);
            exchange(&ctx, rank.peer(), 2);
        }
        rank.barrier();
        // Long enough to show a warning that is repeated in each round.
        rank.pass(secs(2));
        ctx.close(LIMIT).unwrap();
        rank.barrier();
        if rank.me < 2 {
            exchange(&ctx, rank.peer(), 2);
        }
        rank.barrier();
    });
    let all = run.warnings.all();
    for rank in 0..3 {
        let mine = |line: &&String| line.starts_with(&format!("rank {rank}: the bootstrap"));
        assert_eq!(all.iter().filter(mine).count(), 1, "{all:#?}");
    }
    assert_eq!(all.len(), 3, "{all:#?}");
}

#[test]
fn new_peers_and_tags_are_refused_at_once_without_the_store() {
    let store = Store::default();
    play(1, 3, move |rank| {
        let ctx = store.open(rank, |b| b);
        let large = |to: u32| {
            let receive = ctx.irecv(to, 2, &slice(&ctx, LARGE)).unwrap();
            send(&ctx, to, 2, LARGE);
            receive.wait(LIMIT).unwrap();
        };
        if rank.me < 2 {
            exchange(&ctx, rank.peer(), 1);
            large(rank.peer());
        }
        lose(rank, &store);
        let begun = rank.host.now();
        let small = slice(&ctx, SMALL);
        let refused = |request: Result<mp::Request>, with: u32| {
            let e = request.unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::BootstrapLost, Some(with)));
            assert!(e.to_string().contains("the store is gone"), "{e}");
        };
        for with in (0..3).filter(|with| *with != rank.me) {
            for _ in 0..2 {
                refused(ctx.isend(with, 7, &small), with);
                refused(ctx.irecv(with, 8, &small), with);
                // The tag is open for messages above the eager limit.
                refused(ctx.isend(with, 2, &small), with);
            }
        }
        let waited = rank.host.now().since(begun);
        assert!(waited < millis(100), "{waited:?}");
        assert_eq!(ctx.error(), None);
        if rank.me < 2 {
            exchange(&ctx, rank.peer(), 1);
            large(rank.peer());
        }
        rank.barrier();
    });
}

#[test]
fn build_with_connect_up_front_fails_at_once_without_the_store() {
    let store = Store::default();
    play(1, 2, move |rank| {
        store.die();
        let bootstrap = store.of(rank);
        let place = rank.place(Default::default(), true);
        let builder = Context::builder().bootstrap(bootstrap).gpu(&place.gpu);
        let builder = builder.device(&place.device).connect(mp::Connect::UpFront);
        let e = builder.timeout(secs(5)).build().unwrap_err();
        assert_eq!(e.kind(), Kind::BootstrapLost, "{e:?}");
        assert!(rank.host.now().since(Default::default()) < secs(1));
        rank.barrier();
    });
}

/// Channels of tags that were used once are retired when most channels are in use.
#[test]
fn tags_stay_open_when_the_store_cannot_deliver_their_retirement() {
    const TAGS: u32 = 4;
    let store = Store::default();
    let run = play(1, 2, move |rank| {
        let ctx = store.open(rank, |b| b.channels(TAGS as usize));
        let (small, peer) = (slice(&ctx, SMALL), rank.peer());
        (0..TAGS).for_each(|tag| send(&ctx, peer, tag, SMALL));
        // A tag is idle only after its message is received.
        lose(rank, &store);
        (0..TAGS).for_each(|tag| recv(&ctx, peer, tag, SMALL));
        rank.pass(millis(100));
        rank.barrier();
        for tag in 0..TAGS {
            let recv = ctx.irecv(peer, tag, &small).unwrap();
            send(&ctx, peer, tag, SMALL);
            recv.wait(LIMIT).unwrap();
        }
        ctx.close(LIMIT).unwrap();
        rank.barrier();
    });
    assert_eq!(run.warnings.all().len(), 2, "{:#?}", run.warnings.all());
}

/// A stream without a lane uses the lane of another stream to a neighbour. To the other neighbour no
/// stream has one: it is not left out.
#[test]
fn neighbourhood_is_refused_if_a_neighbour_has_no_lane_for_the_stream() {
    let store = Store::default();
    play(1, 3, move |rank| {
        let ctx = store.open(rank, |b| b);
        let (next, last) = rank.neighbours();
        let all = [next, last].map(|with| Neighbour::new(with, 1, 1));
        let halo = ctx.neighbourhood().neighbours(all).build().unwrap();
        let [first, other] = [0, 1].map(|_| ctx.gpu().stream().unwrap());
        // The lane of one stream is open between ranks 0 and 1 alone, and rank 0 names rank 1 first.
        if rank.me < 2 {
            let data = [0, 1].map(|_| slice(&ctx, SMALL));
            let recv = ctx.irecv_on(&first, rank.peer(), 1, &data[0]).unwrap();
            let send = ctx.isend_on(&first, rank.peer(), 1, &data[1]).unwrap();
            ctx.wait_all_on(&first, &[recv, send]).unwrap();
            assert!(first.synchronize(LIMIT).unwrap());
        }
        lose(rank, &store);
        if rank.me == 0 {
            let e = halo.ready_on(&other).unwrap_err();
            assert_eq!((e.kind(), e.rank()), (Kind::BootstrapLost, Some(2)), "{e}");
        }
        rank.barrier();
    });
}

/// The bootstrap fails for a while, as with a full file system.
#[test]
fn control_messages_are_retried_when_the_store_recovers() {
    let store = Store::default();
    play(1, 2, move |rank| {
        let ctx = store.open(rank, |b| b);
        exchange(&ctx, rank.peer(), 1);
        lose(rank, &store);
        if rank.me == 0 {
            let recv = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap();
            assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
        } else {
            send(&ctx, 0, 1, 2 * SMALL);
        }
        rank.barrier();
        assert_eq!(ctx.error().is_some(), rank.me == 0);
        // The other rank has checked it too.
        rank.barrier();
        store.revive();
        rank.until("the sender got no report of the truncation", || {
            ctx.error() == Some(gdsync::Status::TRUNCATED)
        });
        exchange(&ctx, rank.peer(), 3);
        // The receiver has returned its failure; the sender's request was dropped before it failed.
        let closed = ctx.close(LIMIT).map_err(|e| e.kind());
        assert_eq!(closed, [Ok(()), Err(Kind::Truncated)][rank.me as usize]);
        rank.barrier();
    });
}

#[test]
fn idle_context_polls_for_gone_ranks_ten_times_a_second() {
    const SECONDS: u64 = 10;
    let store = Store::default();
    play(1, 4, move |rank| {
        let ctx = store.open(rank, |b| b.connect(mp::Connect::UpFront));
        exchange(&ctx, rank.me ^ 1, 1);
        rank.barrier();
        rank.pass(secs(1));
        let before = store.looks(rank.me);
        rank.pass(secs(SECONDS));
        let looks = store.looks(rank.me) - before;
        assert!(looks <= 10 * SECONDS + 1, "{looks} looks");
        // Each of the other ranks was polled in turn.
        assert!(looks >= 3, "{looks} looks");
        rank.barrier();
    });
}

/// Two connected ranks on real threads and software GPUs of their own.
fn on_threads(store: &Store) -> Vec<Context> {
    let ranks = Local::ranks(2).into_iter().map(|inner| {
        let store = store.clone();
        std::thread::spawn(move || {
            let builder = Context::builder().bootstrap(Arc::new(AtStore { inner, store }));
            let builder = builder.gpu(&Gpu::soft().unwrap());
            builder.connect(mp::Connect::UpFront).build().unwrap()
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|r| r.join().unwrap()).collect()
}

#[test]
fn gone_rank_is_detected_with_and_without_a_waiting_request() {
    for waits in [true, false] {
        let store = Store::default();
        let run = play(1, 4, move |rank| {
            let ctx = store.open(rank, |b| b.connect(mp::Connect::UpFront));
            let small = slice(&ctx, SMALL);
            if rank.me == 0 {
                let recv = waits.then(|| ctx.irecv(3, 1, &small).unwrap());
                rank.pass(secs(1));
                // Only the bootstrap reports the death.
                store.gone.store(1 << 3, Ordering::Relaxed);
                rank.pass(millis(if waits { 150 } else { 350 }));
                let found = rank.host.now();
                let failed = match recv {
                    Some(recv) => recv.wait(LIMIT).map(|_| ()),
                    None => ctx.isend(3, 1, &small).map(|_| ()),
                };
                let e = failed.unwrap_err();
                assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
                assert!(rank.host.now().since(found) < millis(1), "found too late");
            }
            rank.barrier();
        });
        let matches = |line: &&String| line.starts_with("rank 0: rank 3 is given up");
        let warnings = run.warnings.all().iter().filter(matches).count();
        assert_eq!(warnings, usize::from(waits), "{:#?}", run.warnings.all());
    }
}

#[test]
fn receives_from_any_rank_match_without_the_store() {
    let store = Store::default();
    play(1, 2, move |rank| {
        let ctx = store.open(rank, |b| b);
        exchange(&ctx, rank.peer(), 1);
        lose(rank, &store);
        let small = slice(&ctx, SMALL);
        let any = ctx.irecv(Source::Any, 1, &small).unwrap();
        drop(ctx.isend(rank.peer(), 1, &small).unwrap());
        assert_eq!(any.wait(LIMIT).unwrap().source(), rank.peer());
        rank.barrier();
    });
}

/// Returns what `call` returns while a poll for gone ranks is blocked: it must not wait for the
/// poll.
fn meanwhile<T: Send + 'static>(store: &Store, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, answer) = std::sync::mpsc::channel();
    let caller = std::thread::spawn(move || done.send(call()).unwrap());
    let answered = answer.recv_timeout(secs(60));
    store.gate.closed.store(false, Ordering::Relaxed);
    caller.join().unwrap();
    answered.expect("a call waited for the poll")
}

/// On real threads: the bootstrap imitates a file system that does not answer.
#[test]
fn slow_poll_for_gone_ranks_blocks_no_call() {
    let store = Store::default();
    let ranks = on_threads(&store);
    store.gate.closed.store(true, Ordering::Relaxed);
    while !store.gate.reached.load(Ordering::Relaxed) {
        std::thread::sleep(millis(1));
    }
    let called = ranks.clone();
    let stuck = meanwhile(&store, move || {
        called.iter().flat_map(Context::stuck).count()
    });
    assert_eq!(stuck, 0);
}

/// The text of an error says whether the peer is alive; this check must not block other calls.
#[test]
fn liveness_check_for_an_error_text_blocks_no_call() {
    let store = Store::default();
    let ranks = on_threads(&store);
    let ctx = ranks[0].clone();
    let recv = ctx.irecv(1, 1, &slice(&ctx, SMALL)).unwrap();
    store.gate.closed.store(true, Ordering::Relaxed);
    let late = std::thread::spawn(move || drop(recv.wait(millis(10)).unwrap_err()));
    std::thread::sleep(millis(300));
    assert!(meanwhile(&store, move || ctx.word_order(1).is_some()));
    late.join().unwrap();
}

/// A stream that is new to a peer posts on the lane of another stream. When its own lane could be
/// opened again, its signals still follow its earlier puts.
#[test]
fn signals_follow_puts_that_were_posted_without_the_store() {
    const ROOM: usize = 40_000;
    for seed in 0..10 {
        let store = Store::default();
        play(seed, 2, move |rank| {
            let faults = Faults {
                seed,
                ooo: 0.9,
                ..Faults::default()
            };
            let place = rank.place_with(SoftOptions::default(), true, faults);
            let bootstrap = store.of(rank);
            let ctx = rank.open_at(&place, |b| b.bootstrap(bootstrap));
            let memory = ctx.alloc(MemoryKind::Pinned, ROOM + 8).unwrap();
            let window = ctx.window(&memory).unwrap();
            let data = ctx.alloc(MemoryKind::Pinned, ROOM).unwrap();
            data.write(0, &[1; ROOM]).unwrap();
            let [old, new] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
            let put = |stream| window.put_on(stream, rank.peer(), 0, &data.all()).unwrap();
            put(&old).wait(LIMIT).unwrap();
            lose(rank, &store);
            memory.write(0, &[0; ROOM]).unwrap();
            rank.barrier();
            let gate = gate::Gate::new(ctx.gpu());
            gate.hold(&new);
            drop(put(&new));
            rank.barrier();
            store.revive();
            rank.pass(secs(1));
            drop(window.signal_on(&new, rank.peer(), ROOM, 1).unwrap());
            gate.open();
            let geq = Condition::Geq;
            window
                .wait_signal(rank.peer(), ROOM, geq, 1, LIMIT)
                .unwrap();
            let mut bytes = [0; ROOM];
            memory.read(0, &mut bytes).unwrap();
            assert!(bytes == [1; ROOM]);
            ctx.close(LIMIT).unwrap();
            rank.barrier();
        });
    }
}
