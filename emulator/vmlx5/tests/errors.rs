//! Every error entry from its real cause, on both sides, and the flush that follows.

mod rig;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Remote, SendWqe, Sge, WqeFlags};
use rig::*;
use vmlx5::{Access, HostMemory, Modify, MrAttr, Path, QpState, vendor};

const REQ_ERR: CqeOpcode = CqeOpcode::REQ_ERR;
const RESP_ERR: CqeOpcode = CqeOpcode::RESP_ERR;

/// Posts good work, then `bad` (unsignaled), then more; expects `why` for `bad` and a flush of
/// the rest, in order, also of what is posted later.
#[track_caller]
fn fails(world: &mut World, a: &mut End, bad: &SendWqe<'_>, why: Syndrome, vendor: u8) {
    let good = a.post(&nop());
    let quiet = WqeFlags::default();
    let index = a.prepare(&SendWqe {
        flags: quiet,
        ..*bad
    });
    let after = [
        a.prepare(&nop()),
        a.prepare(&nop().changed(|s| s.flags = quiet)),
    ];
    a.ring();
    world.settle();
    a.sent(good);
    let error = a.send.poll().unwrap();
    assert_err(&error, REQ_ERR, index, why);
    assert_eq!(error.as_error().send_opcode(), bad.opcode);
    assert_eq!(error.as_error().qpn(), a.qpn.0);
    assert_eq!(error.as_error().vendor_err, vendor);
    for index in after {
        a.send_failed(index, Syndrome::WR_FLUSH);
    }
    assert_eq!(world.state(a), QpState::Err);
    let late = a.run(world, &nop());
    a.send_failed(late, Syndrome::WR_FLUSH);
    // A receive is flushed without any doorbell.
    let recv = a.post_recv(&[]);
    world.settle();
    a.recv_failed(recv, Syndrome::WR_FLUSH);
    assert!(a.send.poll().is_none() && a.recv.poll().is_none());
}

/// As `fails`, and the other end is in error too, its receives flushed.
#[track_caller]
fn fails_both(
    world: &mut World,
    a: &mut End,
    b: &mut End,
    bad: &SendWqe<'_>,
    why: Syndrome,
    vendor: u8,
) {
    let receives = [b.post_recv(&[]), b.post_recv(&[])];
    fails(world, a, bad, why, vendor);
    assert_eq!(world.state(b), QpState::Err);
    for index in receives {
        b.recv_failed(index, Syndrome::WR_FLUSH);
    }
    let (late, sent) = (b.post_recv(&[]), b.post(&nop()));
    world.settle();
    b.recv_failed(late, Syndrome::WR_FLUSH);
    b.send_failed(sent, Syndrome::WR_FLUSH);
}

#[test]
fn bad_local_keys() {
    let len = EndConfig::default().data as u64;
    type Spoil = fn(&mut World, &mut End) -> Sge;
    let cases: [(Spoil, u8); 6] = [
        (
            |_, a| a.sge(0, 8).changed(|s| s.lkey = a.keys.lkey + 0x100),
            vendor::KEY_UNKNOWN,
        ),
        (
            |_, a| a.sge(0, 8).changed(|s| s.lkey = a.keys.lkey ^ 1),
            vendor::KEY_UNKNOWN,
        ),
        (
            |_, a| a.sge(0, 8).changed(|s| s.lkey = 0),
            vendor::KEY_UNKNOWN,
        ),
        (
            |_, a| a.sge(0, 8).changed(|s| s.addr = a.addr(0) - 1),
            vendor::KEY_RANGE,
        ),
        (
            |_, a| a.sge(0, 8).changed(|s| s.addr = u64::MAX - 3),
            vendor::KEY_RANGE,
        ),
        (
            // A region of another domain.
            |world, a| {
                let other = world.end(0, EndConfig::default());
                let mem = std::sync::Arc::new(HostMemory::new(64));
                let (va, pd) = (mem.addr(), other.pd);
                let attr = MrAttr {
                    pd,
                    va,
                    len: 64,
                    access: all_rights(),
                    mem,
                    mem_offset: 0,
                };
                let keys = world.nics[a.nic].reg_mr(attr).unwrap();
                Sge {
                    addr: va,
                    lkey: keys.lkey,
                    len: 8,
                }
            },
            vendor::KEY_DOMAIN,
        ),
    ];
    for (spoil, why) in cases {
        let (mut world, mut a, mut b) = World::connected();
        let bad = spoil(&mut world, &mut a);
        fails(&mut world, &mut a, &send(&[bad]), Syndrome::LOCAL_PROT, why);
        // The other end is not touched, and learns when it asks.
        assert_eq!(world.state(&b), QpState::Rts);
        let index = b.post(&write(a.remote(0), &[b.sge(0, 8)]));
        world.outlast();
        b.send_failed(index, Syndrome::TRANSPORT_RETRY);
    }
    // Ends past the region; the second of two pieces; at the very end it is fine.
    let (mut world, mut a, b) = World::connected();
    a.run(&mut world, &write(b.remote(0), &[a.sge(len - 8, 8)]));
    assert_eq!(a.send.drain()[0].opcode(), CqeOpcode::REQ);
    let pieces = [a.sge(0, 8), a.sge(len - 7, 8)];
    let bad = write(b.remote(0), &pieces);
    fails(
        &mut world,
        &mut a,
        &bad,
        Syndrome::LOCAL_PROT,
        vendor::KEY_RANGE,
    );
    assert_eq!(b.get64(0), 0, "no part of it was sent");
}

