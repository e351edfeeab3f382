//! Random bytes where the NIC reads entries, records and frames: nothing panics, errors stay
//! with whom they belong to, and everybody else is served. And random good work, which is
//! carried out exactly.
//!
//! `GDS_CASES` sets the number of cases of each test.

mod rig;
mod worker;

use gds_step::{Machine, Time};
use mlx5_prm::doorbell;
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

/// Another pair on the same NICs still works.
fn others_are_served(world: &mut World, c: &mut End, d: &mut End) {
    let n = c.get64(0) + 1;
    c.put64(0, n);
    d.post_recv(&[d.sge(0, 8)]);
    let s = c.run(world, &send(&[c.sge(0, 8)]));
    c.sent(s);
    d.received(s);
    assert_eq!(d.get64(0), n);
}

/// A control segment that looks right up to the opcode, for random entries to get past the
/// first check.
fn ctrl(qpn: u32, index: u16, opcode: u8, ds: u8, flags: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&(u32::from(index) << 8 | u32::from(opcode)).to_be_bytes());
    bytes[4..8].copy_from_slice(&(qpn << 8 | u32::from(ds)).to_be_bytes());
    bytes[11] = flags;
    bytes
}

const OPCODES: [u8; 10] = [0, 1, 8, 9, 0xa, 0xb, 0x10, 0x11, 0x12, 0x3f];

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn entries_of_random_bytes(
        seed: u64,
        bytes in prop::collection::vec(any::<u8>(), 0..1500),
        shape in prop::collection::vec((any::<bool>(), 0..10_usize, 0..70_u8, any::<u8>()), 1..8),
        blocks in 1..30_u16,
    ) {
        let (mut world, mut a, mut b) = World::late(seed);
        let (mut c, mut d) = world.pair(EndConfig::default(), EndConfig::default());
        for _ in 0..8 {
            b.post_recv(&[b.sge(0, 100_000)]);
        }
        let start = a.sq;
        a.prepare_raw(&bytes, 0);
        let (keys, qpn) = (a.keys, a.qpn.0);
        for (i, (good, op, ds, flags)) in shape.into_iter().enumerate() {
            if good {
                // Sometimes a data segment with a key that is right, too.
                let mut entry = ctrl(qpn, start + i as u16, OPCODES[op], ds, flags).to_vec();
                if flags & 1 == 0 {
                    entry.extend(b.addr(8).to_be_bytes());
                    entry.extend(b.keys.rkey.to_be_bytes());
                    entry.extend([0; 4]);
                    entry.extend(u32::from(flags).to_be_bytes());
                    entry.extend(keys.lkey.to_be_bytes());
                    entry.extend(a.addr(0).to_be_bytes());
                }
                a.sq = start + i as u16;
                a.prepare_raw(&entry, 0);
            }
        }
        a.sq = start + blocks;
        a.ring();
        world.settle();
        others_are_served(&mut world, &mut c, &mut d);
        let info = world.nics[0].query_qp(a.qpn).unwrap();
        // All of it was executed or flushed, or waits for a receive.
        prop_assert!(info.sq_done == a.sq || info.state == QpState::Rts && info.outstanding > 0);
    }

    #[test]
    fn receives_of_random_bytes(
        seed: u64,
        bytes in prop::collection::vec(any::<u8>(), 1024),
        keyed in any::<u16>(),
        posted in any::<u16>(),
        len in 0..100_u32,
    ) {
        let (mut world, mut a, b) = World::late(seed);
        let (mut c, mut d) = world.pair(EndConfig::default(), EndConfig::default());
        b.mem.write(b.rq_at, &bytes).unwrap();
        for i in (0..16).filter(|i| keyed & 1 << i != 0) {
            b.mem.write(b.rq_at + 64 * i + 4, &b.keys.lkey.to_be_bytes()).unwrap();
            b.mem.write(b.rq_at + 64 * i, &[0, 0, 0]).unwrap();
            b.mem.write(b.rq_at + 64 * i + 8, &b.addr(64).to_be_bytes()).unwrap();
        }
        let value = doorbell::record_value(posted.into());
        b.mem.store32(b.record, value).unwrap();
        for _ in 0..20 {
            a.run(&mut world, &send(&[a.sge(0, len)]));
        }
        others_are_served(&mut world, &mut c, &mut d);
    }

    #[test]
    fn random_records_and_doorbells(
        seed: u64,
        stores in prop::collection::vec((0..6_u64, any::<u32>()), 1..20),
    ) {
        let (mut world, a, b) = World::late(seed);
        let (mut c, mut d) = world.pair(EndConfig::default(), EndConfig::default());
        for (at, value) in stores {
            let place = [0x800, 0x804, 0x900, a.record, a.record + 4, a.record + 64];
            a.mem.store32(place[at as usize], value).unwrap();
            world.step();
        }
        world.settle();
        others_are_served(&mut world, &mut c, &mut d);
        drop(b);
    }

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
        others_are_served(&mut world, &mut c, &mut d);
        // The queue pair can be used again, whatever became of it.
        world.modify(&a, Modify::Reset);
        world.modify(&c, Modify::Reset);
        (a.sq, a.rq, c.sq, c.rq) = (0, 0, 0, 0);
        a.reset_records();
        c.reset_records();
        a.send.drain();
        world.connect(&a, &c);
        a.completes(&mut world, &write(c.remote(8), &[a.sge(0, 8)]));
    }
}

proptest! {
    #![proptest_config(cases())]

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
