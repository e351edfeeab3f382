//! The ring between the threads that enqueue on a stream and the engine: single producer, single
//! consumer, bounded, without allocation after its creation.
//!
//! The ring transfers *submissions* of one or more items, all or none. Shared memory contains:
//!
//! - `slots`: the items, at their sequence number modulo the capacity;
//! - `ends`: for each submission, the sequence number one past its last item;
//! - two atomic words. `tail` counts published items; only the producer stores it.
//!   `retired` counts finished submissions; only the consumer stores it.
//!
//! The producer writes slots and the submission's end, then publishes them by one release store of
//! `tail`; the consumer's acquire load of `tail` pairs with it. The consumer moves items out. When
//! a submission's work is *done* (not when its items were taken), it returns the slots by a release
//! store of `retired`. The producer's acquire load pairs with that store, so a slot is rewritten
//! only after the consumer has read it. The producer finds the number of returned slots in `ends`,
//! which it wrote itself. The entry of the newest retired submission is still there, because at
//! most `bound` submissions are younger.
//!
//! The words and cells are a type parameter ([`Family`]), so that the same source runs under
//! a model checker.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gds_step::Word;

/// A slot that one side writes and the other reads, never both at once.
pub trait Slot<T> {
    /// A slot without a value.
    fn empty() -> Self;

    /// Writes `value` without dropping the old content.
    ///
    /// # Safety
    /// No other thread reads or writes the slot during the call.
    unsafe fn put(&self, value: T);

    /// Copies the value out bit by bit.
    ///
    /// # Safety
    /// The slot holds a value, no thread writes it during the call, and unless `T` is `Copy` the
    /// value is taken only once.
    unsafe fn take(&self) -> T;
}

/// The types of the words and slots of a ring.
pub trait Family: 'static {
    /// The type of `tail` and `retired`.
    type Word: Word<Value = u64>;
    /// The type of slots.
    type Slot<T>: Slot<T>;

    /// A word that holds `value`.
    fn word(value: u64) -> Self::Word;
}

/// The native words and slots.
#[derive(Debug)]
pub struct Native;

/// A slot in plain memory.
#[derive(Debug)]
pub struct NativeSlot<T>(UnsafeCell<MaybeUninit<T>>);

impl<T> Slot<T> for NativeSlot<T> {
    fn empty() -> Self {
        NativeSlot(UnsafeCell::new(MaybeUninit::uninit()))
    }

    #[inline]
    unsafe fn put(&self, value: T) {
        // SAFETY: the caller has exclusive access to the slot.
        unsafe { (*self.0.get()).write(value) };
    }

    #[inline]
    unsafe fn take(&self) -> T {
        // SAFETY: the caller ensures that the slot holds a value and that no thread writes it.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}

impl Family for Native {
    type Word = AtomicU64;
    type Slot<T> = NativeSlot<T>;

    fn word(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }
}

/// Keeps the fields that one side writes out of the cache lines of the other side.
#[repr(align(64))]
pub(crate) struct Line<W>(pub W);

/// The state that producer and consumer share.
pub struct Ring<T, F: Family = Native> {
    /// The number of items published. Stored (release) by the producer after their slots and ends,
    /// loaded (acquire) by the consumer before it reads those.
    tail: Line<F::Word>,
    /// The number of submissions finished. Stored (release) by the consumer after their slots were
    /// read and their work is visible. Loaded (acquire) by the producer before it reuses slots, and
    /// by threads that test for completion.
    retired: Line<F::Word>,
    slots: Box<[F::Slot<T>]>,
    ends: Box<[F::Slot<u64>]>,
    bound: u64,
}

// SAFETY: `tail` and `retired` transfer the ownership of slots, as the text at the top of the file
// says, so a `T` moves from the producer's thread to the consumer's and is never shared.
unsafe impl<T: Send, F: Family> Send for Ring<T, F> where F::Word: Send {}
// SAFETY: as above; through a shared reference only the words can be read.
unsafe impl<T: Send, F: Family> Sync for Ring<T, F> where F::Word: Sync {}

impl<T, F: Family> Ring<T, F> {
    /// A ring for at most `bound` unfinished submissions with at most `capacity` items in
    /// all (rounded up to a power of two; both at least 1).
    pub fn channel(bound: usize, capacity: usize) -> (Producer<T, F>, Consumer<T, F>) {
        let bound = bound.max(1);
        let capacity = capacity.max(1).next_power_of_two();
        let ring = Arc::new(Ring {
            tail: Line(F::word(0)),
            retired: Line(F::word(0)),
            slots: (0..capacity).map(|_| F::Slot::empty()).collect(),
            ends: (0..bound.next_power_of_two())
                .map(|_| F::Slot::empty())
                .collect(),
            bound: bound as u64,
        });
        let producer = Producer {
            ring: Arc::clone(&ring),
            tail: 0,
            submitted: 0,
            retired: 0,
            freed: 0,
        };
        let consumer = Consumer {
            ring,
            head: 0,
            tail: 0,
            end: 0,
            finished: 0,
            retired: 0,
        };
        (producer, consumer)
    }

    /// The number of submissions finished. Their writes are visible to the caller.
    #[inline]
    pub fn retired(&self) -> u64 {
        self.retired.0.load(Ordering::Acquire)
    }

    fn slot(&self, number: u64) -> &F::Slot<T> {
        &self.slots[number as usize & (self.slots.len() - 1)]
    }

    fn end(&self, submission: u64) -> &F::Slot<u64> {
        &self.ends[submission as usize & (self.ends.len() - 1)]
    }
}

/// The producer.
pub struct Producer<T, F: Family = Native> {
    ring: Arc<Ring<T, F>>,
    /// Items published; the ring's `tail`.
    tail: u64,
    /// Submissions published.
    submitted: u64,
    /// The last value read from the ring's `retired`.
    retired: u64,
    /// The number of items whose slots were returned with those submissions.
    freed: u64,
}

impl<T, F: Family> Producer<T, F> {
    /// The shared state.
    pub fn ring(&self) -> &Arc<Ring<T, F>> {
        &self.ring
    }

    /// The number of submissions published.
    #[inline]
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Starts a submission of at most `items` items; returns `None` if the ring has no room now.
    #[inline]
    pub fn begin(&mut self, items: usize) -> Option<Submission<'_, T, F>> {
        if !self.room(items) {
            let retired = self.ring.retired();
            if retired == self.retired {
                return None;
            }
            // SAFETY: the entry was written by this producer when it published the submission,
            // and is overwritten by this producer alone, `bound` or more submissions later.
            self.freed = unsafe { self.ring.end(retired - 1).take() };
            self.retired = retired;
            if !self.room(items) {
                return None;
            }
        }
        Some(Submission {
            written: 0,
            limit: items as u64,
            producer: self,
        })
    }

    #[inline]
    fn room(&self, items: usize) -> bool {
        self.submitted - self.retired < self.ring.bound
            && self.tail + items as u64 - self.freed <= self.ring.slots.len() as u64
    }
}

/// A submission that is being written. Dropping it without [`publish`](Submission::publish)
/// discards it.
pub struct Submission<'a, T, F: Family = Native> {
    producer: &'a mut Producer<T, F>,
    written: u64,
    limit: u64,
}

