//! Messages without a receive, order, reconnection, lost and silent peers.

mod rig;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, SendWqe};
use rig::*;
use vmlx5::fabric::{LinkError, LinkState, NodeId};
use vmlx5::*;

const REQ: CqeOpcode = CqeOpcode::REQ;

#[test]
fn message_without_receive_blocks_only_its_connection() {
    for seed in 0..50 {
        let (mut world, mut a, mut b) = World::late(seed);
        let (mut c, mut d) = world.pair(EndConfig::default(), EndConfig::default());
        a.put(0, &pattern(seed, 100_000));
        let list = [a.sge(0, 100_000)];
        let first = a.post(&send(&list));
        let sges = [a.sge(0, 50_000)];
        let with_imm = SendWqe {
            opcode: SendOpcode::RDMA_WRITE_IMM,
            ..write(b.remote(200_000), &sges)
        };
        let after = [
            a.post(&write(b.remote(300_000), &sges)),
            a.post(&read(b.remote(0), &[a.sge(600_000, 100_000)])),
            a.post(&nop()),
            a.post(&with_imm),
        ];
        world.settle();
        assert!(a.send.poll().is_none(), "later work waits for the message");
        assert_eq!(b.get(300_000, 50_000), vec![0; 50_000]);
        assert!(world.nics[1].query_qp(b.qpn).unwrap().starved);
        d.post_recv(&[]);
        c.completes(&mut world, &send(&[]));
        // The first receive lets all work except the last message complete.
        b.post_recv(&[b.sge(0, 100_000)]);
        world.settle();
        assert_eq!(b.get(0, 100_000), a.get(0, 100_000));
        assert_eq!(
            a.get(600_000, 100_000),
            a.get(0, 100_000),
            "read after the send"
        );
        let done: Vec<u16> = a.send.drain().iter().map(|c| c.wqe_counter.get()).collect();
        assert_eq!(done, [first, after[0], after[1], after[2]]);
        // All of the message except its last frame is written; no completion reports it yet.
        assert_eq!(b.recv.drain().len(), 1);
        b.post_recv(&[]);
        world.settle();
        a.sent(after[3]);
        assert_eq!(b.recv.drain().len(), 1);
        assert_eq!(b.get(200_000, 50_000), a.get(0, 50_000));
    }
}

#[test]
fn fence_waits_for_reads_and_atomics() {
    let (mut overtaken, rounds) = (0, 100);
    for seed in 0..rounds {
        for fence in [false, true] {
            let (mut world, mut a, b) = World::late(seed);
            b.put(0, &vec![1; 200_000]);
            a.put(500_000, &vec![2; 200_000]);
            let (at, into, from) = (b.remote(0), [a.sge(0, 200_000)], [a.sge(500_000, 200_000)]);
            a.post(&read(at, &into));
            let flags = if fence { fenced() } else { signaled() };
            a.run(&mut world, &write(at, &from).changed(|s| s.flags = flags));
            assert_eq!(a.send.drain().len(), 2);
            assert_eq!(b.get(0, 200_000), vec![2; 200_000]);
            let got = a.get(0, 200_000);
            if fence {
                assert_eq!(got, vec![1; 200_000], "seed {seed}");
            } else if got.contains(&2) {
                overtaken += 1;
            }
        }
    }
    assert!(
        overtaken > 0,
        "without a fence a write does overtake a read"
    );
}

#[test]
fn reads_and_atomics_keep_order() {
    for seed in 0..50 {
        let (mut world, mut a, b) = World::late(seed);
        let at = b.remote(0);
        let (one, two, three) = ([a.sge(0, 8)], [a.sge(8, 8)], [a.sge(16, 8)]);
        let add = |n| Atomic::FetchAdd { add: n };
        a.put64(64, 5);
        a.prepare(&write(at, &[a.sge(64, 8)]));
        a.prepare(&read(at, &one));
        a.prepare(&atomic(at, add(1), &two));
        a.prepare(&read(at, &three));
        a.ring();
        world.settle();
        assert_eq!(
            [a.get64(0), a.get64(8), a.get64(16)],
            [5, 5, 6],
            "seed {seed}"
        );
        assert_eq!(b.get64(0), 6);
    }
}

