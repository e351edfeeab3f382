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

/// The polling and sleep times of the live driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// How long the device and the CPU thread spin after the last progress. Default 500 us: several
    /// times the wake-up time of a peer. With a shorter spin, two ranks that play ping-pong would
    /// sleep at every message.
    pub spin: Duration,
    /// The longest sleep of the device and the CPU thread while a machine is attached. It bounds
    /// the delay of a store without a wake-up. Default 40 us, which leaves the kernel 10 us to wake
    /// the thread.
    pub nap: Duration,
    /// As `nap`, while every machine waits for a ring only ([`Awaits::Rings`](crate::Awaits)).
    /// Default 1 ms: each wake-up takes the processor from a rank. It bounds the delay if a machine
    /// errs.
    pub rest: Duration,
    /// The interval at which the watchers' machines are stepped without progress. Default 1 ms.
    pub watch: Duration,
    /// How long [`Env::wait_until`] spins before it yields. Default 5 us, zero on a machine with one
    /// processor.
    pub wait_spin: Duration,
    /// How long [`Env::wait_until`] then yields the processor to other threads between two checks,
    /// before it sleeps. Default 50 us, about the time of a sleep and a wake-up.
    pub wait_yield: Duration,
    /// The first sleep of [`Env::wait_until`]; each next one is twice as long. Default 20 us.
    pub wait_first: Duration,
    /// The longest sleep of [`Env::wait_until`]. Default 500 us.
    pub wait_longest: Duration,
    /// How long a spin keeps the processor. After that it yields to other threads at each check;
    /// without the yield, two ranks on one processor would wait for the end of each other's spins.
    /// Default 2 us, zero on a machine with one processor.
    pub keep: Duration,
}

impl Default for LiveConfig {
    fn default() -> LiveConfig {
        let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        LiveConfig {
            spin: Duration::from_micros(500),
            nap: Duration::from_micros(40),
            rest: Duration::from_millis(1),
            watch: Duration::from_millis(1),
            wait_spin: Duration::from_micros(if alone { 0 } else { 5 }),
            wait_yield: Duration::from_micros(50),
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
    /// No bell could be created for a thread.
    #[error("live driver: the bell of a thread could not be created")]
    Bell(#[from] BellError),
    /// The system refused to start a thread.
    #[error("live driver: thread {name} did not start")]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// A machine that panicked in a step (and was detached) or while it was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The machine's id.
    pub machine: MachineId,
    /// The machine's name at the time of the attach.
    pub name: String,
    /// The message of the panic.
    pub message: String,
}

/// The driver of a process in real time: a device thread, a CPU thread, and one thread for each
/// watcher.
///
/// * `gds-device` steps the machines of [`Thread::Device`] round robin. It spins while any of them
///   makes progress and for [`LiveConfig::spin`] after it. Then it sleeps on the [`Bell`]. While a
///   machine is attached, it sleeps at most [`LiveConfig::nap`] at a time, so it detects a store
///   without a wake-up within that time. It sleeps shorter if a machine requests it, at most
///   [`LiveConfig::rest`] while every machine waits for a ring only, and without limit while no
///   machine is attached.
/// * `gds-cpu` does the same for [`Thread::Cpu`]. It starts with the first machine of this kind.
/// * Each machine of [`Thread::Watch`] has its own thread `gds-watch`, from the attach to the
///   detach. A watcher that is stuck in a driver call therefore does not stop another. The thread
///   steps it every [`LiveConfig::watch`], and again at once after progress.
///
/// A machine that panics is detached and listed in [`failures`](Live::failures); its thread
/// continues. If the system refuses to start the CPU thread or a watcher's thread, the device
/// thread steps their machines.
///
/// A machine must not own the driver that steps it: neither would ever be dropped.
pub struct Live {
    config: LiveConfig,
    start: Instant,
    device: WorkerThread,
    /// By the machine's id.
    watch: Mutex<BTreeMap<u64, WorkerThread>>,
    /// `None` inside: the system refused to start the thread.
    cpu: OnceLock<Option<WorkerThread>>,
    /// Stack of the threads above, in bytes.
    stack: usize,
    /// Numbers the machines. Only uniqueness matters, so relaxed.
    attached: AtomicU64,
    failures: Arc<Mutex<Vec<Failure>>>,
}

/// Stack of each thread, in bytes.
const STACK: usize = 2 << 20;

/// The thread of a machine, in the lowest bits of its id.
const THREADS: u64 = 4;
const DEVICE: u64 = 0;
const WATCH: u64 = 1;
const CPU: u64 = 2;

/// The time since `start`; it saturates after 584 years.
fn since(start: Instant) -> Time {
    Time::ZERO + start.elapsed()
}

impl Live {
    /// The driver of this process. It starts on first use and never stops.
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

    /// A separate driver, for tests and embedding. Dropping the last reference stops its threads
    /// and drops its machines.
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

    /// The bell of the device thread. Peers in other processes open it by [`Bell::fd`] and ring it.
    pub fn bell(&self) -> &Bell {
        self.device.bell()
    }

    /// The machines that have panicked, oldest first.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().clone()
    }

    fn device_pace(config: &LiveConfig) -> Pace {
        Pace {
            spin: config.spin,
            nap: config.nap,
            rest: config.rest,
            keep: config.keep,
        }
    }

    fn start_worker(&self, name: &'static str, pace: Pace) -> Option<WorkerThread> {
        let failures = Arc::clone(&self.failures);
        WorkerThread::start(name, pace, self.stack, self.start, failures).ok()
    }

    /// The CPU thread, started if it does not run.
    fn cpu(&self) -> Option<&WorkerThread> {
        let start = || self.start_worker("gds-cpu", Live::device_pace(&self.config));
        self.cpu.get_or_init(start).as_ref()
    }

    /// Starts a thread for one watcher.
    fn start_watch(&self) -> Option<WorkerThread> {
        let pace = Pace {
            spin: Duration::ZERO,
            nap: self.config.watch,
            rest: Duration::ZERO,
            keep: Duration::ZERO,
        };
        self.start_worker("gds-watch", pace)
    }
}

impl Env for Live {
    fn now(&self) -> Time {
        since(self.start)
    }

    fn epoch(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        now.saturating_sub(self.start.elapsed())
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
            let spin_until = *spin_until.get_or_insert(now + self.config.wait_spin);
            if now < spin_until {
                std::hint::spin_loop();
                continue;
            }
            if now < spin_until + self.config.wait_yield {
                std::thread::yield_now();
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

    fn stored(&self) {
        self.device.bell().stored();
        if let Some(Some(cpu)) = self.cpu.get() {
            cpu.bell().stored();
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

    /// Waits at most 10 s for the thread of `id` to finish its round. If a step does not end within
    /// 10 s, a warning names its operation, and the machine is detached when the step ends. A call
    /// from inside a step of the same thread (or from the destructor of a machine on it) detaches
    /// the machine after the round. A call from inside a step is an error of the caller; debug
    /// builds report it by a panic of that step.
    fn detach(&self, id: MachineId) {
        let worker = match id.0 % THREADS {
            DEVICE => Some(&self.device),
            CPU => self.cpu.get().and_then(Option::as_ref),
            WATCH => {
                let worker = self.watch.lock().remove(&id.0);
                // This also ends the thread.
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
