//! The stream queue under the loom model checker: the shipped source, with loom's words and
//! slots in place of the machine's.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use gds_step::Word;
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use softgpu::queue::{Consumer, Family, Producer, Ring, Slot};

struct LoomWord(AtomicU64);

impl Word for LoomWord {
    type Value = u64;

    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

/// A slot whose every access loom checks for races.
struct LoomSlot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> for LoomSlot<T> {
    fn empty() -> Self {
        LoomSlot(UnsafeCell::new(MaybeUninit::uninit()))
    }
    unsafe fn put(&self, value: T) {
        // SAFETY: loom stops at a race; otherwise as the trait demands.
        self.0.with_mut(|p| unsafe { (*p).write(value) });
    }
    unsafe fn take(&self) -> T {
        // SAFETY: as above.
        self.0.with(|p| unsafe { (*p).assume_init_read() })
    }
}

struct Loom;

impl Family for Loom {
    type Word = LoomWord;
    type Slot<T> = LoomSlot<T>;

    fn word(value: u64) -> LoomWord {
        LoomWord(AtomicU64::new(value))
    }
}

type Tx = Producer<(u64, u64), Loom>;
type Rx = Consumer<(u64, u64), Loom>;

/// Enqueues submission `n` of `items` items, waiting for room.
fn send(tx: &mut Tx, n: u64, items: u64) {
    loop {
        if let Some(mut s) = tx.begin(items as usize) {
            for i in 0..items {
                s.push((n, i));
            }
            assert_eq!(s.publish(), n + 1);
            return;
        }
        thread::yield_now();
    }
}

/// Takes submission `n`: once its first item is there, all are.
fn receive(rx: &mut Rx, n: u64, items: u64) {
    let first = loop {
        match rx.pop() {
            Some(first) => break first,
            None => thread::yield_now(),
        }
    };
    assert_eq!(first, (n, 0));
    for i in 1..items {
        assert!(!rx.finish(), "the submission has more items");
        assert_eq!(rx.pop(), Some((n, i)), "all or nothing");
    }
    assert!(rx.finish(), "the submission has no more items");
}

mod model {
    use super::*;

    #[test]
    fn submissions_arrive_whole_and_slots_are_reused_after_they_retire() {
        loom::model(|| {
            // Two slots: the second submission needs the first one's.
            let (mut tx, mut rx) = Ring::<_, Loom>::channel(2, 2);
            let sender = thread::spawn(move || {
                send(&mut tx, 0, 2);
                send(&mut tx, 1, 1);
                send(&mut tx, 2, 2);
                tx
            });
            for (n, items) in [(0, 2), (1, 1), (2, 2)] {
                receive(&mut rx, n, items);
                rx.retire();
            }
            let tx = sender.join().unwrap();
            assert_eq!(tx.submitted(), 3);
            assert_eq!(tx.ring().retired(), 3);
            assert_eq!(rx.pop(), None);
        });
    }

    #[test]
    fn bound_holds_and_writes_of_retired_work_are_visible() {
        loom::model(|| {
            let (mut tx, mut rx) = Ring::<_, Loom>::channel(1, 4);
            // What the consumer's work writes; plain memory, so loom detects a missing order.
            let result = loom::sync::Arc::new(UnsafeCell::new(0));
            let written = loom::sync::Arc::clone(&result);
            let worker = thread::spawn(move || {
                receive(&mut rx, 0, 1);
                // SAFETY: the sender reads only when this submission is retired.
                written.with_mut(|p| unsafe { *p = 7 });
                assert!(rx.has_unretired());
                rx.retire();
                receive(&mut rx, 1, 1);
                rx.retire();
            });
            send(&mut tx, 0, 1);
            if tx.ring().retired() == 0 {
                thread::yield_now();
            }
            send(&mut tx, 1, 1);
            // The bound is one, so the first is retired now.
            assert!(tx.ring().retired() >= 1);
            // SAFETY: the worker does not write it again.
            result.with(|p| assert_eq!(unsafe { *p }, 7));
            worker.join().unwrap();
        });
    }

    #[test]
    fn late_retirement_keeps_slots() {
        loom::model(|| {
            let (mut tx, mut rx) = Ring::<_, Loom>::channel(4, 4);
            let sender = thread::spawn(move || {
                for n in 0..3 {
                    send(&mut tx, n, 2);
                }
            });
            // Finished but not retired, as under weak memory: one retirement for both.
            receive(&mut rx, 0, 2);
            receive(&mut rx, 1, 2);
            rx.retire();
            receive(&mut rx, 2, 2);
            sender.join().unwrap();
        });
    }

    #[test]
    fn abandoned_submission_publishes_nothing() {
        loom::model(|| {
            let (mut tx, mut rx) = Ring::<_, Loom>::channel(2, 2);
            let mut abandoned = tx.begin(2).unwrap();
            abandoned.push((9, 9));
            drop(abandoned);
            let sender = thread::spawn(move || send(&mut tx, 0, 1));
            receive(&mut rx, 0, 1);
            sender.join().unwrap();
            assert_eq!(rx.pop(), None);
        });
    }
}
