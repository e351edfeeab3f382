//! Queue pairs over TCP whose connection is delayed, cut, forged or silent, or whose peer dies:
//! requests end with a status, none succeeds without its effect, and a reset recovers.

mod common;
mod tcp_rig;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use common::*;
use gdsync::internals::tcp::{CLAIM, OPENING, VERDICT};
use tcp_rig::proxy::{Act, Plan, Way};
use tcp_rig::*;

/// Bytes of the greeting: of the side that connects, and of the other.
const GREETING: [u64; 2] = [(OPENING + CLAIM) as u64, (OPENING + VERDICT) as u64];

/// The plan with an act behind so many bytes of one direction.
fn once(way: usize, at: u64, act: Act) -> Plan {
    let mut plan = Plan::default();
    plan[way] = Way {
        at,
        act,
        ..Way::default()
    };
    plan
}

/// Two queue pairs beside the ones whose connection suffers, of the same devices.
fn beside(couple: &Couple) -> Couple {
    let mut other = Couple::of(couple.devices.clone(), &QpConfig::default());
    other.connect();
    other
}

/// The exchange with its connection cut behind each byte of each direction.
fn cuts(encrypted: bool) {
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::new(&gpu, encrypted, &QpConfig::default());
    let mut other = beside(&p);
    p.connect();
    assert!(p.exchange(1, &[], "no cut"));
    let (mut round, mut cuts) = (1, 0);
    for (way, greeting) in GREETING.into_iter().enumerate() {
        // Counts of executed requests travel in frames of their own or in others, by chance.
        let bytes = p.proxy.counts()[way] + 64;
        for at in 0..bytes {
            for act in [Act::Reset, Act::End] {
                let what = format!("{act:?} behind byte {at} of direction {way}");
                round += 1;
                p.reset(&what);
                p.proxy.plan([once(way, at, act)]);
                p.connect();
                let good = p.exchange(round, &LOST, &what);
                // A connection that is cut in its greeting is replaced by another one.
                assert!(good || at >= greeting, "{what}");
                cuts += u32::from(!good);
                if at % 16 == 0 {
                    assert!(other.exchange(round, &[], &what), "{what}");
                }
            }
        }
        p.reset("the end");
        p.connect();
        assert!(p.exchange(round, &[], "the end"));
    }
    println!("{cuts} cuts ended requests, of {round} exchanges");
}

#[test]
fn connections_may_be_cut_behind_each_byte() {
    cuts(false);
}

#[test]
fn encrypted_connections_may_be_cut_behind_each_byte() {
    cuts(true);
}

/// The connection of the first attempt has ended by then, although the peer's device has it still.
#[test]
fn a_peer_may_connect_later_than_an_attempt_lasts() {
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::new(&gpu, false, &QpConfig::default());
    let [a, b] = [&p.a, &p.b].map(|side| side.qp.address());
    p.a.qp.connect(&b).unwrap();
    std::thread::sleep(Duration::from_secs(11));
    p.b.qp.connect(&a).unwrap();
    assert!(p.exchange(1, &[], "late"));
}

/// Encryption, path to the NIC and memory of a seed.
fn drawn(gpu: &Gpu, rng: &mut fastrand::Rng) -> Couple {
    let encrypted = rng.bool();
    let devices = [(); 2].map(|()| device(gpu, encrypted));
    let (_, path) = &paths()[rng.usize(..3)];
    let kind = [MemoryKind::Pinned, MemoryKind::Device][rng.usize(..2)];
    Couple::for_traffic(devices, path, kind)
}

#[test]
fn connections_may_be_cut_under_traffic() {
    let gpu = roomy();
    let mut cuts = 0;
    gds_sim::seeds(40, |seed| -> Result<(), String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let what = format!("seed {seed:#x}");
        let mut p = drawn(&gpu, &mut rng);
        let mut other = beside(&p);
        for _ in 0..4 {
            let act = [Act::Reset, Act::End][rng.usize(..2)];
            let mut plan = once(rng.usize(..2), rng.u64(..160_000), act);
            for way in &mut plan {
                way.pauses = u64::from(rng.bool()) * rng.u64(1..);
            }
            p.proxy.plan([plan]);
            p.connect();
            let good = p.traffic(&mut rng, &LOST, &what, |_| {});
            cuts += u32::from(!good);
            p.reset(&what);
            assert!(other.exchange(rng.u64(..1 << 50), &[], &what));
        }
        p.proxy.plan([]);
        p.connect();
        assert!(p.traffic(&mut rng, &[], &what, |_| {}));
        Ok(())
    });
    println!("{cuts} cuts ended requests");
}

