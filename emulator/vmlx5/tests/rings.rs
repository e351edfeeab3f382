//! Rings over many laps, with every index near its wrap; doorbells and records; overruns.

mod rig;

use mlx5_prm::cqe::{Cqe64, SIZE};
use mlx5_prm::doorbell::{self, BF_OFFSET};
use mlx5_prm::wqe::{Payload, WqeFlags};
use rig::*;
use vmlx5::{CqFailure, Dma, Event, Modify, QpState};

/// Rings of 8 blocks, 4 receives, 16 entries, all close to the wrap of their index.
fn near_wrap() -> EndConfig {
    EndConfig {
        log_sq: 3,
        log_rq: 2,
        log_cq: 4,
        sq_start: 0xfff0,
        rq_start: 0xfffd,
        cq_start: 0x00ff_fff5,
        ..EndConfig::default()
    }
}

#[test]
fn entries_survive_laps_of_every_ring() {
    // Entries of 1 to 7 blocks in a ring of 8: every position across the end of the ring.
    for cq_start in [0, 0x00ff_fff5, u32::MAX - 20] {
        let config = near_wrap().changed(|c| c.cq_start = cq_start);
        let (mut world, mut a, mut b) = World::joined(config.clone(), config);
        let mut rng = fastrand::Rng::with_seed(u64::from(cq_start));
        for i in 0..200_u64 {
            let len = [16, 80, 150, 220, 400][rng.usize(..5)];
            let data = pattern(i, len);
            let r = b.post_recv(&[b.sge(0, 400)]);
            let pieces = [&data[..]];
            let payload = Payload::Inline(&pieces);
            let s = a.run(&mut world, &send(&[]).changed(|s| s.payload = payload));
            assert_eq!(b.get(0, len), data, "message {i}");
            a.sent(s);
            b.received(r);
        }
        // About 90 laps of the send ring, across the wrap of its index.
        assert!((400..1000).contains(&a.sq));
        assert_eq!(a.send.next, cq_start.wrapping_add(200));
    }
}

#[test]
fn one_doorbell_announces_a_full_ring() {
    let (mut world, mut a, b) = World::joined(near_wrap(), near_wrap());
    for lap in 0..30 {
        for i in 0..8 {
            a.put64(i * 8, lap * 8 + i);
            let (to, sges) = (b.remote(i * 8), [a.sge(i * 8, 8)]);
            a.prepare(&write(to, &sges));
        }
        a.ring();
        world.settle();
        assert_eq!(a.send.drain().len(), 8);
        assert_eq!(b.get64(56), lap * 8 + 7);
    }
}

#[test]
fn work_needs_both_record_and_doorbell() {
    let (mut world, mut a, b) = World::connected();
    let (to, sges) = (b.remote(0), [a.sge(8, 8)]);
    a.put64(8, 77);
    // The entry alone.
    a.prepare(&write(to, &sges));
    world.settle();
    assert_eq!(b.get64(0), 0);
    // The doorbell without the record.
    a.store_doorbell();
    world.settle();
    assert_eq!(b.get64(0), 0);
    // The record without the doorbell.
    a.store_record();
    world.settle();
    assert_eq!((b.get64(0), a.send.poll()), (0, None));
    // Both.
    a.store_doorbell();
    world.settle();
    assert_eq!(b.get64(0), 77);
    assert!(a.send.poll().is_some());
    // The doorbell again.
    a.store_doorbell();
    world.settle();
    assert!(a.send.poll().is_none());
}

#[test]
fn doorbell_of_two_halves_counts() {
    let (mut world, mut a, b) = World::connected();
    let register = BF_OFFSET as u64;
    for halves in [[0, 1], [1, 0]] {
        a.put64(8, a.get64(8) + 1);
        let (to, sges) = (b.remote(0), [a.sge(8, 8)]);
        a.prepare(&write(to, &sges));
        a.store_record();
        let value = a.doorbell;
        for half in halves {
            let word = (value >> (32 * half)) as u32;
            a.mem.store32(register + 4 * half, word).unwrap();
            world.settle();
        }
        assert_eq!(b.get64(0), a.get64(8));
        assert_eq!(a.send.drain().len(), 1);
        assert_eq!(a.mem.load64(register).unwrap(), 0, "taken");
    }
}

#[test]
fn shared_page_serves_all_its_queue_pairs() {
    let mut world = World::new(1);
    let (mut a, _b) = world.pair(EndConfig::default(), EndConfig::default());
    let shared = EndConfig::default().changed(|c| c.uar = Some(a.uar));
    let (mut c, _d) = world.pair(shared, EndConfig::default());
    // A doorbell that another queue pair overwrote before the NIC read it is not lost: the records
    // announce the work.
    c.prepare(&nop());
    c.store_record();
    a.run(&mut world, &nop());
    assert_eq!((a.send.drain().len(), c.send.drain().len()), (1, 1));
    // The NIC does not poll the page that `c` is not bound to.
    c.run(&mut world, &nop());
    assert_eq!(c.send.drain().len(), 0);
}

