//! Channels: what two ranks keep in each other's memory for the messages under one tag in one
//! direction.
//!
//! The receiver has a *mailbox*: for each slot two words, `first` and `arrival`, and room for an
//! eager message. The sender has a *return block*: for each slot where the receive is
//! (`place`), whether it is there (`ready`) and that its message was taken (`taken`). Message n
//! uses slot n modulo the depth on both sides, whoever sends it and whoever takes it, so nobody
//! has to match anything while messages move: the n-th send under a tag meets the n-th receive.

use gdsync::Status;
use gdsync::gpu::Word64;

use crate::error::{Error, Kind, Result};
use crate::path::{Keys, List, Nic, Piece, Put, Remote, Rights, Span};
use crate::request::table::RequestKey;
use crate::wire::control::Shape;
use crate::wire::record::{Place, Record};
use crate::wire::word::{self, WordKind};

/// Messages of one channel that may be under way: far less than the half of what the 16 bits of
/// a word can tell apart.
pub(crate) const WINDOW: u64 = 8192;
/// Bytes of a slot's words in the mailbox.
const PAIR: usize = 16;

impl Shape {
    fn slots(&self) -> usize {
        self.depth as usize
    }

    /// The slot of message `number`.
    #[inline]
    pub(crate) fn slot(&self, number: u64) -> usize {
        // The depth is a power of two: no division.
        (number & u64::from(self.depth - 1)) as usize
    }

    /// The message that used the slot before; `None` for the first in it.
    pub(crate) fn previous(&self, number: u64) -> Option<u64> {
        let depth = u64::from(self.depth);
        (number - self.start >= depth).then(|| number - depth)
    }

    /// Bytes of a slot's payload.
    pub(crate) fn room(&self) -> usize {
        (self.eager as usize).next_multiple_of(64)
    }

    fn payload_at(&self) -> usize {
        (self.slots() * PAIR).next_multiple_of(64)
    }

    pub(crate) fn mailbox_len(&self) -> usize {
        self.payload_at() + self.slots() * self.room()
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

    /// Whether the last of the messages before `next` that a window has was not taken.
    fn is_full(&self, next: u64, taken: &[Word64]) -> bool {
        let oldest = next.checked_sub(WINDOW).filter(|n| *n >= self.start);
        oldest.is_some_and(|oldest| !has_come(&taken[self.slot(oldest)], oldest))
    }

    /// What slot words hold before their first message.
    fn before(&self, slot: usize) -> u64 {
        let depth = u64::from(self.depth);
        let ahead = (slot as u64).wrapping_sub(self.start) % depth;
        word::before(self.start.wrapping_add(ahead), depth)
    }
}

/// The words of all slots, set to what they hold before any message.
fn words(block: &Keys, shape: &Shape, at: impl Fn(usize) -> usize) -> Result<Vec<Word64>> {
    let one = |slot: usize| -> Result<Word64> {
        let word = block.region().word64(at(slot))?;
        word.store(shape.before(slot))?;
        Ok(word)
    };
    (0..shape.slots()).map(one).collect()
}

/// Whether `at` has come to message `number`.
pub(crate) fn has_come(at: &Word64, number: u64) -> bool {
    at.load().is_ok_and(|w| word::reached(w, number))
}

fn adopt(remote: &mut Option<Remote>, block: &[Record], len: usize) -> Result<()> {
    let block = Remote::read(block, len)?;
    if remote.is_some_and(|known| known != block) {
        let what = "a channel's memory, announced twice";
        return Err(Error::new("open channel", Kind::Protocol, what));
    }
    *remote = Some(block);
    Ok(())
}

fn span(remote: Option<&Remote>, offset: usize, len: usize) -> Result<Span> {
    match remote {
        Some(remote) => remote.span(offset, len),
        None => Err(Error::new(
            "address channel",
            Kind::Protocol,
            "it is not open",
        )),
    }
}

/// The sending side of a channel.
pub(crate) struct SendChannel {
    /// Number of the next message.
    pub next: u64,
    /// Position of its last use in the order of requests.
    pub used: u64,
    /// That of its first use.
    pub born: u64,
    /// The peer was asked whether it can go.
    pub retiring: bool,
    pub shape: Shape,
    block: Keys,
    /// By slot: the receive is there.
    pub ready: Vec<Word64>,
    /// By slot: the message was taken.
    pub taken: Vec<Word64>,
    /// Stamps that kernels write and the NIC reads; made when first needed.
    stamps: Option<Keys>,
    /// The peer's mailbox.
    remote: Option<Remote>,
}

impl SendChannel {
    pub fn new(nic: &Nic, shape: Shape) -> Result<SendChannel> {
        let block = nic.pinned(shape.block_len(), Rights::Words)?;
        Ok(SendChannel {
            next: shape.start,
            used: u64::MAX,
            born: u64::MAX,
            retiring: false,
            shape,
            ready: words(&block, &shape, |slot| shape.ready_at(slot))?,
            taken: words(&block, &shape, |slot| shape.taken_at(slot))?,
            block,
            stamps: None,
            remote: None,
        })
    }

