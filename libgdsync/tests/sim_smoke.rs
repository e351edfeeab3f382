//! The whole path under the simulation: two ranks, weak memory, a scheduled fabric, one seed
//! after another. The wide programs and faults are in `conformance`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gds_driver::{Sim, SimConfig, SimError};
use gds_step::{Host, Lane};
use gdsync::gpu::MemoryKind;
use gdsync::gpu::soft::SoftOptions;
use gdsync::rdma::{
    Access, Descriptor, Device, Endpoint, Lowering, QpAddress, QpConfig, RemoteMemory, Work,
};
use gdsync::{EmulatedOptions, Fabric, Gpu};
use vmlx5::fabric::hub::{Hub, HubConfig};

const LIMIT: Duration = Duration::from_secs(5);
const MESSAGES: u64 = 40;

/// Address records, and who is done: nobody leaves while the other may still need an answer.
#[derive(Default)]
struct Board {
    records: [Option<(QpAddress, RemoteMemory)>; 2],
    done: [bool; 2],
}

type Records = Rc<RefCell<Board>>;

fn rank(me: usize, seed: u64, host: Arc<dyn Host>, hub: Hub, records: Records) {
    let options = SoftOptions {
        weak: Some(softgpu::Weak::seeded(seed ^ me as u64)),
        ..SoftOptions::default()
    };
    let gpu = Gpu::soft_with(Arc::clone(&host), options).unwrap();
    let fabric = Fabric::Hub(hub);
    let device = Device::emulated_with(&gpu, EmulatedOptions { fabric }).unwrap();
    let pd = device.alloc_pd().unwrap();
    let config = QpConfig {
        send_blocks: 4,
        recv_entries: 4,
        lowering: [Lowering::MemOps, Lowering::Kernel][(seed & 1) as usize],
        endpoint: [Endpoint::Ring, Endpoint::Ring, Endpoint::Proxy][seed as usize % 3],
        start: 0u32.wrapping_sub((seed % 7) as u32),
        ..QpConfig::default()
    };
    let mut qp = pd.create_qp(&config).unwrap();
    let memory = pd
        .register(&gpu.alloc(MemoryKind::Device, 4096).unwrap(), Access::ALL)
        .unwrap();
    let out = pd
        .register(&gpu.alloc(MemoryKind::Pinned, 4096).unwrap(), Access::ALL)
        .unwrap();
    let seen = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    records.borrow_mut().records[me] = Some((qp.address(), memory.remote()));
    let peer = 1 - me;
    assert!(host.wait_until(None, &mut || records.borrow().records[peer].is_some()));
    let (address, _) = records.borrow().records[peer].unwrap();
    qp.connect(&address).unwrap();
    let stream = gpu.stream().unwrap();
    for i in 0..MESSAGES {
        let recv = qp.prepare_receive(&[memory.sge(8 * i, 8)]).unwrap();
        out.region()
            .write(8 * i as usize, &(i * 3 + me as u64).to_le_bytes())
            .unwrap();
        let sge = [out.sge(8 * i, 8)];
        let send = qp
            .prepare_within(&Work::send(&sge).signaled(), LIMIT)
            .unwrap();
        let list = [
            Descriptor::Receive(recv),
            Descriptor::Send(send),
            Descriptor::wait_flushed(recv),
            Descriptor::wait(send),
        ];
        qp.post_on(&stream, &list).unwrap();
        // What the stream sees right behind its wait is what counts.
        let at = 8 * i as usize;
        stream
            .copy(
                &seen.span(at, 8).unwrap(),
                &memory.region().span(at, 8).unwrap(),
            )
            .unwrap();
        if i % 3 == 2 {
            assert!(stream.synchronize(LIMIT).unwrap(), "stuck at {i}");
        }
    }
    assert!(stream.synchronize(LIMIT).unwrap());
    for i in 0..MESSAGES {
        let mut got = [0; 8];
        seen.read(8 * i as usize, &mut got).unwrap();
        assert_eq!(u64::from_le_bytes(got), i * 3 + peer as u64, "message {i}");
    }
    assert_eq!(qp.error(), None);
    qp.quiet(LIMIT).unwrap();
    records.borrow_mut().done[me] = true;
    host.ring();
    assert!(host.wait_until(None, &mut || records.borrow().done[peer]));
    drop(qp);
    device.close(LIMIT).unwrap();
}

#[test]
fn two_ranks_exchange_messages_whatever_the_schedule() {
    gds_driver::sim::seeds(60, |seed| -> Result<_, SimError> {
        let mut sim = Sim::new(SimConfig::seed(seed));
        let host = sim.host();
        let hub = Hub::new(HubConfig {
            scheduled: true,
            ..HubConfig::default()
        });
        host.attach(Lane::Device, Box::new(hub.link_machine(seed)));
        let records: Records = Rc::default();
        for me in 0..2 {
            let (host, hub, records) = (Arc::clone(&host), hub.clone(), Rc::clone(&records));
            sim.rank(format!("rank{me}"), move || {
                rank(me, seed, host, hub, records)
            });
        }
        sim.run()
    });
}
