//! Asynchronous events: each from its cause, once, in order, with its owner value.

mod rig;

use rig::*;
use vmlx5::*;

#[test]
fn communication_established_is_reported_once() {
    let mut world = World::new(2);
    let mut a = world.end(0, EndConfig::default());
    let b = world.end(1, EndConfig::default());
    for (x, y) in [(&a, &b), (&b, &a)] {
        world.init(x);
        world.rtr(x, y, 5);
    }
    world.rts(&a, 5);
    world.settle();
    assert_eq!(world.events(1), [], "a hint is no packet of the connection");
    for _ in 0..3 {
        a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    }
    let (qpn, owner) = (b.qpn, 9);
    assert_eq!(world.events(1), [Event::CommEst { qpn, owner }]);
    assert_eq!(world.events(0), []);
    // In RTS the first packet raises no event.
    let (mut c, d) = world.pair(EndConfig::default(), EndConfig::default());
    c.run(&mut world, &write(d.remote(0), &[c.sge(0, 8)]));
    assert_eq!(world.events(1), []);
}

#[test]
fn events_of_removed_objects_are_dropped() {
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
    assert_eq!(world.events(0), [Event::SqDrained { qpn, owner }]);
}

#[test]
fn excess_port_events_are_dropped_oldest_first() {
    let mut world = World::new(1);
    for i in 0..1001 {
        world.nics[0].set_port(1, i % 2 == 1).unwrap();
    }
    let events = world.events(0);
    assert_eq!(events.len(), 64);
    assert_eq!(events.last(), Some(&Event::Port { port: 1, up: false }));
}
