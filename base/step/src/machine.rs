//! Step machines, and what a rank sees of the driver that steps them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Mutex, Time};

/// What a step achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some work was done; there may be more.
    Progress,
    /// Nothing could be done. `Some(t)`: call again at `t` at the latest; `None`: only
    /// when something outside has changed (the machine may be waiting for a word that
    /// a foreign store changes, so a driver still polls it now and then).
    IdleUntil(Option<Time>),
}

/// A device, link or watcher that does a bounded piece of work each time it is called,
/// owns no thread and reads no clock but the `now` it is handed.
pub trait Machine: Send {
    /// Does at most a bounded amount of work.
    fn step(&mut self, now: Time) -> Step;

    /// A short name for traces: `gpu0.engine`, `nic1`.
    fn name(&self) -> String;

    /// A function that names, from any thread, what a step that does not end is doing; taken once.
    fn probe(&self) -> Option<Probe> {
        None
    }
}

/// Names what a machine's step is doing now; `None`: it is in no step that can tell.
pub type Probe = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Which thread of the driver steps a machine under `live` (`sim` has one thread).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The device thread: spins while there is work, then sleeps at most 50 us at a time.
    Device,
    /// A thread of the machine's own: about once a millisecond. It may be stuck in a call of a
    /// driver without an effect on others.
    Watch,
    /// The library's CPU thread, which posts work on behalf of streams: spins, then sleeps, as the
    /// device thread does.
    Cpu,
}

/// Names an attached machine within its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(pub u64);

/// The driver as code of a rank sees it.
pub trait Env: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Time;

    /// Waits until `condition` holds (then `true`) or the deadline has passed (then `false`).
    /// `condition` is tried at least once, also when the deadline lies in the past. The
    /// calling thread sleeps between tries after a short spin under `live`; under `sim`
    /// others step meanwhile. Must not be called with a lock held that a machine or
    /// another rank takes.
    fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool;

    /// Tells the machines that something was written that they may be waiting for. Cheap
    /// when nobody sleeps. Orders the caller's earlier stores before the look at the sleeper.
    fn ring(&self);
}

/// An environment that machines can be attached to.
pub trait Host: Env {
    /// Hands `machine` to the driver, which steps it from now on.
    fn attach(&self, thread: Thread, machine: Box<dyn Machine>) -> MachineId;

    /// Takes a machine away. When this returns, the machine is not being stepped and will
    /// not be again; it has been dropped. An id that is not attached is ignored.
    /// Must not be called from inside a step of the same thread.
    fn detach(&self, id: MachineId);
}

/// A machine that ranks operate on between its steps.
///
/// The driver holds one clone as the [`Machine`], ranks hold others and call
/// [`with`](Shared::with). A rank that waits for the lock is let in before the next step,
/// so a busy device thread cannot keep it out.
pub struct Shared<M>(Arc<Inner<M>>);

struct Inner<M> {
    machine: Mutex<M>,
    /// Counts ranks that want the lock. Written by ranks around `lock`, read (relaxed) by the
    /// stepping thread, which does not take the lock while it is not zero. Only a hint: the
    /// mutex carries the ordering.
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

    /// Whether both are the same machine.
    pub fn is(&self, other: &Shared<M>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `f` on the machine, between two steps. `f` must not wait on the driver.
    pub fn with<R>(&self, f: impl FnOnce(&mut M) -> R) -> R {
        let inner = &*self.0;
        inner.waiting.fetch_add(1, Ordering::Relaxed);
        let mut guard = inner.machine.lock();
        inner.waiting.fetch_sub(1, Ordering::Relaxed);
        f(&mut guard)
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

impl<M: Machine> Machine for Shared<M> {
    fn step(&mut self, now: Time) -> Step {
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
            return Step::Progress;
        }
        let machine = self.0.machine.try_lock();
        machine.map_or(Step::Progress, |mut machine| machine.step(now))
    }

    fn name(&self) -> String {
        self.0.machine.lock().name()
    }
}
