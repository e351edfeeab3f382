//! The whole path on CUDA, by a stand-in for libcuda: messages by memory operations, by kernels and
//! by a CPU thread, with payload and queues in pinned and in device memory, and without growth.

mod common;
mod standin;
mod whole_path;

use MemoryKind::{Device as Dev, Pinned as Pin};
use common::*;
use gdsync::gpu::Condition;
use standin::{Control, Variant, cases, inside, until};

fn pair(config: &QpConfig) -> Pair {
    Pair::open_on(&Gpu::cuda(0).unwrap(), Device::emulated, config)
}

fn memops() -> QpConfig {
    sized(&by(Lowering::MemOps, Doorbell::Direct), 16, 16)
}

fn kernels() -> QpConfig {
    sized(&by(Lowering::Kernel, Doorbell::Direct), 16, 16)
}

fn cpu_thread() -> QpConfig {
    sized(&by(Lowering::MemOps, Doorbell::CpuThread), 16, 16)
}

fn writes(config: QpConfig, from: MemoryKind, to: MemoryKind, n: u32) {
    whole_path::writes(&Gpu::cuda(0).unwrap(), &config, from, to, n);
}

/// The waiting stream blocks no call.
fn gated(config: QpConfig, kind: MemoryKind) {
    whole_path::gated(&Gpu::cuda(0).unwrap(), &config, kind, kind);
    let control = Control::open();
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

fn failing(config: QpConfig) {
    whole_path::failing(&Gpu::cuda(0).unwrap(), &config, Dev);
}

/// Streams send, receive and wait; at the end the driver has as many objects as at the start.
fn growth(config: QpConfig, messages: u32) {
    let mut p = pair(&sized(&config, 256, 256));
    let control = Control::open();
    let mut before = None;
    let memory = p.memories(Pin, 64);
    whole_path::flow(&mut p, &memory, messages, None, || {
        before = Some((control.live(), resident()));
    });
    let (mut live, pages) = before.unwrap();
    // The number of commands enqueued at that time varies.
    live.insert("commands".to_owned(), 0);
    assert_eq!(control.live(), live);
    let now = resident();
    assert!(now < pages + (4 << 20), "{pages} bytes, then {now}");
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A NIC's write of one word of 4 or 8 bytes into device memory is atomic: no reader sees half of
/// the old value and half of the new one.
fn whole_words(len: u32) {
    let mut p = pair(&memops());
    let (from, to) = (p.memory(Pin, 64), p.memory(Dev, 64));
    let words = to.region().clone();
    let watchers = [p.gpu.stream().unwrap(), p.gpu.stream().unwrap()];
    // All zeros and all ones alternate; each watcher waits for one half of each.
    let half = u64::MAX >> (64 - 4 * len);
    for (stream, torn) in watchers.iter().zip([half, half << (4 * len)]) {
        let (narrow, wide) = (words.word32(0).unwrap(), words.word64(0).unwrap());
        let wait = match len {
            4 => Descriptor::wait_value(&narrow, Condition::Eq, torn as u32),
            _ => Descriptor::wait_value(&wide, Condition::Eq, torn),
        };
        p.a.post_on(stream, &[wait]).unwrap();
    }
    let control = Control::open();
    until("both watch", || control.waiting() == 2);
    let span = to.remote().span(0, u64::from(len)).unwrap();
    for i in 0..200u64 {
        let value = if i % 2 == 0 { u64::MAX } else { 0 };
        from.region().write(0, &value.to_le_bytes()).unwrap();
        let send = p.a.start(&Work::write(&[from.sge(0, len)], span));
        p.a.wait(send, LIMIT).unwrap();
    }
    assert_eq!(control.waiting(), 2, "a word was seen half written");
    for torn in [half, half << (4 * len)] {
        words.write(0, &torn.to_le_bytes()[..len as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    until("both have passed", || control.waiting() == 0);
}

cases! {
    writes_by_memory_operations_between_device_memory => writes(memops(), Dev, Dev, 300);
    writes_by_memory_operations_between_pinned_memory => writes(memops(), Pin, Pin, 300);
    writes_by_kernels_between_device_and_pinned_memory => writes(kernels(), Dev, Pin, 300);
    writes_by_a_cpu_thread_between_pinned_and_device_memory => writes(cpu_thread(), Pin, Dev, 300);
}

#[test]
fn writes_with_everything_in_device_memory() {
    inside!(Variant::default());
    let all = memops().ring_memory(Dev).cq_memory(Dev).record_memory(Dev);
    // Where the CPU cannot map device memory, queues in it are refused, or pinned instead.
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    match pd.create_qp(&all) {
        Ok(_) => writes(all, Dev, Dev, 100),
        Err(e) => assert_eq!(e.kind(), Kind::Unsupported, "{e}"),
    }
}

cases! {
    words_of_4_bytes_arrive_whole => whole_words(4);
    words_of_8_bytes_arrive_whole => whole_words(8);
    work_ahead_of_time_by_memory_operations => gated(memops(), Dev);
    work_ahead_of_time_by_kernels => gated(kernels(), Pin);
    work_ahead_of_time_by_a_cpu_thread => gated(cpu_thread(), Dev);
    a_failing_request_by_memory_operations => failing(memops());
    a_failing_request_by_kernels => failing(kernels());
    a_failing_request_by_a_cpu_thread => failing(cpu_thread());
    nothing_grows_by_memory_operations => growth(memops(), 100_000);
    nothing_grows_by_kernels => growth(kernels(), 20_000);
}
