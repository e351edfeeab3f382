//! The thread that steps the NICs of this process, and its sharing of the processors with the
//! program.
//!
//! A doorbell is a store into memory and wakes no thread, so the thread polls. On a machine with
//! many processors it polls without a pause for a while. On a machine with few processors it sleeps
//! between two polls: for microseconds while there is traffic, and longer without traffic, because
//! a spinning thread would take the processor from the program that waits for it. Frames of other
//! processes ring a bell.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gds_step::{Bell, Machine, Shared, Step, Time};
use rustix::io::Errno;
use vmlx5_core::fabric::shm::{ShmConfig, ShmFabric};
use vmlx5_core::{Dma, Nic, NicConfig};
use vmlx5_uverbs::address::{Fabric, SLOTS};
use vmlx5_uverbs::{Device, DeviceConfig};

use crate::config::Config;
use crate::guard::{self, Own, present};
use crate::mapping::{self, Mapping};
use crate::{config, trace};

/// The engine of a process.
struct Engine {
    bell: Arc<Bell>,
    devices: Mutex<Vec<Arc<Attached>>>,
    /// The number of changes of `devices`. Written after a change, read by the thread before a
    /// round.
    changes: AtomicUsize,
    /// Written at the end of the process; read by the thread before a round.
    stop: AtomicBool,
    /// Written by the thread after it has observed `stop`.
    stopped: AtomicBool,
}

/// A device, its NIC, and its number.
struct Attached {
    index: u32,
    device: Arc<Device>,
    nic: Shared<Nic>,
}

/// The engine of this process, after a device was opened; a child starts without one. It is leaked,
/// so that every reference to it stays valid.
static ENGINE: AtomicUsize = AtomicUsize::new(0);

fn engine() -> Option<&'static Engine> {
    let at = ENGINE.load(Ordering::Acquire);
    // SAFETY: zero, or the address of a leaked box.
    unsafe { (at as *const Engine).as_ref() }
}

/// Wakes the thread.
pub fn ring() {
    if let Some(engine) = engine() {
        engine.bell.ring();
    }
}

/// Called in the child of a fork: the thread does not exist there.
pub fn forget() {
    ENGINE.store(0, Ordering::Release);
}

/// Makes the thread send what is pending, then stop.
pub fn stop() {
    let Some(engine) = engine() else {
        return;
    };
    engine.stop.store(true, Ordering::Release);
    engine.bell.ring();
    let deadline = Instant::now() + Duration::from_millis(100);
    while !engine.stopped.load(Ordering::Acquire) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The device with a number; the first open creates it.
///
/// # Errors
/// The errno that `open` returns.
pub fn device(index: u32) -> Result<Arc<Device>, i32> {
    let setup = config::setup().ok_or(libc::ENODEV)?;
    let engine = match engine() {
        Some(engine) => engine,
        None => start(&setup.config)?,
    };
    let mut devices = engine
        .devices
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(attached) = devices.iter().find(|d| d.index == index) {
        return Ok(Arc::clone(&attached.device));
    }
    let attached = Arc::new(attach(&setup.config, index, &engine.bell)?);
    let device = Arc::clone(&attached.device);
    devices.push(attached);
    drop(devices);
    engine.changes.fetch_add(1, Ordering::Release);
    engine.bell.ring();
    Ok(device)
}

/// Creates a NIC in the first free slot of a device.
fn attach(config: &Config, index: u32, bell: &Arc<Bell>) -> Result<Attached, i32> {
    let nodes = (0..SLOTS).map(|slot| config.fabric.node(index, slot));
    // All engines sleep for microseconds only.
    let quiet = ShmConfig {
        quiet: true,
        ..ShmConfig::default()
    };
    let fabric = ShmFabric::claim(quiet, Arc::clone(bell), nodes);
    let fabric = fabric.map_err(|why| {
        trace::line(format_args!("mlx5_{index}: {why}"));
        libc::ENOMEM
    })?;
    let node = vmlx5_core::fabric::Fabric::node(&fabric);
    let nic = NicConfig {
        name: format!("mlx5_{index}"),
        qpn: Some(Fabric::qpns(Fabric::slot(node))),
        ports: config.fabric.ports,
        strict: true,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(nic, Box::new(fabric));
    if let Some(faults) = &config.faults {
        nic.set_faults(faults.clone());
        // Faults that begin at time 0 hold before the program's first query of the device.
        nic.step(Time::ZERO);
    }
    let nic = Shared::new(nic);
    let device = DeviceConfig {
        fabric: config.fabric.clone(),
        index,
        uar: config.uar,
    };
    let device = Device::new(device, nic.clone(), Arc::new(Process));
    trace::line(format_args!("mlx5_{index} is node {node}"));
    if let Some(faults) = &config.faults {
        trace::line(format_args!("mlx5_{index} has faults {faults}"));
    }
    Ok(Attached { index, device, nic })
}

/// Starts the thread.
fn start(config: &Config) -> Result<&'static Engine, i32> {
    static STARTING: Mutex<()> = Mutex::new(());
    let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(engine) = engine() {
        return Ok(engine);
    }
    let bell = Bell::new().map_err(|_| libc::ENOMEM)?;
    let engine: &'static Engine = Box::leak(Box::new(Engine {
        bell: Arc::new(bell),
        devices: Mutex::default(),
        changes: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
    }));
    let pace = Pace::new(config);
    let priority = config.priority;
    let blocked = Blocked::all();
    let thread = std::thread::Builder::new()
        .name("vmlx5".into())
        .spawn(move || run(engine, pace, priority));
    drop(blocked);
    if thread.is_err() {
        return Err(libc::EAGAIN);
    }
    ENGINE.store(std::ptr::from_ref(engine) as usize, Ordering::Release);
    Ok(engine)
}

