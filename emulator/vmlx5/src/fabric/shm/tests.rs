//! Tests of the fabric between processes, both ends here: greeting, loss, reconnection, and invalid
//! callers.

use super::super::ring::tests::{spoil_head, spoil_record, spoil_tail};
use super::*;
use crate::frame::{FrameError, Kind};

struct End {
    fabric: ShmFabric,
    got: Vec<(NodeId, u32, Vec<u8>)>,
}

fn end() -> End {
    end_with(ShmConfig {
        ring_bytes: MIN_RING,
        ..ShmConfig::default()
    })
}

fn end_with(config: ShmConfig) -> End {
    let bell = Arc::new(Bell::new().unwrap());
    End {
        fabric: ShmFabric::open(config, bell).unwrap(),
        got: Vec::new(),
    }
}

impl End {
    fn send(&mut self, peer: PeerId, tag: u32, payload: &[u8]) -> Result<(), SendRefused> {
        self.send_kind(Kind::Ack, peer, tag, payload)
    }

    fn send_kind(
        &mut self,
        kind: Kind,
        peer: PeerId,
        tag: u32,
        payload: &[u8],
    ) -> Result<(), SendRefused> {
        let header = FrameHeader {
            len: (payload.len() as u32).into(),
            kind: kind as u8,
            psn: tag.into(),
            ..FrameHeader::default()
        };
        self.fabric.send(peer, &header, &mut |room| {
            room.copy_from_slice(payload);
            true
        })
    }

    fn step(&mut self, now: Time) {
        self.fabric.step(now);
        let budget = Budget {
            frames: 64,
            bytes: 1 << 20,
        };
        let mut got = Vec::new();
        self.fabric.receive(budget, &mut |peer, header, payload| {
            got.push((peer, header.psn.get(), payload.to_vec()));
            Ok(())
        });
        for (peer, tag, payload) in got {
            let node = self.fabric.peer_node(peer).unwrap();
            self.got.push((node, tag, payload));
        }
        self.fabric.flush();
    }
}

/// Steps both ends for some milliseconds.
fn run(now: &mut u64, ends: &mut [&mut End]) {
    for _ in 0..100 {
        *now += 100_000;
        for end in ends.iter_mut() {
            end.step(Time::from_nanos(*now));
        }
    }
}

fn connect(now: &mut u64, a: &mut End, b: &mut End) -> PeerId {
    let peer = a.fabric.connect(b.fabric.node()).unwrap();
    run(now, &mut [a, b]);
    assert_eq!(a.fabric.state(peer), LinkState::Up);
    peer
}

#[test]
fn first_free_node_is_claimed_and_reused_after_death() {
    let base = end().fabric.node().0;
    let nodes = || (base..base + 2).map(NodeId);
    let claim = || {
        let bell = Arc::new(Bell::new().unwrap());
        ShmFabric::claim(ShmConfig::default(), bell, nodes())
    };
    let first = claim().unwrap();
    let second = claim().unwrap();
    assert_eq!((first.node().0, second.node().0), (base, base + 1));
    let taken = LinkError::System {
        what: "bind",
        errno: Errno::ADDRINUSE,
    };
    assert_eq!(claim().err(), Some(taken));
    drop(first);
    assert_eq!(claim().unwrap().node().0, base);
}

