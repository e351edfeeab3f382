//! The whole path on CUDA, by a stand-in for libcuda: messages by memory operations, by kernels
//! and by the proxy, with payload and queues in pinned and in device memory, and nothing that
//! grows.

mod standin;

use std::time::Duration;

use gdsync::gpu::{MemoryKind, Region};
use gdsync::memop::Condition;
use gdsync::rdma::{
    Access, Descriptor, Device, Endpoint, Lowering, Mr, Pd, Qp, QpConfig, Sge, WaitOptions, Work,
};
use gdsync::{Gpu, Kind, Status};
use standin::{Control, Variant, inside, until};

const LIMIT: Duration = Duration::from_secs(60);

struct Pair {
    gpu: Gpu,
    pd: Pd,
    a: Qp,
    b: Qp,
}

fn pair(config: &QpConfig) -> Pair {
    let gpu = Gpu::cuda(0).unwrap();
    let device = Device::emulated(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut a = pd.create_qp(config).unwrap();
    let mut b = pd.create_qp(config).unwrap();
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    Pair { gpu, pd, a, b }
}

fn register(p: &Pair, region: &Region) -> Mr {
    p.pd.register(region, Access::ALL).unwrap()
}

fn buffer(p: &Pair, kind: MemoryKind, len: usize) -> Mr {
    register(p, &p.gpu.alloc(kind, len).unwrap())
}

fn memops() -> QpConfig {
    QpConfig {
        send_blocks: 16,
        recv_entries: 16,
        lowering: Lowering::MemOps,
        endpoint: Endpoint::Ring,
        ..QpConfig::default()
    }
}

fn kernels() -> QpConfig {
    QpConfig {
        lowering: Lowering::Kernel,
        ..memops()
    }
}

fn proxy() -> QpConfig {
    QpConfig {
        endpoint: Endpoint::Proxy,
        ..memops()
    }
}

fn sge(mr: &Mr, offset: u64, len: u32) -> Sge<'_> {
    Sge { mr, offset, len }
}

/// Writes posted on a stream arrive, and the stream sees them complete.
fn writes(config: QpConfig, from: MemoryKind, to: MemoryKind, n: u32) {
    let mut p = pair(&config);
    let (from, to) = (buffer(&p, from, 4096), buffer(&p, to, 4096));
    let stream = p.gpu.stream().unwrap();
    for i in 0..n {
        from.region().write(0, &i.to_le_bytes()).unwrap();
        let list = [sge(&from, 0, 4)];
        let span = to.remote().span(u64::from(i % 512) * 8, 4).unwrap();
        let send = p.a.prepare(&Work::write(&list, span).signaled()).unwrap();
        let list = [
            Descriptor::Send(send),
            Descriptor::Wait(send.into(), WaitOptions::default()),
        ];
        p.a.post_on(&stream, &list).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap(), "stuck at {i}");
        let mut got = [0; 4];
        to.region().read(i as usize % 512 * 8, &mut got).unwrap();
        assert_eq!(u32::from_le_bytes(got), i);
        assert_eq!(p.a.poll(send).unwrap(), Some(Status::SUCCESS));
    }
    assert_eq!(p.a.error(), None);
}

/// Sends and receives posted ahead of time flow when the gate opens.
fn gated(config: QpConfig, kind: MemoryKind) {
    let mut p = pair(&config);
    let (from, to) = (buffer(&p, kind, 64), buffer(&p, kind, 64));
    let gate = p.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let gate = gate.word32(0).unwrap();
    let (sender, receiver) = (p.gpu.stream().unwrap(), p.gpu.stream().unwrap());
    let wait_gate = Descriptor::WaitValue32 {
        word: &gate,
        condition: Condition::Geq,
        value: 1,
        flush: false,
    };
    p.a.post_on(&sender, &[wait_gate]).unwrap();
    let mut recvs = Vec::new();
    for i in 0..8u64 {
        let recv = p.b.prepare_receive(&[sge(&to, 8 * i, 8)]).unwrap();
        // What the NIC wrote into device memory is ordered on this GPU: a flush is allowed.
        let flushing = WaitOptions {
            flush: true,
            timeout: None,
        };
        let list = [
            Descriptor::Receive(recv),
            Descriptor::Wait(recv.into(), flushing),
        ];
        p.b.post_on(&receiver, &list).unwrap();
        recvs.push(recv);
        from.region()
            .write(8 * i as usize, &(i + 100).to_le_bytes())
            .unwrap();
        let list = [sge(&from, 8 * i, 8)];
        let work = Work::send(&list).with_imm(i as u32).signaled();
        let send = p.a.prepare(&work).unwrap();
        p.a.post_on(&sender, &[Descriptor::Send(send)]).unwrap();
    }
    let control = Control::open();
    std::thread::sleep(Duration::from_millis(5));
    assert!(!sender.is_idle().unwrap() && !receiver.is_idle().unwrap());
    assert!(recvs.iter().all(|r| p.b.poll(*r).unwrap().is_none()));
    gate.store(1).unwrap();
    assert!(receiver.synchronize(LIMIT).unwrap());
    for (i, recv) in recvs.iter().enumerate() {
        let got = p.b.received(*recv).unwrap();
        assert_eq!((got.len, got.imm), (8, Some(i as u32)));
        let mut bytes = [0; 8];
        to.region().read(8 * i, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), i as u64 + 100);
    }
    assert!(sender.synchronize(LIMIT).unwrap());
    assert_eq!(
        (control.blocked(), control.full()),
        (Vec::new(), 0),
        "nobody stood still"
    );
}

