//! The live driver: real threads, real time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::{Bell, BellError, Env, Host, Machine, MachineId, Mutex, Thread, Time};

use worker::{Pace, WorkerThread};

mod worker;

#[cfg(test)]
mod tests;

/// How the live driver shares the processor between looking and sleeping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// How long the device and the CPU thread spin after the last progress. Default 500 us:
    /// several times what a peer needs to wake up, or two ranks that play ping-pong would put
    /// each other to sleep at every message.
    pub spin: Duration,
    /// The longest sleep of the device and the CPU thread while a machine is attached:
    /// the time in which a store that nobody rang for is noticed. Default 40 us, which leaves
    /// the kernel 10 us to wake the thread.
    pub nap: Duration,
    /// How often the watcher's machines are stepped if nothing happens. Default 1 ms.
    pub watch: Duration,
    /// How long [`Env::wait_until`] spins before it sleeps. Default 5 us, zero on a machine
    /// of one processor.
    pub wait_spin: Duration,
    /// The first sleep of [`Env::wait_until`]; each next one is twice as long. Default 20 us.
    pub wait_first: Duration,
    /// The longest sleep of [`Env::wait_until`]. Default 500 us.
    pub wait_longest: Duration,
    /// How long a spin keeps the processor; after that it yields to other threads at each
    /// look, or two ranks that share a processor would wait out each other's spins. Default
    /// 2 us, zero on a machine of one processor.
    pub keep: Duration,
}

impl Default for LiveConfig {
    fn default() -> LiveConfig {
        let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        LiveConfig {
            spin: Duration::from_micros(500),
            nap: Duration::from_micros(40),
            watch: Duration::from_millis(1),
            wait_spin: Duration::from_micros(if alone { 0 } else { 5 }),
            wait_first: Duration::from_micros(20),
            wait_longest: Duration::from_micros(500),
            keep: Duration::from_micros(if alone { 0 } else { 2 }),
        }
    }
}

/// The live driver could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// No bell for a thread.
    #[error("live driver: no bell to wake a thread by")]
    Bell(#[from] BellError),
    /// The system refused a thread.
    #[error("live driver: thread {name} did not start")]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A machine that panicked in a step (and was detached) or while it was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The id it was attached under.
    pub machine: MachineId,
    /// The name it gave when it was attached.
    pub name: String,
    /// What the panic said.
    pub message: String,
}

/// The driver of a process that runs for real: a device thread, a CPU thread, and one for each
/// watcher.
///
/// * `gds-device` steps the machines of [`Thread::Device`] round robin. It spins while any of
///   them makes progress and [`LiveConfig::spin`] longer, then sleeps on the [`Bell`], never
///   longer than [`LiveConfig::nap`] at a time while a machine is attached (a store that
///   nobody rang for is noticed within that time), shorter if a machine asked for it, and
///   without limit while none is.
/// * `gds-cpu` does the same for [`Thread::Cpu`]. It starts with the first such machine.
/// * Each machine of [`Thread::Watch`] has a thread `gds-watch` of its own, from when it is attached
///   until it is detached: a watcher that is stuck in a call of its driver stops no other. It is
///   stepped every [`LiveConfig::watch`], and again at once after progress.
///
/// A machine that panics is detached and remembered in [`failures`](Live::failures); its
/// thread goes on. If the system refuses the CPU thread or a watcher's, the device
/// thread serves their machines.
///
/// Machines must not own the driver that steps them: neither would ever be dropped.
pub struct Live {
    config: LiveConfig,
    start: Instant,
    device: WorkerThread,
    /// By the machine's id.
    watch: Mutex<BTreeMap<u64, WorkerThread>>,
    /// `None` inside: the system refused the thread.
    cpu: OnceLock<Option<WorkerThread>>,
    /// Stack of the threads above, in bytes.
    stack: usize,
    /// Numbers the machines. Only uniqueness counts, so relaxed.
    attached: AtomicU64,
    failures: Arc<Mutex<Vec<Failure>>>,
}

/// Stack of each thread, in bytes.
const STACK: usize = 2 << 20;

/// The thread a machine is on, in the lowest bits of its id.
const THREADS: u64 = 4;
const DEVICE: u64 = 0;
const WATCH: u64 = 1;
const CPU: u64 = 2;

/// The time that passed since `start`; after 584 years it stands still.
fn since(start: Instant) -> Time {
    Time::ZERO + start.elapsed()
}

impl Live {
    /// The driver of this process, started on first use and never stopped.
    ///
    /// # Errors
    /// The system refused its bell or its thread. The next call tries again.
    pub fn global() -> Result<Arc<Live>, LiveError> {
        static GLOBAL: Mutex<Option<Arc<Live>>> = Mutex::new(None);
        let mut global = GLOBAL.lock();
        if let Some(live) = &*global {
            return Ok(Arc::clone(live));
        }
        let live = Live::new(LiveConfig::default())?;
        *global = Some(Arc::clone(&live));
        Ok(live)
    }