#[test]
fn frames_flow_both_ways_before_the_answer() {
    let (mut a, mut b, mut now) = (end(), end(), 0);
    // Both connect at once, and send at once.
    let to_b = a.fabric.connect(b.fabric.node()).unwrap();
    let to_a = b.fabric.connect(a.fabric.node()).unwrap();
    assert_eq!(a.fabric.state(to_b), LinkState::Connecting);
    assert!(a.send(to_b, 1, b"one").is_ok() && b.send(to_a, 2, b"two").is_ok());
    run(&mut now, &mut [&mut a, &mut b]);
    assert_eq!(b.got, [(a.fabric.node(), 1, b"one".to_vec())]);
    assert_eq!(a.got, [(b.fabric.node(), 2, b"two".to_vec())]);
    assert_eq!(a.fabric.state(to_b), LinkState::Up);
    assert_eq!(
        a.fabric.connect(b.fabric.node()),
        Ok(to_b),
        "no second link"
    );
    // More than a ring holds, with the receiver behind.
    let (mut sent, data) = (0, vec![7; 20_000]);
    b.got.clear();
    while b.got.len() < 100 {
        if sent < 100 {
            match a.send(to_b, sent, &data) {
                Ok(()) => sent += 1,
                Err(refused) => assert_eq!(refused, SendRefused::Full),
            }
        }
        if sent % 5 == 0 {
            run(&mut now, &mut [&mut a, &mut b]);
        }
        a.fabric.flush();
    }
    assert!(
        b.got
            .iter()
            .enumerate()
            .all(|(i, g)| g.1 == i as u32 && g.2 == data)
    );
    assert!(a.fabric.lost().is_none() && b.fabric.lost().is_none());
}

#[test]
fn sleeping_receiver_is_woken() {
    let (mut a, mut b, mut now) = (end(), end(), 0);
    let to_b = connect(&mut now, &mut a, &mut b);
    let bell = b.fabric.bell.clone();
    let sleeper = std::thread::spawn(move || {
        let start = std::time::Instant::now();
        bell.sleep(Duration::from_secs(60), || false);
        start.elapsed()
    });
    while !sleeper.is_finished() {
        // Until the sleeper sleeps there is no thread to wake, so the test sends more than once.
        a.send(to_b, 0, &[]).unwrap();
        a.fabric.flush();
        std::thread::sleep(Duration::from_millis(1));
        b.step(Time::ZERO);
    }
    assert!(sleeper.join().unwrap() < Duration::from_secs(50));
}

#[test]
fn quiet_fabric_wakes_only_for_messages() {
    let quiet = || {
        end_with(ShmConfig {
            quiet: true,
            ..ShmConfig::default()
        })
    };
    let (mut a, mut b, mut now) = (quiet(), quiet(), 0);
    let to_b = connect(&mut now, &mut a, &mut b);
    let bell = b.fabric.bell.clone();
    let mut asleep = |kind, limit| {
        let start = std::time::Instant::now();
        bell.nap(|| {
            a.send_kind(kind, to_b, 0, &[]).unwrap();
            a.fabric.flush();
            Some(limit)
        });
        b.step(Time::ZERO);
        start.elapsed()
    };
    let (short, long) = (Duration::from_millis(20), Duration::from_secs(60));
    assert!(asleep(Kind::Ack, short) >= short);
    assert!(asleep(Kind::Send, long) < long);
    assert_eq!(b.got.len(), 2);
}

#[test]
fn connect_fails_without_a_listener() {
    let mut a = end();
    let node = NodeId(1);
    let peer = a.fabric.connect(node).unwrap();
    let reason = Errno::CONNREFUSED;
    let why = LinkError::Unreachable { node, reason };
    assert_eq!(a.fabric.state(peer), LinkState::Lost(why));
    assert_eq!(a.fabric.lost(), Some(peer));
    assert_eq!(a.send(peer, 0, &[]), Err(SendRefused::Lost));
}

#[test]
fn version_mismatch_is_reported_at_both_ends() {
    let newer = PROTOCOL_VERSION + 1;
    for (mine, theirs) in [(newer, PROTOCOL_VERSION), (PROTOCOL_VERSION, newer)] {
        let with = |version| {
            end_with(ShmConfig {
                version,
                ..ShmConfig::default()
            })
        };
        let (mut a, mut b, mut now) = (with(mine), with(theirs), 0);
        let peer = a.fabric.connect(b.fabric.node()).unwrap();
        a.send(peer, 1, b"lost").unwrap();
        run(&mut now, &mut [&mut a, &mut b]);
        let (ours, theirs) = (mine, theirs);
        let why = LinkError::Version { ours, theirs };
        assert_eq!(a.fabric.state(peer), LinkState::Lost(why));
        assert_eq!(a.fabric.lost(), Some(peer));
        let (ours, theirs) = (theirs, ours);
        assert_eq!(
            b.fabric.refusal(),
            Some(LinkError::Version { ours, theirs })
        );
        assert!(b.got.is_empty());
    }
}

