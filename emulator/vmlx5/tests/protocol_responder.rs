//! The responder's handling of requests and of frames from unknown sources, frame by frame: a port
//! of the hub without a NIC acts as the other end.

mod fake;
mod rig;

use fake::*;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::fabric::{Fabric, LinkError, LinkState};
use vmlx5::*;

#[test]
fn duplicate_messages_are_received_once() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    fake.end.post_recv(&[fake.end.sge(5000, 5000)]);
    fake.answers(Kind::Send, 1, |h| part(h, false, 1), &[]);
    fake.answers(Kind::Send, 1, |h| part(h, false, 2), &[]);
    fake.answers(Kind::Send, 2, |h| part(h, true, 3), &[(Kind::Ack, 2)]);
    // Duplicates, in the same pieces and as one frame: acknowledged at the end, without another
    // effect.
    fake.answers(Kind::Send, 1, |h| part(h, false, 7), &[]);
    fake.answers(
        Kind::Send,
        1,
        |h| {
            part(h, false, 7);
            h.flags |= ACKREQ;
        },
        &[(Kind::Ack, 2)],
    );
    fake.answers(Kind::Send, 2, |h| part(h, true, 7), &[(Kind::Ack, 2)]);
    fake.answers(Kind::Send, 1, |h| whole(h, 7), &[(Kind::Ack, 2)]);
    assert_eq!(fake.end.get(4095, 10), [1, 3, 3, 3, 3, 3, 3, 3, 3, 0]);
    fake.end.received(r);
    assert_eq!(fake.end.recv.poll(), None);
    assert_eq!(
        fake.world.nics[0].query_qp(fake.end.qpn).unwrap().rq_next,
        1
    );
}

#[test]
fn new_packets_of_a_duplicate_are_accepted() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    fake.deliver(Kind::Send, 1, |h| part(h, false, 1));
    fake.answers(Kind::Send, 1, |h| whole(h, 2), &[(Kind::Ack, 2)]);
    assert_eq!(fake.end.get(4094, 4), [1, 1, 2, 2]);
    fake.end.received(r);
}

#[test]
fn gap_is_reported_by_one_nak() {
    let mut fake = Fake::new();
    let r = fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    fake.deliver(Kind::Send, 1, |h| part(h, false, 1));
    // The second packet is missing: one NAK reports it, and later packets get no further NAK.
    let frames = fake.answers(
        Kind::Write,
        3,
        |h| h.flags = FIRST | LAST,
        &[(Kind::Nak, 2)],
    );
    assert_eq!(frames[0].0.code, nak::PSN);
    fake.answers(Kind::Write, 4, |h| h.flags = FIRST | LAST, &[]);
    fake.answers(Kind::Read, 5, |_| {}, &[]);
    fake.answers(Kind::Send, 2, |h| part(h, true, 2), &[(Kind::Ack, 2)]);
    fake.end.received(r);
    fake.answers(
        Kind::Write,
        4,
        |h| h.flags = FIRST | LAST,
        &[(Kind::Nak, 3)],
    );
}

#[test]
fn frames_that_do_not_continue_the_message_are_refused() {
    type Spoil = fn(&mut FrameHeader);
    // Another kind, another length, another offset, the start of another message; other packets.
    let spoils: [(Kind, Spoil); 6] = [
        (Kind::Write, |h| part(h, true, 1)),
        (Kind::Send, |h| {
            (h.len, h.total, h.offset, h.flags) = (4.into(), 4100.into(), 4096.into(), LAST);
        }),
        (Kind::Send, |h| {
            (h.len, h.total, h.offset, h.flags) = (8.into(), 8200.into(), 8192.into(), LAST);
        }),
        (Kind::Send, |h| part(h, false, 1)),
        (Kind::Read, |h| h.total = 0.into()),
        (Kind::Send, |h| {
            part(h, true, 1);
            h.mtu_log = 8;
        }),
    ];
    for (kind, spoil) in spoils {
        let mut fake = Fake::new();
        fake.end.post_recv(&[fake.end.sge(0, 9000)]);
        fake.deliver(Kind::Send, 1, |h| part(h, false, 1));
        let frames = fake.answers(kind, 2, spoil, &[(Kind::Nak, 2)]);
        assert_eq!(frames[0].0.code, nak::INVALID);
        assert_eq!(fake.world.state(&fake.end), QpState::Err);
        // From now on the queue pair does not answer.
        fake.answers(Kind::Read, 2, |_| {}, &[]);
    }
}

