//! Connections to a device over TCP that are not of its job, are not for one of its queue pairs, or
//! say nothing: they are refused or closed, the reason is logged, and queue pairs work meanwhile.

mod common;
#[allow(dead_code, reason = "a part is used here")]
#[path = "../../libmp/tests/common/heap.rs"]
mod heap;
#[path = "common/listen.rs"]
mod listen;
mod standin;
mod tcp_rig;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Instant;

use common::*;
use gdsync::internals::tcp::{Claim, End, Head, Kind as Frame, Verdict, opening};
use heap::{Counting, Held};
use listen::Events;
use standin::{Variant, child, inside};
use tcp_rig::speaker::{self, Speaker, claim_to};
use tcp_rig::*;
use tracing::Level;

/// The test that a process was started for.
const CHILD: &str = "TCP_STRANGERS_CHILD";

#[global_allocator]
static HEAP: Counting = Counting;

/// The library's events.
static EVENTS: LazyLock<Events> = LazyLock::new(|| Events::of_this_process(Level::DEBUG));

/// Tests run one after the other: they count what the process uses.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    LazyLock::force(&EVENTS);
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// The events since `from` that contain all these words.
fn logged(from: usize, words: &[&str]) -> bool {
    let lines = EVENTS.lines();
    let found = |line: &String| words.iter().all(|word| line.contains(word));
    lines[from..].iter().any(found)
}

/// The text of the events since `from`.
fn log(from: usize) -> String {
    EVENTS.lines()[from..].join("\n")
}

/// Requests of both sides of a connection that never comes, which end with an error.
fn never_meet(p: &mut Couple, what: &str) {
    let start = Instant::now();
    p.connect();
    let (near, far) = (p.a.mem.clone(), p.b.mem.clone());
    far.region().write(0, &[0; 8]).unwrap();
    near.region().write(0, &[1; 8]).unwrap();
    let span = |mem: &Mr| mem.remote().span(64, 8).unwrap();
    let receive = p.b.qp.receive(&[far.sge(128, 8)]);
    let there = [
        p.a.qp.start(&Work::send(&[near.sge(0, 8)])),
        p.a.qp.start(&Work::write(&[near.sge(0, 8)], span(&far))),
    ];
    let back = p.b.qp.start(&Work::write(&[far.sge(0, 8)], span(&near)));
    let ends = there.map(|send| end(&mut p.a.qp, send, what));
    assert_eq!(ends, [Status::TRANSPORT_RETRY, Status::FLUSHED], "{what}");
    assert_eq!(
        end(&mut p.b.qp, back, what),
        Status::TRANSPORT_RETRY,
        "{what}"
    );
    assert_eq!(end(&mut p.b.qp, receive, what), Status::FLUSHED, "{what}");
    for side in [&p.a, &p.b] {
        assert_eq!(side.mem.region().bytes::<8>(64), [0; 8], "{what}");
    }
    assert!(start.elapsed() < LIMIT / 2, "{what}");
}

#[test]
fn devices_of_other_jobs_are_refused() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    for other in [Some([8; 32]), None] {
        let from = EVENTS.lines().len();
        let theirs = match other {
            Some(key) => options().key(key),
            None => options().key(None),
        };
        let devices = [options(), theirs].map(|options| Device::tcp(&gpu, options).unwrap());
        let mut p = Couple::of(devices, &QpConfig::default());
        never_meet(&mut p, "another key");
        // On both sides.
        assert!(
            logged(from, &["does not have the key of this job"]),
            "{}",
            log(from)
        );
        let tries = ["WARN", "tries again", "without an answer: its key differs"];
        assert!(logged(from, &tries), "{}", log(from));
    }
}

#[test]
fn devices_that_encrypt_meet_no_others() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    for first in [false, true] {
        let from = EVENTS.lines().len();
        let devices = [first, !first].map(|encrypted| device(&gpu, encrypted));
        let mut p = Couple::of(devices, &QpConfig::default());
        never_meet(&mut p, "only one side encrypts");
        let reason = ["WARN", "only one of the two devices encrypts"];
        assert!(logged(from, &reason), "{}", log(from));
    }
}

