//! Every syndrome of the format, from its real cause: what the requester's entry says, what the
//! responder's, where both queue pairs end, and which events tell of it. `errors.rs` has the
//! many ways to each of them; here is each of them once, on both sides.

mod rig;

use std::sync::Arc;

use gds_step::Time;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, SendWqe, Sge, WqeFlags};
use rig::*;
use vmlx5::fabric::{Budget, Fabric};
use vmlx5::*;

/// What comes of a fault.
struct Row {
    /// The name of the syndrome that the requester is told, or that the responder is told if
    /// nobody else is.
    syndrome: Syndrome,
    cause: &'static str,
    /// How two connected ends come to it: `a` posts.
    raise: Raise,
}

enum Raise {
    Here(fn() -> Seen),
    /// It cannot be raised, because.
    Never(&'static str),
}

/// What was seen of a fault.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// The requester's entry: of the one that failed.
    requester: Option<Syndrome>,
    /// The responder's, of the receive that was to blame.
    responder: Option<Syndrome>,
    states: Option<(QpState, QpState)>,
    /// Events of the requester's NIC and of the responder's.
    events: (Vec<Event>, Vec<Event>),
}

const EVERY: [Syndrome; 13] = [
    Syndrome::LOCAL_LENGTH,
    Syndrome::LOCAL_QP_OP,
    Syndrome::LOCAL_PROT,
    Syndrome::WR_FLUSH,
    Syndrome::MW_BIND,
    Syndrome::BAD_RESP,
    Syndrome::LOCAL_ACCESS,
    Syndrome::REMOTE_INVAL_REQ,
    Syndrome::REMOTE_ACCESS,
    Syndrome::REMOTE_OP,
    Syndrome::TRANSPORT_RETRY,
    Syndrome::RNR_RETRY,
    Syndrome::REMOTE_ABORTED,
];

/// Posts `bad`, unsignaled, between others; what comes of it. Everything outstanding is flushed
/// on both sides, in order, when a side is in error.
fn see(world: &mut World, a: &mut End, b: &mut End, bad: &SendWqe<'_>) -> Seen {
    let good = a.post(&nop());
    let quiet = WqeFlags::default();
    let index = a.prepare(&SendWqe {
        flags: quiet,
        ..*bad
    });
    see_prepared(world, a, b, good, index)
}

fn see_prepared(world: &mut World, a: &mut End, b: &mut End, good: u16, bad: u16) -> Seen {
    let after = [
        a.prepare(&nop()),
        a.prepare(&nop().changed(|s| s.flags = WqeFlags::default())),
    ];
    a.ring();
    world.outlast();
    let mut seen = Seen::default();
    a.sent(good);
    let entry = a.send.poll().unwrap();
    if entry.opcode().is_error() {
        let why = entry.as_error().reason();
        assert_err(&entry, CqeOpcode::REQ_ERR, bad, why);
        seen.requester = Some(why);
        for index in after {
            a.send_failed(index, Syndrome::WR_FLUSH);
        }
    } else {
        assert_ok(&entry, CqeOpcode::REQ, after[0]);
    }
    assert_eq!(a.send.poll(), None);
    for (i, entry) in b.recv.drain().iter().enumerate() {
        let why = entry.as_error().reason();
        assert_err(entry, CqeOpcode::RESP_ERR, i as u16, why);
        match i {
            0 if why != Syndrome::WR_FLUSH => seen.responder = Some(why),
            _ => assert_eq!(why, Syndrome::WR_FLUSH),
        }
    }
    seen.states = Some((world.state(a), world.state(b)));
    if world.state(b) == QpState::Err {
        assert_eq!(b.recv.next, u32::from(b.rq), "receives are left over");
    }
    for end in [&*a, &*b] {
        let info = world.nics[end.nic].query_qp(end.qpn).unwrap();
        assert_eq!((info.sq_done, info.outstanding), (end.sq, 0));
    }
    seen.events = (world.events(0), world.events(1));
    // The first packet of all is no fault.
    let news = |e: &Event| !matches!(e, Event::CommEst { .. });
    seen.events.0.retain(news);
    seen.events.1.retain(news);
    seen
}

const BOTH: Option<(QpState, QpState)> = Some((QpState::Err, QpState::Err));
const ALONE: Option<(QpState, QpState)> = Some((QpState::Err, QpState::Rts));

/// What is the requester's own fault: the other end is not asked.
fn own_fault(why: Syndrome) -> Seen {
    Seen {
        requester: Some(why),
        states: ALONE,
        ..Seen::default()
    }
}

