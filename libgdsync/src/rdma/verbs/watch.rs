//! The watcher: one background visitor of all queue pairs of a device.
//!
//! It does what neither NIC nor streams can: notice error entries and silence, store the status
//! where everybody sees it, and then release the streams that wait. It retires completed work
//! that nobody asks about and finishes queue pairs that were dropped with work in flight. Under
//! `live` it runs about once a millisecond on a thread of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gds_step::{Machine, Step, Time};

use super::{Life, QpCore};
use crate::nic::Nic;
use crate::ring::RingMemory;
use crate::status::Status;

/// How often queue pairs are visited.
const PERIOD: Duration = Duration::from_millis(1);

/// Queue pairs that are under watch, or about to be served.
#[derive(Clone, Default)]
pub(crate) struct WatchList(Arc<Mutex<Vec<Arc<QpCore>>>>);

impl WatchList {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Arc<QpCore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// How often flushes have failed that a device relies on. Streams that stand at one are let go, as
/// with any failure, but over bytes that may be old: so it is a failure of every queue pair of
/// the device.
pub(crate) struct FlushFaults {
    /// Counted up, with release, before streams are let go; loaded, with acquire, by whoever
    /// looks at a queue pair.
    count: AtomicU32,
    /// The queue pairs of the device. They hold this, so it does not hold them.
    list: Weak<Mutex<Vec<Arc<QpCore>>>>,
}

impl FlushFaults {
    pub fn new(list: &WatchList) -> FlushFaults {
        FlushFaults {
            count: AtomicU32::new(0),
            list: Arc::downgrade(&list.0),
        }
    }

    /// How often a flush has failed so far.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// A flush has failed: nobody may go on as if it had not.
    pub fn raise(&self) {
        self.count.fetch_add(1, Ordering::Release);
        let list = self.list.upgrade().map(WatchList);
        for core in list.iter().flat_map(WatchList::open) {
            // The word keeps the first cause.
            let error = &core.places.error.cpu;
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
    /// The queue pairs of the visit under way; its memory is kept, so that visits allocate nothing.
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
        // A visit may call the NIC, which may hang: the list is free for others meanwhile.
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
        // Dropped outside the lock: freeing regions may take other locks.
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