#[test]
fn atomics_of_two_ends_add_to_one_word() {
    let mut world = World::scheduled(3, 9);
    let (mut a, b) = world.pair(EndConfig::default(), EndConfig::default());
    let mut c = world.end(1, EndConfig::default());
    let d = world.end(2, EndConfig::default());
    world.connect(&c, &d);
    // The word belongs to b's region; d has another region over the same memory.
    let keys = register(&mut world.nics[2], d.pd, &b.mem, b.data_at, 8);
    let mut at = b.remote(0);
    for _ in 0..50 {
        let add = Atomic::FetchAdd { add: 1 };
        a.post(&atomic(at, add, &[a.sge(0, 8)]));
        at.rkey = keys.rkey;
        c.post(&atomic(at, add, &[c.sge(0, 8)]));
        at.rkey = b.keys.rkey;
        world.settle();
        a.send.drain();
        c.send.drain();
    }
    assert_eq!(b.get64(0), 100);
}

#[test]
fn sends_wait_until_the_other_end_is_ready() {
    for seed in 0..50 {
        let mut world = World::scheduled(2, seed);
        let mut a = world.end(0, EndConfig::default());
        let b = world.end(1, EndConfig::default());
        world.init(&a);
        world.rtr(&a, &b, 7);
        world.rts(&a, 9);
        for i in 0..5 {
            a.put64(8 * i, i + 1);
            a.post(&write(b.remote(8 * i), &[a.sge(8 * i, 8)]));
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..rng.u8(..10) {
            world.step();
        }
        world.init(&b);
        for _ in 0..rng.u8(..10) {
            world.step();
        }
        assert!(a.send.poll().is_none());
        world.rtr(&b, &a, 9);
        world.settle();
        assert_eq!(a.send.drain().len(), 5, "seed {seed}");
        assert_eq!(b.get64(32), 5);
    }
}

#[test]
fn reset_drops_work_and_allows_reconnection() {
    for seed in 0..30 {
        let (mut world, mut a, mut b) = World::late(seed);
        let mut psn = 100;
        for round in 0..5 {
            // Both ends are reset with work in progress, some of it without a receive.
            b.post_recv(&[b.sge(0, 8)]);
            a.post(&write(b.remote(0), &[a.sge(0, 100_000)]));
            a.post(&read(b.remote(0), &[a.sge(0, 100_000)]));
            a.post(&send(&[a.sge(0, 8)]));
            a.post(&send(&[a.sge(0, 8)]));
            for _ in 0..fastrand::Rng::with_seed(seed + round).u8(..6) {
                world.step();
            }
            a.send.drain();
            b.recv.drain();
            world.reset(&mut b);
            world.reset(&mut a);
            let info = world.nics[0].query_qp(a.qpn).unwrap();
            assert_eq!(
                (info.state, info.sq_rung, info.sq_done),
                (QpState::Reset, 0, 0)
            );
            // New packet numbers distinguish a connection from the former one.
            psn += 1000;
            for (x, y, tx, rx) in [(&b, &a, psn, psn + 1), (&a, &b, psn + 1, psn)] {
                world.init(x);
                world.rtr(x, y, rx);
                world.rts(x, tx);
            }
            b.put64(0, 0);
            a.put64(0, 42 + round);
            let r = b.post_recv(&[b.sge(8, 8)]);
            let w = a.post(&write(b.remote(0), &[a.sge(0, 8)]));
            let s = a.run(&mut world, &send(&[a.sge(0, 8)]));
            let done = a.send.drain();
            assert_eq!(done.len(), 2, "seed {seed} round {round}");
            assert_ok(&done[0], REQ, w);
            assert_ok(&done[1], REQ, s);
            b.received(r);
            assert_eq!((b.get64(0), b.get64(8)), (42 + round, 42 + round));
            assert!(b.recv.poll().is_none());
        }
    }
}

#[test]
fn work_fails_after_the_other_end_is_destroyed() {
    let (mut world, mut a, b) = World::connected();
    let waiting = a.run(&mut world, &send(&[]));
    world.nics[1].destroy_qp(b.qpn).unwrap();
    world.outlast();
    a.send_failed(waiting, Syndrome::TRANSPORT_RETRY);
    // The same for an end that sends only after the destruction.
    let (mut c, d) = world.pair(EndConfig::default(), EndConfig::default());
    world.nics[1].destroy_qp(d.qpn).unwrap();
    world.settle();
    assert_eq!(world.state(&c), QpState::Rts, "an idle end gets no error");
    let s = c.post(&write(d.remote(0), &[c.sge(0, 8)]));
    world.outlast();
    c.send_failed(s, Syndrome::TRANSPORT_RETRY);
}

#[test]
fn killed_peer_fails_outstanding_work() {
    let mut world = World::new(3);
    let (mut a, b) = world.pair(EndConfig::default(), EndConfig::default());
    let bystander = world.end(1, EndConfig::default());
    let mut c = world.end(0, EndConfig::default());
    world.connect(&c, &bystander);
    let sent = [a.post(&send(&[])), a.post(&nop()), a.post(&send(&[]))];
    world.settle();
    assert!(a.send.poll().is_none());
    let node = world.node(&b);
    assert!(world.hub.kill(node));
    world.outlast();
    a.send_failed(sent[0], Syndrome::TRANSPORT_RETRY);
    for index in &sent[1..] {
        a.send_failed(*index, Syndrome::WR_FLUSH);
    }
    let state = world.nics[0].link_state(a.qpn).unwrap();
    assert!(matches!(state, Some(LinkState::Lost(_))), "{state:?}");
    c.completes(&mut world, &write(bystander.remote(0), &[c.sge(0, 8)]));
    assert!(!world.hub.kill(node), "once");
}

#[test]
fn silent_peer_answers_after_it_resumes() {
    for scheduled in [false, true] {
        let mut world = if scheduled {
            World::scheduled(2, 1)
        } else {
            World::new(2)
        };
        let (mut a, b) = world.pair(EndConfig::default(), EndConfig::default());
        let node = world.node(&b);
        assert!(world.hub.silence(node, true));
        let s = a.run(&mut world, &write(b.remote(0), &[a.sge(0, 100_000)]));
        assert!(a.send.poll().is_none());
        assert_eq!(world.nics[0].query_qp(a.qpn).unwrap().outstanding, 1);
        assert!(world.hub.silence(node, false));
        world.settle();
        a.sent(s);
    }
}

#[test]
fn full_fabric_stalls_and_resumes() {
    let (mut world, mut a, b) = World::connected();
    let node = world.silence(&b);
    a.put(0, &pattern(8, 1 << 20));
    for _ in 0..4 {
        a.post(&write(b.remote(0), &[a.sge(0, 1 << 20)]));
    }
    world.settle();
    let sent = world.nics[0].stats().frames_sent;
    assert!(sent < 40, "{sent} frames fit a ring of 1 MiB");
    world.hub.silence(node, false);
    world.settle();
    assert_eq!(a.send.drain().len(), 4);
    assert_eq!(b.get(0, 1 << 20), a.get(0, 1 << 20));
}

#[test]
fn unknown_node_fails_work_with_a_reason() {
    let mut world = World::new(1);
    let mut a = world.end(0, EndConfig::default());
    world.init(&a);
    let remote = NodeId(0xdead);
    world.modify(&a, rtr(Path::to(remote, Qpn(5)), 0, 1, 12));
    world.rts(&a, 0);
    let s = a.post(&send(&[]));
    world.outlast();
    a.send_failed(s, Syndrome::TRANSPORT_RETRY);
    let state = world.nics[0].link_state(a.qpn).unwrap();
    let Some(LinkState::Lost(LinkError::Unreachable { node, .. })) = state else {
        panic!("{state:?}");
    };
    assert_eq!(node, remote);
}
