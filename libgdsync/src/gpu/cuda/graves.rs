//! Memory that was given back while streams may still use it.
//!
//! Freeing in our own context does not wait for the application's streams, so we do: what is
//! given back is freed when every stream that was busy then has run what it held. The device
//! and watch threads never wait for that; the reaper looks now and then.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use gds_step::{Machine, Step, Time};

use super::context::Context;
use super::memory::Corpse;
use super::stream::{CudaStream, End};
use crate::gpu::Owner;

/// How often the reaper looks while there is something to free.
const LOOK: Duration = Duration::from_millis(5);

/// What waits to be freed, and the streams that it may wait for.
#[derive(Default)]
pub(crate) struct Graves(Mutex<State>);

#[derive(Default)]
struct State {
    graves: Vec<Grave>,
    streams: Vec<Weak<CudaStream>>,
    /// Ends of streams that are gone.
    ends: Vec<Arc<End>>,
}

struct Grave {
    what: Corpse,
    ends: Vec<Arc<End>>,
}

impl Graves {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `stream` considered from now on.
    pub fn know(&self, stream: &Arc<CudaStream>) {
        let mut state = self.lock();
        state.streams.retain(|s| s.strong_count() > 0);
        state.streams.push(Arc::downgrade(stream));
    }

    /// A stream's handle goes away; its work up to `end` still counts.
    pub fn forget(&self, end: End) {
        let mut state = self.lock();
        state.ends.retain(|end| !end.is_reached());
        state.ends.push(Arc::new(end));
    }

    pub fn is_empty(&self) -> bool {
        self.lock().graves.is_empty()
    }

    /// Frees `what` now if no stream is busy, else later.
    pub fn bury(&self, context: &Context, what: Corpse) {
        // Held while streams are asked, and dropped after the lock.
        let mut live = Vec::new();
        let mut freed = None;
        {
            let mut state = self.lock();
            let mut ends = Vec::new();
            state.streams.retain(|stream| match stream.upgrade() {
                Some(stream) => {
                    match stream.end() {
                        Ok(Some(end)) => ends.push(Arc::new(end)),
                        Ok(None) => {}
                        // It may be lost, or refuse an event: then its idleness must tell.
                        Err(_) => ends.push(Arc::new(End::Idle(Arc::clone(&stream)))),
                    }
                    live.push(stream);
                    true
                }
                None => false,
            });
            state.ends.retain(|end| !end.is_reached());
            ends.extend(state.ends.iter().map(Arc::clone));
            if ends.is_empty() {
                freed = Some(what);
            } else {
                state.graves.push(Grave { what, ends });
            }
        }
        if let Some(what) = freed {
            what.free(context);
        }
        drop(live);
    }

    /// Frees what nobody uses any more. Returns whether something is left.
    pub fn reap(&self, context: &Context) -> bool {
        let mut done = Vec::new();
        let left = {
            let mut state = self.lock();
            let mut i = 0;
            while i < state.graves.len() {
                state.graves[i].ends.retain(|end| !end.is_reached());
                if state.graves[i].ends.is_empty() {
                    done.push(state.graves.swap_remove(i));
                } else {
                    i += 1;
                }
            }
            !state.graves.is_empty()
        };
        for grave in done {
            grave.what.free(context);
        }
        left
    }
}

/// Drops what the application keeps its memory by, on a thread of its own: freeing that memory
/// may stand behind the waits of the application's context, and must not hold up the watcher.
pub(super) fn dispose(owner: Owner) {
    static DISPOSER: OnceLock<Option<Sender<Owner>>> = OnceLock::new();
    let disposer = DISPOSER.get_or_init(|| {
        let (sender, owners) = channel::<Owner>();
        std::thread::Builder::new()
            .name("gds-dispose".to_owned())
            .spawn(move || owners.into_iter().for_each(drop))
            .ok()
            .map(|_| sender)
    });
    match disposer {
        // Should the thread be gone, the owner comes back and is dropped here.
        Some(disposer) => drop(disposer.send(owner)),
        None => drop(owner),
    }
}

/// Looks after the graves of one context, on the driver's watch lane.
pub(super) struct Reaper(pub Arc<Context>);

impl Machine for Reaper {
    fn step(&mut self, now: Time) -> Step {
        if !self.0.graves.is_empty() {
            self.0.graves.reap(&self.0);
        }
        Step::IdleUntil(Some(now + LOOK))
    }

    fn name(&self) -> String {
        format!("{} reaper", self.0.name())
    }
}
