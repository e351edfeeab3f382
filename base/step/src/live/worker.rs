//! One thread of the live driver: its machines, the loop that steps them, and the mailbox for
//! attaching and detaching machines.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Awaits, Bell, Machine, MachineId, Mutex, Probe, Step, Time};

use super::{Failure, LiveError};
use crate::panic_message;

/// How long a detach waits for the current step of the thread.
const DETACH: Duration = Duration::from_secs(10);

thread_local! {
    /// The worker of this thread, and whether it is inside a round of steps.
    static ON: Cell<(*const Worker, bool)> = const { Cell::new((std::ptr::null(), false)) };
}

/// Whether the caller runs inside the step of a machine.
pub(super) fn inside_a_step() -> bool {
    ON.get().1
}

/// The polling and sleep times of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How long to spin after the last progress.
    pub spin: Duration,
    /// The longest sleep while any machine is attached.
    pub nap: Duration,
    /// As `nap`, while every machine waits for a ring only.
    pub rest: Duration,
    /// How long to spin before the thread yields the processor between two checks.
    pub keep: Duration,
}

/// A machine on its thread. Its name is read once, at the attach.
struct Slot {
    id: MachineId,
    name: String,
    machine: Box<dyn Machine>,
}

enum Letter {
    Attach(Slot),
    Detach(MachineId),
    Stop,
}

/// The requests to the thread. Letters are numbered from one.
#[derive(Default)]
struct Mailbox {
    letters: Vec<Letter>,
    posted: u64,
    handled: u64,
    /// The value of `handled` when a detach timed out. No other detach waits until the thread
    /// continues.
    stuck: Option<u64>,
}

/// The part of a thread that other threads access.
pub(super) struct Worker {
    bell: Bell,
    pace: Pace,
    start: Instant,
    failures: Arc<Mutex<Vec<Failure>>>,
    mailbox: Mutex<Mailbox>,
    /// Signalled when `Mailbox::handled` has grown.
    handled: Condvar,
    /// The probes of the machines, by their names.
    probes: Mutex<Vec<(MachineId, String, Probe)>>,
    /// True while letters are pending. Written under the mailbox's lock, read relaxed once a round.
    /// It is a hint: the lock provides the ordering. A sleeper does not miss it, because a ring
    /// follows.
    mail: AtomicBool,
}

/// The result of a round over all machines.
enum Round {
    Progress,
    /// The earliest step time that a machine requested.
    Idle(Time),
}

impl Worker {
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn attach(&self, id: MachineId, machine: Box<dyn Machine>) {
        let name = machine.name();
        if let Some(probe) = machine.probe() {
            self.probes.lock().push((id, name.clone(), probe));
        }
        self.post(Letter::Attach(Slot { id, name, machine }));
    }

