//! Deferred frees: released memory that streams may still use.
//!
//! A free of the library's memory does not wait for the application's streams. Therefore released
//! memory is freed only after every stream that was busy at the release has run the work it held
//! then. The device thread and the watch thread never wait for that; the poller checks
//! periodically.
//!
//! Memory that the application handed in with an owner is different: the call that frees it may
//! block behind any wait of its context, and holds a lock meanwhile that copies need. The library
//! drops the owner while all streams are idle, and blocks enqueues during the drop.

use std::cell::Cell;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use gds_step::{Machine, Mutex, Step, Time};

use super::context::Context;
use super::memory::Origin;
use super::stream::{DriverStream, End};
use crate::gpu::runtime::{Owner, StreamHandle as _};

/// The period of the poller while a free is pending.
const LOOK: Duration = Duration::from_millis(5);

/// The pending frees, and the streams that may still use the memory.
#[derive(Default)]
pub(crate) struct DeferredFrees(Mutex<State>);

#[derive(Default)]
struct State {
    pending: Vec<Deferred>,
    streams: Vec<Weak<DriverStream>>,
    /// Ends of streams whose handles are dropped.
    ends: Vec<Arc<End>>,
}

struct Deferred {
    what: Origin,
    ends: Vec<Arc<End>>,
}

impl State {
    /// The streams whose handles are held. The handles must not be dropped under the lock.
    fn live(&mut self) -> Vec<Arc<DriverStream>> {
        let mut live = Vec::with_capacity(self.streams.len());
        self.streams.retain(|stream| {
            let stream = stream.upgrade();
            let keep = stream.is_some();
            live.extend(stream);
            keep
        });
        live
    }

    /// The current ends of all streams, and the handles of the held streams, which must not be
    /// dropped under the lock.
    fn ends(&mut self) -> (Vec<Arc<End>>, Vec<Arc<DriverStream>>) {
        let live = self.live();
        let mut ends = Vec::new();
        for stream in &live {
            match stream.end() {
                Ok(Some(end)) => ends.push(Arc::new(end)),
                Ok(None) => {}
                // The stream may be lost, or refuse an event: then `Idle` queries it.
                Err(_) => ends.push(Arc::new(End::Idle(Arc::clone(stream)))),
            }
        }
        ends.extend(self.ends.iter().map(Arc::clone));
        (ends, live)
    }

    /// Removes the memory that no stream uses any more and the ends that are reached. Neither may
    /// be dropped under the lock.
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
    /// Tracks `stream` from now on.
    pub fn know(&self, stream: &Arc<DriverStream>) {
        let mut state = self.0.lock();
        state.streams.retain(|s| s.strong_count() > 0);
        state.streams.push(Arc::downgrade(stream));
    }

    /// Removes a stream whose handle is dropped; its work up to `end` is still tracked.
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

    /// Releases memory: frees it now if no stream is busy, else later.
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

    /// Releases memory of another context that no stream uses any more; the poller frees it.
    pub fn take_over(&self, what: Origin) {
        let ends = Vec::new();
        self.0.lock().pending.push(Deferred { what, ends });
    }

    /// The current ends of all streams.
    pub fn ends(&self) -> Vec<Arc<End>> {
        // The handles are dropped after the lock is released.
        let (ends, _live) = self.0.lock().ends();
        ends
    }

    /// Frees the released memory that no stream uses any more.
    pub fn free_unused(&self, context: &Context) {
        // In the application's context a free blocks behind every wait. Therefore no stream may
        // wait, and no wait may be enqueued meanwhile.
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
        // The drop of an owner may enqueue work or wait, so it runs here without a lock.
        drop(owners);
        drop(reached);
    }

    /// Whether every stream known here is idle.
    pub fn all_idle(&self, context: &Context) -> bool {
        let (live, ends) = {
            let mut state = self.0.lock();
            let ends = state.ends.iter().all(|end| end.is_reached());
            (state.live(), ends)
        };
        let idle = |stream: &Arc<DriverStream>| stream.is_idle().unwrap_or(context.is_lost());
        ends && live.iter().all(idle)
    }
}

thread_local! {
    /// Set while this thread drops the owner of an application's memory.
    static DISPOSING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread drops an owner, so that it blocks enqueues itself.
pub(super) fn is_disposing() -> bool {
    DISPOSING.get()
}

/// A pending owner, and the context whose streams must be idle for its drop.
type Task = (Arc<Context>, Owner);

/// Drops the owner of an application's memory on a separate thread, once all streams of the context
/// are idle. See the module.
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
        // If the thread has ended, the send returns the owner, and it is dropped here.
        Some(disposer) => drop(disposer.send((Arc::clone(context), owner))),
        None => drop(owner),
    }
}

/// Drops the owner if all streams are idle; otherwise returns the task for a later try.
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

/// Runs the deferred frees of one context, and destroys its idle streams, on the driver's watch lane.
pub(super) struct Poller(pub Arc<Context>);

impl Machine for Poller {
    fn step(&mut self, now: Time) -> Step {
        if !self.0.deferred.is_empty() {
            self.0.deferred.free_unused(&self.0);
        }
        self.0.streams.reap(&self.0);
        Step::IdleUntil(Some(now + LOOK))
    }

    fn name(&self) -> String {
        format!("{} deferred frees", self.0.name())
    }
}
