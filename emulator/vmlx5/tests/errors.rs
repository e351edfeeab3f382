//! Every error entry from its real cause; `case` contains the assertions.

mod case;
mod rig;

use std::collections::HashSet;
use std::sync::Arc;

use case::*;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Remote, SendWqe, Sge};
use rig::*;
use vmlx5::*;

const ADD: Atomic = Atomic::FetchAdd { add: 1 };

type RemoteOp = fn(Remote, &[Sge]) -> SendWqe<'_>;

/// The kinds of remote access, with the required right of each.
static REMOTE_OPS: [(RemoteOp, Access); 4] = [
    (write, Access::REMOTE_WRITE),
    (read, Access::REMOTE_READ),
    (|at, sges| atomic(at, ADD, sges), Access::REMOTE_ATOMIC),
    (
        |at, sges| {
            let (compare, swap) = (0, 1);
            atomic(at, Atomic::CompareSwap { compare, swap }, sges)
        },
        Access::REMOTE_ATOMIC,
    ),
];

/// A further region of a domain, of 64 bytes.
fn region(world: &mut World, nic: usize, pd: PdId) -> (Sge, u32) {
    let mem = Arc::new(HostMemory::new(64));
    let MrKeys { lkey, rkey } = register(&mut world.nics[nic], pd, &mem, 0, 64);
    let (addr, len) = (mem.addr(), 8);
    (Sge { addr, lkey, len }, rkey)
}

/// Local bytes without permission.
fn local_bytes() -> Vec<Case> {
    let len = EndConfig::default().data as u64;
    type Spoil = Box<dyn Fn(&mut World, &End) -> [Sge; 2]>;
    let first = |spoil: fn(&End, &mut Sge)| -> Spoil {
        Box::new(move |_, a| [a.sge(0, 8).changed(|s| spoil(a, s)), a.sge(8, 8)])
    };
    let faults: [(&str, Spoil, u8); 7] = [
        (
            "a key of no slot",
            first(|a, s| s.lkey = a.keys.lkey + 0x100),
            vendor::KEY_UNKNOWN,
        ),
        (
            "a key of another generation",
            first(|a, s| s.lkey = a.keys.lkey ^ 1),
            vendor::KEY_UNKNOWN,
        ),
        ("no key", first(|_, s| s.lkey = 0), vendor::KEY_UNKNOWN),
        (
            "bytes before the region",
            first(|a, s| s.addr = a.addr(0) - 1),
            vendor::KEY_RANGE,
        ),
        (
            "bytes around the end of all addresses",
            first(|_, s| s.addr = u64::MAX - 3),
            vendor::KEY_RANGE,
        ),
        (
            "a second piece that ends past the region",
            Box::new(move |_, a| [a.sge(0, 8), a.sge(len - 7, 8)]),
            vendor::KEY_RANGE,
        ),
        (
            "a region of another domain",
            Box::new(|world, a| {
                let other = world.nics[0].alloc_pd().unwrap();
                [region(world, 0, other).0, a.sge(0, 8)]
            }),
            vendor::KEY_DOMAIN,
        ),
    ];
    let faults = faults.map(|(name, spoil, why)| {
        let raise = move |world: &mut World, a: &mut End, b: &mut End| {
            let sges = spoil(world, a);
            a.quietly(write(b.remote(0), &sges))
        };
        case(name, raise, own(Syndrome::LOCAL_PROT, why))
    });
    let written = REMOTE_OPS[1..].iter().map(|(op, _)| {
        let raise = |_: &mut World, a: &mut End, b: &mut End| {
            let sges = [a.sge(0, 8)];
            a.quietly(op(b.remote(0), &sges))
        };
        let seen = own(Syndrome::LOCAL_PROT, vendor::KEY_ACCESS);
        let case = case("memory that must not be written", raise, seen);
        case.with(0, |a| a.mr_access = Access::NONE)
    });
    faults.into_iter().chain(written).collect()
}

