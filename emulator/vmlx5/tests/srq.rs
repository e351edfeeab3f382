//! Shared receive queues: the assignment of entries, an empty queue, limits, errors, and the end of
//! queue pairs that use one.

mod rig;

use std::collections::VecDeque;
use std::time::Duration;

use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{SendWqe, Sge};
use rig::shared::SharedQueue;
use rig::*;
use vmlx5::*;

const RESP_ERR: CqeOpcode = CqeOpcode::RESP_ERR;
const RESP_SEND: CqeOpcode = CqeOpcode::RESP_SEND;

/// `pairs` connections between two NICs, whose second ends use the queue.
fn pairs(
    world: &mut World,
    queue: &SharedQueue,
    pairs: usize,
    config: &EndConfig,
) -> Vec<(End, End)> {
    let shared = config.clone().changed(|c| c.srq = Some(queue.srqn));
    let made = (0..pairs).map(|_| world.pair(config.clone(), shared.clone()));
    made.collect()
}

/// Two NICs, and a queue on the second one of 2 to the power of `log` entries.
fn shared(log: u8) -> (World, SharedQueue) {
    let mut world = World::new(2);
    let queue = SharedQueue::new(&mut world.nics[1], log);
    (world, queue)
}

/// The same, and a connection whose second end uses the queue.
fn one(log: u8) -> (World, SharedQueue, End, End) {
    let (mut world, queue) = shared(log);
    let (a, b) = pairs(&mut world, &queue, 1, &EndConfig::default()).remove(0);
    (world, queue, a, b)
}

#[test]
fn receives_follow_the_order_of_the_list() {
    let (mut world, mut queue) = shared(3);
    let mut both = pairs(&mut world, &queue, 2, &EndConfig::default());
    let post = |queue: &mut SharedQueue, at: u64| queue.post(&[queue.sge(at, 100)]);
    let first: Vec<u16> = (0..4).map(|i| post(&mut queue, i * 100)).collect();
    assert_eq!(first, [0, 1, 2, 3]);
    let mut message = |world: &mut World, pair: usize, seed: u64, at: u64, entry: u16| {
        let (a, b) = &mut both[pair];
        a.put(0, &pattern(seed, 77));
        a.run(world, &send(&[a.sge(0, 77)]));
        let done = b.recv.poll().unwrap();
        assert_ok(&done, RESP_SEND, entry);
        assert_eq!((done.byte_cnt.get(), done.qpn()), (77, b.qpn.0));
        assert!(b.recv.poll().is_none());
        (at, pattern(seed, 77))
    };
    let got = [
        message(&mut world, 1, 1, 0, 0),
        message(&mut world, 0, 2, 100, 1),
    ];
    // The receives complete in the reverse order, and are posted again in that order.
    queue.free(1);
    queue.free(0);
    let rest: Vec<u16> = (4..8).map(|i| post(&mut queue, i * 100)).collect();
    assert_eq!(rest, [4, 5, 6, 7]);
    let got = [
        got.to_vec(),
        [2, 3, 4, 5, 6, 7]
            .map(|e| {
                message(
                    &mut world,
                    usize::from(e % 2),
                    3 + u64::from(e),
                    u64::from(e) * 100,
                    e,
                )
            })
            .to_vec(),
    ]
    .concat();
    for (at, bytes) in got {
        assert_eq!(queue.get(at, 77), bytes, "at {at}");
    }
    for entry in [2, 3, 4, 5, 6, 7] {
        queue.free(entry);
    }
    assert_eq!([post(&mut queue, 0), post(&mut queue, 100)], [1, 0]);
    message(&mut world, 0, 20, 0, 1);
    message(&mut world, 0, 21, 100, 0);
    let info = world.nics[1].query_srq(queue.srqn).unwrap();
    let expected = SrqInfo {
        limit: 0,
        next: 2,
        taken: 10,
        users: 2,
        failed: false,
    };
    assert_eq!(info, expected);
}

