//! Helpers of the tests of the simulated driver: machines and worlds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gds_sim::{Sim, SimConfig};
use gds_step::{Host, Machine, MachineId, Step, Thread, Time};

/// A machine with a name and a closure as its step.
struct With<F>(String, F);

impl<F: FnMut(Time) -> Step + Send> Machine for With<F> {
    fn step(&mut self, now: Time) -> Step {
        (self.1)(now)
    }
    fn name(&self) -> String {
        self.0.clone()
    }
}

/// A world and its host.
pub fn world(seed: u64) -> (Sim, Arc<dyn Host>) {
    let sim = Sim::new(SimConfig::seed(seed));
    let host = sim.host();
    (sim, host)
}

/// Attaches a machine to a host.
pub fn device(
    host: &Arc<dyn Host>,
    name: &str,
    step: impl FnMut(Time) -> Step + Send + 'static,
) -> MachineId {
    host.attach(Thread::Device, Box::new(With(name.to_owned(), step)))
}

pub fn word() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(0))
}

pub fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}
