//! The thread of a NIC whose queue pairs are relays: it polls their rings, spins for a while after the
//! last progress, then sleeps until an event of the NIC, a wake-up by the bell, or the end of a nap.
//!
//! A stream's store does not wake the thread. So while streams still have work to post, a nap lasts
//! an eighth of the time since the last progress, at least 40 us and at most 1 ms: so late a store
//! without a wake-up is seen. If no posts are expected, the thread sleeps.
//!
//! A thread of the application that waits may poll the rings too ([`Common::wait_until`]). The NIC's
//! thread then leaves the work and the NIC's events to it, until it has not polled for a while. With
//! enough processors, the NIC's thread also polls while streams have posts that it has not read.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gds_step::{Host, Mutex, Shared, Step, Time};

use super::{Queues, Relay};
use crate::error::{Error, Kind, Result};

/// How long the thread of a NIC spins after the last progress, as the driver's threads do.
pub(in crate::provider) const SPIN: Duration = Duration::from_micros(500);
/// How long of that time it spins without yielding the processor.
const KEEP: Duration = Duration::from_micros(2);
const SHORTEST_NAP: Duration = Duration::from_micros(40);
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// The length of the sleep if no posts are expected: it bounds the cost of a missed wake-up, and the
/// delay of what only time brings, such as the end of a time limit.
const SLEEP: Duration = Duration::from_millis(100);
/// How long after its last poll a thread that assists is expected to poll again, and its longest
/// sleep.
const ASSISTED: Duration = Duration::from_micros(500);
/// How long a thread that waits polls before it sleeps, and its first sleep.
const YIELD: Duration = Duration::from_micros(200);
/// How long of that time it keeps the processor.
const HOLD: Duration = Duration::from_micros(10);
const FIRST_NAP: Duration = Duration::from_micros(20);

/// The states of a NIC's thread: it polls, it leaves the work to another thread and sleeps for at most
/// [`ASSISTED`], or it sleeps until an event.
const AWAKE: u32 = 0;
const NAPS: u32 = 1;
const SLEEPS: u32 = 2;

/// What a round over the queue pairs found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) enum Round {
    Idle,
    /// No work, except that of a queue pair that another thread has. That thread may have it for long,
    /// and wakes the NIC's thread for what it leaves.
    Taken,
    Busy,
}

/// A queue pair, shared by the thread and its owner.
pub(in crate::provider) type SharedRelay<Q> = Shared<Relay<Q>>;

/// The NIC as its thread sees it.
pub(in crate::provider) trait Source: Send + Sync {
    type Queues: Queues;

    /// The NIC's name.
    fn name(&self) -> &str;

    /// The descriptor that is ready while the NIC has events; negative: it has none any more.
    fn fd(&self) -> RawFd;

    /// Takes the events, after [`Source::fd`] was ready with `revents`. Returns whether there may be
    /// work.
    fn take_events(&self, relays: &[SharedRelay<Self::Queues>], revents: i16) -> bool;

    /// Looks for events in each round, for the queue pairs; does not block.
    fn look(&self) {}

    /// Work of the NIC that is of no queue pair; returns whether there was any.
    fn work(&self) -> bool {
        false
    }

    /// Called before the thread sleeps. Returns whether there was work.
    fn before_sleep(&self, relays: &[SharedRelay<Self::Queues>]) -> bool {
        let _ = relays;
        false
    }
}

/// State shared by the thread and the NIC.
pub(in crate::provider) struct Common<S: Source> {
    pub source: S,
    host: Arc<dyn Host>,
    relays: Mutex<Vec<SharedRelay<S::Queues>>>,
    /// Incremented after `relays` have changed under their lock; read relaxed, as a hint to read
    /// `relays` under the lock.
    changes: AtomicU32,
    bell: OwnedFd,
    /// The GPU's thread polls the rings, and the NIC has no thread.
    by_gpu: bool,
    /// How long the thread spins after the last progress.
    spin: Duration,
    /// [`AWAKE`], [`NAPS`] or [`SLEEPS`]: what the thread does or is about to do. Stored before the
    /// thread's last poll, loaded by `ring` after the stores that it announces: both sides have a full
    /// fence in between, so that one of them sees the other. `ring` stores [`AWAKE`] before it wakes the
    /// thread.
    state: AtomicU32,
    /// Tells the thread to end; a wake-up by the bell follows.
    stop: AtomicBool,
    /// Until when another thread does the work: a [`Time`] of the host. A hint, so it is relaxed.
    leased: AtomicU64,
    /// Whether streams may be going to post what the thread has not read. Set after [`Relay::expect`],
    /// under whose lock it reads what is expected, and before [`Common::ring`], as `state` demands. Cleared by
    /// the thread, while another one has the work. Never set with few processors.
    posts_expected: AtomicBool,
}

