//! The simulated driver: replay, the virtual clock, waits inside and outside of ranks, traces.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gds_sim::{Cause, Sim, SimConfig, SimError, SimReport, seeds};
use gds_step::{Host, MachineId, Step, Time};

use world::{device, get, word, world};

mod world;

/// Adds the value of `from` to `to` after one microsecond.
fn wire(host: &Arc<dyn Host>, name: &str, from: &Arc<AtomicU64>, to: &Arc<AtomicU64>) -> MachineId {
    let (from, to, mut due) = (Arc::clone(from), Arc::clone(to), None);
    device(host, name, move |now| match due {
        None if get(&from) == 0 => Step::IdleUntil(None),
        None => {
            due = Some((
                now + Duration::from_micros(1),
                from.swap(0, Ordering::Relaxed),
            ));
            Step::Progress
        }
        Some((t, n)) if now >= t => {
            to.fetch_add(n, Ordering::Relaxed);
            due = None;
            Step::Progress
        }
        Some((t, _)) => Step::IdleUntil(Some(t)),
    })
}

/// Two ranks send each other ten words; returns what each received and when.
fn ping_pong(seed: u64) -> Result<(SimReport, Vec<Time>), SimError> {
    let (mut sim, host) = world(seed);
    let words: Vec<_> = (0..4).map(|_| word()).collect();
    wire(&host, "there", &words[0], &words[1]);
    wire(&host, "back", &words[2], &words[3]);
    let times = Rc::new(RefCell::new(Vec::new()));
    for (me, (out, inn)) in [(0, 3), (2, 1)].into_iter().enumerate() {
        let (host, times) = (sim.host(), Rc::clone(&times));
        let (out, inn) = (Arc::clone(&words[out]), Arc::clone(&words[inn]));
        sim.rank(format!("rank{me}"), move || {
            for i in 1..=10 {
                if me == 0 {
                    out.store(1, Ordering::Relaxed);
                }
                assert!(host.wait_until(None, &mut || get(&inn) == i));
                times.borrow_mut().push(host.now());
                if me == 1 {
                    out.store(1, Ordering::Relaxed);
                }
            }
        });
    }
    let report = sim.run()?;
    let times = times.borrow().clone();
    Ok((report, times))
}

#[test]
fn seed_replays_exactly_and_seeds_differ() {
    let mut digests = BTreeSet::new();
    seeds(50, |seed| {
        let first = ping_pong(seed)?;
        assert_eq!(first.1.len(), 20);
        // 20 us on the wire; no rank waited a whole second for a poll.
        assert!(first.0.time > Time::from_nanos(20_000));
        assert!(first.0.time < Time::from_nanos(1_000_000_000));
        assert_eq!(first, ping_pong(seed)?);
        digests.insert(first.0.digest);
        Ok::<_, SimError>(())
    });
    if std::env::var_os("GDS_SEED").is_none() && std::env::var_os("GDS_SEEDS").is_none() {
        assert_eq!(digests.len(), 50);
    }
}

/// Two ranks increment a counter and yield between load and store. An update is lost if the
/// scheduler switches there.
fn racy(seed: u64) -> Result<u64, SimError> {
    let mut sim = Sim::new(SimConfig::seed(seed));
    let counter = word();
    for me in ["a", "b"] {
        let (host, counter) = (sim.host(), Arc::clone(&counter));
        sim.rank(me, move || {
            let seen = get(&counter);
            host.wait_until(None, &mut || true);
            counter.store(seen + 1, Ordering::Relaxed);
        });
    }
    sim.run().map(|_| get(&counter))
}

#[test]
fn same_seeds_lose_the_race_in_every_run() {
    let lost: Vec<_> = (0..40).map(|seed| racy(seed).unwrap() == 1).collect();
    assert!(lost.contains(&true), "no seed finds the race");
    assert!(lost.contains(&false), "no seed misses it");
    for (seed, lost) in lost.iter().enumerate() {
        for _ in 0..10 {
            assert_eq!(racy(seed as u64).unwrap() == 1, *lost);
        }
    }
}

#[test]
fn idle_time_is_jumped_over() {
    let (mut sim, host) = world(1);
    sim.rank("sleeper", move || {
        for s in 1..=100 {
            let deadline = Time::from_nanos(s * 1_000_000_000);
            assert!(!host.wait_until(Some(deadline), &mut || false));
            assert!(host.now() >= deadline);
            assert!(host.now() - deadline < Duration::from_micros(10));
        }
    });
    let report = sim.run().unwrap();
    assert!(report.turns < 2000, "{report:?}");
}

#[test]
fn rank_that_polls_instead_of_waiting_ends() {
    let mut sim = Sim::new(SimConfig::seed(2));
    let (host, ready) = (sim.host(), word());
    let mut steps = 0;
    let set = Arc::clone(&ready);
    device(&host, "slow", move |_| {
        steps += 1;
        set.store(u64::from(steps > 5), Ordering::Relaxed);
        Step::IdleUntil(None)
    });
    sim.rank("poller", move || {
        // By waits that have timed out already, and by polling the clock.
        while !host.wait_until(Some(Time::ZERO), &mut || get(&ready) == 1) {}
        let deadline = host.now() + Duration::from_micros(100);
        while host.now() < deadline {}
    });
    sim.run().unwrap();
}