    /// The return block, as the peer names it.
    pub fn block(&self) -> Vec<Record> {
        vec![self.block.record()]
    }

    /// The peer's mailbox is known now.
    pub fn open(&mut self, mailbox: &[Record]) -> Result<()> {
        adopt(&mut self.remote, mailbox, self.shape.mailbox_len())
    }

    pub fn is_open(&self) -> bool {
        self.remote.is_some() && !self.retiring
    }

    /// Whether every message was taken.
    pub fn is_idle(&self) -> bool {
        let depth = u64::from(self.shape.depth);
        let oldest = self.next.saturating_sub(depth).max(self.shape.start);
        let taken = |n: u64| has_come(&self.taken[self.shape.slot(n)], n);
        self.is_open() && (oldest..self.next).all(taken)
    }

    /// What to wait for until the slot of `number` is free; `None`: it is.
    pub fn room(&self, number: u64) -> Option<(&Word64, u64)> {
        let before = self.shape.previous(number)?;
        let taken = &self.taken[self.shape.slot(number)];
        if crate::mutant::on(crate::mutant::Mutant::EarlySlotReuse) {
            return None;
        }
        (!has_come(taken, before)).then_some((taken, before))
    }

    /// How many of the last messages before `number` the receiver has taken.
    pub fn taken_before(&self, number: u64) -> u32 {
        let oldest = number.saturating_sub(self.shape.depth.into());
        let before = oldest.max(self.shape.start)..number;
        let taken = before.filter(|n| has_come(&self.taken[self.shape.slot(*n)], *n));
        taken.count() as u32
    }

    /// The word of the receive of `number`, if only short messages used its slot for so long that
    /// its 16 bits would soon tell of the future. Who sends a short message makes it tell of that
    /// one: its receive has nothing to say, and the next in the slot is not there before it.
    pub fn stale(&self, number: u64) -> Option<&Word64> {
        // Once in so many messages for each slot: at most twice as old, 16 bits tell it still.
        if number % WINDOW >= u64::from(self.shape.depth) {
            return None;
        }
        let ready = &self.ready[self.shape.slot(number)];
        let age = |w: u64| (number as u16).wrapping_sub(word::parse(w).0);
        let old = ready.load().is_ok_and(|w| u64::from(age(w)) > WINDOW);
        old.then_some(ready)
    }

    /// What a stream does before message `number`: it waits for room, if that is not known to be
    /// there, and, before a `short` one, sees to it that the word of its receive does not grow old.
    #[inline]
    pub(super) fn lead_in<'a, const N: usize>(
        &'a self,
        number: u64,
        short: bool,
        list: &mut List<'a, N>,
    ) -> Result<()> {
        let room = self.room(number);
        if let Some((taken, before)) = room {
            list.wait_for(taken, before, false);
        }
        match self.stale(number).filter(|_| short) {
            Some(ready) if room.is_some() => list.store(ready, word::threshold(number)),
            Some(ready) => ready.store(word::threshold(number))?,
            None => {}
        }
        Ok(())
    }

    /// Whether so many messages are under way that no further one is numbered.
    pub fn is_full(&self) -> bool {
        self.shape.is_full(self.next, &self.taken)
    }

    /// Where an eager message goes.
    pub fn payload(&self, number: u64) -> Result<Span> {
        let slot = self.shape.slot(number);
        let room = self.shape.room();
        span(
            self.remote.as_ref(),
            self.shape.payload_at() + slot * room,
            room,
        )
    }

    /// Where both words of a message go.
    pub fn pair(&self, number: u64) -> Result<Span> {
        span(self.remote.as_ref(), self.shape.slot(number) * PAIR, PAIR)
    }

    /// What the receive of `number` said, if it is there.
    pub fn reply(&self, number: u64) -> Option<(Option<WordKind>, u64)> {
        let w = self.ready[self.shape.slot(number)].load().ok()?;
        if !word::reached(w, number) {
            return None;
        }
        let (low, kind, len) = word::parse(w);
        match kind {
            Some(WordKind::Failed) => Some((kind, len)),
            _ if low == number as u16 => Some((kind, len)),
            // The receive has ended, and another is there in its slot.
            _ => Some((Some(WordKind::Refused), 0)),
        }
    }

    /// The receive of `number` has ended without its message, and the peer's word of it may stand
    /// behind what waits for this message: who waits for that receive goes on.
    pub fn refuse(&self, number: u64) {
        let ready = &self.ready[self.shape.slot(number)];
        if let Ok(now) = ready.load()
            && !word::reached(now, number)
        {
            // The peer's own word, or one of a later receive, may come meanwhile, and stays.
            // Pinned memory, which the CPU reaches: it cannot fail.
            let _ = ready.compare_swap(now, word::word(number, WordKind::Refused, 0));
        }
    }

