//! Who looks at the rings: a thread of the NIC's, or, on a software GPU, the thread that is the
//! GPU, in between its own work.
//!
//! Where processors are few two threads that spin alternate at the scheduler's pace, twice for
//! each message: to ring, and to be told. The GPU's thread is awake whenever a stream could post
//! or wait, so there it costs one more look a round, and nothing is handed over.

use std::sync::Arc;

use gds_step::{Machine, MachineId, Step, Thread, Time};

use super::thread::{Common, SharedRelay};
use crate::env::Variable;
use crate::error::{Error, Kind, Result};
use crate::gpu::Gpu;

/// With so many processors each thread has one to itself.
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

/// Whether the thread of `gpu` shall look at the rings, as `GDS_VERBS_THREAD` says.
///
/// # Errors
/// `Invalid` for what the variable cannot be, `Unsupported` if the GPU has no such thread.
pub(super) fn wanted(gpu: &Gpu) -> Result<bool> {
    let soft = gpu.is_software();
    match THREAD.read()? {
        Choice::Own => Ok(false),
        Choice::Gpu if !soft => {
            let what = format!(
                "{}=gpu, on a GPU that is no thread of this process",
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

/// A machine of the GPU's driver that looks at the rings of a NIC.
struct Poller {
    common: Arc<Common>,
    relays: Vec<SharedRelay>,
    seen: Option<u32>,
}

/// Has the thread of `gpu` look at the rings from now on.
pub(super) fn attach(common: &Arc<Common>) -> MachineId {
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
        format!("{}.relays", self.common.nic())
    }
}