#[test]
fn frames_of_a_dead_peer_are_received_before_the_loss() {
    let (mut a, mut b, mut now) = (end(), end(), 0);
    let to_b = connect(&mut now, &mut a, &mut b);
    let to_a = connect(&mut now, &mut b, &mut a);
    for tag in 0..5 {
        b.send(to_a, tag, b"last words").unwrap();
    }
    b.fabric.flush();
    drop(b);
    // The first step of this end after the death detects the socket's end before the frames.
    now += 5_000_000;
    run(&mut now, &mut [&mut a]);
    assert_eq!(a.got.len(), 5);
    assert_eq!(a.fabric.state(to_b), LinkState::Lost(LinkError::Closed));
    assert_eq!((a.fabric.lost(), a.fabric.lost()), (Some(to_b), None));
}

#[test]
fn garbage_in_a_ring_closes_only_its_link() {
    type Spoil = fn(&mut ShmFabric);
    let wide = FrameHeader {
        len: u32::MAX.into(),
        ..FrameHeader::default()
    };
    let spoils: [(Spoil, bool); 3] = [
        (
            |f| spoil_tail(&f.links.peers[0].ends.out.as_ref().unwrap().writer, 77),
            true,
        ),
        (
            |f| {
                spoil_head(
                    &f.links.peers[0].ends.inward.as_ref().unwrap().reader,
                    1 << 40,
                )
            },
            false,
        ),
        (|_| {}, true),
    ];
    for (i, (spoil, at_reader)) in spoils.into_iter().enumerate() {
        let (mut a, mut b, mut c, mut now) = (end(), end(), end(), 0);
        let b_of_a = connect(&mut now, &mut a, &mut b);
        let a_of_b = connect(&mut now, &mut b, &mut a);
        let b_of_c = connect(&mut now, &mut c, &mut b);
        spoil(&mut a.fabric);
        if i == 2 {
            spoil_record(
                &a.fabric.links.peers[0].ends.out.as_ref().unwrap().writer,
                0,
                &wide,
                64,
            );
        }
        if !at_reader {
            // Reported when b's ring to a appears full.
            for tag in 0..10 {
                let _ = b.send(a_of_b, tag, &[0; 20_000]);
            }
        }
        run(&mut now, &mut [&mut b, &mut a, &mut c]);
        let state = b.fabric.state(a_of_b);
        assert!(
            matches!(state, LinkState::Lost(LinkError::Garbage(_))),
            "{i} {state:?}"
        );
        assert_eq!(a.fabric.state(b_of_a), LinkState::Lost(LinkError::Closed));
        assert_eq!(b.fabric.lost(), Some(a_of_b));
        assert_eq!(a.fabric.lost(), Some(b_of_a));
        c.send(b_of_c, 9, b"fine").unwrap();
        run(&mut now, &mut [&mut b, &mut c]);
        assert_eq!(b.got.last().unwrap().2, b"fine");
        // The two can connect again.
        connect(&mut now, &mut a, &mut b);
        a.send(b_of_a, 10, b"again").unwrap();
        b.send(a_of_b, 11, b"likewise").unwrap();
        run(&mut now, &mut [&mut a, &mut b]);
        assert_eq!(b.got.last().unwrap().2, b"again");
        assert_eq!(a.got.last().unwrap().2, b"likewise");
    }
}

#[test]
fn sink_error_closes_the_link() {
    let (mut a, mut b, mut now) = (end(), end(), 0);
    let to_b = connect(&mut now, &mut a, &mut b);
    a.send(to_b, 0, &[]).unwrap();
    a.fabric.flush();
    let budget = Budget {
        frames: 9,
        bytes: 9,
    };
    let error = FrameError::Kind(0);
    assert_eq!(b.fabric.receive(budget, &mut |_, _, _| Err(error)), 0);
    let lost = b.fabric.lost().unwrap();
    let why = LinkError::Garbage(error);
    assert_eq!(b.fabric.state(lost), LinkState::Lost(why));
}

