//! The simulated driver: one thread, a virtual clock, and a seed that selects each step.

use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

#[cfg(doc)]
use gds_step::Env;
use gds_step::Host;

use gds_step::panic_message;

use crate::config::SimConfig;
use crate::error::{Cause, SimError, SimReport, Waiting};
use crate::fiber::Fiber;
use crate::host::Core;
use crate::sched::{Action, Pick};
use crate::when::When;

/// Freezes ranks and machines by name, also from inside a rank. Several actors may have the name,
/// including actors that are added later.
#[derive(Clone, Debug)]
pub struct SimControl(Arc<Core>);

impl SimControl {
    /// Stops a rank or machine, as a stopped process: it is not stepped any more.
    pub fn freeze(&self, name: &str) {
        self.0.state().sched.apply(name, Action::Freeze);
    }

    /// Resumes a frozen rank or machine.
    pub fn unfreeze(&self, name: &str) {
        self.0.state().sched.apply(name, Action::Unfreeze);
    }

    /// Freezes for ever. Its objects stay until the simulation is dropped.
    pub fn kill(&self, name: &str) {
        self.0.state().sched.apply(name, Action::Kill);
    }

    /// Schedules a [`freeze`](SimControl::freeze).
    pub fn freeze_at(&self, when: When, name: &str) {
        self.0.state().sched.at(when, name, Action::Freeze);
    }

    /// Schedules an [`unfreeze`](SimControl::unfreeze). If no actor can continue, the simulation
    /// jumps to this time or turn.
    pub fn unfreeze_at(&self, when: When, name: &str) {
        self.0.state().sched.at(when, name, Action::Unfreeze);
    }

    /// Schedules a [`kill`](SimControl::kill).
    pub fn kill_at(&self, when: When, name: &str) {
        self.0.state().sched.at(when, name, Action::Kill);
    }
}

struct Rank {
    id: u64,
    name: String,
    stage: Stage,
}

enum Stage {
    Ready(Box<dyn FnOnce()>),
    Running(Fiber),
}

/// A world of machines and ranks on one thread, with a virtual clock.
///
/// In each turn one machine is stepped, or one rank runs until it waits ([`Env::wait_until`]); the
/// seed selects it. The choice is unfair on purpose: an actor may be left out for a long time, or
/// be selected nearly always, but starvation is bounded. Each turn takes some virtual time. If no
/// actor has work, the clock jumps to the earliest time that an actor waits for.
///
/// Inside a rank, a wait yields to other actors, and reading the clock takes some virtual time. A
/// call that blocks the thread (a lock held across a wait, a sleep, a read) blocks the world. A
/// rank that works inside the condition of its wait should call [`ring`](Env::ring) after the work,
/// so that it does not count as idle. Outside all ranks, before [`run`](Sim::run), a wait steps the
/// machines in the same seeded way; a wait that cannot end returns `false`. On another thread
/// `wait_until` evaluates its condition once.
///
/// # Dropping
/// Ranks that have not ended are unwound: their destructors run, as after a panic, because the
/// resources of a rank (mappings, files, peers' references) must not accumulate over thousands of
/// seeds. Destructors may call the host: `wait_until` returns `false` at once while a simulation is
/// dropped and while a panic unwinds. Failing waits without the unwinding would hang on a rank that
/// retries. If the thread is already panicking, suspended ranks are leaked instead: a second panic
/// in one of their destructors would abort and hide the first.
pub struct Sim {
    core: Arc<Core>,
    stack: usize,
    ranks: Vec<Rank>,
}

impl Sim {
    /// An empty world.
    pub fn new(config: SimConfig) -> Sim {
        Sim {
            core: Arc::new(Core::new(&config)),
            stack: config.stack,
            ranks: Vec::new(),
        }
    }

