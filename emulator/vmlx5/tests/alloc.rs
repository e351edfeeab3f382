//! No heap allocation per message, once the queues have their size.

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mlx5_prm::doorbell;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, SendWqe};
use rig::*;
use vmlx5::Dma;

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
    for (nics, events) in [(1, false), (2, false), (2, true)] {
        let mut world = World::new(nics);
        let config = EndConfig {
            events,
            ..EndConfig::default()
        };
        let (mut a, mut b) = world.pair(config.clone(), config);
        let mut sequence = 0;
        let mut round = || {
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
            let mut told = 0;
            for nic in &mut world.nics {
                while nic.next_event().is_some() {
                    told += 1;
                }
            }
            assert_eq!(told, if events { 2 } else { 0 });
        };
        for _ in 0..5 {
            round();
        }
        let before = COUNT.with(Cell::get);
        for _ in 0..100 {
            round();
        }
        let more = COUNT.with(Cell::get) - before;
        assert_eq!(more, 0, "{nics} NICs, events: {events}");
    }
}