#[test]
fn reconnection_before_the_loss_is_detected() {
    let (mut a, mut b, mut now) = (end(), end(), 0);
    let to_b = connect(&mut now, &mut a, &mut b);
    let to_a = connect(&mut now, &mut b, &mut a);
    a.fabric.links.lose(0, LinkError::Closed);
    assert_eq!(a.fabric.lost(), Some(to_b));
    assert_eq!(a.fabric.connect(b.fabric.node()), Ok(to_b));
    a.send(to_b, 1, b"new").unwrap();
    run(&mut now, &mut [&mut b, &mut a]);
    assert_eq!(b.fabric.lost(), Some(to_a));
    assert_eq!(b.got.last().unwrap().2, b"new");
    assert_eq!(
        (a.fabric.state(to_b), b.fabric.state(to_a)),
        (LinkState::Up, LinkState::Up)
    );
    b.send(to_a, 2, b"answer").unwrap();
    run(&mut now, &mut [&mut b, &mut a]);
    assert_eq!(a.got.last().unwrap().2, b"answer");
}

#[test]
fn links_above_the_limit_are_refused() {
    let config = ShmConfig {
        max_links: 1,
        ..ShmConfig::default()
    };
    let (mut a, mut b, mut c, mut now) = (end_with(config), end(), end(), 0);
    connect(&mut now, &mut a, &mut b);
    let full = LinkError::TooMany { limit: 1 };
    assert_eq!(a.fabric.connect(c.fabric.node()), Err(full.clone()));
    let to_a = c.fabric.connect(a.fabric.node()).unwrap();
    run(&mut now, &mut [&mut a, &mut c]);
    assert_eq!(a.fabric.refusal(), Some(full));
    assert_eq!(c.fabric.state(to_a), LinkState::Lost(LinkError::Closed));
}

