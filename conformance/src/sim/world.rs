//! Ranks in the simulation: their GPUs and NICs, and a side channel for what they exchange outside
//! the library.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{Sim, SimConfig, SimControl, SimError, SimReport, When};
use gds_step::{Host, Thread};
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{Access, Device, Mr, Pd, Qp, QpAddress, QpConfig, RemoteMemory};
use gdsync::{EmulatedOptions, Gpu};
use vmlx5::fabric::NodeId;
use vmlx5::fabric::faults::Faults;
use vmlx5::fabric::hub::{Hub, HubConfig};

thread_local! {
    /// The digest of all worlds that this thread has run.
    static DIGEST: Cell<u64> = const { Cell::new(0) };
}

/// The result of `run`, and a digest of every choice and result in the worlds that it runs.
pub fn with_digest<R>(run: impl FnOnce() -> R) -> (R, u64) {
    DIGEST.set(0);
    (run(), DIGEST.get())
}

/// Virtual time after which a missing event counts as a hang.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The side channel of the ranks.
#[derive(Default)]
struct SideChannel {
    /// Records by writer and reader, oldest first.
    records: BTreeMap<(usize, usize), Vec<Vec<u8>>>,
    /// Number of barriers that each rank has entered.
    arrived: Vec<u64>,
}

/// One rank's view of the world.
#[derive(Clone)]
pub struct Rank {
    /// Its rank.
    pub me: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The driver.
    pub host: Arc<dyn Host>,
    /// Freezes machines and ranks.
    pub control: SimControl,
    hub: Hub,
    side_channel: Rc<RefCell<SideChannel>>,
}

/// A pause of one of the six machines of a rank.
pub struct Pause {
    rank: usize,
    part: usize,
    after: Duration,
    lasts: Duration,
}

impl Pause {
    /// Draws a pause.
    pub fn draw(rng: &mut Rng, ranks: usize) -> Pause {
        let longest = 1 << rng.u32(8..22);
        Pause {
            rank: rng.usize(0..ranks),
            part: rng.usize(0..6),
            after: Duration::from_nanos(rng.u64(0..1 << 18)),
            lasts: Duration::from_nanos(rng.u64(0..longest)),
        }
    }

    /// Draws up to three pauses.
    pub fn draw_some(rng: &mut Rng, ranks: usize) -> Rc<[Pause]> {
        let some = 0..rng.usize(0..4);
        some.map(|_| Pause::draw(rng, ranks)).collect()
    }
}

/// A rank's GPU and NIC.
pub struct Devices {
    /// Its GPU.
    pub gpu: Gpu,
    /// Its NIC.
    pub device: Device,
    /// Its protection domain.
    pub pd: Pd,
}

/// The name of a NIC's machine.
pub fn nic(device: &Device) -> String {
    device.name().replace("emulated ", "")
}

impl Devices {
    /// Registers new memory with all rights.
    pub fn memory(&self, kind: MemoryKind, len: usize) -> Mr {
        self.memory_with(kind, len, Access::ALL)
    }

    /// Registers new memory.
    pub fn memory_with(&self, kind: MemoryKind, len: usize, access: Access) -> Mr {
        let region = self.gpu.alloc(kind, len).expect("memory");
        self.pd.register(&region, access).expect("a registration")
    }

    /// The name of the NIC's machine, from which the names of its watcher and CPU thread derive.
    pub fn nic(&self) -> String {
        nic(&self.device)
    }

    /// The number of the NIC in the fabric.
    pub fn node(&self) -> u64 {
        let qp = self.pd.create_qp(&QpConfig::default());
        qp.expect("a queue pair").address().node
    }

    /// The name of the GPU's machine.
    pub fn engine(&self) -> String {
        self.gpu.name().replace("soft ", "") + ".engine"
    }
}

impl Rank {
    /// The other rank of two.
    pub fn peer(&self) -> usize {
        1 - self.me
    }

    /// Opens GPU and NIC.
    pub fn open(&self, options: SoftOptions) -> Devices {
        self.open_with(options, Faults::default())
    }

    /// Opens a GPU, and a NIC with faults.
    pub fn open_with(&self, options: SoftOptions, faults: Faults) -> Devices {
        let gpu = Gpu::soft_with(Arc::clone(&self.host), options).expect("a soft GPU");
        let device = self.device(&gpu, faults);
        let pd = device.alloc_pd().expect("a protection domain");
        Devices { gpu, device, pd }
    }

    /// Opens another NIC.
    pub fn device(&self, gpu: &Gpu, faults: Faults) -> Device {
        let options = EmulatedOptions::default()
            .hub(self.hub.clone())
            .faults(faults);
        Device::emulated_with(gpu, options).expect("a virtual NIC")
    }

