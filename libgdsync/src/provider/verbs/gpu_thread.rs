//! The thread that polls the rings: a thread of the NIC, or, on a software GPU, the GPU's thread in
//! between its own work.
//!
//! With few processors, two spinning threads alternate at the scheduler's pace, twice for each
//! message: for the doorbell and for the completion. The GPU's thread is awake whenever a stream
//! could post or wait. So if it polls the rings, the cost is one more poll per round, and no
//! hand-over between threads.

use std::sync::Arc;

use gds_step::{Machine, MachineId, Step, Thread, Time};

use super::channel::Channel;
use super::queues::DeviceQueues;
use crate::env::Variable;
use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;
use crate::provider::relay::thread::Source as _;
use crate::provider::relay::thread::{Common, SharedRelay};

/// With this many processors, each thread has a processor to itself.
const ENOUGH: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Own,
    Gpu,
}

const THREAD: Variable<Choice> = Variable {
    name: "GDS_VERBS_THREAD",
    former_name: Some("GDS_PROXY_THREAD"),
    words: &[
        ("auto", Choice::Auto),
        ("own", Choice::Own),
        ("gpu", Choice::Gpu),
    ],
    former_words: &[],
};

/// Whether the thread of `gpu` polls the rings, as `GDS_VERBS_THREAD` selects.
///
/// # Errors
/// `Invalid` for an invalid value of the variable, `Unsupported` if the GPU has no thread in this
/// process.
pub(super) fn wanted(gpu: &Gpu) -> Result<bool> {
    let soft = gpu.is_software();
    match THREAD.read()? {
        Choice::Own => Ok(false),
        Choice::Gpu if !soft => {
            let what = format!(
                "{}=gpu is set, but this process runs no thread for the GPU; set it to auto or own",
                THREAD.name
            );
            Err(Error::new(super::OPEN, Kind::Unsupported, what))
        }
        Choice::Gpu => Ok(true),
        Choice::Auto => {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            Ok(soft && processors < ENOUGH)
        }
    }
}

/// A machine of the GPU's driver that polls the rings of a NIC.
struct Poller {
    common: Arc<Common<Channel>>,
    relays: Vec<SharedRelay<DeviceQueues>>,
    seen: Option<u32>,
}

/// Makes the thread of `gpu` poll the rings from now on.
pub(super) fn attach(common: &Arc<Common<Channel>>) -> MachineId {
    let machine = Poller {
        common: Arc::clone(common),
        relays: Vec::new(),
        seen: None,
    };
    common.host().attach(Thread::Device, Box::new(machine))
}

impl Machine for Poller {
    fn step(&mut self, now: Time) -> Step {
        self.common.follow(&mut self.relays, &mut self.seen);
        let mut busy = false;
        for relay in &mut self.relays {
            busy |= relay.step(now) == Step::Progress;
        }
        match busy {
            true => Step::Progress,
            false => Step::IdleUntil(None),
        }
    }

    fn name(&self) -> String {
        format!("{}.relays", self.common.source.name())
    }
}
