//! Asynchronous events: the reports of a NIC outside of completion queues.
//!
//! The thread that reads an event stores its meaning here; the watcher of each queue pair looks up
//! the reports for the queue pair. The table holds the state of the NIC, its ports and its queue
//! pairs, not a list of events. So any number of watchers may read it, in any order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gds_step::{Mutex, Time};

use crate::status::Status;

/// The state that was reported for a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// No report that affects the queue pair.
    None,
    /// Its port is down. The watcher checks again later: no event reports that this takes too long.
    Waiting,
    /// The queue pair is unusable, but the NIC works: a change to the error state flushes the
    /// outstanding requests.
    Failed(Status),
    /// The NIC closed the queue pair and flushes the outstanding requests, by completion entries.
    Closed(Status),
    /// The queue pair is unusable, and no more completion entries are expected.
    Lost(Status),
}

/// The state of a NIC as far as its events report it.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Incremented after the table has changed under its lock; watchers read the table when the
    /// number has changed. A hint: the lock provides the ordering.
    changes: AtomicU32,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    lost: bool,
    /// Ports that are down, and the time since which they are.
    down: BTreeMap<u8, Time>,
    /// The live queue pairs, by number.
    qps: BTreeMap<u32, Watched>,
}

#[derive(Debug)]
struct Watched {
    /// The addresses of the queue pair and its completion queues, as events name them.
    objects: Vec<usize>,
    port: u8,
    retry_time: Option<Duration>,
    report: Report,
}

impl Watched {
    fn note(&mut self, report: Report) {
        let known = matches!(self.report, Report::Lost(_));
        if !known && (self.report == Report::None || matches!(report, Report::Lost(_))) {
            self.report = report;
        }
    }
}

impl Events {
    fn change<R>(&self, change: impl FnOnce(&mut Table) -> R) -> R {
        let result = change(&mut self.table.lock());
        self.changes.fetch_add(1, Ordering::Release);
        result
    }

    /// A number that changes with each report.
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// Adds a queue pair. Reports about other numbers are ignored. The queue pair's port may be
    /// down for `retry_time`; `None`: for any time. Events name its `objects`; no other object has
    /// their addresses before the last event is acknowledged.
    pub fn add(&self, qpn: u32, objects: Vec<usize>, port: u8, retry_time: Option<Duration>) {
        let watched = Watched {
            objects,
            port,
            retry_time,
            report: Report::None,
        };
        self.table.lock().qps.insert(qpn, watched);
    }

    /// Removes a queue pair that is about to be destroyed: a later queue pair may get its number.
    pub fn forget(&self, qpn: u32) {
        self.table.lock().qps.remove(&qpn);
    }

    /// Clears the reports about a queue pair that was reset.
    pub fn reset(&self, qpn: u32) {
        if let Some(qp) = self.table.lock().qps.get_mut(&qpn) {
            qp.report = Report::None;
        }
    }

    /// Records that the NIC failed, or was removed. Returns whether that is new.
    pub fn lose(&self) -> bool {
        self.change(|table| !std::mem::replace(&mut table.lost, true))
    }

    /// Whether the NIC failed, or was removed.
    pub fn is_lost(&self) -> bool {
        self.table.lock().lost
    }

    /// Records that a port went up or down.
    pub fn port(&self, port: u8, up: bool, now: Time) {
        self.change(|table| match up {
            true => drop(table.down.remove(&port)),
            false => drop(table.down.entry(port).or_insert(now)),
        });
    }

    /// Records that a queue pair failed. The first report counts, unless a later one reports that
    /// no entries follow.
    pub fn qp(&self, qpn: u32, report: Report) {
        self.change(|table| {
            if let Some(qp) = table.qps.get_mut(&qpn) {
                qp.note(report);
            }
        });
    }

