//! Queue pairs over TCP whose connection is delayed, cut, forged or silent, or whose peer dies:
//! requests end with a status, none succeeds without its effect, and a reset recovers.

mod common;
mod tcp_rig;

use common::*;
use tcp_rig::proxy::{Act, Plan, Way};
use tcp_rig::*;

/// Bytes of the greeting: of the side that connects, and of the other.
const GREETING: [u64; 2] = [40 + 72, 40 + 40];

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
    for way in 0..2 {
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
                assert!(good || at >= GREETING[way], "{what}");
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
