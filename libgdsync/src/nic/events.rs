//! What a NIC reports outside of completion queues: its asynchronous events.
//!
//! The thread that reads an event stores its meaning here; the watcher of each queue pair looks up
//! what concerns the queue pair. The table holds the state of the NIC, its ports and its queue
//! pairs, not a list of events, so any number of watchers may read it, in any order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gds_step::{Mutex, Time};

use crate::status::Status;

/// What was reported about a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Nothing that matters to it.
    None,
    /// Its port is down. The watcher looks again: no event reports that this takes too long.
    Waiting,
    /// It is unusable, but the NIC works: putting it in error flushes what is outstanding.
    Failed(Status),
    /// The NIC closed it and flushes what is outstanding, by completion entries.
    Closed(Status),
    /// It is unusable, and completion entries are not to be expected any more.
    Lost(Status),
}

/// The state of a NIC as far as its events tell.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Counted up after the table has changed under its lock; read by watchers, which look at
    /// the table when it has changed. A hint: the lock carries the ordering.
    changes: AtomicU32,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    lost: bool,
    /// Ports that are down, and since when.
    down: BTreeMap<u8, Time>,
    /// The queue pairs that there are, by number.
    qps: BTreeMap<u32, Watched>,
}

#[derive(Debug)]
struct Watched {
    /// The addresses of itself and its completion queues, as events name them.
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

    /// A queue pair was made. Reports about others are ignored. Its port may be down for `retry_time`;
    /// `None`: for any time. Events name its `objects`, whose addresses no other object has before
    /// the last event is acknowledged.
    pub fn add(&self, qpn: u32, objects: Vec<usize>, port: u8, retry_time: Option<Duration>) {
        let watched = Watched {
            objects,
            port,
            retry_time,
            report: Report::None,
        };
        self.table.lock().qps.insert(qpn, watched);
    }

    /// A queue pair is about to be destroyed: its number may be another's afterwards.
    pub fn forget(&self, qpn: u32) {
        self.table.lock().qps.remove(&qpn);
    }

    /// A queue pair was reset: what was reported before is over.
    pub fn reset(&self, qpn: u32) {
        if let Some(qp) = self.table.lock().qps.get_mut(&qpn) {
            qp.report = Report::None;
        }
    }

    /// The NIC failed, or was removed. Answers whether that is new.
    pub fn lose(&self) -> bool {
        self.change(|table| !std::mem::replace(&mut table.lost, true))
    }

    /// Whether the NIC failed, or was removed.
    pub fn is_lost(&self) -> bool {
        self.table.lock().lost
    }

    /// A port went up or down.
    pub fn port(&self, port: u8, up: bool, now: Time) {
        self.change(|table| match up {
            true => drop(table.down.remove(&port)),
            false => drop(table.down.entry(port).or_insert(now)),
        });
    }

    /// A queue pair failed. The first report counts, unless a later one says that no entries
    /// follow.
    #[cfg(feature = "emulated")]
    pub fn qp(&self, qpn: u32, report: Report) {
        self.change(|table| {
            if let Some(qp) = table.qps.get_mut(&qpn) {
                qp.note(report);
            }
        });
    }

    /// As [`Events::qp`], of the queue pair that has this object: a number may be another's by now.
    /// Answers the number.
    pub fn object(&self, object: usize, report: Report) -> Option<u32> {
        let of = |(_, qp): &(&u32, &mut Watched)| qp.objects.contains(&object);
        self.change(|table| {
            let (qpn, qp) = table.qps.iter_mut().find(of)?;
            qp.note(report);
            Some(*qpn)
        })
    }

    /// A completion queue failed. Answers the number of its queue pair.
    pub fn cq(&self, cq: usize) -> Option<u32> {
        self.object(cq, Report::Lost(Status::CQ_FATAL))
    }

    /// What was reported about a queue pair.
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

    /// What a reader took for one queue pair, whose number another has before it is stored.
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
