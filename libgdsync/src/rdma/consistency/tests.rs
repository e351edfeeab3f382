//! Failing flushes, which only the library can provoke here.

use std::sync::Arc;

use super::Flushers;
use crate::common::*;
use crate::memop::Condition;
use crate::rdma::tests::odd_nic::OddNic;

/// A GPU that neither orders nor flushes writes, and whose CPU cannot flush either.
fn bare() -> Gpu {
    let mut options = SoftOptions::default();
    (options.caps.flush, options.caps.host_flush) = (false, false);
    soft(options)
}

/// A READ of one NIC does not push the writes of another: while a NIC without READ is open, flushes
/// are refused. On a GPU that flushes it has no effect.
#[test]
fn flush_is_refused_while_a_nic_without_reads_is_open() {
    let open = |gpu: &Gpu| {
        let mut mute = OddNic::new(gpu);
        mute.reads = false;
        mute.open(gpu)
    };
    let gpu = bare();
    let (stream, list) = (gpu.stream().unwrap(), [Descriptor::Flush]);
    let mute = open(&gpu);
    let none = mute.consistency(MemoryKind::Device);
    assert_eq!(kind(none), Some(Kind::Unsupported));
    assert!(mute.consistency(MemoryKind::Pinned).is_ok());
    let other = Device::emulated(&gpu).unwrap();
    let posted = post_on(&stream, &mut [], &list);
    refused(posted, Kind::Unsupported, None, &["READ"]);
    drop(mute);
    post_on(&stream, &mut [], &list).unwrap();
    passes(&stream);
    drop(other);

    let able = Gpu::soft().unwrap();
    let mute = open(&able);
    assert!(mute.consistency(MemoryKind::Device).is_ok());
    post_on(&able.stream().unwrap(), &mut [], &list).unwrap();
}

/// All flushers of a device end with it.
#[test]
fn flushers_end_with_their_device() {
    for gpu in [bare(), Gpu::soft().unwrap()] {
        let device = Device::emulated(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let qp = pd.create_qp(&QpConfig::default()).unwrap();
        let mut cores = vec![Arc::downgrade(&qp.core)];
        let stream = gpu.stream().unwrap();
        post_on(&stream, &mut [], &[Descriptor::Flush]).unwrap();
        passes(&stream);
        if let Ok(flushers) = Flushers::of(&gpu).reads() {
            let one = flushers[0].as_ref().unwrap().of(stream.id()).unwrap();
            cores.push(Arc::downgrade(&one.lock().qp.core));
        }
        drop((qp, pd, device));
        assert!(cores.iter().all(|core| core.upgrade().is_none()));
    }
}

/// The streams are released after the failure is recorded; queue pairs fail, are reset, and flush
/// again.
#[test]
fn failed_flush_read_fails_every_queue_pair_of_the_device() {
    for lowering in [Lowering::MemOps, Lowering::Kernel] {
        let gpu = bare();
        let device = Device::emulated(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        let config = QpConfig::default().lowering(lowering);
        let mut p = Pair::of_domain(&pd, &config);
        let mut other = pd.create_qp(&config).unwrap();
        let memory = p.memory(MemoryKind::Pinned, 64);
        let gate = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let (gate, noted) = (gate.word32(0).unwrap(), gate.span(8, 4).unwrap());
        let stream = gpu.stream().unwrap();
        for round in 1..=3 {
            p.connect();
            let at = other.address();
            other.connect(&at).unwrap();
            let span = memory.remote().span(8, 8).unwrap();
            let sges = [memory.sge(0, 8)];
            let work = Work::write(&sges, span);
            let write = p.a.signaled(&work);
            let list = [
                Descriptor::Send(write),
                Descriptor::wait(write),
                Descriptor::wait_value(&gate, Condition::Geq, round).flush(true),
            ];
            p.a.post_on(&stream, &list).unwrap();
            // The value of the error word that the stream reads behind its wait.
            let soft = stream.as_soft().unwrap();
            let addr = softgpu::DevAddr::from_raw;
            soft.copy(addr(noted.addr().0), addr(p.a.error_word().0), 4)
                .unwrap();
            let flusher = Flushers::of(&gpu).reads().unwrap()[0].clone().unwrap();
            let one = flusher.of(stream.id()).unwrap();
            one.lock().qp.fail(Status::CLOSED);
            gate.store(round).unwrap();
            passes(&stream);
            let seen = u32::from_ne_bytes(noted.region().bytes(8));
            assert_eq!(Status(seen), Status::NOT_VISIBLE);
            for qp in [&mut p.a, &mut p.b, &mut other] {
                assert_eq!(qp.error(), Some(Status::NOT_VISIBLE));
                let failed = Some(Kind::Failed(Status::NOT_VISIBLE));
                assert_eq!(kind(qp.prepare(&Work::nop())), failed);
                qp.quiet(LIMIT).unwrap();
                qp.reset().unwrap();
                assert_eq!(qp.error(), None);
            }
            // The stream has a new queue pair now, which works.
            p.connect();
            let write = p.a.signaled(&work);
            let list = [Descriptor::Send(write), Descriptor::wait_flushed(write)];
            p.a.post_on(&stream, &list).unwrap();
            passes(&stream);
            assert_eq!((p.a.error(), p.b.error()), (None, None));
            for qp in [&mut p.a, &mut p.b] {
                qp.quiet(LIMIT).unwrap();
                qp.reset().unwrap();
            }
        }
    }
}
