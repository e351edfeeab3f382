//! Ranks under the simulation: one thread, a virtual clock, exact time limits. The library's
//! warnings are kept.
#![allow(dead_code, reason = "each test uses a part")]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use gds_sim::{Sim, SimConfig, SimControl, SimReport};
use gds_step::{Host, Thread};
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{Dims, Kernel, MemoryKind, Region, Stream};
use gdsync::rdma::Device;
use gdsync::{EmulatedOptions, Gpu, Status};
use mp::bootstrap::Local;
use mp::{
    Bootstrap, Builder, Context, Kind, Neighbourhood, PathChoice, Progress, Request, Slice, Source,
};
use vmlx5::fabric::NodeId;
use vmlx5::fabric::faults::Faults;
use vmlx5::fabric::hub::{Hub, HubConfig};

#[path = "alarm.rs"]
mod alarm;
#[path = "gate.rs"]
pub mod gate;

pub use alarm::Warnings;

/// The virtual time after which the test reports a hang.
pub const LIMIT: Duration = Duration::from_secs(100);

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One rank's view of the world.
pub struct Rank {
    pub me: u32,
    pub ranks: u32,
    pub host: Arc<dyn Host>,
    /// Freezes machines and ranks.
    pub control: SimControl,
    pub warnings: Warnings,
    hub: Hub,
    /// The number of NICs opened so far; NICs are numbered in this order.
    nodes: Rc<Cell<u64>>,
    /// Where the last context was opened: its node, and the names of NIC and GPU.
    place: RefCell<(u64, String, String)>,
    bootstrap: RefCell<Option<Arc<dyn Bootstrap>>>,
    /// The number of barriers that each rank has reached.
    arrived: Rc<RefCell<Vec<u64>>>,
}

/// A GPU with a NIC.
pub struct Place {
    pub gpu: Gpu,
    pub device: Device,
    node: u64,
}

impl Rank {
    /// The other rank of two.
    pub fn peer(&self) -> u32 {
        1 - self.me
    }

    /// The next rank, and the previous one.
    pub fn neighbours(&self) -> (u32, u32) {
        let n = self.ranks;
        ((self.me + 1) % n, (self.me + n - 1) % n)
    }

    /// This rank's bootstrap.
    pub fn bootstrap(&self) -> Arc<dyn Bootstrap> {
        Arc::clone(self.bootstrap.borrow().as_ref().expect("the rank left"))
    }

    /// Leaves the job; the caller has dropped its contexts.
    pub fn leave(&self) {
        self.bootstrap.borrow_mut().take();
    }

    /// A GPU and a NIC; `watched`: gdsync monitors the NIC by itself.
    pub fn place(&self, options: SoftOptions, watched: bool) -> Place {
        self.place_with(options, watched, Faults::default())
    }

    /// As [`Rank::place`], with faults of the NIC.
    pub fn place_with(&self, options: SoftOptions, watched: bool, faults: Faults) -> Place {
        let gpu = Gpu::soft_with(Arc::clone(&self.host), options).unwrap();
        let options = EmulatedOptions::default()
            .hub(self.hub.clone())
            .faults(faults);
        self.nodes.set(self.nodes.get() + 1);
        let node = self.nodes.get();
        let device = match watched {
            true => Device::emulated_with(&gpu, options),
            false => Device::emulated_unwatched(&gpu, options),
        };
        Place {
            device: device.unwrap(),
            gpu,
            node,
        }
    }

    /// A context on a GPU and a NIC of its own.
    pub fn open(&self, build: impl FnOnce(Builder) -> Builder) -> Context {
        self.open_at(&self.place(options(), true), build)
    }

    /// As [`Rank::open`], with manual progress.
    pub fn open_manual(&self, build: impl FnOnce(Builder) -> Builder) -> Context {
        let place = self.place(options(), false);
        self.open_at(&place, |b| build(b).progress(Progress::Manual))
    }

