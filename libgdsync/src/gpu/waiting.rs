//! Limits on waiting streams of a GPU.
//!
//! A waiting stream holds one of the few hardware channels of its context. If too many streams
//! wait, the context makes no progress: the kernel or doorbell that would release them does not run
//! either. Therefore a stream takes a *wait slot* when a wait is enqueued on it, and keeps the slot
//! until the stream has provably passed the wait. There are fewer slots than channels. While slots
//! are free, nothing is checked. A stream that finds no free slot checks which streams have passed,
//! by the proof that each of them left.
//!
//! The blocks of a kernel that waits stay on their multiprocessors. A multiprocessor divides its memory between
//! cache and shared memory (CUDA: carveout), and a kernel that needs another division starts only where no block
//! is. If blocks that wait were on all multiprocessors, a kernel that would release them might never start. So
//! the slot also records the blocks of its stream's kernels, and [`Waiting::share`] limits those of the next one
//! (`docs/decisions.md`, 132).
//!
//! The slot also counts the submissions behind the wait. A driver accepts about a thousand
//! submissions on a waiting stream and then blocks the thread; the library refuses earlier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gds_step::Mutex;

use super::region::{Region, WeakRegion};
use super::runtime::{EventHandle, StreamHandle};
use super::{Dims, Mapped, Stream, Word64};
use crate::error::{Error, Kind, Result};
use crate::ring::RingMemory;

/// The limits of a runtime for waiting streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitLimits {
    /// The hardware channels of a context.
    pub channels: u32,
    /// What sets the number of channels, as an error names it.
    pub setting: &'static str,
    /// The streams that may wait at a time while the others still progress.
    pub streams: u32,
    /// The submissions that the library puts on one waiting stream; `None`: the runtime limits them
    /// itself.
    pub submissions: Option<u32>,
    /// The multiprocessors of the GPU. The blocks of waiting streams leave some of them free. `None`: blocks do not
    /// occupy any.
    pub multiprocessors: Option<u32>,
}

impl WaitLimits {
    /// The maximum of submissions on a waiting stream of a driver. CUDA's accepts about 1,020 and then
    /// blocks the caller; the difference is left for work that the application enqueues itself. HIP's
    /// accepts so many of 8 operations, of at most two packets each: a hardware queue has 16,384 packets.
    const SUBMISSIONS: u32 = 1000;

    /// The limits of a driver whose number of channels is that of a variable, or `default`. All but two
    /// channels are for streams that wait. With one or two channels no stream could wait safely: the
    /// library allows one, at the program's risk.
    pub(super) fn of_driver(
        variable: Option<&str>,
        default: u32,
        setting: &'static str,
        multiprocessors: i32,
    ) -> WaitLimits {
        let channels = variable.and_then(|v| v.trim().parse::<u32>().ok());
        let channels = channels.unwrap_or(default).clamp(1, 32);
        WaitLimits {
            channels,
            setting,
            streams: channels.saturating_sub(2).max(1),
            submissions: Some(Self::SUBMISSIONS),
            multiprocessors: u32::try_from(multiprocessors).ok().filter(|all| *all > 0),
        }
    }
}

/// The way to prove that a stream has passed its last wait.
#[derive(Default)]
pub(crate) enum Proof {
    /// Only an idle stream has passed.
    #[default]
    Idle,
    /// The earlier proof holds: no wait was enqueued after it was given.
    Earlier,
    /// A count that the stream writes behind its waits, in memory that may be freed by then. (A
    /// word of the application proves nothing about earlier waits.)
    Mark {
        memory: WeakRegion,
        word: Mapped,
        count: u32,
    },
    /// A 64-bit word that reaches `value`, compared cyclically; work that the application enqueues
    /// behind the wait writes it.
    Word {
        memory: WeakRegion,
        word: Mapped,
        value: u64,
    },
    /// As [`Proof::Word`], at `offset` of memory that the CPU cannot map. A read by the copy engine
    /// costs 8 us (H100), so only a stream that needs a slot asks for it: see
    /// [`SlotState::is_free`]. All other code treats it as [`Proof::Idle`].
    Unmapped {
        memory: WeakRegion,
        offset: usize,
        value: u64,
    },
    /// An event behind the waits.
    Event(Arc<dyn EventHandle>),
}

/// Whether a word has reached `value`, compared cyclically.
fn reached(word: u64, value: u64) -> bool {
    word.wrapping_sub(value) as i64 >= 0
}

impl Proof {
    /// The proof by `word`, into which work behind the waits stores `value`.
    pub fn by_word(word: &Word64, value: u64) -> Proof {
        let memory = word.region().downgrade();
        match word.mapped() {
            Some(word) => Proof::Word {
                memory,
                word,
                value,
            },
            None => Proof::Unmapped {
                memory,
                offset: word.offset(),
                value,
            },
        }
    }

