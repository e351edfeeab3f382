//! Failing worlds: stuck, out of time, with panics, with frozen or killed actors, dropped early.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gds_sim::{Cause, Sim, SimConfig, SimError, When, seeds};
use gds_step::{Host, Step, Time};

use world::{device, get, word, world};

mod world;

#[test]
fn stuck_world_lists_the_waiting_actors() {
    let (mut sim, host) = world(0xbad);
    device(&host, "nic0", |_| Step::IdleUntil(None));
    for name in ["left", "right"] {
        let host = sim.host();
        sim.rank(name, move || {
            host.wait_until(None, &mut || false);
        });
    }
    sim.rank("done", || ());
    let error = sim.run().unwrap_err();
    let SimError {
        seed: 0xbad,
        cause: Cause::Stuck(waiting),
        ..
    } = &error
    else {
        panic!("{error}")
    };
    let names: Vec<_> = waiting
        .iter()
        .map(|w| (w.name.as_str(), w.is_rank, w.last))
        .collect();
    let idle = Some(Step::IdleUntil(None));
    assert_eq!(
        names,
        [
            ("nic0", false, idle),
            ("left", true, idle),
            ("right", true, idle)
        ]
    );
    let text = error.to_string();
    assert!(
        text.starts_with("seed 0x0000000000000bad, turn ") && text.contains(": stuck: "),
        "{text}"
    );
    assert!(
        text.ends_with(": machine nic0 waits; rank left waits; rank right waits"),
        "{text}"
    );
}

#[test]
fn limits_of_turns_and_of_time_are_reported() {
    let run = |config: SimConfig| {
        let mut sim = Sim::new(config);
        let host = sim.host();
        device(&host, "restless", |_| Step::Progress);
        sim.rank("patient", move || {
            host.wait_until(None, &mut || false);
        });
        sim.run().unwrap_err()
    };
    let few = run(SimConfig {
        max_turns: 100,
        ..SimConfig::seed(3)
    });
    assert!(
        few.turn == 100 && matches!(few.cause, Cause::TimeLimit(_)),
        "{few}"
    );
    let short = run(SimConfig {
        max_time: Duration::from_micros(50),
        ..SimConfig::seed(3)
    });
    let now = short.now;
    assert!(matches!(short.cause, Cause::TimeLimit(_)), "{short}");
    assert!(
        now > Time::from_nanos(50_000) && now < Time::from_nanos(51_000),
        "{now:?}"
    );
    assert!(
        few.to_string()
            .contains("machine restless progresses; rank patient waits"),
        "{few}"
    );
}

#[test]
fn panics_are_errors_with_a_seed() {
    let mut sim = Sim::new(SimConfig::seed(4));
    let (host, other) = (sim.host(), sim.host());
    let unwound = Rc::new(Cell::new(None));
    let results = Rc::clone(&unwound);
    sim.rank("good", move || {
        let deadline = other.now() + Duration::from_secs(1);
        other.wait_until(Some(deadline), &mut || false);
    });
    sim.rank("bad", move || {
        struct Waits(Arc<dyn Host>, Rc<Cell<Option<bool>>>);
        impl Drop for Waits {
            fn drop(&mut self) {
                // Other actors must not run while this panic unwinds.
                self.1.set(Some(self.0.wait_until(None, &mut || true)));
            }
        }
        host.wait_until(None, &mut || true);
        let _waits = Waits(host, results);
        panic!("rank failed: {}", 42);
    });
    let error = sim.run().unwrap_err();
    let SimError {
        seed: 4,
        cause: Cause::RankPanicked { rank, message },
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (rank.as_str(), message.as_str()),
        ("bad", "rank failed: 42")
    );
    assert_eq!(unwound.get(), Some(false));
    let text = error.to_string();
    assert!(text.starts_with("seed 0x0000000000000004, turn "), "{text}");
    assert!(text.contains(": rank bad panicked: rank failed"), "{text}");
    // The rest of the world continues.
    sim.run().unwrap();

    let (mut sim, host) = world(5);
    device(&host, "nic1", |_| panic!("nic failed"));
    sim.rank("waits", move || {
        host.wait_until(Some(Time::from_nanos(1_000_000)), &mut || false);
    });
    let error = sim.run().unwrap_err();
    assert!(
        matches!(&error.cause, Cause::MachinePanicked { machine, message }
        if machine == "nic1" && message == "nic failed")
    );
    sim.run().unwrap();
}

#[test]
fn frozen_actor_is_not_stepped_and_killed_actor_never_again() {
    seeds(20, |seed| {
        let mut sim = Sim::new(SimConfig::seed(seed));
        let (host, count) = (sim.host(), word());
        let counted = Arc::clone(&count);
        device(&host, "nic", move |now| {
            counted.fetch_add(1, Ordering::Relaxed);
            Step::IdleUntil(Some(now + Duration::from_micros(10)))
        });
        let ms = |n: u64| Time::from_nanos(n * 1_000_000);
        sim.control().freeze_at(When::Time(ms(1)), "nic");
        let control = sim.control();
        control.unfreeze_at(When::Time(ms(3)), "nic");
        control.freeze("sleeper");
        let slept = Rc::new(Cell::new(Time::ZERO));
        let (sleeper, woke) = (sim.host(), Rc::clone(&slept));
        sim.rank("sleeper", move || woke.set(sleeper.now()));
        let wait = move |until| {
            host.wait_until(Some(until), &mut || false);
            get(&count)
        };
        sim.rank("observer", move || {
            assert!(wait(ms(1)) > 0);
            let (frozen, still) = (wait(ms(1) + Duration::from_micros(1)), wait(ms(2)));
            assert_eq!(frozen, still);
            assert!(wait(ms(4)) > still);
            control.unfreeze("sleeper");
            control.kill("nic");
            control.unfreeze("nic");
            let killed = wait(ms(4) + Duration::from_micros(1));
            assert_eq!(killed, wait(ms(9)));
        });
        let report = sim.run()?;
        assert_eq!(report.unfinished, Vec::<String>::new());
        assert!(slept.get() >= ms(4));
        Ok::<_, SimError>(())
    });
}

