//! An emulated NIC that lacks a feature, or records its calls.

use std::sync::Arc;

use gds_step::Time;

use super::calls::Calls;
use crate::common::*;
use crate::error::Result;
use crate::nic::{
    Ah, AhAttr, Layout, MrKeys, Nic, PdId, PortAddress, Provider, QpAddress, QpMade, QpObjects,
    QpRings, Report,
};
use crate::provider::emulated::{EmulatedNic, EmulatedOptions};

pub(in crate::rdma) struct OddNic {
    nic: EmulatedNic,
    pub reads: bool,
    atomics: bool,
    /// The NIC refuses the change to the error state: outstanding requests stay outstanding.
    gone: bool,
    /// Records each call that may reach a device.
    pub(super) calls: Calls,
}

impl OddNic {
    /// A NIC that lacks nothing.
    pub fn new(gpu: &Gpu) -> OddNic {
        OddNic {
            nic: EmulatedNic::open(gpu, EmulatedOptions::default()).unwrap(),
            reads: true,
            atomics: true,
            gone: false,
            calls: Calls::default(),
        }
    }

    pub fn open(self, gpu: &Gpu) -> Device {
        Device::on(gpu, Arc::new(self), true, Vec::new()).unwrap()
    }
}

/// Methods that call those of `self.nic`; the `noted` ones are recorded first.
macro_rules! delegate {
    (@note noted $self:ident $name:ident) => { $self.calls.note(stringify!($name)) };
    (@note plain $self:ident $name:ident) => {};
    ($how:ident: $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        fn $name(&self, $($arg: $type),*) $(-> $result)? {
            delegate!(@note $how self $name);
            self.nic.$name($($arg),*)
        }
    )*};
}

impl Nic for OddNic {
    fn reads(&self) -> bool {
        self.reads
    }

    fn atomics(&self) -> bool {
        self.atomics
    }

    fn modify_to_error(&self, qpn: u32) -> bool {
        self.calls.note("modify_to_error");
        !self.gone && self.nic.modify_to_error(qpn)
    }

    delegate! { plain:
        provider() -> Provider;
        name() -> &str;
        node() -> u64;
        port() -> Option<PortAddress>;
        layout() -> Layout;
        read_events(now: Time);
        reports() -> u32;
        report(qpn: u32, now: Time) -> Report;
        lose_qp(qpn: u32) -> bool;
    }
    delegate! { noted:
        alloc_pd() -> Result<PdId>;
        dealloc_pd(id: PdId);
        reg_mr(pd: PdId, region: &Region, access: Access) -> Result<MrKeys>;
        dereg_mr(keys: MrKeys);
        holds(region: &Region) -> usize;
        create_qp(pd: PdId, rings: &QpRings<'_>) -> Result<QpMade>;
        connect_qp(qpn: u32, psn: u32, peer: &QpAddress) -> Result<()>;
        activate_qp(qpn: u32, psn: u32, qkey: u32) -> Result<()>;
        create_ah(pd: PdId, to: &AhAttr) -> Result<Ah>;
        destroy_ah(id: u64);
        reset_qp(qpn: u32) -> Result<()>;
        cq_indices(objects: &QpObjects) -> Result<Option<(u64, u64)>>;
        destroy_qp(objects: &QpObjects);
    }
}

/// A wait with a limit detects it: the streams of both queues continue, each posted request has
/// failed, and completed ones have not.
#[test]
fn streams_are_released_when_the_nic_is_gone() {
    let gpu = Gpu::soft().unwrap();
    let nic = OddNic {
        gone: true,
        ..OddNic::new(&gpu)
    };
    let device = nic.open(&gpu);
    let mut p = Pair::over(&device, &sized(&QpConfig::default(), 8, 4));
    let memory = p.memory(MemoryKind::Pinned, 64);
    let stream = gpu.stream().unwrap();
    // The rings have wrapped around before.
    let list = [memory.sge(0, 8)];
    for _ in 0..10 {
        let receive = p.b.receive(&list);
        p.a.complete(&Work::send(&list));
        p.b.wait(receive, LIMIT).unwrap();
    }
    // The peer has no receive: both requests are retried without end.
    let first = p.a.prepare(&Work::send(&list)).unwrap();
    let second = p.a.signaled(&Work::send(&list));
    let receive = p.a.prepare_receive(&list).unwrap();
    let limit = Duration::from_millis(20);
    let post = [
        Descriptor::Receive(receive),
        Descriptor::Send(first),
        Descriptor::Send(second),
        Descriptor::wait(second).within(limit),
        Descriptor::wait(receive),
    ];
    p.a.post_on(&stream, &post).unwrap();
    passes(&stream);
    assert_eq!(p.a.poll(first).unwrap(), Some(Status::TIMEOUT));
    assert_eq!(p.a.poll(second).unwrap(), Some(Status::FLUSHED));
    assert_eq!(p.a.poll(receive).unwrap(), Some(Status::FLUSHED));
    assert_eq!(p.a.error(), Some(Status::TIMEOUT));
    drop(p);
    device.close(LIMIT).unwrap();
}

#[test]
fn atomics_are_refused_by_a_nic_that_executes_none() {
    let gpu = Gpu::soft().unwrap();
    let nic = OddNic {
        atomics: false,
        ..OddNic::new(&gpu)
    };
    let mut p = Pair::over(&nic.open(&gpu), &sized(&QpConfig::default(), 8, 4));
    let memory = p.memory(MemoryKind::Pinned, 64);
    let (old, word) = ([memory.sge(0, 8)], memory.remote().span(8, 8).unwrap());
    for _ in 0..10 {
        for work in [
            Work::fetch_add(&old, word, 1),
            Work::compare_swap(&old, word, 0, 1),
        ] {
            let e = p.a.prepare(&work).unwrap_err();
            assert_eq!(e.kind(), crate::Kind::Unsupported, "{e}");
        }
        // The queue has its room.
        p.a.complete(&Work::write(&old, word));
    }
}