#[test]
fn bytes_may_arrive_one_by_one_and_late() {
    let gpu = roomy();
    gds_sim::seeds(8, |seed| -> Result<(), String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let what = format!("seed {seed:#x}");
        let mut p = Couple::new(&gpu, rng.bool(), &QpConfig::default());
        let way = Way {
            split: true,
            ..Way::default()
        };
        p.proxy.plan([[way; 2]]);
        p.connect();
        for round in 1..20 {
            assert!(p.exchange(round, &[], &what));
        }
        let mut p = drawn(&gpu, &mut rng);
        let way = Way {
            pauses: seed | 1,
            ..Way::default()
        };
        p.proxy.plan([[way; 2]]);
        p.connect();
        assert!(p.traffic(&mut rng, &[], &what, |_| {}));
        Ok(())
    });
}

/// A limit that ends requests which a forged length makes wait.
const SHORT: Duration = Duration::from_millis(250);

/// Exchanges on new connections until one succeeds: on a busy machine one may exceed the limit.
fn recovers(p: &mut Couple, what: &str) {
    p.proxy.plan([]);
    let good = (0..100).any(|round| {
        p.reset(what);
        p.connect();
        p.exchange(round, &LATE, what)
    });
    assert!(good, "{what}");
}

/// The statuses of a connection with that limit.
const LATE: [Status; 4] = [
    Status::TRANSPORT_RETRY,
    Status::FLUSHED,
    Status::CANCELLED,
    Status::TIMEOUT,
];

#[test]
fn no_changed_byte_of_an_encrypted_connection_has_an_effect() {
    let gpu = Gpu::soft().unwrap();
    let config = limited(&QpConfig::default(), Some(SHORT));
    let mut p = Couple::new(&gpu, true, &config);
    let mut patient = Couple::new(&gpu, true, &QpConfig::default());
    recovers(&mut p, "nothing changed");
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut round, mut hits) = (1, 0);
    for (way, greeting) in GREETING.into_iter().enumerate() {
        let bytes = p.proxy.counts()[way];
        for at in 0..bytes {
            let mask = 1 << rng.u32(..8);
            let what = format!("{mask:#x} of byte {at} of direction {way}");
            let greets = at < greeting;
            let p = if greets { &mut patient } else { &mut p };
            p.reset(&what);
            p.proxy.plan([once(way, at, Act::Corrupt(mask))]);
            p.connect();
            round += 2;
            let good = p.exchange(round, &LATE, &what);
            if greets {
                // The connection is refused, and replaced by another one.
                assert!(good && p.proxy.connections() > 1, "{what}");
                continue;
            }
            let hit = p.proxy.counts()[way] > at;
            hits += u32::from(hit);
            // What came behind the last answer is noticed by the next exchange.
            let ends = !good || !hit || !p.exchange(round + 1, &LATE, &what);
            assert!(ends, "{what}");
        }
        recovers(&mut p, "the end");
    }
    println!("{hits} changed bytes ended the connection");
    assert!(hits > 500);
}

/// Without encryption a queue pair cannot detect a changed byte: each request ends all the same, and
/// other connections are not affected.
#[test]
fn changed_bytes_of_a_plain_connection_end_nothing_else() {
    let gpu = Gpu::soft().unwrap();
    let config = limited(&QpConfig::default(), Some(SHORT));
    let mut p = Couple::new(&gpu, false, &config);
    let mut other = beside(&p);
    recovers(&mut p, "nothing changed");
    let mut rng = fastrand::Rng::with_seed(2);
    for (way, greeting) in GREETING.into_iter().enumerate() {
        let bytes = p.proxy.counts()[way];
        for at in greeting..bytes {
            let mask = 1 << rng.u32(..8);
            let what = format!("{mask:#x} of byte {at} of direction {way}");
            p.reset(&what);
            p.proxy.plan([once(way, at, Act::Corrupt(mask))]);
            p.connect();
            p.forged(&what);
            if at % 8 == 0 {
                assert!(other.exchange(at, &[], &what));
            }
        }
        recovers(&mut p, "the end");
    }
}

/// The peer's system answers, and the peer does not.
#[test]
fn silence_ends_at_the_time_limit() {
    let gpu = Gpu::soft().unwrap();
    let config = limited(&QpConfig::default(), Some(SHORT));
    let mut p = Couple::new(&gpu, false, &config);
    let mut other = beside(&p);
    recovers(&mut p, "no silence");
    for way in 0..2 {
        let bytes = p.proxy.counts()[way];
        // The first bytes of each message of the greeting, and of each frame.
        for at in (0..bytes - 8).step_by(20) {
            let what = format!("silence behind byte {at} of direction {way}");
            p.reset(&what);
            p.proxy.plan([once(way, at, Act::Stall)]);
            p.connect();
            let good = p.exchange(at + 2, &LATE, &what);
            assert!(!good || p.proxy.counts()[way] < at, "{what}");
            assert!(other.exchange(at, &[], &what));
        }
        recovers(&mut p, "the end");
    }
}