impl<T, F: Family> Submission<'_, T, F> {
    /// The number that [`publish`](Submission::publish) returns.
    pub fn number(&self) -> u64 {
        self.producer.submitted + 1
    }

    /// Adds an item.
    ///
    /// # Panics
    /// There are more items than `begin` was called for: an error in this crate.
    #[inline]
    pub fn push(&mut self, item: T) {
        assert!(self.written < self.limit, "submission longer than begun");
        let slot = self.producer.ring.slot(self.producer.tail + self.written);
        // SAFETY: `begin` found the slot retired, and it is not published yet.
        unsafe { slot.put(item) };
        self.written += 1;
    }

    /// Publishes the items and returns the number of submissions so far, including this one. The
    /// submission is done when [`Ring::retired`] reaches this number. An empty submission is not
    /// counted.
    #[inline]
    pub fn publish(mut self) -> u64 {
        let written = std::mem::take(&mut self.written);
        let p = &mut *self.producer;
        if written > 0 {
            p.tail += written;
            // SAFETY: fewer than `bound` submissions are unfinished, so the consumer is past
            // the one whose entry this was.
            unsafe { p.ring.end(p.submitted).put(p.tail) };
            p.submitted += 1;
            p.ring.tail.0.store(p.tail, Ordering::Release);
        }
        p.submitted
    }
}

impl<T, F: Family> Drop for Submission<'_, T, F> {
    fn drop(&mut self) {
        for i in 0..self.written {
            // SAFETY: `push` wrote the slot, which is not published.
            drop(unsafe { self.producer.ring.slot(self.producer.tail + i).take() });
        }
    }
}

/// The consumer.
pub struct Consumer<T, F: Family = Native> {
    ring: Arc<Ring<T, F>>,
    /// The number of items taken.
    head: u64,
    /// The last value read from the ring's `tail`.
    tail: u64,
    /// One past the last item of the current submission.
    end: u64,
    /// The number of submissions of which every item was taken and finished.
    finished: u64,
    /// The ring's `retired`; behind `finished` until [`retire`](Consumer::retire).
    retired: u64,
}

impl<T, F: Family> Consumer<T, F> {
    /// Takes the next item, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            self.tail = self.ring.tail.0.load(Ordering::Acquire);
            if self.head == self.tail {
                return None;
            }
        }
        if self.head == self.end {
            // SAFETY: the first item of the submission is published, hence its end too.
            self.end = unsafe { self.ring.end(self.finished).take() };
        }
        // SAFETY: published, and `head` passes each item once.
        let item = unsafe { self.ring.slot(self.head).take() };
        self.head += 1;
        Some(item)
    }

    /// Marks the items taken so far as finished. Must be called before the first item of the next
    /// submission is taken. Returns whether a submission ended here.
    #[inline]
    pub fn finish(&mut self) -> bool {
        let ended = self.head == self.end;
        if ended {
            self.finished += 1;
        }
        ended
    }

    /// Returns the slots of finished submissions, and publishes that their writes are visible.
    #[inline]
    pub fn retire(&mut self) {
        if self.retired != self.finished {
            self.retired = self.finished;
            self.ring.retired.0.store(self.retired, Ordering::Release);
        }
    }

    /// Whether finished submissions are not retired yet.
    #[inline]
    pub fn has_unretired(&self) -> bool {
        self.retired != self.finished
    }

    /// Whether all published items were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail && self.ring.tail.0.load(Ordering::Acquire) == self.tail
    }
}

impl<T, F: Family> Drop for Consumer<T, F> {
    /// Drops items that were published and never ran. Items published later stay in the ring.
    fn drop(&mut self) {
        while self.pop().is_some() {
            self.finish();
        }
    }
}

impl<T, F: Family> std::fmt::Debug for Ring<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("bound", &self.bound)
            .field("retired", &self.retired())
            .finish_non_exhaustive()
    }
}
