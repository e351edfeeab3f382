//! Events: requested completion events, and asynchronous events of objects.
//!
//! Each object keeps one bit for each kind of event and has at most one place in the event queue; a
//! completion queue has one more place for its completion events. So no kind of event is lost, and
//! a flood of one kind needs no memory.

use std::collections::VecDeque;

use crate::object::{Cqn, Qpn, Srqn};
use crate::srq::srq_event;

/// An event of an object; `owner` is the value from the object's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// An armed completion queue has an entry. The events of several queues are in the order of
    /// their entries.
    Completion {
        /// The completion queue.
        cq: Cqn,
        /// Its owner value.
        owner: u64,
    },
    /// The queue pair went into ERR by a fault that no completion reports.
    QpFatal {
        /// The queue pair.
        qpn: Qpn,
        /// Its owner value.
        owner: u64,
    },
    /// The queue pair went into ERR by a malformed request from the other end.
    QpRequest {
        /// The queue pair.
        qpn: Qpn,
        /// Its owner value.
        owner: u64,
    },
    /// The queue pair went into ERR by a request for memory without the right to access it.
    QpAccess {
        /// The queue pair.
        qpn: Qpn,
        /// Its owner value.
        owner: u64,
    },
    /// The first packet arrived while the queue pair was in RTR (communication established).
    CommEst {
        /// The queue pair.
        qpn: Qpn,
        /// Its owner value.
        owner: u64,
    },
    /// The send queue is drained: a queue pair in SQD has no outstanding work.
    SqDrained {
        /// The queue pair.
        qpn: Qpn,
        /// Its owner value.
        owner: u64,
    },
    /// A queue pair in ERR has used the last receive that it took from its shared receive queue.
    LastWqe {
        /// The queue pair.
        qpn: Qpn,
        /// Its owner value.
        owner: u64,
    },
    /// Fewer receives are posted than the limit of the shared receive queue. The NIC cleared the
    /// limit.
    SrqLimit {
        /// The shared receive queue.
        srqn: Srqn,
        /// Its owner value.
        owner: u64,
    },
    /// The shared receive queue failed and gives no more receives.
    SrqError {
        /// The shared receive queue.
        srqn: Srqn,
        /// Its owner value.
        owner: u64,
    },
    /// The completion queue failed and takes no more entries.
    CqError {
        /// The completion queue.
        cq: Cqn,
        /// Its owner value.
        owner: u64,
    },
    /// The NIC has failed and does no more work.
    DeviceFatal,
    /// A port went up or down.
    Port {
        /// The port, counted from 1.
        port: u8,
        /// True if the port is up.
        up: bool,
    },
}

/// The kinds of events of a queue pair, as bits; lower bits are reported first.
pub(crate) mod qp_event {
    pub const COMM_EST: u8 = 1;
    pub const SQ_DRAINED: u8 = 2;
    pub const REQUEST: u8 = 4;
    pub const ACCESS: u8 = 8;
    pub const FATAL: u8 = 16;
    pub const LAST_WQE: u8 = 32;
}

/// The event of a queue pair for a bit.
pub(crate) fn of_qp(bit: u8, qpn: Qpn, owner: u64) -> Event {
    match bit {
        qp_event::COMM_EST => Event::CommEst { qpn, owner },
        qp_event::SQ_DRAINED => Event::SqDrained { qpn, owner },
        qp_event::REQUEST => Event::QpRequest { qpn, owner },
        qp_event::ACCESS => Event::QpAccess { qpn, owner },
        qp_event::LAST_WQE => Event::LastWqe { qpn, owner },
        _ => Event::QpFatal { qpn, owner },
    }
}

/// The event of a shared receive queue for a bit.
pub(crate) fn of_srq(bit: u8, srqn: Srqn, owner: u64) -> Event {
    match bit {
        srq_event::LIMIT => Event::SrqLimit { srqn, owner },
        _ => Event::SrqError { srqn, owner },
    }
}

/// A source of pending events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A slot of queue pairs.
    Qp(u32),
    /// A slot of completion queues.
    Cq(u32),
    /// A slot of completion queues, for an armed queue.
    Armed(u32),
    /// A slot of shared receive queues.
    Srq(u32),
    /// A port and its new state.
    Port(u8, bool),
    /// The NIC itself.
    Device,
}

/// Most changes of ports that wait to be reported. Beyond that the oldest are dropped, since the
/// last change decides.
const MAX_PORTS: usize = 64;

#[derive(Default)]
pub(crate) struct Events {
    queue: VecDeque<Source>,
    ports: usize,
}

impl Events {
    pub fn push(&mut self, source: Source) {
        if let Source::Port(..) = source {
            self.ports += 1;
            if self.ports > MAX_PORTS {
                let is_port = |s: &Source| matches!(s, Source::Port(..));
                if let Some(oldest) = self.queue.iter().position(is_port) {
                    self.queue.remove(oldest);
                    self.ports -= 1;
                }
            }
        }
        self.queue.push_back(source);
    }

    /// Reserves room for one more object.
    pub fn reserve(&mut self, objects: usize) {
        self.queue.reserve(objects.saturating_sub(self.queue.len()));
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn pop(&mut self) -> Option<Source> {
        let source = self.queue.pop_front()?;
        if let Source::Port(..) = source {
            self.ports -= 1;
        }
        Some(source)
    }

    /// Returns an object with more events to its former place.
    pub fn again(&mut self, source: Source) {
        self.queue.push_front(source);
    }

    /// Removes the events of an object that is removed.
    pub fn forget(&mut self, source: Source) {
        self.queue.retain(|s| *s != source);
    }
}
