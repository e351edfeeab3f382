//! Datagrams: destinations from entries, the header in front of payloads, and silent loss.

mod rig;

use std::sync::Arc;
use std::time::Duration;

use mlx5_prm::cqe::{L3Header, Source};
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, AvSeg, SendWqe, Sge, WqeFlags};
use rig::*;
use vmlx5::fabric::{Fabric, NodeId};
use vmlx5::*;

const REQ: CqeOpcode = CqeOpcode::REQ;
const RECEIVED: CqeOpcode = CqeOpcode::RESP_SEND;
/// The queue key that the rig gives.
const QKEY: u32 = 0x11;
/// Bytes reserved in front of a received payload.
const ROOM: u32 = 40;

/// NIC `i` has LID `i + 1`; a GID, if there is one, starts with the kind of its header.
struct Lids(Vec<NodeId>);

impl Resolve for Lids {
    fn resolve(&self, av: &AvSeg, port: u8) -> Option<Route> {
        let node = *self.0.get(usize::from(av.rlid.get()).checked_sub(1)?)?;
        let kind = match av.rgid[0] {
            1 => L3Header::Ipv6,
            2 => L3Header::Ipv4,
            _ => L3Header::Grh,
        };
        let header = av.has_grh().then_some(RouteHeader {
            kind,
            sgid: [av.sgid_index(); 16],
            dgid: av.rgid,
            flow: av.flow_label(),
            tclass: av.tclass,
            hop: av.hop_limit,
        });
        Some(Route {
            node,
            port: 1 + (av.rmac[0] & 1),
            slid: 0x1230 + u16::from(port),
            sl: av.service_level(),
            path_bits: 3,
            header,
        })
    }
}

fn ud() -> EndConfig {
    EndConfig::default().changed(|c| c.service = Service::Ud)
}

fn ready(world: &mut World, end: &End) {
    world.init(end);
    world.modify(end, Modify::UdRtr);
    world.modify(end, Modify::UdRts { sq_psn: 0xff_fffe });
}

/// One ready end on each NIC; all NICs resolve all addresses.
fn ends<const N: usize>(world: &mut World) -> [End; N] {
    resolve(world);
    let nics = world.nics.len();
    std::array::from_fn(|i| {
        let end = world.end(i % nics, ud());
        ready(world, &end);
        end
    })
}

fn resolve(world: &mut World) {
    let all = Arc::new(Lids(world.nics.iter().map(Nic::node).collect()));
    for nic in &mut world.nics {
        nic.set_resolver(Arc::clone(&all) as Arc<dyn Resolve>);
    }
}

fn world() -> (World, End, End) {
    let mut world = World::new(2);
    let [a, b] = ends(&mut world);
    (world, a, b)
}

fn to(end: &End) -> AvSeg {
    AvSeg::infiniband(QKEY, end.qpn.0, end.nic as u16 + 1, 5)
}

fn datagram<'a>(av: AvSeg, sges: &'a [Sge]) -> SendWqe<'a> {
    send(sges).changed(|s| s.av = Some(av))
}

#[test]
fn datagram_reserves_header_room_and_names_its_source() {
    let (mut world, mut a, mut b) = world();
    a.put(0, &pattern(1, 4096));
    b.put(0, &[0xee; 40]);
    for (len, imm) in [(4096, false), (100, true), (0, false)] {
        let sges = [a.sge(0, len)];
        let (opcode, word) = match imm {
            true => (SendOpcode::SEND_IMM, [1, 2, 3, 4]),
            false => (SendOpcode::SEND, [0; 4]),
        };
        let wqe = datagram(to(&b), &sges).changed(|s| (s.opcode, s.imm) = (opcode, word));
        let r = b.post_recv(&[b.sge(0, 4096 + ROOM)]);
        a.completes(&mut world, &wqe);
        let cqe = b.recv.poll().unwrap();
        let opcode = if imm {
            CqeOpcode::RESP_SEND_IMM
        } else {
            RECEIVED
        };
        assert_ok(&cqe, opcode, r);
        assert_eq!(cqe.byte_cnt.get(), len + ROOM);
        assert_eq!(cqe.imm_inval_pkey, wqe.imm);
        assert!(!cqe.solicited());
        let from = Source {
            qpn: a.qpn.0,
            slid: 0x1231,
            sl: 5,
            path_bits: 3,
            grh: false,
        };
        assert_eq!(cqe.source(), from);
        assert_eq!(b.get(40, len as usize), a.get(0, len as usize));
    }
    // Without a header, the first 40 bytes remain unchanged.
    assert_eq!(b.get(0, 40), [0xee; 40]);
    // No acknowledgement arrives, and no timeout runs.
    assert_eq!(world.nics[1].stats().frames_sent, 0);
    assert_eq!(world.deadline, None);
}

