//! The engine: a step machine that executes every stream of a GPU in turn, with bounded work per
//! step.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fastrand::Rng;
use gds_step::{Awaits, Machine, Probe, Step, Time};

use super::Core;
use super::lane::{Cx, Lane, Ran};
use super::stream_memory::StreamMemory;
use crate::kernel::GridConfig;
use crate::store_buffer::StoreBuffer;
use crate::{Config, Weak};

/// The maximal number of operations of a stream in one step.
const BUDGET: u32 = 16;
/// The maximal number of turns of a kernel's threads in one step.
const TURNS: u32 = 128;

/// Executes a GPU's streams when stepped. When it is dropped, enqueued operations stay undone, and
/// the GPU refuses every later call.
pub struct Engine {
    core: Arc<Core>,
    lanes: Vec<Lane>,
    kernels: GridConfig,
    channels: usize,
    /// The number of streams that are at a wait.
    waiting: usize,
    /// The lane that runs first in the next step.
    first: usize,
    chaos: Option<Chaos>,
}

/// The random numbers of a GPU with weak memory.
struct Chaos {
    weak: Weak,
    rng: Rng,
}

impl Engine {
    pub(crate) fn new(core: Arc<Core>, config: &Config) -> Engine {
        let mut kernels = config.kernels.clone();
        let chaos = config.weak.map(|weak| {
            kernels.seed.get_or_insert(weak.seed);
            Chaos {
                weak,
                rng: Rng::with_seed(weak.seed),
            }
        });
        Engine {
            core,
            lanes: Vec::new(),
            kernels,
            channels: config.channels,
            waiting: 0,
            first: 0,
            chaos,
        }
    }

    fn adopt(&mut self) {
        let Engine {
            core, lanes, chaos, ..
        } = self;
        core.take_fresh(|shared, queue| {
            let buffer = chaos
                .as_mut()
                .map(|c| StoreBuffer::new(c.rng.u64(..), c.weak.store_one_in));
            let memory = StreamMemory::new(Arc::clone(core), buffer);
            lanes.push(Lane::new(shared, queue, memory));
        });
    }

    /// Removes streams without handle and without work.
    fn forget(&mut self) {
        let core = &self.core;
        self.lanes.retain(|lane| {
            let over = lane.is_over();
            if over {
                core.forget(&lane.shared);
            }
            !over
        });
    }
}

impl Machine for Engine {
    fn step(&mut self, now: Time) -> Step {
        // NIC writes arrive even at a stopped GPU.
        let mut busy = self.core.posted.as_ref().is_some_and(|p| p.pass_time());
        if self.core.running().is_err() {
            return if busy {
                Step::Progress
            } else {
                Step::IdleUntil(None)
            };
        }
        self.adopt();
        self.core.unmap_freed();

        let count = self.lanes.len();
        self.first = match &mut self.chaos {
            Some(c) if count > 0 => c.rng.usize(..count),
            _ if self.first + 1 < count => self.first + 1,
            _ => 0,
        };
        let mut cx = Cx {
            core: &self.core,
            kernels: &self.kernels,
            now,
            turns: TURNS,
            channels: self.channels,
            waiting: self.waiting,
        };
        let mut wake: Option<Time> = None;
        let mut over = false;
        for n in 0..count {
            let i = self.first + n;
            let lane = &mut self.lanes[if i < count { i } else { i - count }];
            let mut budget = BUDGET;
            if let Some(c) = &mut self.chaos {
                busy |= lane.pass_time();
                if lane.is_ready() && c.rng.u8(..4) == 0 {
                    busy = true;
                    continue;
                }
                budget = c.rng.u32(1..=4);
                cx.turns = c.rng.u32(1..=8);
            }
            match lane.run(&mut cx, budget) {
                Ran::Something => busy = true,
                Ran::Nothing(at) => {
                    wake = match (wake, at) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    };
                    over |= lane.is_over();
                }
            }
        }
        let waiting = cx.waiting;
        if waiting != self.waiting {
            self.waiting = waiting;
            self.core.waiting.0.store(waiting, Ordering::Relaxed);
        }
        if over {
            self.forget();
        }
        if busy {
            Step::Progress
        } else {
            Step::IdleUntil(wake)
        }
    }

    fn name(&self) -> String {
        format!("{}.engine", self.core.name)
    }

    /// A store can advance only a stream that has begun an operation; a submission rings.
    fn awaits(&self) -> Awaits {
        match self.lanes.iter().any(Lane::has_begun) {
            true => Awaits::Stores,
            false => Awaits::Rings,
        }
    }

    fn probe(&self) -> Option<Probe> {
        // Weak: it must not keep the memory mapped.
        let core = Arc::downgrade(&self.core);
        Some(Arc::new(move || core.upgrade()?.running_kernel()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Drops operations that never ran, before their memory is unmapped.
        self.lanes.clear();
        self.core.engine_gone();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("gpu", &self.core.name)
            .field("streams", &self.lanes.len())
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
