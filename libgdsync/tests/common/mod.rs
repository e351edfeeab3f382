//! What the tests of the whole path share: two connected queue pairs, gates that hold streams,
//! memory, and a kernel that notes what it sees.
//!
//! Time limits only end tests that hang; nothing depends on how fast the machine is.

#![allow(dead_code)]

pub mod witness;

use std::time::Duration;

use gds_sim::{Sim, SimConfig};
use gdsync::gpu::soft::SoftOptions;
use gdsync::gpu::{MemoryKind, Stream, Word32};
use gdsync::memop::Condition;
use gdsync::rdma::{
    Access, Descriptor, Device, Endpoint, Lowering, Mr, Pd, Qp, QpConfig, Sge, WaitOptions,
};
use gdsync::{EmulatedOptions, Error, Fabric, Gpu, Kind};
use vmlx5::fabric::hub::{Hub, HubConfig};

/// Ends what hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits without flush and without time limit.
pub const PLAIN: WaitOptions = WaitOptions {
    flush: false,
    timeout: None,
};

/// What lies between the two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// One NIC, which talks to itself.
    One,
    /// Two NICs of this process.
    Hub,
    /// Two NICs that meet as those of two processes do.
    Host,
}

/// A play of devices on this thread, with a virtual clock: whatever takes seconds in it takes
/// none here, and is equally long each time. The GPU has to be dropped before the play.
pub fn play(seed: u64) -> (Sim, Gpu) {
    let sim = Sim::new(SimConfig::seed(seed));
    let gpu = Gpu::soft_with(sim.host(), SoftOptions::default()).unwrap();
    (sim, gpu)
}

/// A live GPU with room for many streams that wait.
pub fn roomy() -> Gpu {
    let options = SoftOptions {
        channels: 64,
        ..SoftOptions::default()
    };
    Gpu::soft_with(gds_step::Live::global().unwrap(), options).unwrap()
}

/// Every way work gets from a stream to the NIC, by name.
pub fn paths() -> Vec<(&'static str, QpConfig)> {
    let base = QpConfig {
        send_blocks: 32,
        recv_entries: 16,
        lowering: Lowering::MemOps,
        endpoint: Endpoint::Ring,
        ..QpConfig::default()
    };
    vec![
        ("memops", base.clone()),
        (
            "kernel",
            QpConfig {
                lowering: Lowering::Kernel,
                ..base.clone()
            },
        ),
        (
            "proxy",
            QpConfig {
                endpoint: Endpoint::Proxy,
                ..base.clone()
            },
        ),
        (
            "memops, all in device memory",
            QpConfig {
                ring_memory: MemoryKind::Device,
                cq_memory: MemoryKind::Device,
                record_memory: MemoryKind::Device,
                ..base
            },
        ),
    ]
}

/// Two connected queue pairs on one GPU.
pub struct Pair {
    pub gpu: Gpu,
    /// Joins the NICs, unless they meet as those of two processes do.
    pub hub: Hub,
    pub pd_a: Pd,
    pub pd_b: Pd,
    pub a: Qp,
    pub b: Qp,
}

impl Pair {
    /// Both of one kind.
    pub fn new(gpu: &Gpu, net: Net, config: &QpConfig) -> Pair {
        Pair::of(gpu, net, config, config)
    }

    /// `a` and `b` of two kinds.
    pub fn of(gpu: &Gpu, net: Net, a: &QpConfig, b: &QpConfig) -> Pair {
        let mut pair = Pair::apart(gpu, net, a, b);
        pair.connect();
        pair
    }