/// A failing request stalls the stream until its status is stored.
fn failing(config: QpConfig) {
    let mut p = pair(&config);
    let (from, to) = (
        buffer(&p, MemoryKind::Pinned, 64),
        buffer(&p, MemoryKind::Device, 64),
    );
    let stream = p.gpu.stream().unwrap();
    let list = [sge(&from, 0, 8)];
    let mut span = to.remote().span(0, 8).unwrap();
    span.rkey ^= 0x5500;
    let bad = p.a.prepare(&Work::write(&list, span).signaled()).unwrap();
    let after = p.a.prepare(&Work::send(&list).signaled()).unwrap();
    let seen = p.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let seen = seen.word32(0).unwrap();
    let post = [
        Descriptor::Send(bad),
        Descriptor::Wait(bad.into(), WaitOptions::default()),
        Descriptor::WriteValue32 {
            word: &seen,
            value: 1,
        },
        Descriptor::Send(after),
        Descriptor::Wait(after.into(), WaitOptions::default()),
    ];
    p.a.post_on(&stream, &post).unwrap();
    let error = p.a.wait(bad, LIMIT).unwrap_err();
    assert_eq!(error.kind(), Kind::Failed(Status::REMOTE_ACCESS));
    assert!(stream.synchronize(LIMIT).unwrap(), "it was released");
    assert_eq!(seen.load().unwrap(), 1);
    let error = p.a.wait(after, LIMIT).unwrap_err();
    assert_eq!(error.kind(), Kind::Failed(Status::FLUSHED));
}

/// Streams send, receive and wait; the driver holds at the end what it held at the start.
fn growth(config: QpConfig, messages: u32) {
    let config = QpConfig {
        send_blocks: 256,
        recv_entries: 256,
        ..config
    };
    let mut p = pair(&config);
    let (near, far) = (
        buffer(&p, MemoryKind::Pinned, 64),
        buffer(&p, MemoryKind::Pinned, 64),
    );
    let (sender, receiver) = (p.gpu.stream().unwrap(), p.gpu.stream().unwrap());
    let control = Control::open();
    let host = std::sync::Arc::clone(p.gpu.host());
    let mut before = None;
    for i in 0..messages {
        if i == messages / 10 {
            before = Some((control.live(), resident()));
        }
        let mut recv = None;
        let list = [sge(&far, 0, 8)];
        let deadline = host.now() + LIMIT;
        let prepared = host.wait_until(Some(deadline), &mut || {
            recv = p.b.prepare_receive(&list).ok();
            recv.is_some()
        });
        assert!(prepared, "message {i} finds no receive");
        let recv = recv.unwrap();
        let post = [
            Descriptor::Receive(recv),
            Descriptor::Wait(recv.into(), WaitOptions::default()),
        ];
        post_all(&mut p.b, &receiver, &post);
        let list = [sge(&near, 0, 8)];
        let work = Work::send(&list).with_imm(i);
        let work = if i % 3 == 0 { work } else { work.signaled() };
        let send = p.a.prepare_within(&work, LIMIT).unwrap();
        let mut post = vec![Descriptor::Send(send)];
        if i % 3 != 0 {
            post.push(Descriptor::Wait(send.into(), WaitOptions::default()));
        }
        post_all(&mut p.a, &sender, &post);
        if i + 1 == messages {
            assert!(receiver.synchronize(LIMIT).unwrap() && sender.synchronize(LIMIT).unwrap());
            assert_eq!(p.b.received(recv).unwrap().imm, Some(i));
        }
    }
    let (mut live, pages) = before.unwrap();
    // How much was enqueued then is chance.
    live.insert("commands".to_owned(), 0);
    assert_eq!(control.live(), live);
    assert!(
        resident() < pages + (4 << 20),
        "{pages} bytes, {}",
        resident()
    );
    assert_eq!((control.blocked(), control.full()), (Vec::new(), 0));
}