    /// Where the receive of `number` lies, as the peer wrote it before it said that it is there.
    pub fn place(&self, number: u64) -> Result<Span> {
        let mut bytes = [0; Place::LEN];
        let at = self.shape.slot(number) * Place::ROOM;
        self.block.region().read(at, &mut bytes)?;
        Span::of(&Place::decode(&bytes))
    }

    /// Address of that, for kernels.
    pub fn place_addr(&self, number: u64) -> u64 {
        self.block.region().addr().0 + (self.shape.slot(number) * Place::ROOM) as u64
    }

    /// Makes the memory of the stamps, with the first message that needs it, as the channel's other
    /// memory under the context's lock and before anything is posted: pinned memory belongs to a
    /// driver context of gdsync's, which no waiting stream holds up.
    pub fn make_stamps(&mut self, nic: &Nic) -> Result<()> {
        if self.stamps.is_none() {
            let len = self.shape.slots() * PAIR;
            self.stamps = Some(nic.pinned(len, Rights::Source)?);
        }
        Ok(())
    }

    /// The stamp of `number`, if there are stamps.
    pub fn stamp(&self, number: u64) -> Option<Piece<'_>> {
        let stamps = self.stamps.as_ref()?;
        Some(stamps.piece(self.shape.slot(number) * PAIR, PAIR))
    }

    /// Its address, for kernels.
    pub fn stamp_addr(&self, number: u64) -> u64 {
        let at = (self.shape.slot(number) * PAIR) as u64;
        let stamps = self.stamps.as_ref();
        stamps.map_or(0, |stamps| stamps.region().addr().0 + at)
    }

    /// Lets every stream pass that waits here, with `status`.
    pub fn release(&self, status: Status) {
        let failed = word::word(self.next, WordKind::Failed, u64::from(status.0));
        for word in self.ready.iter().chain(&self.taken) {
            // Pinned memory, which the CPU reaches: it cannot fail.
            let _ = word.store(failed);
        }
    }
}

/// Messages that were taken by one poster and of which the sender is not told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub lane: u8,
    pub stream: Option<u64>,
    pub from: u64,
    pub to: u64,
}

/// The receiving side of a channel.
pub(crate) struct RecvChannel {
    /// Number of the next message that a receive is posted for.
    pub next: u64,
    pub shape: Shape,
    mailbox: Keys,
    /// By slot: the message is there, or announced.
    first: Vec<Word64>,
    /// By slot: the message is there.
    arrival: Vec<Word64>,
    /// What is copied into the sender's return block.
    outbox: Keys,
    /// By slot: the message was taken.
    pub taken: Vec<Word64>,
    /// By slot: the newest receive.
    pub receives: Vec<Option<RequestKey>>,
    /// By slot: what last told the sender of a receive there, and by which lane. Another lane tells
    /// of the next only when that is done: words must not overtake each other.
    pub told: Vec<Option<(u8, Put)>>,
    pub run: Option<Run>,
    /// Runs that the library tells, as their poster went elsewhere.
    pub stale: Vec<Run>,
    /// The peer's return block.
    remote: Option<Remote>,
}

impl RecvChannel {
    pub fn new(nic: &Nic, shape: Shape) -> Result<RecvChannel> {
        let mailbox = nic.pinned(shape.mailbox_len(), Rights::Words)?;
        let outbox = nic.pinned(shape.slots() * 8, Rights::Source)?;
        Ok(RecvChannel {
            next: shape.start,
            shape,
            first: words(&mailbox, &shape, |slot| slot * PAIR)?,
            arrival: words(&mailbox, &shape, |slot| slot * PAIR + 8)?,
            taken: words(&outbox, &shape, |slot| slot * 8)?,
            mailbox,
            outbox,
            receives: vec![None; shape.slots()],
            told: vec![None; shape.slots()],
            run: None,
            stale: Vec::new(),
            remote: None,
        })
    }

    /// The mailbox, as the peer names it.
    pub fn block(&self) -> Vec<Record> {
        vec![self.mailbox.record()]
    }

    /// The peer's return block is known now.
    pub fn open(&mut self, block: &[Record]) -> Result<()> {
        adopt(&mut self.remote, block, self.shape.block_len())
    }

    pub fn is_open(&self) -> bool {
        self.remote.is_some()
    }

    /// Whether a receive was prepared here.
    pub fn is_used(&self) -> bool {
        self.next != self.shape.start
    }

