//! Thousands of steps of an exchange with neighbours on streams that run ahead of the CPU: memory
//! use does not grow.

#[path = "common/heap.rs"]
mod heap;
#[path = "common/samples.rs"]
mod samples;

use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::{MemoryKind, Stream};
use heap::{Counting, times};
use mp::bootstrap::Local;
use mp::{Context, Memory, Neighbour, Neighbourhood, PathChoice};
use samples::Samples;

#[global_allocator]
static HEAP: Counting = Counting;

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 3000;
const DOUBLE: u32 = 7;

struct Side {
    ctx: Context,
    stream: Stream,
    field: Memory,
    halos: [Neighbourhood; 2],
}

/// A rank with one exchange of contiguous pieces and one, double-buffered, of columns.
fn open(ctx: Context) -> Side {
    let (me, peer) = (ctx.rank(), 1 - ctx.rank());
    let field = ctx.alloc(MemoryKind::Device, 4 * LEN).unwrap();
    field.write(0, &[me as u8 + 1; LEN]).unwrap();
    let build = |tag: u32| {
        let one = Neighbour::new(peer, tag, tag);
        let one = match tag {
            DOUBLE => one
                .send(field.strided(0, 10, 30, 100).unwrap())
                .receive(field.strided(2 * LEN, 10, 20, 100).unwrap()),
            _ => one
                .send(&field.slice(0, LEN).unwrap())
                .receive(&field.slice(LEN, LEN).unwrap()),
        };
        let halo = ctx.neighbourhood().neighbour(one);
        halo.double_buffered(tag == DOUBLE).build().unwrap()
    };
    let halos = [build(0), build(DOUBLE)];
    Side {
        stream: ctx.gpu().stream().unwrap(),
        field,
        halos,
        ctx,
    }
}

#[test]
fn steps_need_bounded_memory() {
    let ranks = Local::ranks(2).into_iter().map(|job| {
        std::thread::spawn(move || {
            let gpu = Gpu::soft().unwrap();
            let builder = Context::builder().bootstrap(job).gpu(&gpu);
            // A queue of copies may grow to 4,096 puts, beyond what the samples show.
            let builder = builder.path(PathChoice::Nic).timeout(LIMIT);
            open(builder.build().unwrap())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let sides: Vec<Side> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let steps = times("GDS_SOAK", 50_000).div_ceil(10);
    let mut samples = Samples::of(steps);
    for step in 0..steps {
        for at in 0..2 {
            for side in &sides {
                side.halos[at].ready_on(&side.stream).unwrap();
            }
            for side in &sides {
                side.halos[at].send_on(&side.stream).unwrap();
                side.halos[at].wait_on(&side.stream).unwrap();
            }
        }
        samples.sample(step);
    }
    for side in &sides {
        side.ctx.synchronize(&side.stream, LIMIT).unwrap();
        let theirs = 2 - side.ctx.rank() as u8;
        let mut got = vec![0; 3 * LEN];
        side.field.read(LEN, &mut got).unwrap();
        assert!(got[..LEN].iter().all(|byte| *byte == theirs));
        let column = |at: &usize| at % 20 < 10 && *at < 2000;
        for at in 0..2 * LEN {
            let expected = if column(&at) { theirs } else { 0 };
            assert_eq!(got[LEN + at], expected, "byte {at}");
        }
        assert_eq!(side.halos[0].step(), steps);
    }
    println!("{steps} steps: {samples:#?}");
    samples.check();
}