/// Without a limit of requests, that of the connection ends them: the peer takes no bytes, or does
/// not answer the greeting.
#[test]
fn a_peer_that_takes_no_bytes_ends_at_the_limit_of_the_connection() {
    const LEN: usize = 32 << 20;
    let gpu = Gpu::soft().unwrap();
    let config = limited(&QpConfig::default().ack_timeout(1), None);
    for at in [20, 2 << 20] {
        let devices = [(); 2].map(|()| device(&gpu, false));
        let mut p = Couple::with(devices, &config, MemoryKind::Pinned, LEN);
        p.proxy.plan([once(0, at, Act::Stall)]);
        p.connect();
        let (near, far) = (p.a.mem.clone(), p.b.mem.clone());
        let list = [near.sge(0, LEN as u32)];
        let span = far.remote().span(0, LEN as u64).unwrap();
        let write = p.a.qp.start(&Work::write(&list, span));
        assert_eq!(end(&mut p.a.qp, write, "silence"), Status::TRANSPORT_RETRY);
    }
}

#[test]
fn an_attempt_without_an_answer_is_repeated() {
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::new(&gpu, false, &QpConfig::default());
    p.proxy.plan([once(1, 20, Act::Stall)]);
    p.connect();
    std::thread::sleep(Duration::from_secs(10));
    assert!(p.exchange(1, &[], "the second attempt"));
    assert_eq!(p.proxy.connections(), 2);
}

/// Reads until the other side closes the connection.
fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    match stream.read_to_end(&mut got) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
    }
    got
}

#[test]
fn recorded_greetings_prove_nothing() {
    let gpu = Gpu::soft().unwrap();
    for encrypted in [false, true] {
        let mut p = Couple::new(&gpu, encrypted, &QpConfig::default());
        let there = socket(&p.b.qp.address());
        // The verdict does not arrive, and the next attempts reach no device.
        let nowhere = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        p.proxy.record();
        p.proxy.plan(vec![once(1, 41, Act::Reset); 1000]);
        p.connect();
        until(&gpu, "the next attempt", || p.proxy.connections() > 1);
        p.proxy.aim(nowhere);
        let [ours, theirs] = p.proxy.recorded();
        assert_eq!((ours.len(), theirs.len()), (OPENING + CLAIM, OPENING + 1));
        // To the side that accepts, which still waits for this very connection.
        for cut in [OPENING + CLAIM, OPENING] {
            let mut stream = TcpStream::connect(there).unwrap();
            stream.write_all(&ours[..OPENING]).unwrap();
            let mut opening = [0; OPENING];
            stream.read_exact(&mut opening).unwrap();
            assert_ne!(opening[8..], theirs[8..OPENING]);
            let rest = [&ours[OPENING..cut], &[0; CLAIM]].concat();
            stream.write_all(&rest[..CLAIM]).unwrap();
            assert_eq!(read_all(&mut stream), []);
        }
        // To the side that connects: what its peer said, and what it says itself.
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        p.proxy.plan([]);
        p.proxy.aim(server.local_addr().unwrap());
        for mirror in [false, true] {
            let (mut stream, _) = server.accept().unwrap();
            let mut opening = [0; OPENING];
            stream.read_exact(&mut opening).unwrap();
            let answer = if mirror {
                &opening[..]
            } else {
                &theirs[..OPENING]
            };
            stream.write_all(answer).unwrap();
            let mut claim = [0; CLAIM];
            stream.read_exact(&mut claim).unwrap();
            let said = if mirror { &claim[..] } else { &ours[..] };
            let verdict = &said[said.len() - VERDICT..];
            stream.write_all(verdict).unwrap();
            assert_eq!(read_all(&mut stream), []);
        }
        p.proxy.plan([]);
        p.proxy.aim(there);
        drop(server);
        assert!(p.exchange(1, &[], "the real peer"));
    }
}

#[test]
fn peers_that_are_swapped_are_not_taken_for_each_other() {
    let gpu = Gpu::soft().unwrap();
    let mut couples = [(); 2].map(|()| Couple::new(&gpu, false, &QpConfig::default()));
    let there = couples.each_ref().map(|p| socket(&p.b.qp.address()));
    for (p, there) in couples.iter().zip([there[1], there[0]]) {
        p.proxy.aim(there);
    }
    let mut sends = Vec::new();
    for p in &mut couples {
        p.connect();
        p.b.mem.region().write(0, &[0; 8]).unwrap();
        let (near, far) = (p.a.mem.clone(), p.b.mem.clone());
        let span = far.remote().span(0, 8).unwrap();
        sends.push(p.a.qp.start(&Work::write(&[near.sge(0, 8)], span)));
        near.region().write(0, &[1; 8]).unwrap();
    }
    for p in &couples {
        until(&gpu, "attempts", || p.proxy.connections() > 3);
    }
    for ((p, send), there) in couples.iter_mut().zip(sends).zip(there) {
        assert_eq!(p.a.qp.poll(send).unwrap(), None);
        p.proxy.aim(there);
        assert_eq!(end(&mut p.a.qp, send, "the right peer"), Status::SUCCESS);
        assert!(p.exchange(1, &[], "the right peer"));
    }
}
