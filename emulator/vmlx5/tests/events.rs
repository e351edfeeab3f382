//! Asynchronous events: each from its cause, once, in order, with its owner.

mod rig;

use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::*;

fn events(world: &mut World, nic: usize) -> Vec<Event> {
    std::iter::from_fn(|| world.nics[nic].next_event()).collect()
}

#[test]
fn communication_is_established_once() {
    let mut world = World::new(2);
    let mut a = world.end(0, EndConfig::default());
    let b = world.end(1, EndConfig::default());
    for (x, y) in [(&a, &b), (&b, &a)] {
        world.init(x);
        world.rtr(x, y, 5);
    }
    world.rts(&a, 5);
    world.settle();
    assert_eq!(
        events(&mut world, 1),
        [],
        "a hint is no packet of the connection"
    );
    for _ in 0..3 {
        a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    }
    let (qpn, owner) = (b.qpn, 9);
    assert_eq!(events(&mut world, 1), [Event::CommEst { qpn, owner }]);
    assert_eq!(events(&mut world, 0), []);
    // In RTS nobody needs to be told.
    let (mut c, d) = world.pair(EndConfig::default(), EndConfig::default());
    c.run(&mut world, &write(d.remote(0), &[c.sge(0, 8)]));
    assert_eq!(events(&mut world, 1), []);
}

#[test]
fn refused_requests() {
    type Bad = fn(&mut End, &mut End);
    let (qpn, owner) = (Qpn(0), 0);
    let cases: [(Bad, Option<Event>, Syndrome); 6] = [
        // A key, a range, an operation that it may not use.
        (
            |a, b| {
                let rkey = b.keys.rkey ^ 1;
                let at = b.remote(0).changed(|r| r.rkey = rkey);
                a.post(&write(at, &[a.sge(0, 8)]));
            },
            Some(Event::QpAccess { qpn, owner }),
            Syndrome::REMOTE_ACCESS,
        ),
        (
            |a, b| {
                a.post(&read(b.remote(1 << 20), &[a.sge(0, 8)]));
            },
            Some(Event::QpAccess { qpn, owner }),
            Syndrome::REMOTE_ACCESS,
        ),
        // An atomic that is not aligned.
        (
            |a, b| {
                let add = mlx5_prm::wqe::Atomic::FetchAdd { add: 1 };
                a.post(&atomic(b.remote(4), add, &[a.sge(0, 8)]));
            },
            Some(Event::QpRequest { qpn, owner }),
            Syndrome::REMOTE_INVAL_REQ,
        ),
        // A receive that is too short, or at fault itself: its entry tells of it.
        (
            |a, b| {
                b.post_recv(&[b.sge(0, 4)]);
                a.post(&send(&[a.sge(0, 8)]));
            },
            None,
            Syndrome::REMOTE_INVAL_REQ,
        ),
        (
            |a, b| {
                let lkey = b.keys.lkey ^ 1;
                b.post_recv(&[b.sge(0, 8).changed(|s| s.lkey = lkey)]);
                a.post(&send(&[a.sge(0, 8)]));
            },
            None,
            Syndrome::REMOTE_OP,
        ),
        // A local fault of the requester, which its own entry tells of.
        (
            |a, b| {
                let lkey = a.keys.lkey ^ 1;
                a.post(&write(
                    b.remote(0),
                    &[a.sge(0, 8).changed(|s| s.lkey = lkey)],
                ));
            },
            None,
            Syndrome::LOCAL_PROT,
        ),
    ];
    for (i, (bad, expected, why)) in cases.into_iter().enumerate() {
        let (mut world, mut a, mut b) = World::connected();
        bad(&mut a, &mut b);
        world.settle();
        let error = a.send.poll().unwrap();
        assert_eq!(error.as_error().reason(), why, "case {i}");
        let (qpn, owner) = (b.qpn, 9);
        let expected = expected.map(|e| match e {
            Event::QpAccess { .. } => Event::QpAccess { qpn, owner },
            _ => Event::QpRequest { qpn, owner },
        });
        assert_eq!(events(&mut world, 1), Vec::from_iter(expected), "case {i}");
        assert_eq!(events(&mut world, 0), [], "case {i}");
    }
}

#[test]
fn an_overrun_is_told_of_the_queue_and_of_all_who_use_it() {
    let mut world = World::new(2);
    let config = EndConfig::default().changed(|c| c.log_cq = 3);
    let (mut a, _b) = world.pair(config, EndConfig::default());
    for _ in 0..12 {
        a.post(&nop());
    }
    world.settle();
    let (cq, qpn) = (a.send.cqn, a.qpn);
    let told = events(&mut world, 0);
    assert_eq!(told.len(), 2);
    assert!(told.contains(&Event::CqError { cq, owner: 7 }));
    assert!(told.contains(&Event::QpFatal { qpn, owner: 9 }));
    world.modify(&a, Modify::Error);
    world.settle();
    assert_eq!(events(&mut world, 0), [], "it knows");
}

#[test]
fn events_of_what_is_gone_are_gone() {
    let mut world = World::new(1);
    let a = world.end(0, EndConfig::default());
    let b = world.end(0, EndConfig::default());
    world.connect(&a, &b);
    for end in [&a, &b] {
        world.modify(end, Modify::Sqd);
    }
    world.settle();
    world.nics[0].destroy_qp(a.qpn).unwrap();
    let (qpn, owner) = (b.qpn, 9);
    assert_eq!(events(&mut world, 0), [Event::SqDrained { qpn, owner }]);
}

#[test]
fn ports_that_flap_are_forgotten_oldest_first() {
    let mut world = World::new(1);
    for i in 0..1001 {
        world.nics[0].set_port(1, i % 2 == 1).unwrap();
    }
    let told = events(&mut world, 0);
    assert_eq!(told.len(), 64);
    assert_eq!(told.last(), Some(&Event::Port { port: 1, up: false }));
}
