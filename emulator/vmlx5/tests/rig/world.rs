//! A world of NICs on a hub that steps until no component makes progress.

use std::time::Duration;

use gds_step::{Machine, Step, Time};
use vmlx5::fabric::faults::Faults;
use vmlx5::fabric::hub::{Hub, HubConfig, HubLinks};
use vmlx5::fabric::{Fabric, NodeId};
use vmlx5::{Event, Modify, Nic, NicConfig, Path, QpState};

use super::{End, EndConfig, init, rtr};

/// NICs on a hub, and the virtual time.
pub struct World {
    pub hub: Hub,
    pub links: HubLinks,
    pub nics: Vec<Nic>,
    pub now: u64,
    /// The time at which a NIC must step again even without progress.
    pub deadline: Option<Time>,
    /// The next component to step is random.
    pub chance: Option<fastrand::Rng>,
}

impl World {
    pub fn new(nics: usize) -> World {
        World::on_hub(nics, None, |_| {})
    }

    /// Two NICs on a hub, and a connection between them.
    pub fn connected() -> (World, End, End) {
        World::joined(EndConfig::default(), EndConfig::default())
    }

    /// The same, with ends of other configurations.
    pub fn joined(a: EndConfig, b: EndConfig) -> (World, End, End) {
        let mut world = World::new(2);
        let (a, b) = world.pair(a, b);
        (world, a, b)
    }

    /// A connection in a world with late frames.
    pub fn late(seed: u64) -> (World, End, End) {
        let mut world = World::scheduled(2, seed);
        let (a, b) = world.pair(EndConfig::default(), EndConfig::default());
        (world, a, b)
    }

    /// A world with late frames, in which `seed` decides which component steps.
    pub fn scheduled(nics: usize, seed: u64) -> World {
        World::on_hub(nics, Some(seed), |_| {})
    }

    /// NICs on a hub, with changed configurations.
    pub fn built(nics: usize, change: impl Fn(&mut NicConfig)) -> World {
        World::on_hub(nics, None, change)
    }

    /// NICs on given fabrics.
    pub fn on(fabrics: Vec<Box<dyn Fabric>>) -> World {
        World::with(Hub::new(HubConfig::default()), None, fabrics, |_| {})
    }

    fn on_hub(nics: usize, seed: Option<u64>, change: impl Fn(&mut NicConfig)) -> World {
        let hub = Hub::new(HubConfig {
            scheduled: seed.is_some(),
            ..HubConfig::default()
        });
        let ports = (0..nics).map(|_| Box::new(hub.port()) as Box<dyn Fabric>);
        let ports = ports.collect();
        World::with(hub, seed, ports, change)
    }

    fn with(
        hub: Hub,
        seed: Option<u64>,
        fabrics: Vec<Box<dyn Fabric>>,
        change: impl Fn(&mut NicConfig),
    ) -> World {
        let nic = |(i, fabric)| {
            let mut config = NicConfig {
                name: format!("nic{i}"),
                ..NicConfig::default()
            };
            change(&mut config);
            Nic::new(config, fabric)
        };
        World {
            nics: fabrics.into_iter().enumerate().map(nic).collect(),
            links: hub.link_machine(seed.unwrap_or(0)),
            chance: seed.map(fastrand::Rng::with_seed),
            hub,
            now: 0,
            deadline: None,
        }
    }

    pub fn end(&mut self, nic: usize, config: EndConfig) -> End {
        End::new(&mut self.nics[nic], nic, config)
    }

    pub fn node(&self, end: &End) -> NodeId {
        self.nics[end.nic].node()
    }

    /// Stops the NIC of an end; returns its node.
    pub fn silence(&self, end: &End) -> NodeId {
        let node = self.node(end);
        self.hub.silence(node, true);
        node
    }