/// Both ends have an entry, and both are in error.
fn both_fail(requester: Syndrome, responder: Syndrome) -> Seen {
    Seen {
        requester: Some(requester),
        responder: Some(responder),
        states: BOTH,
        ..Seen::default()
    }
}

#[test]
fn every_syndrome_has_a_row() {
    let rows = rows();
    for syndrome in EVERY {
        assert!(syndrome.name().is_some());
        assert!(
            rows.iter().any(|row| row.syndrome == syndrome),
            "no row for {syndrome}"
        );
    }
    // The format names no others.
    let named = (0..=u8::MAX).filter(|&n| Syndrome(n).name().is_some());
    assert_eq!(named.count(), EVERY.len());
    for row in rows {
        match row.raise {
            Raise::Here(raise) => {
                let seen = raise();
                let told = [seen.requester, seen.responder];
                let cause = row.cause;
                assert!(told.contains(&Some(row.syndrome)), "{cause}: {seen:?}");
            }
            Raise::Never(why) => assert!(!why.is_empty(), "{}", row.cause),
        }
    }
}

fn rows() -> Vec<Row> {
    let row = |syndrome, cause, raise: fn() -> Seen| Row {
        syndrome,
        cause,
        raise: Raise::Here(raise),
    };
    let never = |syndrome, cause, why| Row {
        syndrome,
        cause,
        raise: Raise::Never(why),
    };
    vec![
        row(
            Syndrome::LOCAL_LENGTH,
            "an atomic into 16 bytes",
            an_atomic_of_sixteen_bytes,
        ),
        row(
            Syndrome::LOCAL_LENGTH,
            "a receive that is too short",
            a_short_receive,
        ),
        row(
            Syndrome::LOCAL_QP_OP,
            "an entry of another index",
            an_entry_of_another_index,
        ),
        row(
            Syndrome::LOCAL_QP_OP,
            "a receive record beyond its queue",
            a_record_beyond,
        ),
        row(
            Syndrome::LOCAL_PROT,
            "a key that is none",
            a_key_that_is_none,
        ),
        row(
            Syndrome::LOCAL_PROT,
            "a receive with a key that is none",
            a_receive_without_key,
        ),
        row(
            Syndrome::WR_FLUSH,
            "a queue pair taken to ERR",
            taken_to_err,
        ),
        never(
            Syndrome::MW_BIND,
            "binding a memory window",
            "there are no memory windows: such an entry is LOCAL_QP_OP, as an operation that the NIC does not have",
        ),
        row(
            Syndrome::BAD_RESP,
            "an answer that fits no request",
            an_answer_that_fits_nothing,
        ),
        never(
            Syndrome::LOCAL_ACCESS,
            "local memory refused to the responder",
            "devices of this kind tell the responder's own keys as LOCAL_PROT and refuse remote ones by NAK, with an event and no entry",
        ),
        row(
            Syndrome::REMOTE_INVAL_REQ,
            "an atomic on no word",
            a_misaligned_atomic,
        ),
        row(
            Syndrome::REMOTE_ACCESS,
            "a remote key that is none",
            a_remote_key_that_is_none,
        ),
        row(
            Syndrome::REMOTE_OP,
            "memory of the other end's receive that is gone",
            a_receive_that_vanished,
        ),
        row(
            Syndrome::TRANSPORT_RETRY,
            "a peer that says nothing",
            a_silent_peer,
        ),
        row(
            Syndrome::RNR_RETRY,
            "a peer without a receive",
            a_peer_without_receive,
        ),
        never(
            Syndrome::REMOTE_ABORTED,
            "an operation given up by the responder",
            "the requesters of reliable datagrams alone are told so, and there are none",
        ),
    ]
}

fn an_atomic_of_sixteen_bytes() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    let sges = [a.sge(0, 16)];
    let bad = atomic(b.remote(0), Atomic::FetchAdd { add: 1 }, &sges);
    let seen = see(&mut world, &mut a, &mut b, &bad);
    assert_eq!(seen, own_fault(Syndrome::LOCAL_LENGTH));
    seen
}

fn a_short_receive() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    b.post_recv(&[b.sge(0, 7)]);
    b.post_recv(&[b.sge(0, 64)]);
    let sges = [a.sge(0, 8)];
    let seen = see(&mut world, &mut a, &mut b, &send(&sges));
    assert_eq!(
        seen,
        both_fail(Syndrome::REMOTE_INVAL_REQ, Syndrome::LOCAL_LENGTH)
    );
    seen
}

