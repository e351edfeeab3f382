//! The whole path, for any kind of GPU: prepare, post on a stream, wait on the stream.

#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use crate::common::*;

/// Writes posted on a stream arrive, and the stream sees them complete.
pub fn writes(gpu: &Gpu, config: &QpConfig, from: MemoryKind, to: MemoryKind, n: u32) {
    let mut p = Pair::open_on(gpu, Device::emulated, config);
    let (from, to) = (p.memory(from, 4096), p.memory(to, 4096));
    let stream = gpu.stream().unwrap();
    for i in 0..n {
        from.region().write(0, &i.to_le_bytes()).unwrap();
        let span = to.remote().span(u64::from(i % 512) * 8, 4).unwrap();
        let send = p.a.signaled(&Work::write(&[from.sge(0, 4)], span));
        p.a.post_on(&stream, &send_and_wait(send)).unwrap();
        assert!(stream.synchronize(LIMIT).unwrap(), "stuck at {i}");
        let got = to.region().bytes(i as usize % 512 * 8);
        assert_eq!(u32::from_le_bytes(got), i);
        assert_eq!(p.a.poll(send).unwrap(), Some(Status::SUCCESS));
    }
    assert_eq!(p.a.error(), None);
}

/// Sends and receives that are posted ahead of time run when the gate opens.
pub fn gated(gpu: &Gpu, config: &QpConfig, from: MemoryKind, to: MemoryKind) {
    let mut p = Pair::open_on(gpu, Device::emulated, config);
    let (from, to) = (p.memory(from, 64), p.memory(to, 64));
    let gate = Gate::new(gpu);
    let (sender, receiver) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    p.a.post_on(&sender, &[gate.wait()]).unwrap();
    let mut recvs = Vec::new();
    for i in 0..8u64 {
        let recv = p.b.prepare_receive(&[to.sge(8 * i, 8)]).unwrap();
        // The NIC's writes into device memory are ordered on this GPU: a flush is allowed.
        let list = [Descriptor::Receive(recv), Descriptor::wait_flushed(recv)];
        p.b.post_on(&receiver, &list).unwrap();
        recvs.push(recv);
        let value = (i + 100).to_le_bytes();
        from.region().write(8 * i as usize, &value).unwrap();
        let send =
            p.a.signaled(&Work::send(&[from.sge(8 * i, 8)]).with_imm(i as u32));
        p.a.post_on(&sender, &[Descriptor::Send(send)]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(5));
    assert!(!sender.is_idle().unwrap() && !receiver.is_idle().unwrap());
    let mut polls = recvs.iter().map(|r| p.b.poll(*r).unwrap());
    assert!(
        polls.all(|status| status.is_none()),
        "moved before the gate"
    );
    gate.open();
    passes(&receiver);
    for (i, recv) in recvs.iter().enumerate() {
        let got = p.b.received(*recv).unwrap();
        assert_eq!((got.len, got.imm), (8, Some(i as u32)));
        let got = to.region().bytes(8 * i);
        assert_eq!(u64::from_le_bytes(got), i as u64 + 100);
    }
    passes(&sender);
}

/// A failing request stalls the stream until its status is stored.
pub fn failing(gpu: &Gpu, config: &QpConfig, to: MemoryKind) {
    let mut p = Pair::open_on(gpu, Device::emulated, config);
    let (from, to) = (p.memory(MemoryKind::Pinned, 64), p.memory(to, 64));
    let stream = gpu.stream().unwrap();
    let list = [from.sge(0, 8)];
    let mut span = to.remote().span(0, 8).unwrap();
    span.rkey ^= 0x5500;
    let bad = p.a.signaled(&Work::write(&list, span));
    let after = p.a.signaled(&Work::send(&list));
    let seen = Flag::new(gpu);
    let post = [&seen.behind(bad)[..], &send_and_wait(after)].concat();
    p.a.post_on(&stream, &post).unwrap();
    let refused = Some(Kind::Failed(Status::REMOTE_ACCESS));
    assert_eq!(kind(p.a.wait(bad, LIMIT)), refused);
    passes(&stream);
    assert!(seen.is_set());
    let flushed = Some(Kind::Failed(Status::FLUSHED));
    assert_eq!(kind(p.a.wait(after, LIMIT)), flushed);
    assert_eq!(p.a.error(), Some(Status::REMOTE_ACCESS));
    assert_eq!(kind(p.a.prepare(&Work::send(&list))), refused);
}

/// Streams send, receive and wait, every third message unsignaled; the CPU prepares and posts, and
/// never polls; waits have this time limit. After a tenth of the messages `settled` is called.
pub fn flow(
    p: &mut Pair,
    [near, far]: &[Mr; 2],
    messages: u32,
    timeout: Option<Duration>,
    mut settled: impl FnMut(),
) {
    let (sender, receiver) = (p.gpu.stream().unwrap(), p.gpu.stream().unwrap());
    let list = [near.sge(0, 8)];
    let wait = |completion| Descriptor::Wait {
        completion,
        flush: false,
        timeout,
    };
    let mut last = None;
    for i in 0..messages {
        if i == messages / 10 {
            settled();
        }
        // A full receive queue gets room when the stream passes its waits.
        let recv = p.b.receive_within(&[far.sge(0, 8)]);
        let post = [Descriptor::Receive(recv), wait(recv.into())];
        post_all(&mut p.b, &receiver, &post);
        let work = Work::send(&list).with_imm(i);
        let work = if i % 3 == 0 { work } else { work.signaled() };
        let send = p.a.prepare_within(&work, LIMIT).unwrap();
        let mut post = vec![Descriptor::Send(send)];
        if i % 3 != 0 {
            post.push(wait(send.into()));
        }
        post_all(&mut p.a, &sender, &post);
        last = Some(recv);
    }
    passes(&sender);
    passes(&receiver);
    let last = last.unwrap();
    assert_eq!(p.b.poll(last).unwrap(), Some(Status::SUCCESS));
    assert_eq!(p.b.received(last).unwrap().imm, Some(messages - 1));
}

/// Posts a list; a full stream returns an error, and accepts more later.
fn post_all(qp: &mut Qp, stream: &Stream, list: &[Descriptor<'_>]) {
    until(stream.gpu(), "the stream takes it", || {
        match qp.post_on(stream, list) {
            Ok(()) => true,
            Err(e) => {
                assert_eq!(e.kind(), Kind::QueueFull, "{e}");
                false
            }
        }
    });
}