#[test]
fn wait_outside_all_ranks_steps_the_machines() {
    let build = |seed| {
        let (mut sim, host) = world(seed);
        let (from, to) = (word(), word());
        let id = wire(&host, "wire", &from, &to);
        from.store(5, Ordering::Relaxed);
        assert!(host.wait_until(None, &mut || get(&to) == 5));
        // The first wait cannot end; the second ends by its deadline.
        assert!(!host.wait_until(None, &mut || false));
        assert!(!host.wait_until(Some(Time::from_nanos(5_000_000)), &mut || false));
        assert!(host.now() >= Time::from_nanos(5_000_000));
        host.detach(id);
        from.store(5, Ordering::Relaxed);
        assert!(!host.wait_until(None, &mut || get(&to) == 10));
        sim.rank("after", || ());
        sim.run().unwrap()
    };
    assert_eq!(build(9), build(9));

    let (mut sim, host) = world(9);
    device(&host, "nic", |_| panic!("while building"));
    assert!(!host.wait_until(None, &mut || false));
    let error = sim.run().unwrap_err();
    assert!(matches!(error.cause, Cause::MachinePanicked { .. }));
}

#[test]
fn rank_attaches_and_detaches_machines() {
    let (mut sim, host) = world(10);
    sim.rank("rank", move || {
        for _ in 0..20 {
            let token = word();
            let counted = Arc::clone(&token);
            let id = device(&host, "nic", move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                Step::Progress
            });
            assert!(host.wait_until(None, &mut || get(&token) > 3));
            host.detach(id);
            assert_eq!(Arc::strong_count(&token), 1);
            host.detach(id);
        }
    });
    sim.run().unwrap();
}

#[test]
fn rank_that_works_while_it_waits_is_not_idle() {
    let (mut sim, host) = world(12);
    let (from, to) = (word(), word());
    wire(&host, "wire", &from, &to);
    sim.rank("busy", move || {
        let mut tries = 0;
        let came = host.wait_until(None, &mut || {
            tries += 1;
            if tries < 50 {
                host.ring();
            }
            if tries == 50 {
                from.store(1, Ordering::Relaxed);
            }
            get(&to) == 1
        });
        assert!(came);
    });
    sim.run().unwrap();
}

#[test]
fn work_done_while_waiting_is_observed_before_the_clock_jumps() {
    seeds(50, |seed| {
        let (mut sim, host) = world(seed);
        let (from, to) = (word(), word());
        wire(&host, "wire", &from, &to);
        sim.rank("busy", move || {
            let mut tries = 0;
            let came = host.wait_until(Some(Time::from_nanos(1_000_000_000)), &mut || {
                tries += 1;
                // The rank works when it is first found idle, and does not ring.
                from.fetch_add(u64::from(tries == 2), Ordering::Relaxed);
                get(&to) == 1
            });
            assert!(came);
        });
        sim.run()
    });
}

#[test]
fn wait_with_a_passed_deadline_yields_once() {
    let (mut sim, host) = world(17);
    sim.rank("poller", move || {
        for _ in 0..100 {
            let mut tries = 0;
            let came = host.wait_until(Some(Time::ZERO), &mut || {
                tries += 1;
                false
            });
            assert_eq!((came, tries), (false, 2));
        }
    });
    sim.run().unwrap();
}

#[test]
fn worlds_run_inside_worlds_and_other_threads_evaluate_once() {
    let (mut sim, host) = world(13);
    sim.rank("outer", move || {
        let (first, _) = ping_pong(1).unwrap();
        assert!(host.wait_until(Some(Time::from_nanos(1_000)), &mut || true));
        assert_eq!(first, ping_pong(1).unwrap().0);
        host.wait_until(Some(Time::from_nanos(1_000)), &mut || false);
        // Another thread cannot run the world: it evaluates the condition once.
        std::thread::scope(|s| {
            let tries = s.spawn(|| {
                let mut tries = 0;
                let came = host.wait_until(None, &mut || {
                    tries += 1;
                    false
                });
                (came, tries)
            });
            assert_eq!(tries.join().unwrap(), (false, 1));
        });
    });
    sim.run().unwrap();
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn trace_has_a_line_for_every_turn() {
    let run = || {
        let lines = Lines::default();
        let mut sim = Sim::new(SimConfig::seed(15));
        sim.trace_to(lines.clone());
        let host = sim.host();
        device(&host, "nic", |_| Step::IdleUntil(None));
        sim.rank("rank", move || {
            host.wait_until(Some(Time::from_nanos(5_000_000)), &mut || false);
        });
        let report = sim.run().unwrap();
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        (report, text)
    };
    let (report, text) = run();
    let has = |end: &str| text.lines().filter(|l| l.ends_with(end)).count();
    assert_eq!(
        has(" nic comes") + has(" rank comes") + has(" rank goes"),
        3,
        "{text}"
    );
    assert_eq!(has(" clock jumps"), 1, "{text}");
    assert!(
        has(" nic waits") > 0 && has(" rank waits until 5000.000us") > 0,
        "{text}"
    );
    // One line per turn (the last one reports the end of the rank), two arrivals, one jump.
    assert_eq!(text.lines().count() as u64, report.turns + 3, "{text}");
    assert_eq!(run(), (report, text));
}
