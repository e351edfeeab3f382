//! Helpers for the tests of the whole path: two connected queue pairs, gates that hold streams,
//! memory, a kernel that records the words that it reads, and the names of gdsync that nearly all
//! tests use.
//!
//! Time limits only end tests that hang; no test depends on the speed of the machine.

#![allow(dead_code, unused_macros, unused_imports)]

mod steps;
pub mod witness;

pub use std::time::Duration;

use gds_sim::{Sim, SimConfig};
pub use gds_step::Live;
use gdsync::EmulatedOptions;
pub use gdsync::gpu::soft::SoftOptions;
pub use gdsync::gpu::{Dims, MemoryKind, Region, Stream};
pub use gdsync::rdma::{
    Access, Descriptor, Device, Doorbell, Lowering, Mr, Pd, Qp, QpConfig, ReceiveRequest,
    SendRequest, Work, post_on,
};
pub use gdsync::{Gpu, Kind, Status};
pub use steps::*;
use vmlx5::fabric::hub::{Hub, HubConfig};

/// The limit that ends a test that hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The network between the two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// One NIC, which sends to itself.
    One,
    /// Two NICs of this process.
    Hub,
    /// Two NICs that connect as those of two processes do.
    Host,
}

/// A simulation of devices on this thread, with a virtual clock: seconds of virtual time take no
/// real time, and are equally long in each run. The GPU must be dropped before the simulation.
pub fn play(seed: u64) -> (Sim, Gpu) {
    let sim = Sim::new(SimConfig::seed(seed));
    let options = SoftOptions::default().channels(8);
    let gpu = Gpu::soft_with(sim.host(), options).unwrap();
    (sim, gpu)
}

/// A live GPU with room for many waiting streams.
pub fn roomy() -> Gpu {
    soft(SoftOptions::default().channels(64))
}

/// Every way in which a stream posts work to the NIC, by name.
pub fn paths() -> Vec<(&'static str, QpConfig)> {
    paths_of(32, 16)
}

/// As [`paths`], with queues of these sizes.
pub fn paths_of(send_blocks: u32, recv_entries: u32) -> Vec<(&'static str, QpConfig)> {
    let path = |lowering, doorbell| sized(&by(lowering, doorbell), send_blocks, recv_entries);
    let memops = path(Lowering::MemOps, Doorbell::Direct);
    let in_device = memops
        .clone()
        .ring_memory(MemoryKind::Device)
        .cq_memory(MemoryKind::Device)
        .record_memory(MemoryKind::Device);
    vec![
        ("memops", memops),
        ("kernel", path(Lowering::Kernel, Doorbell::Direct)),
        ("cpu-thread", path(Lowering::MemOps, Doorbell::CpuThread)),
        ("memops, all in device memory", in_device),
    ]
}

/// Queue pairs of this path.
pub fn by(lowering: Lowering, doorbell: Doorbell) -> QpConfig {
    QpConfig::default().lowering(lowering).doorbell(doorbell)
}

/// As `config`, with queues of these sizes.
pub fn sized(config: &QpConfig, send_blocks: u32, recv_entries: u32) -> QpConfig {
    config
        .clone()
        .send_blocks(send_blocks)
        .recv_entries(recv_entries)
}

/// As `config`, with this time limit.
pub fn limited(config: &QpConfig, timeout: Option<Duration>) -> QpConfig {
    config.clone().timeout(timeout)
}

/// A live GPU with these options.
pub fn soft(options: SoftOptions) -> Gpu {
    Gpu::soft_with(Live::global().unwrap(), options).unwrap()
}

/// Opens a device.
pub type Open = fn(&Gpu) -> gdsync::Result<Device>;

/// Two connected queue pairs on one GPU.
pub struct Pair {
    pub gpu: Gpu,
    /// Connects the NICs, unless they connect as those of two processes do.
    pub hub: Hub,
    pub pd_a: Pd,
    pub pd_b: Pd,
    pub a: Qp,
    pub b: Qp,
}

impl Pair {
    /// Both of one configuration.
    pub fn new(gpu: &Gpu, net: Net, config: &QpConfig) -> Pair {
        Pair::of(gpu, net, config, config)
    }

    /// `a` and `b` of two configurations.
    pub fn of(gpu: &Gpu, net: Net, a: &QpConfig, b: &QpConfig) -> Pair {
        let mut pair = Pair::apart(gpu, net, a, b);
        pair.connect();
        pair
    }

    /// As [`Pair::of`], not connected yet.
    pub fn apart(gpu: &Gpu, net: Net, a: &QpConfig, b: &QpConfig) -> Pair {
        let hub = Hub::new(HubConfig::default());
        let open = || {
            let hub = (net != Net::Host).then(|| hub.clone());
            let options = EmulatedOptions::default().hub(hub);
            let device = Device::emulated_with(gpu, options).unwrap();
            device.alloc_pd().unwrap()
        };
        let pd_a = open();
        let pd_b = match net {
            Net::One => pd_a.clone(),
            _ => open(),
        };
        Pair {
            gpu: gpu.clone(),
            hub,
            a: pd_a.create_qp(a).unwrap(),
            b: pd_b.create_qp(b).unwrap(),
            pd_a,
            pd_b,
        }
    }

    /// On the software GPU, both of one device.
    pub fn open(open: Open, config: &QpConfig) -> Pair {
        Pair::open_on(&Gpu::soft().unwrap(), open, config)
    }

    /// Both of one device of this GPU.
    pub fn open_on(gpu: &Gpu, open: Open, config: &QpConfig) -> Pair {
        Pair::over(&open(gpu).unwrap(), config)
    }