    /// Whether a word that the CPU cannot map has reached its value; `read` gets the handle on its
    /// memory. The caller may hold locks: the copy engine has a stream of the library, which runs
    /// while streams wait, and a thread that holds its lock takes no other.
    fn reads(&self, read: &mut Vec<Region>) -> bool {
        let Proof::Unmapped {
            memory,
            offset,
            value,
        } = self
        else {
            return false;
        };
        let Some(memory) = memory.upgrade() else {
            return false;
        };
        let mut word = [0; 8];
        let done = memory.read(*offset, &mut word);
        read.push(memory);
        done.is_ok() && reached(u64::from_ne_bytes(word), *value)
    }

    fn holds(&self) -> bool {
        match self {
            Proof::Idle | Proof::Earlier | Proof::Unmapped { .. } => false,
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
                held.is_some() && reached(word.load64(0), *value)
            }
            Proof::Event(event) => event.is_done().unwrap_or(false),
        }
    }

    /// Whether it can never hold, because the memory of its word is freed.
    fn is_lost(&self) -> bool {
        match self {
            Proof::Mark { memory, .. }
            | Proof::Word { memory, .. }
            | Proof::Unmapped { memory, .. } => memory.upgrade().is_none(),
            Proof::Idle | Proof::Earlier | Proof::Event(_) => false,
        }
    }
}

/// The owner of a wait slot.
#[derive(Default)]
enum Holder {
    #[default]
    None,
    Stream(Arc<dyn StreamHandle>),
    /// A stream whose handle is dropped; the event marks the end of its work.
    Gone(Arc<dyn EventHandle>),
}

#[derive(Default)]
struct SlotState {
    holder: Holder,
    proof: Proof,
    /// Submissions since the stream was last known to have passed its waits.
    count: u32,
    /// An earlier proof and the count at that time. Removed once the proof holds.
    earlier: Option<(Proof, u32)>,
    /// Calls that are about to enqueue a wait; see [`Waiting::hold`].
    held: u32,
    /// The most blocks of a kernel of the stream; see [`Waiting::share`].
    blocks: u32,
    /// Launches that take so many blocks before the next one asks for more.
    again: u32,
}

struct WaitSlot {
    /// Id of the stream that has the slot; 0 if the slot is free. Written under the lock of
    /// `state`. Read relaxed to find the slot of a stream: only the stream itself writes its id,
    /// and a thread that takes the slot away holds the lock, under which the id is read again.
    owner: AtomicU64,
    state: Mutex<SlotState>,
}

/// Launches that a stream makes with fewer blocks than its kernels could use before it asks again how many blocks the
/// other streams have: the question may call the driver.
const AGAIN: u32 = 64;

/// A stream that counts as waiting until this is dropped.
pub(crate) struct Held<'w>(&'w WaitSlot);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The slot of a held stream is not taken away.
        let mut state = self.0.state.lock();
        state.held = state.held.saturating_sub(1);
    }
}

