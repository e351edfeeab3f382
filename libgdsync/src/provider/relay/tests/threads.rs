//! The thread of a NIC, and threads that wait.

use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::super::thread::{Common, SPIN, SharedRelay, Source};
use super::*;

/// A NIC without work of its own.
struct Probe {
    rounds: AtomicU32,
    fd: RawFd,
    before_sleep: Box<dyn Fn() + Send + Sync>,
}

impl Probe {
    fn new(fd: RawFd) -> Probe {
        Probe {
            rounds: AtomicU32::new(0),
            fd,
            before_sleep: Box::new(|| ()),
        }
    }

    /// The state of the NIC, for a thread that spins for so long.
    fn common(self, spin: Duration) -> Arc<Common<Probe>> {
        let live = gds_step::Live::new(gds_step::LiveConfig::default()).expect("a driver");
        Arc::new(Common::new(self, live, false, spin, "test").expect("a bell"))
    }
}

impl Source for Probe {
    type Queues = Fake;

    fn name(&self) -> &str {
        "probe"
    }

    fn fd(&self) -> RawFd {
        self.fd
    }

    fn take_events(&self, _: &[SharedRelay<Fake>], _: i16) -> bool {
        false
    }

    fn look(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    fn before_sleep(&self, _: &[SharedRelay<Fake>]) -> bool {
        (self.before_sleep)();
        false
    }
}

/// It would take the processor from a peer on the same host.
#[test]
fn nic_thread_does_not_spin_while_another_thread_has_the_queue_pair() {
    let common = Probe::new(-1).common(Duration::from_micros(100));
    let relay = SharedRelay::new(Rig::new(0, LIMITS).relay);
    common.change(|relays| relays.push(relay.clone()));
    let thread = common.spawn("probe", "test").expect("a thread");
    let rounds = || common.source.rounds.load(Ordering::Relaxed);
    let held = relay.with(|_| {
        let before = rounds();
        std::thread::sleep(Duration::from_millis(200));
        rounds() - before
    });
    common.stop();
    thread.join().expect("it ends");
    // A thread that spins does a round in less than 1 us.
    assert!(held < 10_000, "{held} rounds");
}

/// A stream posts behind the last round of the thread: its store does not wake the thread.
#[test]
fn last_post_of_a_stream_while_the_thread_goes_to_sleep_is_found_soon() {
    let delay = || {
        let mut rig = Rig::new(0, LIMITS);
        let bytes = rig.wqe(SendOpcode::SEND, true);
        rig.rings.send.write(0, &bytes);
        rig.relay.expect(1, 0);
        let record = rig.rings.record;
        let posted = Arc::new(OnceLock::new());
        let post = {
            let posted = Arc::clone(&posted);
            move || {
                posted.get_or_init(|| {
                    record.store32(doorbell::SND, doorbell::record_value(1));
                    Instant::now()
                });
            }
        };
        let nic = Probe {
            before_sleep: Box::new(post),
            ..Probe::new(-1)
        };
        let common = nic.common(Duration::ZERO);
        let relay = SharedRelay::new(rig.relay);
        common.change(|relays| relays.push(relay.clone()));
        let thread = common.spawn("probe", "test").expect("a thread");
        while relay.with(|relay| relay.queues.sends.is_empty()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let delay = posted.get().expect("posted").elapsed();
        common.stop();
        thread.join().expect("it ends");
        delay
    };
    // A sleep that only time ends takes 100 ms. Other load may delay some tries.
    assert!((0..20).any(|_| delay() < Duration::from_millis(50)));
}

/// A thread of the application has the work, and may sleep or have gone when a stream posts. The NIC's thread
/// finds the post, also one that is made before it looks.
#[test]
fn posts_of_streams_are_found_while_another_thread_has_the_work() {
    for posts_first in [false, true] {
        let rig = Rig::new(0, LIMITS);
        let bytes = rig.wqe(SendOpcode::SEND, true);
        rig.rings.send.write(0, &bytes);
        let record = rig.rings.record;
        let post = || record.store32(doorbell::SND, doorbell::record_value(1));
        let common = Probe::new(-1).common(SPIN);
        let relay = SharedRelay::new(rig.relay);
        common.change(|relays| relays.push(relay.clone()));
        common.assist(Time::from_nanos(u64::MAX / 2));
        let thread = common.spawn("probe", "test").expect("a thread");
        let pause = || std::thread::sleep(Duration::from_millis(20));
        let rounds = || common.source.rounds.load(Ordering::Relaxed);
        // It leaves the work, up to the announcement.
        pause();
        let before = rounds();
        pause();
        assert_eq!(rounds(), before);
        relay.with(|relay| relay.expect(1, 0));
        if posts_first {
            post();
        }
        common.ring_for_posts();
        if !posts_first {
            pause();
            post();
        }
        while relay.with(|relay| relay.queues.sends.is_empty()) {
            pause();
        }
        // Then it leaves the work again.
        loop {
            let before = rounds();
            pause();
            if rounds() == before {
                break;
            }
        }
        common.stop();
        thread.join().expect("it ends");
    }
}

/// Lets the calling thread run on this processor alone.
fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("a processor");
}

/// The processor time of the calling thread.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// An event stays until the thread that polls has read it, so that a thread that waits finds it again and
/// again.
#[test]
fn thread_that_waits_leaves_the_processor_to_the_one_that_polls() {
    const WORK: Duration = Duration::from_millis(200);
    // It always has an event.
    let file = File::open("/dev/null").expect("a file");
    let common = Probe::new(file.as_raw_fd()).common(WORK);
    let cpu = sched_getcpu();
    let done = AtomicBool::new(false);
    let waited = std::thread::scope(|threads| {
        let waiter = threads.spawn(|| {
            stay_on(cpu);
            let before = used();
            common.wait_until(None, &mut || done.load(Ordering::Relaxed));
            used() - before
        });
        stay_on(cpu);
        common.change(|_| {
            let before = used();
            while used() - before < WORK {}
        });
        done.store(true, Ordering::Relaxed);
        waiter.join().expect("it ends")
    });
    assert!(waited < WORK / 4, "{waited:?}");
}
