//! Flushes that fail, which only the library itself can bring about here.

use std::time::Duration;

use super::lock;
use crate::gpu::soft::SoftOptions;
use crate::gpu::{Gpu, MemoryKind};
use crate::memop::Condition;
use crate::rdma::{Access, Descriptor, Device, Lowering, QpConfig, Work};
use crate::{Kind, Status};

const LIMIT: Duration = Duration::from_secs(60);

/// Streams are let go, and know by then; queue pairs fail, are reset, and flush again.
#[test]
fn a_read_that_fails_fails_every_queue_pair_of_the_device() {
    for lowering in [Lowering::MemOps, Lowering::Kernel] {
        let mut options = SoftOptions::default();
        (options.caps.flush, options.caps.host_flush) = (false, false);
        let live = gds_driver::Live::global().unwrap();
        let gpu = Gpu::soft_with(live, options).unwrap();
        let device = Device::emulated(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let config = QpConfig {
            lowering,
            ..QpConfig::default()
        };
        let make = || pd.create_qp(&config).unwrap();
        let (mut a, mut b, mut other) = (make(), make(), make());
        let region = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let memory = pd.register(&region, Access::ALL).unwrap();
        let gate = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let (gate, noted) = (gate.word32(0).unwrap(), gate.span(8, 4).unwrap());
        let stream = gpu.stream().unwrap();
        for round in 1..=3 {
            a.connect(&b.address()).unwrap();
            b.connect(&a.address()).unwrap();
            let at = other.address();
            other.connect(&at).unwrap();
            let send = |a: &mut crate::rdma::Qp| {
                let sges = [memory.sge(0, 8)];
                let span = memory.remote().span(8, 8).unwrap();
                a.prepare(&Work::write(&sges, span).signaled()).unwrap()
            };
            let write = send(&mut a);
            let list = [
                Descriptor::Send(write),
                Descriptor::wait(write),
                Descriptor::WaitValue32 {
                    word: &gate,
                    condition: Condition::Geq,
                    value: round,
                    flush: true,
                },
            ];
            a.post_on(&stream, &list).unwrap();
            // What the stream sees of the error word behind its wait.
            let soft = stream.as_soft().unwrap();
            let addr = softgpu::DevAddr::from_raw;
            soft.copy(addr(noted.addr().0), addr(a.error_word().0), 4)
                .unwrap();
            let flusher = gpu.flushers().reads()[0].clone().unwrap();
            let one = flusher.of(stream.id()).unwrap();
            lock(&one).qp.fail(Status::CLOSED);
            gate.store(round).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
            let mut seen = [0; 4];
            noted.region().read(8, &mut seen).unwrap();
            assert_eq!(Status(u32::from_ne_bytes(seen)), Status::NOT_VISIBLE);
            for qp in [&mut a, &mut b, &mut other] {
                assert_eq!(qp.error(), Some(Status::NOT_VISIBLE));
                let refused = qp.prepare(&Work::nop()).unwrap_err();
                assert_eq!(refused.kind(), Kind::Failed(Status::NOT_VISIBLE));
                qp.quiet(LIMIT).unwrap();
                qp.reset().unwrap();
                assert_eq!(qp.error(), None);
            }
            // The stream's queue pair is another one now, which does what it should.
            a.connect(&b.address()).unwrap();
            b.connect(&a.address()).unwrap();
            let write = send(&mut a);
            let list = [Descriptor::Send(write), Descriptor::wait_flushed(write)];
            a.post_on(&stream, &list).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
            assert_eq!((a.error(), b.error()), (None, None));
            for qp in [&mut a, &mut b] {
                qp.quiet(LIMIT).unwrap();
                qp.reset().unwrap();
            }
        }
    }
}