/// Blocks all signals except those of faults until dropped, so that a new thread receives none of
/// the program's signals.
struct Blocked(libc::sigset_t);

impl Blocked {
    fn all() -> Blocked {
        // SAFETY: signal sets in memory of ours, and the mask of this thread.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                libc::sigdelset(&mut set, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, &mut before);
            Blocked(before)
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the previous mask of this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// The polling and sleep times of the thread.
#[derive(Clone, Copy)]
struct Pace {
    /// How long to poll without a pause after the last progress.
    spin: Duration,
    /// The sleep times within `BUSY` after progress, within `QUIET` after it, and later.
    naps: [Duration; 3],
}

const BUSY: Duration = Duration::from_micros(500);
const QUIET: Duration = Duration::from_millis(20);

impl Pace {
    fn new(config: &Config) -> Pace {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let micros = Duration::from_micros;
        let spin = micros(if processors < 4 { 0 } else { 200 });
        let nap = config.nap.unwrap_or(micros(20));
        let quiet = nap.max(micros(40));
        Pace {
            spin: config.spin.unwrap_or(spin),
            naps: [nap, quiet, quiet.max(micros(200))],
        }
    }
}

/// Reduces the thread's scheduling latency: a priority above the program if the system permits it,
/// and short time slices.
fn prefer() {
    #[repr(C)]
    struct Attr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let now = rustix::process::getpriority_process(None).unwrap_or(0);
    let mut attr = Attr {
        size: size_of::<Attr>() as u32,
        policy: 0,
        flags: 0,
        nice: now,
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    for nice in [(now - 10).max(-20), now] {
        attr.nice = nice;
        let args = [0, &raw const attr as usize];
        // SAFETY: sets the scheduling of this thread, from a structure that contains its size.
        if unsafe { crate::sys::syscall(libc::SYS_sched_setattr, args) } == 0 {
            return;
        }
    }
}

fn run(engine: &Engine, pace: Pace, priority: bool) {
    // With the default timer slack of 50 us a nap of 20 us takes 70 us. A refusal only costs time.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if priority {
        prefer();
    }
    let start = Instant::now();
    let mut devices = Vec::new();
    let mut known = usize::MAX;
    let mut last = Time::ZERO;
    loop {
        let changes = engine.changes.load(Ordering::Acquire);
        if changes != known {
            known = changes;
            let all = engine.devices.lock();
            devices = all.unwrap_or_else(PoisonError::into_inner).clone();
        }
        let now = Time::ZERO + start.elapsed();
        let mut progress = false;
        let mut look = |now| {
            let mut next: Option<Time> = None;
            for attached in &devices {
                let mut nic = attached.nic.clone();
                match nic.step(now) {
                    Step::Progress => progress = true,
                    Step::IdleUntil(at) => next = [next, at].into_iter().flatten().min(),
                }
                attached.device.turn();
            }
            (progress, next)
        };
        let (progress, _) = look(now);
        if progress {
            last = now;
            continue;
        }
        if engine.stop.load(Ordering::Acquire) {
            engine.stopped.store(true, Ordering::Release);
            // The process ends; until then no NIC is stepped any more.
            return;
        }
        let idle = now - last;
        if idle < pace.spin {
            std::hint::spin_loop();
            continue;
        }
        let nap = match idle {
            idle if idle < BUSY => pace.naps[0],
            idle if idle < QUIET => pace.naps[1],
            _ => pace.naps[2],
        };
        engine.bell.nap(|| {
            // One more step after sleep was announced, so that no ring is lost.
            let (progress, next) = look(Time::ZERO + start.elapsed());
            if progress {
                return None;
            }
            let now = Time::ZERO + start.elapsed();
            Some(next.map_or(nap, |at| nap.min(at - now)))
        });
    }
}

/// The process, for the kernel interface.
pub struct Process;

impl vmlx5_uverbs::User for Process {
    fn memory(&self, addr: u64, len: u64, writable: bool) -> Result<Arc<dyn Dma>, Errno> {
        if present(addr, len, writable) {
            Ok(Arc::new(Own { base: addr, len }))
        } else {
            Err(Errno::FAULT)
        }
    }

    fn dmabuf(
        &self,
        fd: i32,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Arc<dyn Dma>, Errno> {
        mapping::of_descriptor(fd, offset, len, writable)
    }

    fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Errno> {
        guard::read(addr, into).map_err(|_| Errno::FAULT)
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Errno> {
        guard::write(addr, from).map_err(|_| Errno::FAULT)
    }

    fn doorbell_page(&self) -> Result<vmlx5_uverbs::DoorbellPage, Errno> {
        use rustix::fs::MemfdFlags;
        let file = rustix::fs::memfd_create("vmlx5-uar", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, 4096)?;
        let memory = Arc::new(Mapping::new(&file, 0, 4096, true)?);
        Ok(vmlx5_uverbs::DoorbellPage { file, memory })
    }

    fn ring(&self) {
        ring();
    }
}