    /// Sends a record to another rank.
    pub fn send(&self, to: usize, record: &[u8]) {
        let mut side_channel = self.side_channel.borrow_mut();
        let records = side_channel.records.entry((self.me, to)).or_default();
        records.push(record.to_vec());
        drop(side_channel);
        self.host.ring();
    }

    /// Receives the oldest record from another rank.
    pub fn receive(&self, from: usize) -> Vec<u8> {
        let key = (from, self.me);
        let there = |side_channel: &SideChannel| {
            side_channel
                .records
                .get(&key)
                .is_some_and(|r| !r.is_empty())
        };
        self.wait(there);
        let mut side_channel = self.side_channel.borrow_mut();
        let records = side_channel.records.get_mut(&key).expect("a record");
        records.remove(0)
    }

    /// Exchanges address records with another rank and connects.
    pub fn connect(&self, qp: &mut Qp, to: usize) {
        self.send(to, &qp.address().to_bytes());
        let address = QpAddress::from_bytes(&self.receive(to)).expect("an address record");
        qp.connect(&address).expect("connected");
        // Neither side sends before both QPs are connected.
        self.send(to, &[]);
        self.receive(to);
    }

    /// Exchanges memory records with another rank.
    pub fn swap_memory(&self, mine: &Mr, with: usize) -> RemoteMemory {
        self.send(with, &mine.remote().to_bytes());
        RemoteMemory::from_bytes(&self.receive(with)).expect("a memory record")
    }

    fn wait(&self, ready: impl Fn(&SideChannel) -> bool) {
        let deadline = self.host.now() + LIMIT;
        let there = self
            .host
            .wait_until(Some(deadline), &mut || ready(&self.side_channel.borrow()));
        assert!(there, "another rank did not enter the barrier");
    }

    /// A barrier of all ranks.
    pub fn barrier(&self) {
        let mine = {
            let mut side_channel = self.side_channel.borrow_mut();
            side_channel.arrived[self.me] += 1;
            side_channel.arrived[self.me]
        };
        self.host.ring();
        self.wait(|side_channel| side_channel.arrived.iter().all(|a| *a >= mine));
    }

    /// Waits for a virtual time.
    pub fn pass(&self, time: Duration) {
        let deadline = self.host.now() + time;
        self.host.wait_until(Some(deadline), &mut || false);
    }

    /// Freezes a machine or rank for a while.
    pub fn pause(&self, name: &str, after: Duration, lasts: Duration) {
        let start = self.host.now() + after;
        self.control.freeze_at(When::Time(start), name);
        self.control.unfreeze_at(When::Time(start + lasts), name);
    }

    /// Starts its pauses, of machines with these names.
    pub fn pauses(&self, pauses: &[Pause], parts: &[String]) {
        for pause in pauses.iter().filter(|pause| pause.rank == self.me) {
            self.pause(&parts[pause.part], pause.after, pause.lasts);
        }
    }

    /// Cuts a NIC off for good: its peers detect that their links are lost.
    pub fn cut(&self, node: u64) {
        assert!(self.hub.kill(NodeId(node)), "there is no node {node}");
        self.host.ring();
    }
}

/// Runs `body` as each of `ranks` ranks under the schedule that `seed` draws.
///
/// # Errors
/// The finding of the simulation (a panic, a hang, an exceeded limit), with the seed.
pub fn play(
    seed: u64,
    ranks: usize,
    body: impl Fn(Rank) + Clone + 'static,
) -> Result<SimReport, SimError> {
    play_in(SimConfig::seed(seed), Some(seed), ranks, body)
}

/// As [`play`], with this configuration of the simulation. Without a seed in `links`, the schedule
/// does not step the links.
pub fn play_in(
    config: SimConfig,
    links: Option<u64>,
    ranks: usize,
    body: impl Fn(Rank) + Clone + 'static,
) -> Result<SimReport, SimError> {
    let mut sim = Sim::new(config);
    let host = sim.host();
    let hub = Hub::new(HubConfig {
        scheduled: links.is_some(),
        ..HubConfig::default()
    });
    if let Some(seed) = links {
        host.attach(Thread::Device, Box::new(hub.link_machine(seed)));
    }
    let side_channel = SideChannel {
        arrived: vec![0; ranks],
        ..SideChannel::default()
    };
    let side_channel = Rc::new(RefCell::new(side_channel));
    for me in 0..ranks {
        let rank = Rank {
            me,
            ranks,
            host: Arc::clone(&host),
            control: sim.control(),
            hub: hub.clone(),
            side_channel: Rc::clone(&side_channel),
        };
        let body = body.clone();
        sim.rank(format!("rank{me}"), move || body(rank));
    }
    let report = sim.run();
    DIGEST.set(DIGEST.get().rotate_left(1) ^ sim.digest());
    report
}
