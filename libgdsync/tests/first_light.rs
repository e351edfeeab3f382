//! The whole path on the live driver: prepare, post on a stream, wait on the stream.

use std::time::Duration;

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{
    Access, Descriptor, Device, Endpoint, Lowering, Mr, Pd, Qp, QpConfig, Sge, WaitOptions, Work,
};
use gdsync::{Gpu, Kind, Status};

const LIMIT: Duration = Duration::from_secs(20);

struct Pair {
    gpu: Gpu,
    pd: Pd,
    a: Qp,
    b: Qp,
}

fn pair(config: &QpConfig) -> Pair {
    let gpu = Gpu::soft().unwrap();
    let device = Device::emulated(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut a = pd.create_qp(config).unwrap();
    let mut b = pd.create_qp(config).unwrap();
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    Pair { gpu, pd, a, b }
}

fn buffer(p: &Pair, kind: MemoryKind, len: usize) -> Mr {
    let region = p.gpu.alloc(kind, len).unwrap();
    p.pd.register(&region, Access::ALL).unwrap()
}

fn configs() -> Vec<(&'static str, QpConfig)> {
    let base = QpConfig {
        send_blocks: 16,
        recv_entries: 16,
        ..QpConfig::default()
    };
    vec![
        (
            "memops",
            QpConfig {
                lowering: Lowering::MemOps,
                endpoint: Endpoint::Ring,
                ..base.clone()
            },
        ),
        (
            "kernel",
            QpConfig {
                lowering: Lowering::Kernel,
                endpoint: Endpoint::Ring,
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
            "all in device memory",
            QpConfig {
                ring_memory: MemoryKind::Device,
                cq_memory: MemoryKind::Device,
                record_memory: MemoryKind::Device,
                lowering: Lowering::MemOps,
                endpoint: Endpoint::Ring,
                ..base
            },
        ),
    ]
}

#[test]
fn a_write_posted_on_a_stream_arrives_and_the_stream_sees_it_complete() {
    for (name, config) in configs() {
        let mut p = pair(&config);
        let (from, to) = (
            buffer(&p, MemoryKind::Device, 4096),
            buffer(&p, MemoryKind::Device, 4096),
        );
        let stream = p.gpu.stream().unwrap();
        for i in 0..300u32 {
            from.region().write(0, &i.to_le_bytes()).unwrap();
            let sge = [Sge {
                mr: &from,
                offset: 0,
                len: 4,
            }];
            let span = to.remote().span(u64::from(i % 512) * 8, 4).unwrap();
            let send = p.a.prepare(&Work::write(&sge, span).signaled()).unwrap();
            let list = [
                Descriptor::Send(send),
                Descriptor::Wait(send.into(), WaitOptions::default()),
            ];
            p.a.post_on(&stream, &list).unwrap();
            assert!(stream.synchronize(LIMIT).unwrap(), "{name}: stuck at {i}");
            let mut got = [0; 4];
            to.region().read(i as usize % 512 * 8, &mut got).unwrap();
            assert_eq!(u32::from_le_bytes(got), i, "{name}");
            assert_eq!(p.a.poll(send).unwrap(), Some(Status::SUCCESS), "{name}");
        }
        assert_eq!(p.a.error(), None);
    }
}

#[test]
fn sends_and_receives_posted_ahead_of_time_flow_when_the_gate_opens() {
    for (name, config) in configs() {
        let mut p = pair(&config);
        let (from, to) = (
            buffer(&p, MemoryKind::Pinned, 64),
            buffer(&p, MemoryKind::Device, 64),
        );
        let gate = p.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let gate = gate.word32(0).unwrap();
        let (sender, receiver) = (p.gpu.stream().unwrap(), p.gpu.stream().unwrap());
        let mut recvs = Vec::new();
        let wait_gate = Descriptor::WaitValue32 {
            word: &gate,
            condition: gdsync::memop::Condition::Geq,
            value: 1,
            flush: false,
        };
        p.a.post_on(&sender, &[wait_gate]).unwrap();
        for i in 0..8u64 {
            let sge = [Sge {
                mr: &to,
                offset: 8 * i,
                len: 8,
            }];
            let recv = p.b.prepare_receive(&sge).unwrap();
            p.b.post_on(
                &receiver,
                &[
                    Descriptor::Receive(recv),
                    Descriptor::Wait(
                        recv.into(),
                        WaitOptions {
                            flush: true,
                            timeout: None,
                        },
                    ),
                ],
            )
            .unwrap();
            recvs.push(recv);
            from.region()
                .write(8 * i as usize, &(i + 100).to_le_bytes())
                .unwrap();
            let sge = [Sge {
                mr: &from,
                offset: 8 * i,
                len: 8,
            }];
            let send =
                p.a.prepare(&Work::send(&sge).with_imm(i as u32).signaled())
                    .unwrap();
            p.a.post_on(&sender, &[Descriptor::Send(send)]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(
            recvs.iter().all(|r| p.b.poll(*r).unwrap().is_none()),
            "{name}: nothing moves before the gate"
        );
        gate.store(1).unwrap();
        assert!(receiver.synchronize(LIMIT).unwrap(), "{name}");
        for (i, recv) in recvs.iter().enumerate() {
            let got = p.b.received(*recv).unwrap();
            assert_eq!((got.len, got.imm), (8, Some(i as u32)), "{name}");
            let mut bytes = [0; 8];
            to.region().read(8 * i, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), i as u64 + 100, "{name}");
        }
    }
}

#[test]
fn a_failing_request_stalls_the_stream_until_its_status_is_stored() {
    for (name, config) in configs() {
        let mut p = pair(&config);
        let (from, to) = (
            buffer(&p, MemoryKind::Pinned, 64),
            buffer(&p, MemoryKind::Pinned, 64),
        );
        let stream = p.gpu.stream().unwrap();
        let sge = [Sge {
            mr: &from,
            offset: 0,
            len: 8,
        }];
        let mut span = to.remote().span(0, 8).unwrap();
        span.rkey ^= 0x5500;
        let bad = p.a.prepare(&Work::write(&sge, span).signaled()).unwrap();
        let after = p.a.prepare(&Work::send(&sge).signaled()).unwrap();
        let seen = p.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let seen = seen.word32(0).unwrap();
        let list = [
            Descriptor::Send(bad),
            Descriptor::Wait(bad.into(), WaitOptions::default()),
            Descriptor::WriteValue32 {
                word: &seen,
                value: 1,
            },
            Descriptor::Send(after),
            Descriptor::Wait(after.into(), WaitOptions::default()),
        ];
        p.a.post_on(&stream, &list).unwrap();
        let error = p.a.wait(bad, LIMIT).unwrap_err();
        assert_eq!(error.kind(), Kind::Failed(Status::REMOTE_ACCESS), "{name}");
        assert!(
            stream.synchronize(LIMIT).unwrap(),
            "{name}: the stream was released"
        );
        assert_eq!(seen.load().unwrap(), 1);
        assert_eq!(
            p.a.wait(after, LIMIT).unwrap_err().kind(),
            Kind::Failed(Status::FLUSHED),
            "{name}"
        );
        assert_eq!(p.a.error(), Some(Status::REMOTE_ACCESS), "{name}");
        assert_eq!(
            p.a.prepare(&Work::send(&sge)).unwrap_err().kind(),
            Kind::Failed(Status::REMOTE_ACCESS)
        );
    }
}