    /// Returns whether the machine is detached, or will be after the current round.
    pub(super) fn detach(&self, id: MachineId) -> bool {
        let (on, stepping) = ON.get();
        let ticket = self.post(Letter::Detach(id));
        if std::ptr::eq(on, self) {
            // A wait for the own thread would never end: the thread reads the letter after this
            // round.
            debug_assert!(!stepping, "detach from inside a step of the same thread");
            return true;
        }
        let start = Instant::now();
        let mut mailbox = self.mailbox.lock();
        while mailbox.handled < ticket {
            let again = mailbox.stuck == Some(mailbox.handled);
            let left = DETACH.saturating_sub(start.elapsed());
            if again || left.is_zero() {
                mailbox.stuck = Some(mailbox.handled);
                drop(mailbox);
                if !again {
                    self.accuse();
                }
                return false;
            }
            let waited = self.handled.wait_timeout(mailbox, left);
            mailbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Warns of the step that delays the detach.
    #[cold]
    fn accuse(&self) {
        let probes = self.probes.lock();
        let at = probes.iter().filter_map(|(_, name, probe)| {
            let what = probe()?;
            Some(format!("{name}: {what}"))
        });
        let at: Vec<String> = at.collect();
        let at = match at.is_empty() {
            true => "a step that does not name its operation".to_owned(),
            false => at.join("; "),
        };
        tracing::warn!(
            target: "gdsync",
            "a software device is given up, but was not stopped within {DETACH:?}: {at}. What it may \
             still use is not freed"
        );
    }

    fn post(&self, letter: Letter) -> u64 {
        let mut mailbox = self.mailbox.lock();
        mailbox.letters.push(letter);
        mailbox.posted += 1;
        let ticket = mailbox.posted;
        self.mail.store(true, Ordering::Relaxed);
        drop(mailbox);
        self.bell.ring();
        ticket
    }

    fn now(&self) -> Time {
        super::since(self.start)
    }

    fn run(&self) {
        ON.set((self, false));
        // With the default timer slack of 50 us, a nap of 40 us takes 90 us. A refusal only costs
        // time.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut slots = Vec::new();
        let mut spin_until = Time::ZERO;
        loop {
            if self.mail.load(Ordering::Relaxed) {
                if !self.read_mail(&mut slots) {
                    return;
                }
                spin_until = self.now() + self.pace.spin;
            }
            let now = self.now();
            if now < spin_until && !slots.is_empty() {
                match self.round(&mut slots, now) {
                    Round::Progress => spin_until = now + self.pace.spin,
                    // `spin_until` is the time of the last progress plus `spin`.
                    Round::Idle(_) if now + self.pace.spin < spin_until + self.pace.keep => {
                        std::hint::spin_loop()
                    }
                    Round::Idle(_) => std::thread::yield_now(),
                }
                continue;
            }
            self.bell.nap(|| {
                if self.mail.load(Ordering::Relaxed) {
                    return None;
                }
                if slots.is_empty() {
                    return Some(Duration::MAX);
                }
                let Round::Idle(next) = self.round(&mut slots, now) else {
                    spin_until = now + self.pace.spin;
                    return None;
                };
                let awaits = slots.iter().map(|slot| slot.machine.awaits()).max();
                if awaits != Some(Awaits::Stores) {
                    self.bell.ignore_stores();
                }
                let longest = match awaits {
                    Some(Awaits::Rings) => self.pace.nap.max(self.pace.rest),
                    _ => self.pace.nap,
                };
                if next == Time::NEVER {
                    return Some(longest);
                }
                let left = next.since(self.now());
                (!left.is_zero()).then(|| left.min(longest))
            });
        }
    }

    /// Steps every machine once, in the order they were attached.
    fn round(&self, slots: &mut Vec<Slot>, now: Time) -> Round {
        ON.set((self, true));
        let mut progress = false;
        let mut next = Time::NEVER;
        let mut i = 0;
        while let Some(slot) = slots.get_mut(i) {
            match catch_unwind(AssertUnwindSafe(|| slot.machine.step(now))) {
                Ok(Step::Progress) => progress = true,
                Ok(Step::IdleUntil(Some(t))) => next = next.min(t),
                Ok(Step::IdleUntil(None)) => {}
                Err(payload) => {
                    let message = panic_message(payload);
                    self.fail(slots.remove(i), message);
                    progress = true;
                    continue;
                }
            }
            i += 1;
        }
        ON.set((self, false));
        if progress {
            Round::Progress
        } else {
            Round::Idle(next)
        }
    }

    /// Handles all letters; returns `false` after a request to stop.
    fn read_mail(&self, slots: &mut Vec<Slot>) -> bool {
        let (letters, last) = {
            let mut mailbox = self.mailbox.lock();
            self.mail.store(false, Ordering::Relaxed);
            (std::mem::take(&mut mailbox.letters), mailbox.posted)
        };
        let mut go_on = true;
        for letter in letters {
            match letter {
                Letter::Attach(slot) => slots.push(slot),
                Letter::Detach(id) => {
                    if let Some(i) = slots.iter().position(|s| s.id == id) {
                        self.discard(slots.remove(i));
                    }
                }
                Letter::Stop => go_on = false,
            }
        }
        if !go_on {
            slots.drain(..).for_each(|slot| self.discard(slot));
        }
        self.mailbox.lock().handled = if go_on { last } else { u64::MAX };
        self.handled.notify_all();
        go_on
    }

    fn discard(&self, slot: Slot) {
        let Slot { id, name, machine } = slot;
        self.probes.lock().retain(|(probed, ..)| *probed != id);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(machine))) {
            let message = panic_message(payload);
            self.failures.lock().push(Failure {
                machine: id,
                name,
                message,
            });
        }
    }

    #[cold]
    fn fail(&self, slot: Slot, message: String) {
        let (machine, name) = (slot.id, slot.name.clone());
        self.failures.lock().push(Failure {
            machine,
            name,
            message,
        });
        self.discard(slot);
    }
}

/// A worker and the thread that runs it. Dropping it ends the thread and all its machines.
pub(super) struct WorkerThread {
    worker: Arc<Worker>,
    handle: Option<JoinHandle<()>>,
}

impl WorkerThread {
    /// `stack`: size of the thread's stack in bytes.
    pub(super) fn start(
        name: &'static str,
        pace: Pace,
        stack: usize,
        start: Instant,
        failures: Arc<Mutex<Vec<Failure>>>,
    ) -> Result<WorkerThread, LiveError> {
        let worker = Arc::new(Worker {
            bell: Bell::new()?,
            pace,
            start,
            failures,
            mailbox: Mutex::default(),
            handled: Condvar::new(),
            probes: Mutex::default(),
            mail: AtomicBool::new(false),
        });
        let handle = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(stack)
            .spawn({
                let worker = Arc::clone(&worker);
                move || worker.run()
            })
            .map_err(|source| LiveError::Thread { name, source })?;
        // The thread answers its first letter; from then on it runs under its name.
        worker.detach(MachineId(u64::MAX));
        Ok(WorkerThread {
            worker,
            handle: Some(handle),
        })
    }
}

impl WorkerThread {
    /// Ends the thread after the current round, without waiting for it.
    pub(super) fn abandon(mut self) {
        self.handle = None;
    }
}

impl std::ops::Deref for WorkerThread {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.worker.post(Letter::Stop);
        let own = std::ptr::eq(ON.get().0, &*self.worker);
        // A machine with the last reference to its driver drops the driver on the driver's own
        // thread. That thread cannot wait for itself: it ends after this round.
        if let Some(handle) = self.handle.take().filter(|_| !own) {
            // The loop catches every panic of a machine, so the join has no error to report.
            let _ = handle.join();
        }
    }
}
