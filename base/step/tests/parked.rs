//! A thread without work uses no processor time. The test has a separate process, so that only
//! its threads are in it.

use std::time::Duration;

use gds_step::{Env, Host, Machine, Step, Thread, Time};
use gds_step::{Live, LiveConfig, thread_times};

struct Idle;

impl Machine for Idle {
    fn step(&mut self, _: Time) -> Step {
        Step::IdleUntil(None)
    }
    fn name(&self) -> String {
        "idle".into()
    }
}

fn cpu(name: &str) -> Duration {
    let times = thread_times().unwrap();
    times
        .iter()
        .find(|t| t.name == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .cpu
}

#[test]
fn parked_threads_use_no_processor_time() {
    const WHILE: Duration = Duration::from_millis(400);
    // Naps so long that wake-ups cost little on any machine.
    let (nap, watch) = (Duration::from_millis(5), Duration::from_millis(5));
    let live = Live::new(LiveConfig {
        nap,
        watch,
        ..LiveConfig::default()
    })
    .unwrap();
    // All three threads have had work. A watcher's thread ends with its machine.
    for thread in [Thread::Device, Thread::Watch, Thread::Cpu] {
        let id = live.attach(thread, Box::new(Idle));
        live.detach(id);
    }
    std::thread::sleep(Duration::from_millis(20));

    let watchers = thread_times().unwrap();
    assert!(watchers.iter().all(|t| t.name != "gds-watch"));
    let threads = ["gds-device", "gds-cpu"];
    let before = threads.map(cpu);
    let waited = std::thread::scope(|s| {
        let waiter = std::thread::Builder::new()
            .name("waiter".into())
            .spawn_scoped(s, || {
                let deadline = live.now() + WHILE;
                assert!(!live.wait_until(Some(deadline), &mut || false));
                cpu("waiter")
            });
        waiter.unwrap().join().unwrap()
    });
    // A polling wait would have used all of this time; a sleeping wait uses about a hundredth.
    assert!(
        waited < WHILE / 4,
        "the waiting thread used {waited:?} of {WHILE:?}"
    );
    for (name, before) in threads.iter().zip(before) {
        let used = cpu(name) - before;
        // Without an attached machine the threads do not wake at all.
        assert!(used < Duration::from_millis(1), "{name} used {used:?}");
    }

    // With idle machines attached, the threads alternate between a check and a sleep.
    live.attach(Thread::Device, Box::new(Idle));
    live.attach(Thread::Watch, Box::new(Idle));
    std::thread::sleep(Duration::from_millis(20));
    let threads = ["gds-device", "gds-watch", "gds-cpu"];
    let before = threads.map(cpu);
    std::thread::sleep(WHILE);
    for (name, before) in threads.iter().zip(before) {
        let used = cpu(name) - before;
        assert!(used < WHILE / 4, "{name} used {used:?} of {WHILE:?}");
    }
}
