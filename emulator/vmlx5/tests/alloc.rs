//! No heap allocation per message after the queues have reached their size.

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use mlx5_prm::doorbell;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, AvSeg, SendWqe};
use rig::shared::SharedQueue;
use rig::*;
use vmlx5::fabric::NodeId;
use vmlx5::{Dma, Modify, Resolve, Route, Scatter, Service};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes all calls on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller upholds the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Asserts that rounds of the same work allocate nothing, except the first ones.
fn allocates_nothing(what: &str, mut round: impl FnMut()) {
    for _ in 0..5 {
        round();
    }
    let before = COUNT.with(Cell::get);
    for _ in 0..100 {
        round();
    }
    assert_eq!(COUNT.with(Cell::get) - before, 0, "{what}");
}

/// Resolves every address to the only NIC.
struct Here(NodeId);

impl Resolve for Here {
    fn resolve(&self, _: &AvSeg, port: u8) -> Option<Route> {
        let (slid, sl, path_bits, header) = (1, 0, 0, None);
        Some(Route {
            node: self.0,
            port,
            slid,
            sl,
            path_bits,
            header,
        })
    }
}

#[test]
fn datagrams_allocate_nothing() {
    let mut world = World::new(1);
    let resolver = Here(world.nics[0].node());
    world.nics[0].set_resolver(Arc::new(resolver));
    let config = EndConfig::default().changed(|c| c.service = Service::Ud);
    let [mut a, mut b] = [0; 2].map(|nic| world.end(nic, config.clone()));
    for end in [&a, &b] {
        world.init(end);
        world.modify(end, Modify::UdRtr);
        world.modify(end, Modify::UdRts { sq_psn: 0 });
    }
    let round = || {
        b.post_recv(&[b.sge(0, 48)]);
        // More destinations than the cache holds.
        for lid in 1..40 {
            let qpn = if lid == 1 { b.qpn.0 } else { 0x77 };
            a.run(
                &mut world,
                &SendWqe {
                    av: Some(AvSeg::infiniband(0x11, qpn, lid, 0)),
                    ..send(&[a.sge(0, 8)])
                },
            );
            assert!(a.send.poll().is_some());
        }
        assert!(b.recv.poll().is_some());
    };
    allocates_nothing("datagrams", round);
}

#[test]
fn messages_allocate_nothing() {
    for (nics, events) in [(1, false), (2, false), (2, true)] {
        let mut world = World::new(nics);
        let config = EndConfig::default().changed(|c| c.events = events);
        let (mut a, mut b) = world.pair(config.clone(), config);
        let mut sequence = 0;
        let round = || {
            sequence += 1;
            for (end, cq) in [(&a, &a.send), (&b, &b.recv)] {
                let word = doorbell::cq_arm_value(sequence, false, cq.next);
                let at = cq.record + doorbell::ARM as u64;
                end.mem.store32(at, word).unwrap();
            }
            let (at, list) = (b.remote(0), [a.sge(0, 100_000)]);
            let eight = [a.sge(0, 8)];
            let into = [b.sge(0, 100_000), b.sge(200_000, 8)];
            b.post_recv(&into);
            b.post_recv(&into);
            a.post(&send(&list));
            a.post(&write(at, &list).changed(|s| s.opcode = SendOpcode::RDMA_WRITE_IMM));
            a.post(&write(at, &eight));
            a.post(&read(at, &list));
            a.post(&atomic(at, Atomic::FetchAdd { add: 1 }, &eight));
            // This receive is posted late.
            a.run(&mut world, &send(&eight));
            b.post_recv(&into);
            world.settle();
            let mut done = 0;
            while a.send.poll().is_some() {
                done += 1;
            }
            while b.recv.poll().is_some() {
                done += 1;
            }
            assert_eq!(done, 9);
            let mut events_raised = 0;
            for nic in &mut world.nics {
                while nic.next_event().is_some() {
                    events_raised += 1;
                }
            }
            assert_eq!(events_raised, if events { 2 } else { 0 });
        };
        allocates_nothing(&format!("{nics} NICs, events: {events}"), round);
    }
}

/// The same with shared receives, payloads in completion entries and invalidated keys.
#[test]
fn shared_receives_allocate_nothing() {
    let mut world = World::new(2);
    let mut queue = SharedQueue::new(&mut world.nics[1], 3);
    let scatter = Scatter {
        requester: true,
        responder: true,
    };
    let config = EndConfig::default().changed(|c| c.scatter = scatter);
    let shared = config.clone().changed(|c| c.srq = Some(queue.srqn));
    let (mut a, mut b) = world.pair(config, shared);
    let round = || {
        let (at, eight) = (b.remote(0), [a.sge(0, 8)]);
        for len in [8, 100_000] {
            queue.post(&[queue.sge(0, 100_000)]);
            a.post(&send(&[a.sge(0, len)]));
        }
        a.post(&read(at, &eight));
        a.post(&atomic(at, Atomic::FetchAdd { add: 1 }, &eight));
        // This receive is posted late.
        a.run(&mut world, &send(&eight));
        queue.post(&[queue.sge(0, 64)]);
        world.settle();
        let mut done = 0;
        while a.send.poll().is_some() {
            done += 1;
        }
        while let Some(cqe) = b.recv.poll() {
            queue.free(cqe.wqe_counter.get());
            done += 1;
        }
        assert_eq!(done, 8);
    };
    allocates_nothing("a shared queue", round);
}
