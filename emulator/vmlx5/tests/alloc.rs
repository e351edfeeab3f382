//! No heap allocation per message, once the queues have their size.

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, SendWqe};
use rig::shared::SharedQueue;
use rig::*;
use vmlx5::Scatter;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_is_allocated_per_message() {
    for nics in [1, 2] {
        let mut world = World::new(nics);
        let (mut a, mut b) = world.pair(EndConfig::default(), EndConfig::default());
        let mut round = || {
            let (at, list) = (b.remote(0), [a.sge(0, 100_000)]);
            let eight = [a.sge(0, 8)];
            let into = [b.sge(0, 100_000), b.sge(200_000, 8)];
            b.post_recv(&into);
            b.post_recv(&into);
            a.post(&send(&list));
            a.post(&SendWqe {
                opcode: SendOpcode::RDMA_WRITE_IMM,
                ..write(at, &list)
            });
            a.post(&write(at, &eight));
            a.post(&read(at, &list));
            a.post(&atomic(at, Atomic::FetchAdd { add: 1 }, &eight));
            // This one is late.
            a.post(&send(&eight));
            world.settle();
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
        };
        for _ in 0..5 {
            round();
        }
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            round();
        }
        assert_eq!(COUNT.with(Cell::get) - before, 0, "{nics} NICs");
    }
}

/// Nor with shared receives, payloads in completion entries and keys that are invalidated.
#[test]
fn nothing_is_allocated_on_a_shared_queue() {
    let mut world = World::new(2);
    let mut queue = SharedQueue::new(&mut world.nics[1], 3);
    let scatter = Scatter {
        requester: true,
        responder: true,
    };
    let config = EndConfig {
        scatter,
        ..EndConfig::default()
    };
    let shared = EndConfig {
        srq: Some(queue.srqn),
        ..config.clone()
    };
    let (mut a, mut b) = world.pair(config, shared);
    let mut round = || {
        let (at, eight) = (b.remote(0), [a.sge(0, 8)]);
        for len in [8, 100_000] {
            queue.post(&[queue.sge(0, 100_000)]);
            a.post(&send(&[a.sge(0, len)]));
        }
        a.post(&read(at, &eight));
        a.post(&atomic(at, Atomic::FetchAdd { add: 1 }, &eight));
        // This one is late.
        a.post(&send(&eight));
        world.settle();
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
    for _ in 0..5 {
        round();
    }
    let before = COUNT.with(Cell::get);
    for _ in 0..100 {
        round();
    }
    assert_eq!(COUNT.with(Cell::get) - before, 0);
}