/// Reads until the device closes the connection.
fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    match stream.read_to_end(&mut got) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
    got
}

#[test]
fn other_protocols_and_versions_are_closed() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::new(&gpu, false, &QpConfig::default());
    let there = socket(&p.b.qp.address());
    let mut next = opening(&[1; 32]);
    next[7] += 1;
    let http = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
    for (bytes, reason) in [
        (&http[..], "it speaks another protocol"),
        (&next[..], "it has another release"),
        (&[0; 4096][..], "it speaks another protocol"),
    ] {
        let from = EVENTS.lines().len();
        let mut stream = TcpStream::connect(there).unwrap();
        stream.write_all(bytes).unwrap();
        assert_eq!(closed(&mut stream), []);
        assert!(logged(from, &[reason]), "{}", log(from));
    }
    p.connect();
    assert!(p.exchange(1, &[], "behind strangers"));
}

/// One of them sends its greeting byte by byte, another stops in its middle.
#[test]
fn slow_greetings_are_closed_at_the_limit() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::new(&gpu, false, &QpConfig::default());
    let there = socket(&p.b.qp.address());
    let start = Instant::now();
    let slow = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(there).unwrap();
        for byte in opening(&[1; 32]) {
            if stream.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        assert!(closed(&mut stream).is_empty());
    });
    let half = std::thread::spawn(move || {
        let (mut stream, _, theirs) = speaker::open(there);
        assert!(theirs.is_some());
        stream.write_all(&[0; 71]).unwrap();
        assert!(closed(&mut stream).is_empty());
    });
    p.connect();
    for round in 0..100 {
        assert!(p.exchange(round, &[], "beside slow greetings"));
    }
    half.join().unwrap();
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_secs(4), "{elapsed:?}");
    slow.join().unwrap();
}

/// Raises the number of descriptors of this process as far as it may, and returns how many there are
/// for connections of a test, at most `most`.
fn descriptors(most: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    most.min(limit.maximum.unwrap_or(u64::MAX) - 500)
}

/// In a process of its own, which keeps no log: its memory is compared.
#[test]
fn ten_thousand_silent_connections_change_nothing() {
    let name = child::test_name!();
    if !child::is(CHILD, name) {
        return child::run(CHILD, name, |_| {});
    }
    const THREADS: u64 = 20;
    let count = descriptors(10_000) / THREADS * THREADS;
    println!("{count} silent connections");
    assert!(count >= 1000);
    let gpu = Gpu::soft().unwrap();
    // A connection may take long.
    let mut p = Couple::new(&gpu, false, &QpConfig::default().ack_timeout(18));
    let there = socket(&p.b.qp.address());
    p.connect();
    assert!(p.exchange(1, &[], "before"));
    let before = Held::now();
    let flood = move || {
        let connect = |_| TcpStream::connect(there).unwrap();
        (0..count / THREADS).map(connect).collect::<Vec<_>>()
    };
    let floods = [(); THREADS as usize].map(|()| std::thread::spawn(flood));
    let mut round = 2;
    while !floods.iter().all(|flood| flood.is_finished()) || round < 20 {
        p.reset("a flood");
        p.proxy.plan([]);
        p.connect();
        assert!(p.exchange(round, &[], "a flood"));
        round += 1;
    }
    let silent: Vec<_> = floods.into_iter().flat_map(|f| f.join().unwrap()).collect();
    println!("{round} connections of the queue pairs meanwhile");
    let held = Held::now().since(before);
    let own = (silent.capacity() * size_of::<TcpStream>()) as i64;
    // 256 strangers, and connections that linger.
    assert!(held.files - (count as i64) < 400, "{held:?}");
    assert!(held.bytes - own < 1 << 20, "{held:?}");
    // Without a newer one, they are closed after 5 s.
    let limit = Instant::now() + LIMIT;
    while Held::now().since(before).files > count as i64 + 4 {
        assert!(Instant::now() < limit, "{:?}", Held::now().since(before));
        std::thread::sleep(Duration::from_millis(100));
    }
    p.reset("after a flood");
    p.connect();
    assert!(p.exchange(round, &[], "after a flood"));
}