    pub fn open_at(&self, place: &Place, build: impl FnOnce(Builder) -> Builder) -> Context {
        let (nic, gpu) = (place.device.name(), place.gpu.name());
        let names = (nic.replace("emulated ", ""), gpu.replace("soft ", ""));
        self.place.replace((place.node, names.0, names.1));
        let builder = Context::builder().bootstrap(self.bootstrap());
        let builder = builder.gpu(&place.gpu).device(&place.device);
        build(builder).build().unwrap()
    }

    /// Waits until all ranks have reached this barrier.
    pub fn barrier(&self) {
        let mine = self.come();
        self.until("another rank did not reach the barrier", || {
            self.arrived.borrow().iter().all(|a| *a >= mine)
        });
    }

    /// Passes all later barriers, for a rank that dies: the others do not wait for it.
    pub fn never_mind(&self) {
        self.arrived.borrow_mut()[self.me as usize] = u64::MAX;
        self.host.ring();
    }

    /// Reaches the next barrier without waiting; returns its number.
    pub fn come(&self) -> u64 {
        let mut arrived = self.arrived.borrow_mut();
        arrived[self.me as usize] += 1;
        self.host.ring();
        arrived[self.me as usize]
    }

    /// Whether another rank has reached this many barriers.
    pub fn has_come(&self, rank: u32, barriers: u64) -> bool {
        self.arrived.borrow()[rank as usize] >= barriers
    }

    /// Waits until `condition` holds.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = self.host.now() + LIMIT;
        assert!(
            self.host.wait_until(Some(deadline), &mut condition),
            "rank {}: {what}",
            self.me
        );
    }

    /// Does the background work of a context until `condition` holds.
    pub fn progress_until(&self, ctx: &Context, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = self.host.now() + LIMIT;
        while !condition() {
            assert!(self.host.now() < deadline, "rank {}: {what}", self.me);
            ctx.progress();
            self.pass(millis(1));
        }
    }

    /// Waits for this virtual time.
    pub fn pass(&self, time: Duration) {
        let deadline = self.host.now() + time;
        self.host.wait_until(Some(deadline), &mut || false);
    }

    /// Disconnects the NIC for good: its peers see their links lost.
    fn cut(&self) {
        assert!(self.hub.kill(NodeId(self.place.borrow().0)));
        self.host.ring();
    }

    /// Stops rank and machines for ever, as if the process were stopped: no peer is notified.
    fn freeze(&self) {
        let (_, nic, gpu) = self.place.take();
        let me = self.me;
        for name in [
            nic.clone(),
            gpu + ".engine",
            nic + ".watcher",
            format!("mp{me}.progress"),
            format!("rank{me}"),
        ] {
            self.control.kill(&name);
        }
        // The scheduler runs another rank next.
        self.pass(secs(1));
        unreachable!("a frozen rank runs again");
    }
}

/// A context whose messages use the NIC, for tests of the NIC and of its limits.
pub fn by_nic(builder: Builder) -> Builder {
    builder.path(PathChoice::Nic)
}

/// How a rank dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its context and its place in the job are dropped.
    Leaves,
    /// Its context is dropped; it stays in the job.
    Closes,
    /// Its NIC is disconnected.
    IsCut,
    /// Rank and machines execute nothing any more.
    Freezes,
}

impl Death {
    pub const ALL: [Death; 4] = [Death::Leaves, Death::Closes, Death::IsCut, Death::Freezes];

    /// A context for this death: no fault cuts a rank off from memory that others have mapped.
    pub fn build(self, builder: Builder) -> Builder {
        match self {
            Death::IsCut => by_nic(builder),
            _ => builder,
        }
    }

    /// As [`Death::build`], for one-sided operations: copies to memory of a rank that is frozen
    /// succeed, and the CPU waits for it until the limit of its call.
    pub fn build_one_sided(self, builder: Builder) -> Builder {
        match self {
            Death::Freezes => by_nic(builder),
            _ => self.build(builder),
        }
    }

    /// Ends the rank that dies; rank 0, which survives, reaches `barriers` barriers.
    pub fn end(self, rank: &Rank, ctx: Context, barriers: u64) {
        rank.never_mind();
        match self {
            Death::Freezes => return rank.freeze(),
            Death::IsCut => rank.cut(),
            Death::Leaves | Death::Closes => drop(ctx),
        }
        match self {
            Death::Leaves => rank.leave(),
            _ => rank.until("the end", || rank.has_come(0, barriers)),
        }
    }
}