/// Messages of all sizes from many senders, over more receives than the record's counter can hold.
#[test]
fn shared_queue_serves_many_across_the_wrap() {
    for seed in 0..4_u64 {
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::scheduled(2, seed);
        let mut queue = SharedQueue::new(&mut world.nics[1], 4);
        let config = EndConfig::default().changed(|c| c.log_cq = 8);
        let mut ends = pairs(&mut world, &queue, 3, &config);
        // First short messages across the wrap of the count, then long ones that overtake each
        // other.
        let rounds = if seed == 0 { 70_000 } else { 1500 };
        let large = seed != 0;
        let mut posted: VecDeque<u16> = VecDeque::new();
        let mut places = [0_u64; 16];
        let mut sent: Vec<VecDeque<(u64, usize)>> = vec![VecDeque::new(); 3];
        let (mut started, mut done, mut counts) = (0, 0, [0; 3]);
        while done < rounds {
            while !queue.is_full() && rng.u8(..) > 20 {
                let slot = done_slot(&posted, &places);
                let sge = queue.sge(slot * 65_536, 65_536);
                let entry = queue.post(&[sge]);
                places[usize::from(entry)] = slot;
                posted.push_back(entry);
            }
            for (pair, (a, _)) in ends.iter_mut().enumerate() {
                if started < rounds && sent[pair].len() < 8 && rng.bool() {
                    let most = if large { 60_000 } else { 16 };
                    let (len, at) = (rng.usize(0..most), 65_536 * (counts[pair] % 8));
                    counts[pair] += 1;
                    let bytes = pattern(started as u64, len);
                    a.put(at, &bytes);
                    a.post(&send(&[a.sge(at, len as u32)]));
                    sent[pair].push_back((started as u64, len));
                    started += 1;
                }
            }
            match rng.bool() {
                true => {
                    world.settle();
                    world.jump();
                }
                false => drop(world.step()),
            }
            for (pair, (a, b)) in ends.iter_mut().enumerate() {
                for cqe in a.send.drain() {
                    assert!(!cqe.opcode().is_error());
                }
                while let Some(cqe) = b.recv.poll() {
                    let entry = cqe.wqe_counter.get();
                    assert_ok(&cqe, RESP_SEND, entry);
                    let at = posted.iter().position(|&e| e == entry).expect("posted");
                    posted.remove(at);
                    let (tag, len) = sent[pair].pop_front().unwrap();
                    assert_eq!(cqe.byte_cnt.get() as usize, len);
                    let place = places[usize::from(entry)] * 65_536;
                    assert_eq!(queue.get(place, len), pattern(tag, len));
                    queue.free(entry);
                    done += 1;
                }
            }
        }
        assert_eq!(
            world.nics[1].query_srq(queue.srqn).unwrap().taken,
            rounds as u16
        );
    }
}

/// A place for data that no posted receive uses.
fn done_slot(posted: &VecDeque<u16>, places: &[u64; 16]) -> u64 {
    let used = |slot: &u64| posted.iter().any(|&e| places[usize::from(e)] == *slot);
    (0..16).find(|slot| !used(slot)).unwrap()
}

#[test]
fn empty_shared_queue_makes_senders_wait() {
    let strict = |config: &mut NicConfig| config.strict = true;
    let mut world = World::built(2, strict);
    let mut queue = SharedQueue::new(&mut world.nics[1], 2);
    let config = EndConfig::default().changed(|c| c.rnr_retry = 1);
    let mut both = pairs(&mut world, &queue, 2, &config);
    let (c, d) = &mut both[1];
    let lost = c.run(&mut world, &send(&[c.sge(0, 8)]));
    let wait = rnr_delay(12);
    world.pass(wait + Duration::from_micros(10));
    // The requester tries twice, since `rnr_retry` 1 allows one retry.
    assert_eq!(c.send_failed(lost, Syndrome::RNR_RETRY), vendor::RNR);
    assert_eq!(world.state(d), QpState::Rts);
    let (a, b) = &mut both[0];
    let sent = a.run(&mut world, &send(&[a.sge(0, 8)]));
    assert!(a.send.poll().is_none());
    queue.post(&[queue.sge(0, 8)]);
    world.settle();
    assert!(a.send.poll().is_none(), "a strict NIC gives no hints");
    world.pass(wait + Duration::from_micros(10));
    a.sent(sent);
    b.received(0);
}

#[test]
fn posted_receive_sends_a_hint_to_the_waiting_sender() {
    let (mut world, mut queue) = shared(2);
    let mut both = pairs(&mut world, &queue, 2, &EndConfig::default());
    for (a, _) in &mut both {
        a.post(&send(&[a.sge(0, 8)]));
    }
    world.settle();
    let starved = |world: &World, end: &End| world.nics[1].query_qp(end.qpn).unwrap().starved;
    assert!(both.iter().all(|(_, b)| starved(&world, b)));
    // One receive for two senders: one is served immediately, the other keeps waiting.
    queue.post(&[queue.sge(0, 8)]);
    world.settle();
    let mut served =
        |_: &World| -> usize { both.iter_mut().map(|(_, b)| b.recv.drain().len()).sum() };
    assert_eq!(served(&world), 1);
    queue.post(&[queue.sge(0, 8)]);
    world.settle();
    assert_eq!(served(&world), 1);
}

