//! Handles that are dropped while work is in flight: in every order, no call crashes or hangs, no
//! memory is freed that a device still accesses, and `close` reports what remains.

mod common;

use std::any::Any;

use common::witness::Witness;
use common::*;

const SOON: Duration = Duration::from_millis(2);

/// Every order of `n` objects.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in orders(n - 1) {
        for at in 0..n {
            let mut order = shorter.clone();
            order.insert(at, n - 1);
            all.push(order);
        }
    }
    all
}

/// No machine of the driver has panicked.
fn nothing_panicked() {
    let failures = Live::global().unwrap().failures();
    assert!(failures.is_empty(), "{failures:?}");
}

/// Objects of several types.
macro_rules! things {
    ($($thing:expr),*) => { vec![$(Box::new($thing) as Box<dyn Any>),*] };
}

/// The objects of the device are destroyed soon.
#[track_caller]
fn closes(device: &Device, what: &str) {
    let closed = device.close(LIMIT);
    closed.unwrap_or_else(|e| panic!("{what}: {e}"));
}

fn drop_in(order: &[usize], things: Vec<Box<dyn Any>>) {
    let mut things: Vec<_> = things.into_iter().map(Some).collect();
    for i in order {
        drop(things[*i].take());
    }
    assert!(things.iter().all(Option::is_none));
}

#[test]
fn posted_requests_arrive_after_handles_are_dropped_while_the_device_is_kept() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        for (n, order) in orders(4).into_iter().enumerate() {
            for signaled in [true, false] {
                let what = format!("{path}, order {order:?}, signaled {signaled}");
                let mut p = Pair::new(&gpu, Net::One, &config);
                let device = p.a.device().clone();
                let far = p.mem_b(MemoryKind::Pinned, 64);
                let near = p.mem_a(MemoryKind::Device, 64);
                let value = 0xfeed_0000 + n as u64;
                near.region().write(8, &value.to_le_bytes()).unwrap();
                let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
                let done = Flag::new(&gpu);
                let to = far.remote().span(16, 8).unwrap();
                let list = [sge(&near, 8, 8)];
                let work = Work::write(&list, to);
                let work = if signaled { work.signaled() } else { work };
                let send = p.a.prepare(&work).unwrap();
                // Prepared and never posted: without effect.
                p.a.signaled(&Work::write(&list, to));
                let mut post = vec![gate.wait(), Descriptor::Send(send)];
                if signaled {
                    post.push(Descriptor::wait(send));
                }
                post.push(done.set());
                p.a.post_on(&stream, &post).unwrap();
                let qpn = format!("{:#x}", p.a.address().qpn);
                let region = near.region().clone();
                let Pair { a, b, pd_a, .. } = p;
                drop_in(&order, things![a, near, region, pd_a]);

                let close = device.close(SOON);
                refused(close, Kind::Timeout, None, &["1 queue pairs", &qpn]);
                gate.open();
                finish(&stream, &what);
                assert!(done.is_set(), "{what}");
                closes(&device, &what);
                let got = far.region().bytes::<8>(16);
                assert_eq!(u64::from_le_bytes(got), value, "{what}");
                drop(b);
            }
        }
    }
    nothing_panicked();
}

#[test]
fn closed_device_releases_waits_with_a_status() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        for order in orders(5) {
            let what = format!("{path}, order {order:?}");
            let mut p = Pair::new(&gpu, Net::Hub, &config);
            let near = p.mem_a(MemoryKind::Device, 64);
            let (stream, done) = (gpu.stream().unwrap(), Flag::new(&gpu));
            let list = [sge(&near, 0, 8)];
            // No receive is posted: this send never completes.
            let send = p.a.signaled(&Work::send(&list));
            let recv = p.a.prepare_receive(&list).unwrap();
            let post = [
                Descriptor::Receive(recv),
                Descriptor::Send(send),
                Descriptor::wait(send),
            ];
            p.a.post_on(&stream, &post).unwrap();
            let saw = Witness::launch(&stream, &p.a, send);
            let post = [Descriptor::wait(recv), done.set()];
            p.a.post_on(&stream, &post).unwrap();
            let device = p.a.device().clone();
            let Pair {
                a, b, pd_a, pd_b, ..
            } = p;
            let (region, _peer) = (near.region().clone(), (b, pd_b));
            drop_in(&order, things![a, near, region, pd_a, device]);
            finish(&stream, &what);
            assert!(done.is_set(), "{what}");
            assert_eq!(saw.seen().error, Status::CLOSED, "{what}");
        }
    }
    nothing_panicked();
}

