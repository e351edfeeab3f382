//! Streams and events of a driver.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use gds_step::Mutex;

use super::calls::{CAPTURED_EVENT, Handle, NOT_READY};
use super::context::Context;
use super::graph::{self, DriverGraph};
use super::module::Function;
use super::stream_pool;
use crate::error::{Error, Kind, Result};
use crate::gpu::runtime::{EventHandle, GraphHandle, Left, Owner, StreamHandle, foreign};
use crate::gpu::{Dims, Kernel};
use crate::kernels::Transfer;
use crate::memop::Op;

/// The number of submissions from which on a waiting stream gets no more marks: the driver accepts
/// about a thousand, and then blocks the caller.
const MANY: u32 = 900;

/// A stream of the application's context.
#[derive(Debug)]
pub(crate) struct DriverStream {
    context: Arc<Context>,
    raw: Handle,
    /// Whether the stream is from [`stream_pool::StreamPool`], to which `leave` returns it; if not,
    /// it is the application's.
    ours: bool,
    /// The approximate number of submissions since the stream was last seen idle. Relaxed: only a
    /// count.
    submitted: AtomicU32,
    /// Whether `begin_capture` began a capture that `end_capture` has not ended: what is enqueued
    /// goes into a graph. Relaxed: only for the count.
    captured: AtomicBool,
    /// The owner of the application's stream, if it has one.
    owner: Kept,
    /// An event, and the count at which it was recorded: once it is done, that many submissions
    /// have run.
    mark: Mutex<Option<(Arc<DriverEvent>, u32)>>,
    /// Set when the application's last handle is dropped: the event that marks the end of the
    /// stream's work, if it had any. Locked during every call on the stream that is not made
    /// through a handle of the application.
    left: Mutex<Option<Option<Arc<DriverEvent>>>>,
}

/// An owner, until it is released.
#[derive(Default)]
struct Kept(Mutex<Option<Owner>>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.lock().is_some())
    }
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for DriverStream {}
// SAFETY: as above.
unsafe impl Sync for DriverStream {}

impl Drop for DriverStream {
    fn drop(&mut self) {
        if self.ours && self.left.lock().is_none() && !self.context.is_lost() {
            stream_pool::destroy(&self.context, self.raw);
        }
    }
}

impl DriverStream {
    /// Takes a stream from the pool; see [`StreamPool::take`](stream_pool::StreamPool::take).
    pub(super) fn new(context: &Arc<Context>, waits: &dyn Fn() -> bool) -> Result<DriverStream> {
        let raw = context.streams.take(context, waits)?;
        Ok(DriverStream::wrap(context, raw, true))
    }

    /// Adopts the application's stream `raw`.
    pub(super) fn adopted(context: &Arc<Context>, raw: Handle) -> DriverStream {
        DriverStream::wrap(context, raw, false)
    }