#[test]
fn write_with_immediate_takes_a_shared_receive() {
    let (mut world, mut queue, mut a, mut b) = one(2);
    let entry = queue.post(&[]);
    a.put(0, b"immediate");
    a.post(&SendWqe {
        opcode: SendOpcode::RDMA_WRITE_IMM,
        imm: [1, 2, 3, 4],
        ..write(b.remote(64), &[a.sge(0, 9)])
    });
    // A write without immediate takes no receive.
    a.run(&mut world, &write(b.remote(128), &[a.sge(0, 9)]));
    let done = b.recv.poll().unwrap();
    assert_ok(&done, CqeOpcode::RESP_WR_IMM, entry);
    assert_eq!(done.imm_inval_pkey, [1, 2, 3, 4]);
    assert_eq!(b.get(64, 9), b"immediate");
    assert_eq!(a.send.drain().len(), 2);
    assert_eq!(world.nics[1].query_srq(queue.srqn).unwrap().taken, 1);
}

#[test]
fn limit_event_is_raised_once() {
    let (mut world, mut queue, mut a, _b) = one(3);
    let (srqn, owner) = (queue.srqn, 5);
    let limit = Event::SrqLimit { srqn, owner };
    let info = |world: &World| world.nics[1].query_srq(srqn).unwrap();
    for _ in 0..5 {
        queue.post(&[queue.sge(0, 8)]);
    }
    world.nics[1].modify_srq(srqn, 3).unwrap();
    let mut take = |world: &mut World, n: usize| {
        for _ in 0..n {
            a.post(&send(&[a.sge(0, 8)]));
        }
        world.settle();
        world.events(1)
    };
    assert_eq!(take(&mut world, 2), []);
    assert_eq!(info(&world).limit, 3);
    assert_eq!(take(&mut world, 1), [limit]);
    assert_eq!(info(&world).limit, 0);
    assert_eq!(take(&mut world, 1), []);
    // One receive is left; more are posted before the count falls below the limit again.
    world.nics[1].modify_srq(srqn, 1).unwrap();
    queue.free(0);
    queue.post(&[queue.sge(0, 8)]);
    assert_eq!(take(&mut world, 1), []);
    assert_eq!(take(&mut world, 1), [limit]);
    // Fewer receives than the limit are posted when the limit is set.
    world.nics[1].modify_srq(srqn, 8).unwrap();
    assert_eq!(world.events(1), [limit]);
    let beyond = world.nics[1].modify_srq(srqn, 9);
    let object = Object::Srq;
    let (what, value) = ("limit", 9);
    assert_eq!(
        beyond,
        Err(NicError::Limit {
            object,
            what,
            value,
            limit: 8
        })
    );
    world.nics[1].modify_srq(srqn, 0).unwrap();
    assert_eq!(world.events(1), []);
}

#[test]
fn faulty_shared_receive_fails_its_message() {
    type Bad = fn(&SharedQueue) -> Vec<Sge>;
    let cases: [(Bad, Syndrome, u8, Syndrome); 4] = [
        (
            |q| vec![q.sge(0, 64).changed(|s| s.lkey = q.lkey ^ 1)],
            Syndrome::LOCAL_PROT,
            vendor::KEY_UNKNOWN,
            Syndrome::REMOTE_OP,
        ),
        (
            |q| vec![q.sge(rig::shared::ROOM - 8, 64)],
            Syndrome::LOCAL_PROT,
            vendor::KEY_RANGE,
            Syndrome::REMOTE_OP,
        ),
        (
            |q| vec![q.sge(0, 7)],
            Syndrome::LOCAL_LENGTH,
            vendor::LENGTH,
            Syndrome::REMOTE_INVAL_REQ,
        ),
        (
            |_| vec![],
            Syndrome::LOCAL_LENGTH,
            vendor::LENGTH,
            Syndrome::REMOTE_INVAL_REQ,
        ),
    ];
    for (bad, ours, why, theirs) in cases {
        let (mut world, mut queue, mut a, mut b) = one(2);
        let list = bad(&queue);
        let entry = queue.post(&list);
        queue.post(&[queue.sge(0, 64)]);
        let index = a.run(&mut world, &send(&[a.sge(0, 64)]));
        let error = b.recv.poll().unwrap();
        assert_err(&error, RESP_ERR, entry, ours);
        assert_eq!((error.as_error().vendor_err, error.qpn()), (why, b.qpn.0));
        a.send_failed(index, theirs);
        assert_eq!(world.state(&b), QpState::Err);
        assert!(b.recv.poll().is_none(), "others keep their receives");
        let (qpn, owner) = (b.qpn, 9);
        assert_eq!(world.events(1), [Event::LastWqe { qpn, owner }]);
        assert_eq!(world.nics[1].query_srq(queue.srqn).unwrap().taken, 1);
    }
}

