//! Jobs of the simulation: the settings of their ranks' contexts, and the loss of a rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{Doorbell, Lowering, QpConfig};
use mp::bootstrap::Local;
use mp::{Bootstrap, Builder, Connect, Context, Kind, NicOptions, PathChoice};
use std::os::fd::{BorrowedFd, OwnedFd};

use vmlx5::fabric::faults::Faults;

use crate::mp::rank::close;
use crate::sim::world::{Devices, LIMIT, Rank};

/// The settings that all contexts of a job share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Slots of a channel.
    pub depth: u32,
    /// Longest eager message in bytes.
    pub eager: usize,
    /// Number of every channel's first message.
    pub start: u64,
    /// Number of tags that a context keeps.
    pub channels: usize,
    /// When peers are connected.
    pub connect: Connect,
    /// Time limit of waits for a peer.
    pub timeout: Duration,
    /// Blocks of a send queue.
    pub send_blocks: u32,
    /// The path of messages; `None`: `MP_PATH`.
    pub path: Option<PathChoice>,
}

impl Settings {
    /// Settings of a job without losses: small rings, so that everything wraps, and sequence
    /// numbers that begin shortly before they exceed 16 or 32 bits.
    pub fn draw(rng: &mut Rng) -> Settings {
        let wraps = [0, 1 << 16, 1 << 32][rng.usize(0..3)];
        Settings {
            depth: 1 << rng.u32(1..=4),
            eager: [1, 16, 64, 200, 4096][rng.usize(0..5)],
            start: u64::saturating_sub(wraps, rng.u64(0..20)),
            channels: rng.usize(4..=8),
            connect: match rng.u8(0..4) {
                0 => Connect::UpFront,
                _ => Connect::Lazy,
            },
            timeout: LIMIT / 2,
            send_blocks: 32,
            path: None,
        }
    }
}

/// The settings of one rank's queue pairs.
fn queues(rng: &mut Rng) -> QpConfig {
    let mut device = |one_in: u32| match rng.u32(0..one_in) {
        0 => MemoryKind::Device,
        _ => MemoryKind::Pinned,
    };
    QpConfig::default()
        .recv_entries(4)
        .recv_sges(1)
        .ring_memory(device(4))
        .cq_memory(device(4))
        .record_memory(device(4))
        .lowering([Lowering::Kernel, Lowering::MemOps, Lowering::Auto][rng.usize(0..3)])
        .doorbell(match rng.u8(0..5) {
            0 => Doorbell::CpuThread,
            _ => Doorbell::Direct,
        })
        .start(0u32.wrapping_sub(rng.u32(0..40)))
}

/// A launcher that can report the loss of ranks.
#[derive(Clone, Debug)]
struct Launcher {
    rank: Arc<dyn Bootstrap>,
    /// A bit for each lost rank. Relaxed: the world has one thread.
    gone: Arc<AtomicU64>,
    /// By rank: the number of control messages that it still sends before it dies. Relaxed: as
    /// above.
    left: Arc<[AtomicU64]>,
}

impl Bootstrap for Launcher {
    fn rank(&self) -> u32 {
        self.rank.rank()
    }

    fn size(&self) -> u32 {
        self.rank.size()
    }

    fn job(&self) -> u64 {
        self.rank.job()
    }

    fn send(&self, to: u32, topic: u64, message: &[u8]) -> mp::Result<()> {
        let left = &self.left[self.rank() as usize];
        match left.load(Ordering::Relaxed) {
            // A dead process sends nothing.
            0 => return Ok(()),
            u64::MAX => {}
            count => left.store(count - 1, Ordering::Relaxed),
        }
        self.rank.send(to, topic, message)
    }

    fn receive(&self, topic: u64) -> mp::Result<Option<(u32, Vec<u8>)>> {
        self.rank.receive(topic)
    }

    fn forget(&self, topic: u64) {
        self.rank.forget(topic);
    }