/// Posts; a stream that is given more than it takes says so, and takes more later.
fn post_all(qp: &mut Qp, stream: &gdsync::Stream, list: &[Descriptor<'_>]) {
    until("the stream takes it", || match qp.post_on(stream, list) {
        Ok(()) => true,
        Err(e) => {
            assert_eq!(e.kind(), Kind::QueueFull, "{e}");
            false
        }
    });
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// What a NIC writes into device memory as one word of 4 or 8 bytes arrives as one: nobody sees
/// half of the old and half of the new.
fn whole_words(len: u32) {
    let mut p = pair(&memops());
    let (from, to) = (buffer(&p, Pin, 64), buffer(&p, Dev, 64));
    let words = to.region().clone();
    let watchers = [p.gpu.stream().unwrap(), p.gpu.stream().unwrap()];
    // All zeros and all ones take turns; each watcher waits for one half of each.
    let half = u64::MAX >> (64 - 4 * len);
    for (stream, torn) in watchers.iter().zip([half, half << (4 * len)]) {
        let (narrow, wide) = (words.word32(0).unwrap(), words.word64(0).unwrap());
        let wait = match len {
            4 => Descriptor::WaitValue32 {
                word: &narrow,
                condition: Condition::Eq,
                value: torn as u32,
                flush: false,
            },
            _ => Descriptor::WaitValue64 {
                word: &wide,
                condition: Condition::Eq,
                value: torn,
                flush: false,
            },
        };
        p.a.post_on(stream, &[wait]).unwrap();
    }
    let control = Control::open();
    until("both watch", || control.waiting() == 2);
    let span = to.remote().span(0, u64::from(len)).unwrap();
    for i in 0..200u64 {
        let value = if i % 2 == 0 { u64::MAX } else { 0 };
        from.region().write(0, &value.to_le_bytes()).unwrap();
        let list = [sge(&from, 0, len)];
        let send = p.a.prepare(&Work::write(&list, span).signaled()).unwrap();
        p.a.post(send).unwrap();
        p.a.wait(send, LIMIT).unwrap();
    }
    assert_eq!(control.waiting(), 2, "a word was seen half written");
    for torn in [half, half << (4 * len)] {
        words.write(0, &torn.to_le_bytes()[..len as usize]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    until("both have passed", || control.waiting() == 0);
}

use MemoryKind::{Device as Dev, Pinned as Pin};

#[test]
fn writes_by_memory_operations_between_device_memory() {
    inside!(Variant::default());
    writes(memops(), Dev, Dev, 300);
}

#[test]
fn writes_by_memory_operations_between_pinned_memory() {
    inside!(Variant::default());
    writes(memops(), Pin, Pin, 300);
}

#[test]
fn writes_by_kernels_between_device_and_pinned_memory() {
    inside!(Variant::default());
    writes(kernels(), Dev, Pin, 300);
}

#[test]
fn writes_by_the_proxy_between_pinned_and_device_memory() {
    inside!(Variant::default());
    writes(proxy(), Pin, Dev, 300);
}

#[test]
fn writes_with_everything_in_device_memory() {
    inside!(Variant::default());
    let all = QpConfig {
        ring_memory: Dev,
        cq_memory: Dev,
        record_memory: Dev,
        ..memops()
    };
    // Where the CPU cannot map device memory, queues in it are refused, or pinned instead.
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    match pd.create_qp(&all) {
        Ok(_) => writes(all, Dev, Dev, 100),
        Err(e) => assert_eq!(e.kind(), Kind::Unsupported, "{e}"),
    }
}

#[test]
fn words_of_4_bytes_arrive_whole() {
    inside!(Variant::default());
    whole_words(4);
}

#[test]
fn words_of_8_bytes_arrive_whole() {
    inside!(Variant::default());
    whole_words(8);
}

#[test]
fn work_ahead_of_time_by_memory_operations() {
    inside!(Variant::default());
    gated(memops(), Dev);
}

#[test]
fn work_ahead_of_time_by_kernels() {
    inside!(Variant::default());
    gated(kernels(), Pin);
}

#[test]
fn work_ahead_of_time_by_the_proxy() {
    inside!(Variant::default());
    gated(proxy(), Dev);
}

#[test]
fn a_failing_request_by_memory_operations() {
    inside!(Variant::default());
    failing(memops());
}

#[test]
fn a_failing_request_by_kernels() {
    inside!(Variant::default());
    failing(kernels());
}

#[test]
fn a_failing_request_by_the_proxy() {
    inside!(Variant::default());
    failing(proxy());
}

#[test]
fn nothing_grows_by_memory_operations() {
    inside!(Variant::default());
    growth(memops(), 100_000);
}

#[test]
fn nothing_grows_by_kernels() {
    inside!(Variant::default());
    growth(kernels(), 20_000);
}
