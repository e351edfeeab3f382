//! Step machines, and the interface of the driver for ranks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Mutex, Time};

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The machine did work; more work may be pending.
    Progress,
    /// The machine could do no work. `Some(t)`: step it again at `t` at the latest. `None`: step it
    /// again after a change outside. The machine may wait for a word that a foreign store changes,
    /// so a driver still polls it from time to time.
    IdleUntil(Option<Time>),
}

/// What may change the state of an idle machine, apart from time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaits {
    /// Only calls that [ring](Env::ring). Its thread may sleep long.
    Rings,
    /// Also stores of devices without a ring, which its thread has to poll for.
    Devices,
    /// Also stores of the CPU to the word of a stream: [`Env::stored`] wakes its thread.
    Stores,
}

/// A device, link or watcher that does a bounded amount of work at each call. It owns no thread and
/// reads no clock except the `now` argument.
pub trait Machine: Send {
    /// Does a bounded amount of work.
    fn step(&mut self, now: Time) -> Step;

    /// A short name for traces: `gpu0.engine`, `nic1`.
    fn name(&self) -> String;

    /// Returns a function that names, from any thread, the operation of a step that does not end.
    /// The driver calls this once.
    fn probe(&self) -> Option<Probe> {
        None
    }

    /// What the machine waits for after its last step. Only a step, or a change with a
    /// [`ring`](Env::ring) behind it, may change the answer to a later one.
    fn awaits(&self) -> Awaits {
        Awaits::Stores
    }
}

/// Names the current operation of a machine's step; `None`: no step that can be named is running.
pub type Probe = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Which thread of the driver steps a machine under `live` (`sim` has one thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The device thread: it spins while there is work, then sleeps at most 50 us at a time, or 1 ms
    /// while its machines [wait for rings only](Awaits::Rings).
    Device,
    /// A thread for this machine alone, which steps it about once per millisecond. A driver call
    /// that blocks there does not affect other machines.
    Watch,
    /// The library's CPU thread, which posts work on behalf of streams. It spins and sleeps as the
    /// device thread does.
    Cpu,
}

/// The id of an attached machine within its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(pub u64);

/// The driver's interface for the code of a rank.
pub trait Env: Send + Sync + fmt::Debug {
    /// The current time.
    fn now(&self) -> Time;

    /// The time of the system's monotonic clock at [`Time::ZERO`], which makes times of different
    /// processes of one host comparable; zero if the time is virtual.
    fn epoch(&self) -> Duration {
        Duration::ZERO
    }

    /// Waits until `condition` holds (returns `true`) or the deadline has passed (returns `false`).
    /// `condition` is evaluated at least once, even if the deadline has already passed. Under
    /// `live`, the calling thread spins for a short time, then sleeps between evaluations. Under
    /// `sim`, other actors step meanwhile. The caller must not hold a lock that a machine or
    /// another rank takes.
    fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool;

    /// Wakes the machines that may wait for an earlier store of the caller. It is cheap if no
    /// thread sleeps. It orders the caller's earlier stores before the check for a sleeper.
    fn ring(&self);

    /// As [`Env::ring`], after a store to a word that a stream may wait for. It does nothing if no
    /// machine [awaits stores](Awaits::Stores).
    fn stored(&self) {
        self.ring();
    }
}

/// A driver to which machines can be attached.
pub trait Host: Env {
    /// Attaches `machine` to the driver, which steps it from now on.
    fn attach(&self, thread: Thread, machine: Box<dyn Machine>) -> MachineId;

    /// Detaches a machine. When this returns, the machine is not being stepped, will not be stepped
    /// again, and is dropped. An id that is not attached is ignored. Must not be called from inside
    /// a step of the same thread.
    fn detach(&self, id: MachineId);
}

/// A machine that ranks access between its steps.
///
/// The driver holds one clone as the [`Machine`]. Ranks hold others and call
/// [`with`](Shared::with). A rank that waits for the lock gets it before the next step, so a busy
/// device thread does not starve it.
pub struct Shared<M>(Arc<Inner<M>>);

struct Inner<M> {
    machine: Mutex<M>,
    /// The number of ranks that wait for the lock. Ranks write it around `lock`. The stepping
    /// thread reads it (relaxed) and does not take the lock while it is not zero. It is a hint: the
    /// mutex provides the ordering.
    waiting: AtomicU32,
}

impl<M> Shared<M> {
    /// Shares `machine`.
    pub fn new(machine: M) -> Shared<M> {
        Shared(Arc::new(Inner {
            machine: Mutex::new(machine),
            waiting: AtomicU32::new(0),
        }))
    }

    /// Whether both refer to the same machine.
    pub fn is(&self, other: &Shared<M>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `f` on the machine, between two steps. `f` must not wait for the driver.
    pub fn with<R>(&self, f: impl FnOnce(&mut M) -> R) -> R {
        let inner = &*self.0;
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        let mut guard = inner.machine.lock();
        inner.waiting.fetch_sub(1, Ordering::Relaxed);
        f(&mut guard)
    }

    /// As [`Shared::with`], without waiting; `None` if another thread has the machine.
    pub fn try_with<R>(&self, f: impl FnOnce(&mut M) -> R) -> Option<R> {
        self.0.machine.try_lock().map(|mut machine| f(&mut machine))
    }
}

impl<M> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<M> fmt::Debug for Shared<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared(..)")
    }
}

impl<M: Machine> Shared<M> {
    /// Steps the machine; `None`: another thread has it or waits for it, and may need the processor.
    pub fn step_if_free(&self, now: Time) -> Option<Step> {
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
            return None;
        }
        self.0
            .machine
            .try_lock()
            .map(|mut machine| machine.step(now))
    }
}

impl<M: Machine> Machine for Shared<M> {
    fn step(&mut self, now: Time) -> Step {
        self.step_if_free(now).unwrap_or(Step::Progress)
    }

    fn name(&self) -> String {
        self.0.machine.lock().name()
    }

    fn awaits(&self) -> Awaits {
        let machine = self.0.machine.try_lock();
        machine.map_or(Awaits::Stores, |machine| machine.awaits())
    }
}