#[test]
fn header_fills_the_reserved_room() {
    let (mut world, mut a, mut b) = world();
    a.put(0, b"eight by");
    // Five bytes with immediate data have three bytes of padding and four bytes of immediate data.
    for (kind, next, header, len) in [(0, 0x1b, 0, 8), (1, 17, 8, 8), (0, 0x1b, 4, 5)] {
        b.put(0, &[0; 48]);
        b.post_recv(&[b.sge(0, 10), b.sge(10, 38)]);
        let mut av = to(&b);
        (av.tclass, av.hop_limit) = (0xab, 0xcd);
        av.grh_gid_fl = (AvSeg::GRH | 0x77 << 20 | 0x54321).into();
        av.rgid = [kind; 16];
        let sges = [a.sge(0, len)];
        let mut wqe = datagram(av, &sges);
        if len == 5 {
            wqe.opcode = SendOpcode::SEND_IMM;
        }
        a.run(&mut world, &wqe);
        let cqe = b.recv.poll().unwrap();
        assert_eq!((cqe.byte_cnt.get(), cqe.source().grh), (40 + len, true));
        let got = b.get(0, 48);
        // Version, class, flow; the payload length: 12 + 8 + 4 bytes around the payload.
        assert_eq!(got[..4], [0x6a, 0xb5, 0x43, 0x21]);
        assert_eq!(got[4..8], [0, 32 + header, next, 0xcd]);
        assert_eq!(
            (&got[8..24], &got[24..40]),
            (&[0x77; 16][..], &[kind; 16][..])
        );
        let len = len as usize;
        assert_eq!(got[40..40 + len], b"eight by"[..len]);
    }
    // An IPv4 header fills the last 20 bytes.
    b.post_recv(&[b.sge(0, 48)]);
    let mut av = to(&b);
    av.hop_limit = 64;
    av.grh_gid_fl = (AvSeg::GRH | 9 << 20).into();
    av.rgid = [2; 16];
    a.run(&mut world, &datagram(av, &[a.sge(0, 8)]));
    let got = b.get(0, 48);
    assert_eq!(got[..20], [0; 20]);
    assert_eq!(got[20..30], [0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17]);
    let words = got[20..40].chunks(2);
    let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum");
    assert_eq!(got[32..40], [9, 9, 9, 9, 2, 2, 2, 2]);
    assert_eq!(got[40..], *b"eight by");
}

#[test]
fn one_queue_pair_exchanges_datagrams_with_many() {
    let mut world = World::new(3);
    let all: [End; 50] = ends(&mut world);
    let [mut hub, mut others @ ..] = all;
    for round in 0..3_u8 {
        for (i, end) in others.iter_mut().enumerate() {
            let word = u64::from(round) << 32 | i as u64;
            hub.put64(0, word);
            end.post_recv(&[end.sge(0, 48)]);
            hub.run(&mut world, &datagram(to(end), &[hub.sge(0, 8)]));
            hub.sent(hub.sq - 2);
            assert_eq!((end.recv.drain().len(), end.get64(40)), (1, word));
            // A datagram in the other direction.
            end.put64(100, !word);
            hub.post_recv(&[hub.sge(8, 48)]);
            end.run(&mut world, &datagram(to(&hub), &[end.sge(100, 8)]));
            let heard = hub.recv.poll().unwrap();
            assert_eq!((heard.source().qpn, hub.get64(48)), (end.qpn.0, !word));
        }
    }
    // A datagram to the same queue pair.
    let r = hub.post_recv(&[hub.sge(200, 48)]);
    hub.put64(0, 77);
    hub.run(&mut world, &datagram(to(&hub), &[hub.sge(0, 8)]));
    hub.received(r);
    assert_eq!(hub.get64(240), 77);
}

