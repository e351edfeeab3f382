//! Deferred frees: memory that was given back while streams may still use it.
//!
//! Freeing our memory does not wait for the application's streams, so we do: what is given back
//! is freed when every stream that was busy then has run what it held. The device and watch
//! threads never wait for that; the poller looks now and then.
//!
//! Memory of the application's that it handed in with an owner is another matter: what frees it
//! may stand behind any wait of its context, holding a lock that copies need. Its owner is
//! dropped while all streams are idle, with enqueueing held up for so long.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use gds_step::{Machine, Mutex, Step, Time};

use super::context::Context;
use super::memory::Origin;
use super::stream::{CudaStream, End};
use crate::gpu::runtime::{Owner, StreamHandle as _};

/// How often the poller looks while there is something to free.
const LOOK: Duration = Duration::from_millis(5);

/// What waits to be freed, and the streams that it may wait for.
#[derive(Default)]
pub(crate) struct DeferredFrees(Mutex<State>);

#[derive(Default)]
struct State {
    pending: Vec<Deferred>,
    streams: Vec<Weak<CudaStream>>,
    /// Ends of streams that are gone.
    ends: Vec<Arc<End>>,
}

struct Deferred {
    what: Origin,
    ends: Vec<Arc<End>>,
}

impl State {
    /// The streams that are held. Their handles must not be dropped under the lock.
    fn live(&mut self) -> Vec<Arc<CudaStream>> {
        let mut live = Vec::with_capacity(self.streams.len());
        self.streams.retain(|stream| {
            let stream = stream.upgrade();
            let keep = stream.is_some();
            live.extend(stream);
            keep
        });
        live
    }

    /// How far the streams have been enqueued, and the handles of those that are held, which must not
    /// be dropped under the lock.
    fn ends(&mut self) -> (Vec<Arc<End>>, Vec<Arc<CudaStream>>) {
        let live = self.live();
        let mut ends = Vec::new();
        for stream in &live {
            match stream.end() {
                Ok(Some(end)) => ends.push(Arc::new(end)),
                Ok(None) => {}
                // The stream may be lost, or refuse an event: then ask whether it is idle.
                Err(_) => ends.push(Arc::new(End::Idle(Arc::clone(stream)))),
            }
        }
        ends.extend(self.ends.iter().map(Arc::clone));
        (ends, live)
    }

    /// Takes out what is used by no stream any more, and ends that are reached; neither may be
    /// dropped under the lock.
    fn settle(&mut self) -> (Vec<Origin>, Vec<Arc<End>>) {
        let (mut done, mut reached) = (Vec::new(), Vec::new());
        let mut i = 0;
        while i < self.pending.len() {
            take_reached(&mut self.pending[i].ends, &mut reached);
            if self.pending[i].ends.is_empty() {
                done.push(self.pending.swap_remove(i).what);
            } else {
                i += 1;
            }
        }
        take_reached(&mut self.ends, &mut reached);
        (done, reached)
    }
}

fn take_reached(ends: &mut Vec<Arc<End>>, reached: &mut Vec<Arc<End>>) {
    let mut i = 0;
    while i < ends.len() {
        if ends[i].is_reached() {
            reached.push(ends.swap_remove(i));
        } else {
            i += 1;
        }
    }
}

impl DeferredFrees {
    /// Has `stream` considered from now on.
    pub fn know(&self, stream: &Arc<CudaStream>) {
        let mut state = self.0.lock();
        state.streams.retain(|s| s.strong_count() > 0);
        state.streams.push(Arc::downgrade(stream));
    }

    /// A stream's handle goes away; its work up to `end` still counts.
    pub fn forget(&self, end: End) {
        let mut reached = Vec::new();
        let mut state = self.0.lock();
        take_reached(&mut state.ends, &mut reached);
        state.ends.push(Arc::new(end));
        drop(state);
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().pending.is_empty()
    }

