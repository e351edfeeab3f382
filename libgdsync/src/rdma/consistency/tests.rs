//! Flushes that fail, which only the library itself can bring about here.

use std::sync::Arc;
use std::time::Duration;

use super::Flushers;
use crate::gpu::soft::SoftOptions;
use crate::gpu::{Gpu, MemoryKind};
use crate::memop::Condition;
use crate::nic::Access;
use crate::provider::emulated::{EmulatedNic, EmulatedOptions};
use crate::rdma::tests::odd_nic::OddNic;
use crate::rdma::{Descriptor, Device, Lowering, QpConfig, Work, post_on};
use crate::{Kind, Status};

const LIMIT: Duration = Duration::from_secs(60);

/// A GPU that neither orders nor flushes, and whose CPU cannot either.
fn bare() -> Gpu {
    let mut options = SoftOptions::default();
    (options.caps.flush, options.caps.host_flush) = (false, false);
    Gpu::soft_with(gds_step::Live::global().unwrap(), options).unwrap()
}

/// What a NIC wrote that does no READs, those of another do not push: as long as there is such a
/// one, flushes are refused. Where the GPU flushes it does no harm.
#[test]
fn a_nic_without_reads_has_flushes_refused() {
    let open = |gpu: &Gpu| {
        let nic = EmulatedNic::open(gpu, EmulatedOptions::default()).unwrap();
        Device::open(gpu, Arc::new(OddNic::mute(nic)), true, Vec::new()).unwrap()
    };
    let gpu = bare();
    let (stream, list) = (gpu.stream().unwrap(), [Descriptor::Flush]);
    let mute = open(&gpu);
    let none = mute.consistency(MemoryKind::Device).unwrap_err();
    assert_eq!(none.kind(), Kind::Unsupported);
    assert!(mute.consistency(MemoryKind::Pinned).is_ok());
    let other = Device::emulated(&gpu).unwrap();
    let refused = post_on(&stream, &mut [], &list).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.to_string().contains("READ"), "{refused}");
    drop(mute);
    post_on(&stream, &mut [], &list).unwrap();
    assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
    drop(other);

    let able = Gpu::soft().unwrap();
    let mute = open(&able);
    assert!(mute.consistency(MemoryKind::Device).is_ok());
    post_on(&able.stream().unwrap(), &mut [], &list).unwrap();
}

/// Whatever a device has for flushes ends with it.
#[test]
fn nothing_is_left_of_a_device_that_flushed() {
    for gpu in [bare(), Gpu::soft().unwrap()] {
        let device = Device::emulated(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpConfig::default()).unwrap();
        let mut cores = vec![Arc::downgrade(&qp.core)];
        let stream = gpu.stream().unwrap();
        post_on(&stream, &mut [], &[Descriptor::Flush]).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap(), "the stream is stuck");
        if let Ok(flushers) = Flushers::of(&gpu).reads() {
            let one = flushers[0].as_ref().unwrap().of(stream.id()).unwrap();
            cores.push(Arc::downgrade(&one.lock().qp.core));
        }
        drop((qp, pd, device));
        assert!(cores.iter().all(|core| core.upgrade().is_none()));
    }
}

/// Streams are let go, and know by then; queue pairs fail, are reset, and flush again.
#[test]
fn a_read_that_fails_fails_every_queue_pair_of_the_device() {
    for lowering in [Lowering::MemOps, Lowering::Kernel] {
        let gpu = bare();
        let device = Device::emulated(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let config = QpConfig::default().lowering(lowering);
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
            let flusher = Flushers::of(&gpu).reads().unwrap()[0].clone().unwrap();
            let one = flusher.of(stream.id()).unwrap();
            one.lock().qp.fail(Status::CLOSED);
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
