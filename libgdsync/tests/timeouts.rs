//! Time limits: a peer that does not answer, a completion that never arrives, and no false alarm.
//! The tests run as simulations with a virtual clock, so that limits are exact and do not depend on
//! the machine; one test runs on the live driver.

mod common;

use common::witness::{Seen, Witness};
use common::*;
use gds_sim::seeds;

const MS: Duration = Duration::from_millis(1);
const SHORT: Duration = Duration::from_millis(200);
/// A limit on the live driver within which a loaded machine completes every message.
const LIVE: Duration = Duration::from_millis(500);

const TIMEOUT: Option<Kind> = Some(Kind::Failed(Status::TIMEOUT));
const FLUSHED: Option<Kind> = Some(Kind::Failed(Status::FLUSHED));

/// Runs a test over every path, each with several seeds.
fn plays(mut test: impl FnMut(&Gpu, &QpConfig, &str)) {
    seeds(3, |seed| {
        for (path, config) in paths() {
            let (_sim, gpu) = play(seed);
            test(&gpu, &config, path);
        }
        Ok::<_, String>(())
    });
}

/// Opens the gate in front of a stream, whose wait then ends at its limit.
#[track_caller]
fn ends_at_the_limit(gpu: &Gpu, gate: &Gate, stream: &Stream, what: &str) {
    gate.open();
    let opened = gpu.host().now();
    finish(stream, what);
    let took = gpu.host().now() - opened;
    assert!(SHORT <= took && took < 2 * SHORT, "{what}: {took:?}");
}

/// The values that a kernel reads behind a timed-out request, where the queue pair failed by its
/// limit.
fn timed_out(status: Status) -> Seen {
    let error = Status::TIMEOUT;
    Seen { error, status }
}

#[test]
fn send_without_a_receive_times_out_and_the_stream_continues() {
    plays(|gpu, config, path| {
        let mut p = Pair::new(gpu, Net::Hub, &limited(config, Some(SHORT)));
        let (mem, stream) = (p.mem_a(MemoryKind::Pinned, 64), gpu.stream().unwrap());
        let (gate, done) = (Gate::new(gpu), Flag::new(gpu));
        let list = [sge(&mem, 0, 8)];
        let own = p.a.receive(&[sge(&mem, 32, 8)]);
        let sends = [(); 3].map(|()| p.a.signaled(&Work::send(&list)));
        let head = [
            gate.wait(),
            Descriptor::Send(sends[0]),
            Descriptor::Send(sends[1]),
            Descriptor::wait(sends[0]),
        ];
        p.a.post_on(&stream, &head).unwrap();
        let first = Witness::launch(&stream, &p.a, sends[0]);
        // Its doorbell is written when the queue pair is already in error.
        let tail = done.behind(sends[2]);
        p.a.post_on(&stream, &tail).unwrap();
        let last = Witness::launch(&stream, &p.a, sends[2]);

        // No request is late while the gate holds the doorbell back.
        pass(gpu, 10 * SHORT);
        assert_eq!(p.a.error(), None, "{path}: a false alarm");
        ends_at_the_limit(gpu, &gate, &stream, path);
        assert!(done.is_set());
        assert_eq!(first.seen(), timed_out(Status::TIMEOUT), "{path}");
        assert_eq!(last.seen(), timed_out(Status::FLUSHED), "{path}");
        assert_eq!(kind(p.a.wait(sends[0], LIMIT)), TIMEOUT, "{path}");
        assert_eq!(kind(p.a.wait(sends[1], LIMIT)), FLUSHED, "{path}");
        assert_eq!(kind(p.a.wait(own, LIMIT)), FLUSHED, "{path}");
        assert_eq!(p.a.error(), Some(Status::TIMEOUT), "{path}");
        assert_eq!(p.b.error(), None, "{path}: the peer has no error");
        p.recover(path);
    });
}

#[test]
fn silent_or_dead_peer_is_detected_within_the_time_limit() {
    plays(|gpu, config, path| {
        for dead in [false, true] {
            let what = format!("{path}, dead {dead}");
            let mut p = Pair::new(gpu, Net::Hub, &limited(config, Some(SHORT)));
            p.check(&what);
            let [near, far] = p.memories(MemoryKind::Device, 64);
            let (stream, gate) = (gpu.stream().unwrap(), Gate::new(gpu));
            let list = [sge(&near, 0, 8)];
            let to = far.remote().span(0, 8).unwrap();
            let write = p.a.signaled(&Work::write(&list, to));
            p.a.post_on(&stream, &gate.before(write)).unwrap();
            let saw = Witness::launch(&stream, &p.a, write);
            let node = vmlx5::fabric::NodeId(p.b.address().node);
            // A dead peer does not answer either: the NIC would detect it, after all its retries.
            assert!(match dead {
                true => p.hub.kill(node),
                false => p.hub.silence(node, true),
            });
            ends_at_the_limit(gpu, &gate, &stream, &what);
            assert_eq!(saw.seen(), timed_out(Status::TIMEOUT), "{what}");
            assert_eq!(kind(p.a.wait(write, LIMIT)), TIMEOUT, "{what}");
            if !dead {
                assert!(p.hub.silence(node, false));
                p.recover(&what);
            }
        }
    });
}

