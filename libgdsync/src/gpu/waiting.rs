//! How many streams of a GPU wait.
//!
//! A waiting stream holds one of the few hardware channels of its context. When too many
//! wait, nothing else of the context moves: not the kernel or the doorbell that would release
//! them either. So a stream that is given a wait takes a *wait slot*, of which there are fewer than
//! channels, and keeps it until it is known to have passed. Knowing costs nothing while slots
//! are free: only a stream that finds none checks which have passed, by the proof that each left.
//!
//! The slot also counts what is enqueued behind the wait. A driver takes about a thousand
//! submissions to a stream that waits and then blocks the thread; ours refuses first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gds_step::Mutex;

use super::region::WeakRegion;
use super::runtime::{EventHandle, StreamHandle};
use super::{Mapped, Stream};
use crate::error::{Error, Kind, Result};
use crate::ring::RingMemory;

/// What a runtime says about waiting streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitLimits {
    /// Hardware channels of a context.
    pub channels: u32,
    /// Streams that may wait at a time while the others still move.
    pub streams: u32,
    /// Submissions that one waiting stream is given; `None`: the runtime sees to it itself.
    pub submissions: Option<u32>,
}

/// How it will show that a stream has passed its last wait.
#[derive(Default)]
pub(crate) enum Proof {
    /// Only by the stream being idle.
    #[default]
    Idle,
    /// By the earlier proof: no wait was enqueued since that was given.
    Earlier,
    /// By the count that the stream itself writes behind its waits, in memory that may be gone
    /// by then. (That a word of the application's passes proves nothing of the waits before.)
    Mark {
        memory: WeakRegion,
        word: Mapped,
        count: u32,
    },
    /// By a word of 64 bits that comes, cyclically, to `value`: what the application enqueues
    /// behind the wait writes it.
    Word {
        memory: WeakRegion,
        word: Mapped,
        value: u64,
    },
}

impl Proof {
    fn holds(&self) -> bool {
        match self {
            Proof::Idle | Proof::Earlier => false,
            Proof::Mark {
                memory,
                word,
                count,
            } => {
                let held = memory.upgrade();
                held.is_some() && (word.load32(0).wrapping_sub(*count) as i32) >= 0
            }
            Proof::Word {
                memory,
                word,
                value,
            } => {
                let held = memory.upgrade();
                held.is_some() && (word.load64(0).wrapping_sub(*value) as i64) >= 0
            }
        }
    }
}

/// What holds a wait slot.
#[derive(Default)]
enum Holder {
    #[default]
    None,
    Stream(Arc<dyn StreamHandle>),
    /// A stream whose handle is gone; this marks its end.
    Gone(Arc<dyn EventHandle>),
}

#[derive(Default)]
struct SlotState {
    holder: Holder,
    proof: Proof,
    /// Submissions since the stream was last known to have passed.
    count: u32,
    /// An earlier proof and the count at which it was given. Gone once it holds.
    earlier: Option<(Proof, u32)>,
    /// Calls that are about to enqueue a wait; see [`Waiting::hold`].
    held: u32,
}

struct WaitSlot {
    /// Id of the stream that has the slot, 0 if it is free. Written under the lock of `state`;
    /// read relaxed to find one's own slot (only the stream itself puts its id there, and who
    /// takes the slot away does so under the lock, where it is looked at again).
    owner: AtomicU64,
    state: Mutex<SlotState>,
}

/// The slots of one GPU.
pub(crate) struct Waiting {
    limits: Option<WaitLimits>,
    slots: Box<[WaitSlot]>,
}

impl Waiting {
    pub fn new(limits: Option<WaitLimits>) -> Waiting {
        let slots = limits.map_or(0, |l| l.streams);
        let free = || WaitSlot {
            owner: AtomicU64::new(0),
            state: Mutex::default(),
        };
        Waiting {
            limits,
            slots: (0..slots).map(|_| free()).collect(),
        }
    }

    pub fn limits(&self) -> Option<WaitLimits> {
        self.limits
    }

    /// Whether waiting streams are counted, so that it matters how they show that they have passed.
    #[inline]
    pub fn counts(&self) -> bool {
        self.limits.is_some()
    }

    #[inline]
    fn slot_of(&self, id: u64) -> Option<&WaitSlot> {
        self.slots
            .iter()
            .find(|slot| slot.owner.load(Ordering::Relaxed) == id)
    }

    /// Whether a stream is known to wait.
    pub fn any(&self) -> bool {
        self.slots.iter().any(|slot| {
            let state = slot.state.lock();
            slot.owner.load(Ordering::Relaxed) != 0 && !state.has_passed()
        })
    }

    /// Notes `n` submissions of `stream`, with the proof of their last wait if they have one.
    ///
    /// # Errors
    /// `TooManyWaits`, `QueueFull`; nothing is noted then.
    #[inline]
    pub fn admit(
        &self,
        stream: &Stream,
        operation: &'static str,
        n: u32,
        wait: Option<Proof>,
    ) -> Result<()> {
        let Some(limits) = &self.limits else {
            return Ok(());
        };
        if let Some(slot) = self.slot_of(stream.id()) {
            let mut state = slot.state.lock();
            if slot.owner.load(Ordering::Relaxed) == stream.id() {
                if let Some(limit) = limits.submissions {
                    state.count(stream, operation, n, limit)?;
                }
                if let Some(proof) = wait {
                    state.proof = proof;
                }
                return Ok(());
            }
        }
        match wait {
            None => Ok(()),
            Some(proof) => self.take_slot(stream, operation, n, proof, limits),
        }
    }