#[test]
fn failed_shared_queue_fails_its_queue_pairs() {
    type Break = fn(&mut SharedQueue);
    let cases: [(Break, u8); 3] = [
        (|q| q.count(5), vendor::RECORD),
        (|q| q.link(0, 4), vendor::WQE_INDEX),
        (|q| q.link(0, 0xffff), vendor::WQE_INDEX),
    ];
    for (spoil, why) in cases {
        let (mut world, mut queue) = shared(2);
        let mut both = pairs(&mut world, &queue, 2, &EndConfig::default());
        queue.post(&[queue.sge(0, 64)]);
        spoil(&mut queue);
        let (srqn, owner) = (queue.srqn, 5);
        for (round, why) in [(0, why), (1, vendor::SRQ)] {
            let (a, b) = &mut both[round];
            let index = a.run(&mut world, &send(&[a.sge(0, 64)]));
            assert_eq!(a.send_failed(index, Syndrome::REMOTE_OP), why);
            assert!(b.recv.poll().is_none());
            let (qpn, own) = (b.qpn, 9);
            let mut events = vec![
                Event::QpFatal { qpn, owner: own },
                Event::LastWqe { qpn, owner: own },
            ];
            if round == 0 {
                events.push(Event::SrqError { srqn, owner });
            }
            assert_eq!(world.events(1), events);
            assert!(world.nics[1].query_srq(srqn).unwrap().failed);
        }
    }
}

/// Steps until the first part of a long message took its receive.
fn take_first_part(world: &mut World, queue: &SharedQueue, a: &mut End) {
    a.post(&send(&[a.sge(0, 1 << 20)]));
    for _ in 0..100 {
        if world.nics[1].query_srq(queue.srqn).unwrap().taken == 1 {
            return;
        }
        world.step();
    }
    panic!("no message arrives");
}

#[test]
fn taken_shared_receive_is_flushed() {
    let (mut world, mut queue) = shared(2);
    let mut both = pairs(&mut world, &queue, 2, &EndConfig::default());
    for _ in 0..3 {
        queue.post(&[queue.sge(0, 1 << 20)]);
    }
    let (a, b) = &mut both[0];
    take_first_part(&mut world, &queue, a);
    assert!(b.recv.poll().is_none());
    world.modify(b, Modify::Error);
    world.settle();
    let flushed = b.recv.poll().unwrap();
    assert_err(&flushed, RESP_ERR, 0, Syndrome::WR_FLUSH);
    assert!(b.recv.poll().is_none());
    let (qpn, owner) = (b.qpn, 9);
    assert_eq!(world.events(1), [Event::LastWqe { qpn, owner }]);
    // The other receives remain for the other queue pair.
    let (c, d) = &mut both[1];
    c.run(&mut world, &send(&[c.sge(0, 8)]));
    d.received(1);
}

#[test]
fn last_receive_event_is_raised_once_per_life() {
    let (mut world, mut queue, a, mut b) = one(2);
    queue.post(&[queue.sge(0, 8)]);
    let (qpn, owner) = (b.qpn, 9);
    for _ in 0..2 {
        world.modify(&b, Modify::Error);
        world.settle();
        assert_eq!(world.events(1), [Event::LastWqe { qpn, owner }]);
        // Sends are flushed, now and later; no further event is raised.
        let sent = b.run(&mut world, &nop());
        b.send_failed(sent, Syndrome::WR_FLUSH);
        assert_eq!(world.events(1), []);
        assert!(b.recv.poll().is_none());
        world.reset(&mut b);
        world.init(&b);
        world.rtr(&b, &a, 1);
        world.rts(&b, 1);
    }
    assert_eq!(world.nics[1].query_srq(queue.srqn).unwrap().taken, 0);
    // A queue pair with its own receive queue does not raise this event.
    world.modify(&a, Modify::Error);
    world.settle();
    assert_eq!(world.events(0), []);
}

