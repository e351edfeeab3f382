//! Calls on streams in their steady state allocate nothing on the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::{Condition, MemoryKind, Stream};
use mp::bootstrap::Local;
use mp::{
    Collectives, Context, Memory, Neighbour, Neighbourhood, Op, Progress, RecvOp, SendOp, Slice,
    Window,
};

const LIMIT: Duration = Duration::from_secs(60);

struct Counting;

thread_local! {
    /// Allocations of this thread: the background threads have their own.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    COUNT.set(COUNT.get() + 1);
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that the allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

const LEN: usize = 256;
const LARGE: usize = 20_000;

/// A rank of two, both of which the test's thread plays.
struct Side {
    ctx: Context,
    stream: Stream,
    memory: Memory,
    window: Window,
    halos: [Neighbourhood; 2],
    all: Collectives,
}

impl Side {
    fn open(ctx: Context) -> Side {
        let memory = ctx.alloc(MemoryKind::Device, 4 * LARGE).unwrap();
        let peer = 1 - ctx.rank();
        let build = |tag, double| {
            let one = Neighbour::new(peer, tag, tag);
            let one = match double {
                false => one
                    .send(&memory.slice(0, LEN).unwrap())
                    .receive(&memory.slice(LEN, LEN).unwrap()),
                true => one
                    .send(memory.strided(0, 4, 16, 64).unwrap())
                    .receive(memory.strided(4096, 4, 16, 64).unwrap()),
            };
            let halo = ctx.neighbourhood().neighbour(one);
            halo.double_buffered(double).build().unwrap()
        };
        Side {
            stream: ctx.gpu().stream().unwrap(),
            window: ctx
                .window(&ctx.alloc(MemoryKind::Pinned, 2 * LEN).unwrap())
                .unwrap(),
            halos: [build(1, false), build(2, true)],
            all: ctx.collectives(LEN).unwrap(),
            memory,
            ctx,
        }
    }

    fn peer(&self) -> u32 {
        1 - self.ctx.rank()
    }

    fn slice(&self, at: usize, len: usize) -> Slice {
        self.memory.slice(at, len).unwrap()
    }
}

/// Repeats a round of calls. Returns the allocations once all buffers have their size.
fn count_of(name: &str, sides: &mut [Side], mut round: impl FnMut(&mut [Side], u64)) -> u64 {
    /// More than the sweeps of the tables of requests take.
    const WARM: u64 = 1500;
    const ROUNDS: u64 = 300;
    let mut allocated = 0;
    for at in 0..WARM + ROUNDS {
        let before = COUNT.get();
        round(sides, at);
        if at >= WARM {
            allocated += COUNT.get() - before;
        }
        // The requests end before the next round, so that each round finds as many as the last.
        let progress = |sides: &[Side]| {
            sides
                .iter()
                .fold(false, |any, side| any | side.ctx.progress())
        };
        for at in 0..sides.len() {
            while !sides[at]
                .stream
                .synchronize(Duration::from_millis(1))
                .unwrap()
            {
                progress(sides);
            }
        }
        progress(sides);
    }
    println!("{name}: {allocated} allocations in {ROUNDS} rounds");
    allocated
}

#[test]
fn calls_on_streams_allocate_nothing_in_their_steady_state() {
    let ranks = Local::ranks(2).into_iter().map(|job| {
        std::thread::spawn(move || {
            let gpu = Gpu::soft().unwrap();
            let builder = Context::builder().bootstrap(job).gpu(&gpu);
            let builder = builder.timeout(LIMIT).progress(Progress::Manual);
            Side::open(builder.build().unwrap())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let mut sides: Vec<Side> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    // The first call of each kind connects the ranks.
    std::thread::scope(|threads| {
        for side in &mut sides {
            threads.spawn(|| {
                let (ctx, stream, peer) = (&side.ctx, &side.stream, side.peer());
                for tag in [10, 11, 12, 13] {
                    let into = side.slice(LARGE, LEN);
                    let recv = ctx.irecv_on(stream, peer, tag, &into).unwrap();
                    let data = side.slice(0, LEN);
                    let send = ctx.isend_on(stream, peer, tag, &data).unwrap();
                    ctx.wait_all_on(stream, &[recv, send]).unwrap();
                }
                side.halos
                    .iter()
                    .for_each(|halo| halo.ready_on(stream).unwrap());
                side.halos
                    .iter()
                    .for_each(|halo| halo.send_on(stream).unwrap());
                side.halos
                    .iter()
                    .for_each(|halo| halo.wait_on(stream).unwrap());
                side.all.barrier_on(stream).unwrap();
                ctx.send_ready_on(stream, peer).unwrap();
                ctx.wait_ready_on(stream, peer).unwrap();
                ctx.synchronize(stream, LIMIT).unwrap();
            });
        }
    });
    let mut all = 0;
    for (tag, len) in [(10, LEN), (11, LARGE)] {
        all += count_of(
            &format!("messages of {len} bytes"),
            &mut sides,
            |sides, _| {
                for side in &*sides {
                    let (ctx, stream, peer) = (&side.ctx, &side.stream, side.peer());
                    let into = side.slice(LARGE, len);
                    let recv = ctx.irecv_on(stream, peer, tag, &into).unwrap();
                    let data = side.slice(0, len);
                    let send = ctx.isend_on(stream, peer, tag, &data).unwrap();
                    recv.wait_on(stream).unwrap();
                    send.wait_on(stream).unwrap();
                }
            },
        );
        all += count_of(
            &format!("wait_all_on for {len} bytes"),
            &mut sides,
            |sides, _| {
                for side in &*sides {
                    let (ctx, stream, peer) = (&side.ctx, &side.stream, side.peer());
                    let into = side.slice(LARGE, len);
                    let recv = ctx.irecv_on(stream, peer, tag, &into).unwrap();
                    let data = side.slice(0, len);
                    let send = ctx.isend_on(stream, peer, tag, &data).unwrap();
                    ctx.wait_all_on(stream, &[recv, send]).unwrap();
                }
            },
        );
        all += count_of(
            &format!("post_all_on of {len} bytes"),
            &mut sides,
            |sides, round| {
                for side in &*sides {
                    let (ctx, stream, peer) = (&side.ctx, &side.stream, side.peer());
                    let (data, into) = (side.slice(0, len), side.slice(LARGE, len));
                    let recv = RecvOp::from((peer, tag, &into));
                    let send = SendOp::from((peer, tag, &data));
                    let both = match round % 2 {
                        0 => [ctx.prepare_recv(&recv), ctx.prepare_send(&send)],
                        _ => [
                            ctx.prepare_recv(&recv.on(stream)),
                            ctx.prepare_send(&send.on(stream)),
                        ],
                    };
                    let both = both.map(|one| one.unwrap());
                    ctx.post_all_on(stream, &both).unwrap();
                    ctx.wait_all_on(stream, &both).unwrap();
                }
            },
        );
    }
    for (at, name) in ["neighbourhood", "double-buffered neighbourhood"]
        .into_iter()
        .enumerate()
    {
        all += count_of(name, &mut sides, |sides, _| {
            for side in &*sides {
                side.halos[at].ready_on(&side.stream).unwrap();
                side.halos[at].send_on(&side.stream).unwrap();
                side.halos[at].wait_on(&side.stream).unwrap();
            }
        });
    }
    all += count_of("collectives", &mut sides, |sides, _| {
        for side in sides {
            let stream = &side.stream;
            let (data, all) = (side.memory.slice(0, 64), side.memory.slice(256, 128));
            let (data, into) = (data.unwrap(), all.unwrap());
            side.all.barrier_on(stream).unwrap();
            side.all
                .all_reduce_on::<f64>(stream, &data, Op::Sum)
                .unwrap();
            side.all.broadcast_on(stream, 0, &data).unwrap();
            side.all.all_gather_on(stream, &data, &into).unwrap();
        }
    });
    all += count_of("windows", &mut sides, |sides, round| {
        for side in &*sides {
            let (window, stream, peer) = (&side.window, &side.stream, side.peer());
            let data = side.slice(0, 64);
            let old = side.slice(64, 8);
            drop(window.put_on(stream, peer, 64, &data).unwrap());
            drop(window.get_on(stream, peer, 64, &data).unwrap());
            drop(window.fetch_add_on(stream, peer, 8, 1, &old).unwrap());
            drop(
                window
                    .put_signal_on(stream, peer, 64, &data, 0, round + 1)
                    .unwrap(),
            );
            window.fence_on(stream, peer).unwrap();
            window.quiet_on(stream).unwrap();
        }
        for side in &*sides {
            let (window, stream) = (&side.window, &side.stream);
            let geq = Condition::Geq;
            window
                .wait_signal_on(stream, side.peer(), 0, geq, round + 1)
                .unwrap();
        }
    });
    all += count_of("ready words", &mut sides, |sides, _| {
        for side in &*sides {
            side.ctx.send_ready_on(&side.stream, side.peer()).unwrap();
            side.ctx.wait_ready_on(&side.stream, side.peer()).unwrap();
        }
    });
    assert_eq!(all, 0, "allocations");
}
