//! Connections by several TCP sockets: their greetings, stripes and failures.

mod common;
mod tcp_rig;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use common::*;
use gdsync::internals::tcp::{CLAIM, Claim, Head, OPENING, Session, VERDICT, Verdict};
use tcp_rig::proxy::{Act, Plan, Way};
use tcp_rig::speaker::{self, Speaker};
use tcp_rig::*;

const SOCKETS: usize = 3;

fn devices(gpu: &Gpu, encrypted: bool) -> [Device; 2] {
    let options = options().encrypted(encrypted).sockets(SOCKETS as u8);
    [(); 2].map(|()| Device::tcp(gpu, options).unwrap())
}

/// Plans for the sockets of one attempt, with `way` for one direction of one of them.
fn plans(socket: usize, direction: usize, way: Way) -> Vec<Plan> {
    let mut plans = vec![Plan::default(); SOCKETS];
    plans[socket][direction] = way;
    plans
}

#[test]
fn numbers_of_sockets_out_of_range_are_refused() {
    let gpu = Gpu::soft().unwrap();
    for sockets in [0, 17, u8::MAX] {
        let e = Device::tcp(&gpu, options().sockets(sockets)).unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid, "{e}");
    }
    for sockets in [1, 16] {
        Device::tcp(&gpu, options().sockets(sockets)).unwrap();
    }
}

#[test]
fn sides_with_different_numbers_of_sockets_connect() {
    let gpu = Gpu::soft().unwrap();
    for sockets in [[1, 16], [16, 1], [2, 3]] {
        let devices = sockets.map(|n| Device::tcp(&gpu, options().sockets(n)).unwrap());
        let mut p = Couple::of(devices, &QpConfig::default());
        p.connect();
        assert!(p.exchange(1, &[], "different numbers"));
    }
}

#[test]
fn an_attempt_with_a_cut_in_one_greeting_is_repeated() {
    let gpu = Gpu::soft().unwrap();
    let mut p = Couple::of(devices(&gpu, true), &QpConfig::default());
    p.connect();
    assert!(p.exchange(1, &[], "no cut"));
    let mut round = 1;
    for (direction, bytes) in [OPENING + CLAIM, OPENING + VERDICT].into_iter().enumerate() {
        for at in (0..bytes as u64).step_by(13) {
            let socket = round as usize % SOCKETS;
            let act = [Act::Reset, Act::End][round as usize % 2];
            let what =
                format!("{act:?} behind byte {at} of direction {direction}, socket {socket}");
            round += 1;
            p.reset(&what);
            let way = Way {
                at,
                act,
                ..Way::default()
            };
            p.proxy.plan(plans(socket, direction, way));
            p.connect();
            assert!(p.exchange(round, &[], &what), "{what}");
            assert!(p.proxy.connections() > SOCKETS, "{what}");
        }
    }
}

#[test]
fn sockets_may_be_slow_and_cut_under_traffic() {
    let gpu = roomy();
    let mut cuts = 0;
    gds_sim::seeds(30, |seed| -> Result<(), String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let what = format!("seed {seed:#x}");
        let (_, path) = &paths()[rng.usize(..3)];
        let kind = [MemoryKind::Pinned, MemoryKind::Device][rng.usize(..2)];
        let mut p = Couple::for_traffic(devices(&gpu, rng.bool()), path, kind);
        for _ in 0..3 {
            let way = Way {
                at: rng.u64(..160_000),
                act: [Act::Nothing, Act::Reset, Act::End][rng.usize(..3)],
                ..Way::default()
            };
            let mut plans = plans(rng.usize(..SOCKETS), rng.usize(..2), way);
            for way in plans.iter_mut().flatten() {
                way.pauses = u64::from(rng.bool()) * rng.u64(1..);
            }
            p.proxy.plan(plans);
            p.connect();
            // Several stripes.
            let cut = !(0..4).all(|_| p.traffic(&mut rng, &LOST, &what, |_| {}));
            assert!(!cut || way.act != Act::Nothing, "{what}");
            cuts += u32::from(cut);
            p.reset(&what);
        }
        p.proxy.plan([]);
        p.connect();
        assert!(p.traffic(&mut rng, &[], &what, |_| {}));
        Ok(())
    });
    println!("{cuts} cuts ended requests");
    assert!(cuts > 0);
}