    /// Counts `stream` among those that wait until [`Waiting::release`], whatever it passes.
    pub fn hold(&self, stream: &Stream, operation: &'static str) -> Result<()> {
        while self.limits.is_some() {
            if let Some(slot) = self.slot_of(stream.id()) {
                let mut state = slot.state.lock();
                if slot.owner.load(Ordering::Relaxed) == stream.id() {
                    state.held += 1;
                    break;
                }
            }
            self.admit(stream, operation, 0, Some(Proof::Idle))?;
        }
        Ok(())
    }

    /// Ends a [`Waiting::hold`].
    pub fn release(&self, stream: &Stream) {
        // Nothing else takes the slot of a stream that is held.
        if let Some(slot) = self.slot_of(stream.id()) {
            let mut state = slot.state.lock();
            state.held = state.held.saturating_sub(1);
        }
    }

    /// Refuses if `stream` waits and does not take `n` more submissions now.
    pub fn check(&self, stream: &Stream, operation: &'static str, n: u32) -> Result<()> {
        let limit = self.limits.and_then(|limits| limits.submissions);
        if let (Some(limit), Some(slot)) = (limit, self.slot_of(stream.id())) {
            let mut state = slot.state.lock();
            if slot.owner.load(Ordering::Relaxed) == stream.id() {
                state.count(stream, operation, n, limit)?;
                state.count -= n;
            }
        }
        Ok(())
    }

    #[cold]
    fn take_slot(
        &self,
        stream: &Stream,
        operation: &'static str,
        n: u32,
        proof: Proof,
        limits: &WaitLimits,
    ) -> Result<()> {
        for ask in [false, true] {
            for slot in &self.slots {
                let mut state = slot.state.lock();
                let free = slot.owner.load(Ordering::Relaxed) == 0;
                if free || (ask && state.has_passed()) {
                    *state = SlotState {
                        holder: Holder::Stream(Arc::clone(stream.handle())),
                        proof,
                        count: n,
                        earlier: None,
                        held: 0,
                    };
                    slot.owner.store(stream.id(), Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        let what = format!(
            "{stream:?}: {} streams wait already, and with more of them than that nothing else \
             moves on this GPU's {} hardware channels; CUDA_DEVICE_MAX_CONNECTIONS (at most 32, \
             set before the first use of CUDA) gives it more",
            limits.streams, limits.channels
        );
        Err(Error::new(operation, Kind::TooManyWaits, what).limit(limits.streams))
    }

    /// The application's handle on a stream is gone, not what is enqueued on it: from now on
    /// `end` also tells when that has run; `None`: it has.
    pub fn leave(&self, id: u64, end: Option<Arc<dyn EventHandle>>) {
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        let mut state = slot.state.lock();
        if slot.owner.load(Ordering::Relaxed) != id {
            return;
        }
        match end {
            // The proof stays: the end may never be known.
            Some(end) => state.holder = Holder::Gone(end),
            None => {
                *state = SlotState::default();
                slot.owner.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl SlotState {
    /// Whether the stream is past the last wait it was given. Streams of a lost GPU wait for
    /// nothing; with any other error nobody knows.
    fn has_passed(&self) -> bool {
        if self.held > 0 {
            return false;
        }
        let shown = match (&self.proof, &self.earlier) {
            (Proof::Earlier, Some((earlier, _))) => earlier.holds(),
            (Proof::Earlier, None) => true,
            (proof, _) => proof.holds(),
        };
        if shown {
            return true;
        }
        let idle = match &self.holder {
            Holder::None => return true,
            Holder::Stream(stream) => stream.is_idle(),
            Holder::Gone(event) => event.is_done(),
        };
        idle.unwrap_or_else(|e| e.kind() == Kind::DeviceLost)
    }

    #[inline]
    fn count(
        &mut self,
        stream: &Stream,
        operation: &'static str,
        n: u32,
        limit: u32,
    ) -> Result<()> {
        if self.count.saturating_add(n) > limit / 2 {
            self.make_room(stream, operation, n, limit)?;
        }
        self.count = self.count.saturating_add(n);
        Ok(())
    }

    #[cold]
    fn make_room(
        &mut self,
        stream: &Stream,
        operation: &'static str,
        n: u32,
        limit: u32,
    ) -> Result<()> {
        if let Some((earlier, upto)) = &self.earlier
            && earlier.holds()
        {
            self.count -= upto;
            self.earlier = None;
        }
        if self.count.saturating_add(n) > limit / 2 && self.has_passed() {
            self.count = 0;
            self.earlier = None;
        }
        if self.earlier.is_none() && !matches!(self.proof, Proof::Idle | Proof::Earlier) {
            // Whoever has passed this has passed everything up to here.
            let proof = std::mem::replace(&mut self.proof, Proof::Earlier);
            self.earlier = Some((proof, self.count));
        }
        if self.count.saturating_add(n) <= limit {
            return Ok(());
        }
        let what = format!(
            "{stream:?} waits and holds {} submissions; with some more the driver would block \
             the caller",
            self.count
        );
        Err(Error::new(operation, Kind::QueueFull, what).limit(limit))
    }
}