    /// The host, to which machines are attached and on which ranks wait.
    pub fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.core) as Arc<dyn Host>
    }

    /// A handle that freezes ranks and machines; ranks may own a clone.
    pub fn control(&self) -> SimControl {
        SimControl(Arc::clone(&self.core))
    }

    /// Adds a rank, which [`run`](Sim::run) starts.
    pub fn rank(&mut self, name: impl Into<String>, body: impl FnOnce() + 'static) {
        let name = name.into();
        let mut state = self.core.state();
        let id = state.new_id();
        state.sched.add(id, name.clone(), true);
        self.ranks.push(Rank {
            id,
            name,
            stage: Stage::Ready(Box::new(body)),
        });
    }

    /// Writes a line for each choice and answer to `writer`, which must not call the host.
    pub fn trace_to(&mut self, writer: impl Write + Send + 'static) {
        self.core.state().sched.trace.write_to(Box::new(writer));
    }

    /// A digest of every choice and answer, also of a failed run: equal for equal runs.
    pub fn digest(&self) -> u64 {
        self.core.state().sched.trace.digest()
    }

    /// Runs until every rank has ended, or is frozen and no actor can unfreeze it. May be called
    /// again after ranks were added or unfrozen, or after an error to continue with the rest.
    ///
    /// # Errors
    /// No actor can continue, a limit is reached, a rank or a machine panicked, the system refused
    /// the stack of a rank, or the trace could not be written.
    pub fn run(&mut self) -> Result<SimReport, SimError> {
        // A failure while the world was set up.
        self.check()?;
        while self.core.state().sched.ranks_left() {
            let picked = self.core.state().sched.pick(true, None);
            match picked {
                Pick::Actor { id, is_rank: true } => self.resume(id)?,
                Pick::Actor { id, is_rank: false } => self.core.step_machine(id),
                Pick::Again => {}
                Pick::Stuck => return Err(self.gave_up(Cause::Stuck)),
                Pick::Limit => return Err(self.gave_up(Cause::TimeLimit)),
            }
            self.check()?;
        }
        self.core.state().sched.trace.flush();
        self.check()?;
        let sched = &self.core.state().sched;
        Ok(SimReport {
            seed: self.core.seed,
            turns: sched.turn(),
            time: sched.now(),
            digest: sched.trace.digest(),
            unfinished: self.ranks.iter().map(|r| r.name.clone()).collect(),
        })
    }

    /// Reports the failure of a step or of the trace.
    fn check(&self) -> Result<(), SimError> {
        let mut state = self.core.state();
        if let Some(fault) = state.take_fault() {
            return Err(fault);
        }
        let lost = state.sched.trace.take_error().map(Cause::Trace);
        lost.map_or(Ok(()), |lost| Err(self.core.failed(&state.sched, lost)))
    }

    fn resume(&mut self, id: u64) -> Result<(), SimError> {
        let Some(i) = self.ranks.iter().position(|r| r.id == id) else {
            return Ok(());
        };
        let resumed = match &mut self.ranks[i].stage {
            Stage::Running(fiber) => fiber.resume(),
            Stage::Ready(body) => {
                let body = std::mem::replace(body, Box::new(|| ()));
                let fiber = Fiber::new(self.stack, self.core.address(), body);
                let mut fiber = fiber.map_err(|source| self.lost(i, source))?;
                let resumed = fiber.resume();
                self.ranks[i].stage = Stage::Running(fiber);
                resumed
            }
        };
        if let Ok(Some(achieved)) = resumed {
            self.core.state().sched.answered(id, achieved);
            return Ok(());
        }
        let rank = self.ranks.remove(i).name;
        let mut state = self.core.state();
        state.sched.remove(id);
        resumed.map(drop).map_err(|payload| {
            let message = panic_message(payload);
            let cause = Cause::RankPanicked { rank, message };
            self.core.failed(&state.sched, cause)
        })
    }

    /// A rank without a stack is removed.
    fn lost(&mut self, i: usize, source: std::io::Error) -> SimError {
        let Rank { id, name: rank, .. } = self.ranks.remove(i);
        let size = self.stack;
        let sched = &mut self.core.state().sched;
        sched.remove(id);
        self.core.failed(sched, Cause::Stack { rank, size, source })
    }

    fn gave_up(&self, cause: fn(Vec<Waiting>) -> Cause) -> SimError {
        let sched = &mut self.core.state().sched;
        sched.trace.flush();
        self.core.failed(sched, cause(sched.waiting()))
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.core.tear_down();
        let already = std::thread::panicking();
        let mut first = None;
        let mut note = |done: std::thread::Result<()>| {
            if let Err(payload) = done {
                first.get_or_insert(payload);
            }
        };
        for rank in self.ranks.drain(..).rev() {
            match rank.stage {
                Stage::Running(fiber) if already => std::mem::forget(fiber),
                Stage::Running(mut fiber) => note(fiber.unwind()),
                Stage::Ready(body) => note(catch_unwind(AssertUnwindSafe(|| drop(body)))),
            }
        }
        for machine in self.core.take_machines() {
            note(catch_unwind(AssertUnwindSafe(|| drop(machine))));
        }
        // A failed destructor fails the test, unless another error exists already.
        if let Some(payload) = first.filter(|_| !already) {
            resume_unwind(payload);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.ranks.iter().map(|r| &r.name).collect();
        f.debug_struct("Sim")
            .field("seed", &self.core.seed)
            .field("now", &self.core.state().sched.now())
            .field("ranks", &ranks)
            .finish_non_exhaustive()
    }
}