    fn gone(&self, rank: u32) -> bool {
        self.gone.load(Ordering::Relaxed) >> rank & 1 == 1 || self.rank.gone(rank)
    }

    fn host(&self, rank: u32) -> Option<u64> {
        self.rank.host(rank)
    }

    fn send_fd(&self, to: u32, topic: u64, fd: BorrowedFd<'_>) -> mp::Result<()> {
        match self.left[self.rank() as usize].load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => self.rank.send_fd(to, topic, fd),
        }
    }

    fn receive_fd(&self, topic: u64) -> mp::Result<Option<(u32, OwnedFd)>> {
        self.rank.receive_fd(topic)
    }
}

/// How bytes become visible at another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// By WRITEs in order.
    InOrder,
    /// By WRITEs out of order; with every fourth seed frames are also lost and duplicated.
    OutOfOrder,
    /// The ranks choose to map each other's memory.
    Mapped,
}

impl Wire {
    /// The faults of the wire of `seed`.
    fn faults(self, seed: u64) -> Faults {
        if self != Wire::OutOfOrder {
            return Faults::default();
        }
        let mut rng = Rng::with_seed(seed ^ 0xd150_d3e5);
        let bad = rng.u8(0..4) == 0;
        Faults {
            seed,
            ooo: [0.1, 0.5, 0.9][rng.usize(0..3)],
            loss: if bad { 0.002 } else { 0.0 },
            dup: if bad { 0.02 } else { 0.0 },
            ..Faults::default()
        }
    }
}

/// A job whose ranks are fibers.
#[derive(Clone, Debug)]
pub struct Job {
    /// The settings of its contexts.
    pub settings: Settings,
    seed: u64,
    ranks: Arc<[Arc<dyn Bootstrap>]>,
    gone: Arc<AtomicU64>,
    left: Arc<[AtomicU64]>,
    /// The faults of the wire.
    faults: Faults,
}

/// One rank of a job: its GPU, NIC and context.
pub struct Member {
    /// GPU and NIC.
    pub devices: Devices,
    /// The context.
    pub ctx: Context,
}

impl Job {
    /// A job of `ranks` ranks.
    pub fn new(seed: u64, ranks: u32, settings: Settings) -> Job {
        Job {
            settings,
            seed,
            ranks: Local::ranks_of(seed, ranks).into(),
            gone: Arc::default(),
            left: (0..ranks).map(|_| AtomicU64::new(u64::MAX)).collect(),
            faults: Faults::default(),
        }
    }

    /// The same job over this wire.
    pub fn over(mut self, wire: Wire) -> Job {
        self.settings.path = Some(match wire {
            Wire::Mapped => PathChoice::Auto,
            Wire::InOrder | Wire::OutOfOrder => PathChoice::Nic,
        });
        let faults = wire.faults(self.seed);
        self.on_a_wire(faults)
    }

    /// The same job with these faults on every NIC.
    pub fn on_a_wire(self, faults: Faults) -> Job {
        Job { faults, ..self }
    }

    /// Opens GPU and NIC of a rank.
    pub fn open(&self, rank: &Rank) -> Devices {
        let mut rng = self.own(rank);
        let mut options = SoftOptions::default().weak(softgpu::Weak::seeded(rng.u64(..)));
        // Payload in GPU memory becomes visible by write order, a flush by the CPU, a READ by the
        // NIC, or a flush by the wait.
        let caps = &mut options.caps;
        (caps.flush, caps.ordered_writes, caps.host_flush) = match rng.u8(0..6) {
            0 => (false, true, true),
            1 => (false, false, true),
            2 => (false, false, false),
            _ => (true, false, true),
        };
        rank.open_with(options, self.faults.clone())
    }

    fn own(&self, rank: &Rank) -> Rng {
        Rng::with_seed(self.seed ^ 0x5eed ^ (rank.me as u64) << 32)
    }