    fn wrap(context: &Arc<Context>, raw: Handle, ours: bool) -> DriverStream {
        DriverStream {
            context: Arc::clone(context),
            raw,
            ours,
            submitted: AtomicU32::new(0),
            captured: AtomicBool::new(false),
            owner: Kept::default(),
            mark: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Keeps `owner` as long as this handle, if the stream has no owner yet.
    pub(super) fn keep(&self, owner: Owner) {
        let mut kept = self.owner.0.lock();
        if kept.is_none() {
            *kept = Some(owner);
        } else {
            drop(kept);
            drop(owner);
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn handle(&self) -> Handle {
        self.raw
    }

    /// Counts an enqueued submission, unless it goes into a graph.
    #[inline]
    pub(super) fn count(&self) {
        if !self.captured.load(Ordering::Relaxed) {
            self.submitted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queries the driver; see [`DriverStream::is_idle`].
    fn query(&self) -> Result<bool> {
        let _app = self.context.enter_to_ask()?;
        if self.capture()? {
            return Ok(false);
        }
        // SAFETY: the stream lives until `leave`, which takes the lock that is held here.
        let asked = unsafe { self.context.driver.stream_query(self.raw) };
        match asked.code {
            NOT_READY => Ok(false),
            _ => {
                self.context.check(asked, "query stream")?;
                self.submitted.store(0, Ordering::Relaxed);
                *self.mark.lock() = None;
                Ok(true)
            }
        }
    }

    fn capture(&self) -> Result<bool> {
        let mut capturing = false;
        // SAFETY: stores the state of a live stream.
        let asked = unsafe {
            self.context
                .driver
                .stream_is_capturing(self.raw, &mut capturing)
        };
        self.context.check(asked, "query capture")?;
        Ok(capturing)
    }

    /// The current end of the stream; `None`: the stream is idle. An error: no event can be
    /// recorded now.
    pub(super) fn end(self: &Arc<Self>) -> Result<Option<End>> {
        // Held until the event is recorded: the application may destroy the stream after `leave`.
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
        // Always a new event: the application may have enqueued work that the library does not
        // know.
        let event = Arc::new(self.event()?);
        if mark.is_none() {
            *mark = Some((Arc::clone(&event), self.submitted.load(Ordering::Relaxed)));
        }
        Ok(Some(End::Event(event)))
    }

    /// Records an event at the current end of the stream.
    fn event(&self) -> Result<DriverEvent> {
        self.event_with(false)
    }

    /// As [`DriverStream::event`]; with `timing`, the event has a time.
    pub(super) fn event_with(&self, timing: bool) -> Result<DriverEvent> {
        let context = &self.context;
        let _app = context.enter_app()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: creates an event of the current context.
        let made = unsafe { context.driver.event_create(&mut raw, timing) };
        context.check(made, "create event")?;
        let event = DriverEvent {
            context: Arc::clone(context),
            raw: Some(raw),
        };
        // SAFETY: event and stream are live and of one context.
        let recorded = unsafe { context.driver.event_record(raw, self.raw) };
        context.check(recorded, "record event")?;
        self.count();
        Ok(event)
    }
}

impl StreamHandle for DriverStream {
    #[inline]
    fn submit(&self, ops: &[Op]) -> Result<()> {
        // SAFETY: a live stream; the caller's list uses memory that the library keeps.
        let submitted = unsafe { self.context.driver.submit(&self.context, self.raw, ops) };
        self.count();
        submitted
    }

    fn launch(&self, kernel: &Kernel, dims: Dims, args: &[u8]) -> Result<()> {
        match kernel.0.downcast_ref::<Function>() {
            Some(function) if function.is_of(&self.context) => function.launch(self, dims, args),
            _ => Err(foreign("launch kernel", "kernel", self.context.name())),
        }
    }

    fn copy(&self, transfer: &Transfer) -> Result<()> {
        let Transfer { to, from, len } = *transfer;
        let context = &self.context;
        let _app = context.enter_to_enqueue()?;
        // SAFETY: spans of live regions, which the caller's stream uses from now on.
        let copied = unsafe { context.driver.copy(to.0, from.0, len as usize, self.raw) };
        self.count();
        context.check(copied, "enqueue copy")
    }

    fn record(&self) -> Result<Arc<dyn EventHandle>> {
        Ok(Arc::new(self.event()?))
    }

    fn stamp(&self) -> Result<Option<Arc<dyn EventHandle>>> {
        let event = self.event_with(true)?;
        Ok(Some(Arc::new(event)))
    }

    fn wait_event(&self, event: &dyn EventHandle) -> Result<()> {
        let Some(event) = (event as &dyn Any).downcast_ref::<DriverEvent>() else {
            return Err(foreign("wait for event", "event", self.context.name()));
        };
        let Some(raw) = event.raw else {
            let what =
                "the driver recorded no event when the last handle of its stream was dropped";
            return Err(Error::new("wait for event", Kind::WrongState, what));
        };
        let _app = self.context.enter_to_enqueue()?;
        // SAFETY: event and stream are live.
        let waits = unsafe { self.context.driver.stream_wait_event(self.raw, raw) };
        self.count();
        self.context.check(waits, "wait for event")
    }

    fn begin_capture(&self) -> Result<()> {
        graph::begin(&self.context, self.raw)?;
        self.captured.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn GraphHandle>> {
        let graph = graph::end(&self.context, self.raw);
        self.captured.store(false, Ordering::Relaxed);
        Ok(Box::new(graph?))
    }

    fn launch_graph(&self, graph: &dyn GraphHandle) -> Result<()> {
        let Some(graph) = (graph as &dyn Any).downcast_ref::<DriverGraph>() else {
            return Err(foreign("launch graph", "graph", self.context.name()));
        };
        let submissions = graph.submissions().unwrap_or(1);
        self.submitted.fetch_add(submissions, Ordering::Relaxed);
        graph.launch(self.raw)
    }

    /// A stream under capture is not queried, because the query would end the capture: it counts as
    /// busy. A stream that the application may have destroyed is not queried either.
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

    /// The application may destroy the stream after this call. No event can be recorded on a stream
    /// under capture; its event is then never done.
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
                DriverEvent {
                    context: Arc::clone(&self.context),
                    raw: None,
                }
            }))
        });
        *left = Some(busy.clone());
        // Released first: the list of deferred frees is locked before a stream, and the pool may
        // destroy the stream.
        drop(left);
        if self.ours && !self.context.is_lost() {
            self.context
                .streams
                .put(&self.context, self.raw, busy.clone());
        }
        let Some(event) = busy else { return Left::Done };
        self.context.deferred.forget(End::Event(Arc::clone(&event)));
        Left::Busy(event)
    }

    fn release(&self) -> Option<Owner> {
        self.owner.0.lock().take()
    }

    fn raw(&self) -> *mut c_void {
        self.raw
    }
}

/// The end of the work that was enqueued on a stream up to some time.
#[derive(Debug)]
pub(crate) enum End {
    Event(Arc<DriverEvent>),
    /// Only an idle stream has reached it.
    Idle(Arc<DriverStream>),
}

impl End {
    /// Whether the stream has reached it. Streams of a lost GPU use no memory any more. On any
    /// other error the answer is `false`.
    pub fn is_reached(&self) -> bool {
        match self {
            End::Event(event) => event.is_done().unwrap_or(event.context.is_lost()),
            End::Idle(stream) => stream.is_idle().unwrap_or(stream.context.is_lost()),
        }
    }
}

/// An event that was recorded.
#[derive(Debug)]
pub(crate) struct DriverEvent {
    context: Arc<Context>,
    /// `None` for an event that could not be recorded and is never done.
    raw: Option<Handle>,
}

// SAFETY: handles of the driver, which is thread-safe.
unsafe impl Send for DriverEvent {}
// SAFETY: as above.
unsafe impl Sync for DriverEvent {}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.filter(|_| !self.context.is_lost()) {
            // SAFETY: an event of the library. The driver keeps an event that a stream still waits
            // for.
            let _ = unsafe { self.context.driver.event_destroy(raw) };
        }
    }
}

