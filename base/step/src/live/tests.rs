//! Cases that need private access: the system refuses to start a thread.

use std::sync::mpsc;

use crate::Step;

use super::*;

/// Reports each thread that steps it.
struct Reporter(mpsc::Sender<String>);

impl Machine for Reporter {
    fn step(&mut self, _: Time) -> Step {
        let name = std::thread::current().name().unwrap_or("").to_owned();
        let _ = self.0.send(name);
        Step::IdleUntil(None)
    }
    fn name(&self) -> String {
        "reporter".into()
    }
}

#[test]
fn device_thread_serves_machines_whose_thread_is_refused() {
    for (stack, expected) in [
        (STACK, ["gds-device", "gds-watch", "gds-cpu"]),
        // No address space has room for this stack.
        (usize::MAX / 4, ["gds-device"; 3]),
    ] {
        let live = Live::with_stack(LiveConfig::default(), stack).unwrap();
        for (thread, expected) in [Thread::Device, Thread::Watch, Thread::Cpu]
            .into_iter()
            .zip(expected)
        {
            let (sender, steps) = mpsc::channel();
            let id = live.attach(thread, Box::new(Reporter(sender)));
            assert_eq!(steps.recv().unwrap(), expected);
            live.detach(id);
            // The machine, and with it the sender, was dropped.
            assert!(steps.iter().all(|name| name == expected));
        }
    }
}