#[test]
fn wrong_queue_key_drops_the_datagram() {
    let (mut world, mut a, mut b) = world();
    b.post_recv(&[b.sge(0, 48)]);
    let mut with = |world: &mut World, qkey: u32| {
        let av = to(&b).changed(|a| a.qkey = qkey.into());
        a.run(world, &datagram(av, &[a.sge(0, 8)]));
        assert_eq!(a.send.poll().unwrap().opcode(), REQ);
        b.recv.drain().len()
    };
    assert_eq!(with(&mut world, QKEY ^ 1), 0);
    assert_eq!(world.nics[1].stats().frames_dropped, 1);
    assert_eq!(with(&mut world, 0), 0);
    // With the highest bit set, the NIC uses the sender's own queue key.
    assert_eq!(with(&mut world, 0xffff_ffff), 1);
}

#[test]
fn queue_key_changes_in_rts() {
    let (mut world, mut a, mut b) = world();
    let qkey = |qkey| Modify::Attr(AttrChange::default().changed(|a| a.qkey = Some(qkey)));
    b.post_recv(&[b.sge(0, 48)]);
    world.modify(&b, qkey(0x99));
    a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
    assert_eq!(b.recv.poll(), None);
    world.modify(&a, qkey(0x99));
    let own = to(&b).changed(|a| a.qkey = (1 << 31).into());
    a.run(&mut world, &datagram(own, &[a.sge(0, 8)]));
    assert!(b.recv.poll().is_some());
}

#[test]
fn datagrams_do_not_cross_partitions() {
    // Two limited members, other partitions, and members that may communicate.
    for (x, y, heard) in [
        (0xffff, 0xffff, true),
        (0x7fff, 0xffff, true),
        (0x8001, 0x0001, true),
        (0x7fff, 0x7fff, false),
        (0xffff, 0x8001, false),
    ] {
        let mut world = World::built(2, |config| {
            config.pkey = if config.name == "nic0" { x } else { y };
        });
        let [mut a, mut b] = ends(&mut world);
        b.post_recv(&[b.sge(0, 48)]);
        a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
        a.sent(0);
        assert_eq!(b.recv.poll().is_some(), heard, "{x:#x} {y:#x}");
    }
}

#[test]
fn datagram_without_receive_or_receiver_is_dropped() {
    let (mut world, mut a, mut b) = world();
    let lost = [
        a.post(&datagram(to(&b), &[a.sge(0, 8)])),
        a.post(&datagram(AvSeg::infiniband(QKEY, 77, 2, 0), &[a.sge(0, 8)])),
        a.post(&datagram(AvSeg::infiniband(QKEY, 77, 9, 0), &[a.sge(0, 8)])),
    ];
    world.settle();
    for index in lost {
        a.sent(index);
    }
    // Only the next datagram arrives.
    let r = b.post_recv(&[b.sge(0, 48)]);
    world.settle();
    assert_eq!(b.recv.poll(), None);
    a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
    b.received(r);
    // Before RTR the queue pair receives nothing.
    let mut late = world.end(1, ud());
    world.init(&late);
    late.post_recv(&[late.sge(0, 48)]);
    a.run(&mut world, &datagram(to(&late), &[a.sge(0, 8)]));
    assert_eq!(late.recv.poll(), None);
    world.modify(&late, Modify::UdRtr);
    a.run(&mut world, &datagram(to(&late), &[a.sge(0, 8)]));
    assert!(late.recv.poll().is_some());
    assert_eq!(world.nics[0].stats().frames_dropped, 1, "unknown address");
    assert_eq!(world.nics[1].stats().frames_dropped, 3);
}

