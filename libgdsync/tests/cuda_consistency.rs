//! Visibility of payload in GPU memory on CUDA, by a stand-in for its driver: the policy follows
//! from attributes, the CPU flushes by the driver's call, and a failed flush is a failure.

mod common;
mod standin;

use common::*;
use gdsync::gpu::Consistency;
use standin::{Control, Variant, cases, inside};

/// The device attributes that determine the policy.
const FLUSH: i32 = 98;
const OPTIONS: i32 = 117;
const ORDERING: i32 = 118;
/// `cuFlushGPUDirectRDMAWrites`, and its possible results.
const CALL: &str = "cuFlushGPUDirectRDMAWrites";
const UNKNOWN: i32 = 999;

fn set(ordering: i32, flush: i32, options: i32) -> Control {
    let control = Control::open();
    control.set_attribute(ORDERING, ordering);
    control.set_attribute(FLUSH, flush);
    control.set_attribute(OPTIONS, options);
    control
}

fn policy() -> Consistency {
    let gpu = Gpu::cuda(0).unwrap();
    let device = Device::emulated(&gpu).unwrap();
    device.consistency(MemoryKind::Device).unwrap()
}

fn configs() -> [QpConfig; 2] {
    [Lowering::MemOps, Lowering::Kernel].map(|lowering| QpConfig::default().lowering(lowering))
}

/// Messages into GPU memory; the stream reads each after its wait.
fn messages(config: &QpConfig) {
    let gpu = Gpu::cuda(0).unwrap();
    let mut p = Pair::new(&gpu, Net::One, config);
    let [near, far] = p.memories(MemoryKind::Device, 4096);
    let seen = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let stream = gpu.stream().unwrap();
    for round in 0..20_u8 {
        let bytes: Vec<u8> = (0..4000_u32).map(|i| round ^ i as u8).collect();
        near.region().write(0, &bytes).unwrap();
        let recv = p.b.receive(&[sge(&far, 0, 4000)]);
        p.a.start_on(&stream, &Work::send(&[sge(&near, 0, 4000)]));
        p.b.post_on(&stream, &[Descriptor::wait_flushed(recv)])
            .unwrap();
        let (to, from) = (seen.span(0, 4000), far.region().span(0, 4000));
        stream.copy(&to.unwrap(), &from.unwrap()).unwrap();
        finish(&stream, "messages");
        let got = seen.vec(0, 4000);
        assert_eq!(got, bytes, "round {round}");
    }
    assert_eq!((p.a.error(), p.b.error()), (None, None));
}

cases! {
    write_order_takes_precedence_over_flushes =>
        { let _control = set(100, 1, 1); assert_eq!(policy(), Consistency::Ordered); };
    without_order_waits_flush =>
        { let _control = set(0, 1, 1); assert_eq!(policy(), Consistency::Flush); };
}

#[test]
fn without_either_the_cpu_flushes() {
    inside!(Variant::default());
    let control = set(0, 0, 1);
    assert_eq!(policy(), Consistency::HostFlag);
    for config in configs() {
        control.record(true);
        messages(&config);
        control.record(false);
        let calls = control.calls();
        let flushes = calls.lines().filter(|line| line.contains(CALL)).count();
        assert!(flushes >= 20, "{flushes} flushes");
    }
}

#[test]
fn nic_flushes_by_a_read_without_other_flushes() {
    inside!(Variant::default());
    let control = set(0, 0, 0);
    assert_eq!(policy(), Consistency::LoopbackRead);
    control.record(true);
    configs().iter().for_each(messages);
    control.record(false);
    assert!(!control.calls().contains(CALL));
}

cases! {
    a_driver_without_the_call_has_the_nic_read in Variant::without(CALL) =>
        { let _control = set(0, 0, 1); assert_eq!(policy(), Consistency::LoopbackRead); };
}

/// The GPU's attributes promise HOST, and the call fails: streams pass, and see the error.
#[test]
fn a_flush_that_fails_fails_the_queue_pairs() {
    inside!(Variant::default());
    let control = set(0, 0, 1);
    for config in configs() {
        let gpu = Gpu::cuda(0).unwrap();
        let mut p = Pair::new(&gpu, Net::One, &config);
        let (stream, gate, done) = (gpu.stream().unwrap(), Gate::new(&gpu), Flag::new(&gpu));
        let list = [gate.wait(), Descriptor::Flush, done.set()];
        p.a.post_on(&stream, &list).unwrap();
        control.fail(CALL, UNKNOWN, 0);
        gate.open();
        finish(&stream, "a flush that fails");
        assert!(done.is_set());
        assert_eq!(p.a.error(), Some(Status::NOT_VISIBLE));
        assert_eq!(p.b.error(), Some(Status::NOT_VISIBLE));
        let refused = p.a.post_on(&stream, &[Descriptor::Flush]);
        drop(refused);
        control.fail(CALL, 0, 0);
        finish(&stream, "another one");
        p.recover("after a flush that failed");
        p.a.post_on(&stream, &[Descriptor::Flush]).unwrap();
        finish(&stream, "a flush that works again");
        assert_eq!(p.a.error(), None);
        p.a.device().close(LIMIT).unwrap();
    }
}

#[test]
fn unsupported_policy_is_refused_if_it_is_demanded() {
    inside!(Variant::env(&[("GDS_CONSISTENCY", "host")]));
    let _control = set(100, 1, 0);
    refused(Gpu::cuda(0), Kind::Unsupported, None, &["GDS_CONSISTENCY"]);
}

#[test]
fn demanded_policy_takes_precedence_over_write_order() {
    inside!(Variant::env(&[("GDS_CONSISTENCY", "host")]));
    let _control = set(100, 1, 1);
    assert_eq!(policy(), Consistency::HostFlag);
    configs().iter().for_each(messages);
}