    /// The pending events of a NIC.
    pub fn events(&mut self, nic: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.nics[nic].next_event()).collect()
    }

    /// One step of all components in order, or of a random one. Returns true if any made progress.
    pub fn step(&mut self) -> bool {
        self.now += 100;
        let now = Time::from_nanos(self.now);
        let n = self.nics.len();
        if let Some(rng) = &mut self.chance {
            for _ in 0..2 * n {
                match rng.usize(..=n) {
                    i if i < n => drop(self.nics[i].step(now)),
                    _ => drop(self.links.step(now)),
                }
            }
        }
        let mut moved = false;
        self.deadline = None;
        for nic in &mut self.nics {
            match nic.step(now) {
                Step::Progress => moved = true,
                Step::IdleUntil(Some(t)) => {
                    self.deadline = Some(self.deadline.map_or(t, |d| d.min(t)));
                }
                Step::IdleUntil(None) => {}
            }
        }
        moved | (self.links.step(now) == Step::Progress)
    }

    /// Steps until no component makes progress, and advances time to timeouts, for `time` at most.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time.as_nanos() as u64;
        loop {
            self.settle();
            match self.deadline {
                // A step takes 100 ns; its effects occur at the end.
                Some(t) if t.as_nanos() <= end => self.now = self.now.max(t.as_nanos() - 100),
                _ => break,
            }
        }
        self.now = self.now.max(end);
    }

    /// Advances time to the next timeout, if one runs.
    pub fn jump(&mut self) {
        if let Some(t) = self.deadline {
            self.now = self.now.max(t.as_nanos() - 100);
        }
    }

    /// Advances time until work for silent peers has failed.
    pub fn outlast(&mut self) {
        self.pass(Duration::from_secs(2));
    }

    /// Steps until no component makes progress; no timeout expires.
    pub fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the world does not settle");
    }

    pub fn modify(&mut self, end: &End, change: Modify) {
        self.nics[end.nic].modify_qp(end.qpn, change).unwrap();
    }

    pub fn init(&mut self, end: &End) {
        let access = end.config.qp_access;
        self.modify(end, init(access));
    }

    pub fn rtr(&mut self, end: &End, to: &End, psn: u32) {
        let path = Path {
            mtu: end.config.mtu,
            ..Path::to(self.node(to), to.qpn)
        };
        self.modify(
            end,
            rtr(path, psn, to.config.max_rd_atomic, end.config.min_rnr_timer),
        );
    }

    pub fn rts(&mut self, end: &End, psn: u32) {
        let config = &end.config;
        let change = Modify::Rts {
            sq_psn: psn,
            max_rd_atomic: config.max_rd_atomic,
            timeout: config.timeout,
            retry_cnt: config.retry_cnt,
            rnr_retry: config.rnr_retry,
        };
        self.modify(end, change);
    }

    /// Connects two ends; message numbers start near their wrap.
    pub fn connect(&mut self, a: &End, b: &End) {
        let (from_a, from_b) = (0xff_fffe, 0x12);
        for (x, y, tx, rx) in [(a, b, from_a, from_b), (b, a, from_b, from_a)] {
            self.init(x);
            self.rtr(x, y, rx);
            self.rts(x, tx);
        }
    }

    /// Resets an end to RESET, with its records and indices.
    pub fn reset(&mut self, end: &mut End) {
        self.modify(end, Modify::Reset);
        (end.sq, end.rq) = (end.config.sq_start, end.config.rq_start);
        end.reset_records();
    }

    /// Sets the faults of every NIC.
    pub fn set_faults(&mut self, faults: &Faults) {
        for nic in &mut self.nics {
            nic.set_faults(faults.clone());
        }
    }

    pub fn state(&self, end: &End) -> QpState {
        self.nics[end.nic].query_qp(end.qpn).unwrap().state
    }

    /// Two connected ends on separate NICs.
    pub fn pair(&mut self, a: EndConfig, b: EndConfig) -> (End, End) {
        let a = self.end(0, a);
        let b = self.end(self.nics.len() - 1, b);
        self.connect(&a, &b);
        self.settle();
        (a, b)
    }
}
