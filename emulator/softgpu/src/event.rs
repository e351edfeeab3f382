//! Events: marks in a stream that the host and other streams wait for.

use std::sync::{Arc, Mutex, PoisonError};

use crate::op::Op;
use crate::queue::Ring;

/// A mark in a stream. It stands for the newest [`record`](crate::Stream::record); clones share it.
/// An event that was never recorded is complete. Events have no time stamp.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Mutex<Option<Mark>>>);

/// The position in a stream that an event marks.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// The stream's ring.
    pub(crate) ring: Arc<Ring<Op>>,
    /// The event is complete when the ring has retired this many submissions.
    pub(crate) upto: u64,
}

impl Mark {
    pub(crate) fn is_complete(&self) -> bool {
        self.ring.retired() >= self.upto
    }
}

impl Event {
    /// An event that was never recorded.
    pub fn new() -> Event {
        Event::default()
    }

    /// Whether everything enqueued before the newest record has completed and is visible.
    pub fn query(&self) -> bool {
        self.mark().is_none_or(|m| m.is_complete())
    }

    pub(crate) fn mark(&self) -> Option<Mark> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set(&self, mark: Mark) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }
}