/// A queue pair that waits for the speaker, its device's address, and a claim to it by this number of
/// sockets.
fn awaiting(device: &Device, sockets: u8) -> (Side, SocketAddr, Claim) {
    let mut side = Side::new(device, &QpConfig::default());
    side.qp.connect(&speaker::address()).unwrap();
    let there = side.qp.address();
    let claim = Claim {
        sockets,
        ..speaker::claim_to(&there)
    };
    (side, socket(&there), claim)
}

/// A socket whose greeting waits for its verdict.
struct Waiting {
    stream: TcpStream,
    session: Session,
    claim: [u8; CLAIM],
}

impl Waiting {
    fn new((mut stream, ours, theirs): speaker::Opened, claim: &Claim) -> Waiting {
        let session = Session::new(KEY, [ours, theirs.unwrap()]);
        let claim = session.claim(claim);
        stream.write_all(&claim).unwrap();
        Waiting {
            stream,
            session,
            claim,
        }
    }

    /// The verdict, if there is one within the time.
    fn verdict(&mut self, within: Duration) -> Option<Verdict> {
        self.stream.set_read_timeout(Some(within)).unwrap();
        let mut verdict = [0; VERDICT];
        self.stream.read_exact(&mut verdict).ok()?;
        Some(self.session.read_verdict(&self.claim, &verdict).unwrap())
    }
}

#[test]
fn connection_waits_for_each_of_its_own_sockets() {
    let gpu = Gpu::soft().unwrap();
    let [device, _] = devices(&gpu, false);
    let (_side, at, claim) = awaiting(&device, 2);
    let claim = Claim {
        attempt: 1,
        ..claim
    };
    let greet = |claim: Claim| Waiting::new(speaker::open(at), &claim);
    let mut first = greet(claim);
    // The same place again, the second socket of another attempt, and of another connection.
    let other = |attempt, sockets| Claim {
        attempt,
        sockets,
        ..claim.at(1)
    };
    let mut others = [claim, other(2, 2), other(1, 3)].map(greet);
    let soon = Duration::from_millis(200);
    assert_eq!(first.verdict(soon), None);
    for other in &mut others {
        assert_eq!(other.verdict(Duration::from_millis(1)), None);
    }
    let mut second = greet(claim.at(1));
    assert_eq!(second.verdict(LIMIT), Some(Verdict::Welcome));
    assert_eq!(first.verdict(LIMIT), Some(Verdict::Welcome));
    // A socket that its connection does not have.
    let (_, verdict) = Speaker::greet(at, KEY, &claim.at(2));
    assert_eq!(verdict, None);
}

/// All sockets of some large connections are there before the first proof.
#[test]
fn greetings_of_many_sockets_may_take_a_while() {
    let gpu = Gpu::soft().unwrap();
    let [device, _] = devices(&gpu, false);
    let sides: Vec<_> = (0..8).map(|_| awaiting(&device, 16)).collect();
    let mut opened = Vec::new();
    for (_, at, claim) in &sides {
        for socket in 0..claim.sockets {
            opened.push((speaker::open(*at), claim.at(socket)));
        }
    }
    std::thread::sleep(Duration::from_millis(50));
    let greet = |(opened, claim)| Waiting::new(opened, &claim);
    let mut waiting: Vec<_> = opened.into_iter().map(greet).collect();
    for socket in &mut waiting {
        assert_eq!(socket.verdict(LIMIT), Some(Verdict::Welcome));
    }
}

/// A queue pair that only receives has nothing to write by which it would find the end of a socket.
#[test]
fn an_idle_side_closes_a_connection_with_a_cut_in_one_socket() {
    let gpu = Gpu::soft().unwrap();
    let [device, _] = devices(&gpu, false);
    let (_side, at, claim) = awaiting(&device, 3);
    let greet = |socket| Waiting::new(speaker::open(at), &claim.at(socket));
    let mut all = [0, 1, 2].map(greet);
    for socket in &mut all {
        assert_eq!(socket.verdict(LIMIT), Some(Verdict::Welcome));
    }
    let [mut first, _second, third] = all;
    first.stream.set_read_timeout(Some(LIMIT)).unwrap();
    let ack = Head::new(gdsync::internals::tcp::Kind::Ack, 0).encode();
    first.stream.write_all(&ack).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    rustix::net::connect_unspec(&third.stream).unwrap();
    let mut rest = Vec::new();
    first.stream.read_to_end(&mut rest).unwrap();
}
