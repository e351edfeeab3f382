//! Memory and descriptors of the process do not grow with the number of messages and queue pairs.
//! The test is alone in its process, so that its counts include no other test's.

mod common;
mod whole_path;

use common::*;

/// Messages over the fast paths.
const MESSAGES: u32 = 100_000;
/// Tolerance in bytes for resident memory: pages that are accessed for the first time late.
const SLACK: usize = 3 << 20;

/// Memory and descriptors of the process.
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
    // The allocator may split or join a few of its own mappings.
    assert!(
        after.mappings <= before.mappings + 8,
        "{what}: {before:?}, then {after:?}"
    );
}

#[test]
fn nothing_grows() {
    for (path, config) in paths() {
        // Slower paths send fewer messages.
        let fewer = if path.starts_with("memops") { 1 } else { 4 };
        messages(path, &config, MESSAGES / fewer);
        queue_pairs(path, &config);
    }
}

/// Streams send, receive and wait; the CPU prepares and posts, and never polls.
fn messages(path: &str, config: &QpConfig, messages: u32) {
    let gpu = Gpu::soft().unwrap();
    let config = sized(config, 256, 256);
    let mut p = Pair::new(&gpu, Net::Hub, &config);
    let memory = p.memories(MemoryKind::Pinned, 64);
    let mut before = None;
    whole_path::flow(&mut p, &memory, messages, Some(LIMIT), || {
        before = Some(held())
    });
    compare(&before.unwrap(), path);
    p.check(path);
}

/// Creates and destroys queue pairs, registrations, regions, streams and whole devices.
fn queue_pairs(path: &str, config: &QpConfig) {
    let gpu = Gpu::soft().unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let round = |net| {
        let mut p = Pair::new(&gpu, net, config);
        let device = p.a.device().clone();
        let near = p.mem_a(MemoryKind::Device, 4096);
        let far = p.mem_b(MemoryKind::Pinned, 4096);
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
        // The peer stays until the work is done: a request to a lost peer fails only after seconds.
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
        // Other threads unmap the objects that were dropped last, a moment later.
        let what = format!("{path}, {net:?}");
        let deadline = gpu.host().now() + LIMIT;
        gpu.host().wait_until(Some(deadline), &mut || {
            let now = held();
            now.files <= before.files && now.mappings <= before.mappings + 8
        });
        compare(&before, &what);
    }
}