/// Invalid entries, or entries that the requester may not post.
fn entries() -> Vec<Case> {
    // The position of the changed byte, and the change.
    let spoiled = [
        ("another index", 1, 1_u8, vendor::WQE_INDEX),
        ("an index close by", 2, 1, vendor::WQE_INDEX),
        ("another queue pair", 4, 0xff, vendor::WQE_QPN),
        ("no operation", 3, 0x2f, vendor::WQE_FORMAT),
        ("another length", 7, 2, vendor::WQE_FORMAT),
    ];
    let spoiled = spoiled.map(|(name, at, flip, why)| {
        let raise = move |_: &mut World, a: &mut End, _: &mut End| {
            let index = a.quietly(send(&[a.sge(0, 8)]));
            let place = a.sq_at + u64::from(index) * 64 + at;
            let mut byte = [0];
            a.mem.read(place, &mut byte).unwrap();
            a.mem.write(place, &[byte[0] ^ flip]).unwrap();
            index
        };
        case(name, raise, own(Syndrome::LOCAL_QP_OP, why))
    });
    let refused = [
        case(
            "an atomic into 16 bytes",
            |_, a, b| a.quietly(atomic(b.remote(0), ADD, &[a.sge(0, 16)])),
            own(Syndrome::LOCAL_LENGTH, vendor::LENGTH),
        ),
        case(
            "a read where none may be outstanding",
            |_, a, b| a.quietly(read(b.remote(0), &[a.sge(0, 8)])),
            own(Syndrome::LOCAL_QP_OP, vendor::READ_LIMIT),
        )
        .with(0, |a| a.max_rd_atomic = 0),
    ];
    let unreliable = REMOTE_OPS[1..].iter().map(|(op, _)| {
        let raise = |_: &mut World, a: &mut End, b: &mut End| {
            let sges = [a.sge(0, 8)];
            a.quietly(op(b.remote(0), &sges))
        };
        let seen = own(Syndrome::LOCAL_QP_OP, vendor::WQE_OPCODE);
        case("an answer over an unreliable connection", raise, seen).unreliable()
    });
    let invalidate = case(
        "an invalidation over an unreliable connection",
        |_, a, b| a.quietly(send_inv(b.keys.rkey, &[a.sge(0, 8)])),
        own(Syndrome::LOCAL_QP_OP, vendor::WQE_OPCODE),
    );
    let all = spoiled.into_iter().chain(refused).chain(unreliable);
    all.chain([invalidate.unreliable()]).collect()
}

