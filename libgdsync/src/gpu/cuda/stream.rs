//! Streams and events of CUDA.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gds_step::Mutex;
use gdsync_sys::cuda::types::{CUevent, CUstream};
use gdsync_sys::cuda::{CudaResult, consts};

use super::context::Context;
use super::module::Function;
use super::{stream_pool, submit};
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::{EventHandle, Left, Owner, StreamHandle, foreign};
use crate::gpu::{Dims, Kernel};
use crate::kernels::Transfer;
use crate::memop::Op;

/// Enqueued work past which a stream that waits is given no more marks: it takes about a
/// thousand submissions, and then blocks the caller.
const MANY: u32 = 900;

/// A stream of the application's context.
#[derive(Debug)]
pub(crate) struct CudaStream {
    context: Arc<Context>,
    raw: CUstream,
    /// Of [`stream_pool::StreamPool`], which `leave` gives it back to; else the application's.
    ours: bool,
    /// Submissions since the stream was last seen idle, roughly. Relaxed: a count, nothing more.
    submitted: AtomicU32,
    /// Keeps the application's stream, if it was handed in so.
    owner: Kept,
    /// A mark, and the count it was set at: once it is done, so many are.
    mark: Mutex<Option<(Arc<CudaEvent>, u32)>>,
    /// Set when the application's last handle is gone: what tells when its work is done, if it
    /// had any. Held during every call on the stream that no handle of the application's makes.
    left: Mutex<Option<Option<Arc<CudaEvent>>>>,
}

/// An owner, while there is one.
#[derive(Default)]
struct Kept(Mutex<Option<Owner>>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.lock().is_some())
    }
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for CudaStream {}
// SAFETY: as above.
unsafe impl Sync for CudaStream {}

impl Drop for CudaStream {
    fn drop(&mut self) {
        if self.ours && self.left.lock().is_none() && !self.context.is_lost() {
            stream_pool::destroy(&self.context, self.raw);
        }
    }
}

impl CudaStream {
    /// A stream of the library's own, see [`StreamPool::take`](stream_pool::StreamPool::take).
    pub(super) fn new(context: &Arc<Context>, waits: &dyn Fn() -> bool) -> Result<CudaStream> {
        let raw = context.streams.take(context, waits)?;
        Ok(CudaStream::wrap(context, raw, true))
    }

    /// The application's stream `raw`.
    pub(super) fn adopted(context: &Arc<Context>, raw: CUstream) -> CudaStream {
        CudaStream::wrap(context, raw, false)
    }