    /// Both of this device.
    pub fn over(device: &Device, config: &QpConfig) -> Pair {
        let mut pair = Pair::of_domain(&device.alloc_pd().unwrap(), config);
        pair.connect();
        pair
    }

    /// Both of this domain, not connected yet.
    pub fn of_domain(pd: &Pd, config: &QpConfig) -> Pair {
        let make = || pd.create_qp(config).unwrap();
        Pair {
            gpu: pd.device().gpu().clone(),
            hub: Hub::new(HubConfig::default()),
            pd_a: pd.clone(),
            pd_b: pd.clone(),
            a: make(),
            b: make(),
        }
    }

    /// Connects the two, after creation or reset.
    pub fn connect(&mut self) {
        connect(&mut self.a, &mut self.b);
    }

    /// Memory that `a` may name, with all rights.
    pub fn mem_a(&self, kind: MemoryKind, len: usize) -> Mr {
        memory(&self.pd_a, kind, len, Access::ALL)
    }

    /// Memory that `b` may name, with all rights.
    pub fn mem_b(&self, kind: MemoryKind, len: usize) -> Mr {
        memory(&self.pd_b, kind, len, Access::ALL)
    }

    /// Memory of both, each of which its side may name.
    pub fn memories(&self, kind: MemoryKind, len: usize) -> [Mr; 2] {
        [self.mem_a(kind, len), self.mem_b(kind, len)]
    }

    /// Memory that `a` may name, and `b` too if one device has both.
    pub fn memory(&self, kind: MemoryKind, len: usize) -> Mr {
        self.mem_a(kind, len)
    }

    /// Checks that a message arrives from `a` at `b`, both of one device, by a stream alone.
    pub fn works(mut self) {
        let memory = self.memory(MemoryKind::Pinned, 64);
        memory.region().write(0, b"a message").unwrap();
        let stream = self.gpu.stream().unwrap();
        let receive = self.b.receive(&[memory.sge(32, 9)]);
        self.a.start_on(&stream, &Work::send(&[memory.sge(0, 9)]));
        let wait = [Descriptor::wait_flushed(receive)];
        self.b.post_on(&stream, &wait).unwrap();
        passes(&stream);
        assert_eq!(&memory.region().bytes(32), b"a message");
    }

    /// Resets and connects both, in any state.
    pub fn reset(&mut self, what: &str) {
        for qp in [&mut self.a, &mut self.b] {
            qp.quiet(LIMIT).unwrap_or_else(|e| panic!("{what}: {e}"));
            qp.reset().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        self.connect();
    }

    /// As [`Pair::reset`], and checks that they work.
    pub fn recover(&mut self, what: &str) {
        self.reset(what);
        self.check(what);
    }

    /// Checks that both queue pairs work: three messages each way, by CPU and stream.
    pub fn check(&mut self, what: &str) {
        let [near, far] = self.memories(MemoryKind::Pinned, 64);
        for round in 0..3u64 {
            let value = 0x1122_3344_5566_0000 + round;
            send_one(&mut self.a, &mut self.b, &near, &far, value, what);
            send_one(&mut self.b, &mut self.a, &far, &near, !value, what);
        }
    }
}

fn send_one(a: &mut Qp, b: &mut Qp, from: &Mr, to: &Mr, value: u64, what: &str) {
    let ok = |r: gdsync::Result<()>| r.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let recv = b.receive(&[sge(to, 0, 8)]);
    from.region().write(8, &value.to_le_bytes()).unwrap();
    let send = a.signaled(&Work::send(&[sge(from, 8, 8)]));
    let stream = a.device().gpu().stream().unwrap();
    ok(a.post_on(&stream, &send_and_wait(send)));
    finish(&stream, what);
    ok(b.wait(recv, LIMIT));
    assert_eq!(u64::from_le_bytes(to.region().bytes(0)), value, "{what}");
    assert_eq!(b.received(recv).unwrap().len, 8, "{what}");
}

/// Runs a test over every path: a pair with short queues, memory and a stream. The test must leave
/// the pair in a working state.
pub fn each_path(test: impl Fn(&mut Pair, &Mr, &Stream, &str)) {
    for (path, config) in paths_of(8, 4) {
        let gpu = roomy();
        let mut p = Pair::new(&gpu, Net::One, &config);
        let mem = p.mem_a(MemoryKind::Device, 4096);
        let stream = gpu.stream().unwrap();
        test(&mut p, &mem, &stream, path);
        p.check(path);
        p.recover(path);
    }
}

/// Registers new memory.
pub fn memory(pd: &Pd, kind: MemoryKind, len: usize, access: Access) -> Mr {
    let region = pd.device().gpu().alloc(kind, len).unwrap();
    pd.register(&region, access).unwrap()
}

/// Waits until the stream has run all its work; fails if it does not.
#[track_caller]
pub fn finish(stream: &Stream, what: &str) {
    assert!(
        stream.synchronize(LIMIT).unwrap(),
        "{what}: the stream is stalled"
    );
}

/// As [`finish`], where the caller's line identifies the stream.
#[track_caller]
pub fn passes(stream: &Stream) {
    finish(stream, "here");
}

/// Advances the time.
pub fn pass(gpu: &Gpu, time: Duration) {
    let deadline = gpu.host().now() + time;
    assert!(!gpu.host().wait_until(Some(deadline), &mut || false));
}

/// Waits until `condition` holds.
pub fn until(gpu: &Gpu, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = gpu.host().now() + LIMIT;
    assert!(
        gpu.host().wait_until(Some(deadline), &mut condition),
        "{what}: it never happens"
    );
}