    /// The word that tells a receive that its message is there: a small one also ends when a
    /// message is announced that it has no room for.
    pub fn word(&self, number: u64, large: bool) -> &Word64 {
        match large {
            true => &self.arrival[self.shape.slot(number)],
            false => &self.first[self.shape.slot(number)],
        }
    }

    /// Where an eager message lies.
    pub fn payload_at(&self, number: u64) -> usize {
        self.shape.payload_at() + self.shape.slot(number) * self.shape.room()
    }

    /// Address of that.
    pub fn payload_addr(&self, number: u64) -> u64 {
        self.mailbox.region().addr().0 + self.payload_at(number) as u64
    }

    /// Copies an eager message out.
    pub fn read_payload(&self, number: u64, offset: usize, into: &mut [u8]) -> Result<()> {
        let at = self.payload_at(number) + offset;
        Ok(self.mailbox.region().read(at, into)?)
    }

    /// The word that says that message `number` was taken.
    pub fn taken(&self, number: u64) -> &Word64 {
        &self.taken[self.shape.slot(number)]
    }

    /// Whether the message before in the slot of `number` was taken.
    pub fn is_free(&self, number: u64) -> bool {
        let before = self.shape.previous(number);
        before.is_none_or(|before| has_come(self.taken(number), before))
    }

    /// Whether so many messages are under way that no further one is numbered.
    pub fn is_full(&self) -> bool {
        self.shape.is_full(self.next, &self.taken)
    }

    /// Where the sender learns where the receive of `number` lies.
    pub fn place(&self, number: u64) -> Result<Span> {
        span(
            self.remote.as_ref(),
            self.shape.slot(number) * Place::ROOM,
            Place::LEN,
        )
    }

    /// Where it learns that it is there.
    pub fn ready(&self, number: u64) -> Result<Span> {
        span(
            self.remote.as_ref(),
            self.shape.ready_at(self.shape.slot(number)),
            8,
        )
    }

    /// What to put where, so that the sender learns that these messages were taken: one piece, or
    /// two at the ring's end.
    pub fn credit(&self, run: &Run) -> Result<[Option<(Piece<'_>, Span)>; 2]> {
        let count = (run.to - run.from) as usize;
        let slot = self.shape.slot(run.from);
        let head = count.min(self.shape.slots() - slot);
        let piece = |slot: usize, n: usize| -> Result<Option<(Piece<'_>, Span)>> {
            if n == 0 {
                return Ok(None);
            }
            let to = span(self.remote.as_ref(), self.shape.taken_at(slot), n * 8)?;
            Ok(Some((self.outbox.piece(slot * 8, n * 8), to)))
        };
        Ok([piece(slot, head)?, piece(0, count - head)?])
    }

    /// Whether every message up to `next` was taken, its sender told, and no receive waits for
    /// another.
    pub fn is_idle(&self, next: u64) -> bool {
        let oldest = next
            .saturating_sub(self.shape.depth.into())
            .max(self.shape.start);
        let told = self.run.is_none() && self.stale.is_empty();
        self.next == next && told && (oldest..next).all(|n| has_come(self.taken(n), n))
    }

    /// Whether the next message is in the mailbox.
    pub fn has_mail(&self) -> bool {
        let there = |w: u64| {
            let (low, kind, _) = word::parse(w);
            low == self.next as u16 && kind == Some(WordKind::Eager)
        };
        self.first[self.shape.slot(self.next)]
            .load()
            .is_ok_and(there)
    }

    /// Lets every stream pass that waits for a message, with `status`; for the end.
    pub fn release(&self, status: Status) {
        let failed = word::word(self.next, WordKind::Failed, u64::from(status.0));
        // A message that has come and was not taken is lost: its receive ends with `status`. Over
        // the word of a message without a receive the store does no harm: no stream still waits in
        // its slot, since the message before was taken.
        for word in self.first.iter().chain(&self.arrival) {
            // Pinned memory, which the CPU reaches: it cannot fail.
            let _ = word.store(failed);
        }
    }

    /// Whether all messages of a run were taken.
    pub fn is_taken(&self, run: &Run) -> bool {
        (run.from..run.to).all(|n| has_come(self.taken(n), n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusing_a_message_keeps_the_ready_word_of_the_next_receive_in_its_slot() {
        let gpu = gdsync::Gpu::soft().unwrap();
        let device = gdsync::rdma::Device::emulated(&gpu).unwrap();
        let shape = Shape {
            depth: 4,
            eager: 64,
            start: 0,
        };
        let channel = SendChannel::new(&Nic::of(&device), shape).unwrap();
        let later = word::word(4, WordKind::Ready, 100);
        channel.ready[0].store(later).unwrap();
        for number in [0, 1] {
            channel.refuse(number);
        }
        assert_eq!(channel.ready[0].load().unwrap(), later);
        assert_eq!(channel.reply(1), Some((Some(WordKind::Refused), 0)));
    }
}