/// Connects to `end` as an invalid caller: sends `bytes` with descriptors.
fn call(end: &End, bytes: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> OwnedFd {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let stranger = socket().unwrap();
    let address = greeting::address(end.fabric.node()).unwrap();
    rustix::net::connect(&stranger, &address).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let bytes = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(&stranger, &bytes, &mut control, SendFlags::empty()).unwrap();
    stranger
}

#[test]
fn invalid_callers_are_refused() {
    use zerocopy::IntoBytes;
    let (mut a, mut b, mut now) = (end(), end(), 0);
    let to_a = connect(&mut now, &mut b, &mut a);
    let stranger = NodeId(5);
    let bell = Bell::new().unwrap();
    let bell = bell.fd();
    let ring = Region::shared(MIN_RING).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let (ring, bell, null) = (ring.file().unwrap(), bell.as_fd(), null.as_fd());
    let greeting = |size| Greeting::new(PROTOCOL_VERSION, stranger, a.fabric.node(), size);
    let good = greeting(MIN_RING);
    let elsewhere = Greeting::new(PROTOCOL_VERSION, stranger, stranger, MIN_RING);
    let mut callers = vec![
        call(&a, b"x", &[]),
        call(&a, b"GET / HTTP/1.1\r\n\r\n", &[]),
        call(&a, &[0; 4000], &[]),
        call(&a, &good.as_bytes()[..31], &[ring, bell]),
        call(&a, &[good.as_bytes(), b"more"].concat(), &[ring, bell]),
        call(&a, good.as_bytes(), &[]),
        call(&a, good.as_bytes(), &[ring]),
        call(&a, good.as_bytes(), &[ring, bell, bell]),
        call(&a, good.as_bytes(), &[ring, bell, bell, bell, bell, bell]),
        call(&a, good.as_bytes(), &[bell, ring]),
        call(&a, good.as_bytes(), &[null, bell]),
        call(&a, good.as_bytes(), &[ring, null]),
        call(&a, greeting(2 * MIN_RING).as_bytes(), &[ring, bell]),
        call(&a, greeting(MIN_RING + 64).as_bytes(), &[ring, bell]),
        call(&a, greeting(1 << 30).as_bytes(), &[ring, bell]),
        call(&a, elsewhere.as_bytes(), &[ring, bell]),
    ];
    run(&mut now, &mut [&mut a, &mut b]);
    for i in 0..callers.len() {
        let why = a.fabric.refusal();
        assert!(
            matches!(why, Some(LinkError::Greeting(_))),
            "caller {i}: {why:?}"
        );
    }
    assert_eq!(a.fabric.refusal(), None);
    // One caller closes the socket, one sends nothing for a long time.
    drop(call(&a, &[], &[]));
    let quiet = socket().unwrap();
    let address = greeting::address(a.fabric.node()).unwrap();
    rustix::net::connect(&quiet, &address).unwrap();
    run(&mut now, &mut [&mut a, &mut b]);
    assert_eq!(
        a.fabric.refusal(),
        Some(LinkError::Greeting("the caller left without one"))
    );
    assert_eq!((a.fabric.callers.len(), a.fabric.refusal()), (1, None));
    now += 2_000_000_000;
    run(&mut now, &mut [&mut a, &mut b]);
    assert_eq!(
        a.fabric.refusal(),
        Some(LinkError::Greeting("none arrived in time"))
    );
    // A valid greeting of an unknown caller makes a link; further bytes end it.
    callers.push(call(&a, good.as_bytes(), &[ring, bell]));
    run(&mut now, &mut [&mut a, &mut b]);
    assert_eq!(a.fabric.refusal(), None);
    let link = PeerId(1);
    assert_eq!(a.fabric.peer_node(link), Some(stranger));
    assert_eq!(a.fabric.state(link), LinkState::Up);
    let last = callers.last().unwrap();
    let on = [std::io::IoSlice::new(b"and then")];
    rustix::net::sendmsg(
        last,
        &on,
        &mut Default::default(),
        rustix::net::SendFlags::empty(),
    )
    .unwrap();
    run(&mut now, &mut [&mut a, &mut b]);
    let why = LinkError::Greeting("its first bytes are wrong");
    assert_eq!(a.fabric.state(link), LinkState::Lost(why));
    // Links that existed before still work.
    b.send(to_a, 3, b"still here").unwrap();
    run(&mut now, &mut [&mut a, &mut b]);
    assert_eq!(a.got.last().unwrap().2, b"still here");
}

#[test]
fn invalid_answers_lose_the_link() {
    use zerocopy::IntoBytes;
    // A listener that is no NIC answers the call with invalid greetings.
    let newer = PROTOCOL_VERSION + 7;
    for wrong in 0..4 {
        let (mut a, mut now) = (end(), 0);
        let node = NodeId(0x5000 + u64::from(std::process::id()) * 16 + wrong);
        let listener = socket().unwrap();
        rustix::net::bind(&listener, &greeting::address(node).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let peer = a.fabric.connect(node).unwrap();
        let accepted = rustix::net::accept(&listener).unwrap();
        let good = Greeting::new(PROTOCOL_VERSION, node, a.fabric.node(), 0);
        let other = Greeting::new(PROTOCOL_VERSION, NodeId(1), a.fabric.node(), 0);
        // A newer version may have a longer greeting.
        let mut later = Greeting::new(newer, node, a.fabric.node(), 0)
            .as_bytes()
            .to_vec();
        later.extend([1; 40]);
        let bytes = [
            b"pardon?".to_vec(),
            other.as_bytes().to_vec(),
            good.as_bytes().to_vec(),
            later,
        ];
        rustix::io::write(&accepted, &bytes[wrong as usize]).unwrap();
        run(&mut now, &mut [&mut a]);
        let LinkState::Lost(why) = a.fabric.state(peer) else {
            panic!("answer {wrong} was accepted");
        };
        let (ours, theirs) = (PROTOCOL_VERSION, newer);
        let version = LinkError::Version { ours, theirs };
        assert!(if wrong == 3 {
            why == version
        } else {
            matches!(why, LinkError::Greeting(_))
        });
    }
}