#[test]
fn wait_of_a_stream_ends_at_its_time_limit() {
    plays(|gpu, config, path| {
        // The queue pair need not be connected: receives may be posted, and waited for, before.
        for connected in [true, false] {
            let what = format!("{path}, connected {connected}");
            let config = limited(config, None);
            let mut p = Pair::apart(gpu, Net::Hub, &config, &config);
            if connected {
                p.connect();
            }
            let (mem, stream) = (p.mem_b(MemoryKind::Device, 64), gpu.stream().unwrap());
            let (gate, done) = (Gate::new(gpu), Flag::new(gpu));
            let receives = [0, 8].map(|at| p.b.prepare_receive(&[sge(&mem, at, 8)]).unwrap());
            let list = [
                Descriptor::Receive(receives[0]),
                Descriptor::Receive(receives[1]),
                gate.wait(),
                Descriptor::wait(receives[0]).within(SHORT),
            ];
            p.b.post_on(&stream, &list).unwrap();
            let saw = Witness::launch(&stream, &p.b, receives[0]);
            let tail = [Descriptor::wait(receives[1]), done.set()];
            p.b.post_on(&stream, &tail).unwrap();
            // The limit counts from the time when the stream reaches the wait.
            pass(gpu, 10 * SHORT);
            assert_eq!(p.b.error(), None, "{what}: a false alarm");
            ends_at_the_limit(gpu, &gate, &stream, &what);
            assert!(done.is_set());
            assert_eq!(saw.seen(), timed_out(Status::TIMEOUT), "{what}");
            assert_eq!(kind(p.b.wait(receives[0], LIMIT)), TIMEOUT, "{what}");
            assert_eq!(kind(p.b.wait(receives[1], LIMIT)), FLUSHED, "{what}");
            assert_eq!(p.b.error(), Some(Status::TIMEOUT), "{what}");
            p.b.reset().unwrap();
            p.a.reset().unwrap();
            p.connect();
            p.check(&what);
        }
    });
}

#[test]
fn passed_wait_does_not_time_out_while_the_stream_is_stalled_elsewhere() {
    plays(|gpu, config, path| {
        let mut p = Pair::new(gpu, Net::Hub, &limited(config, Some(SHORT)));
        let [near, far] = p.memories(MemoryKind::Pinned, 64);
        let (stream, gate) = (gpu.stream().unwrap(), Gate::new(gpu));
        let list = [sge(&near, 0, 8)];
        let to = far.remote().span(0, 8).unwrap();
        let write = p.a.signaled(&Work::write(&list, to));
        let post = [
            Descriptor::Send(write),
            Descriptor::wait(write).within(SHORT),
            gate.wait(),
        ];
        p.a.post_on(&stream, &post).unwrap();
        pass(gpu, 10 * SHORT);
        assert_eq!(p.a.error(), None, "{path}: a false alarm");
        gate.open();
        finish(&stream, path);
        p.check(path);
    });
}

#[test]
fn slow_peer_does_not_time_out() {
    plays(|gpu, config, path| {
        let mut p = Pair::new(gpu, Net::Hub, &limited(config, Some(SHORT)));
        let [near, far] = p.memories(MemoryKind::Pinned, 64);
        let stream = gpu.stream().unwrap();
        let list = [sge(&near, 0, 8)];
        let sends = [(); 6].map(|()| p.a.start_on(&stream, &Work::send(&list)));
        // Each takes nearly as long as it may, all together far longer.
        for _ in 0..6 {
            pass(gpu, SHORT - 40 * MS);
            let recv = p.b.receive(&[sge(&far, 0, 8)]);
            p.b.wait(recv, LIMIT).unwrap();
        }
        finish(&stream, path);
        p.a.wait(sends[5], LIMIT).unwrap();
        assert_eq!(p.a.error(), None, "{path}");
    });
}

