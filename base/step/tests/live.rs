//! The live driver. No test depends on speed: a time limit only ends a wait that would last for
//! ever, or for an hour.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gds_step::{Awaits, Bell, Env, Host, Machine, MachineId, Step, Thread, Time};
use gds_step::{Live, LiveConfig};

const HOUR: Duration = Duration::from_secs(3600);
const LONG: Duration = Duration::from_secs(60);

/// A machine with a closure as its step.
struct With<F>(F);

impl<F: FnMut(Time) -> Step + Send> Machine for With<F> {
    fn step(&mut self, now: Time) -> Step {
        (self.0)(now)
    }
    fn name(&self) -> String {
        "with".into()
    }
}

fn with(step: impl FnMut(Time) -> Step + Send + 'static) -> Box<dyn Machine> {
    Box::new(With(step))
}

/// A driver whose threads sleep for an hour unless a ring wakes them.
fn sleepy() -> LiveConfig {
    LiveConfig {
        spin: Duration::ZERO,
        nap: HOUR,
        watch: HOUR,
        ..LiveConfig::default()
    }
}

fn eventually(live: &Live, mut condition: impl FnMut() -> bool) {
    let deadline = live.now() + LONG;
    assert!(
        live.wait_until(Some(deadline), &mut condition),
        "not within {LONG:?}"
    );
}

/// A word and the machine that copies it.
fn copier() -> (Arc<[AtomicU64; 3]>, Box<dyn Machine>) {
    let words = Arc::new([const { AtomicU64::new(0) }; 3]);
    let w = Arc::clone(&words);
    let machine = with(move |_| {
        w[2].fetch_add(1, Ordering::Relaxed);
        let seen = w[0].load(Ordering::Acquire);
        if w[1].swap(seen, Ordering::Release) == seen {
            Step::IdleUntil(None)
        } else {
            Step::Progress
        }
    });
    (words, machine)
}