#[test]
fn local_memory_that_must_not_be_written() {
    let ops: [fn(&End, &[Sge]) -> SendWqe<'static>; 2] = [
        |b, _| read(b.remote(0), &[]),
        |b, _| atomic(b.remote(0), Atomic::FetchAdd { add: 1 }, &[]),
    ];
    for op in ops {
        let mut world = World::new(2);
        let read_only = EndConfig::default().changed(|c| c.mr_access = Access::NONE);
        let (mut a, b) = world.pair(read_only, EndConfig::default());
        let sges = [a.sge(0, 8)];
        let bad = op(&b, &[]).changed(|s| s.payload = mlx5_prm::wqe::Payload::Gather(&sges));
        fails(
            &mut world,
            &mut a,
            &bad,
            Syndrome::LOCAL_PROT,
            vendor::KEY_ACCESS,
        );
        assert_eq!(b.get64(0), 0);
    }
}

#[test]
fn deregistered_while_in_flight() {
    // The region goes away between the frames of a message.
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
fn malformed_entries() {
    // (what is spoiled, where in the bytes, vendor's word)
    let cases = [
        (1, 1_u8, vendor::WQE_INDEX),
        (4, 0xff, vendor::WQE_QPN),
        (3, 0x2f, vendor::WQE_FORMAT),
        (7, 2, vendor::WQE_FORMAT),
    ];
    for (at, flip, why) in cases {
        let (mut world, mut a, b) = World::connected();
        let good = a.post(&nop());
        let index = a.prepare(&send(&[a.sge(0, 8)]));
        let place = a.sq_at + u64::from(index) * 64 + at;
        let mut byte = [0];
        use vmlx5::Dma;
        a.mem.read(place, &mut byte).unwrap();
        a.mem.write(place, &[byte[0] ^ flip]).unwrap();
        let next = a.run(&mut world, &nop());
        a.sent(good);
        let error = a.send.poll().unwrap();
        assert_err(&error, REQ_ERR, index, Syndrome::LOCAL_QP_OP);
        assert_eq!(error.as_error().vendor_err, why, "byte {at}");
        a.send_failed(next, Syndrome::WR_FLUSH);
        assert_eq!(world.state(&a), QpState::Err);
        drop(b);
    }
}

#[test]
fn rung_short_of_the_entry() {
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
fn lengths() {
    let (mut world, mut a, b) = World::connected();
    let sges = [a.sge(0, 16)];
    let bad = atomic(b.remote(0), Atomic::FetchAdd { add: 1 }, &sges);
    fails(
        &mut world,
        &mut a,
        &bad,
        Syndrome::LOCAL_LENGTH,
        vendor::LENGTH,
    );
    assert_eq!(b.get64(0), 0);
}

#[test]
fn reads_where_none_may_be_outstanding() {
    let mut world = World::new(2);
    let none = EndConfig::default().changed(|c| c.max_rd_atomic = 0);
    let (mut a, b) = world.pair(none.clone(), EndConfig::default());
    let sges = [a.sge(0, 8)];
    let bad = read(b.remote(0), &sges);
    fails(
        &mut world,
        &mut a,
        &bad,
        Syndrome::LOCAL_QP_OP,
        vendor::READ_LIMIT,
    );
    // The responder takes fewer than the requester sends.
    let mut world = World::new(2);
    let a = EndConfig::default();
    let (mut a, mut b) = (world.end(0, a), world.end(1, none));
    for (x, y) in [(&a, &b), (&b, &a)] {
        world.init(x);
        let to = world.node(y);
        world.modify(x, rtr(Path::to(to, y.qpn), 0, 0, 12));
        world.rts(x, 0);
    }
    let sges = [a.sge(0, 8)];
    let bad = read(b.remote(0), &sges);
    let why = Syndrome::REMOTE_INVAL_REQ;
    fails_both(&mut world, &mut a, &mut b, &bad, why, vendor::READ_LIMIT);
}

#[test]
fn receive_too_short() {
    let (mut world, mut a, mut b) = World::connected();
    b.put(0, &[0xee; 64]);
    let r = b.post_recv(&[b.sge(0, 5), b.sge(10, 2)]);
    let next = b.post_recv(&[b.sge(0, 64)]);
    let s = a.run(&mut world, &send(&[a.sge(0, 8)]));
    a.send_failed(s, Syndrome::REMOTE_INVAL_REQ);
    b.recv_failed(r, Syndrome::LOCAL_LENGTH);
    b.recv_failed(next, Syndrome::WR_FLUSH);
    assert_eq!(b.get(0, 64), [0xee; 64]);
    assert_eq!(
        (world.state(&a), world.state(&b)),
        (QpState::Err, QpState::Err)
    );
}

#[test]
fn receive_with_a_bad_key() {
    let (mut world, mut a, mut b) = World::connected();
    let bad = b.sge(0, 8).changed(|s| s.lkey = 0x4242);
    let r = b.post_recv(&[b.sge(100, 4), bad]);
    let s = a.run(&mut world, &send(&[a.sge(0, 8)]));
    a.send_failed(s, Syndrome::REMOTE_OP);
    b.recv_failed(r, Syndrome::LOCAL_PROT);
    // What the message does not reach is not looked at.
    let (mut world, mut a, mut b) = World::connected();
    let r = b.post_recv(&[b.sge(100, 8), bad]);
    a.run(&mut world, &send(&[a.sge(0, 8)]));
    b.received(r);
}

#[test]
fn receive_record_beyond_its_queue() {
    let (mut world, mut a, mut b) = World::connected();
    b.rq = b.rq.wrapping_add(17);
    let r = b.rq.wrapping_sub(17);
    b.post_recv(&[]);
    let s = a.run(&mut world, &send(&[]));
    a.send_failed(s, Syndrome::REMOTE_OP);
    b.recv_failed(r, Syndrome::LOCAL_QP_OP);
}

/// The three kinds of remote access, on 8 bytes.
fn remote_work<'a>(at: Remote, sges: &'a [Sge]) -> [SendWqe<'a>; 4] {
    let swap = Atomic::CompareSwap {
        compare: 0,
        swap: 1,
    };
    [
        write(at, sges),
        read(at, sges),
        atomic(at, Atomic::FetchAdd { add: 1 }, sges),
        atomic(at, swap, sges),
    ]
}

#[test]
fn remote_keys_and_ranges() {
    let len = EndConfig::default().data as u64;
    let refused = Syndrome::REMOTE_ACCESS;
    for op in 0..4 {
        for (rkey, at, why) in [
            (0x100_u32, 0, vendor::KEY_UNKNOWN),
            (0x1, 0, vendor::KEY_UNKNOWN),
            (0, len, vendor::KEY_RANGE),
            (0, u64::MAX - 7, vendor::KEY_RANGE),
        ] {
            let (mut world, mut a, mut b) = World::connected();
            let at = Remote {
                addr: b.addr(0).wrapping_add(at) & !7,
                rkey: b.keys.rkey ^ rkey,
            };
            let sges = [a.sge(0, 8)];
            let bad = remote_work(at, &sges)[op];
            fails_both(&mut world, &mut a, &mut b, &bad, refused, why);
        }
    }
}

#[test]
fn a_stale_key_stays_invalid() {
    let (mut world, mut a, mut b) = World::connected();
    let nic = &mut world.nics[1];
    let stale = b.keys.rkey;
    nic.dereg_mr(stale).unwrap();
    // The same bytes, registered again: in the same slot if it was the last one freed.
    for _ in 0..3 {
        let keys = nic.reg_mr(MrAttr {
            pd: b.pd,
            va: b.addr(0),
            len: 4096,
            access: all_rights(),
            mem: b.mem.clone(),
            mem_offset: b.data_at,
        });
        assert_ne!(keys.unwrap().rkey, stale);
    }
    let sges = [a.sge(0, 8)];
    let bad = write(b.remote(0), &sges);
    let refused = Syndrome::REMOTE_ACCESS;
    fails_both(
        &mut world,
        &mut a,
        &mut b,
        &bad,
        refused,
        vendor::KEY_UNKNOWN,
    );
}

#[test]
fn rights_of_region_and_queue_pair() {
    let each = [
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::REMOTE_ATOMIC,
    ];
    for (op, right) in each.into_iter().enumerate() {
        let without = Access::from_bits(remote_rights().bits() & !right.bits()).unwrap();
        for on_qp in [false, true] {
            let mut world = World::new(2);
            let mut config = EndConfig::default();
            let why = if on_qp {
                config.qp_access = without;
                vendor::QP_ACCESS
            } else {
                config.mr_access = Access::LOCAL_WRITE | without;
                vendor::KEY_ACCESS
            };
            let (mut a, mut b) = world.pair(EndConfig::default(), config);
            let sges = [a.sge(0, 8)];
            let at = b.remote(0);
            // The other rights are there.
            for (other, wqe) in remote_work(at, &sges).iter().enumerate() {
                if each[other] != right {
                    a.post(wqe);
                }
            }
            world.settle();
            assert!(a.send.drain().iter().all(|c| c.opcode() == CqeOpcode::REQ));
            let bad = remote_work(at, &sges)[op];
            fails_both(
                &mut world,
                &mut a,
                &mut b,
                &bad,
                Syndrome::REMOTE_ACCESS,
                why,
            );
        }
    }
}

#[test]
fn a_region_of_another_domain_at_the_other_end() {
    let (mut world, mut a, mut b) = World::connected();
    let other = world.end(1, EndConfig::default());
    let sges = [a.sge(0, 8)];
    let bad = write(other.remote(0), &sges);
    let refused = Syndrome::REMOTE_ACCESS;
    fails_both(
        &mut world,
        &mut a,
        &mut b,
        &bad,
        refused,
        vendor::KEY_DOMAIN,
    );
    assert_eq!(other.get64(0), 0);
}

#[test]
fn misaligned_atomics() {
    for at in [1, 4, 7] {
        let (mut world, mut a, mut b) = World::connected();
        let sges = [a.sge(0, 8)];
        let bad = atomic(b.remote(at), Atomic::FetchAdd { add: 1 }, &sges);
        let why = Syndrome::REMOTE_INVAL_REQ;
        fails_both(&mut world, &mut a, &mut b, &bad, why, vendor::MISALIGNED);
    }
}

#[test]
fn a_write_of_nothing_needs_no_key() {
    let (mut world, mut a, b) = World::connected();
    let nowhere = Remote { addr: 1, rkey: 1 };
    a.completes(&mut world, &write(nowhere, &[]));
    assert_eq!(world.state(&b), QpState::Rts);
}

#[test]
fn what_was_done_before_the_error_is_reported_as_done() {
    // Frames are late: good work is under way when the bad entry is found.
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
fn error_by_request_flushes_everything_in_order() {
    let (mut world, mut a, mut b) = World::connected();
    let receives: Vec<u16> = (0..5).map(|_| a.post_recv(&[])).collect();
    // No receive there: it stays outstanding, and so does all behind it.
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
    // What the other end sends finds nobody.
    let s = b.post(&send(&[]));
    world.outlast();
    b.send_failed(s, Syndrome::TRANSPORT_RETRY);
}
