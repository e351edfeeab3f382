//! The seed, the pace and the limits of a simulation.

use std::ops::RangeInclusive;
use std::time::Duration;

use gds_step::Time;

#[cfg(doc)]
use crate::Cause;
use crate::sched::Limits;

/// The seed, the pace and the limits of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Decides every choice: equal seeds have equal runs.
    pub seed: u64,
    /// The duration of a turn in virtual nanoseconds, drawn uniformly. Default 1 to 200.
    pub step_ns: RangeInclusive<u64>,
    /// The maximal number of turns before [`Cause::TimeLimit`]. Default ten million.
    pub max_turns: u64,
    /// The maximal virtual time before [`Cause::TimeLimit`]. Default 1000 s.
    pub max_time: Duration,
    /// The stack of each rank in bytes. Default 512 KiB.
    pub stack: usize,
}

impl SimConfig {
    /// The default configuration with this seed.
    pub fn seed(seed: u64) -> SimConfig {
        SimConfig {
            seed,
            step_ns: 1..=200,
            max_turns: 10_000_000,
            max_time: Duration::from_secs(1000),
            stack: 512 << 10,
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        let (low, high) = (*self.step_ns.start(), *self.step_ns.end());
        Limits {
            // An empty range stands for its start.
            step_ns: low..=high.max(low),
            turns: self.max_turns,
            time: Time::ZERO + self.max_time,
        }
    }
}
