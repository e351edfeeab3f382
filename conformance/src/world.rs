//! Two ranks under the simulation: their GPUs, devices, queue pairs, and what they tell each
//! other outside the library.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gds_driver::{Sim, SimConfig, SimControl, SimError, SimReport};
use gds_step::{Host, Lane};
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{Device, Pd, Qp, QpAddress, QpConfig, RemoteMemory};
use gdsync::{EmulatedOptions, Fabric, Gpu};
use vmlx5::fabric::hub::{Hub, HubConfig};

/// Virtual time after which something that should have happened counts as hung.
pub const LIMIT: Duration = Duration::from_secs(20);

/// What the ranks tell each other outside the library.
#[derive(Default)]
pub struct Board {
    addresses: [Option<QpAddress>; 2],
    memories: [Option<[RemoteMemory; 2]>; 2],
    arrived: [u64; 2],
}

/// One rank's view of the world.
#[derive(Clone)]
pub struct Rank {
    /// 0 or 1.
    pub me: usize,
    /// The driver.
    pub host: Arc<dyn Host>,
    /// To freeze machines.
    pub control: SimControl,
    hub: Hub,
    board: Rc<RefCell<Board>>,
    seed: u64,
}

/// A rank's objects.
pub struct Place {
    /// Its GPU.
    pub gpu: Gpu,
    /// Its NIC.
    pub device: Device,
    /// Its protection domain.
    pub pd: Pd,
    /// Its queue pair, to the other rank.
    pub qp: Qp,
}

impl Rank {
    /// The other rank's number.
    pub fn peer(&self) -> usize {
        1 - self.me
    }

    /// Opens GPU and device and makes a queue pair, with weak memory drawn from the seed.
    pub fn open(&self, options: SoftOptions, config: &QpConfig) -> Place {
        let options = SoftOptions {
            weak: Some(softgpu::Weak::seeded(self.seed ^ self.me as u64)),
            ..options
        };
        let gpu = Gpu::soft_with(Arc::clone(&self.host), options).expect("a soft GPU");
        let fabric = Fabric::Hub(self.hub.clone());
        let device =
            Device::emulated_with(&gpu, EmulatedOptions { fabric }).expect("a virtual NIC");
        let pd = device.alloc_pd().expect("a protection domain");
        let qp = pd.create_qp(config).expect("a queue pair");
        Place {
            gpu,
            device,
            pd,
            qp,
        }
    }

    /// Exchanges address records and connects.
    pub fn connect(&self, qp: &mut Qp) {
        self.board.borrow_mut().addresses[self.me] = Some(qp.address());
        self.wait(|board, peer| board.addresses[peer].is_some());
        let address = self.board.borrow().addresses[self.peer()].expect("it is there");
        qp.connect(&address).expect("connected");
        self.barrier();
        self.board.borrow_mut().addresses[self.me] = None;
        self.barrier();
    }

    /// Exchanges memory records, once.
    pub fn swap_memory(&self, mine: [RemoteMemory; 2]) -> [RemoteMemory; 2] {
        self.board.borrow_mut().memories[self.me] = Some(mine);
        self.wait(|board, peer| board.memories[peer].is_some());
        self.board.borrow().memories[self.peer()].expect("it is there")
    }

    fn wait(&self, ready: impl Fn(&Board, usize) -> bool) {
        self.host.ring();
        let deadline = self.host.now() + LIMIT;
        let there = self.host.wait_until(Some(deadline), &mut || {
            ready(&self.board.borrow(), self.peer())
        });
        assert!(there, "the other rank did not come");
    }

    /// Waits until both ranks are here.
    pub fn barrier(&self) {
        let mine = {
            let mut board = self.board.borrow_mut();
            board.arrived[self.me] += 1;
            board.arrived[self.me]
        };
        self.wait(|board, peer| board.arrived[peer] >= mine);
    }
}

/// Runs `body` as both ranks under the schedule that `seed` draws.
///
/// # Errors
/// What the simulation found: a panic, a hang, a limit passed; it names the seed.
pub fn two_ranks(seed: u64, body: impl Fn(Rank) + Clone + 'static) -> Result<SimReport, SimError> {
    let mut sim = Sim::new(SimConfig::seed(seed));
    let host = sim.host();
    let hub = Hub::new(HubConfig {
        scheduled: true,
        ..HubConfig::default()
    });
    host.attach(Lane::Device, Box::new(hub.link_machine(seed)));
    let board: Rc<RefCell<Board>> = Rc::default();
    for me in 0..2 {
        let rank = Rank {
            me,
            host: Arc::clone(&host),
            control: sim.control(),
            hub: hub.clone(),
            board: Rc::clone(&board),
            seed,
        };
        let body = body.clone();
        sim.rank(format!("rank{me}"), move || body(rank));
    }
    sim.run()
}