fn an_entry_of_another_index() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    let good = a.post(&nop());
    let bad = a.prepare(&nop());
    let place = a.sq_at + u64::from(bad) * 64;
    a.mem.write(place + 2, &[bad as u8 + 1]).unwrap();
    let seen = see_prepared(&mut world, &mut a, &mut b, good, bad);
    assert_eq!(seen, own_fault(Syndrome::LOCAL_QP_OP));
    seen
}

fn a_record_beyond() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    let entries = 1 << b.config.log_rq;
    // One more than there is room for.
    for _ in 0..=entries {
        b.post_recv(&[b.sge(0, 64)]);
    }
    let sges = [a.sge(0, 8)];
    let seen = see(&mut world, &mut a, &mut b, &send(&sges));
    assert_eq!(seen, both_fail(Syndrome::REMOTE_OP, Syndrome::LOCAL_QP_OP));
    seen
}

fn a_key_that_is_none() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    let sges = [a.sge(0, 8).changed(|s| s.lkey = 0x4242)];
    let seen = see(&mut world, &mut a, &mut b, &send(&sges));
    assert_eq!(seen, own_fault(Syndrome::LOCAL_PROT));
    seen
}

/// A message meets a receive that the responder may not write to.
fn into_a_bad_receive(world: &mut World, a: &mut End, b: &mut End, receive: Sge) -> Seen {
    b.post_recv(&[receive]);
    b.post_recv(&[]);
    let sges = [a.sge(0, 8)];
    let seen = see(world, a, b, &send(&sges));
    assert_eq!(seen, both_fail(Syndrome::REMOTE_OP, Syndrome::LOCAL_PROT));
    seen
}

fn a_receive_without_key() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    let receive = b.sge(0, 8).changed(|s| s.lkey = 0x4242);
    into_a_bad_receive(&mut world, &mut a, &mut b, receive)
}

fn taken_to_err() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    b.post_recv(&[]);
    b.post_recv(&[]);
    let good = a.run(&mut world, &nop());
    world.modify(&a, Modify::Error);
    world.modify(&b, Modify::Error);
    let bad = a.prepare(&nop());
    let seen = see_prepared(&mut world, &mut a, &mut b, good, bad);
    let flushed = Seen {
        requester: Some(Syndrome::WR_FLUSH),
        states: BOTH,
        ..Seen::default()
    };
    assert_eq!(seen, flushed);
    seen
}

/// A peer of a test's own making answers a read by an atomic's answer.
fn an_answer_that_fits_nothing() -> Seen {
    let mut world = World::new(1);
    let mut port = world.hub.port();
    let mut a = world.end(0, EndConfig::default());
    world.init(&a);
    world.modify(&a, rtr(Path::to(port.node(), Qpn(3)), 1, 4, 12));
    world.rts(&a, 1);
    let to = port.connect(world.nics[0].node()).unwrap();
    let index = a.prepare(&SendWqe {
        flags: WqeFlags::default(),
        ..read(a.remote(0), &[a.sge(64, 8)])
    });
    let after = a.run(&mut world, &nop());
    let budget = Budget {
        frames: 10,
        bytes: 1 << 16,
    };
    port.step(Time::ZERO);
    let mut asked = None;
    port.receive(budget, &mut |_, header, _| {
        asked = Some(*header);
        Ok(())
    });
    let header = FrameHeader {
        kind: Kind::AtomicData as u8,
        dst_qpn: a.qpn.0.into(),
        src_qpn: 3.into(),
        psn: asked.expect("a read").psn,
        count: 1.into(),
        mtu_log: 12,
        ..FrameHeader::default()
    };
    port.send(to, &header, &mut |_| true).unwrap();
    port.flush();
    port.step(Time::ZERO);
    world.settle();
    a.send_failed(index, Syndrome::BAD_RESP);
    a.send_failed(after, Syndrome::WR_FLUSH);
    assert_eq!(world.state(&a), QpState::Err);
    assert_eq!(world.events(0), []);
    Seen {
        requester: Some(Syndrome::BAD_RESP),
        ..Seen::default()
    }
}

/// An error that the responder finds in the request itself: no entry of its own tells of it, an
/// event does.
fn refused(b: &End, why: Syndrome, event: fn(Qpn, u64) -> Event) -> Seen {
    Seen {
        requester: Some(why),
        states: BOTH,
        events: (vec![], vec![event(b.qpn, 9)]),
        ..Seen::default()
    }
}

