//! `GDS_LOWER=auto` on CUDA, by a stand-in for libcuda: which lists are lowered to memory
//! operations and which to a kernel, and that mixing the two on one queue loses no work.

mod common;
mod standin;

use common::*;
use gdsync::rdma::QpAddress;
use standin::{Control, Variant, inside};

fn auto() -> QpConfig {
    sized(&by(Lowering::Auto, Doorbell::Direct), 64, 256)
}

/// Queue pairs, each connected to a peer that is kept beside it.
fn pairs(pd: &Pd, n: usize, seen: impl Fn(QpAddress) -> QpAddress) -> (Vec<Qp>, Vec<Qp>) {
    let mut both = (Vec::new(), Vec::new());
    for _ in 0..n {
        let mut a = pd.create_qp(&auto()).unwrap();
        let mut b = pd.create_qp(&auto()).unwrap();
        a.connect(&seen(b.address())).unwrap();
        b.connect(&a.address()).unwrap();
        both.0.push(a);
        both.1.push(b);
    }
    both
}

/// Posts one write on each queue pair, with waits for all behind them if requested; returns whether
/// a kernel did it.
fn posts(control: &Control, stream: &Stream, qps: &mut [Qp], memory: &Mr, waits: bool) -> bool {
    let to = memory.remote().span(64, 8).unwrap();
    let sends: Vec<SendRequest> = qps
        .iter_mut()
        .map(|qp| qp.signaled(&Work::write(&[memory.sge(0, 8)], to)))
        .collect();
    let mut list: Vec<Descriptor> = sends.iter().map(|send| Descriptor::Send(*send)).collect();
    if waits {
        list.extend(sends.iter().map(|send| Descriptor::wait(*send)));
    }
    control.record(true);
    let mut queues: Vec<&mut Qp> = qps.iter_mut().collect();
    post_on(stream, &mut queues, &list).unwrap();
    control.record(false);
    let calls = control.calls();
    passes(stream);
    for (qp, send) in qps.iter_mut().zip(sends) {
        qp.wait(send, LIMIT).unwrap();
    }
    let (kernel, memops) = (
        calls.contains("cuLaunchKernel"),
        calls.contains("cuStreamBatchMemOp"),
    );
    assert!(kernel != memops, "one or the other: {calls}");
    kernel
}

#[test]
fn long_lists_go_by_a_kernel_and_short_ones_by_memory_operations() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let memory = common::memory(&pd, MemoryKind::Pinned, 4096, Access::ALL);
    let stream = gpu.stream().unwrap();
    let (mut qps, _peers) = pairs(&pd, 8, |address| address);
    assert_eq!(qps[0].lowering(), Lowering::Auto);
    // Alternating on the same queues: both ways continue where the other ended.
    for round in 0..40 {
        for (n, waits, kernel) in [
            (1, false, false),
            (1, true, false),
            (3, false, false),
            (4, false, true),
            (8, false, true),
            (8, true, true),
        ] {
            let by_kernel = posts(&control, &stream, &mut qps[..n], &memory, waits);
            assert_eq!(by_kernel, kernel, "round {round}: {n} sends, waits {waits}");
        }
    }
}

#[test]
fn no_kernel_spins_for_a_peer_of_another_process_on_the_same_gpu() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let memory = common::memory(&pd, MemoryKind::Pinned, 4096, Access::ALL);
    let stream = gpu.stream().unwrap();
    let elsewhere = |address: QpAddress| address.process(address.process ^ 1);
    let (mut qps, _peers) = pairs(&pd, 8, elsewhere);
    assert!(!posts(&control, &stream, &mut qps, &memory, true));
    // Posting does not spin.
    assert!(posts(&control, &stream, &mut qps, &memory, false));
    let far = |address: QpAddress| elsewhere(address).gpu(address.gpu ^ 1);
    let (mut qps, _peers) = pairs(&pd, 8, far);
    assert!(posts(&control, &stream, &mut qps, &memory, true));
}

#[test]
fn no_kernel_spins_for_a_word_of_the_application_s() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    let word = memory.word32(128).unwrap();
    let memory = pd.register(&memory, Access::ALL).unwrap();
    let stream = gpu.stream().unwrap();
    let (mut qps, _peers) = pairs(&pd, 8, |address| address);
    let to = memory.remote().span(64, 8).unwrap();
    let mut list = vec![geq(&word, 1)];
    for qp in &mut qps {
        let send = qp.prepare(&Work::write(&[memory.sge(0, 8)], to).signaled());
        list.push(Descriptor::Send(send.unwrap()));
    }
    control.record(true);
    post_on(&stream, &mut qps.iter_mut().collect::<Vec<_>>(), &list).unwrap();
    control.record(false);
    assert!(!control.calls().contains("cuLaunchKernel"));
    word.store(1).unwrap();
    passes(&stream);
}
