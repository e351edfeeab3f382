//! Flushes by another agent than the stream, on live devices: which agent flushes, how many may be
//! outstanding, and what happens to them when their device is closed.

mod common;

use common::*;
use gdsync::gpu::Consistency;

/// The policies that need another agent.
const OTHERS: [Consistency; 2] = [Consistency::HostFlag, Consistency::LoopbackRead];

fn gpu(policy: Consistency) -> Gpu {
    let mut options = SoftOptions::default().channels(64);
    options.caps.ordered_writes = policy == Consistency::Ordered;
    options.caps.flush = policy == Consistency::Flush;
    options.caps.host_flush = policy == Consistency::HostFlag;
    soft(options)
}

#[test]
fn device_reports_its_consistency_policy() {
    use Consistency::{Flush, HostFlag, LoopbackRead, NotNeeded, Ordered};
    for policy in [Ordered, Flush, HostFlag, LoopbackRead] {
        let device = Device::emulated(&gpu(policy)).unwrap();
        let of = |kind| device.consistency(kind).unwrap();
        assert_eq!(of(MemoryKind::Device), policy);
        assert_eq!(of(MemoryKind::Pinned), NotNeeded);
    }
}

/// More streams than there are words or queue pairs at a time, one after the other and together.
#[test]
fn every_stream_is_served() {
    for policy in OTHERS {
        for (path, config) in paths() {
            let gpu = gpu(policy);
            let mut p = Pair::new(&gpu, Net::Hub, &config);
            for round in 0..3 {
                let gate = Gate::new(&gpu);
                let done: Vec<Flag> = (0..50).map(|_| Flag::new(&gpu)).collect();
                let streams: Vec<_> = done.iter().map(|_| gpu.stream().unwrap()).collect();
                for (i, (stream, done)) in streams.iter().zip(&done).enumerate() {
                    if round == 1 {
                        post_on(stream, &mut [], &[gate.wait()]).unwrap();
                    }
                    let list = [Descriptor::Flush, done.set(), Descriptor::Flush];
                    p.a.post_on(stream, &list).unwrap();
                    if round == 2 {
                        finish(stream, &format!("{policy:?}, {path}, stream {i}"));
                    }
                }
                gate.open();
                for (stream, done) in streams.iter().zip(&done) {
                    finish(stream, path);
                    assert!(done.is_set());
                }
            }
            p.check(path);
        }
    }
}

/// Threads that post on one stream: each flush is done for its own list.
#[test]
fn a_stream_is_shared_by_threads() {
    for policy in OTHERS {
        let gpu = gpu(policy);
        let device = Device::emulated(&gpu).unwrap();
        let stream = gpu.stream().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        post_on(&stream, &mut [], &[Descriptor::Flush; 3]).unwrap();
                    }
                });
            }
        });
        finish(&stream, "four threads");
        drop(device);
    }
}

/// A stalled stream accepts a limited number of flushes. At the limit, a call returns an error with
/// the limit and changes nothing.
#[test]
fn too_many_reads_at_a_time_are_refused() {
    for (path, config) in paths() {
        let gpu = gpu(Consistency::LoopbackRead);
        let mut p = Pair::new(&gpu, Net::One, &config);
        let (stream, gate, done) = (gpu.stream().unwrap(), Gate::new(&gpu), Flag::new(&gpu));
        p.a.post_on(&stream, &[gate.wait()]).unwrap();
        let (held, full) = fill(|| p.a.post_on(&stream, &[Descriptor::Flush]));
        assert_eq!(full.kind(), Kind::QueueFull, "{path}: {full}");
        assert!((128..1000).contains(&held.len()), "{path}: {}", held.len());
        let list = [done.set(), Descriptor::Flush, done.set()];
        assert_eq!(kind(p.a.post_on(&stream, &list)), Some(Kind::QueueFull));
        gate.open();
        finish(&stream, path);
        assert!(!done.is_set(), "{path}: a part of what was refused");
        p.a.post_on(&stream, &list).unwrap();
        finish(&stream, path);
        assert!(done.is_set(), "{path}");
        p.check(path);
    }
}

/// The device is closed while streams wait for their flushes: they pass, as they pass any wait.
#[test]
fn closed_device_releases_streams_that_wait_for_a_flush() {
    for policy in OTHERS {
        for (path, config) in paths() {
            let what = format!("{policy:?}, {path}");
            let gpu = gpu(policy);
            let mut p = Pair::new(&gpu, Net::Hub, &config);
            let (stream, gate, done) = (gpu.stream().unwrap(), Gate::new(&gpu), Flag::new(&gpu));
            let near = p.mem_a(MemoryKind::Pinned, 64);
            let far = p.mem_b(MemoryKind::Device, 64);
            let list = [sge(&near, 0, 8)];
            let work = Work::write(&list, far.remote().span(0, 8).unwrap());
            let send = p.a.signaled(&work);
            let list = [
                gate.wait(),
                Descriptor::Flush,
                Descriptor::Send(send),
                Descriptor::wait_flushed(send),
                done.set(),
            ];
            p.a.post_on(&stream, &list).unwrap();
            drop((p, near, far));
            gate.open();
            finish(&stream, &what);
            assert!(done.is_set(), "{what}");
            // No agent remains that could flush.
            let refused = post_on(&stream, &mut [], &[Descriptor::Flush]);
            assert_eq!(kind(refused), Some(Kind::Unsupported), "{what}");
        }
    }
}