/// The slots of one GPU.
pub(crate) struct Waiting {
    limits: Option<WaitLimits>,
    slots: Box<[WaitSlot]>,
    /// Held by a thread that sums the blocks of all slots up. It then takes the locks of slots.
    sharing: Mutex<()>,
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
            sharing: Mutex::default(),
        }
    }

    pub fn limits(&self) -> Option<WaitLimits> {
        self.limits
    }

    /// Whether waiting streams are counted. Only then does a wait need a proof.
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
        let mut read = Vec::new();
        self.slots.iter().any(|slot| {
            let state = slot.state.lock();
            slot.owner.load(Ordering::Relaxed) != 0 && !state.is_free(&mut read)
        })
    }

    /// Counts `n` submissions of `stream`, with the proof of their last wait if they contain a
    /// wait.
    ///
    /// # Errors
    /// `TooManyWaits`, `QueueFull`; the counts are unchanged then.
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

    /// Replaces the proof of the last wait of `stream`, if it has a wait slot, by one that work behind all its
    /// waits gives.
    pub fn show(&self, stream: &Stream, proof: Proof) {
        if let Some(slot) = self.slot_of(stream.id()) {
            let mut state = slot.state.lock();
            if slot.owner.load(Ordering::Relaxed) == stream.id() {
                state.proof = proof;
            }
        }
    }

    /// Counts one more submission if `stream` keeps at least half of its room, or has no limit.
    pub fn admit_spare(&self, stream: &Stream) -> bool {
        let limit = self.limits.and_then(|limits| limits.submissions);
        let (Some(limit), Some(slot)) = (limit, self.slot_of(stream.id())) else {
            return true;
        };
        let mut state = slot.state.lock();
        let own = slot.owner.load(Ordering::Relaxed) == stream.id();
        let spare = !own || state.count < limit / 2;
        state.count += u32::from(own && spare);
        spare
    }

    /// Records the blocks of the next kernel of `stream`, if the stream waits or `waits`: the kernel does. A
    /// flexible kernel gets at most so many blocks that those of all waiting streams leave multiprocessors free: a
    /// stream that waits alone two fifths of them, the next one two fifths of the rest. Of a stream, two kernels
    /// are resident, because a dependent launch starts the second one while the first waits. The stream counts as
    /// waiting until the result is dropped, which must be after the launch.
    ///
    /// # Errors
    /// `TooManyWaits`.
    pub fn share(
        &self,
        stream: &Stream,
        operation: &'static str,
        dims: Dims,
        waits: bool,
    ) -> Result<(Dims, Option<Held<'_>>)> {
        let Some(all) = self.multiprocessors() else {
            return Ok((dims, None));
        };
        let slot = loop {
            match self.hold_slot(stream) {
                Some(slot) => break slot,
                None if waits => self.admit(stream, operation, 0, Some(Proof::Idle))?,
                None => return Ok((dims, None)),
            }
        };
        let held = Held(slot);
        let [x, y, z] = dims.grid;
        let rest = y.saturating_mul(z).max(1);
        let wanted = x.saturating_mul(rest);
        let mut state = slot.state.lock();
        let mut given = wanted;
        if dims.flexible && wanted > state.blocks.max(1) {
            given = match state.again {
                0 => {
                    // The locks of slots are taken one at a time.
                    drop(state);
                    let _sharing = self.sharing.lock();
                    let others = self
                        .slots
                        .iter()
                        .filter(|other| !std::ptr::eq(*other, slot));
                    let most = Waiting::part(all, others.map(WaitSlot::resident).sum());
                    state = slot.state.lock();
                    wanted.min(most.max(state.blocks))
                }
                _ => state.blocks.max(1),
            };
            state.again = match given < wanted {
                true => state.again.checked_sub(1).unwrap_or(AGAIN),
                false => 0,
            };
        }
        let x = match dims.flexible {
            true => (given / rest).clamp(1, x.max(1)),
            false => x,
        };
        state.blocks = state.blocks.max(x.saturating_mul(rest));
        drop(state);
        Ok((dims.grid([x, y, z]), Some(held)))
    }

    /// As [`Waiting::share`], of a kernel in a graph: as if its stream will wait alone.
    pub fn share_of_graph(&self, dims: Dims) -> Dims {
        let [x, y, z] = dims.grid;
        match self.multiprocessors() {
            Some(all) if dims.flexible => {
                let most = Waiting::part(all, 0) / y.saturating_mul(z).max(1);
                dims.grid([x.min(most.max(1)), y, z])
            }
            _ => dims,
        }
    }

    /// The multiprocessors, less a reserve of two for each stream that may wait: each may have one block of two
    /// kernels.
    fn multiprocessors(&self) -> Option<u32> {
        let limits = self.limits?;
        Some(limits.multiprocessors?.saturating_sub(2 * limits.streams))
    }

    /// The most blocks of a kernel, if so many of other streams may be resident beyond the reserve.
    fn part(all: u32, resident: u32) -> u32 {
        (all.saturating_sub(resident) * 2 / 5).max(1)
    }

    /// Counts `stream` as waiting, and returns its slot, if it has one.
    fn hold_slot(&self, stream: &Stream) -> Option<&WaitSlot> {
        let slot = self.slot_of(stream.id())?;
        let mut state = slot.state.lock();
        let own = slot.owner.load(Ordering::Relaxed) == stream.id();
        state.held += u32::from(own);
        own.then_some(slot)
    }

    /// Counts `stream` as waiting until [`Waiting::release`], even if it passes its waits.
    pub fn hold(&self, stream: &Stream, operation: &'static str) -> Result<()> {
        while self.limits.is_some() && self.hold_slot(stream).is_none() {
            self.admit(stream, operation, 0, Some(Proof::Idle))?;
        }
        Ok(())
    }

    /// Ends one [`Waiting::hold`].
    pub fn release(&self, stream: &Stream) {
        // The slot of a held stream is not taken away.
        if let Some(slot) = self.slot_of(stream.id()) {
            let mut state = slot.state.lock();
            state.held = state.held.saturating_sub(1);
        }
    }

    /// Refuses with `QueueFull` if `stream` waits and cannot take `n` more submissions now.
    pub fn check(&self, stream: &Stream, operation: &'static str, n: u32) -> Result<()> {
        let (Some(limits), Some(slot)) = (&self.limits, self.slot_of(stream.id())) else {
            return Ok(());
        };
        let mut read = Vec::new();
        let mut state = slot.state.lock();
        if slot.owner.load(Ordering::Relaxed) != stream.id() {
            return Ok(());
        }
        if let Some(limit) = limits.submissions {
            state.count(stream, operation, n, limit)?;
            state.count -= n;
            return Ok(());
        }
        match stream.handle().load() {
            Some((count, limit))
                if count.saturating_add(n) > limit && !state.is_free(&mut read) =>
            {
                Err(full(stream, operation, count, limit))
            }
            _ => Ok(()),
        }
    }

    /// Refuses with `QueueFull` if one more submission would block the caller, also if `stream` does not wait.
    pub fn check_full(stream: &Stream, operation: &'static str) -> Result<()> {
        match stream.handle().load() {
            Some((count, limit)) if count >= limit => Err(full(stream, operation, count, limit)),
            _ => Ok(()),
        }
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
        let mut read = Vec::new();
        for ask in [false, true] {
            for slot in &self.slots {
                let mut state = slot.state.lock();
                let free = slot.owner.load(Ordering::Relaxed) == 0;
                if free || (ask && state.is_free(&mut read)) {
                    *state = SlotState {
                        holder: Holder::Stream(Arc::clone(stream.handle())),
                        proof,
                        count: n,
                        earlier: None,
                        held: 0,
                        blocks: 0,
                        again: 0,
                    };
                    slot.owner.store(stream.id(), Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        let what = format!(
            "{stream:?} cannot wait too: with more waiting streams, other work could not execute \
             on the {} hardware channels of this GPU; set {}",
            limits.channels, limits.setting
        );
        Err(Error::new(operation, Kind::TooManyWaits, what).with_limit(limits.streams, "streams"))
    }

    /// Called when the application's last handle on a stream is dropped while enqueued work may
    /// remain. From then on `end` also proves that this work has run; `None`: it has run.
    pub fn leave(&self, id: u64, end: Option<Arc<dyn EventHandle>>) {
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        let mut state = slot.state.lock();
        if slot.owner.load(Ordering::Relaxed) != id {
            return;
        }
        match end {
            // The proof stays in use: the event may never be done.
            Some(end) => state.holder = Holder::Gone(end),
            None => {
                *state = SlotState::default();
                slot.owner.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl WaitSlot {
    /// The blocks of the stream's kernels that may be resident, of two kernels, beyond the reserve of one block
    /// each.
    fn resident(&self) -> u32 {
        let mut state = self.state.lock();
        if self.owner.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        if state.blocks > 1 && state.held == 0 && state.has_passed() {
            (state.blocks, state.again) = (0, 0);
        }
        state.blocks.saturating_sub(1).saturating_mul(2)
    }
}

impl SlotState {
    /// Whether the stream does not wait, and no call is about to enqueue a wait. `read` is dropped
    /// after the lock of the slot is released: the drop of a region's last handle may run code of
    /// the application, which may need the slot.
    fn is_free(&self, read: &mut Vec<Region>) -> bool {
        self.held == 0 && (self.has_passed() || self.proof.reads(read))
    }

    /// Whether the stream has passed its last wait. Streams of a lost GPU do not wait any more. On
    /// any other error the answer is `false`.
    fn has_passed(&self) -> bool {
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

    /// Records an event on a stream, which may never be idle. The event is not counted: there is at
    /// most one, and the driver accepts a few submissions more than the limit.
    fn mark(stream: &Stream) -> Option<Proof> {
        let stream = stream.handle();
        if !matches!(stream.is_capturing(), Ok(false)) {
            return None;
        }
        stream.record().ok().map(Proof::Event)
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
        if self
            .earlier
            .as_ref()
            .is_some_and(|(proof, _)| proof.is_lost())
        {
            self.earlier = None;
            if matches!(self.proof, Proof::Earlier) {
                self.proof = Proof::Idle;
            }
        }
        if self.earlier.is_none() {
            // A stream that has passed this proof has passed all submissions counted so far.
            let proof = match self.proof {
                Proof::Earlier => None,
                // An event costs an allocation. A burst that ends below this needs none: the stream
                // is idle before the next.
                Proof::Idle | Proof::Unmapped { .. }
                    if self.count > limit / 8 * 5 || self.count.saturating_add(n) > limit =>
                {
                    SlotState::mark(stream)
                }
                Proof::Idle | Proof::Unmapped { .. } => None,
                _ => Some(std::mem::replace(&mut self.proof, Proof::Earlier)),
            };
            self.earlier = proof.map(|proof| (proof, self.count));
        }
        if self.count.saturating_add(n) <= limit {
            return Ok(());
        }
        Err(full(stream, operation, self.count, limit))
    }
}

#[cold]
fn full(stream: &Stream, operation: &'static str, count: u32, limit: u32) -> Error {
    let what = format!(
        "{stream:?} waits and holds {count} submissions; more of them would block the caller; \
         repeat the call after the wait has passed"
    );
    Error::new(operation, Kind::QueueFull, what).with_limit(limit, "submissions")
}

#[cfg(test)]
mod tests;