    /// A context of a rank over `place`, called `name`.
    pub fn context(&self, rank: &Rank, devices: &Devices, name: &str) -> mp::Result<Context> {
        let mut rng = self.own(rank);
        let launcher = Launcher {
            rank: Arc::clone(&self.ranks[rank.me]),
            gone: Arc::clone(&self.gone),
            left: Arc::clone(&self.left),
        };
        let settings = &self.settings;
        let queues = queues(&mut rng).send_blocks(settings.send_blocks);
        let builder = match settings.path {
            Some(path) => Builder::default().path(path),
            None => Builder::default(),
        };
        builder
            .bootstrap(Arc::new(launcher))
            .gpu(&devices.gpu)
            .device(&devices.device)
            .name(name)
            .depth(settings.depth)
            .eager_limit(settings.eager)
            .start(settings.start)
            .channels(settings.channels)
            .connect(settings.connect)
            .timeout(settings.timeout)
            .doorbell(queues.doorbell)
            .nic(NicOptions::default().queues(queues))
            .build()
    }

    /// Opens GPU, NIC and a context.
    pub fn join(&self, rank: &Rank) -> Member {
        let devices = self.open(rank);
        let ctx = self.context(rank, &devices, "mp").expect("a context");
        Member { devices, ctx }
    }

    /// Makes a rank die after it has sent this many control messages. The caller stops its process.
    pub fn die_after(&self, rank: usize, messages: u64) {
        self.left[rank].store(messages, Ordering::Relaxed);
    }

    /// The ranks that have died in this way.
    pub fn dead(&self) -> Vec<u32> {
        let ranks = (0..).zip(&*self.left);
        let dead = ranks.filter(|(_, left)| left.load(Ordering::Relaxed) == 0);
        dead.map(|(rank, _)| rank).collect()
    }

    /// Reports to all ranks that a rank is lost.
    pub fn mark_gone(&self, rank: usize) {
        self.gone.fetch_or(1 << rank, Ordering::Relaxed);
    }
}

impl Member {
    /// Closes the context and the NIC, in the order in which programs do it.
    pub fn leave(self) {
        self.leave_truncated(false);
    }

    /// As [`Member::leave`], where messages may have been truncated.
    pub fn leave_truncated(self, truncated: bool) {
        close(&self.ctx, LIMIT, truncated).expect("closed");
        self.end();
    }

    /// As [`Member::leave`], where a lost rank may not answer.
    pub fn leave_without(self, lost: u32) {
        close_without(&self.ctx, lost);
        self.end();
    }

    fn end(self) {
        drop(self.ctx);
        self.devices.device.close(LIMIT).expect("a quiet NIC");
    }
}

/// Closes a context whose peer `lost` may not answer. Dropped requests have failed, also those with
/// other ranks that stopped because of the loss.
pub fn close_without(ctx: &Context, lost: u32) {
    const FOR: Duration = Duration::from_secs(1);
    const TRIES: usize = 4;
    for _ in 0..TRIES {
        match ctx.close(FOR) {
            Ok(()) => return,
            Err(e) if e.kind() == Kind::Timeout => {
                let known = e.rank() == Some(lost) && e.reason().starts_with("no answer");
                assert!(known, "{e:?}");
                return;
            }
            Err(e) => {
                let failed = matches!(e.kind(), Kind::PeerFailed(_)) && e.tag().is_some();
                assert!(failed && e.rank() != Some(ctx.rank()), "{e:?}");
            }
        }
    }
    panic!("requests fail after all have failed");
}

/// The machines and the fiber of a rank, which stop with its process.
pub fn process(rank: &Rank, devices: &Devices) -> Vec<String> {
    let nic = devices.nic();
    vec![
        nic.clone() + ".watcher",
        nic.clone() + ".cpu",
        format!("mp{}.progress", rank.me),
        nic,
        devices.engine(),
        format!("rank{}", rank.me),
    ]
}
