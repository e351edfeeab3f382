//! Completion events: one event per request, for entries that no event reported, in the order of
//! the entries.

mod rig;

use mlx5_prm::doorbell;
use rig::*;
use vmlx5::*;

const REGISTER: u64 = doorbell::CQ_ARM as u64;

/// Writes the event request of a consumer, and its completion register on request.
fn arm(end: &End, cq: &CqView, sequence: u32, solicited: bool, rings: bool) {
    let word = doorbell::cq_arm_value(sequence, solicited, cq.next);
    let at = cq.record + doorbell::ARM as u64;
    end.mem.store32(at, word).unwrap();
    if rings {
        end.mem.store64(REGISTER, 1).unwrap();
    }
}

/// Steps until no component makes progress, and returns the completion queues that raised events.
fn raised(world: &mut World, nic: usize) -> Vec<Cqn> {
    world.settle();
    let events = world.events(nic).into_iter();
    events
        .map(|event| match event {
            Event::Completion { cq, owner: 7 } => cq,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn watched() -> EndConfig {
    EndConfig::default().changed(|c| c.events = true)
}

#[test]
fn armed_queue_raises_one_event_for_new_entries() {
    let (mut world, mut a, b) = World::joined(watched(), EndConfig::default());
    let go = |world: &mut World, a: &mut End| {
        a.run(world, &write(b.remote(0), &[a.sge(0, 8)]));
    };
    go(&mut world, &mut a);
    assert_eq!(raised(&mut world, 0), [], "the queue is not armed");
    // A request after the entry was written raises the event immediately. The word consists of
    // zeros.
    let cqn = a.send.cqn;
    arm(&a, &a.send, 0, false, true);
    assert_eq!(raised(&mut world, 0), [cqn]);
    go(&mut world, &mut a);
    assert_eq!(raised(&mut world, 0), [], "the queue is not armed again");
    // The consumer arms the queue before it takes an entry, as programs do that take entries later:
    // a reported entry does not count again, the second entry counts.
    arm(&a, &a.send, 1, false, true);
    assert_eq!(raised(&mut world, 0), [cqn]);
    arm(&a, &a.send, 2, false, true);
    assert_eq!(raised(&mut world, 0), []);
    go(&mut world, &mut a);
    assert_eq!(raised(&mut world, 0), [cqn]);
    // The same word again requests nothing.
    arm(&a, &a.send, 2, false, true);
    go(&mut world, &mut a);
    assert_eq!(raised(&mut world, 0), []);
    // Taken entries do not count, whether or not an event reported them.
    assert_eq!(a.send.drain().len(), 4);
    arm(&a, &a.send, 3, false, true);
    assert_eq!(raised(&mut world, 0), []);
    go(&mut world, &mut a);
    assert_eq!(raised(&mut world, 0), [cqn]);
}

#[test]
fn event_request_takes_effect_at_the_register_or_the_next_entry() {
    let (mut world, mut a, b) = World::joined(watched(), EndConfig::default());
    a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    arm(&a, &a.send, 0, false, false);
    assert_eq!(raised(&mut world, 0), [], "the register was not written");
    a.post(&write(b.remote(0), &[a.sge(0, 8)]));
    assert_eq!(raised(&mut world, 0), [a.send.cqn]);
    // The second half of the register suffices, and the NIC clears it.
    arm(&a, &a.send, 1, false, false);
    a.run(&mut world, &nop());
    assert_eq!(raised(&mut world, 0).len(), 1);
    arm(&a, &a.send, 2, false, false);
    a.mem.store32(REGISTER + 4, 1).unwrap();
    world.settle();
    assert_eq!(a.mem.load64(REGISTER).unwrap(), 0);
}

#[test]
fn completion_events_keep_the_order_of_entries() {
    for turned in [false, true] {
        let mut world = World::new(1);
        let shared = world.end(0, watched());
        let uar = Some(shared.uar);
        let config = EndConfig { uar, ..watched() };
        let mut ends: Vec<(End, End)> = (0..4)
            .map(|_| {
                let a = world.end(0, config.clone());
                let b = world.end(0, config.clone());
                world.connect(&a, &b);
                (a, b)
            })
            .collect();
        world.settle();
        let mut expected = Vec::new();
        if turned {
            ends.reverse();
        }
        for (a, b) in &mut ends {
            b.post_recv(&[b.sge(0, 8)]);
            arm(a, &a.send, 0, false, false);
            arm(b, &b.recv, 0, false, false);
            a.prepare(&send(&[a.sge(0, 8)]));
            a.store_record();
            // All queues use one page.
            shared.mem.store64(doorbell::BF_OFFSET as u64, 1).unwrap();
            world.settle();
            // The receive completes before the sender gets its acknowledgement.
            expected.extend([b.recv.cqn, a.send.cqn]);
        }
        assert_eq!(raised(&mut world, 0), expected);
    }
}

#[test]
fn solicited_request_reports_only_solicited_entries_and_errors() {
    let (mut world, mut a, mut b) = World::joined(watched(), watched());
    let cqn = b.recv.cqn;
    let plain = |a: &End| [a.sge(0, 8)];
    for _ in 0..8 {
        b.post_recv(&[b.sge(0, 8)]);
    }
    arm(&b, &b.recv, 0, true, true);
    a.post(&send(&plain(&a)));
    assert_eq!(raised(&mut world, 1), []);
    let flags = signaled().changed(|w| w.solicited = true);
    let sges = plain(&a);
    let solicited = || send(&sges).changed(|s| s.flags = flags);
    a.post(&solicited());
    a.post(&send(&plain(&a)));
    assert_eq!(raised(&mut world, 1), [cqn]);
    // An event reported the entry, and the one after it was not solicited.
    arm(&b, &b.recv, 1, true, true);
    assert_eq!(raised(&mut world, 1), []);
    // A request for any entry reports that one.
    arm(&b, &b.recv, 2, false, true);
    assert_eq!(raised(&mut world, 1), [cqn]);
    // A solicited entry that was taken already; then an error.
    a.run(&mut world, &solicited());
    b.recv.drain();
    arm(&b, &b.recv, 3, true, true);
    assert_eq!(raised(&mut world, 1), []);
    world.modify(&b, Modify::Error);
    assert_eq!(raised(&mut world, 1), [cqn]);
}

#[test]
fn armed_queues_survive_wraps_creation_and_removal() {
    let config = watched().changed(|c| c.cq_start = 0xff_fffe);
    let (mut world, mut a, b) = World::joined(config, EndConfig::default());
    for i in 0..6 {
        arm(&a, &a.send, i, false, true);
        assert_eq!(raised(&mut world, 0), []);
        a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        assert_eq!(raised(&mut world, 0), [a.send.cqn]);
        assert_eq!(a.send.drain().len(), 1);
    }
    // A removed queue raises no events, and no longer uses its page.
    arm(&a, &a.send, 6, false, true);
    a.run(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    let nic = &mut world.nics[0];
    nic.destroy_qp(a.qpn).unwrap();
    let held = nic.free_uar(a.uar).unwrap_err();
    assert!(matches!(held, NicError::InUse { users: 2, .. }), "{held}");
    nic.destroy_cq(a.send.cqn).unwrap();
    nic.destroy_cq(a.recv.cqn).unwrap();
    nic.free_uar(a.uar).unwrap();
    assert_eq!(raised(&mut world, 0), []);
    let mem = a.mem.clone();
    let attr = CqAttr::new(mem, a.send.offset, 3).changed(|c| c.events = Some(a.uar));
    let refused = world.nics[0].create_cq(attr.clone()).unwrap_err();
    assert!(matches!(refused, NicError::Unknown { .. }), "{refused}");
    let uar = world.nics[0].alloc_uar(a.mem.clone(), 0).unwrap();
    let events = Some(uar);
    let refused = world.nics[0].create_cq(CqAttr { events, ..attr });
    assert_eq!(refused, Err(NicError::NoRecord));
}
