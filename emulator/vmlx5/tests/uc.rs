//! Unreliable connections: messages arrive whole or not at all, without a report of losses.

mod rig;

use std::time::Duration;

use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use rig::*;
use vmlx5::*;

const REQ: CqeOpcode = CqeOpcode::REQ;

fn uc() -> EndConfig {
    EndConfig::default().changed(|c| c.service = Service::Uc)
}

fn world() -> (World, End, End) {
    World::joined(uc(), uc())
}

#[test]
fn unreliable_message_completes_when_it_is_sent() {
    let (mut world, mut a, b) = world();
    let node = world.silence(&b);
    a.completes(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    // A fabric without room delays the message.
    let posted: Vec<u16> = (0..3)
        .map(|_| a.post(&write(b.remote(0), &[a.sge(0, 1 << 20)])))
        .collect();
    world.pass(Duration::from_secs(10));
    assert!(a.send.drain().len() < posted.len());
    world.hub.silence(node, false);
    world.settle();
    a.send.drain();
    assert_eq!(a.send.next, 4);
}

#[test]
fn unreliable_message_without_receive_is_lost_whole() {
    let (mut world, mut a, mut b) = world();
    a.put(0, &pattern(2, 100_000));
    a.completes(&mut world, &send(&[a.sge(0, 100_000)]));
    let r = b.post_recv(&[b.sge(0, 100_000)]);
    world.settle();
    assert_eq!(b.recv.poll(), None);
    a.completes(&mut world, &send(&[a.sge(50, 8)]));
    b.received(r);
    assert_eq!(b.get(0, 8), a.get(50, 8));
}

#[test]
fn unreliable_messages_arrive_whole_or_not_at_all() {
    let mut lost = 0;
    for seed in 0..40 {
        let (mut world, mut a, mut b) = world();
        let faults = bad_wire(seed, [0.05, 0.0, 0.05]);
        world.nics[0].set_faults(faults);
        let len = 80_000;
        for round in 0..10_u64 {
            b.post_recv(&[b.sge(0, len)]);
            a.put(0, &vec![round as u8 + 1; len as usize]);
            let s = a.post(&send(&[a.sge(0, len)]));
            world.pass(Duration::from_millis(1));
            a.sent(s);
            match b.recv.poll() {
                Some(cqe) => {
                    assert_eq!(cqe.opcode(), CqeOpcode::RESP_SEND);
                    assert_eq!(cqe.byte_cnt.get(), len);
                    assert!(b.get(0, len as usize).iter().all(|x| *x == round as u8 + 1));
                }
                None => lost += 1,
            }
        }
    }
    assert!((20..200).contains(&lost), "{lost}");
}

#[test]
fn unreliable_send_error_stops_only_sends() {
    let (mut world, mut a, mut b) = world();
    let lkey = a.keys.lkey ^ 1;
    let bad = a.post(&write(
        b.remote(0),
        &[a.sge(0, 8).changed(|s| s.lkey = lkey)],
    ));
    let after = a.run(&mut world, &nop());
    a.send_failed(bad, Syndrome::LOCAL_PROT);
    a.send_failed(after, Syndrome::WR_FLUSH);
    assert_eq!(world.state(&a), QpState::Sqe);
    let late = a.run(&mut world, &nop());
    a.send_failed(late, Syndrome::WR_FLUSH);
    // The queue pair still receives.
    let r = a.post_recv(&[a.sge(0, 8)]);
    b.run(&mut world, &send(&[b.sge(0, 8)]));
    a.received(r);
    // A transition to RTS enables sends again.
    world.modify(&a, Modify::Resume);
    a.put64(0, 5);
    a.completes(&mut world, &write(b.remote(0), &[a.sge(0, 8)]));
    assert_eq!(b.get64(0), 5);
}

#[test]
fn frames_of_another_service_are_dropped() {
    for (x, y) in [(Service::Uc, Service::Rc), (Service::Rc, Service::Uc)] {
        let with = |service| EndConfig { service, ..uc() };
        let (mut world, mut a, b) = World::joined(with(x), with(y));
        a.put64(0, 9);
        a.post(&write(b.remote(0), &[a.sge(0, 8)]));
        world.outlast();
        let entry = a.send.poll().unwrap();
        assert_eq!(entry.opcode() == REQ, x == Service::Uc);
        assert_eq!(b.get64(0), 0);
    }
}