/// Waits until the copier is not stepped any more: its thread sleeps.
fn until_asleep(live: &Live, words: &[AtomicU64; 3]) {
    eventually(live, || words[2].load(Ordering::Relaxed) > 0);
    let (mut last, start) = (0, Instant::now());
    while last != words[2].load(Ordering::Relaxed) {
        assert!(start.elapsed() < LONG, "still awake");
        last = words[2].load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn ring_ends_a_sleep_of_an_hour() {
    let live = Live::new(sleepy()).unwrap();
    for thread in [Thread::Device, Thread::Cpu] {
        let (words, machine) = copier();
        let id = live.attach(thread, machine);
        for i in 1..=20 {
            if i % 5 == 1 {
                until_asleep(&live, &words);
            }
            words[0].store(i, Ordering::Release);
            live.ring();
            eventually(&live, || words[1].load(Ordering::Acquire) == i);
        }
        live.detach(id);
    }
}

/// A machine that awaits no stores of the CPU.
struct Deaf(Awaits, Box<dyn Machine>);

impl Machine for Deaf {
    fn step(&mut self, now: Time) -> Step {
        self.1.step(now)
    }
    fn name(&self) -> String {
        self.1.name()
    }
    fn awaits(&self) -> Awaits {
        self.0
    }
}

#[test]
fn store_wakes_a_thread_only_if_a_machine_awaits_stores() {
    let resting = LiveConfig {
        spin: Duration::ZERO,
        rest: HOUR,
        ..LiveConfig::default()
    };
    for (awaits, config) in [(Awaits::Devices, sleepy()), (Awaits::Rings, resting)] {
        let live = Live::new(config).unwrap();
        let (words, machine) = copier();
        live.attach(Thread::Device, Box::new(Deaf(awaits, machine)));
        until_asleep(&live, &words);
        let rounds = words[2].load(Ordering::Relaxed);
        words[0].store(1, Ordering::Release);
        live.stored();
        // A thread that was woken in error would run a round within this time, or not be detected.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(words[2].load(Ordering::Relaxed), rounds);
        live.ring();
        eventually(&live, || words[1].load(Ordering::Acquire) == 1);
    }

    let live = Live::new(sleepy()).unwrap();
    live.attach(Thread::Device, Box::new(Deaf(Awaits::Rings, copier().1)));
    let (words, machine) = copier();
    live.attach(Thread::Device, machine);
    until_asleep(&live, &words);
    words[0].store(2, Ordering::Release);
    live.stored();
    eventually(&live, || words[1].load(Ordering::Acquire) == 2);
}

#[test]
fn peer_rings_the_bell_that_it_opened() {
    use std::os::fd::AsFd;
    let live = Live::new(sleepy()).unwrap();
    let peer = Bell::open(live.bell().fd().as_fd().try_clone_to_owned().unwrap()).unwrap();
    let (words, machine) = copier();
    live.attach(Thread::Device, machine);
    until_asleep(&live, &words);
    words[0].store(7, Ordering::Release);
    peer.ring();
    eventually(&live, || words[1].load(Ordering::Acquire) == 7);
}

#[test]
fn store_without_a_wake_up_is_noticed() {
    let live = Live::new(LiveConfig::default()).unwrap();
    for thread in [Thread::Device, Thread::Watch, Thread::Cpu] {
        let (words, machine) = copier();
        live.attach(thread, machine);
        for i in 1..=20 {
            words[0].store(i, Ordering::Relaxed);
            eventually(&live, || words[1].load(Ordering::Acquire) == i);
        }
    }
}

/// The stuck watcher stands for a driver call that does not return.
#[test]
fn stuck_watcher_stops_no_other_machine() {
    let live = Live::new(LiveConfig::default()).unwrap();
    let (release, stuck) = std::sync::mpsc::channel::<()>();
    live.attach(
        Thread::Watch,
        with(move |_| {
            let _ = stuck.recv();
            Step::IdleUntil(None)
        }),
    );
    let (words, machine) = copier();
    let other = live.attach(Thread::Watch, machine);
    words[0].store(1, Ordering::Relaxed);
    eventually(&live, || words[1].load(Ordering::Acquire) == 1);
    live.detach(other);
    drop(release);
}

/// A caller that drops a device with a stuck driver must continue.
#[test]
fn detach_of_a_stuck_watcher_returns_after_its_time_limit() {
    let live = Live::new(LiveConfig::default()).unwrap();
    let (release, stuck) = std::sync::mpsc::channel::<()>();
    let (entered, inside) = std::sync::mpsc::channel();
    let id = live.attach(
        Thread::Watch,
        with(move |_| {
            let _ = entered.send(());
            let _ = stuck.recv();
            Step::IdleUntil(None)
        }),
    );
    inside.recv().unwrap();
    let (detached, done) = std::sync::mpsc::channel();
    let detaching = Arc::clone(&live);
    std::thread::spawn(move || {
        detaching.detach(id);
        let _ = detached.send(());
    });
    let returned = done.recv_timeout(Duration::from_secs(20));
    drop(release);
    assert!(
        returned.is_ok(),
        "detach waits for the stuck step without limit"
    );
}

#[test]
fn machine_is_stepped_at_its_requested_time() {
    let live = Live::new(sleepy()).unwrap();
    for thread in [Thread::Device, Thread::Watch, Thread::Cpu] {
        let (done, seen) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let (d, s, mut next) = (Arc::clone(&done), Arc::clone(&seen), None);
        live.attach(
            thread,
            with(move |now| {
                let due = *next.get_or_insert(now);
                if d.load(Ordering::Relaxed) {
                    return Step::IdleUntil(None);
                }
                if now >= due {
                    let mut seen = s.lock().unwrap();
                    seen.push(now);
                    next = Some(now + Duration::from_millis(2));
                    d.store(seen.len() == 5, Ordering::Relaxed);
                }
                Step::IdleUntil(next)
            }),
        );
        eventually(&live, || done.load(Ordering::Relaxed));
        let seen = seen.lock().unwrap();
        assert!(
            seen.windows(2)
                .all(|w| w[1] - w[0] >= Duration::from_millis(2)),
            "{seen:?}"
        );
    }
}

#[test]
fn detach_under_load_leaves_no_step_behind() {
    let live = Live::new(LiveConfig::default()).unwrap();
    // Some machines are always busy, so that rounds never cease.
    for _ in 0..3 {
        live.attach(Thread::Device, with(|_| Step::Progress));
    }
    std::thread::scope(|s| {
        for t in 0..4 {
            let live = &live;
            let thread = if t == 3 { Thread::Cpu } else { Thread::Device };
            s.spawn(move || {
                for i in 0..200 {
                    let steps = Arc::new(AtomicU64::new(0));
                    let mine = Arc::clone(&steps);
                    let id = live.attach(
                        thread,
                        with(move |_| {
                            mine.fetch_add(1, Ordering::Relaxed);
                            Step::Progress
                        }),
                    );
                    // Half of them are detached, some of them possibly before their first step.
                    if i % 2 == 0 {
                        eventually(live, || steps.load(Ordering::Relaxed) > 0);
                    }
                    live.detach(id);
                    let last = steps.load(Ordering::Relaxed);
                    assert_eq!(Arc::strong_count(&steps), 1, "dropped when detach returns");
                    assert_eq!(steps.load(Ordering::Relaxed), last);
                    live.detach(id);
                }
            });
        }
    });
    live.detach(MachineId(u64::MAX));
    assert_eq!(live.failures(), []);
}

#[test]
fn panic_detaches_only_its_own_machine() {
    struct Bad;
    impl Machine for Bad {
        fn step(&mut self, _: Time) -> Step {
            panic!("bad {}", "step")
        }
        fn name(&self) -> String {
            "bad0".into()
        }
    }
    struct BadDrop;
    impl Machine for BadDrop {
        fn step(&mut self, _: Time) -> Step {
            Step::IdleUntil(None)
        }
        fn name(&self) -> String {
            "bad1".into()
        }
    }
    impl Drop for BadDrop {
        fn drop(&mut self) {
            panic!("bad drop")
        }
    }
    let live = Live::new(LiveConfig::default()).unwrap();
    let (words, machine) = copier();
    live.attach(Thread::Device, machine);
    let bad = live.attach(Thread::Device, Box::new(Bad));
    eventually(&live, || !live.failures().is_empty());
    let bad_drop = live.attach(Thread::Device, Box::new(BadDrop));
    live.detach(bad_drop);
    let found: Vec<_> = live
        .failures()
        .into_iter()
        .map(|f| (f.machine, f.name, f.message))
        .collect();
    let expected = [
        (bad, "bad0".to_owned(), "bad step".to_owned()),
        (bad_drop, "bad1".to_owned(), "bad drop".to_owned()),
    ];
    assert_eq!(found, expected);
    // The machine is detached, and the thread continues.
    live.detach(bad);
    words[0].store(1, Ordering::Release);
    eventually(&live, || words[1].load(Ordering::Acquire) == 1);
}

/// Detaches another machine of its thread: in a step on request, or else when dropped.
struct Detacher {
    live: std::sync::Weak<Live>,
    other: MachineId,
    in_step: bool,
}

impl Detacher {
    fn detach(&self) {
        if let Some(live) = self.live.upgrade() {
            live.detach(self.other);
        }
    }
}

impl Machine for Detacher {
    fn step(&mut self, _: Time) -> Step {
        if std::mem::take(&mut self.in_step) {
            self.detach();
        }
        Step::IdleUntil(None)
    }
    fn name(&self) -> String {
        "detacher".into()
    }
}

impl Drop for Detacher {
    fn drop(&mut self) {
        self.detach();
    }
}

#[test]
fn detach_on_the_own_thread_is_deferred_without_deadlock() {
    for in_step in [true, false] {
        let live = Live::new(LiveConfig::default()).unwrap();
        let token = Arc::new(());
        let held = Arc::clone(&token);
        let other = live.attach(
            Thread::Device,
            with(move |_| {
                let _ = &held;
                Step::IdleUntil(None)
            }),
        );
        let detacher = Detacher {
            live: Arc::downgrade(&live),
            other,
            in_step,
        };
        let id = live.attach(Thread::Device, Box::new(detacher));
        if !in_step {
            live.detach(id);
        }
        eventually(&live, || Arc::strong_count(&token) == 1);
        let reported = live
            .failures()
            .iter()
            .any(|f| f.message.contains("same thread"));
        assert_eq!(reported, in_step && cfg!(debug_assertions));
    }
}

#[test]
fn dropped_driver_drops_its_machines() {
    let token = Arc::new(());
    let live = Live::new(LiveConfig::default()).unwrap();
    for thread in [Thread::Device, Thread::Watch, Thread::Cpu] {
        let held = Arc::clone(&token);
        live.attach(
            thread,
            with(move |_| {
                let _ = &held;
                Step::Progress
            }),
        );
    }
    drop(live);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn last_reference_may_be_dropped_on_the_drivers_own_thread() {
    let live = Live::new(LiveConfig::default()).unwrap();
    let token = Arc::new(());
    let (mut last, held) = (Some(Arc::clone(&live)), Arc::clone(&token));
    let go = Arc::new(AtomicBool::new(false));
    let may_go = Arc::clone(&go);
    live.attach(
        Thread::Device,
        with(move |_| {
            let _ = &held;
            if may_go.load(Ordering::Acquire) {
                drop(last.take());
            }
            Step::Progress
        }),
    );
    drop(live);
    go.store(true, Ordering::Release);
    let start = Instant::now();
    while Arc::strong_count(&token) > 1 {
        assert!(start.elapsed() < LONG);
        std::thread::yield_now();
    }
}

#[test]
fn wait_evaluates_once_and_ends_at_its_deadline() {
    let live = Live::new(LiveConfig::default()).unwrap();
    let past = Some(Time::ZERO);
    let mut tries = 0;
    let mut never = || {
        tries += 1;
        false
    };
    assert!(!live.wait_until(past, &mut never));
    assert_eq!(tries, 1);
    assert!(live.wait_until(past, &mut || true));
    let deadline = live.now() + Duration::from_millis(3);
    assert!(!live.wait_until(Some(deadline), &mut || false));
    assert!(live.now() >= deadline);
    let (mut tries, start) = (0, live.now());
    assert!(live.wait_until(None, &mut || {
        tries += 1;
        live.now() - start > Duration::from_millis(20)
    }));
    assert!(tries > 1);
}

#[test]
fn process_has_one_global_driver() {
    let (a, b) = (Live::global().unwrap(), Live::global().unwrap());
    assert!(Arc::ptr_eq(&a, &b));
}