    /// As [`Pair::of`], not connected yet.
    pub fn apart(gpu: &Gpu, net: Net, a: &QpConfig, b: &QpConfig) -> Pair {
        let hub = Hub::new(HubConfig::default());
        let open = || {
            let fabric = match net {
                Net::Host => Fabric::Host,
                _ => Fabric::Hub(hub.clone()),
            };
            Device::emulated_with(
                gpu,
                EmulatedOptions {
                    fabric,
                    ..EmulatedOptions::default()
                },
            )
            .unwrap()
        };
        let first = open();
        let second = if net == Net::One {
            first.clone()
        } else {
            open()
        };
        let pd_a = first.alloc_pd().unwrap();
        let pd_b = match net {
            Net::One => pd_a.clone(),
            _ => second.alloc_pd().unwrap(),
        };
        let a = pd_a.create_qp(a).unwrap();
        let b = pd_b.create_qp(b).unwrap();
        Pair {
            gpu: gpu.clone(),
            hub,
            pd_a,
            pd_b,
            a,
            b,
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

    /// Brings both back from whatever happened, and shows that they work.
    pub fn recover(&mut self, what: &str) {
        for qp in [&mut self.a, &mut self.b] {
            qp.quiet(LIMIT).unwrap_or_else(|e| panic!("{what}: {e}"));
            qp.reset().unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        self.connect();
        self.check(what);
    }

    /// Shows that both queue pairs work: three messages each way, by CPU and stream.
    pub fn check(&mut self, what: &str) {
        let (near, far) = (
            self.mem_a(MemoryKind::Pinned, 64),
            self.mem_b(MemoryKind::Pinned, 64),
        );
        for round in 0..3u64 {
            let value = 0x1122_3344_5566_0000 + round;
            send_one(&mut self.a, &mut self.b, &near, &far, value, what);
            send_one(&mut self.b, &mut self.a, &far, &near, !value, what);
        }
    }
}

/// Connects two queue pairs to each other.
pub fn connect(a: &mut Qp, b: &mut Qp) {
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
}

fn send_one(a: &mut Qp, b: &mut Qp, from: &Mr, to: &Mr, value: u64, what: &str) {
    use gdsync::rdma::Work;
    let ok = |r: gdsync::Result<()>| r.unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let recv = b.prepare_receive(&[sge(to, 0, 8)]).unwrap();
    ok(b.post_receive(recv));
    from.region().write(8, &value.to_le_bytes()).unwrap();
    let list = [sge(from, 8, 8)];
    let send = a.prepare(&Work::send(&list).signaled()).unwrap();
    let stream = a.device().gpu().stream().unwrap();
    ok(a.post_on(
        &stream,
        &[Descriptor::Send(send), Descriptor::Wait(send.into(), PLAIN)],
    ));
    finish(&stream, what);
    ok(b.wait(recv, LIMIT));
    let mut got = [0; 8];
    to.region().read(0, &mut got).unwrap();
    assert_eq!(u64::from_le_bytes(got), value, "{what}");
    assert_eq!(b.received(recv).unwrap().len, 8, "{what}");
}

/// Registers new memory.
pub fn memory(pd: &Pd, kind: MemoryKind, len: usize, access: Access) -> Mr {
    let region = pd.device().gpu().alloc(kind, len).unwrap();
    pd.register(&region, access).unwrap()
}

/// A piece of a registration.
pub fn sge(mr: &Mr, offset: u64, len: u32) -> Sge<'_> {
    Sge { mr, offset, len }
}

/// Waits until the stream has run everything; a stream that does not is a failure.
pub fn finish(stream: &Stream, what: &str) {
    assert!(
        stream.synchronize(LIMIT).unwrap(),
        "{what}: the stream stands still"
    );
}

/// Lets time pass.
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

/// A word that holds streams until it is opened.
pub struct Gate(Word32);

impl Gate {
    /// A closed gate.
    pub fn new(gpu: &Gpu) -> Gate {
        let region = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        Gate(region.word32(0).unwrap())
    }

    /// What a stream does to stand before it.
    pub fn wait(&self) -> Descriptor<'_> {
        Descriptor::WaitValue32 {
            word: &self.0,
            condition: Condition::Geq,
            value: 1,
            flush: false,
        }
    }

    /// Lets everybody pass.
    pub fn open(&self) {
        self.0.store(1).unwrap();
    }
}

/// A word that a stream sets when it gets there.
pub struct Flag(Word32);

impl Flag {
    /// One that is not set.
    pub fn new(gpu: &Gpu) -> Flag {
        let region = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        Flag(region.word32(0).unwrap())
    }

    /// What a stream does to set it.
    pub fn set(&self) -> Descriptor<'_> {
        Descriptor::WriteValue32 {
            word: &self.0,
            value: 1,
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load().unwrap() == 1
    }
}

/// The kind of a call's error, if it is one.
pub fn kind<T>(result: Result<T, Error>) -> Option<Kind> {
    result.err().map(|e| e.kind())
}

/// Asserts that a call is refused: with this kind and limit, naming these in its text.
#[track_caller]
pub fn refused<T>(result: Result<T, Error>, kind: Kind, limit: Option<u64>, names: &[&str]) {
    let Err(error) = result else {
        panic!("accepted, where {kind:?} was expected");
    };
    assert_eq!(error.kind(), kind, "{error:?}");
    assert_eq!(error.limit_value(), limit, "{error:?}");
    let text = error.to_string();
    for name in names {
        assert!(text.contains(name), "{text:?} does not name {name:?}");
    }
    assert!(!error.operation().is_empty() && !error.object().is_empty());
}