#[test]
fn overrun_fails_the_completion_queue() {
    let config = EndConfig::default().changed(|c| c.log_cq = 3);
    let (mut world, mut a, mut b) = World::joined(config, EndConfig::default());
    for _ in 0..9 {
        a.run(&mut world, &nop());
    }
    let info = world.nics[0].query_cq(a.send.cqn).unwrap();
    assert_eq!(info.failure, Some(CqFailure::Overrun));
    assert_eq!(info.producer, 8);
    assert_eq!(world.state(&a), QpState::Err);
    // The completion queue reports the failure, and so does the queue pair, once.
    let (cq, qpn) = (a.send.cqn, a.qpn);
    let events = world.events(0);
    assert_eq!(events.len(), 2);
    assert!(events.contains(&Event::CqError { cq, owner: 7 }));
    assert!(events.contains(&Event::QpFatal { qpn, owner: 9 }));
    world.modify(&a, Modify::Error);
    world.settle();
    assert_eq!(world.events(0), [], "no second event");
    // The completed entries are intact.
    assert_eq!(a.send.drain().len(), 8);
    // The other end detects the failure at its next request.
    let (to, sges) = (a.remote(0), [b.sge(0, 8)]);
    b.post(&write(to, &sges));
    world.outlast();
    assert_eq!(world.state(&b), QpState::Err);
}

#[test]
fn no_overrun_while_the_consumer_keeps_up() {
    let config = EndConfig::default().changed(|c| (c.log_cq, c.cq_start) = (3, 0x00ff_fffe));
    let (mut world, mut a, b) = World::joined(config, EndConfig::default());
    for i in 0..100 {
        for _ in 0..8 {
            a.post(&nop());
        }
        world.settle();
        assert_eq!(a.send.drain().len(), 8, "round {i}");
    }
    assert_eq!(world.state(&a), QpState::Rts);
    drop(b);
}

#[test]
fn queue_that_ignores_overruns_overwrites_entries() {
    let config = EndConfig::default().changed(|c| (c.log_cq, c.ignore_overrun) = (2, true));
    let (mut world, mut a, b) = World::joined(config, EndConfig::default());
    for _ in 0..11 {
        a.run(&mut world, &nop());
    }
    let info = world.nics[0].query_cq(a.send.cqn).unwrap();
    assert_eq!((info.producer, info.failure), (11, None));
    // Its slots hold the last four.
    let mut bytes = [0; SIZE];
    a.mem
        .read(a.send.offset + 2 * SIZE as u64, &mut bytes)
        .unwrap();
    assert_eq!(Cqe64::from_bytes(bytes).wqe_counter.get(), 10);
    drop(b);
}

#[test]
fn cq_of_one_entry_works() {
    let config = EndConfig::default().changed(|c| c.log_cq = 0);
    let (mut world, mut a, b) = World::joined(config, EndConfig::default());
    for i in 0..10 {
        a.completes(&mut world, &nop());
        assert_eq!(a.send.next, i + 1);
    }
    drop(b);
}

#[test]
fn receive_list_that_fills_its_slot_needs_no_end_mark() {
    let mut world = World::new(2);
    for stride in [16, 32, 512] {
        let config = EndConfig::default().changed(|c| c.stride = stride);
        let (mut a, mut b) = world.pair(EndConfig::default(), config);
        let n = u64::from(stride) / 16;
        for _ in 0..40 {
            let list: Vec<_> = (0..n).map(|i| b.sge(i * 100, 10)).collect();
            b.post_recv(&list);
            let data = pattern(3, n as usize * 10);
            a.put(0, &data);
            a.run(&mut world, &send(&[a.sge(0, n as u32 * 10)]));
            let mut got = Vec::new();
            for i in 0..n {
                got.extend(b.get(i * 100, 10));
            }
            assert_eq!(got, data);
            assert!(a.send.poll().is_some() && b.recv.poll().is_some());
        }
    }
}

#[test]
fn work_beyond_the_outstanding_limit_completes_in_order() {
    // One doorbell for a ring of 4096 blocks: more than the NIC fetches ahead.
    let config = EndConfig::default().changed(|c| (c.log_sq, c.log_cq) = (12, 13));
    let mut world = World::scheduled(2, 11);
    let (mut a, b) = world.pair(config, EndConfig::default());
    let quiet = WqeFlags::default();
    for i in 0..4096_u64 {
        let data = i.to_ne_bytes();
        let pieces = [&data[..]];
        let (to, payload) = (b.remote(8 * (i % 512)), Payload::Inline(&pieces));
        let flags = if i % 64 == 63 { signaled() } else { quiet };
        a.prepare(&write(to, &[]).changed(|s| (s.flags, s.payload) = (flags, payload)));
    }
    a.ring();
    world.settle();
    assert_eq!(a.send.drain().len(), 64);
    for i in 0..512 {
        assert_eq!(b.get64(8 * i), 4096 - 512 + i);
    }
    let value = a.mem.load32(a.record + 4).unwrap();
    assert_eq!(doorbell::record_index(value), 4096);
}