#[test]
fn closed_device_does_not_stall_streams_that_ring_later() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::Hub, &config);
        let near = p.mem_a(MemoryKind::Device, 64);
        let (gate, done) = (Gate::new(&gpu), Flag::new(&gpu));
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let list = [sge(&near, 0, 8)];
        p.a.post_on(&streams[0], &[gate.wait()]).unwrap();
        // Posts alternate between the streams, so each stream waits for the other's.
        for i in 0..8 {
            let stream = &streams[i % 2];
            p.a.start_on(stream, &Work::send(&list));
        }
        p.a.post_on(&streams[1], &[done.set()]).unwrap();
        drop(p);
        drop(near);
        std::thread::sleep(SOON);
        assert!(!done.is_set());
        gate.open();
        for stream in &streams {
            finish(stream, path);
        }
        assert!(done.is_set(), "{path}");
    }
    nothing_panicked();
}

#[test]
fn all_handles_may_be_dropped_in_any_order() {
    for (path, config) in paths() {
        // Some of the 5040 orders, spread over all of them.
        for order in orders(7).into_iter().step_by(101) {
            let gpu = Gpu::soft().unwrap();
            let mut p = Pair::new(&gpu, Net::Hub, &config);
            let near = p.mem_a(MemoryKind::Device, 64);
            let far = p.mem_b(MemoryKind::Pinned, 64);
            let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
            let list = [sge(&near, 0, 8)];
            let to = far.remote().span(0, 8).unwrap();
            let send = p.a.signaled(&Work::write(&list, to));
            p.a.post_on(&stream, &gate.before(send)).unwrap();
            let _ = Witness::launch(&stream, &p.a, send);
            let Pair {
                a,
                b,
                pd_a,
                pd_b,
                gpu: again,
                ..
            } = p;
            drop(again);
            drop_in(&order, things![a, (b, pd_b), near, pd_a, stream, gate, gpu]);
            drop(far);
        }
        // The driver still works.
        let gpu = Gpu::soft().unwrap();
        Pair::new(&gpu, Net::Hub, &config).check(path);
    }
    nothing_panicked();
}

#[test]
fn close_waits_only_for_dropped_objects() {
    let gpu = Gpu::soft().unwrap();
    for (path, config) in paths() {
        let config = limited(&config, None);
        let mut p = Pair::new(&gpu, Net::One, &config);
        let device = p.a.device().clone();
        // A queue pair that is in use does not delay it.
        device.close(Duration::ZERO).unwrap();
        let mut doomed = p.pd_a.create_qp(&config).unwrap();
        let mut peer = p.pd_a.create_qp(&config).unwrap();
        common::connect(&mut doomed, &mut peer);
        let mem = p.mem_a(MemoryKind::Pinned, 64);
        doomed.start(&Work::send(&[sge(&mem, 0, 8)]));
        let qpn = format!("{:#x}", doomed.address().qpn);
        drop(doomed);
        for _ in 0..2 {
            let close = device.close(SOON);
            refused(close, Kind::Timeout, None, &["1 queue pairs", &qpn]);
        }
        // The message of a dropped queue pair is received like any other.
        let recv = peer.receive(&[sge(&mem, 8, 8)]);
        peer.wait(recv, LIMIT).unwrap();
        device.close(LIMIT).unwrap();
        p.check(path);
    }
    nothing_panicked();
}

