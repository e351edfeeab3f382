//! `Shared`: a rank accesses a machine between two steps, even while the machine is always busy.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gds_step::{Machine, Shared, Step, Time};

/// Always has work; its two halves differ only inside a step.
#[derive(Default)]
struct Busy {
    left: u64,
    right: u64,
    panics: bool,
}

impl Machine for Busy {
    fn step(&mut self, _: Time) -> Step {
        assert!(!self.panics, "a requested panic");
        self.left += 1;
        self.right += 1;
        Step::Progress
    }
    fn name(&self) -> String {
        "busy".into()
    }
}

#[test]
fn rank_accesses_a_busy_machine_between_its_steps() {
    let shared = Shared::new(Busy::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let mut stepped = shared.clone();
        let stop = &stop;
        s.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                stepped.step(Time::ZERO);
            }
        });
        // Each access returns only if the rank gets the lock.
        for _ in 0..1000 {
            shared.with(|m| {
                assert_eq!(m.left, m.right);
                m.left += 1;
                m.right += 1;
            });
        }
        // The accesses do not prevent the machine from being stepped.
        let before = shared.with(|m| m.left);
        while shared.with(|m| m.left) == before {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn step_never_waits_for_a_rank() {
    let shared = Shared::new(Busy::default());
    let mut stepped = shared.clone();
    let counted = shared.with(|m| {
        // The lock is held here; a step that blocked would deadlock.
        assert_eq!(stepped.step(Time::ZERO), Step::Progress);
        m.left
    });
    assert_eq!(
        counted, 0,
        "the machine was not stepped under the rank's feet"
    );
}

#[test]
fn machine_works_after_a_panic_in_a_ranks_access() {
    let shared = Shared::new(Busy::default());
    let visit = AssertUnwindSafe(|| shared.with(|_| panic!("visitor")));
    assert!(std::panic::catch_unwind(visit).is_err());
    assert_eq!(shared.clone().step(Time::ZERO), Step::Progress);
    assert_eq!(shared.with(|m| m.left), 1);

    shared.with(|m| m.panics = true);
    let step = AssertUnwindSafe(|| shared.clone().step(Time::ZERO));
    assert!(std::panic::catch_unwind(step).is_err());
    assert_eq!(shared.with(|m| m.left), 1);
    assert_eq!(shared.name(), "busy");
}

#[test]
fn time_saturates_and_never_runs_backwards() {
    let t = Time::from_nanos(1_500);
    assert_eq!(t - Time::from_nanos(500), Duration::from_micros(1));
    assert_eq!(Time::ZERO - t, Duration::ZERO);
    assert_eq!(t + Duration::MAX, Time::NEVER);
    assert_eq!(format!("{:?}", t + Duration::from_nanos(7)), "1.507us");
}
