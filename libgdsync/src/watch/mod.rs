//! The watcher: one background visitor of all queue pairs of a device.
//!
//! It does what neither NIC nor streams can: notice error entries and silence, store the status
//! where everybody sees it, and then release the streams that wait. It retires completed work
//! that nobody asks about and finishes queue pairs that were dropped with work in flight. Under
//! `live` it runs about once a millisecond on a thread of its own.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use gds_step::{Machine, Step, Time};

use crate::provider::nic::Nic;
use crate::rdma::{Life, QpCore};

/// How often queue pairs are visited.
const PERIOD: Duration = Duration::from_millis(1);

/// The queue pairs under watch.
#[derive(Clone, Default)]
pub(crate) struct WatchList(Arc<Mutex<Vec<Arc<QpCore>>>>);

impl WatchList {
    pub fn add(&self, core: Arc<QpCore>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(core);
    }

    pub fn downgrade(&self) -> WeakWatchList {
        WeakWatchList(Arc::downgrade(&self.0))
    }

    /// The queue pairs that are not finished.
    pub fn open(&self) -> Vec<Arc<QpCore>> {
        let mut open = Vec::new();
        self.open_into(&mut open);
        open
    }

    fn open_into(&self, open: &mut Vec<Arc<QpCore>>) {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend(list.iter().filter(|core| !core.is(Life::Closed)).cloned());
    }
}

/// As seen by what the queue pairs themselves hold.
pub(crate) struct WeakWatchList(Weak<Mutex<Vec<Arc<QpCore>>>>);

impl WeakWatchList {
    /// The queue pairs that are not finished, as long as their device is there.
    pub fn open(&self) -> Vec<Arc<QpCore>> {
        let list = self.0.upgrade().map(WatchList);
        list.map_or(Vec::new(), |list| list.open())
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
            let mut list = self.list.0.lock().unwrap_or_else(PoisonError::into_inner);
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