#[test]
fn a_dropped_queue_pair_outlives_the_receives_that_a_stream_posts() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::One, &config);
        let device = p.a.device().clone();
        let mem = p.mem_a(MemoryKind::Pinned, 64);
        let (stream, gate) = (gpu.stream().unwrap(), Gate::new(&gpu));
        let recv = p.a.prepare_receive(&[sge(&mem, 0, 8)]).unwrap();
        let post = [gate.wait(), Descriptor::Receive(recv)];
        p.a.post_on(&stream, &post).unwrap();
        let qpn = format!("{:#x}", p.a.address().qpn);
        let Pair { a, b, .. } = p;
        drop(a);
        all_refused! { Kind::Timeout, None, &["1 queue pairs", &qpn]; device.close(SOON) }
        gate.open();
        finish(&stream, path);
        closes(&device, path);
        drop(b);
    }
    nothing_panicked();
}

#[test]
fn dropped_queue_pair_without_an_answering_peer_ends_at_its_time_limit() {
    let gpu = Gpu::soft().unwrap();
    for (path, config) in paths() {
        let config = limited(&config, Some(Duration::from_millis(30)));
        for signaled in [true, false] {
            let mut p = Pair::new(&gpu, Net::One, &config);
            let device = p.a.device().clone();
            let mem = p.mem_a(MemoryKind::Pinned, 64);
            let list = [sge(&mem, 0, 8)];
            let work = Work::send(&list);
            let work = if signaled { work.signaled() } else { work };
            let send = p.a.prepare(&work).unwrap();
            p.a.post(send).unwrap();
            drop(p);
            closes(&device, &format!("{path}, signaled {signaled}"));
        }
    }
}

#[test]
fn request_to_a_destroyed_queue_pair_fails() {
    let gpu = Gpu::soft().unwrap();
    for (path, config) in paths() {
        for net in [Net::One, Net::Hub, Net::Host] {
            let what = format!("{path}, {net:?}");
            let mut p = Pair::new(&gpu, net, &config);
            p.check(&what);
            let near = p.mem_a(MemoryKind::Pinned, 64);
            let list = [sge(&near, 0, 8)];
            // One send before the queue pair is destroyed, which finds no receive, and one after.
            let before = p.a.start(&Work::send(&list));
            let Pair { mut a, b, pd_b, .. } = p;
            drop((b, pd_b));
            let expect = Some(Kind::Failed(Status::TRANSPORT_RETRY));
            assert_eq!(kind(a.wait(before, LIMIT)), expect, "{what}");
            assert_eq!(a.error(), Some(Status::TRANSPORT_RETRY), "{what}");
        }
    }
}

#[test]
fn a_peer_reaches_a_buffer_until_it_is_given_back() {
    let gpu = Gpu::soft().unwrap();
    for (path, config) in paths() {
        let mut p = Pair::new(&gpu, Net::One, &config);
        let near = p.mem_a(MemoryKind::Pinned, 64);
        near.region().write(0, b"by the peer").unwrap();
        let region = gpu.adopt_vec(vec![1; 64]).unwrap();
        let far = p.pd_b.register(&region, Access::ALL).unwrap();
        drop(region);
        let to = far.remote().span(8, 11).unwrap();
        let list = [sge(&near, 0, 11)];
        let send = p.a.start(&Work::write(&list, to));
        p.a.wait(send, LIMIT).unwrap();
        let region = far.region().clone();
        let (far, e) = far.into_vec(SOON).expect_err("a region is held");
        assert_eq!(e.kind(), Kind::Timeout, "{path}: {e}");
        let other = far.clone();
        drop(region);
        let (far, e) = far.into_vec(SOON).expect_err("a registration is held");
        assert_eq!(e.kind(), Kind::Timeout, "{path}: {e}");
        drop(other);
        let buffer = far.into_vec(LIMIT).unwrap();
        assert_eq!(&buffer[8..19], b"by the peer", "{path}");
        let send = p.a.start(&Work::write(&list, to));
        let expect = Some(Kind::Failed(Status::REMOTE_ACCESS));
        assert_eq!(kind(p.a.wait(send, LIMIT)), expect, "{path}");
        assert_eq!(buffer[..8], [1; 8], "{path}");
        let plain = gpu.alloc(MemoryKind::Pinned, 8).unwrap();
        let (_, e) = plain.into_vec(LIMIT).expect_err("made of no buffer");
        assert_eq!(e.kind(), Kind::Invalid, "{path}: {e}");
    }
}