#[test]
fn message_without_receive_is_dropped_to_its_end() {
    let mut fake = Fake::new();
    for _ in 0..2 {
        let frames = fake.answers(Kind::Send, 1, |h| part(h, false, 1), &[(Kind::Nak, 1)]);
        assert_eq!(frames[0].0.code, nak::RNR | 12);
        fake.answers(Kind::Send, 2, |h| part(h, true, 1), &[]);
        fake.answers(Kind::Write, 3, |h| part(h, false, 1), &[]);
    }
    fake.end.post_recv(&[fake.end.sge(0, 5000)]);
    assert_eq!(kinds(&fake.listen()), [(Kind::Hint, 1)]);
    fake.deliver(Kind::Send, 1, |h| part(h, false, 4));
    fake.answers(Kind::Send, 2, |h| part(h, true, 5), &[(Kind::Ack, 2)]);
    assert_eq!(fake.end.get(4095, 3), [4, 5, 5]);
}

#[test]
fn write_with_immediate_needs_its_receive_at_the_end() {
    let mut fake = Fake::new();
    let (va, rkey) = (fake.end.addr(0), fake.end.keys.rkey);
    let imm = |second, value| {
        move |h: &mut FrameHeader| {
            part(h, second, value);
            (h.va, h.rkey) = (va.into(), rkey.into());
            h.flags |= IMM;
        }
    };
    fake.answers(Kind::Write, 1, imm(false, 1), &[]);
    let frames = fake.answers(Kind::Write, 2, imm(true, 2), &[(Kind::Nak, 2)]);
    assert_eq!(frames[0].0.code, nak::RNR | 12);
    assert_eq!(fake.end.get(4095, 2), [1, 0]);
    let r = fake.end.post_recv(&[]);
    assert_eq!(kinds(&fake.listen()), [(Kind::Hint, 2)]);
    fake.answers(Kind::Write, 2, imm(true, 3), &[(Kind::Ack, 2)]);
    assert_eq!(fake.end.get(4095, 2), [1, 3]);
    assert_ok(&fake.end.recv.poll().unwrap(), CqeOpcode::RESP_WR_IMM, r);
}

#[test]
fn repeated_reads_are_executed_again_and_atomics_once() {
    let mut fake = Fake::new();
    let (va, rkey) = (fake.end.addr(0), fake.end.keys.rkey);
    let at = |total: u32| {
        move |h: &mut FrameHeader| {
            (h.va, h.rkey, h.total, h.operand) = (va.into(), rkey.into(), total.into(), 5.into());
        }
    };
    fake.end.put64(0, 70);
    let found = |frames: Vec<(FrameHeader, Vec<u8>)>| {
        assert_eq!(frames.len(), 1);
        assert_eq!(Kind::from_u8(frames[0].0.kind), Some(Kind::AtomicData));
        (frames[0].0.psn.get(), frames[0].0.operand.get())
    };
    for psn in 1..4 {
        let before = 65 + 5 * u64::from(psn);
        assert_eq!(
            found(fake.deliver(Kind::FetchAdd, psn, at(8))),
            (psn, before)
        );
    }
    // Executed once for any number of duplicates. The responder keeps two results, since the
    // requester can repeat no more.
    for psn in [3, 2, 3] {
        let before = 65 + 5 * u64::from(psn);
        assert_eq!(
            found(fake.deliver(Kind::FetchAdd, psn, at(8))),
            (psn, before)
        );
    }
    fake.answers(Kind::FetchAdd, 1, at(8), &[]);
    assert_eq!(fake.end.get64(0), 85);
    // A duplicate READ is executed again, and may request only the end of the bytes.
    fake.answers(Kind::Read, 4, at(8200), &[(Kind::ReadData, 4)]);
    fake.end.put64(0, 1);
    let frames = fake.answers(Kind::Read, 5, at(4104), &[(Kind::ReadData, 5)]);
    assert_eq!((frames[0].0.count.get(), frames[0].1[0]), (2, 1));
    // A READ that exceeds the original range is no duplicate.
    fake.answers(Kind::Read, 6, at(8200), &[]);
    fake.answers(Kind::Read, 7, at(8), &[(Kind::ReadData, 7)]);
    // Its key is invalid by now.
    fake.world.nics[0].dereg_mr(rkey).unwrap();
    let frames = fake.deliver(Kind::Read, 4, at(8200));
    assert_eq!(frames[0].0.code, nak::ACCESS);
}

#[test]
fn frames_of_unknown_queue_pairs_are_dropped() {
    let mut fake = Fake::new();
    let before = fake.world.nics[0].stats().frames_dropped;
    fake.answers(Kind::Read, 1, |h| h.src_qpn = 99.into(), &[]);
    fake.answers(Kind::FetchAdd, 4, |h| h.dst_qpn = 0x42.into(), &[]);
    fake.answers(Kind::Ack, 1, |h| h.dst_qpn = 0x42.into(), &[]);
    assert_eq!(fake.world.nics[0].stats().frames_dropped, before + 3);
}

