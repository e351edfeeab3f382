//! Channels: the memory that two ranks share for the messages under one tag in one direction.
//!
//! The receiver has a *mailbox*: for each slot two words, `first` and `arrival`. For eager messages
//! it also has *rooms*, one for each slot. It makes them when a receive of at most the eager limit
//! is prepared, or when the sender asks, before its first eager message. For eager messages from
//! stream to stream by `Path::Ipc` it has *flagged rooms* in device memory, which the first such
//! receive of a stream makes; the first large one also makes *long rooms*, for messages above the
//! eager limit. The sender has a *return block*: for each slot the address of the
//! receive (`place`), whether it is posted (`ready`) and whether its message was taken (`taken`). A
//! sender to flagged rooms also has a *device block* for its kernels: for each slot the place of the
//! receive, in lines with flags, which kernels of the receiver store, and the credit that its own
//! kernels have read last. The credits (the number of the message that was taken last in a slot) are
//! behind the flagged rooms, in memory of the receiver. Message n uses slot n modulo the depth on both
//! sides, for every poster and every taker. So messages need no matching while they move: the n-th
//! send under a tag matches the n-th receive.

mod credits;
mod numbers;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use gdsync::Status;
use gdsync::gpu::Word64;

use crate::error::{Error, Kind, Result};
use crate::path::{Keys, Path, Remote, Span};
use crate::wire::control::Shape;
use crate::wire::flag;
use crate::wire::record::{Place, Record};
use crate::wire::word::{self, WordKind};

use credits::Credits;
pub(crate) use credits::Run;
pub(crate) use numbers::{Numbers, WINDOW};
use receiving::Receiving;
pub(crate) use sending::LeadIn;
use sending::Sending;

/// Bytes of a slot's words in the mailbox.
const PAIR: usize = 16;
/// Bytes of payload that a flagged room has at least: its lines also show the blocks that write a message
/// elsewhere.
const LEAST_ROOM: usize = 64;
/// Bytes of a place in the device block. A slot has two: of its receive, and for the blocks of a kernel.
const PLACE_ROOM: usize = flag::PLACE.next_multiple_of(64);
/// Credits that a kernel reads at once, from an address that is a multiple of their bytes
/// (`device/mp_flag.hpp`).
const CREDITS: usize = 16;

impl Shape {
    fn slots(&self) -> usize {
        self.depth as usize
    }

    /// Bytes of a slot's room.
    pub(crate) fn room(&self) -> usize {
        (self.eager as usize).next_multiple_of(64)
    }

    pub(crate) fn rooms_len(&self) -> usize {
        self.slots() * self.room()
    }

    /// Bytes of payload in a slot's flagged room.
    fn flagged_bytes(&self) -> usize {
        self.room().max(LEAST_ROOM)
    }

    /// Bytes of a credit for each slot.
    fn credits_len(&self) -> usize {
        8 * self.slots().next_multiple_of(CREDITS)
    }

    /// Where the memory of the flagged rooms has the credits.
    fn credits_at(&self) -> usize {
        (self.slots() * flag::size(self.flagged_bytes())).next_multiple_of(8 * CREDITS)
    }

    /// Where the memory of the flagged rooms has the word that is set when the sender is given up.
    fn sender_lost_at(&self) -> usize {
        self.credits_at() + self.credits_len()
    }

    fn flagged_len(&self) -> usize {
        self.sender_lost_at() + 8
    }

    /// Where the device block has the place of a slot, behind the credits that the kernels of this rank keep.
    fn place_at(&self, slot: usize) -> usize {
        self.credits_len() + slot * 2 * PLACE_ROOM
    }

    /// Where the device block has the word that has the status with which the peer was given up, or 0.
    fn lost_at(&self) -> usize {
        self.place_at(self.slots())
    }

    fn device_block_len(&self) -> usize {
        self.lost_at() + 8
    }

    pub(crate) fn mailbox_len(&self) -> usize {
        self.slots() * PAIR
    }

    fn ready_at(&self, slot: usize) -> usize {
        self.slots() * Place::ROOM + slot * 8
    }

    fn taken_at(&self, slot: usize) -> usize {
        self.ready_at(self.slots()) + slot * 8
    }

    fn block_len(&self) -> usize {
        self.taken_at(self.slots())
    }

    /// The words of all slots, set to their values before any message.
    fn words(&self, block: &Keys, at: impl Fn(usize) -> usize) -> Result<Vec<Word64>> {
        let numbers = Numbers::new(self);
        let one = |slot: usize| -> Result<Word64> {
            let word = block.region().word64(at(slot))?;
            word.store(numbers.before(slot))?;
            Ok(word)
        };
        (0..self.slots()).map(one).collect()
    }
}