impl DriverEvent {
    /// Whether the event can ever be done.
    pub(super) fn is_recorded(&self) -> bool {
        self.raw.is_some()
    }
}

impl DriverEvent {
    /// The time from `earlier` to this event, if both are done and have timing.
    pub(super) fn since(&self, earlier: &DriverEvent) -> Option<Duration> {
        if !self.is_done().unwrap_or(false) {
            return None;
        }
        let (from, to) = (earlier.raw?, self.raw?);
        let _app = self.context.enter_to_ask().ok()?;
        let mut ms = 0.0_f32;
        // SAFETY: live events of one context.
        let asked = unsafe { self.context.driver.event_elapsed(&mut ms, from, to) };
        asked
            .is_ok()
            .then(|| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3))
    }
}

impl EventHandle for DriverEvent {
    fn is_done(&self) -> Result<bool> {
        let Some(raw) = self.raw else {
            return Ok(self.context.is_lost());
        };
        let _app = self.context.enter_to_ask()?;
        // SAFETY: a live event.
        let asked = unsafe { self.context.driver.event_query(raw) };
        match asked.code {
            NOT_READY => Ok(false),
            // The event went into a graph: no stream reaches it.
            CAPTURED_EVENT => Ok(true),
            _ => {
                self.context.check(asked, "query event")?;
                Ok(true)
            }
        }
    }
}
