//! The thread of a NIC: it polls the rings of all its queue pairs, spins for a while after the last
//! progress, then sleeps until a completion, a wake-up by the bell, or the end of a nap.
//!
//! A stream's store does not wake the thread. So while streams still have work to post, a nap lasts
//! an eighth of the time since the last progress, within limits: a store without a wake-up is seen
//! after a delay of at most an eighth of the waiting time, and of at most 1 ms. If no posts are
//! expected, the thread sleeps.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use gds_step::{Host, Machine as _, Mutex, Shared, Step, Time};
use gdsync_sys::verbs::types::{ibv_comp_channel, ibv_cq};

use super::OPEN;
use super::queues::DeviceQueues;
use super::relay::Relay;
use crate::error::Result;
use crate::provider::ibv::{Context, refused_last};

/// How long the thread spins after the last progress, as the driver's threads do.
const SPIN: Duration = Duration::from_micros(500);
/// How long of that time it spins without yielding the processor.
const KEEP: Duration = Duration::from_micros(2);
const SHORTEST_NAP: Duration = Duration::from_micros(40);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// The length of the sleep if no posts are expected; it only bounds the cost of a missed wake-up.
const SLEEP: Duration = Duration::from_millis(100);

/// A queue pair, shared by the thread and its owner.
pub(super) type SharedRelay = Shared<Relay<DeviceQueues>>;

/// State shared by the thread and the NIC.
pub(super) struct Common {
    context: &'static Context,
    pub channel: *mut ibv_comp_channel,
    host: Arc<dyn Host>,
    relays: Mutex<Vec<SharedRelay>>,
    /// Incremented after `relays` have changed under their lock; read relaxed, as a hint to read
    /// `relays` under the lock.
    changes: AtomicU32,
    bell: OwnedFd,
    /// The GPU's thread polls the rings, and the NIC has no thread.
    by_gpu: bool,
    /// True while the thread is about to sleep, or asleep. Stored before the thread's last poll,
    /// loaded by `ring` after the stores that it announces: both sides have a full fence in
    /// between, so that one of them sees the other.
    asleep: AtomicBool,
    /// Tells the thread to end; a wake-up by the bell follows.
    stop: AtomicBool,
    /// Whether the device is lost. Used by the thread only: relaxed.
    lost: AtomicBool,
}

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl Send for Common {}
// SAFETY: as above.
unsafe impl Sync for Common {}

impl Common {
    /// A channel for events of the NIC's completion queues, and the other shared state.
    pub fn new(context: &'static Context, host: Arc<dyn Host>, by_gpu: bool) -> Result<Common> {
        // SAFETY: two numbers; the call returns a new descriptor, or -1.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            return Err(refused_last(OPEN, "eventfd"));
        }
        // SAFETY: the descriptor is new and has no other owner.
        let bell = unsafe { OwnedFd::from_raw_fd(bell) };
        // SAFETY: an open context.
        let channel = unsafe { (context.verbs().ibv_create_comp_channel)(context.raw()) };
        if channel.is_null() {
            return Err(refused_last(OPEN, "ibv_create_comp_channel"));
        }
        let common = Common {
            context,
            channel,
            host,
            relays: Mutex::default(),
            changes: AtomicU32::new(0),
            bell,
            by_gpu,
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        };
        // An event may be taken back after `poll` has reported it and before it is read.
        // SAFETY: a live channel's descriptor.
        let answer = unsafe {
            let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
            libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if answer < 0 {
            return Err(refused_last(OPEN, "fcntl of the completion channel"));
        }
        Ok(common)
    }

    /// Changes the list of relays.
    pub fn change(&self, change: impl FnOnce(&mut Vec<SharedRelay>)) {
        change(&mut self.relays.lock());
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.ring();
    }

    /// The driver that steps the software devices of this process.
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// The NIC's name.
    pub fn nic(&self) -> &str {
        &self.context.name
    }

    /// Takes over the list of relays if it has changed since `seen`.
    pub fn follow(&self, relays: &mut Vec<SharedRelay>, seen: &mut Option<u32>) {
        let changes = self.changes.load(Ordering::Relaxed);
        if *seen != Some(changes) {
            *seen = Some(changes);
            let all = self.relays.lock();
            relays.clone_from(&all);
        }
    }

    /// Wakes the thread if it sleeps. Call it after the stores that the thread must find.
    pub fn ring(&self) {
        if self.by_gpu {
            return self.host.ring();
        }
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: a live descriptor and eight bytes. A full counter wakes the thread too.
            let _ = unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
    }