/// The result of a simulation.
pub struct Run {
    pub report: SimReport,
    pub warnings: Warnings,
}

/// Runs `body` as each of `ranks` ranks, under the schedule drawn from `seed`.
///
/// # Panics
/// If a rank panics, or if no rank can continue; the message contains the seed.
pub fn play(seed: u64, ranks: u32, body: impl Fn(&Rank) + Clone + 'static) -> Run {
    let config = SimConfig {
        max_turns: 100_000_000,
        ..SimConfig::seed(seed)
    };
    let mut sim = Sim::new(config);
    let host = sim.host();
    let hub = Hub::new(HubConfig {
        scheduled: true,
        ring_bytes: 128 << 10,
    });
    host.attach(Thread::Device, Box::new(hub.link_machine(seed)));
    let warnings = Warnings::default();
    let arrived = Rc::new(RefCell::new(vec![0; ranks as usize]));
    let nodes = Rc::new(Cell::new(0));
    for (me, bootstrap) in (0..).zip(Local::ranks_of(seed, ranks)) {
        let rank = Rank {
            me,
            ranks,
            host: Arc::clone(&host),
            control: sim.control(),
            warnings: warnings.clone(),
            hub: hub.clone(),
            nodes: Rc::clone(&nodes),
            place: RefCell::default(),
            bootstrap: RefCell::new(Some(bootstrap)),
            arrived: Rc::clone(&arrived),
        };
        let body = body.clone();
        sim.rank(format!("rank{me}"), move || body(&rank));
    }
    let dispatch = warnings.dispatch();
    let report = tracing::dispatcher::with_default(&dispatch, || sim.run());
    let report = report.unwrap_or_else(|e| panic!("{e}\n{:#?}", warnings.all()));
    Run { report, warnings }
}

/// Tests count on 8 channels, whatever `GDS_SOFT_CAPS` says.
fn options() -> SoftOptions {
    SoftOptions::default().channels(8)
}

/// Runs `body` as each of two ranks, with a context built by `build`; both end together.
pub fn pair(
    build: impl Fn(Builder) -> Builder + Clone + 'static,
    body: impl Fn(&Rank, &Context) + Clone + 'static,
) -> Run {
    play(1, 2, move |rank| {
        let ctx = rank.open(&build);
        body(rank, &ctx);
        rank.barrier();
    })
}

/// Bytes of an eager message, and of a message that waits for its receive.
pub const SMALL: usize = 8;
pub const LARGE: usize = 10_000;

/// A slice of newly allocated memory.
pub fn slice(ctx: &Context, len: usize) -> Slice {
    ctx.alloc(MemoryKind::Pinned, len).unwrap().all()
}

/// Sends a message to another rank by the CPU, and waits for its success.
pub fn send(ctx: &Context, to: u32, tag: u32, len: usize) {
    let sent = ctx.isend(to, tag, &slice(ctx, len)).unwrap();
    sent.wait(LIMIT).unwrap();
}

/// Receives a message from another rank by the CPU, and waits for it.
pub fn recv(ctx: &Context, from: impl Into<Source>, tag: u32, len: usize) {
    let recv = ctx.irecv(from, tag, &slice(ctx, len)).unwrap();
    recv.wait(LIMIT).unwrap();
}

/// A receive that `stream` posts and waits for.
pub fn recv_on(
    ctx: &Context,
    stream: &Stream,
    from: impl Into<Source>,
    tag: u32,
    into: &Slice,
) -> Request {
    let recv = ctx.irecv_on(stream, from, tag, into).unwrap();
    recv.wait_on(stream).unwrap();
    recv
}

/// Checks the error of a request that failed with its peer.
#[track_caller]
pub fn peer_failed(e: &mp::Error, rank: u32) {
    assert!(matches!(e.kind(), Kind::PeerFailed(_)), "{e:?}");
    assert_eq!(e.rank(), Some(rank), "{e}");
}

