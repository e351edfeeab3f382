//! Calls on streams, and short messages of the CPU, in their steady state allocate nothing on the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use gdsync::Gpu;
use gdsync::gpu::{Condition, MemoryKind, Stream};
use mp::bootstrap::Local;
use mp::{
    Collectives, Context, Memory, Neighbour, Neighbourhood, Op, Path, Progress, RecvOp, Request,
    SendOp, Slice, Window,
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
const SHORT_TAG: u32 = 10;
const LARGE_TAG: u32 = 11;

/// A rank of two, both of which the test's thread plays.
struct Side {
    ctx: Context,
    stream: Stream,
    memory: Memory,
    window: Window,
    halos: [Neighbourhood; 2],
    all: Collectives,
    /// Messages are by mapped memory.
    maps: bool,
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
            maps: matches!(ctx.path(peer), Some((Path::Ipc, _))),
            ctx,
        }
    }

    fn peer(&self) -> u32 {
        1 - self.ctx.rank()
    }

    fn slice(&self, at: usize, len: usize) -> Slice {
        self.memory.slice(at, len).unwrap()
    }

    /// Posts a receive from the peer and a send to it.
    fn exchange(&self, tag: u32, len: usize) -> [Request; 2] {
        let (ctx, stream, peer) = (&self.ctx, &self.stream, self.peer());
        let (data, into) = (self.slice(0, len), self.slice(LARGE, len));
        let recv = ctx.irecv_on(stream, peer, tag, &into).unwrap();
        [recv, ctx.isend_on(stream, peer, tag, &data).unwrap()]
    }

    /// As [`Side::exchange`], of zero-SM messages, unless the ranks use the NIC.
    fn exchange_zero_sm(&self, tag: u32, len: usize) -> [Request; 2] {
        let (stream, peer) = (&self.stream, self.peer());
        let [data, into] = [0, LARGE].map(|at| [self.slice(at, len)]);
        let recv = RecvOp::new(peer, tag, &into).on(stream).zero_sm(self.maps);
        let send = SendOp::new(peer, tag, &data).on(stream).zero_sm(self.maps);
        let recv = self.ctx.post_recv(&recv).unwrap();
        [recv, self.ctx.post_send(&send).unwrap()]
    }

    /// As [`Side::exchange`], by prepared requests; `bound`: they are prepared for the stream.
    fn post_all(&self, tag: u32, len: usize, bound: bool) -> [Request; 2] {
        let (ctx, stream, peer) = (&self.ctx, &self.stream, self.peer());
        let (data, into) = (self.slice(0, len), self.slice(LARGE, len));
        let recv = RecvOp::from((peer, tag, &into));
        let send = SendOp::from((peer, tag, &data));
        let (recv, send) = match bound {
            false => (recv, send),
            true => (recv.on(stream), send.on(stream)),
        };
        let both = [ctx.prepare_recv(&recv), ctx.prepare_send(&send)].map(Result::unwrap);
        ctx.post_all_on(stream, &both).unwrap();
        both
    }

    fn wait_all(&self, requests: &[Request]) {
        self.ctx.wait_all_on(&self.stream, requests).unwrap();
    }

    fn step(&self, halo: &Neighbourhood) {
        halo.ready_on(&self.stream).unwrap();
        halo.send_on(&self.stream).unwrap();
        halo.wait_on(&self.stream).unwrap();
    }

    fn collectives(&mut self) {
        let stream = &self.stream;
        let (data, into) = (self.slice(0, 64), self.slice(256, 128));
        let all = &mut self.all;
        all.barrier_on(stream).unwrap();
        all.all_reduce_on::<f64>(stream, &data, Op::Sum).unwrap();
        all.broadcast_on(stream, 0, &data).unwrap();
        all.all_gather_on(stream, &data, &into).unwrap();
    }

    /// One-sided operations, with a signal of this value to each other.
    fn access(&self, value: u64) {
        let (window, stream, peer) = (&self.window, &self.stream, self.peer());
        let (data, old) = (self.slice(0, 64), self.slice(64, 8));
        drop(window.put_on(stream, peer, 64, &data).unwrap());
        drop(window.get_on(stream, peer, 64, &data).unwrap());
        drop(window.fetch_add_on(stream, peer, 8, 1, &old).unwrap());
        let signalled = window.put_signal_on(stream, peer, 64, &data, 0, value);
        drop(signalled.unwrap());
        window.fence_on(stream, peer).unwrap();
        window.quiet_on(stream).unwrap();
        let waited = window.wait_signal_on(stream, peer, 0, Condition::Geq, value);
        waited.unwrap();
    }

    fn ready_words(&self) {
        self.ctx.send_ready_on(&self.stream, self.peer()).unwrap();
        self.ctx.wait_ready_on(&self.stream, self.peer()).unwrap();
    }

    /// Calls that connect the ranks, which both make at the same time.
    fn connect(&mut self) {
        // With mapped memory, a peer maps the memory of large receives at their first use.
        for len in [LEN, LARGE] {
            for tag in [SHORT_TAG, LARGE_TAG] {
                self.wait_all(&self.exchange(tag, len));
                self.wait_all(&self.exchange_zero_sm(tag, len));
            }
        }
        self.halos.iter().for_each(|halo| self.step(halo));
        self.all.barrier_on(&self.stream).unwrap();
        self.ready_words();
        self.ctx.synchronize(&self.stream, LIMIT).unwrap();
    }
}