    /// Takes `what` back; frees it now if no stream is busy, else later.
    pub fn defer(&self, context: &Context, what: Origin) {
        let live = {
            let mut state = self.0.lock();
            let (ends, live) = state.ends();
            state.pending.push(Deferred { what, ends });
            live
        };
        drop(live);
        self.free_unused(context);
    }

    /// How far all streams have been enqueued.
    pub fn ends(&self) -> Vec<Arc<End>> {
        // The handles are dropped behind the lock.
        let (ends, _live) = self.0.lock().ends();
        ends
    }

    /// Frees what nobody uses any more.
    pub fn free_unused(&self, context: &Context) {
        // In the application's context a free blocks behind every wait, so no stream may wait, and
        // no wait may be enqueued meanwhile.
        let quiet = context.is_alone().then(|| context.quiet());
        if let Some(quiet) = &quiet
            && (quiet.is_none() || !self.all_idle(context))
        {
            return;
        }
        let (done, reached) = self.0.lock().settle();
        let free = |what: Origin| what.free(context);
        let owners: Vec<Owner> = done.into_iter().filter_map(free).collect();
        drop(quiet);
        // What these do may be enqueued, or wait.
        drop(owners);
        drop(reached);
    }

    /// Whether no stream that we know has anything to do.
    pub fn all_idle(&self, context: &Context) -> bool {
        let (live, ends) = {
            let mut state = self.0.lock();
            let ends = state.ends.iter().all(|end| end.is_reached());
            (state.live(), ends)
        };
        let idle = |stream: &Arc<CudaStream>| stream.is_idle().unwrap_or(context.is_lost());
        ends && live.iter().all(idle)
    }
}

thread_local! {
    /// Set while this thread drops what an application keeps its memory by.
    static DISPOSING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the thread is where enqueueing is held up for its own sake.
pub(super) fn is_disposing() -> bool {
    DISPOSING.get()
}

/// An owner to be dropped, and the context whose streams must be idle then.
type Task = (Arc<Context>, Owner);

/// Drops what the application keeps its memory by, on a thread of its own, once all streams of
/// the context are idle. See the module.
pub(super) fn dispose(context: &Arc<Context>, owner: Owner) {
    static DISPOSER: OnceLock<Option<Sender<Task>>> = OnceLock::new();
    let disposer = DISPOSER.get_or_init(|| {
        let (sender, tasks) = channel::<Task>();
        let run = move || {
            let mut waiting: Vec<Task> = Vec::new();
            loop {
                let limit = match waiting.is_empty() {
                    true => Duration::MAX,
                    false => LOOK,
                };
                match tasks.recv_timeout(limit) {
                    Ok(task) => waiting.push(task),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                waiting = waiting.into_iter().filter_map(try_dispose).collect();
            }
        };
        let thread = std::thread::Builder::new().name("gds-dispose".to_owned());
        thread.spawn(run).ok().map(|_| sender)
    });
    match disposer {
        // Should the thread be gone, the owner comes back and is dropped here.
        Some(disposer) => drop(disposer.send((Arc::clone(context), owner))),
        None => drop(owner),
    }
}

/// Drops the owner, or returns the task for later.
fn try_dispose((context, owner): Task) -> Option<Task> {
    {
        let quiet = context.quiet();
        DISPOSING.set(quiet.is_some());
        let free = quiet.is_some() && (context.is_lost() || context.deferred.all_idle(&context));
        if free {
            drop(owner);
            DISPOSING.set(false);
            return None;
        }
        DISPOSING.set(false);
    }
    Some((context, owner))
}

/// Frees what is deferred in one context, on the driver's watch lane.
pub(super) struct Poller(pub Arc<Context>);

impl Machine for Poller {
    fn step(&mut self, now: Time) -> Step {
        if !self.0.deferred.is_empty() {
            self.0.deferred.free_unused(&self.0);
        }
        Step::IdleUntil(Some(now + LOOK))
    }

    fn name(&self) -> String {
        format!("{} deferred frees", self.0.name())
    }
}
