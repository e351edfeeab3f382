//! Streams made ahead.
//!
//! The driver keeps its streams in blocks. The call that makes the first stream of another block
//! (the 35th or 36th of a context, seen with driver 580) stands behind every wait of the context,
//! and meanwhile holds up the process's other calls. So streams are made while all streams of the
//! context are idle, one that is dropped serves again, and with none left the call is refused.

use std::sync::Arc;

use gds_step::Mutex;
use gdsync_sys::cuda::consts;
use gdsync_sys::cuda::types::CUstream;

use super::context::Context;
use super::stream::CudaEvent;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::EventHandle as _;

/// Streams that are kept for later at most. They are made anew when half of them are taken.
const AHEAD: usize = 32;

const OPERATION: &str = "make stream";

/// The streams of the application's context that no handle names.
#[derive(Default)]
pub(crate) struct StreamPool(Mutex<Vec<Spare>>);

struct Spare {
    raw: CUstream,
    /// Set if the stream had work when it was dropped; tells when that is done.
    end: Option<Arc<CudaEvent>>,
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for Spare {}

impl StreamPool {
    /// Makes streams until there are enough, or the driver refuses.
    pub fn fill(&self, context: &Context) {
        let mut spares = self.0.lock();
        while spares.len() < AHEAD
            && let Ok(raw) = make(context)
        {
            spares.push(Spare { raw, end: None });
        }
    }

    /// A stream without work. `waits` says whether a stream of the GPU is known to wait.
    ///
    /// # Errors
    /// `TooManyWaits` if one waits and no stream is left; `DeviceLost`, `System`.
    pub fn take(&self, context: &Context, waits: impl FnOnce() -> bool) -> Result<CUstream> {
        context.alive()?;
        if self.0.lock().len() < AHEAD / 2
            && let Some(_quiet) = context.quiet()
            && context.deferred.all_idle(context)
        {
            self.fill(context);
        }
        let taken = {
            let mut spares = self.0.lock();
            let idle = |spare: &Spare| {
                let done = spare.end.as_ref().map(|end| end.is_done());
                done.is_none_or(|done| done.unwrap_or(false))
            };
            let at = spares.iter().position(idle);
            at.map(|at| spares.swap_remove(at))
        };
        match taken {
            Some(spare) => Ok(spare.raw),
            None if waits() => {
                let what = format!(
                    "{}: a stream of it waits, and the {AHEAD} streams that the library makes ahead \
                     are taken; the driver may hold up a call that makes one until the wait is \
                     over. Make streams before, or drop some",
                    context.name()
                );
                Err(Error::new(OPERATION, Kind::TooManyWaits, what).limit(AHEAD as u64))
            }
            None => make(context),
        }
    }

    /// Takes back a stream, which is idle once `end` is done. Destroys it if there are enough, or if
    /// its end cannot be known.
    pub fn put(&self, context: &Context, raw: CUstream, end: Option<Arc<CudaEvent>>) {
        let mut spares = self.0.lock();
        let ends = end.as_ref().is_none_or(|end| end.is_recorded());
        if ends && spares.len() < AHEAD {
            spares.push(Spare { raw, end });
        } else {
            destroy(context, raw);
        }
    }
}

/// Destroys a stream of the library's own, which no call names any more.
pub(super) fn destroy(context: &Context, raw: CUstream) {
    // SAFETY: see above. The driver finishes what is enqueued.
    let _ = unsafe { (context.cuda.cuStreamDestroy_v2)(raw) };
}

/// A new stream, which does not synchronise with the legacy default stream.
fn make(context: &Context) -> Result<CUstream> {
    let _app = context.enter_app()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: creates a stream of the current context.
    let made = unsafe { (context.cuda.cuStreamCreate)(&mut raw, consts::CU_STREAM_NON_BLOCKING) };
    context.check(made, OPERATION)?;
    Ok(raw)
}
