//! Hundreds of ranks die, one after the other, each with messages in flight. The surviving ranks
//! report which rank died, continue to exchange messages, and leak no resources.

#[path = "common/heap.rs"]
mod heap;

use std::time::{Duration, Instant};

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use gdsync::rdma::Device;
use heap::{Counting, Held, times};
use mp::bootstrap::Local;
use mp::{Context, Kind, Memory, RecvOp, Request, SendOp, Slice, Source};

#[global_allocator]
static HEAP: Counting = Counting;

/// The time after which the test reports a hang.
const LIMIT: Duration = Duration::from_secs(60);
/// Rounds between two samples of the resources in use.
const EVERY: u32 = 50;
/// The sample that is the baseline.
const FIRST: usize = 4;
const DEPTH: u32 = 2;
const SMALL: usize = 8;
const EAGER: usize = 64;
const LARGE: usize = 200;
/// The most that a sample may exceed the baseline: less than one allocation per death.
const BOUND: Held = Held {
    bytes: 1 << 14,
    blocks: 64,
    files: 4,
    maps: 16,
};

struct Rank {
    ctx: Context,
    stream: Stream,
    memory: Memory,
}

impl Rank {
    fn small(&self) -> Slice {
        self.memory.slice(0, SMALL).unwrap()
    }

    fn large(&self) -> Slice {
        self.memory.slice(SMALL, LARGE).unwrap()
    }

    /// Requests with `peer` that fail if it dies, in all states of a request.
    fn entangle(&self, peer: u32) -> Vec<Request> {
        let ctx = &self.ctx;
        let [small, large] = [[self.small()], [self.large()]];
        // One stream posts in the order in which its requests were prepared.
        let [late, spare] = [(); 2].map(|()| ctx.gpu().stream().unwrap());
        let mut all = vec![
            // Prepared.
            ctx.prepare_send(&SendOp::new(peer, 1, &small)).unwrap(),
            ctx.prepare_recv(&RecvOp::new(peer, 2, &large).on(&late))
                .unwrap(),
        ];
        // Queued, behind as many as there are credits; announced.
        for _ in 0..DEPTH {
            drop(ctx.isend(peer, 3, &small[0]).unwrap());
        }
        all.push(ctx.isend(peer, 3, &small[0]).unwrap());
        all.push(ctx.isend(peer, 4, &large[0]).unwrap());
        // Posted.
        let recv = RecvOp::new(peer, 5, &small).timeout(LIMIT);
        all.push(ctx.post_recv(&recv).unwrap());
        all.push(ctx.irecv_on(&spare, peer, 6, &large[0]).unwrap());
        // The request that the stream executes now.
        let recv = ctx.irecv_on(&self.stream, peer, 7, &small[0]).unwrap();
        recv.wait_on(&self.stream).unwrap();
        let send = ctx.isend_on(&self.stream, peer, 8, &large[0]).unwrap();
        send.wait_on(&self.stream).unwrap();
        all.extend([recv, send]);
        all
    }

    /// Sends messages to `other`, by the CPU and on streams.
    fn exchange(&self, other: &Rank) {
        let [me, peer] = [self.ctx.rank(), other.ctx.rank()];
        self.memory.write(0, &[me as u8 + 1; SMALL]).unwrap();
        let into = other.memory.slice(SMALL + LARGE, SMALL).unwrap();
        let recv = other.ctx.irecv_on(&other.stream, me, 9, &into).unwrap();
        recv.wait_on(&other.stream).unwrap();
        let send = self.ctx.isend_on(&self.stream, peer, 9, &self.small());
        send.unwrap().wait(LIMIT).unwrap();
        assert!(other.stream.synchronize(LIMIT).unwrap());
        assert_eq!(recv.wait(LIMIT).unwrap().source(), me);
        let mut got = [0; SMALL];
        other.memory.read(SMALL + LARGE, &mut got).unwrap();
        assert_eq!(got, [me as u8 + 1; SMALL]);
        let recv = other.ctx.irecv(me, 10, &into).unwrap();
        drop(self.ctx.isend(peer, 10, &self.large()).unwrap());
        // Longer than the receive.
        assert_eq!(recv.wait(LIMIT).unwrap_err().kind(), Kind::Truncated);
    }
}