/// As [`exchange_on`], on a new stream.
pub fn exchange(ctx: &Context, with: u32, tag: u32) {
    exchange_on(ctx, with, tag, &ctx.gpu().stream().unwrap());
}

/// The path to the neighbours, and whether a stream makes a step by one call: what [`step_on`] can do.
pub const STEP_WAYS: [(PathChoice, bool); 3] = [
    (PathChoice::Nic, false),
    (PathChoice::Ipc, false),
    (PathChoice::Ipc, true),
];

/// Enqueues a step of a neighbourhood, by one call or by three.
pub fn step_on(halo: &Neighbourhood, stream: &Stream, whole: bool) -> mp::Result<()> {
    if whole {
        return halo.exchange_on(stream);
    }
    halo.ready_on(stream)?;
    halo.send_on(stream)?;
    halo.wait_on(stream)
}

/// Exchanges messages in both directions under `tag`, small and large, on a stream and by the CPU.
pub fn exchange_on(ctx: &Context, with: u32, tag: u32, stream: &Stream) {
    for len in [SMALL, LARGE] {
        let (data, into) = (slice(ctx, len), slice(ctx, len));
        let payload = |rank: u32| vec![rank as u8 ^ 0x55; len];
        data.memory().write(0, &payload(ctx.rank())).unwrap();
        let recv = ctx.irecv_on(stream, with, tag, &into).unwrap();
        let send = ctx.isend_on(stream, with, tag, &data).unwrap();
        recv.wait_on(stream).unwrap();
        send.wait_on(stream).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap());
        assert_eq!(recv.wait(LIMIT).unwrap().len, len as u64);
        send.wait(LIMIT).unwrap();
        let mut got = vec![0; len];
        into.memory().read(0, &mut got).unwrap();
        assert_eq!(got, payload(with));
        let recv = ctx.irecv(with, tag, &into).unwrap();
        ctx.isend(with, tag, &data).unwrap().wait(LIMIT).unwrap();
        recv.wait(LIMIT).unwrap();
    }
}

/// The result of a request as a kernel behind the stream's wait read it.
pub struct Witness(Region);

#[repr(C)]
struct Look {
    error: u64,
    result: u64,
    saw: u64,
}

unsafe extern "C" fn look(params: *const c_void) {
    // SAFETY: the words live, as `Witness::launch` asks for; one thread runs this.
    unsafe {
        let look = &*params.cast::<Look>();
        let error = AtomicU32::from_ptr(look.error as *mut u32).load(Ordering::Acquire);
        let result = AtomicU64::from_ptr(look.result as *mut u64).load(Ordering::Acquire);
        let saw = look.saw as *mut u64;
        saw.write_volatile(1);
        saw.add(1).write_volatile(error.into());
        saw.add(2).write_volatile(result);
    }
}

impl Witness {
    /// Enqueues a kernel that reads the words of a request on `stream`; the request is held until
    /// the kernel has run.
    pub fn launch(stream: &Stream, ctx: &Context, request: &Request) -> Witness {
        let saw = stream.gpu().alloc(MemoryKind::Pinned, 64).unwrap();
        let args = [ctx.error_word(), request.result_word(), saw.addr()].map(|word| word.0);
        // SAFETY: the kernel is defined as C++ would define it: it keeps the rules for kernels.
        let kernel = unsafe { softgpu::Kernel::new("look", look, size_of::<Look>()) };
        // SAFETY: the words of the context and of the request live as long as their handles, the
        // other word as long as this.
        unsafe { stream.launch(&Kernel::soft(kernel), Dims::linear(1, 1), &args) }.unwrap();
        Witness(saw)
    }

    /// The error word, and the request's status and length; waits until the kernel has run.
    pub fn seen(&self) -> (Status, Status, u64) {
        let word = |i: usize| self.0.word64(8 * i).unwrap().load().unwrap();
        assert_eq!(word(0), 1, "the kernel did not run");
        let (error, result) = (word(1), word(2));
        let status = Status((result >> 48) as u32);
        (Status(error as u32), status, result & ((1 << 48) - 1))
    }
}
