//! Stamps: the times at which a stream reached marks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use gds_step::{Env, Time};

/// The value of a stamp that its stream has not reached.
const AHEAD: u64 = u64::MAX;

/// A mark in a stream, made by [`Stream::stamp`](crate::Stream::stamp), with the time at which the
/// stream reached it: behind all earlier work, whose writes are visible. Clones share it.
#[derive(Clone, Debug)]
pub struct Stamp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The clock of the GPU. Weak, because the driver owns the engine, whose rings have stamps.
    env: Weak<dyn Env>,
    /// Nanoseconds, or [`AHEAD`]. Stored (release) once by the engine, behind the writes of the
    /// earlier work; loaded (acquire) by threads that then use these writes.
    at: AtomicU64,
}

impl Stamp {
    pub(crate) fn new(env: &Arc<dyn Env>) -> Stamp {
        Stamp(Arc::new(Inner {
            env: Arc::downgrade(env),
            at: AtomicU64::new(AHEAD),
        }))
    }

    /// Notes that the stream is here, in the engine's step that began at `step`.
    pub(crate) fn set(&self, step: Time) {
        let now = self.0.env.upgrade().map_or(step, |env| env.now());
        self.0.at.store(now.as_nanos(), Ordering::Release);
    }

    /// The time at which the stream reached the stamp; `None` before.
    pub fn at(&self) -> Option<Time> {
        let at = self.0.at.load(Ordering::Acquire);
        (at != AHEAD).then(|| Time::from_nanos(at))
    }
}
