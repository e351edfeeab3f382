//! The watcher: it visits all queue pairs of a device in the background.
//!
//! It does what neither NIC nor streams can do: it detects error entries and timeouts, stores the
//! status where all readers find it, and then releases the streams that wait. It retires completed
//! requests without a waiter and finishes queue pairs that were dropped with work in flight. Under
//! `live` it runs about once a millisecond on a separate thread.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use gds_step::{Machine, Mutex, Step, Time};
use mlx5_prm::doorbell;

use super::{Life, QpCore, QpState, Side};
use crate::nic::Nic;
use crate::ring::RingMemory;
use crate::status::Status;

/// The period of the visits.
const PERIOD: Duration = Duration::from_millis(1);

/// Queue pairs that are watched, or are about to be served.
#[derive(Clone, Default)]
pub(crate) struct WatchList(Arc<Mutex<Vec<Arc<QpCore>>>>);

impl WatchList {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Arc<QpCore>>> {
        self.0.lock()
    }

    pub fn add(&self, core: Arc<QpCore>) {
        self.lock().push(core);
    }

    /// The queue pairs that are not finished.
    pub fn open(&self) -> Vec<Arc<QpCore>> {
        let mut open = Vec::new();
        self.open_into(&mut open);
        open
    }

    fn open_into(&self, open: &mut Vec<Arc<QpCore>>) {
        let list = self.lock();
        open.extend(list.iter().filter(|core| !core.is(Life::Closed)).cloned());
    }
}

/// Counts the failed flushes that a device relies on. Streams that wait for a failed flush are
/// released, as after any failure, but may read old bytes: therefore it fails every queue pair of
/// the device.
pub(crate) struct FlushFaults {
    /// Incremented, with release, before streams are released; loaded, with acquire, by each thread
    /// that visits a queue pair.
    count: AtomicU32,
    /// The queue pairs of the device. They hold this object, so it holds them weakly.
    list: Weak<Mutex<Vec<Arc<QpCore>>>>,
}

impl FlushFaults {
    pub fn new(list: &WatchList) -> FlushFaults {
        FlushFaults {
            count: AtomicU32::new(0),
            list: Arc::downgrade(&list.0),
        }
    }

    /// The number of failed flushes so far.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Records a failed flush, and marks every queue pair of the device as failed.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::Release);
        let list = self.list.upgrade().map(WatchList);
        for core in list.iter().flat_map(WatchList::open) {
            // The word keeps the first cause.
            let error = &core.addrs.error.cpu;
            if Status(error.load32(0)) == Status::PENDING {
                error.store32(0, Status::NOT_VISIBLE.0);
            }
        }
    }
}

/// The watcher as a step machine.
pub(crate) struct Watcher {
    list: WatchList,
    nic: Arc<dyn Nic>,
    name: String,
    /// The queue pairs of the current visit; its memory is kept, so that visits allocate nothing.
    visited: Vec<Arc<QpCore>>,
}

impl Watcher {
    pub fn new(list: WatchList, nic: Arc<dyn Nic>, name: String) -> Watcher {
        Watcher {
            list,
            nic,
            name,
            visited: Vec::new(),
        }
    }
}

impl Machine for Watcher {
    fn step(&mut self, now: Time) -> Step {
        let mut busy = false;
        let mut finished = Vec::new();
        self.nic.read_events(now);
        // A visit may call the NIC, which may hang: the list is unlocked for other threads
        // meanwhile.
        self.list.open_into(&mut self.visited);
        for core in self.visited.drain(..) {
            busy |= core.tick(now);
        }
        {
            let mut list = self.list.lock();
            if list.iter().any(|core| core.is(Life::Closed)) {
                let (closed, open) = list.drain(..).partition(|core| core.is(Life::Closed));
                finished = closed;
                *list = open;
            }
        }
        // Dropped outside the lock: a free of a region may take other locks.
        drop(finished);
        if busy {
            return Step::Progress;
        }
        Step::IdleUntil(Some(now + PERIOD))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl QpCore {
    /// The watcher's visit. Returns whether any work was done.
    pub fn tick(&self, now: Time) -> bool {
        if self.is(Life::Leaving) {
            return self.leave();
        }
        let Some(mut state) = self.try_lock() else {
            return false;
        };
        if self.is(Life::Closed) || state.under_way {
            return false;
        }
        let mut busy = self.settle(&mut state);
        busy |= self.heed_reports(&mut state, now);
        busy |= self.watch_timers(&mut state, now);
        if self.is(Life::Closing) {
            state.take_prepared_back();
            self.drain(&mut state);
            if self.is_idle(&state) {
                state.under_way = true;
                let rung = state.rung_by_streams;
                drop(state);
                let mut ends = self.ends.lock();
                *ends = rung.then(|| self.gpu.runtime().ends());
                drop(ends);
                // Stored after the call of the NIC: when `close` returns, a queue pair whose
                // doorbell no stream wrote is destroyed.
                if !self.leave() {
                    self.advance(Life::Leaving);
                }
                return true;
            }
        }
        busy
    }

    fn watch_timers(&self, state: &mut QpState, now: Time) -> bool {
        if state.failed().is_some() {
            return false;
        }
        let overdue = match self.send_is_overdue(state, now) {
            true => Some(Side::Send),
            false => self.overdue_wait(state, now),
        };
        if let Some(side) = overdue {
            self.fail(state, side, Status::TIMEOUT);
        }
        overdue.is_some()
    }

    /// Whether the oldest completion whose doorbell was written is older than the time limit.
    fn send_is_overdue(&self, state: &mut QpState, now: Time) -> bool {
        let Some(limit) = self.timeout else {
            return false;
        };
        let cq = &state.send.cq;
        let position = cq.completed();
        let rung = doorbell::record_index(self.addrs.record.cpu.load32(doorbell::SND));
        let waiting = position < cq.next()
            && state
                .send
                .fifo
                .slot(cq.ticket(position))
                .is_some_and(|slot| {
                    let end = slot.start.wrapping_add(slot.blocks) as u16;
                    (rung.wrapping_sub(end) as i16) >= 0
                });
        if !waiting {
            state.oldest = None;
            return false;
        }
        match state.oldest {
            Some((p, since)) if p == position => now.since(since) >= limit,
            _ => {
                state.oldest = Some((position, now));
                false
            }
        }
    }

    /// The side whose wait has held a stream for longer than the limit of that wait, if any.
    fn overdue_wait(&self, state: &mut QpState, now: Time) -> Option<Side> {
        let QpState {
            send, recv, timers, ..
        } = state;
        let mut overdue = None;
        timers.retain_mut(|timer| {
            let (completed, addrs) = match timer.side {
                Side::Send => (send.cq.completed(), &self.addrs.send),
                Side::Receive => (recv.cq.completed(), &self.addrs.recv),
            };
            if completed > timer.position {
                return false;
            }
            let arrived = addrs.arrived.cpu.load32(4 * timer.waiter);
            // Not "or later": a stream that has arrived at a later wait has passed this one, and
            // the word may be that of a wait with a limit any number of waits ago.
            if arrived == timer.mark {
                let since = *timer.since.get_or_insert(now);
                if now.since(since) >= timer.limit {
                    overdue = Some(timer.side);
                }
            }
            true
        });
        overdue
    }
}