/// Requests that the other end refuses.
fn requests() -> Vec<Case> {
    let len = EndConfig::default().data as u64;
    let mut cases = Vec::new();
    for &(op, right) in &REMOTE_OPS {
        for (name, key, at, why) in [
            ("a remote key of no slot", 0x100, 0, vendor::KEY_UNKNOWN),
            ("another generation's", 1, 0, vendor::KEY_UNKNOWN),
            ("remote bytes past the region", 0, len, vendor::KEY_RANGE),
            ("before it", 0, u64::MAX - 7, vendor::KEY_RANGE),
        ] {
            let raise = move |_: &mut World, a: &mut End, b: &mut End| {
                let (addr, rkey) = (b.addr(0).wrapping_add(at) & !7, b.keys.rkey ^ key);
                let sges = [a.sge(0, 8)];
                a.quietly(op(Remote { addr, rkey }, &sges))
            };
            cases.push(case(name, raise, refused(Syndrome::REMOTE_ACCESS, why)));
        }
        let without = Access::from_bits(remote_rights().bits() & !right.bits()).unwrap();
        type Spoil = fn(&mut EndConfig, Access);
        let spoils: [(&str, Spoil, u8); 2] = [
            (
                "a right that the queue pair does not give",
                |b, rights| b.qp_access = rights,
                vendor::QP_ACCESS,
            ),
            (
                "a right that the region does not give",
                |b, rights| b.mr_access = Access::LOCAL_WRITE | rights,
                vendor::KEY_ACCESS,
            ),
        ];
        for (name, spoil, why) in spoils {
            let raise = move |world: &mut World, a: &mut End, b: &mut End| {
                // The other rights are granted.
                let (mut c, mine) = (world.end(0, EndConfig::default()), b.config.clone());
                let d = world.end(1, mine);
                world.connect(&c, &d);
                let others = REMOTE_OPS.iter().filter(|(_, other)| *other != right);
                for (other, _) in others {
                    let sges = [c.sge(0, 8)];
                    c.completes(world, &other(d.remote(0), &sges));
                }
                let sges = [a.sge(0, 8)];
                a.quietly(op(b.remote(0), &sges))
            };
            let case = case(name, raise, refused(Syndrome::REMOTE_ACCESS, why));
            cases.push(case.with(1, |b| spoil(b, without)));
        }
    }
    for at in [1, 4, 7] {
        cases.push(case(
            "an atomic on no word",
            move |_, a, b| a.quietly(atomic(b.remote(at), ADD, &[a.sge(0, 8)])),
            refused(Syndrome::REMOTE_INVAL_REQ, vendor::MISALIGNED),
        ));
    }
    cases.push(case(
        "the key of a removed region, though its bytes are registered again",
        |world, a, b| {
            let nic = &mut world.nics[1];
            let stale = b.keys.rkey;
            nic.dereg_mr(stale).unwrap();
            // The new region has the same slot if that slot was freed last.
            for _ in 0..3 {
                let keys = register(nic, b.pd, &b.mem, b.data_at, 4096);
                assert_ne!(keys.rkey, stale);
            }
            a.quietly(write(b.remote(0), &[a.sge(0, 8)]))
        },
        refused(Syndrome::REMOTE_ACCESS, vendor::KEY_UNKNOWN),
    ));
    cases.push(case(
        "a region of another domain at the other end",
        |world, a, _| {
            let other = world.end(1, EndConfig::default());
            a.quietly(write(other.remote(0), &[a.sge(0, 8)]))
        },
        refused(Syndrome::REMOTE_ACCESS, vendor::KEY_DOMAIN),
    ));
    cases.push(case(
        "more reads than the responder takes",
        |world, a, b| {
            let none = AttrChange::default().changed(|c| c.max_dest_rd_atomic = Some(0));
            for change in [Modify::Sqd, Modify::Attr(none), Modify::Resume] {
                world.modify(b, change);
            }
            a.quietly(read(b.remote(0), &[a.sge(0, 8)]))
        },
        refused(Syndrome::REMOTE_INVAL_REQ, vendor::READ_LIMIT),
    ));
    cases
}

/// Faulty receives.
fn receives() -> Vec<Case> {
    let too_long = (Syndrome::REMOTE_INVAL_REQ, vendor::LENGTH);
    let failed = (Syndrome::REMOTE_OP, vendor::RESPONDER);
    let short = (Syndrome::LOCAL_LENGTH, vendor::LENGTH);
    let shorter = |_: &mut World, a: &mut End, b: &mut End| {
        b.post_recv(&[b.sge(0, 5), b.sge(10, 2)]);
        a.quietly(send(&[a.sge(0, 8)]))
    };
    let lost = Seen {
        requester: None,
        ..receive_fails(too_long, short)
    };
    let mut cases = vec![
        case("a short receive", shorter, receive_fails(too_long, short)),
        case("a short receive on an unreliable connection", shorter, lost).unreliable(),
        case(
            "a receive with an unknown key",
            |_, a, b| {
                let bad = b.sge(0, 8).changed(|s| s.lkey = 0x4242);
                b.post_recv(&[b.sge(100, 4), bad]);
                a.quietly(send(&[a.sge(0, 8)]))
            },
            receive_fails(failed, (Syndrome::LOCAL_PROT, vendor::KEY_UNKNOWN)),
        ),
        case(
            "a receive record beyond its queue",
            |_, a, b| {
                // One entry more than the queue holds.
                for _ in 0..=1 << b.config.log_rq {
                    b.post_recv(&[b.sge(0, 64)]);
                }
                a.quietly(send(&[a.sge(0, 8)]))
            },
            receive_fails(failed, (Syndrome::LOCAL_QP_OP, vendor::RECORD)),
        ),
    ];
    type Key = fn(&mut World, &End) -> u32;
    let keys: [(Key, u8); 3] = [
        (|_, b| b.keys.rkey ^ 1, vendor::KEY_UNKNOWN),
        (|_, _| 0, vendor::KEY_UNKNOWN),
        (
            |world, _| {
                let other = world.nics[1].alloc_pd().unwrap();
                region(world, 1, other).1
            },
            vendor::KEY_DOMAIN,
        ),
    ];
    for (key, why) in keys {
        let raise = move |world: &mut World, a: &mut End, b: &mut End| {
            let key = key(world, b);
            b.post_recv(&[b.sge(100, 64)]);
            a.quietly(send_inv(key, &[a.sge(0, 8)]))
        };
        let (theirs, ours) = (Syndrome::REMOTE_ACCESS, Syndrome::REMOTE_INVAL_REQ);
        let seen = receive_fails((theirs, why), (ours, why));
        cases.push(case("a key that cannot be invalidated", raise, seen));
    }
    cases
}

