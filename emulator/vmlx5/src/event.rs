//! Events: completions that a consumer asked to be told of, and what happens to objects apart
//! from any completion.
//!
//! Each object keeps one bit for each kind of event, and stands in the queue at most once, a
//! completion queue once more for its completions: no kind of event is lost, and a flood of one
//! needs no memory.

use std::collections::VecDeque;

use crate::object::{Cqn, Qpn, Srqn};
use crate::srq::srq_event;

/// Something happened to an object; `owner` is what it was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// The completion queue, which was armed, has an entry. Among those of several queues, in
    /// the order of the entries.
    Completion {
        /// Which.
        cq: Cqn,
        /// Whose.
        owner: u64,
    },
    /// The queue pair went into ERR by a fault that no completion can tell of.
    QpFatal {
        /// Which.
        qpn: Qpn,
        /// Whose.
        owner: u64,
    },
    /// The queue pair went into ERR by a malformed request from the other end.
    QpRequest {
        /// Which.
        qpn: Qpn,
        /// Whose.
        owner: u64,
    },
    /// The queue pair went into ERR by a request for memory that it may not touch.
    QpAccess {
        /// Which.
        qpn: Qpn,
        /// Whose.
        owner: u64,
    },
    /// The first packet arrived while the queue pair was in RTR.
    CommEst {
        /// Which.
        qpn: Qpn,
        /// Whose.
        owner: u64,
    },
    /// Nothing is outstanding any more of a queue pair that is in SQD.
    SqDrained {
        /// Which.
        qpn: Qpn,
        /// Whose.
        owner: u64,
    },
    /// The queue pair is in ERR, takes its receives from a shared queue, and has used up the
    /// last one that it took.
    LastWqe {
        /// Which.
        qpn: Qpn,
        /// Whose.
        owner: u64,
    },
    /// Fewer receives are posted than the shared queue's limit, which is gone now.
    SrqLimit {
        /// Which.
        srqn: Srqn,
        /// Whose.
        owner: u64,
    },
    /// The shared receive queue gives no more receives.
    SrqError {
        /// Which.
        srqn: Srqn,
        /// Whose.
        owner: u64,
    },
    /// The completion queue takes no more entries.
    CqError {
        /// Which.
        cq: Cqn,
        /// Whose.
        owner: u64,
    },
    /// The NIC has failed and does no more work.
    DeviceFatal,
    /// A port went up or down.
    Port {
        /// Which, from 1.
        port: u8,
        /// Whether it is up now.
        up: bool,
    },
}

/// The kinds of events of a queue pair, as bits; those that are told first are lower.
pub(crate) mod qp_event {
    pub const COMM_EST: u8 = 1;
    pub const SQ_DRAINED: u8 = 2;
    pub const REQUEST: u8 = 4;
    pub const ACCESS: u8 = 8;
    pub const FATAL: u8 = 16;
    pub const LAST_WQE: u8 = 32;
}

/// The event of a queue pair that a bit stands for.
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

/// The event of a shared receive queue that a bit stands for.
pub(crate) fn of_srq(bit: u8, srqn: Srqn, owner: u64) -> Event {
    match bit {
        srq_event::LIMIT => Event::SrqLimit { srqn, owner },
        _ => Event::SrqError { srqn, owner },
    }
}

/// Who has something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A slot of queue pairs.
    Qp(u32),
    /// A slot of completion queues.
    Cq(u32),
    /// A slot of completion queues, one of which was armed.
    Armed(u32),
    /// A slot of shared receive queues.
    Srq(u32),
    /// A port, and what became of it.
    Port(u8, bool),
    /// The NIC itself.
    Device,
}

/// Most changes of ports that wait to be told; after that the oldest are forgotten, since the
/// last one is what counts.
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

    /// Makes room for one more object.
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

    /// Puts one that has more to tell back to where it was.
    pub fn again(&mut self, source: Source) {
        self.queue.push_front(source);
    }

    /// An object is gone, and so are its events.
    pub fn forget(&mut self, source: Source) {
        self.queue.retain(|s| *s != source);
    }
}