#[test]
fn unconnected_queue_pair_sends_rnr_nak_or_nothing_if_strict() {
    for strict in [false, true] {
        let mut world = World::new(0);
        let config = NicConfig::default().changed(|n| n.strict = strict);
        world
            .nics
            .push(Nic::new(config, Box::new(world.hub.port())));
        let mut port = world.hub.port();
        let end = world.end(0, EndConfig::default());
        let nic = port.connect(world.nics[0].node()).unwrap();
        let mut fake = Fake {
            world,
            end,
            port,
            nic,
        };
        // One NAK per message, not one per frame.
        let frames = [
            fake.deliver(Kind::Send, 1, |h| part(h, false, 0)),
            fake.deliver(Kind::Send, 2, |h| part(h, true, 0)),
        ];
        if strict {
            assert!(frames.iter().all(Vec::is_empty));
            continue;
        }
        assert_eq!(kinds(&frames[0]), [(Kind::Nak, 1)]);
        let h = frames[0][0].0;
        assert_eq!((h.code & nak::RNR, h.vendor), (nak::RNR, vendor::NOT_READY));
        assert!(frames[1].is_empty());
    }
}

#[test]
fn invalid_frame_closes_the_link() {
    type Spoil = fn(&mut FrameHeader);
    let spoils: [Spoil; 16] = [
        |h| h.kind = 0,
        |h| h.kind = 200,
        |h| h.dst_qpn = (1 << 24).into(),
        |h| h.psn = u32::MAX.into(),
        |h| h.total = u32::MAX.into(),
        // No FIRST at offset 0; LAST before the end of the message; no payload of a nonempty
        // message.
        |h| (h.len, h.total, h.flags) = (4.into(), 4.into(), LAST),
        |h| (h.len, h.total, h.flags) = (4.into(), 8.into(), FIRST | LAST),
        |h| (h.total, h.flags) = (8.into(), FIRST),
        // Packets that are not full, a start inside a packet, too few packets, too many, or none.
        |h| (h.len, h.total, h.flags) = (8.into(), 16.into(), FIRST),
        |h| (h.len, h.offset, h.total, h.flags) = (8.into(), 8.into(), 16.into(), LAST),
        |h| {
            whole(h, 0);
            h.count = 1.into();
        },
        |h| {
            data(8, 0)(h);
            h.count = 2.into();
        },
        |h| h.count = 0.into(),
        |h| h.mtu_log = 7,
        |h| h.service = 3,
        |h| (h.kind, h.code) = (Kind::Nak as u8, 4),
    ];
    for (i, spoil) in spoils.into_iter().enumerate() {
        let mut fake = Fake::new();
        let s = fake.post_write();
        fake.listen();
        fake.deliver(Kind::Send, 1, |h| {
            h.flags = FIRST | LAST;
            spoil(h);
        });
        let state = fake.world.nics[0].link_state(fake.end.qpn).unwrap();
        assert!(
            matches!(state, Some(LinkState::Lost(LinkError::Garbage(_)))),
            "{i} {state:?}"
        );
        assert_eq!(
            fake.port.state(fake.nic),
            LinkState::Lost(LinkError::Closed)
        );
        fake.world.outlast();
        fake.failed(s, Syndrome::TRANSPORT_RETRY);
    }
}

#[test]
fn one_acknowledgement_covers_many_messages() {
    let mut fake = Fake::new();
    for psn in 1..20 {
        fake.put(Kind::Write, psn, |h| h.flags = FIRST | LAST);
    }
    fake.port.flush();
    assert_eq!(kinds(&fake.listen()), [(Kind::Ack, 19)]);
}

#[test]
fn link_loss_does_not_affect_a_later_connection() {
    let mut world = World::new(1);
    let end = world.end(0, EndConfig::default());
    let to = rtr(Path::to(vmlx5::fabric::NodeId(2), Qpn(FAKE)), 1, 1, 12);
    // The node does not exist at first; then it does.
    world.init(&end);
    world.modify(&end, to);
    let mut port = world.hub.port();
    world.modify(&end, Modify::Reset);
    world.init(&end);
    world.modify(&end, to);
    let nic = port.connect(world.nics[0].node()).unwrap();
    let mut fake = Fake {
        world,
        end,
        port,
        nic,
    };
    let frames = fake.listen();
    assert_eq!(kinds(&frames).last(), Some(&(Kind::Hint, 1)));
}
