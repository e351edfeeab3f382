//! Calls of the application while they run: a `tracing` span, an NVTX range, and an event of the
//! timeline.

use std::ffi::CStr;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use gds_step::Time;
use gdsync::Gpu;
use tracing::Level;
use tracing::span::EnteredSpan;

use super::Trace;
use super::nvtx::Nvtx;
use crate::error::Result;

/// The arguments of a call that observers show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub peer: Option<u32>,
    pub tag: Option<u32>,
    pub bytes: Option<u64>,
    /// The stream that does the work; `None`: the CPU.
    pub stream: Option<u64>,
}

/// What observes the calls of a context.
pub(crate) struct Observers {
    rank: u32,
    trace: Option<Arc<Trace>>,
    nvtx: Option<&'static Nvtx>,
    /// Whether a timeline or NVTX observes calls.
    any: bool,
}

impl Observers {
    /// The observers that the settings and the machine have. `trace`: the file of this rank, and
    /// the number of events that it keeps.
    ///
    /// # Errors
    /// `System` if the file cannot be written; errors of gdsync.
    pub fn open(
        (rank, size): (u32, u32),
        gpu: &Gpu,
        trace: Option<(PathBuf, usize)>,
    ) -> Result<Observers> {
        let open = |(path, events)| Trace::open((rank, size), gpu, path, events);
        let trace = trace.map(open).transpose()?;
        let nvtx = Nvtx::get().ok();
        let any = trace.is_some() || nvtx.is_some();
        Ok(Observers {
            rank,
            trace,
            nvtx,
            any,
        })
    }

    /// Observes a call until the result is dropped. Without an observer and without a subscriber of
    /// `tracing` it is two loads.
    #[inline]
    pub fn call(
        &self,
        name: &'static CStr,
        facts: impl FnOnce() -> Facts,
    ) -> Option<ObservedCall<'_>> {
        match self.any || tracing::enabled!(target: "mp::call", Level::TRACE) {
            false => None,
            true => Some(self.enter(name, facts())),
        }
    }

    #[cold]
    fn enter(&self, name: &'static CStr, facts: Facts) -> ObservedCall<'_> {
        let (rank, text) = (self.rank, name.to_str().unwrap_or("call"));
        let Facts {
            peer,
            tag,
            bytes,
            stream,
        } = facts;
        let span = tracing::trace_span!(
            target: "mp::call", "call", name = text, rank, peer, tag, bytes, stream
        );
        let trace = self.trace.as_deref();
        ObservedCall {
            range: self.nvtx.map(|nvtx| nvtx.range(name)),
            trace: trace.map(|trace| (trace, trace.begin(text, facts))),
            _span: span.entered(),
        }
    }

    /// Notes what the streams have passed; part of the background work.
    pub fn collect(&self) {
        if let Some(trace) = &self.trace {
            trace.collect();
        }
    }

    /// Writes the file of the timeline.
    pub fn write(&self) {
        if let Some(trace) = &self.trace {
            trace.write();
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "observers of rank {}", self.rank)
    }
}

/// A call while it runs. The thread that made the call drops it.
#[must_use = "it ends when it is dropped"]
pub(crate) struct ObservedCall<'a> {
    /// Ends the NVTX range when it is dropped.
    #[expect(dead_code, reason = "its drop has the effect")]
    range: Option<super::nvtx::Range>,
    trace: Option<(&'a Trace, Begun)>,
    _span: EnteredSpan,
}

/// The begin of a call in the timeline.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    pub call: u64,
    pub at: Time,
}

impl Drop for ObservedCall<'_> {
    fn drop(&mut self) {
        if let Some((trace, begun)) = self.trace {
            trace.end(begun);
        }
    }
}