#[test]
fn broken_unreliable_message_leaves_its_receive_to_the_next() {
    let (mut world, mut queue) = shared(2);
    let config = EndConfig::default().changed(|c| c.service = Service::Uc);
    let (mut a, mut b) = pairs(&mut world, &queue, 1, &config).remove(0);
    queue.post(&[queue.sge(0, 1 << 20)]);
    take_first_part(&mut world, &queue, &mut a);
    world.nics[1].set_port(1, false).unwrap();
    world.settle();
    world.nics[1].set_port(1, true).unwrap();
    a.put(0, b"whole");
    a.run(&mut world, &send(&[a.sge(0, 5)]));
    let done = b.recv.poll().unwrap();
    assert_ok(&done, RESP_SEND, 0);
    assert_eq!(done.byte_cnt.get(), 5);
    assert_eq!(queue.get(0, 5), b"whole");
    assert_eq!(world.nics[1].query_srq(queue.srqn).unwrap().taken, 1);
}

#[test]
fn invalid_shared_queue_operations_are_refused() {
    let (mut world, queue, _, b) = one(2);
    let nic = &mut world.nics[1];
    let (object, number) = (Object::Srq, queue.srqn.0);
    let busy = NicError::InUse {
        object,
        number,
        users: 1,
    };
    assert_eq!(nic.destroy_srq(queue.srqn), Err(busy));
    assert!(matches!(
        nic.dealloc_pd(queue.pd),
        Err(NicError::InUse { users: 2, .. })
    ));
    nic.destroy_qp(b.qpn).unwrap();
    nic.destroy_srq(queue.srqn).unwrap();
    let unknown = NicError::Unknown { object, number };
    assert_eq!(nic.destroy_srq(queue.srqn), Err(unknown.clone()));
    assert_eq!(nic.modify_srq(queue.srqn, 0), Err(unknown.clone()));
    assert_eq!(nic.query_srq(queue.srqn), Err(unknown));
    nic.dereg_mr(queue.lkey).unwrap();
    nic.dealloc_pd(queue.pd).unwrap();

    let mem = std::sync::Arc::new(HostMemory::new(1 << 16));
    let good = SrqAttr {
        pd: b.pd,
        mem: mem.clone(),
        offset: 4096,
        log_entries: 4,
        stride: 32,
        record: (mem, 0),
        limit: 0,
        owner: 0,
    };
    type Spoil = fn(&mut SrqAttr);
    let bad: [Spoil; 8] = [
        |a| a.stride = 16,
        |a| a.stride = 48,
        |a| a.stride = 1024,
        |a| a.log_entries = 16,
        |a| a.offset = 4100,
        |a| a.offset = 1 << 16,
        |a| a.record.1 = 4,
        |a| a.limit = 17,
    ];
    for (i, spoil) in bad.iter().enumerate() {
        let mut attr = good.clone();
        spoil(&mut attr);
        assert!(nic.create_srq(attr).is_err(), "case {i}");
    }
    // The limit is set at creation, for a queue without receives.
    let srqn = nic.create_srq(SrqAttr { limit: 16, ..good }).unwrap();
    let owner = 0;
    assert_eq!(nic.next_event(), Some(Event::SrqLimit { srqn, owner }));
    nic.modify_srq(srqn, 1).unwrap();
    // The removal drops its events.
    nic.destroy_srq(srqn).unwrap();
    assert_eq!(nic.next_event(), None);
}

#[test]
fn own_and_shared_receive_queues_exclude_each_other() {
    let mut world = World::new(1);
    let queue = SharedQueue::new(&mut world.nics[0], 2);
    let a = world.end(0, EndConfig::default());
    let nic = &mut world.nics[0];
    let dma: std::sync::Arc<dyn Dma> = a.mem.clone();
    let sq = SqAttr {
        mem: dma.clone(),
        offset: a.sq_at,
        log_blocks: 2,
    };
    let attr = QpAttr {
        srq: Some(queue.srqn),
        ..QpAttr::new(a.pd, a.uar, a.send.cqn, sq, (dma.clone(), a.record))
    };
    let both = QpAttr {
        rq: Some(RqAttr {
            mem: dma,
            offset: a.rq_at,
            log_entries: 2,
            stride: 64,
        }),
        ..attr.clone()
    };
    assert_eq!(nic.create_qp(both), Err(NicError::TwoReceiveQueues));
    let gone = attr.changed(|q| q.srq = Some(Srqn(queue.srqn.0 ^ 1)));
    let object = Object::Srq;
    assert!(matches!(nic.create_qp(gone), Err(NicError::Unknown { object: o, .. }) if o == object));
    assert_eq!(nic.query_srq(queue.srqn).unwrap().users, 0);
}