/// One death. The ranks share one GPU, or each has its own.
fn round(number: u32) {
    let victim = number % 3;
    let shared = number.is_multiple_of(2).then(|| Gpu::soft().unwrap());
    let mut jobs = Vec::new();
    let mut ranks = Vec::new();
    for bootstrap in Local::ranks(3) {
        jobs.push(Some(bootstrap.clone()));
        let gpu = shared.clone().unwrap_or_else(|| Gpu::soft().unwrap());
        let device = Device::from_env(&gpu).unwrap();
        let builder = Context::builder().bootstrap(bootstrap).gpu(&gpu);
        let builder = builder.device(&device).depth(DEPTH).eager_limit(EAGER);
        let ctx = builder.timeout(LIMIT).build().unwrap();
        ranks.push(Some(Rank {
            stream: gpu.stream().unwrap(),
            memory: ctx.alloc(MemoryKind::Pinned, LARGE + 2 * SMALL).unwrap(),
            ctx,
        }));
    }
    let dead = ranks[victim as usize].take().unwrap();
    let alive: Vec<Rank> = ranks.into_iter().flatten().collect();
    let [a, b] = &alive[..] else { unreachable!() };
    let from_any = |rank: &Rank, tag| rank.ctx.irecv(Source::Any, tag, &rank.large()).unwrap();
    let (any, never) = (from_any(a, 20), from_any(a, 21));
    let lost: Vec<_> = alive.iter().map(|r| r.entangle(victim)).collect();
    let mut own = dead.entangle(a.ctx.rank());
    own.extend([from_any(&dead, 20), from_any(&dead, 22)]);
    // Its handles are dropped first, or its context.
    let Rank { ctx, stream, .. } = dead;
    if number % 4 < 2 {
        drop(own);
        drop(ctx);
    } else {
        drop(ctx);
        drop(own);
    }
    if number % 5 < 3 {
        // It also leaves the job.
        jobs[victim as usize].take();
    }
    assert!(stream.synchronize(LIMIT).unwrap(), "of the one that died");
    for (rank, requests) in alive.iter().zip(&lost) {
        assert!(rank.stream.synchronize(LIMIT).unwrap(), "not released");
        for request in requests {
            // A message might have arrived: a receive reports the death only once it is waited for.
            let posted = match format!("{request:?}").ends_with("Prepared") {
                true => request.post(),
                false => Ok(()),
            };
            let e = posted.and_then(|()| request.wait(LIMIT)).unwrap_err();
            assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{request:?}: {e}");
            assert_eq!(e.rank(), Some(victim), "{request:?}: {e}");
        }
        assert!(rank.ctx.error().is_some());
    }
    // A request whose message arrives later; the other one is dropped with its context.
    drop(b.ctx.isend(a.ctx.rank(), 20, &b.small()).unwrap());
    assert_eq!(any.wait(LIMIT).unwrap().source(), b.ctx.rank());
    a.exchange(b);
    b.exchange(a);
    drop(never);
}

#[test]
fn deaths_of_ranks_leak_no_resources() {
    let (start, rounds) = (Instant::now(), times("GDS_DEATHS", 350) as u32);
    assert!(rounds >= (FIRST as u32 + 1) * EVERY, "too few to compare");
    let mut looks = Vec::with_capacity((rounds / EVERY) as usize);
    for number in 0..rounds {
        round(number);
        if (number + 1) % EVERY == 0 {
            looks.push(Held::now());
        }
    }
    println!("{rounds} deaths in {:?}: {looks:#?}", start.elapsed());
    let first = looks[FIRST - 1];
    for later in &looks[FIRST..] {
        let grew = later.since(first);
        assert!(grew.within(BOUND), "it grew by {grew:?} from {first:?}");
    }
}
