//! A ConnectX by libibverbs and libmlx5 as they are installed, over a virtual one: rings that
//! libmlx5 laid out, written and rung by this library.

mod virtual_nic;

use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Access, Device, Mr, Pd, Qp, QpConfig, Work};
use gdsync::{Gpu, Result};
use virtual_nic::inside;

/// Ends what hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Two connected queue pairs of one NIC.
struct Pair {
    gpu: Gpu,
    pd: Pd,
    a: Qp,
    b: Qp,
}

impl Pair {
    fn new(config: &QpConfig) -> Pair {
        let gpu = Gpu::soft().unwrap();
        let device = Device::rdma_core(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let (mut a, mut b) = (pd.create_qp(config).unwrap(), pd.create_qp(config).unwrap());
        a.connect(&b.address()).unwrap();
        b.connect(&a.address()).unwrap();
        Pair { gpu, pd, a, b }
    }

    fn memory(&self, len: usize) -> Mr {
        let region = self.gpu.alloc(MemoryKind::Pinned, len).unwrap();
        self.pd.register(&region, Access::ALL).unwrap()
    }
}

#[test]
fn a_send_from_the_cpu_arrives() {
    inside!(&[]);
    let mut p = Pair::new(&QpConfig::default());
    assert_eq!(p.a.device().name(), "rdma_core mlx5_0:1");
    let (near, far) = (p.memory(4096), p.memory(4096));
    for round in 0..100_u8 {
        near.region().write(8, &[round; 100]).unwrap();
        let recv = p.b.prepare_receive(&[far.sge(16, 100)]).unwrap();
        p.b.post_receive(recv).unwrap();
        let list = [near.sge(8, 100)];
        let send = p.a.prepare(&Work::send(&list).signaled()).unwrap();
        p.a.post(send).unwrap();
        p.a.wait(send, LIMIT).unwrap();
        p.b.wait(recv, LIMIT).unwrap();
        assert_eq!(p.b.received(recv).unwrap().len, 100);
        let mut got = [0xff; 102];
        far.region().read(15, &mut got).unwrap();
        assert_eq!((got[0], got[101]), (0, 0));
        assert_eq!(got[1..101], [round; 100]);
    }
}

#[allow(dead_code)]
fn unused(_: Result<()>) {}