#[test]
fn send_without_a_time_limit_waits_without_end() {
    plays(|gpu, config, path| {
        let mut p = Pair::new(gpu, Net::Hub, &limited(config, None));
        let [near, far] = p.memories(MemoryKind::Pinned, 64);
        let send = p.a.start(&Work::send(&[sge(&near, 0, 8)]));
        // The CPU's own limit does not affect the request.
        let before = gpu.host().now();
        let error = p.a.wait(send, 20 * SHORT).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout, "{path}");
        assert!(error.to_string().contains("request 0"), "{error}");
        assert!(gpu.host().now() - before >= 20 * SHORT);
        assert_eq!(kind(p.a.quiet(SHORT)), Some(Kind::Timeout), "{path}");
        assert_eq!(p.a.poll(send).unwrap(), None, "{path}");
        let recv = p.b.receive(&[sge(&far, 0, 8)]);
        p.a.wait(send, LIMIT).unwrap();
        p.b.wait(recv, LIMIT).unwrap();
        p.check(path);
    });
}

#[test]
fn the_same_limits_end_waits_on_the_live_driver() {
    for (path, config) in paths() {
        let gpu = Gpu::soft().unwrap();
        let mut p = Pair::new(&gpu, Net::Host, &limited(&config, Some(LIVE)));
        let [near, far] = p.memories(MemoryKind::Device, 64);
        let (sender, receiver) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let (list, gate) = ([sge(&near, 0, 8)], Gate::new(&gpu));
        let send = p.a.signaled(&Work::send(&list));
        p.a.post_on(&sender, &gate.before(send)).unwrap();
        std::thread::sleep(2 * LIVE);
        assert_eq!(p.a.error(), None, "{path}: a false alarm");
        gate.open();
        finish(&sender, path);
        assert_eq!(kind(p.a.wait(send, LIMIT)), TIMEOUT, "{path}");
        // The other end did not get it in time, and waits for another message with a limit.
        let recv = p.b.prepare_receive(&[sge(&far, 0, 8)]).unwrap();
        let post = [
            Descriptor::Receive(recv),
            Descriptor::wait(recv).within(LIVE),
        ];
        p.b.post_on(&receiver, &post).unwrap();
        finish(&receiver, path);
        assert_eq!(kind(p.b.wait(recv, LIMIT)), TIMEOUT, "{path}");
        p.recover(path);
    }
}

#[test]
fn a_stream_is_held_at_a_failure_until_the_watcher_has_stored_the_status() {
    for (path, config) in paths() {
        if path == "cpu-thread" {
            // The CPU thread, which has to run, handles failures as well.
            continue;
        }
        for seed in 0..4 {
            let what = format!("{path}, seed {seed}");
            let (sim, gpu) = play(seed);
            let mut p = Pair::new(&gpu, Net::Hub, &config);
            let [near, far] = p.memories(MemoryKind::Pinned, 64);
            let name = p.a.device().name();
            let nic = name.strip_prefix("emulated ").unwrap();
            let watcher = format!("{nic}.watcher");
            sim.control().freeze(&watcher);
            let (stream, passed) = (gpu.stream().unwrap(), Flag::new(&gpu));
            let list = [sge(&near, 0, 8)];
            let mut to = far.remote().span(0, 8).unwrap();
            to.rkey ^= 0x00ab_cd00;
            let bad = p.a.signaled(&Work::write(&list, to));
            p.a.post_on(&stream, &passed.behind(bad)).unwrap();
            let saw = Witness::launch(&stream, &p.a, bad);
            pass(&gpu, Duration::from_secs(1));
            assert!(
                !passed.is_set(),
                "{what}: an error entry let the stream pass"
            );
            sim.control().unfreeze(&watcher);
            finish(&stream, &what);
            assert!(passed.is_set());
            let status = Status::REMOTE_ACCESS;
            assert_eq!((saw.seen().error, saw.seen().status), (status, status));
            p.recover(&what);
        }
    }
}

#[test]
fn message_that_waited_for_its_receive_delays_no_later_message() {
    seeds(300, |seed| {
        let (_sim, gpu) = play(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (_, config) = paths().remove(0);
        let mut p = Pair::new(&gpu, Net::One, &config);
        let [near, far] = p.memories(MemoryKind::Pinned, 64);
        // Sent at once, received a moment later.
        let list = [sge(&near, 0, 8)];
        let send = p.a.start(&Work::send(&list));
        pass(&gpu, Duration::from_nanos(rng.u64(..2000)));
        p.b.receive(&[sge(&far, 0, 8)]);
        p.a.wait(send, LIMIT).unwrap();
        // A write needs no receive, so none is posted.
        let to = far.remote().span(8, 8).unwrap();
        let write = p.a.start(&Work::write(&list, to));
        let done = p.a.wait(write, 5 * SHORT);
        done.map_err(|e| e.to_string())
    });
}
