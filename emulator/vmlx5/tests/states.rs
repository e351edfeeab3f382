//! The drain of the send queue and its resumption, changes of attributes, ports up and down.

mod rig;

use std::time::Duration;

use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::Atomic;
use rig::*;
use vmlx5::*;

fn world() -> (World, End, End) {
    let (mut world, a, b) = World::connected();
    while world.nics[0].next_event().is_some() {}
    (world, a, b)
}

fn drained(end: &End) -> Event {
    Event::SqDrained {
        qpn: end.qpn,
        owner: 9,
    }
}

#[test]
fn drain_finishes_begun_work_only() {
    let (mut world, mut a, mut b) = world();
    let begun = [
        a.post(&write(b.remote(0), &[a.sge(0, 100_000)])),
        a.post(&send(&[a.sge(0, 8)])),
    ];
    world.settle();
    world.modify(&a, Modify::Sqd);
    let later = a.run(&mut world, &write(b.remote(8), &[a.sge(0, 8)]));
    let info = world.nics[0].query_qp(a.qpn).unwrap();
    assert_eq!((info.state, info.draining), (QpState::Sqd, true));
    a.sent(begun[0]);
    assert_eq!((a.send.poll(), world.nics[0].next_event()), (None, None));
    // The queue pair still receives and answers.
    let r = a.post_recv(&[a.sge(0, 8)]);
    let s = b.post(&send(&[]));
    let back = b.run(&mut world, &read(a.remote(0), &[b.sge(64, 8)]));
    a.received(r);
    b.sent(s);
    b.sent(back);
    // The queue pair still retransmits.
    b.post_recv(&[b.sge(0, 8)]);
    world.pass(rnr_delay(12));
    a.sent(begun[1]);
    assert_eq!(world.nics[0].next_event(), Some(drained(&a)));
    assert_eq!((a.send.poll(), world.nics[0].next_event()), (None, None));
    assert!(!world.nics[0].query_qp(a.qpn).unwrap().draining);
    world.modify(&a, Modify::Resume);
    world.settle();
    a.sent(later);
    assert_eq!(world.state(&a), QpState::Rts);
}

#[test]
fn idle_queue_drains_immediately_each_time() {
    let (mut world, mut a, b) = world();
    for _ in 0..3 {
        world.modify(&a, Modify::Sqd);
        world.settle();
        assert_eq!(world.nics[0].next_event(), Some(drained(&a)));
        assert_eq!(world.nics[0].next_event(), None);
        // A doorbell in SQD takes effect after the resumption.
        let s = a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
        assert_eq!(a.send.poll(), None);
        world.modify(&a, Modify::Resume);
        world.settle();
        a.sent(s);
    }
}

#[test]
fn failed_drain_ends_in_error() {
    let (mut world, mut a, b) = world();
    world.silence(&b);
    let s = a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    world.modify(&a, Modify::Sqd);
    let later = a.post(&nop());
    world.outlast();
    a.send_failed(s, Syndrome::TRANSPORT_RETRY);
    a.send_failed(later, Syndrome::WR_FLUSH);
    assert_eq!(world.nics[0].next_event(), None, "the drain did not finish");
}

#[test]
fn access_rights_change_in_rts() {
    let (mut world, mut a, b) = world();
    a.completes(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    let only = |access| Modify::Attr(AttrChange::default().changed(|a| a.access = Some(access)));
    world.modify(&b, only(Access::REMOTE_READ));
    a.completes(&mut world, &read(b.remote(0), &[a.sge(0, 8)]));
    let refused = world.nics[1].modify_qp(b.qpn, only(Access::LOCAL_WRITE));
    assert!(matches!(refused, Err(NicError::Access { .. })));
    let s = a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    a.send_failed(s, Syndrome::REMOTE_ACCESS);
}

#[test]
fn timeouts_and_limits_change_after_the_drain() {
    let (mut world, mut a, b) = world();
    let change = AttrChange {
        timeout: Some(5),
        retry_cnt: Some(1),
        rnr_retry: Some(0),
        max_rd_atomic: Some(0),
        ..AttrChange::default()
    };
    let busy = world.nics[0].modify_qp(a.qpn, Modify::Attr(change));
    assert!(matches!(busy, Err(NicError::Transition { .. })));
    world.modify(&a, Modify::Sqd);
    let over = change.changed(|a| a.retry_cnt = Some(8));
    let over = world.nics[0].modify_qp(a.qpn, Modify::Attr(over));
    assert!(matches!(
        over,
        Err(NicError::Limit {
            what: "retry_cnt",
            ..
        })
    ));
    world.modify(&a, Modify::Attr(change));
    world.modify(&a, Modify::Resume);
    world.silence(&b);
    let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    world.pass(ack_timeout(5).unwrap() * 2 - Duration::from_nanos(500));
    assert_eq!(a.send.poll(), None);
    world.pass(Duration::from_nanos(1000));
    a.send_failed(s, Syndrome::TRANSPORT_RETRY);
    // On another queue pair, reads and atomics fail after the change (`max_rd_atomic` is 0).
    let (mut c, d) = world.pair(EndConfig::default(), EndConfig::default());
    world.modify(&c, Modify::Sqd);
    world.modify(&c, Modify::Attr(change));
    world.modify(&c, Modify::Resume);
    let add = Atomic::FetchAdd { add: 1 };
    let s = c.run(&mut world, &atomic(d.remote(0), add, &[c.sge(0, 8)]));
    c.send_failed(s, Syndrome::LOCAL_QP_OP);
}

#[test]
fn port_down_stops_traffic_both_ways() {
    for side in [0, 1] {
        let (mut world, mut a, b) = world();
        assert_eq!(world.nics[side].port(1), Ok(true));
        world.nics[side].set_port(1, false).unwrap();
        world.nics[side].set_port(1, false).unwrap();
        let event = |up| Some(Event::Port { port: 1, up });
        while let Some(other) = world.nics[side].next_event() {
            assert_eq!(Some(other), event(false));
        }
        let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        world.pass(ack_timeout(14).unwrap() * 2);
        assert_eq!(a.send.poll(), None);
        assert_eq!(world.nics[side].port(1), Ok(false));
        world.nics[side].set_port(1, true).unwrap();
        assert_eq!(world.nics[side].next_event(), event(true));
        // The retries succeed.
        world.pass(ack_timeout(14).unwrap());
        a.sent(s);
        world.nics[side].set_port(1, false).unwrap();
        let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        world.outlast();
        a.send_failed(s, Syndrome::TRANSPORT_RETRY);
        for port in [0, 2] {
            assert!(world.nics[side].set_port(port, true).is_err());
        }
    }
}

#[test]
fn queue_pairs_use_their_own_ports() {
    let mut world = World::built(2, |c| c.ports = 2);
    let (mut a, b) = world.pair(EndConfig::default(), EndConfig::default());
    let (mut c, d) = (
        world.end(0, EndConfig::default()),
        world.end(1, EndConfig::default()),
    );
    for (x, y) in [(&c, &d), (&d, &c)] {
        world.init(x);
        let path = Path::to(world.node(y), y.qpn).changed(|p| p.port = 2);
        world.modify(x, rtr(path, 0, 1, 12));
        world.rts(x, 0);
    }
    world.nics[0].set_port(2, false).unwrap();
    let s = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    let t = c.run(&mut world, &write(d.remote(0), &[c.sge(0, 8)]));
    a.sent(s);
    assert_eq!(c.send.poll(), None);
    world.nics[0].set_port(2, true).unwrap();
    world.outlast();
    c.sent(t);
}
