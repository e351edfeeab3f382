//! Random frames from a peer: nothing panics, errors stay with the queue pair that they belong to,
//! and all others are served. And random good work, which is carried out exactly. Random bytes in
//! rings and records are in `any_bytes.rs`.
//!
//! `GDS_CASES` sets the number of cases of each test.

mod rig;
mod worker;

use gds_step::{Machine, Time};
use mlx5_prm::wqe::{Atomic, SendWqe};
use proptest::prelude::*;
use rig::*;
use vmlx5::fabric::{Budget, Fabric};
use vmlx5::*;

fn cases() -> ProptestConfig {
    let cases = std::env::var("GDS_CASES").ok().and_then(|n| n.parse().ok());
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases.unwrap_or(128))
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn random_frames(
        frames in prop::collection::vec(
            ((0..24_u8, 0..64_u8, any::<u8>()), (0..4_u32, 0..5_u32, 0..4_u32), (0..6_u32, 0..6_u32),
             any::<u64>(), 0..80_usize, 0..5_u16),
            1..60,
        ),
        work in 0..6_u32,
    ) {
        // A port of the hub that is no NIC plays the other end of `a`.
        let mut world = World::new(2);
        let mut port = world.hub.port();
        let mut a = world.end(0, EndConfig::default());
        world.init(&a);
        let change = rtr(Path::to(port.node(), Qpn(3)), 1, 4, 12);
        world.modify(&a, change);
        world.rts(&a, 1);
        let (mut c, mut d) = world.pair(EndConfig::default(), EndConfig::default());
        let nic = world.nics[0].node();
        let to = port.connect(nic).unwrap();
        a.post_recv(&[a.sge(0, 64)]);
        let there = a.remote(0);
        let (list, big) = ([a.sge(0, 8)], [a.sge(0, 40_000)]);
        for i in 0..work {
            let add = Atomic::FetchAdd { add: 1 };
            match i {
                0 => a.post(&write(there, &big)),
                1 => a.post(&read(there, &big)),
                2 => a.post(&nop()),
                3 => a.post(&atomic(there, add, &list)),
                4 => a.post(&send(&list)),
                _ => a.post(&SendWqe { flags: fenced(), ..write(there, &list) }),
            };
        }
        world.step();
        for ((kind, flags, code), (dst, src, seq), (total, offset), va, len, count) in frames {
            let sizes = [0, 8, len as u32, 40_000, 1 << 31, u32::MAX];
            let header = FrameHeader {
                len: (len as u32).into(),
                kind,
                flags,
                code,
                dst_qpn: [a.qpn.0, a.qpn.0, 5, u32::MAX][dst as usize].into(),
                src_qpn: [3, 3, 3, 4, 1 << 24][src as usize].into(),
                psn: seq.into(),
                rkey: (if va & 1 == 0 { a.keys.rkey } else { va as u32 }).into(),
                total: sizes[total as usize].into(),
                offset: sizes[offset as usize].into(),
                va: (if va & 2 == 0 { a.addr(va & 0xff) } else { va }).into(),
                operand: va.into(),
                count: if count == 3 { 2 } else { 1_u16 }.into(),
                mtu_log: if count == 4 { 8 } else { 12 },
                ..FrameHeader::default()
            };
            // The link may be lost by now: then it is made again.
            if port.send(to, &header, &mut |room| { room.fill(code); true }).is_err() {
                port.step(Time::ZERO);
                port.connect(nic).unwrap();
            }
            port.flush();
            world.step();
            let budget = Budget { frames: 100, bytes: 1 << 20 };
            port.receive(budget, &mut |_, _, _| Ok(()));
            port.flush();
            port.step(Time::ZERO);
        }
        world.settle();
        // Another pair on the same NICs still works.
        d.post_recv(&[d.sge(0, 8)]);
        c.put64(0, 77);
        c.completes(&mut world, &send(&[c.sge(0, 8)]));
        d.received(0);
        prop_assert_eq!(d.get64(0), 77);
        // The queue pair can be used again, whatever became of it.
        world.reset(&mut a);
        world.reset(&mut c);
        a.send.drain();
        world.connect(&a, &c);
        a.completes(&mut world, &write(c.remote(8), &[a.sge(0, 8)]));
    }

    /// Over links that are late, with receives that are later, all is carried out exactly.
    #[test]
    fn random_work(seed: u64) {
        worker::random_work(seed, World::scheduled(3, seed), EndConfig::default());
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let (mut world, mut a, mut b) = World::late(seed);
        for _ in 0..10 {
            b.post_recv(&[b.sge(0, 50_000)]);
            a.post(&send(&[a.sge(0, 50_000)]));
            a.run(&mut world, &read(b.remote(0), &[a.sge(0, 70_000)]));
        }
        let mut entries: Vec<_> = a.send.drain().iter().map(|c| c.to_bytes()).collect();
        entries.extend(b.recv.drain().iter().map(|c| c.to_bytes()));
        (world.now, entries, world.nics[0].stats())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn a_name_for_traces() {
    let world = World::new(1);
    assert_eq!(world.nics[0].name(), "nic0");
    assert_eq!(world.links.name(), "hub.links");
}