    /// A driver of its own, for tests and embedding. Dropping the last reference stops its
    /// threads and drops its machines.
    ///
    /// # Errors
    /// The system refused its bell or its thread.
    pub fn new(config: LiveConfig) -> Result<Arc<Live>, LiveError> {
        Live::with_stack(config, STACK)
    }

    fn with_stack(config: LiveConfig, stack: usize) -> Result<Arc<Live>, LiveError> {
        let start = Instant::now();
        let failures = Arc::default();
        let pace = Live::device_pace(&config);
        let device = WorkerThread::start("gds-device", pace, STACK, start, Arc::clone(&failures))?;
        Ok(Arc::new(Live {
            config,
            start,
            device,
            watch: Mutex::default(),
            cpu: OnceLock::new(),
            stack,
            attached: AtomicU64::new(0),
            failures,
        }))
    }

    /// The bell of the device thread, for peers in other processes to ring: they open it by
    /// [`Bell::fd`].
    pub fn bell(&self) -> &Bell {
        self.device.bell()
    }

    /// The machines that panicked so far, oldest first.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().clone()
    }

    fn device_pace(config: &LiveConfig) -> Pace {
        Pace {
            spin: config.spin,
            nap: config.nap,
            keep: config.keep,
        }
    }

    fn start_worker(&self, name: &'static str, pace: Pace) -> Option<WorkerThread> {
        let failures = Arc::clone(&self.failures);
        WorkerThread::start(name, pace, self.stack, self.start, failures).ok()
    }

    /// The CPU thread, started if need be.
    fn cpu(&self) -> Option<&WorkerThread> {
        let start = || self.start_worker("gds-cpu", Live::device_pace(&self.config));
        self.cpu.get_or_init(start).as_ref()
    }

    /// A thread for one watcher.
    fn start_watch(&self) -> Option<WorkerThread> {
        let pace = Pace {
            spin: Duration::ZERO,
            nap: self.config.watch,
            keep: Duration::ZERO,
        };
        self.start_worker("gds-watch", pace)
    }
}

impl Env for Live {
    fn now(&self) -> Time {
        since(self.start)
    }

    fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        debug_assert!(!worker::inside_a_step(), "wait_until from inside a step");
        let deadline = deadline.unwrap_or(Time::NEVER);
        let mut spin_until = None;
        let mut nap = self.config.wait_first;
        loop {
            if condition() {
                return true;
            }
            let now = self.now();
            if now >= deadline {
                return false;
            }
            if now < *spin_until.get_or_insert(now + self.config.wait_spin) {
                std::hint::spin_loop();
                continue;
            }
            std::thread::sleep(nap.min(deadline - now));
            nap = (nap * 2).min(self.config.wait_longest);
        }
    }

    fn ring(&self) {
        self.device.bell().ring();
        if let Some(Some(cpu)) = self.cpu.get() {
            cpu.bell().ring();
        }
    }
}

impl Host for Live {
    fn attach(&self, thread: Thread, machine: Box<dyn Machine>) -> MachineId {
        let serial = self.attached.fetch_add(1, Ordering::Relaxed);
        let id = |number| MachineId(serial * THREADS + number);
        if thread == Thread::Watch
            && let Some(worker) = self.start_watch()
        {
            let id = id(WATCH);
            worker.attach(id, machine);
            self.watch.lock().insert(id.0, worker);
            return id;
        }
        let cpu = (thread == Thread::Cpu).then(|| self.cpu()).flatten();
        let (worker, id) = match cpu {
            Some(cpu) => (cpu, id(CPU)),
            None => (&self.device, id(DEVICE)),
        };
        worker.attach(id, machine);
        id
    }

    /// Waits for the thread of `id` to finish its round, at most ten seconds. If a step has not
    /// ended by then, a warning names what it is doing, and the machine is detached when it ends. From
    /// inside a step of the same thread (or the destructor of a machine on it) the machine is
    /// detached after the round; doing so in a step is a mistake that debug builds report by a
    /// panic of that step.
    fn detach(&self, id: MachineId) {
        let worker = match id.0 % THREADS {
            DEVICE => Some(&self.device),
            CPU => self.cpu.get().and_then(Option::as_ref),
            WATCH => {
                let worker = self.watch.lock().remove(&id.0);
                // And the thread ends.
                if let Some(worker) = worker
                    && !worker.detach(id)
                {
                    worker.abandon();
                }
                None
            }
            _ => None,
        };
        if let Some(worker) = worker {
            worker.detach(id);
        }
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("config", &self.config)
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}
