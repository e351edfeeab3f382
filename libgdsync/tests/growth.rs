//! Memory and descriptors of the process stay as they are, however many messages and queue pairs
//! come and go. Alone in its process, so that what it counts is its own.

mod common;

use common::*;

/// Messages over the fast paths.
const MESSAGES: u32 = 100_000;
/// Resident memory may move by this much: pages that are touched for the first time late.
const SLACK: usize = 3 << 20;

/// What the process holds.
#[derive(Debug)]
struct Held {
    resident: usize,
    mappings: usize,
    files: usize,
}

fn held() -> Held {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    Held {
        resident: pages * 4096,
        mappings: maps.lines().count(),
        files: std::fs::read_dir("/proc/self/fd").unwrap().count(),
    }
}

fn compare(before: &Held, what: &str) {
    let after = held();
    assert!(
        after.resident < before.resident + SLACK,
        "{what}: {before:?}, then {after:?}"
    );
    assert!(after.files <= before.files, "{what}: {before:?}, {after:?}");
    // The allocator may split or join a few of its own.
    assert!(
        after.mappings <= before.mappings + 8,
        "{what}: {before:?}, then {after:?}"
    );
}

#[test]
fn nothing_grows() {
    for (path, config) in paths() {
        // Ways that take longer take fewer.
        let fewer = if path.starts_with("memops") { 1 } else { 4 };
        messages(path, &config, MESSAGES / fewer);
        queue_pairs(path, &config);
    }
}

/// Streams send, receive and wait; the CPU prepares and posts, and never asks.
fn messages(path: &str, config: &QpConfig, messages: u32) {
    let gpu = Gpu::soft().unwrap();
    let config = sized(config, 256, 256);
    let mut p = Pair::new(&gpu, Net::Hub, &config);
    let [near, far] = p.memories(MemoryKind::Pinned, 64);
    let (sender, receiver) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut before = None;
    let mut last = None;
    for i in 0..messages {
        if i == messages / 10 {
            before = Some(held());
        }
        // A full receive queue empties as the stream passes its waits.
        let recv = p.b.receive_within(&[sge(&far, 0, 8)]);
        let post = [
            Descriptor::Receive(recv),
            Descriptor::wait(recv).within(LIMIT),
        ];
        p.b.post_on(&receiver, &post).unwrap();
        let list = [sge(&near, 0, 8)];
        // Every third without signal.
        let work = Work::send(&list).with_imm(i);
        let work = if i % 3 == 0 { work } else { work.signaled() };
        let send = p.a.prepare_within(&work, LIMIT).unwrap();
        let mut post = vec![Descriptor::Send(send)];
        if i % 3 != 0 {
            post.push(Descriptor::wait(send).within(LIMIT));
        }
        p.a.post_on(&sender, &post).unwrap();
        last = Some(recv);
    }
    finish(&sender, path);
    finish(&receiver, path);
    compare(&before.unwrap(), path);
    let last = last.unwrap();
    assert_eq!(p.b.poll(last).unwrap(), Some(Status::SUCCESS), "{path}");
    assert_eq!(p.b.received(last).unwrap().imm, Some(messages - 1));
    p.check(path);
}

/// Queue pairs, registrations, regions, streams and whole devices come and go.
fn queue_pairs(path: &str, config: &QpConfig) {
    let gpu = Gpu::soft().unwrap();
    let pd = gdsync::rdma::Device::emulated(&gpu)
        .unwrap()
        .alloc_pd()
        .unwrap();
    let round = |net| {
        let mut p = Pair::new(&gpu, net, config);
        let device = p.a.device().clone();
        let (near, far) = (
            p.mem_a(MemoryKind::Device, 4096),
            p.mem_b(MemoryKind::Pinned, 4096),
        );
        let also = memory(&pd, MemoryKind::Device, 100, Access::ALL);
        let stream = gpu.stream().unwrap();
        let list = [sge(&near, 0, 8)];
        let to = far.remote().span(0, 8).unwrap();
        let send = p.a.prepare(&Work::write(&list, to)).unwrap();
        let signaled = p.a.signaled(&Work::write(&list, to));
        let post = [
            Descriptor::Send(send),
            Descriptor::Send(signaled),
            Descriptor::wait(signaled),
        ];
        p.a.post_on(&stream, &post).unwrap();
        // The peer stays until the work is done: one that is gone is silent, for seconds.
        drop(p.a);
        drop((near, also));
        finish(&stream, path);
        drop(p.b);
        device.close(LIMIT).unwrap();
    };
    for net in [Net::One, Net::Hub, Net::Host] {
        for _ in 0..10 {
            round(net);
        }
        let before = held();
        for _ in 0..100 {
            round(net);
        }
        // What was dropped last is unmapped by others, a moment later.
        let what = format!("{path}, {net:?}");
        let deadline = gpu.host().now() + LIMIT;
        gpu.host().wait_until(Some(deadline), &mut || {
            let now = held();
            now.files <= before.files && now.mappings <= before.mappings + 8
        });
        compare(&before, &what);
    }
}