/// Peers that do not answer, or that get no request.
fn silence() -> Vec<Case> {
    let lost = Seen {
        requester: None,
        ..own(Syndrome::default(), 0)
    };
    vec![
        case(
            "a peer that does not answer",
            |world, a, b| {
                world.silence(b);
                a.quietly(write(b.remote(0), &[a.sge(0, 8)]))
            },
            own(Syndrome::TRANSPORT_RETRY, vendor::RETRY),
        ),
        case(
            "a peer without a receive",
            |_, a, _| a.quietly(send(&[a.sge(0, 8)])),
            own(Syndrome::RNR_RETRY, vendor::RNR),
        )
        .with(0, |a| a.rnr_retry = 3),
        case(
            "an unreliable send with an unknown key",
            |_, a, _| a.quietly(send(&[a.sge(0, 8).changed(|s| s.lkey = 0x4242)])),
            own(Syndrome::LOCAL_PROT, vendor::KEY_UNKNOWN),
        )
        .unreliable(),
        case(
            "an unreliable write with an unknown remote key",
            |_, a, b| {
                let at = b.remote(0).changed(|r| r.rkey = 0x4242);
                a.quietly(write(at, &[a.sge(0, 8)]))
            },
            lost,
        )
        .unreliable(),
    ]
}

/// Syndromes that no case here raises, with the reason.
const NOT_HERE: [(Syndrome, &str); 4] = [
    (Syndrome::BAD_RESP, "a scripted peer: protocol.rs"),
    (
        Syndrome::MW_BIND,
        "there are no memory windows: such an entry is LOCAL_QP_OP, as an operation that the NIC does not have",
    ),
    (
        Syndrome::LOCAL_ACCESS,
        "these devices report the responder's own keys as LOCAL_PROT and refuse remote ones by NAK, with an event and no entry",
    ),
    (
        Syndrome::REMOTE_ABORTED,
        "only requesters of reliable datagrams get it, and the NIC has none",
    ),
];

#[test]
fn every_cause_raises_its_syndrome() {
    let cases = [local_bytes(), entries(), requests(), receives(), silence()];
    let mut raised: HashSet<u8> = NOT_HERE.iter().map(|(why, _)| why.0).collect();
    raised.insert(Syndrome::WR_FLUSH.0);
    for case in cases.into_iter().flatten() {
        case.run();
        let seen = [case.seen.requester, case.seen.responder];
        raised.extend(seen.into_iter().flatten().map(|(why, _)| why.0));
    }
    let named: HashSet<u8> = (0..=u8::MAX)
        .filter(|&n| Syndrome(n).name().is_some())
        .collect();
    assert_eq!(raised, named);
}

#[test]
fn last_bytes_of_a_region_are_accessible() {
    let (mut world, mut a, b) = World::connected();
    let last = a.config.data as u64 - 8;
    a.completes(&mut world, &write(b.remote(0), &[a.sge(last, 8)]));
}

