//! Hundreds of thousands of requests that only streams wait for, without a wait of the CPU and with
//! every handle dropped at once: memory use does not grow.

#[path = "common/heap.rs"]
mod heap;
#[path = "common/samples.rs"]
mod samples;

use std::time::{Duration, Instant};

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use heap::{Counting, times};
use mp::bootstrap::Local;
use mp::{Context, Memory, PathChoice};
use samples::Samples;

#[global_allocator]
static HEAP: Counting = Counting;

const LIMIT: Duration = Duration::from_secs(60);
const EAGER: usize = 64;
/// One message of this many is longer than the eager limit.
const LONG: u64 = 8;
const SLOT: usize = 128;
const SLOTS: u64 = 64;

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
            // A queue of copies may grow to 4,096 puts, beyond what the samples show.
            let builder = builder.path(PathChoice::Nic).eager_limit(EAGER);
            let ctx = builder.timeout(LIMIT).build().unwrap();
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
    let mut samples = Samples::of(turns);
    let start = Instant::now();
    for i in 0..turns {
        a.send(i);
        b.receive(i);
        b.send(i);
        a.receive(i);
        samples.sample(i);
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
    println!("{} requests in {took:?}: {samples:#?}", 4 * turns);
    samples.check();
}