    /// The loop of the thread.
    pub fn run(&self) {
        // With the default slack of 50 us, a nap of 40 us lasts 90 us. A refusal only costs time.
        // SAFETY: two numbers.
        let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) };
        let mut relays = Vec::new();
        let mut seen = None;
        let mut last = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            self.follow(&mut relays, &mut seen);
            if self.round(&mut relays) {
                last = Instant::now();
                continue;
            }
            let idle = last.elapsed();
            if idle < KEEP {
                std::hint::spin_loop();
            } else if idle < SPIN && !relays.is_empty() {
                std::thread::yield_now();
            } else if self.sleep(&mut relays, seen, idle) {
                last = Instant::now();
            }
        }
    }

    /// Polls every queue pair once; returns whether there was work.
    fn round(&self, relays: &mut [SharedRelay]) -> bool {
        let mut busy = false;
        for relay in relays {
            busy |= relay.step(Time::ZERO) == Step::Progress;
        }
        if busy {
            // Streams may continue: the device thread must poll.
            self.host.ring();
        }
        busy
    }

    /// Sleeps, unless there is work after all. Returns whether there was work or a wake-up.
    fn sleep(&self, relays: &mut [SharedRelay], seen: Option<u32>, idle: Duration) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for relay in relays.iter() {
            relay.with(|relay| {
                if !relay.is_down() {
                    relay.queues.arm();
                }
            });
        }
        let news = self.stop.load(Ordering::Acquire)
            || seen != Some(self.changes.load(Ordering::Relaxed))
            || self.round(relays);
        let woken = news || self.nap(relays, idle);
        self.asleep.store(false, Ordering::Relaxed);
        woken
    }

    fn nap(&self, relays: &[SharedRelay], idle: Duration) -> bool {
        let awaits = relays
            .iter()
            .any(|relay| relay.with(|relay| relay.awaits()));
        let nap = match awaits {
            true => (idle / 8).clamp(SHORTEST_NAP, LONGEST_NAP),
            false => SLEEP,
        };
        let limit = libc::timespec {
            tv_sec: 0,
            tv_nsec: nap.subsec_nanos().into(),
        };
        let lost = self.lost.load(Ordering::Relaxed);
        let lose = |relay: &SharedRelay| relay.with(|relay| relay.lose());
        if lost && relays.iter().filter(|relay| lose(relay)).count() > 0 {
            return true;
        }
        let channel = match lost {
            // A lost channel would be ready for ever. `ppoll` ignores a negative descriptor.
            true => -1,
            // SAFETY: a channel lives as long as this.
            false => unsafe { (*self.channel).fd },
        };
        let wait = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [wait(self.bell.as_raw_fd()), wait(channel)];
        // SAFETY: two entries, a time or none, and no mask.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &limit, std::ptr::null()) };
        if ready <= 0 {
            return false;
        }
        if fds[0].revents != 0 {
            let mut count = [0_u8; 8];
            // SAFETY: a live descriptor and eight bytes.
            let _ = unsafe {
                libc::read(
                    self.bell.as_raw_fd(),
                    count.as_mut_ptr().cast(),
                    count.len(),
                )
            };
        }
        if fds[1].revents != 0 {
            self.take_events(relays);
        }
        if fds[1].revents & !libc::POLLIN != 0 {
            // The kernel has taken the device from the process, which only the channel reports: no
            // request completes any more, and no call changes that.
            self.lost.store(true, Ordering::Relaxed);
            tracing::warn!(target: "gdsync", "{} is lost: its requests fail", self.nic());
        }
        true
    }

    fn take_events(&self, relays: &[SharedRelay]) {
        let verbs = self.context.verbs();
        loop {
            let (mut cq, mut own) = (std::ptr::null_mut::<ibv_cq>(), std::ptr::null_mut());
            // SAFETY: a live channel, which does not block, and memory to write to.
            if unsafe { (verbs.ibv_get_cq_event)(self.channel, &mut cq, &mut own) } != 0 {
                return;
            }
            // SAFETY: the completion queue does not end before its events are acknowledged.
            unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
            for relay in relays {
                relay.with(|relay| relay.queues.disarm(cq));
            }
        }
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        // SAFETY: made by `new`; no queue is left that uses it.
        let answer = unsafe { (self.context.verbs().ibv_destroy_comp_channel)(self.channel) };
        if answer != 0 {
            let name = &self.context.name;
            tracing::warn!(target: "gdsync", "destroy completion channel of {name}: {answer}");
        }
    }
}