#[test]
fn datagrams_without_a_resolver_are_dropped() {
    let mut world = World::new(2);
    let [mut a, mut b] = [0, 1].map(|nic| world.end(nic, ud()));
    for end in [&a, &b] {
        ready(&mut world, end);
    }
    b.post_recv(&[b.sge(0, 48)]);
    a.completes(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
    assert_eq!(b.recv.poll(), None);
}

#[test]
fn datagram_send_error_stops_only_sends() {
    let (mut world, mut a, mut b) = world();
    let there = b.remote(0);
    let (length, operation) = (Syndrome::LOCAL_LENGTH, Syndrome::LOCAL_QP_OP);
    let (word, long) = ([a.sge(0, 8)], [a.sge(0, 4097)]);
    let foreign = [a.sge(0, 8).changed(|s| s.lkey = a.keys.lkey ^ 1)];
    let add = Atomic::FetchAdd { add: 1 };
    for (wqe, why, vendor) in [
        (datagram(to(&b), &long), length, vendor::LENGTH),
        (
            datagram(to(&b), &foreign),
            Syndrome::LOCAL_PROT,
            vendor::KEY_UNKNOWN,
        ),
        (write(there, &word), operation, vendor::WQE_OPCODE),
        (read(there, &word), operation, vendor::WQE_OPCODE),
        (atomic(there, add, &word), operation, vendor::WQE_OPCODE),
        (
            send(&word).changed(|s| s.opcode = SendOpcode::SEND_INV),
            operation,
            vendor::WQE_OPCODE,
        ),
        // The entry has other bytes instead of an address vector.
        (send(&word), operation, vendor::WQE_FORMAT),
    ] {
        let bad = a.post(&wqe);
        let after = a.run(&mut world, &datagram(to(&b), &word));
        assert_eq!(a.send_failed(bad, why), vendor);
        a.send_failed(after, Syndrome::WR_FLUSH);
        assert_eq!(world.state(&a), QpState::Sqe);
        // The queue pair still receives, and a transition to RTS enables sends again.
        let r = a.post_recv(&[a.sge(100, 48)]);
        b.run(&mut world, &datagram(to(&a), &[b.sge(0, 8)]));
        a.received(r);
        world.modify(&a, Modify::Resume);
        let r = b.post_recv(&[b.sge(100, 48)]);
        a.completes(&mut world, &datagram(to(&b), &word));
        b.received(r);
    }
}

#[test]
fn receive_without_header_room_is_the_receivers_error() {
    let (mut world, mut a, mut b) = world();
    let r = b.post_recv(&[b.sge(0, 47)]);
    let next = b.post_recv(&[b.sge(0, 48)]);
    a.completes(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
    let error = CqeOpcode::RESP_ERR;
    assert_err(&b.recv.poll().unwrap(), error, r, Syndrome::LOCAL_LENGTH);
    assert_err(&b.recv.poll().unwrap(), error, next, Syndrome::WR_FLUSH);
    assert_eq!(world.state(&b), QpState::Err);
}

#[test]
fn solicited_bit_crosses_the_wire() {
    let (mut world, mut a, mut b) = world();
    b.post_recv(&[b.sge(0, 48)]);
    let flags = WqeFlags::default().changed(|w| w.solicited = true);
    a.run(
        &mut world,
        &datagram(to(&b), &[a.sge(0, 8)]).changed(|s| s.flags = flags),
    );
    assert!(b.recv.poll().unwrap().solicited());
    assert_eq!(a.send.poll(), None, "unsignaled");
    assert_eq!(world.nics[0].query_qp(a.qpn).unwrap().outstanding, 0);
}

#[test]
fn unreliable_wire_loses_duplicates_and_reorders_datagrams() {
    let (mut lost, mut twice, mut overtaken) = (0, 0, 0);
    for seed in 0..40 {
        let (mut world, mut a, mut b) = world();
        world.nics[0].set_faults(bad_wire(seed, [0.05, 0.05, 0.1]));
        let mut times = [0; 12];
        let mut last = 0;
        for i in 0..16 {
            b.post_recv(&[b.sge(48 * i, 48)]);
        }
        for i in 0..times.len() as u64 {
            a.put64(8 * i, i);
            a.completes(&mut world, &datagram(to(&b), &[a.sge(8 * i, 8)]));
        }
        world.pass(Duration::from_millis(1));
        for (i, cqe) in b.recv.drain().iter().enumerate() {
            assert_eq!((cqe.opcode(), cqe.byte_cnt.get()), (RECEIVED, 48));
            let number = b.get64(48 * i as u64 + 40) as usize;
            times[number] += 1;
            overtaken += u32::from(number < last);
            last = number;
        }
        lost += times.iter().filter(|&&n| n == 0).count();
        twice += times.iter().filter(|&&n| n == 2).count();
        assert!(times.iter().all(|&n| n <= 2), "seed {seed}: {times:?}");
    }
    // Out of 480.
    assert!((10..45).contains(&lost), "{lost}");
    assert!((10..45).contains(&twice), "{twice}");
    assert!((5..120).contains(&overtaken), "{overtaken}");
}

#[test]
fn stalled_receiver_does_not_block_other_destinations() {
    let mut world = World::new(3);
    let [mut a, b, mut c] = ends(&mut world);
    let node = world.silence(&b);
    // As many datagrams as the link holds, and one that waits for room.
    let mut sent = 0;
    while world.deadline.is_none() {
        a.run(&mut world, &datagram(to(&b), &[a.sge(0, 4096)]));
        sent += a.send.drain().len();
        assert!(sent < 10_000);
    }
    assert!(sent > 16);
    let r = c.post_recv(&[c.sge(0, 48)]);
    a.post(&datagram(to(&b), &[a.sge(0, 4096)]));
    a.post(&datagram(to(&c), &[a.sge(0, 8)]));
    // 4.096 us times 2^18 are 1.0737 s.
    world.pass(Duration::from_millis(1073));
    assert_eq!((a.send.poll(), c.recv.poll()), (None, None));
    world.pass(Duration::from_millis(1));
    assert_eq!(a.send.drain().len(), 3);
    c.received(r);
    assert_eq!(world.nics[0].stats().frames_dropped, 2);
    assert_eq!(world.deadline, None);
    // When the receiver resumes, it gets datagrams again.
    world.hub.silence(node, false);
    world.settle();
    let mut b = b;
    let r = b.post_recv(&[b.sge(0, 48)]);
    a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
    b.received(r);
}

#[test]
fn port_down_stops_datagrams_both_ways() {
    for down in [0, 1] {
        let (mut world, mut a, mut b) = world();
        world.nics[down].set_port(1, false).unwrap();
        b.post_recv(&[b.sge(0, 48)]);
        a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
        assert_eq!(a.send.poll().unwrap().opcode(), REQ);
        assert_eq!(b.recv.poll(), None);
        world.nics[down].set_port(1, true).unwrap();
        a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
        assert!(b.recv.poll().is_some());
    }
}

#[test]
fn queue_pair_receives_datagrams_of_its_port() {
    let mut world = World::built(2, |config| config.ports = 2);
    resolve(&mut world);
    let [mut a, mut b] = [0, 1].map(|nic| world.end(nic, ud()));
    ready(&mut world, &a);
    let access = Access::NONE;
    let (qkey, port) = (QKEY, 2);
    world.modify(&b, Modify::Init { access, qkey, port });
    world.modify(&b, Modify::UdRtr);
    b.post_recv(&[b.sge(0, 48)]);
    a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
    assert_eq!(b.recv.poll(), None);
    let mut av = to(&b);
    av.rmac[0] = 1;
    a.run(&mut world, &datagram(av, &[a.sge(0, 8)]));
    assert!(b.recv.poll().is_some());
}

#[test]
fn connection_transitions_are_refused_for_datagrams() {
    let mut world = World::new(1);
    let [end, rc] = [ud(), EndConfig::default()].map(|config| world.end(0, config));
    let refused = |world: &mut World, end: &End, change| {
        let why = world.nics[0].modify_qp(end.qpn, change);
        assert!(matches!(why, Err(NicError::Transition { .. })), "{why:?}");
    };
    let path = Path::to(world.nics[0].node(), rc.qpn);
    world.init(&end);
    world.init(&rc);
    refused(&mut world, &end, rtr(path, 0, 1, 12));
    refused(&mut world, &rc, Modify::UdRtr);
    world.modify(&end, Modify::UdRtr);
    world.modify(&rc, rtr(path, 0, 1, 12));
    refused(&mut world, &end, rts(0, 1));
    refused(&mut world, &rc, Modify::UdRts { sq_psn: 0 });
    let wide = Modify::UdRts { sq_psn: 1 << 24 };
    let why = world.nics[0].modify_qp(end.qpn, wide);
    assert!(matches!(why, Err(NicError::Limit { .. })), "{why:?}");
    world.modify(&end, Modify::UdRts { sq_psn: 0 });
    // The drain finishes immediately, and the queue pair resumes.
    world.modify(&end, Modify::Sqd);
    world.settle();
    assert!(matches!(
        world.nics[0].next_event(),
        Some(Event::SqDrained { .. })
    ));
    world.modify(&end, Modify::Resume);
    assert_eq!(world.state(&end), QpState::Rts);
}

#[test]
fn random_frames_do_not_disturb_other_queue_pairs() {
    for seed in 0..64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(2);
        let [mut a, mut b] = ends(&mut world);
        // A port of the hub without a NIC.
        let mut port = world.hub.port();
        let nic = world.nics[1].node();
        for _ in 0..100 {
            if rng.bool() {
                b.post_recv(&[b.sge(0, rng.u32(1..5000))]);
            }
            let pick = |rng: &mut fastrand::Rng, of: &[u32]| of[rng.usize(..of.len())];
            let len = pick(&mut rng, &[0, 8, 39, 40, 48, 4096, 4136, 4137, 8192]);
            // From low to high: LID, partition, service level, path bits, port.
            let label = [1 << 48 | 0xffff << 16, 2 << 48 | 0xffff << 16, rng.u64(..)];
            let header = FrameHeader {
                len: len.into(),
                kind: pick(&mut rng, &[1, 1, 1, 2, 3, 16]) as u8,
                flags: rng.u8(..),
                dst_qpn: b.qpn.0.into(),
                src_qpn: 3.into(),
                rkey: pick(&mut rng, &[QKEY, QKEY, 1]).into(),
                total: pick(&mut rng, &[len, len, 2 * len]).into(),
                compare: label[rng.usize(..3)].into(),
                count: (len.div_ceil(4096).max(1) as u16).into(),
                mtu_log: 12,
                service: 2,
                ..FrameHeader::default()
            };
            // The port connects again after its link was closed.
            let to = port.connect(nic).unwrap();
            let _ = port.send(to, &header, &mut |room| {
                room.fill(7);
                true
            });
            port.flush();
            world.settle();
            b.recv.drain();
            if world.state(&b) == QpState::Err {
                world.reset(&mut b);
                ready(&mut world, &b);
            }
        }
        // Room for the remains of receives that are too small.
        world.reset(&mut b);
        ready(&mut world, &b);
        let r = b.post_recv(&[b.sge(0, 48)]);
        a.run(&mut world, &datagram(to(&b), &[a.sge(0, 8)]));
        b.received(r);
        assert_eq!(b.recv.poll(), None, "seed {seed}");
    }
}

#[test]
fn connections_ignore_datagrams() {
    let mut world = World::new(2);
    let [mut a, _] = ends(&mut world);
    let rc = EndConfig::default();
    let (_c, mut d) = world.pair(rc.clone(), rc);
    d.post_recv(&[d.sge(0, 48)]);
    a.run(&mut world, &datagram(to(&d), &[a.sge(0, 8)]));
    a.sent(0);
    assert_eq!(d.recv.poll(), None);
    assert_eq!(world.state(&d), QpState::Rts);
}
