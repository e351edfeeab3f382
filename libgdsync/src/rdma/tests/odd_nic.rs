//! A virtual NIC that lacks something, for tests; and those of one that is gone.

use std::sync::Arc;
use std::time::Duration;

use gds_step::Time;

use crate::error::Result;
use crate::gpu::{Gpu, MemoryKind, Region};
use crate::nic::{
    Access, Ah, AhAttr, MrKeys, Nic, PdId, QpAddress, QpMade, QpObjects, QpRings, Report,
};
use crate::provider::emulated::{EmulatedNic, EmulatedOptions};
use crate::rdma::{Descriptor, Device, QpConfig, Work};
use crate::status::Status;

const LIMIT: Duration = Duration::from_secs(60);

pub(in crate::rdma) struct OddNic {
    nic: EmulatedNic,
    reads: bool,
    /// It hears of no error.
    gone: bool,
}

impl OddNic {
    /// It does no READs.
    pub fn mute(nic: EmulatedNic) -> OddNic {
        let (reads, gone) = (false, false);
        OddNic { nic, reads, gone }
    }

    /// What is outstanding stays so.
    fn gone(nic: EmulatedNic) -> OddNic {
        let (reads, gone) = (true, true);
        OddNic { nic, reads, gone }
    }

    fn note(&self, _call: &str) {}
}

impl Nic for OddNic {
    fn reads(&self) -> bool {
        self.reads
    }

    fn modify_to_error(&self, qpn: u32) -> bool {
        !self.gone && self.nic.modify_to_error(qpn)
    }

    delegate_to_nic!();
    delegate_to_nic! { @plain
        read_events(now: Time);
        reports() -> u32;
        report(qpn: u32, now: Time) -> Report;
        lose_qp(qpn: u32) -> bool;
    }
}

/// A wait with a limit finds it out: the streams of both queues pass, and each request that was
/// posted has failed, those that are done have not.
#[test]
fn a_nic_that_is_gone_keeps_no_stream() {
    let gpu = Gpu::soft().unwrap();
    let nic = EmulatedNic::open(&gpu, EmulatedOptions::default()).unwrap();
    let device = Device::open(&gpu, Arc::new(OddNic::gone(nic)), true, Vec::new()).unwrap();
    let pd = device.alloc_pd().unwrap();
    let config = QpConfig::default().send_blocks(8).recv_entries(4);
    let [mut a, mut b] = [(); 2].map(|()| pd.create_qp(&config).unwrap());
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let memory = pd.register(&memory, Access::ALL).unwrap();
    let stream = gpu.stream().unwrap();
    // The rings have gone around before.
    let list = [memory.sge(0, 8)];
    for _ in 0..10 {
        let receive = b.prepare_receive(&list).unwrap();
        b.post_receive(receive).unwrap();
        let send = a.prepare(&Work::send(&list).signaled()).unwrap();
        a.post(send).unwrap();
        a.wait(send, LIMIT).unwrap();
        b.wait(receive, LIMIT).unwrap();
    }
    // The peer has no receive: both are asked for again without end.
    let first = a.prepare(&Work::send(&list)).unwrap();
    let second = a.prepare(&Work::send(&list).signaled()).unwrap();
    let receive = a.prepare_receive(&list).unwrap();
    let limit = Duration::from_millis(20);
    let post = [
        Descriptor::Receive(receive),
        Descriptor::Send(first),
        Descriptor::Send(second),
        Descriptor::wait(second).within(limit),
        Descriptor::wait(receive),
    ];
    a.post_on(&stream, &post).unwrap();
    assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
    assert_eq!(a.poll(first).unwrap(), Some(Status::TIMEOUT));
    assert_eq!(a.poll(second).unwrap(), Some(Status::FLUSHED));
    assert_eq!(a.poll(receive).unwrap(), Some(Status::FLUSHED));
    assert_eq!(a.error(), Some(Status::TIMEOUT));
    drop((a, b));
    device.close(LIMIT).unwrap();
}
