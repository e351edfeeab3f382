//! Hundreds of thousands of requests that only streams wait for, without a wait of the CPU and with
//! every handle dropped at once: memory use does not grow.

#[path = "common/heap.rs"]
mod heap;

use std::time::{Duration, Instant};

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use heap::{Counting, Held, times};
use mp::bootstrap::Local;
use mp::{Context, Memory};

#[global_allocator]
static HEAP: Counting = Counting;

const LIMIT: Duration = Duration::from_secs(60);
const EAGER: usize = 64;
/// One message of this many is longer than the eager limit.
const LONG: u64 = 8;
const SLOT: usize = 128;
const SLOTS: u64 = 64;
/// The most that the last sample may exceed the first: queues of streams that double once or twice
/// when the CPU runs further ahead, and much less than one block, or two bytes, per request.
const BOUND: Held = Held {
    bytes: 1 << 19,
    blocks: 64,
    files: 4,
    maps: 8,
};

struct Side {
    ctx: Context,
    stream: Stream,
    out: Memory,
    into: Memory,
}

impl Side {
    fn len(i: u64) -> usize {
        if i.is_multiple_of(LONG) { SLOT } else { 8 }
    }

    fn at(i: u64) -> usize {
        (i % SLOTS) as usize * SLOT
    }

    fn send(&self, i: u64) {
        let data = self.out.slice(Self::at(i), Self::len(i)).unwrap();
        let (stream, peer) = (&self.stream, 1 - self.ctx.rank());
        drop(self.ctx.isend_on(stream, peer, 1, &data).unwrap());
    }

    fn receive(&self, i: u64) {
        let into = self.into.slice(Self::at(i), Self::len(i)).unwrap();
        let (stream, peer) = (&self.stream, 1 - self.ctx.rank());
        let request = self.ctx.irecv_on(stream, peer, 1, &into).unwrap();
        request.wait_on(stream).unwrap();
    }
}

fn contents(rank: u32) -> Vec<u8> {
    let bytes = 0..SLOT * SLOTS as usize;
    bytes
        .map(|at| (at * 7 + at / 251) as u8 ^ (rank as u8 + 1))
        .collect()
}

#[test]
fn requests_that_only_streams_wait_for_need_bounded_memory() {
    let sides: Vec<_> = Local::ranks(2)
        .into_iter()
        .map(|bootstrap| {
            let gpu = Gpu::soft().unwrap();
            let builder = Context::builder().bootstrap(bootstrap).gpu(&gpu);
            let ctx = builder.eager_limit(EAGER).timeout(LIMIT).build().unwrap();
            let len = SLOT * SLOTS as usize;
            let out = ctx.alloc(MemoryKind::Pinned, len).unwrap();
            out.write(0, &contents(ctx.rank())).unwrap();
            Side {
                stream: gpu.stream().unwrap(),
                out,
                into: ctx.alloc(MemoryKind::Pinned, len).unwrap(),
                ctx,
            }
        })
        .collect();
    let [a, b] = &sides[..] else { unreachable!() };
    // A turn is four requests: one message in each direction.
    let requests = times("GDS_SOAK", 1_500_000);
    let turns = requests.div_ceil(4).max(20 * SLOTS);
    let every = turns.div_ceil(1000);
    // Memory in flight varies: the minimum of each tenth of the run counts.
    let mut tenths: [Option<Held>; 10] = [None; 10];
    let start = Instant::now();
    for i in 0..turns {
        a.send(i);
        b.receive(i);
        b.send(i);
        a.receive(i);
        if i % every == 0 {
            let least = &mut tenths[(i * 10 / turns) as usize];
            let now = Held::now();
            *least = Some(least.map_or(now, |held| held.least(now)));
        }
    }
    let took = start.elapsed();
    for side in &sides {
        assert!(side.stream.synchronize(LIMIT).unwrap());
        side.ctx.close(LIMIT).unwrap();
        assert_eq!(side.ctx.error(), None);
        let expected = contents(1 - side.ctx.rank());
        let mut got = vec![0; expected.len()];
        side.into.read(0, &mut got).unwrap();
        for i in 0..SLOTS {
            let (at, len) = (Side::at(i), Side::len(i));
            assert_eq!(got[at..][..len], expected[at..][..len], "message {i}");
        }
    }
    println!("{} requests in {took:?}: {tenths:#?}", 4 * turns);
    let early = tenths[1].expect("a sample was taken");
    for later in &tenths[2..] {
        let grew = later.expect("a sample was taken").since(early);
        assert!(grew.within(BOUND), "it grew by {grew:?} from {early:?}");
    }
}