/// A peer of the job that names queue pairs wrongly.
#[test]
fn claims_of_other_queue_pairs_are_refused() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::new(&gpu, false, &QpConfig::default());
    let mut waiting = Side::new(&p.devices[1], &QpConfig::default());
    waiting.qp.connect(&speaker::address()).unwrap();
    p.connect();
    assert!(p.exchange(1, &[], "before"));
    let there = p.b.qp.address();
    let at = socket(&there);
    let good = claim_to(&waiting.qp.address());
    let connected = claim_to(&there);
    let to = |change: fn(&mut End)| {
        let mut claim = good;
        change(&mut claim.to);
        claim
    };
    let from = |change: fn(&mut End)| {
        let mut claim = good;
        change(&mut claim.from);
        claim
    };
    let mimic = Claim {
        from: speaker::end_of(&p.a.qp.address()),
        ..connected
    };
    for (what, claim) in [
        ("no such queue pair", to(|end| end.qpn = 77)),
        ("another device", to(|end| end.node ^= 1)),
        (
            "another connection of this queue pair",
            to(|end| end.psn ^= 1),
        ),
        ("another peer", from(|end| end.qpn ^= 1)),
        ("another device of the peer", from(|end| end.node = 9)),
        ("another connection of the peer", from(|end| end.psn ^= 1)),
        ("a queue pair with another peer", connected),
        ("a queue pair that has its peer", mimic),
    ] {
        let (mut speaker, verdict) = Speaker::greet(at, KEY, &claim);
        assert_eq!(verdict, Some(Verdict::NotNow), "{what}");
        assert_eq!(closed(&mut speaker.stream), [], "{what}");
        assert!(p.exchange(2, &[], what));
    }
    let (_, verdict) = Speaker::greet(at, [9; 32], &good);
    assert_eq!(verdict, None);
    let encrypted = Claim {
        encrypted: true,
        ..good
    };
    let (_, verdict) = Speaker::greet(at, KEY, &encrypted);
    assert_eq!(verdict, Some(Verdict::Encryption));
    // The right one, which the queue pair still takes.
    let (_, verdict) = Speaker::greet(at, KEY, &good);
    assert_eq!(verdict, Some(Verdict::Welcome));
    assert!(p.exchange(3, &[], "after"));
}

/// A peer of the job that comes early is led to its queue pair when that is connected.
#[test]
fn early_claims_wait_for_their_queue_pair() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let device = device(&gpu, false);
    let mut side = Side::new(&device, &QpConfig::default());
    let there = side.qp.address();
    let early =
        std::thread::spawn(move || Speaker::greet(socket(&there), KEY, &claim_to(&there)).1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!early.is_finished());
    side.qp.connect(&speaker::address()).unwrap();
    assert_eq!(early.join().unwrap(), Some(Verdict::Welcome));
}

#[test]
fn an_early_claim_whose_peer_has_gone_is_dropped() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let device = device(&gpu, false);
    let side = Side::new(&device, &QpConfig::default());
    let there = side.qp.address();
    let opened = speaker::open(socket(&there));
    let stream = opened.0.try_clone().unwrap();
    let early = std::thread::spawn(move || Speaker::claim(opened, KEY, &claim_to(&there)).1);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!early.is_finished());
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let load = load();
    assert!(load < 0.7, "{load}");
    assert_eq!(early.join().unwrap(), None);
}

/// A peer gives up an attempt before it begins another one, and the proof of the first may arrive
/// last: the queue pair keeps the later connection.
#[test]
fn an_earlier_connection_does_not_replace_a_later_one() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let device = device(&gpu, false);
    let mut side = Side::new(&device, &QpConfig::default());
    side.qp.connect(&speaker::address()).unwrap();
    let there = side.qp.address();
    let early = speaker::open(socket(&there));
    let mut later = Speaker::to(&side);
    let (_, verdict) = Speaker::claim(early, KEY, &claim_to(&there));
    assert_eq!(verdict, Some(Verdict::NotNow));
    assert!(later.frame(Head::new(Frame::Ack, 0), &[]));
    let mem = side.mem.clone();
    let span = mem.remote().span(0, 8).unwrap();
    side.qp.start(&Work::write(&[mem.sge(0, 8)], span));
    assert_eq!(later.answer().map(|head| head.kind), Some(Frame::Write));
}