fn a_misaligned_atomic() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    b.post_recv(&[]);
    let sges = [a.sge(0, 8)];
    let bad = atomic(b.remote(4), Atomic::FetchAdd { add: 1 }, &sges);
    let seen = see(&mut world, &mut a, &mut b, &bad);
    let request = |qpn, owner| Event::QpRequest { qpn, owner };
    assert_eq!(seen, refused(&b, Syndrome::REMOTE_INVAL_REQ, request));
    seen
}

fn a_remote_key_that_is_none() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    b.post_recv(&[]);
    b.post_recv(&[]);
    let sges = [a.sge(0, 8)];
    let at = b.remote(0).changed(|r| r.rkey = 0x4242);
    let seen = see(&mut world, &mut a, &mut b, &write(at, &sges));
    let access = |qpn, owner| Event::QpAccess { qpn, owner };
    assert_eq!(seen, refused(&b, Syndrome::REMOTE_ACCESS, access));
    seen
}

/// Memory behind a region that is not there any more.
struct Gone;

macro_rules! gone {
    ($($name:ident($($type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, offset: u64, $(_: $type),*) -> Result<$result, DmaFault> {
            Err(DmaFault { offset, len: 0, limit: 0 })
        }
    )*};
}

impl Dma for Gone {
    fn len(&self) -> u64 {
        4096
    }

    gone! {
        read(&mut [u8]) -> ();
        write(&[u8]) -> ();
        load32() -> u32;
        load64() -> u64;
        store32(u32) -> ();
        swap64(u64) -> u64;
        compare_swap64(u64, u64) -> u64;
        fetch_add64(u64) -> u64;
    }
}

fn a_receive_that_vanished() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    let keys = world.nics[1].reg_mr(MrAttr {
        pd: b.pd,
        va: 0x1000,
        len: 4096,
        access: all_rights(),
        mem: Arc::new(Gone),
        mem_offset: 0,
    });
    let lkey = keys.unwrap().lkey;
    let receive = Sge {
        addr: 0x1000,
        lkey,
        len: 64,
    };
    into_a_bad_receive(&mut world, &mut a, &mut b, receive)
}

fn a_silent_peer() -> Seen {
    let (mut world, mut a, mut b) = World::connected();
    b.post_recv(&[]);
    world.silence(&b);
    let sges = [a.sge(0, 8)];
    let bad = write(b.remote(0), &sges);
    let seen = see(&mut world, &mut a, &mut b, &bad);
    assert_eq!(seen, own_fault(Syndrome::TRANSPORT_RETRY));
    seen
}

fn a_peer_without_receive() -> Seen {
    let impatient = EndConfig::default().changed(|c| c.rnr_retry = 3);
    let (mut world, mut a, mut b) = World::joined(impatient.clone(), impatient);
    let sges = [a.sge(0, 8)];
    let seen = see(&mut world, &mut a, &mut b, &send(&sges));
    assert_eq!(seen, own_fault(Syndrome::RNR_RETRY));
    seen
}

/// On an unreliable connection a send that fails stops sends alone, and what the other end cannot
/// take is lost without a word, but for a receive that is to blame.
#[test]
fn unreliable_connections() {
    let uc = || EndConfig::default().changed(|c| c.service = Service::Uc);
    let (mut world, mut a, mut b) = World::joined(uc(), uc());
    let sges = [a.sge(0, 8).changed(|s| s.lkey = 0x4242)];
    let stopped = Seen {
        requester: Some(Syndrome::LOCAL_PROT),
        states: Some((QpState::Sqe, QpState::Rts)),
        ..Seen::default()
    };
    assert_eq!(see(&mut world, &mut a, &mut b, &send(&sges)), stopped);

    let (mut world, mut a, mut b) = World::joined(uc(), uc());
    b.post_recv(&[]);
    let sges = [a.sge(0, 8)];
    let at = b.remote(0).changed(|r| r.rkey = 0x4242);
    let fine = Some((QpState::Rts, QpState::Rts));
    let lost = Seen {
        states: fine,
        ..Seen::default()
    };
    assert_eq!(see(&mut world, &mut a, &mut b, &write(at, &sges)), lost);

    let (mut world, mut a, mut b) = World::joined(uc(), uc());
    b.post_recv(&[b.sge(0, 4)]);
    b.post_recv(&[]);
    let sges = [a.sge(0, 8)];
    let short = Seen {
        responder: Some(Syndrome::LOCAL_LENGTH),
        states: Some((QpState::Rts, QpState::Err)),
        ..Seen::default()
    };
    assert_eq!(see(&mut world, &mut a, &mut b, &send(&sges)), short);
}
