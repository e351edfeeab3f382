//! The pool of streams that are created ahead.
//!
//! CUDA's driver manages its streams in blocks. The call that creates the first stream of a new block
//! (the 35th or 36th of a context, seen with driver 580) blocks behind every wait of the context,
//! and meanwhile blocks other calls of the process. Therefore the pool creates streams while all
//! streams of the context are idle, reuses a dropped stream, and refuses the call if no stream is
//! left.

use std::sync::Arc;

use gds_step::Mutex;

use super::calls::Handle;
use super::context::Context;
use super::stream::DriverEvent;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::EventHandle as _;

const OPERATION: &str = "create stream";

/// The streams of the application's context that have no handle.
#[derive(Default)]
pub(crate) struct StreamPool(Mutex<Vec<Spare>>);

struct Spare {
    raw: Handle,
    /// Set if the stream had work when it was dropped; the event marks the end of that work.
    end: Option<Arc<DriverEvent>>,
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for Spare {}

impl Spare {
    fn is_idle(&self) -> bool {
        let done = self.end.as_ref().map(|end| end.is_done());
        done.is_none_or(|done| done.unwrap_or(false))
    }
}

impl StreamPool {
    /// Creates streams ahead, until the driver refuses. The pool is refilled when half of them are taken.
    pub fn fill(&self, context: &Context) {
        let mut spares = self.0.lock();
        while spares.len() < context.driver.streams_ahead()
            && let Ok(raw) = make(context)
        {
            spares.push(Spare { raw, end: None });
        }
    }

    /// Takes an idle stream. `waits` returns whether a stream of the GPU is known to wait.
    ///
    /// # Errors
    /// `TooManyWaits` if a stream waits and the pool is empty; `DeviceLost`, `System` if the driver
    /// refuses.
    pub fn take(&self, context: &Context, waits: impl FnOnce() -> bool) -> Result<Handle> {
        context.alive()?;
        let ahead = context.driver.streams_ahead();
        if self.0.lock().len() < ahead / 2
            && let Some(_quiet) = context.quiet()
            && context.deferred.all_idle(context)
        {
            self.fill(context);
        }
        let taken = {
            let mut spares = self.0.lock();
            let at = spares.iter().position(Spare::is_idle);
            at.map(|at| spares.swap_remove(at))
        };
        self.reap(context);
        match taken {
            Some(spare) => Ok(spare.raw),
            None if ahead > 0 && waits() => {
                let what = format!(
                    "all streams that the library created in advance are in use, and the driver \
                     may block the creation of another one while a stream of {} waits; create \
                     streams before the first wait, or drop some",
                    context.name()
                );
                Err(Error::new(OPERATION, Kind::TooManyWaits, what)
                    .with_limit(ahead as u64, "streams"))
            }
            None => make(context),
        }
    }

    /// Destroys the idle streams of a pool without streams ahead.
    pub fn reap(&self, context: &Context) {
        if context.driver.streams_ahead() > 0 {
            return;
        }
        let mut spares = self.0.lock();
        let idle: Vec<Spare> = spares.extract_if(.., |spare| spare.is_idle()).collect();
        drop(spares);
        for spare in idle {
            destroy(context, spare.raw);
        }
    }

    /// Returns a stream to the pool; it is idle once `end` is done. Destroys it if the pool is
    /// full, or if its end cannot be known. Without streams ahead, the pool has no limit and keeps busy
    /// streams only: the driver's call that destroys one may wait for its work. A stream whose end cannot
    /// be known then stays until the process ends.
    pub fn put(&self, context: &Context, raw: Handle, end: Option<Arc<DriverEvent>>) {
        let ends = end.as_ref().is_none_or(|end| end.is_recorded());
        let mut spares = self.0.lock();
        let (keeps, destroys) = match context.driver.streams_ahead() {
            0 => (end.is_some(), end.is_none()),
            ahead => (spares.len() < ahead, true),
        };
        if ends && keeps {
            spares.push(Spare { raw, end });
        } else if destroys {
            drop(spares);
            destroy(context, raw);
        }
    }
}

/// Destroys a stream of the pool, which no other call uses any more.
pub(super) fn destroy(context: &Context, raw: Handle) {
    // SAFETY: see above. The driver finishes the enqueued work.
    let _ = unsafe { context.driver.stream_destroy(raw) };
}

/// Creates a stream that does not synchronise with the legacy default stream.
fn make(context: &Context) -> Result<Handle> {
    let _app = context.enter_app()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: creates a stream of the current context.
    let made = unsafe { context.driver.stream_create(&mut raw, false) };
    context.check(made, OPERATION)?;
    Ok(raw)
}
