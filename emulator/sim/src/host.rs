//! The interface of the simulation for its machines and ranks: the [`Host`] behind `Sim::host`.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use gds_step::{Env, Host, Machine, MachineId, Step, Thread, Time};

use gds_step::panic_message;

use crate::config::SimConfig;
use crate::error::{Cause, SimError};
use crate::fiber;
use crate::sched::{Pick, Scheduler};

/// The state of ranks, machines and the scheduler. All of them run on one thread. The mutex is
/// there because the type must be `Sync`. It is never contended, and it is never held while a
/// machine steps, a rank runs or a foreign value is dropped.
pub(super) struct Core {
    pub(super) seed: u64,
    /// The only thread that steps machines and ranks.
    thread: ThreadId,
    state: Mutex<State>,
    /// Set once, when the simulation is dropped: from then on no rank may pause. One thread writes
    /// and reads it, so relaxed.
    torn_down: AtomicBool,
}

pub(super) struct State {
    pub(super) sched: Scheduler,
    /// `None`: the machine is being stepped.
    machines: BTreeMap<u64, (Thread, Option<Box<dyn Machine>>)>,
    /// The driver thread of the machine that is being stepped.
    stepping: Option<Thread>,
    next_id: u64,
    /// The failure of a step, until `run` reports it.
    fault: Option<SimError>,
}

impl Core {
    pub(super) fn new(config: &SimConfig) -> Core {
        Core {
            seed: config.seed,
            thread: std::thread::current().id(),
            state: Mutex::new(State {
                sched: Scheduler::new(config.seed, config.limits()),
                machines: BTreeMap::new(),
                stepping: None,
                next_id: 0,
                fault: None,
            }),
            torn_down: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of the simulation in its current state.
    pub(super) fn failed(&self, sched: &Scheduler, cause: Cause) -> SimError {
        SimError {
            seed: self.seed,
            turn: sched.turn(),
            now: sched.now(),
            cause,
        }
    }

    /// The address that distinguishes simulations.
    pub(super) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Ranks and their destructors must not wait any more: the simulation is being dropped, or a
    /// panic unwinds, and other fibers must not run during it.
    fn must_not_wait(&self) -> bool {
        self.torn_down.load(Ordering::Relaxed) || std::thread::panicking()
    }

    /// Steps one machine, if it is still attached.
    pub(super) fn step_machine(&self, id: u64) {
        let (mut machine, now) = {
            let mut state = self.state();
            let now = state.sched.now();
            let Some((thread, machine)) = state.machines.get_mut(&id) else {
                return;
            };
            let thread = *thread;
            let Some(machine) = machine.take() else {
                return;
            };
            state.stepping = Some(thread);
            (machine, now)
        };
        let stepped = fiber::outside(|| catch_unwind(AssertUnwindSafe(|| machine.step(now))));
        let mut state = self.state();
        state.stepping = None;
        match stepped {
            Ok(answer) => {
                state.sched.answered(id, answer);
                if let Some((_, slot)) = state.machines.get_mut(&id) {
                    *slot = Some(machine);
                    return;
                }
                // The machine was detached in its own step.
                drop(state);
                drop(machine);
            }
            Err(payload) => {
                let cause = Cause::MachinePanicked {
                    machine: state.sched.name(id),
                    message: panic_message(payload),
                };
                let fault = self.failed(&state.sched, cause);
                state.fault.get_or_insert(fault);
                state.machines.remove(&id);
                state.sched.remove(id);
                drop(state);
                // The first panic is reported.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(machine))).map_err(panic_message);
            }
        }
    }

    /// A wait inside a rank: yields until the condition holds.
    fn wait_in_rank(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        // Other actors may run before the first evaluation, depending on the seed.
        if self.state().sched.coin() {
            fiber::pause(Step::Progress);
        }
        // The rank has run up to here. Later it makes progress only if the condition holds.
        let mut achieved = Step::Progress;
        loop {
            if self.must_not_wait() {
                return false;
            }
            if condition() {
                return true;
            }
            let now = self.state().sched.now();
            // A wait that has already timed out yields once as well, or a loop of them would not
            // end.
            if achieved != Step::Progress && deadline.is_some_and(|d| now >= d) {
                return false;
            }
            fiber::pause(achieved);
            achieved = Step::IdleUntil(deadline);
        }
    }

    /// A wait outside all ranks, while a simulation is set up: steps the machines.
    fn wait_outside(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        loop {
            if condition() {
                return true;
            }
            let picked = {
                let mut state = self.state();
                if state.stepping.is_some() || state.fault.is_some() {
                    return false;
                }
                if deadline.is_some_and(|d| state.sched.now() >= d) {
                    return false;
                }
                state.sched.pick(false, deadline)
            };
            match picked {
                Pick::Actor { id, .. } => self.step_machine(id),
                Pick::Again => {}
                Pick::Stuck | Pick::Limit => return condition(),
            }
        }
    }

    /// From now on no actor waits and no machine is attached.
    pub(super) fn tear_down(&self) {
        self.torn_down.store(true, Ordering::Relaxed);
    }

    /// Returns the machines, for the caller to drop.
    pub(super) fn take_machines(&self) -> Vec<Box<dyn Machine>> {
        let machines = std::mem::take(&mut self.state().machines);
        machines
            .into_values()
            .filter_map(|(_, machine)| machine)
            .collect()
    }
}

impl State {
    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn take_fault(&mut self) -> Option<SimError> {
        self.fault.take()
    }
}

impl Env for Core {
    fn now(&self) -> Time {
        let mut state = self.state();
        if fiber::inside(self.address()) {
            state.sched.look_at_clock()
        } else {
            state.sched.now()
        }
    }

    fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        if self.must_not_wait() {
            return false;
        }
        if fiber::inside(self.address()) {
            return self.wait_in_rank(deadline, condition);
        }
        debug_assert!(
            self.state().stepping.is_none(),
            "wait_until from inside a step"
        );
        if std::thread::current().id() != self.thread {
            return condition();
        }
        self.wait_outside(deadline, condition)
    }

    fn ring(&self) {
        self.state().sched.nudge();
    }
}

impl Host for Core {
    fn attach(&self, thread: Thread, machine: Box<dyn Machine>) -> MachineId {
        let name = machine.name();
        let mut state = self.state();
        let id = state.new_id();
        if self.torn_down.load(Ordering::Relaxed) {
            drop(state);
            drop(machine);
            return MachineId(id);
        }
        state.sched.add(id, name, false);
        state.machines.insert(id, (thread, Some(machine)));
        MachineId(id)
    }

    /// From inside a step of the same thread, detaches the machine at once, or after the step if it
    /// is the one being stepped. Debug builds report the call as a panic of that step.
    fn detach(&self, id: MachineId) {
        let (machine, misused) = {
            let mut state = self.state();
            let Some((thread, machine)) = state.machines.remove(&id.0) else {
                return;
            };
            state.sched.remove(id.0);
            (machine, state.stepping == Some(thread))
        };
        drop(machine);
        debug_assert!(!misused, "detach from inside a step of the same thread");
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim(seed {:#018x})", self.seed)
    }
}