/// Opens both ranks, and connects them.
fn open() -> Vec<Side> {
    let ranks = Local::ranks(2).into_iter().map(|job| {
        std::thread::spawn(move || {
            let gpu = Gpu::soft().unwrap();
            let builder = Context::builder().bootstrap(job).gpu(&gpu);
            let builder = builder.timeout(LIMIT).progress(Progress::Manual);
            let mut side = Side::open(builder.build().unwrap());
            side.connect();
            side
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn progress(sides: &[Side]) {
    for side in sides {
        side.ctx.progress();
    }
}

/// Repeats a round of calls of both ranks. Returns the allocations once all buffers have their
/// size.
fn count_of(name: &str, sides: &mut [Side], mut round: impl FnMut(&mut Side, u64)) -> u64 {
    /// More than the sweeps of the tables of requests take.
    const WARM: u64 = 1500;
    const ROUNDS: u64 = 300;
    let mut allocated = 0;
    for at in 0..WARM + ROUNDS {
        let before = COUNT.get();
        sides.iter_mut().for_each(|side| round(side, at));
        if at >= WARM {
            allocated += COUNT.get() - before;
        }
        // The requests end before the next round, so that each round finds as many as the last.
        for side in &*sides {
            while !side.stream.synchronize(Duration::from_millis(1)).unwrap() {
                progress(sides);
            }
        }
        progress(sides);
    }
    println!("{name}: {allocated} allocations in {ROUNDS} rounds");
    allocated
}

#[test]
fn calls_allocate_nothing_in_their_steady_state() {
    let sides = &mut open()[..];
    let mut all = 0;
    for (tag, len) in [(SHORT_TAG, LEN), (LARGE_TAG, LARGE)] {
        all += count_of(&format!("messages of {len} bytes"), sides, |side, _| {
            let both = side.exchange(tag, len);
            both.iter()
                .for_each(|one| one.wait_on(&side.stream).unwrap());
        });
        all += count_of(&format!("wait_all_on for {len} bytes"), sides, |side, _| {
            side.wait_all(&side.exchange(tag, len));
        });
        all += count_of(&format!("zero-SM, {len} bytes"), sides, |side, _| {
            side.wait_all(&side.exchange_zero_sm(tag, len));
        });
        all += count_of(&format!("post_all_on of {len} bytes"), sides, |side, at| {
            side.wait_all(&side.post_all(tag, len, at % 2 == 1));
        });
    }
    for (at, name) in ["neighbourhood", "double-buffered neighbourhood"]
        .into_iter()
        .enumerate()
    {
        all += count_of(name, sides, |side, _| side.step(&side.halos[at]));
        all += count_of(&format!("{name} by one call"), sides, |side, _| {
            side.halos[at].exchange_on(&side.stream).unwrap();
        });
    }
    all += count_of("messages of the CPU", sides, |side, _| {
        let (ctx, peer, data) = (&side.ctx, side.peer(), side.slice(0, LEN));
        let one = match ctx.rank() {
            0 => ctx.isend(peer, SHORT_TAG, &data).unwrap(),
            _ => ctx.irecv(peer, SHORT_TAG, &data).unwrap(),
        };
        one.wait(LIMIT).unwrap();
    });
    all += count_of("collectives", sides, |side, _| side.collectives());
    all += count_of("windows", sides, |side, at| side.access(at + 1));
    all += count_of("ready words", sides, |side, _| side.ready_words());
    assert_eq!(all, 0, "allocations");
}