/// One side of a channel; `S` has the fields of that side.
pub(crate) struct Channel<S> {
    /// The path between the two sides.
    pub path: Path,
    pub numbers: Numbers,
    pub shape: Shape,
    /// Memory of this rank that the peer writes to.
    memory: Keys,
    /// Memory of the peer, once the peer has named it.
    remote: Option<Remote>,
    /// By slot: the message was taken.
    taken: Vec<Word64>,
    pub side: S,
}

/// The sending side.
pub(crate) type SendChannel = Channel<Sending>;
/// The receiving side.
pub(crate) type RecvChannel = Channel<Receiving>;

impl<S> Channel<S> {
    fn of(path: Path, shape: Shape, memory: Keys, taken: Vec<Word64>, side: S) -> Channel<S> {
        Channel {
            path,
            numbers: Numbers::new(&shape),
            shape,
            memory,
            remote: None,
            taken,
            side,
        }
    }

    /// The record of the memory that the peer writes to.
    pub fn block(&self) -> Result<Vec<Record>> {
        Ok(vec![self.memory.record(self.path)?])
    }

    /// Credits before the first message: older than those of all messages in flight.
    fn no_credits(&self) -> Vec<u8> {
        let old = word::credit(self.numbers.next().wrapping_sub(2 * WINDOW));
        old.to_le_bytes().repeat(self.shape.credits_len() / 8)
    }

    fn adopt(&mut self, block: &[Record], len: usize) -> Result<()> {
        adopt(&mut self.remote, Remote::read(self.path, block, len)?)
    }

    #[inline]
    fn span(&self, offset: usize, len: usize) -> Result<Span> {
        span(&self.remote, offset, len)
    }

    /// The word that stores that message `number` was taken.
    #[inline]
    pub fn taken(&self, number: u64) -> &Word64 {
        &self.taken[self.numbers.slot(number)]
    }

    /// Whether message `number` was taken.
    #[inline]
    pub fn is_taken(&self, number: u64) -> bool {
        has_come(self.taken(number), number)
    }

    /// Whether the window is full, so that no further message gets a number.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.numbers.is_full(|number| self.is_taken(number))
    }
}

/// Sets memory that the peer has named.
fn adopt<T: Copy + PartialEq>(known: &mut Option<T>, memory: T) -> Result<()> {
    if known.is_some_and(|known| known != memory) {
        let what = "the peer announced one channel twice, with different memory";
        return Err(Error::new("open channel", Kind::Protocol, what));
    }
    *known = Some(memory);
    Ok(())
}

/// Bytes to which kernels access lines, and credits.
const ALIGN: [u64; 2] = [16, 8 * CREDITS as u64];

/// Checks that device memory of the peer is aligned at an offset.
fn check_aligned(memory: &Remote, offset: u64, align: u64, name: &str) -> Result<()> {
    if memory.addr().wrapping_add(offset).is_multiple_of(align) {
        return Ok(());
    }
    let what =
        format!("the peer announced {name} at an address that is not a multiple of {align} bytes");
    Err(Error::new("open channel", Kind::Protocol, what))
}

#[inline]
fn span(memory: &Option<Remote>, offset: usize, len: usize) -> Result<Span> {
    memory.as_ref().ok_or_else(not_open)?.span(offset, len)
}

#[cold]
fn not_open() -> Error {
    Error::new("prepare request", Kind::Protocol, "the channel is not open")
}

/// Whether the word `at` has reached message `number`.
#[inline]
pub(crate) fn has_come(at: &Word64, number: u64) -> bool {
    at.load().is_ok_and(|w| word::reached(w, number))
}

/// The value of a word that message `number` may get, if no message of its slot got it for so long that its
/// 16 bits would soon compare as a later number. The check is made once in `WINDOW` messages for each slot:
/// the word is then at most twice as old, which 16 bits still represent.
fn stale_value(at: &Word64, number: u64, depth: u32) -> Option<u64> {
    if number % WINDOW >= u64::from(depth) {
        return None;
    }
    let now = at.load().ok()?;
    let age = (number as u16).wrapping_sub(word::parse(now).0);
    (u64::from(age) > WINDOW).then_some(now)
}

/// Refreshes a word that message `number` may get, if it is stale.
fn refresh(at: &Word64, number: u64, depth: u32) {
    if let Some(now) = stale_value(at, number, depth) {
        // A word that the peer stores meanwhile is not overwritten. All messages before the window
        // are taken. Pinned memory, which the CPU reaches: it cannot fail.
        let _ = at.compare_swap(now, word::threshold(number.wrapping_sub(WINDOW)));
    }
}

/// Releases every stream that waits for one of `words`.
fn store_failure<'a>(words: impl Iterator<Item = &'a Word64>, next: u64, status: Status) {
    let failed = word::word(next, WordKind::Failed, status.0.into());
    for word in words {
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = word.store(failed);
    }
}