#[test]
fn killed_rank_does_not_delay_the_end() {
    let mut sim = Sim::new(SimConfig::seed(6));
    let held = Rc::new(());
    let (host, holds) = (sim.host(), Rc::clone(&held));
    sim.rank("victim", move || {
        host.wait_until(None, &mut || false);
        drop(holds);
    });
    let host = sim.host();
    sim.rank("survivor", move || {
        host.wait_until(Some(Time::from_nanos(1_000_000)), &mut || false);
    });
    sim.control().freeze_at(When::Turn(4), "victim");
    assert_eq!(sim.run().unwrap().unfinished, ["victim"]);
    // Its objects stay until the world is dropped.
    assert_eq!(Rc::strong_count(&held), 2);
    sim.control().unfreeze("victim");
    assert!(matches!(sim.run().unwrap_err().cause, Cause::Stuck(_)));
    // The world jumps to a scheduled unfreeze, by time or by turn.
    sim.control().freeze("victim");
    sim.control().unfreeze_at(When::Turn(1_000_000), "victim");
    let stuck = sim.run().unwrap_err();
    assert!(stuck.turn >= 1_000_000 && matches!(stuck.cause, Cause::Stuck(_)));
    sim.control().kill("victim");
    assert_eq!(sim.run().unwrap().unfinished, ["victim"]);
    drop(sim);
    assert_eq!(Rc::strong_count(&held), 1);
}

/// Waits on its host when it is dropped, and reports the result.
struct WaitsOnDrop(Arc<dyn Host>, Arc<Mutex<Vec<bool>>>);

impl Drop for WaitsOnDrop {
    fn drop(&mut self) {
        let came = self.0.wait_until(None, &mut || false);
        self.1.lock().unwrap().push(came);
    }
}

#[test]
fn unfinished_world_is_dropped_cleanly() {
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let token = Rc::new(());
    let (mut sim, host) = world(7);
    for i in 0..3 {
        let (host, dropped, token) = (sim.host(), Arc::clone(&dropped), Rc::clone(&token));
        sim.rank(format!("parked{i}"), move || {
            let _token = token;
            let _waits = WaitsOnDrop(Arc::clone(&host), dropped);
            // A rank that would retry for ever.
            while !host.wait_until(None, &mut || false) {}
        });
    }
    let waits = WaitsOnDrop(sim.host(), Arc::clone(&dropped));
    device(&host, "nic", move |_| {
        let _ = &waits;
        Step::IdleUntil(None)
    });
    assert!(matches!(sim.run().unwrap_err().cause, Cause::Stuck(_)));
    let held = Rc::clone(&token);
    sim.rank("never started", move || drop(held));
    drop(sim);
    assert_eq!(*dropped.lock().unwrap(), [false; 4]);
    assert_eq!(Rc::strong_count(&token), 1);
    // The host outlives the world, but its calls have no effect.
    assert!(!host.wait_until(None, &mut || true));
    host.detach(device(&host, "late", |_| Step::Progress));
}

#[test]
fn world_dropped_by_a_panic_does_not_abort() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            // In a destructor that runs while another panic unwinds, this would abort.
            assert!(!std::thread::panicking(), "bomb");
        }
    }
    let fails = std::panic::catch_unwind(|| {
        let (mut sim, host) = world(8);
        sim.rank("parked", move || {
            let _bomb = Bomb;
            host.wait_until(None, &mut || false);
        });
        sim.run().unwrap();
    });
    let message = fails.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("Stuck"), "{message}");
}

#[test]
fn machine_that_detaches_itself_is_dropped_after_its_step() {
    let (mut sim, host) = world(11);
    let (own, token) = (Arc::new(Mutex::new(None)), word());
    let (id, held, detacher) = (Arc::clone(&own), Arc::clone(&token), sim.host());
    let attached = device(&host, "suicidal", move |_| {
        held.fetch_add(1, Ordering::Relaxed);
        if let Some(id) = id.lock().unwrap().take() {
            detacher.detach(id);
        }
        Step::Progress
    });
    *own.lock().unwrap() = Some(attached);
    sim.rank("rank", move || {
        host.wait_until(Some(Time::from_nanos(100_000)), &mut || false);
    });
    let ran = sim.run();
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!(get(&token), 1);
    match ran {
        Err(e) if cfg!(debug_assertions) => {
            let panicked = matches!(e.cause, Cause::MachinePanicked { .. });
            assert!(panicked && e.to_string().contains("same thread"), "{e}");
        }
        other => assert!(other.is_ok() && cfg!(not(debug_assertions)), "{other:?}"),
    }
}

#[test]
fn refused_stack_is_an_error() {
    let config = SimConfig {
        stack: usize::MAX / 4,
        ..SimConfig::seed(14)
    };
    let mut sim = Sim::new(config);
    sim.rank("huge", || ());
    let error = sim.run().unwrap_err();
    assert!(
        matches!(&error.cause, Cause::Stack { rank, .. } if rank == "huge"),
        "{error}"
    );
    assert!(sim.run().unwrap().unfinished.is_empty());
}

#[test]
fn trace_that_cannot_be_written_is_an_error() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sim = Sim::new(SimConfig::seed(16));
    sim.trace_to(Full);
    sim.rank("rank", || ());
    let lost = sim.run().unwrap_err();
    assert!(lost.seed == 16 && matches!(lost.cause, Cause::Trace(_)));
    sim.run().unwrap();
}