impl<S: Source + 'static> Common<S> {
    /// # Errors
    /// `System` if the system refuses a descriptor.
    pub fn new(
        source: S,
        host: Arc<dyn Host>,
        by_gpu: bool,
        spin: Duration,
        operation: &'static str,
    ) -> Result<Common<S>> {
        // SAFETY: two numbers; the call returns a new descriptor, or -1.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell < 0 {
            let e = std::io::Error::last_os_error();
            let what = format!("the call eventfd failed: {e}");
            return Err(Error::new(operation, Kind::System, what).with_source(e));
        }
        Ok(Common {
            source,
            host,
            relays: Mutex::default(),
            changes: AtomicU32::new(0),
            // SAFETY: the descriptor is new and has no other owner.
            bell: unsafe { OwnedFd::from_raw_fd(bell) },
            by_gpu,
            spin,
            state: AtomicU32::new(AWAKE),
            stop: AtomicBool::new(false),
            leased: AtomicU64::new(0),
            posts_expected: AtomicBool::new(false),
        })
    }

    /// Starts the thread `name`.
    ///
    /// # Errors
    /// `System` if the system refuses a thread.
    pub fn spawn(self: &Arc<Self>, name: &str, operation: &'static str) -> Result<JoinHandle<()>> {
        let common = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || common.run()).map_err(|e| {
            let what = format!("start of the thread {name} failed: {e}");
            Error::new(operation, Kind::System, what).with_source(e)
        })
    }

    /// Changes the list of relays.
    pub fn change(&self, change: impl FnOnce(&mut Vec<SharedRelay<S::Queues>>)) {
        change(&mut self.relays.lock());
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.ring();
    }

    /// The driver that steps the software devices of this process.
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// Takes over the list of relays if it has changed since `seen`.
    pub fn follow(&self, relays: &mut Vec<SharedRelay<S::Queues>>, seen: &mut Option<u32>) {
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
        let sleeps = self.state.load(Ordering::Relaxed) != AWAKE;
        // The exchange elects one of several threads that ring.
        if sleeps && self.state.swap(AWAKE, Ordering::Relaxed) != AWAKE {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: a live descriptor and eight bytes. A full counter wakes the thread too.
            let _ = unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// As [`Common::ring`], unless the thread naps: then it looks for work after [`ASSISTED`] at the
    /// latest. Call it behind the lock of the queue pair that has the work: the thread has stored its
    /// state before it looks there.
    pub fn ring_sleeper(&self) {
        if self.state.load(Ordering::Relaxed) == SLEEPS {
            self.ring();
        }
    }

    /// As [`Common::ring`], behind [`Relay::expect`]: with enough processors, the thread does not leave these
    /// posts to another one.
    pub fn ring_for_posts(&self) {
        if self.spin >= SPIN {
            self.posts_expected.store(true, Ordering::Relaxed);
        }
        self.ring();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.ring();
    }

    /// Sends what was posted to a queue pair by the calling thread, or wakes the thread for it.
    pub fn push(&self, relay: &SharedRelay<S::Queues>) {
        let push = |relay: &mut Relay<S::Queues>| {
            relay.push();
            // With few processors, a thread that naps does the rest after the lease: it would take the
            // processor from the thread that has posted, and that is likely to wait now. Read behind
            // the lock, as `ring_sleeper` demands.
            let later = self.spin < SPIN && self.state.load(Ordering::Relaxed) == NAPS;
            relay.has_ends() || !later && relay.queues.needs_thread()
        };
        if relay.try_with(push).unwrap_or(true) {
            self.ring();
        }
    }

    /// Polls every queue pair once, by a thread that waits and polls again at once.
    pub fn assist(&self, now: Time) -> Round {
        self.lease(now + ASSISTED);
        let Some(mut relays) = self.relays.try_lock() else {
            // A list that changes, or that another thread polls, is polled in the next call. Threads that
            // wait must not keep each other awake, nor keep the processor from that thread.
            std::thread::yield_now();
            return Round::Idle;
        };
        let round = self.round(&mut relays);
        drop(relays);
        // Work may leave a rest that no event announces, such as counts for the peer. A thread that naps
        // does it after the lease. One that sleeps has stored that state before it armed the queue
        // pairs, under whose locks work and arming have an order.
        if round == Round::Busy {
            self.ring_sleeper();
        }
        round
    }

    /// Waits as [`Env::wait_until`](gds_step::Env::wait_until) does, and does the NIC's work
    /// meanwhile. An event of the NIC ends a sleep.
    pub fn wait_until(&self, deadline: Option<Time>, condition: &mut dyn FnMut() -> bool) -> bool {
        let deadline = deadline.unwrap_or(Time::NEVER);
        let mut last = None;
        let mut nap = FIRST_NAP;
        let mut round = Round::Idle;
        let end = loop {
            if condition() {
                break true;
            }
            let mut now = self.host.now();
            if now >= deadline {
                break false;
            }
            let idle = now.since(*last.get_or_insert(now));
            if idle >= YIELD {
                // The NIC's thread may take the bytes for which this one sleeps, while streams post.
                let beside = self.posts_expected.load(Ordering::Relaxed);
                let sleep = if beside { FIRST_NAP } else { nap }.min(deadline.since(now));
                self.lease(now + sleep + ASSISTED);
                poll(&mut [wait_for(self.source.fd())], sleep);
                now = self.host.now();
                nap = (nap * 2).min(ASSISTED);
            } else if idle >= HOLD {
                std::thread::yield_now();
            }
            round = self.assist(now);
            if round != Round::Idle {
                (last, nap) = (None, FIRST_NAP);
            }
            if round == Round::Taken {
                std::thread::yield_now();
            }
        };
        // A copy that this thread has started does not wake the NIC's thread; until it is done, there is
        // work in each call.
        let copying = |relay: &SharedRelay<S::Queues>| {
            relay
                .try_with(|relay| relay.queues.is_copying())
                .unwrap_or(false)
        };
        if round == Round::Busy
            && (self.relays.try_lock()).is_some_and(|relays| relays.iter().any(copying))
        {
            self.ring();
        }
        end
    }

    /// Leaves the work to the calling thread until then.
    fn lease(&self, until: Time) {
        self.leased.store(until.as_nanos(), Ordering::Relaxed);
    }

    /// Whether another thread does the work.
    fn is_leased(&self) -> bool {
        self.host.now() < Time::from_nanos(self.leased.load(Ordering::Relaxed))
    }

    /// The loop of the thread.
    fn run(&self) {
        // With the default slack of 50 us, a nap of 40 us lasts 90 us. A refusal only costs time.
        // SAFETY: two numbers.
        let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_usize) };
        let mut relays = Vec::new();
        let mut seen = None;
        let mut last = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            self.follow(&mut relays, &mut seen);
            if self.is_leased() && !self.polls_for_posts(&relays) {
                self.rest(&mut last, || !self.posts_expected.load(Ordering::Relaxed));
                continue;
            }
            let round = self.round(&mut relays);
            if self.source.work() || round == Round::Busy {
                last = Instant::now();
                continue;
            }
            // With few processors, a thread that has a queue pair goes on alone, unless streams are about
            // to post.
            let alone = |relays: &mut [SharedRelay<S::Queues>]| {
                let awaits =
                    |relay: &SharedRelay<S::Queues>| relay.try_with(|relay| relay.awaits());
                let taken = self.round(relays) == Round::Taken;
                taken && relays.iter().filter_map(awaits).all(|awaits| !awaits)
            };
            if round == Round::Taken
                && self.spin < SPIN
                && self.rest(&mut last, || alone(&mut relays))
            {
                continue;
            }
            let idle = last.elapsed();
            if idle < KEEP {
                std::hint::spin_loop();
            } else if idle < self.spin && !relays.is_empty() {
                std::thread::yield_now();
            } else if self.sleep(&mut relays, seen, idle) {
                last = Instant::now();
            }
        }
    }

    /// Whether the thread polls although another one has the work: streams have posts that were not read, and
    /// the other thread may sleep, or have gone, when they post.
    fn polls_for_posts(&self, relays: &[SharedRelay<S::Queues>]) -> bool {
        // Cleared before the look, so that later posts are not missed.
        if !self.posts_expected.swap(false, Ordering::Relaxed) {
            return false;
        }
        // A queue pair that another thread has is looked at again.
        let may_await =
            |relay: &SharedRelay<S::Queues>| relay.try_with(|r| r.awaits()).unwrap_or(true);
        let awaits = relays.iter().any(may_await);
        if awaits {
            self.posts_expected.store(true, Ordering::Relaxed);
        }
        awaits
    }

    /// Naps for [`ASSISTED`] or until the bell, unless `may_nap`, which is called behind the store of the
    /// state, returns false. Returns whether it napped. `last` is the time of the last progress; a wake-up by
    /// the bell counts as such.
    fn rest(&self, last: &mut Instant, may_nap: impl FnOnce() -> bool) -> bool {
        self.state.store(NAPS, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let naps = may_nap();
        if naps && self.nap(ASSISTED, -1).0 {
            *last = Instant::now();
        }
        self.state.store(AWAKE, Ordering::Relaxed);
        self.source.work();
        naps
    }

    /// Polls every queue pair once.
    fn round(&self, relays: &mut [SharedRelay<S::Queues>]) -> Round {
        self.source.look();
        let mut round = Round::Idle;
        for relay in relays {
            match relay.step_if_free(Time::ZERO) {
                Some(Step::Progress) => round = Round::Busy,
                None if round == Round::Idle => round = Round::Taken,
                _ => {}
            }
        }
        if round == Round::Busy {
            // Streams may continue.
            self.host.stored();
        }
        round
    }

    /// Sleeps, unless there is work after all. Returns whether there was work or a wake-up.
    fn sleep(
        &self,
        relays: &mut [SharedRelay<S::Queues>],
        seen: Option<u32>,
        idle: Duration,
    ) -> bool {
        self.state.store(SLEEPS, Ordering::Relaxed);
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
            || self.round(relays) == Round::Busy
            || self.source.before_sleep(relays);
        let woken = news || self.nap_until_event(relays, idle);
        self.state.store(AWAKE, Ordering::Relaxed);
        woken
    }

    /// `idle`: how long the thread had no work.
    fn nap_until_event(&self, relays: &[SharedRelay<S::Queues>], idle: Duration) -> bool {
        let awaits = |relay: &SharedRelay<S::Queues>| relay.with(|relay| relay.awaits());
        let nap = match relays.iter().any(awaits) {
            true => (idle / 8).clamp(SHORTEST_NAP, LONGEST_NAP),
            false => SLEEP,
        };
        let due = |relay: &SharedRelay<S::Queues>| relay.with(|relay| relay.queues.due());
        let due = relays.iter().filter_map(due).min();
        let nap = due.map_or(nap, |due| {
            nap.min(due.saturating_duration_since(Instant::now()))
        });
        let (rung, revents) = self.nap(nap, self.source.fd());
        rung | (revents != 0 && self.source.take_events(relays, revents))
    }

    /// Sleeps for `nap`, until the bell, or until `fd` is ready. Returns whether the bell rang, and
    /// what `fd` is ready for.
    fn nap(&self, nap: Duration, fd: RawFd) -> (bool, i16) {
        let mut fds = [wait_for(self.bell.as_raw_fd()), wait_for(fd)];
        poll(&mut fds, nap);
        let rung = fds[0].revents != 0;
        if rung {
            let mut count = [0_u8; 8];
            let (bell, len) = (self.bell.as_raw_fd(), count.len());
            // SAFETY: a live descriptor and eight bytes.
            let _ = unsafe { libc::read(bell, count.as_mut_ptr().cast(), len) };
        }
        (rung, fds[1].revents)
    }
}

fn wait_for(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Sleeps until a descriptor is ready, at most for `limit`. Negative descriptors are ignored.
fn poll(fds: &mut [libc::pollfd], limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // SAFETY: the entries, a time, and no mask.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as u64, &limit, std::ptr::null()) };
}