/// The peer keeps its socket open, and says nothing.
#[test]
fn connections_that_ended_here_are_closed_soon() {
    let _alone = alone();
    let gpu = Gpu::soft().unwrap();
    let device = device(&gpu, false);
    let mut sides = [(); 20].map(|()| Side::new(&device, &QpConfig::default()));
    let before = Held::now().files;
    let mut peers = Vec::new();
    for side in &mut sides {
        side.qp.connect(&speaker::address()).unwrap();
        peers.push(Speaker::to(side));
    }
    for side in &mut sides {
        side.qp.reset().unwrap();
    }
    let own = peers.len() as i64;
    until(&gpu, "the end of the device's sockets", || {
        Held::now().files <= before + own
    });
}

/// The processors that this process uses while the test sleeps. (The files of threads need
/// descriptors.)
fn load() -> f64 {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    // What was begun comes to its end.
    std::thread::sleep(Duration::from_millis(200));
    let (start, before) = (Instant::now(), used());
    std::thread::sleep(Duration::from_secs(1));
    (used() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

#[test]
fn devices_that_wait_for_a_peer_sleep() {
    let _alone = alone();
    sleeps(&Gpu::soft().unwrap());
}

/// The threads of these devices have no help of the GPU's.
#[test]
fn devices_that_wait_for_a_peer_sleep_beside_another_gpu() {
    inside!(Variant::default());
    sleeps(&Gpu::cuda(0).unwrap());
}

fn sleeps(gpu: &Gpu) {
    let mut p = Couple::new(gpu, false, &QpConfig::default());
    let [a, b] = [&p.a, &p.b].map(|side| side.qp.address());
    // The peer has not connected; then it has; then it has no receive for what arrives.
    p.a.qp.connect(&through(b, p.proxy.address)).unwrap();
    let early = load();
    p.b.qp.connect(&a).unwrap();
    assert!(p.exchange(1, &[], "connected"));
    let idle = load();
    let near = p.a.mem.clone();
    let send = p.a.qp.start(&Work::send(&[near.sge(0, 8)]));
    let waiting = load();
    assert_eq!(p.a.qp.poll(send).unwrap(), None);
    println!("load: {early:.2}, {idle:.2}, {waiting:.2}");
    assert!(early < 0.7 && idle < 0.7 && waiting < 0.7);
}

#[test]
fn a_device_without_descriptors_serves_its_queue_pairs() {
    let name = child::test_name!();
    if !child::is(CHILD, name) {
        return child::run(CHILD, name, |_| {});
    }
    exhausted(&Gpu::soft().unwrap());
}

#[test]
fn a_device_without_descriptors_sleeps_beside_another_gpu() {
    inside!(Variant::default());
    exhausted(&Gpu::cuda(0).unwrap());
}

fn exhausted(gpu: &Gpu) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut p = Couple::new(gpu, false, &QpConfig::default());
    let mut late = beside(&p);
    p.connect();
    assert!(p.exchange(1, &[], "before"));
    let limit = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(Held::now().files as u64 + 40),
        ..limit
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let there = socket(&p.b.qp.address());
    let mut strangers = Vec::new();
    while let Ok(stream) = TcpStream::connect(there) {
        strangers.push(stream);
    }
    assert!(strangers.len() > 10, "{}", strangers.len());
    for round in 2..50 {
        assert!(p.exchange(round, &[], "without descriptors"));
    }
    late.connect();
    let load = load();
    println!("load: {load:.2}");
    assert!(load < 0.7, "{load}");
    assert!(p.exchange(51, &[], "without descriptors"));
    drop(strangers);
    assert!(late.exchange(1, &[], "with descriptors again"));
}

fn beside(couple: &Couple) -> Couple {
    Couple::of(couple.devices.clone(), &QpConfig::default())
}