    /// As [`Events::qp`], for the queue pair with this object: another queue pair may have its
    /// number by now. Returns the number.
    pub fn object(&self, object: usize, report: Report) -> Option<u32> {
        let of = |(_, qp): &(&u32, &mut Watched)| qp.objects.contains(&object);
        self.change(|table| {
            let (qpn, qp) = table.qps.iter_mut().find(of)?;
            qp.note(report);
            Some(*qpn)
        })
    }

    /// Records that a completion queue failed. Returns the number of its queue pair.
    pub fn cq(&self, cq: usize) -> Option<u32> {
        self.object(cq, Report::Lost(Status::CQ_FATAL))
    }

    /// The state that was reported for a queue pair.
    pub fn of(&self, qpn: u32, now: Time) -> Report {
        let table = self.table.lock();
        if table.lost {
            return Report::Lost(Status::DEVICE_FATAL);
        }
        let Some(qp) = table.qps.get(&qpn) else {
            return Report::None;
        };
        match (qp.report, table.down.get(&qp.port), qp.retry_time) {
            (Report::None, Some(since), Some(retry_time)) => {
                match now.since(*since) >= retry_time {
                    true => Report::Failed(Status::PORT_DOWN),
                    false => Report::Waiting,
                }
            }
            (own, ..) => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Option<Duration> = Some(Duration::from_millis(10));

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn reports_concern_the_queue_pair_that_they_name() {
        let events = Events::default();
        events.add(5, vec![0x100, 0x200], 1, LIMIT);
        events.add(6, vec![0x300, 0x400], 1, LIMIT);
        let before = events.changes();
        assert_eq!(events.cq(0x400), Some(6));
        assert_eq!(events.cq(0x500), None);
        assert_ne!(events.changes(), before);
        assert_eq!(events.of(5, at(0)), Report::None);
        let failed = Report::Lost(Status::CQ_FATAL);
        assert_eq!(events.of(6, at(0)), failed);
        // A weaker report, or one about a queue pair that is gone, changes nothing.
        events.qp(6, Report::Closed(Status::PEER_ACCESS));
        assert_eq!(events.of(6, at(0)), failed);
        events.reset(6);
        assert_eq!(events.of(6, at(0)), Report::None);
        events.forget(6);
        events.qp(6, failed);
        events.add(6, Vec::new(), 1, LIMIT);
        assert_eq!(events.of(6, at(0)), Report::None);
        assert!(events.lose() && !events.lose() && events.is_lost());
        let lost = Report::Lost(Status::DEVICE_FATAL);
        assert_eq!(events.of(5, at(0)), lost);
    }

    /// A report was read for one queue pair, and another queue pair has its number before the
    /// report is stored.
    #[test]
    fn a_report_is_not_taken_for_a_later_queue_pair_of_that_number() {
        let events = Events::default();
        let lost = Report::Lost(Status::QP_FATAL);
        events.add(5, vec![0x100], 1, LIMIT);
        events.forget(5);
        events.add(5, vec![0x200], 1, LIMIT);
        assert_eq!(events.object(0x100, lost), None);
        assert_eq!(events.of(5, at(0)), Report::None);
        assert_eq!(events.object(0x200, lost), Some(5));
        assert_eq!(events.of(5, at(0)), lost);
    }

    #[test]
    fn a_port_may_be_down_for_a_while() {
        let events = Events::default();
        events.add(5, Vec::new(), 1, LIMIT);
        events.add(6, Vec::new(), 2, LIMIT);
        events.add(7, Vec::new(), 2, None);
        events.port(2, false, at(1));
        events.port(2, false, at(5));
        assert_eq!(events.of(5, at(100)), Report::None);
        assert_eq!(events.of(6, at(10)), Report::Waiting);
        assert_eq!(events.of(6, at(11)), Report::Failed(Status::PORT_DOWN));
        assert_eq!(events.of(7, at(11)), Report::None);
        events.port(2, true, at(11));
        assert_eq!(events.of(6, at(11)), Report::None);
    }
}
