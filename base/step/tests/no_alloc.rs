//! After machines are attached, stepping, ringing, sleeping and waiting allocate nothing. The test
//! has a separate process because it counts allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gds_step::{Env, Host, Machine, Step, Thread, Time};
use gds_step::{Live, LiveConfig};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread counts: threads of the test harness do not.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the system allocator, unchanged; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(u64::from(COUNTS.get()), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Copies one word to another.
struct Echo(Arc<[AtomicU64; 2]>);

impl Machine for Echo {
    fn step(&mut self, _: Time) -> Step {
        COUNTS.set(true);
        let word = self.0[0].load(Ordering::Acquire);
        if self.0[1].swap(word, Ordering::Release) == word {
            Step::IdleUntil(None)
        } else {
            Step::Progress
        }
    }
    fn name(&self) -> String {
        "echo".into()
    }
}

#[test]
fn steady_state_allocates_nothing() {
    COUNTS.set(true);
    // The thread sleeps after each word, so every word wakes it.
    let config = LiveConfig {
        spin: Duration::ZERO,
        ..LiveConfig::default()
    };
    let live = Live::new(config).unwrap();
    let words = Arc::new([const { AtomicU64::new(0) }; 2]);
    for thread in [Thread::Device, Thread::Watch, Thread::Cpu] {
        live.attach(thread, Box::new(Echo(Arc::clone(&words))));
    }
    let echo = |range: std::ops::RangeInclusive<u64>| {
        for i in range {
            words[0].store(i, Ordering::Release);
            live.ring();
            assert!(live.wait_until(None, &mut || words[1].load(Ordering::Acquire) == i));
        }
    };
    echo(1..=100);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(before > 0, "the counter counts: attaching allocates");
    echo(101..=1000);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