#[test]
fn pieces_beyond_the_message_are_not_checked() {
    let (mut world, mut a, mut b) = World::connected();
    let bad = b.sge(0, 8).changed(|s| s.lkey = 0x4242);
    let r = b.post_recv(&[b.sge(100, 8), bad]);
    a.run(&mut world, &send(&[a.sge(0, 8)]));
    b.received(r);
}

#[test]
fn deregistration_in_flight_fails_the_message() {
    // The region is removed between the frames of a message.
    let (mut world, mut a, b) = World::connected();
    a.put(0, &[1; 1 << 20]);
    let index = a.post(&write(b.remote(0), &[a.sge(0, 1 << 20)]));
    world.step();
    assert!(world.nics[0].stats().frames_sent > 1);
    world.nics[0].dereg_mr(a.keys.lkey).unwrap();
    world.settle();
    a.send_failed(index, Syndrome::LOCAL_PROT);
    assert_eq!(world.state(&a), QpState::Err);
    assert!(world.nics[0].dereg_mr(a.keys.lkey).is_err());
}

#[test]
fn doorbell_short_of_the_entry_is_an_error() {
    let (mut world, mut a, b) = World::connected();
    let pieces: Vec<Sge> = (0..6).map(|i| a.sge(i * 8, 8)).collect();
    a.prepare(&write(b.remote(0), &pieces));
    a.sq = 1;
    a.ring();
    world.settle();
    assert_eq!(a.send_failed(0, Syndrome::LOCAL_QP_OP), vendor::WQE_SIZE);
    assert_eq!(b.get64(0), 0);
}

#[test]
fn empty_write_needs_no_key() {
    let (mut world, mut a, b) = World::connected();
    let nowhere = Remote { addr: 1, rkey: 1 };
    a.completes(&mut world, &write(nowhere, &[]));
    assert_eq!(world.state(&b), QpState::Rts);
}

#[test]
fn work_before_the_error_completes() {
    // Frames are late: valid work is in flight when the NIC finds the faulty entry.
    for seed in 0..20 {
        let (mut world, mut a, b) = World::late(seed);
        let at = b.remote(0);
        let sges = [a.sge(0, 50_000)];
        let mut good = Vec::new();
        for i in 0..6 {
            let wqe = if i % 2 == 0 {
                write(at, &sges)
            } else {
                read(at, &sges)
            };
            good.push(a.prepare(&wqe));
        }
        let bad = a.prepare(&send(&[a.sge(0, 8).changed(|s| s.lkey = 7)]));
        a.ring();
        world.settle();
        let done = a.send.drain();
        assert_eq!(done.len(), 7);
        for (cqe, &index) in done.iter().zip(&good) {
            assert_ok(cqe, CqeOpcode::REQ, index);
        }
        assert_err(&done[6], REQ_ERR, bad, Syndrome::LOCAL_PROT);
    }
}

#[test]
fn modify_to_err_flushes_all_work_in_order() {
    let (mut world, mut a, mut b) = World::connected();
    let receives: Vec<u16> = (0..5).map(|_| a.post_recv(&[])).collect();
    // The other end has no receive: the send stays outstanding, and so does all work after it.
    let sends: Vec<u16> = (0..5).map(|_| a.post(&send(&[]))).collect();
    world.settle();
    assert!(a.send.poll().is_none());
    world.modify(&a, Modify::Error);
    world.settle();
    let done = a.send.drain();
    assert_eq!(done.len(), 5);
    for (cqe, index) in done.iter().zip(sends) {
        assert_err(cqe, REQ_ERR, index, Syndrome::WR_FLUSH);
        assert_eq!(cqe.as_error().send_opcode(), SendOpcode::SEND);
    }
    let done = a.recv.drain();
    assert_eq!(done.len(), 5);
    for (cqe, index) in done.iter().zip(receives) {
        assert_err(cqe, RESP_ERR, index, Syndrome::WR_FLUSH);
    }
    // Frames of the other end are dropped.
    let s = b.post(&send(&[]));
    world.outlast();
    b.send_failed(s, Syndrome::TRANSPORT_RETRY);
}
