//! The bell on a real futex, and its protocol under a model checker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::*;

/// Two mappings of one bell, as two processes have them.
fn pair() -> (Bell, Bell) {
    let bell = Bell::new().unwrap();
    let fd = bell.fd().as_fd().try_clone_to_owned().unwrap();
    let peer = Bell::open(fd).unwrap();
    (bell, peer)
}

#[test]
fn ring_through_another_mapping_wakes_a_sleeper_without_limit() {
    let (bell, peer) = pair();
    let rung = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            rung.store(true, Ordering::Relaxed);
            peer.ring();
        });
        while !rung.load(Ordering::Relaxed) {
            bell.sleep(Duration::MAX, || rung.load(Ordering::Relaxed));
        }
    });
}

#[test]
fn sleep_ends_at_its_limit_and_not_before() {
    let bell = Bell::new().unwrap();
    let limit = Duration::from_millis(20);
    let (start, mut naps) = (Instant::now(), 0);
    while start.elapsed() < limit {
        bell.sleep(limit, || false);
        naps += 1;
    }
    // One nap, and a few more if signals interrupt it; without sleep there would be thousands.
    assert!(naps < 10, "{naps} naps");
    // A ring without a sleeper is not stored: the check finds the work.
    bell.ring();
    assert_eq!(bell.word().load(Ordering::Relaxed), protocol::AWAKE);
}

#[test]
fn work_found_by_the_last_look_keeps_awake() {
    let bell = Bell::new().unwrap();
    // No thread rings: a sleep without limit would never return.
    bell.sleep(Duration::MAX, || true);
    bell.nap(|| None);
}

#[test]
fn descriptor_of_an_unsealed_page_is_refused() {
    let open = |size: u64, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("not-a-bell", flags).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        Bell::open(fd)
    };
    assert!(open(PAGE as u64, SealFlags::SHRINK).is_ok());
    assert!(open(PAGE as u64, SealFlags::GROW).is_err());
    assert!(open(0, SealFlags::SHRINK).is_err());
    let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
    let refused = Bell::open(socket.into()).unwrap_err();
    assert_eq!(refused.to_string(), "bell: not a memory file");
}

/// The sleep protocol on the model checker's words. The futex is a mutex (the kernel's lock of the
/// hash bucket) and a condition variable. A lost wake-up is reported as a deadlock.
mod model {
    use loom::sync::atomic::AtomicU32;
    use loom::sync::{Arc, Condvar, Mutex};

    use super::protocol::{self, ASLEEP, AWAKE};
    use super::*;
    use crate::Word;

    impl Word for AtomicU32 {
        type Value = u32;

        fn load(&self, order: Ordering) -> u32 {
            AtomicU32::load(self, order)
        }
        fn store(&self, value: u32, order: Ordering) {
            AtomicU32::store(self, value, order)
        }
        fn swap(&self, value: u32, order: Ordering) -> u32 {
            AtomicU32::swap(self, value, order)
        }
        fn compare_exchange(
            &self,
            current: u32,
            new: u32,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u32, u32> {
            AtomicU32::compare_exchange(self, current, new, success, failure)
        }
        fn fence(order: Ordering) {
            loom::sync::atomic::fence(order)
        }
    }

    struct Model {
        bell: AtomicU32,
        bucket: Mutex<()>,
        woken: Condvar,
        /// The words that the sleeper waits for, one per ringer.
        doorbells: Vec<AtomicU32>,
    }

    impl Model {
        fn sleep_until_all_rang(&self) {
            loop {
                protocol::announce(&self.bell);
                let rang = |d: &AtomicU32| d.load(Ordering::Relaxed) == 1;
                if self.doorbells.iter().all(rang) {
                    return protocol::rise(&self.bell);
                }
                let bucket = self.bucket.lock().unwrap();
                if self.bell.load(Ordering::Relaxed) == ASLEEP {
                    drop(self.woken.wait(bucket).unwrap());
                }
                protocol::rise(&self.bell);
            }
        }

        fn post(&self, i: usize, ring: fn(&AtomicU32) -> bool) {
            self.doorbells[i].store(1, Ordering::Relaxed);
            if ring(&self.bell) {
                let _bucket = self.bucket.lock().unwrap();
                self.woken.notify_one();
            }
        }
    }

    fn check(ringers: usize, ring: fn(&AtomicU32) -> bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model {
                bell: AtomicU32::new(AWAKE),
                bucket: Mutex::new(()),
                woken: Condvar::new(),
                doorbells: (0..ringers).map(|_| AtomicU32::new(0)).collect(),
            });
            let ringers: Vec<_> = (0..ringers)
                .map(|i| {
                    let model = Arc::clone(&model);
                    loom::thread::spawn(move || model.post(i, ring))
                })
                .collect();
            model.sleep_until_all_rang();
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }

    #[test]
    fn no_ring_is_lost() {
        check(1, protocol::ring);
        check(2, protocol::ring);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn without_the_fence_a_ring_is_lost() {
        check(1, |word| {
            word.load(Ordering::Relaxed) == ASLEEP && word.swap(AWAKE, Ordering::Relaxed) == ASLEEP
        });
    }

    const QUEUE: usize = 0;
    const WORD: usize = 1;

    /// A stream whose queue a rank fills and rings for, and whose word a CPU stores. The sleeper
    /// ignores stores until it has found the queue filled. No spin comes before a sleep.
    fn check_a_stream(stored: fn(&AtomicU32) -> bool, ignores: fn(bool) -> bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model {
                bell: AtomicU32::new(AWAKE),
                bucket: Mutex::new(()),
                woken: Condvar::new(),
                doorbells: (0..2).map(|_| AtomicU32::new(0)).collect(),
            });
            let post = |i, ring| {
                let model = Arc::clone(&model);
                loom::thread::spawn(move || model.post(i, ring))
            };
            let ringers = [post(QUEUE, protocol::ring), post(WORD, stored)];
            loop {
                protocol::announce(&model.bell);
                let filled = |i: usize| model.doorbells[i].load(Ordering::Relaxed) == 1;
                let begun = filled(QUEUE);
                if begun && filled(WORD) {
                    break;
                }
                if ignores(begun) {
                    protocol::ignore_stores(&model.bell);
                }
                let bucket = model.bucket.lock().unwrap();
                if model.bell.load(Ordering::Relaxed) != AWAKE {
                    drop(model.woken.wait(bucket).unwrap());
                }
                protocol::rise(&model.bell);
            }
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }

    #[test]
    fn no_store_is_lost_that_a_stream_waits_for() {
        check_a_stream(protocol::stored, |begun| !begun);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn store_without_the_fence_is_lost() {
        let unfenced = |word: &AtomicU32| {
            word.load(Ordering::Relaxed) == ASLEEP && word.swap(AWAKE, Ordering::Relaxed) == ASLEEP
        };
        check_a_stream(unfenced, |begun| !begun);
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn sleeper_that_ignores_stores_at_a_wait_loses_one() {
        check_a_stream(protocol::stored, |_| true);
    }
}