    fn wrap(context: &Arc<Context>, raw: CUstream, ours: bool) -> CudaStream {
        CudaStream {
            context: Arc::clone(context),
            raw,
            ours,
            submitted: AtomicU32::new(0),
            owner: Kept::default(),
            mark: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Keeps `owner` as long as this handle, if nothing else keeps the stream so far.
    pub(super) fn keep(&self, owner: Owner) {
        let mut kept = self.owner.0.lock();
        if kept.is_none() {
            *kept = Some(owner);
        } else {
            drop(kept);
            drop(owner);
        }
    }

    pub(super) fn handle(&self) -> CUstream {
        self.raw
    }

    /// Counts work that was enqueued.
    #[inline]
    pub(super) fn count(&self) {
        self.submitted.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks the driver, see [`CudaStream::is_idle`].
    fn query(&self) -> Result<bool> {
        let _app = self.context.enter_to_ask()?;
        if self.capture()? {
            return Ok(false);
        }
        // SAFETY: the stream lives until `leave`, which has the lock that is held here.
        match unsafe { (self.context.cuda.cuStreamQuery)(self.raw) } {
            CudaResult::NOT_READY => Ok(false),
            other => {
                self.context.check(other, "query stream")?;
                self.submitted.store(0, Ordering::Relaxed);
                *self.mark.lock() = None;
                Ok(true)
            }
        }
    }

    fn capture(&self) -> Result<bool> {
        let mut status = consts::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: stores the state of a live stream.
        let asked = unsafe { (self.context.cuda.cuStreamIsCapturing)(self.raw, &mut status) };
        self.context.check(asked, "query capture")?;
        Ok(status != consts::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// What tells when everything enqueued so far has run. `None`: it is idle. An error: no event
    /// can be set now.
    pub(super) fn end(self: &Arc<Self>) -> Result<Option<End>> {
        // Held until the event is recorded: the stream may be destroyed behind `leave`.
        let left = self.left.lock();
        if let Some(end) = &*left {
            return Ok(match end {
                Some(event) if !event.is_done()? => Some(End::Event(Arc::clone(event))),
                _ => None,
            });
        }
        if self.query()? {
            return Ok(None);
        }
        let count = self.submitted.load(Ordering::Relaxed);
        let mut mark = self.mark.lock();
        let done = match &*mark {
            Some((event, at)) => event.is_done()?.then_some(*at),
            None => None,
        };
        if let Some(at) = done {
            self.submitted.fetch_sub(at.min(count), Ordering::Relaxed);
            *mark = None;
        }
        if self.submitted.load(Ordering::Relaxed) >= MANY || self.is_capturing()? {
            return Ok(Some(End::Idle(Arc::clone(self))));
        }
        // Always a new one: the application enqueues without our knowing.
        let event = Arc::new(self.event()?);
        if mark.is_none() {
            *mark = Some((Arc::clone(&event), self.submitted.load(Ordering::Relaxed)));
        }
        Ok(Some(End::Event(event)))
    }

    /// An event where the stream stands.
    fn event(&self) -> Result<CudaEvent> {
        let context = &self.context;
        let _app = context.enter_app()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: creates an event of the current context.
        let made =
            unsafe { (context.cuda.cuEventCreate)(&mut raw, consts::CU_EVENT_DISABLE_TIMING) };
        context.check(made, "make event")?;
        let event = CudaEvent {
            context: Arc::clone(context),
            raw: Some(raw),
        };
        // SAFETY: event and stream are live and of one context.
        let recorded = unsafe { (context.cuda.cuEventRecord)(raw, self.raw) };
        context.check(recorded, "record event")?;
        self.count();
        Ok(event)
    }
}

impl StreamHandle for CudaStream {
    #[inline]
    fn submit(&self, ops: &[Op]) -> Result<()> {
        submit::submit(&self.context, self, ops)
    }

    fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()> {
        match kernel.0.downcast_ref::<Function>() {
            Some(function) if function.is_of(&self.context) => function.launch(self, dims, args),
            _ => Err(foreign("a kernel of another GPU", self.context.name())),
        }
    }

    fn copy(&self, transfer: &Transfer) -> Result<()> {
        let Transfer { to, from, len } = *transfer;
        let context = &self.context;
        let _app = context.enter_to_enqueue()?;
        // SAFETY: spans of live regions, which the caller's stream uses from now on.
        let copied = unsafe { (context.cuda.cuMemcpyAsync)(to.0, from.0, len as usize, self.raw) };
        self.count();
        context.check(copied, "enqueue copy")
    }

    fn record(&self) -> Result<Arc<dyn EventHandle>> {
        Ok(Arc::new(self.event()?))
    }

    fn wait_event(&self, event: &dyn EventHandle) -> Result<()> {
        let Some(event) = (event as &dyn Any).downcast_ref::<CudaEvent>() else {
            return Err(foreign("an event of another runtime", self.context.name()));
        };
        let Some(raw) = event.raw else {
            let what = "no event could be recorded when the last handle of its stream was dropped";
            return Err(Error::new("wait for event", Kind::WrongState, what));
        };
        let _app = self.context.enter_to_enqueue()?;
        // SAFETY: event and stream are live.
        let waits = unsafe { (self.context.cuda.cuStreamWaitEvent)(self.raw, raw, 0) };
        self.count();
        self.context.check(waits, "wait for event")
    }

    /// A stream that is being captured is not asked, which would end the capture: it is not idle.
    /// One that the application may have destroyed is not asked either.
    fn is_idle(&self) -> Result<bool> {
        match &*self.left.lock() {
            Some(end) => end.as_ref().map_or(Ok(true), |event| event.is_done()),
            None => self.query(),
        }
    }

    #[inline]
    fn is_capturing(&self) -> Result<bool> {
        let _app = self.context.enter_app()?;
        self.capture()
    }

    /// The application may destroy the stream from now on. No event can be recorded on a stream
    /// that is being captured: the event is then never done.
    fn leave(&self) -> Left {
        let mut left = self.left.lock();
        let busy = (!self.query().unwrap_or(self.context.is_lost())).then(|| {
            let last = match self.is_capturing() {
                Ok(true) => Err("it is being captured".to_owned()),
                Ok(false) => self.event().map_err(|e| e.to_string()),
                Err(e) => Err(e.to_string()),
            };
            Arc::new(last.unwrap_or_else(|why| {
                tracing::warn!(
                    target: "gdsync",
                    "drop stream: no event can be recorded for its unfinished work: {why}; memory \
                     and queue pairs of this GPU that are dropped from now on are not freed. Drop \
                     the last handle of a stream before or after a capture"
                );
                CudaEvent {
                    context: Arc::clone(&self.context),
                    raw: None,
                }
            }))
        });
        *left = Some(busy.clone());
        if self.ours && !self.context.is_lost() {
            self.context
                .streams
                .put(&self.context, self.raw, busy.clone());
        }
        // The list of deferred frees is locked before a stream.
        drop(left);
        let Some(event) = busy else { return Left::Done };
        self.context.deferred.forget(End::Event(Arc::clone(&event)));
        Left::Busy(event)
    }

    fn release(&self) -> Option<Owner> {
        self.owner.0.lock().take()
    }

    /// The `CUstream`.
    fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }
}

/// What tells that a stream has run everything it was given up to some time.
#[derive(Debug)]
pub(crate) enum End {
    Event(Arc<CudaEvent>),
    /// Only the stream being idle.
    Idle(Arc<CudaStream>),
}

impl End {
    /// Whether it has. Streams of a lost GPU use nothing any more; with any other error nobody
    /// knows.
    pub fn is_reached(&self) -> bool {
        match self {
            End::Event(event) => event.is_done().unwrap_or(event.context.is_lost()),
            End::Idle(stream) => stream.is_idle().unwrap_or(stream.context.is_lost()),
        }
    }
}

/// A recorded event.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    context: Arc<Context>,
    /// None for an event that could not be recorded and is never done.
    raw: Option<CUevent>,
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.filter(|_| !self.context.is_lost()) {
            // SAFETY: ours. The driver keeps what a stream still waits for.
            let _ = unsafe { (self.context.cuda.cuEventDestroy_v2)(raw) };
        }
    }
}

impl CudaEvent {
    /// Whether it is ever done.
    pub(super) fn is_recorded(&self) -> bool {
        self.raw.is_some()
    }
}

impl EventHandle for CudaEvent {
    fn is_done(&self) -> Result<bool> {
        let Some(raw) = self.raw else {
            return Ok(self.context.is_lost());
        };
        let _app = self.context.enter_to_ask()?;
        // SAFETY: a live event.
        match unsafe { (self.context.cuda.cuEventQuery)(raw) } {
            CudaResult::NOT_READY => Ok(false),
            // It went into a graph: no stream comes to it.
            CudaResult::CAPTURED_EVENT => Ok(true),
            other => {
                self.context.check(other, "query event")?;
                Ok(true)
            }
        }
    }
}
