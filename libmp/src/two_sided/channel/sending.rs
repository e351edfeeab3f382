//! The sending side of a channel: its return block, and the destinations of messages.

use std::iter;

use gdsync::Status;
use gdsync::gpu::Word64;

use super::{
    Channel, DIRECT_LEN, PAIR, SendChannel, WINDOW, adopt, check_aligned, span, store_failure,
};
use crate::error::Result;
use crate::kernels::{Credit, Direct};
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Exported, Keys, Lane, List, Paths, Piece, Put, Remote, Rights, Span};
use crate::request::entry::{Late, Outgoing};
use crate::wire::control::{Flags, Shape};
use crate::wire::flag;
use crate::wire::record::{Place, Record};
use crate::wire::word::{self, WordKind};

/// Messages after which every line of a flagged room is written again, and after which a room that was
/// not is used no more: a line's flag has 32 bits of the number.
const REWRITE: u64 = 1 << 30;
const STALE: u64 = 1 << 31;

/// The fields of a sender. The channel's memory is the return block.
pub(crate) struct Sending {
    /// Position of the channel's last use in the order of requests.
    pub last_use: u64,
    /// Position of the channel's first use in the order of requests.
    pub first_use: u64,
    /// The peer was asked whether the channel can be retired.
    pub retiring: bool,
    /// The peer was asked for rooms.
    pub asked: bool,
    /// The peer's rooms for eager messages.
    rooms: Option<Remote>,
    /// The peer's flagged rooms, and where they are.
    flagged: Option<(Remote, Flags)>,
    /// By slot: the message that last wrote every line of its flagged room; empty before the first.
    whole: Vec<u64>,
    /// The device block.
    device_block: Option<Exported>,
    /// By slot: the last message to its flagged room; empty before the first.
    sent: Vec<Option<Sent>>,
    /// By slot: the receive is posted.
    ready: Vec<Word64>,
    /// Stamps that kernels write and the NIC reads; allocated on first use.
    stamps: Option<Keys>,
    /// The late fields of sends that have ended, empty, with their memory.
    #[expect(clippy::vec_box, reason = "the boxes are memory that is kept as well")]
    lates: Vec<Box<Late>>,
}

/// What a stream does before a message: waits until words reach values, then a store of a value.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeadIn<'a> {
    pub waits: [Option<(&'a Word64, u64)>; 2],
    pub store: Option<(&'a Word64, u64)>,
}

impl<'a> LeadIn<'a> {
    pub fn add_to<const N: usize>(self, list: &mut List<'a, N>) {
        for (word, value) in self.waits.into_iter().flatten() {
            list.wait(word, value, false);
        }
        if let Some((word, value)) = self.store {
            list.store(word, value);
        }
    }
}

/// A message to a flagged room. Its kernel stores its words without an order to the credit for it, so
/// the next words in its slot are stored behind it: by the same stream, or once `end` has reached
/// `serial`.
struct Sent {
    copied: Copied,
    /// One of an earlier message of the slot that was in flight when this one was prepared first.
    before: Option<Copied>,
}

/// A message, the stream that copies it, and the word that is set to a value behind it.
#[derive(Clone)]
struct Copied {
    number: u64,
    stream: u64,
    end: Word64,
    serial: u64,
}

impl Copied {
    fn is_done(&self) -> bool {
        // Pinned memory, which the CPU reaches: it cannot fail. Acquire: pairs with the release of
        // the kernel behind the words.
        self.end.load().unwrap_or(0) >= self.serial
    }
}

impl SendChannel {
    pub fn new(paths: &Paths, peer: u32, shape: Shape) -> Result<SendChannel> {
        let block = paths.pinned(shape.block_len(), Rights::Words)?;
        let side = Sending {
            last_use: u64::MAX,
            first_use: u64::MAX,
            retiring: false,
            asked: false,
            rooms: None,
            flagged: None,
            whole: Vec::new(),
            device_block: None,
            sent: Vec::new(),
            ready: shape.words(&block, |slot| shape.ready_at(slot))?,
            stamps: None,
            lates: Vec::new(),
        };
        let taken = shape.words(&block, |slot| shape.taken_at(slot))?;
        Ok(Channel::of(paths.to(peer), shape, block, taken, side))
    }

    /// The late fields of a send.
    pub fn late<'s>(&mut self, send: &'s mut Outgoing) -> &'s mut Late {
        let lates = &mut self.side.lates;
        send.late
            .get_or_insert_with(|| lates.pop().unwrap_or_default())
    }

    /// Keeps the memory of late fields for a later send.
    pub fn keep_late(&mut self, mut late: Box<Late>) {
        let mut behind = std::mem::take(&mut late.behind);
        behind.clear();
        *late = Late {
            behind,
            ..Late::default()
        };
        if self.side.lates.len() < WINDOW as usize {
            self.side.lates.push(late);
        }
    }

    /// Sets the peer's mailbox, and its rooms if it has any.
    pub fn open(&mut self, mailbox: &[Record], rooms: &[Record]) -> Result<()> {
        self.adopt(mailbox, self.shape.mailbox_len())?;
        if rooms.is_empty() {
            return Ok(());
        }
        let rooms = Remote::read(self.path, rooms, self.shape.rooms_len())?;
        adopt(&mut self.side.rooms, rooms)
    }

    /// Sets the peer's flagged rooms, if it has any.
    pub fn open_flagged(&mut self, memory: &[Record], flags: Flags) -> Result<()> {
        if memory.is_empty() {
            return Ok(());
        }
        let memory = Remote::any(self.path, memory)?;
        // All rooms are in the memory.
        memory.span(flags.offset as usize, self.shape.flagged_len())?;
        check_aligned(&memory, flags.offset, "flagged rooms")?;
        adopt(&mut self.side.flagged, (memory, flags))
    }

    /// Makes the device block, if the peer has flagged rooms. Returns the record of its memory and its
    /// offset if it made it. Without it, kernels poll host memory.
    pub fn make_device_block(&mut self, paths: &Paths) -> Option<(Record, u64)> {
        if self.side.flagged.is_none() || self.side.device_block.is_some() {
            return None;
        }
        let made = paths.copier().exported(self.shape.device_block_len());
        let clear = |block: &Exported| block.write(0, &self.cleared(block.len()));
        match made.and_then(|block| clear(&block).map(|()| block)) {
            Ok(block) => {
                let named = (block.record(), block.offset() as u64);
                self.side.device_block = Some(block);
                Some(named)
            }
            Err(e) => {
                tracing::debug!(target: "mp", "kernels poll words in host memory: {e}");
                None
            }
        }
    }

    /// The bytes of a device block before its first message.
    fn cleared(&self, len: usize) -> Vec<u8> {
        let slots = self.shape.slots();
        // No message in flight is taken: the credits are older than all of them.
        let old = self.numbers.next().wrapping_sub(2 * WINDOW).to_le_bytes();
        let mut bytes = old.repeat(slots);
        for slot in 0..slots {
            let len = self.shape.place_at(slot + 1) - self.shape.place_at(slot);
            bytes.extend(flag::no_place(slot, len));
        }
        bytes.resize(len, 0);
        bytes
    }

    /// What the kernel of message `number`, posted by `stream`, waits for.
    fn credit(&self, number: u64, stream: u64) -> Credit {
        let slot = self.numbers.slot(number);
        let mut credit = Credit::default();
        if let Some((taken, before)) = self.blocked_by(number) {
            let block = self.side.device_block.as_ref();
            credit.credit = block.map_or(0, |block| block.addr(8 * slot));
            (credit.taken, credit.before) = (taken.addr().0, before);
        }
        if let Some((end, serial)) = self.sent_before(number, Some(stream)) {
            (credit.after, credit.last) = (end.addr().0, serial);
        }
        credit
    }

    /// The word and its value behind which the words of message `number` are stored, if the last
    /// message to the flagged room of its slot is of another poster, and in flight. `stream`: the
    /// poster, or `None` for the CPU.
    pub fn sent_before(&self, number: u64, stream: Option<u64>) -> Option<(&Word64, u64)> {
        let before = self.copied_before(number)?;
        (Some(before.stream) != stream).then_some((&before.end, before.serial))
    }

    /// The message to the flagged room of the slot before message `number`, if it is in flight.
    fn copied_before(&self, number: u64) -> Option<&Copied> {
        let sent = self.side.sent.get(self.numbers.slot(number))?.as_ref()?;
        // The message itself may be prepared again, or behind a later one.
        let mut all = iter::once(&sent.copied).chain(&sent.before);
        all.find(|copied| copied.number < number && !copied.is_done())
    }

    /// The flagged room of message `number`, and the lines of its payload that are written again, or 0.
    /// `None`: the peer has none for it.
    fn flagged_room(&self, number: u64) -> Result<Option<(Span, usize)>> {
        let Some((memory, flags)) = &self.side.flagged else {
            return Ok(None);
        };
        let (slot, room) = (self.numbers.slot(number), self.shape.flagged_room());
        let whole = self.side.whole.get(slot).copied().unwrap_or(flags.from);
        if number < flags.from || number - whole >= STALE {
            return Ok(None);
        }
        // A later message of the slot was prepared before, and is ordered by the credit alone: the
        // receiver returns that of a message in host memory behind both of its words.
        let sent = self.side.sent.get(slot).and_then(Option::as_ref);
        if sent.is_some_and(|sent| sent.copied.number > number) {
            return Ok(None);
        }
        let at = match on(Mutant::WrongRoom) {
            true => (slot + 1) % self.shape.slots(),
            false => slot,
        };
        let lines = match number - whole >= REWRITE {
            true => flag::lines(self.shape.room().max(DIRECT_LEN)),
            false => 0,
        };
        Ok(Some((
            memory.span(flags.offset as usize + at * room, room)?,
            lines,
        )))
    }

    /// Notes that `put` writes message `number` to its flagged room, with so many lines again.
    fn note_flagged(&mut self, lane: &Lane, put: Put, number: u64, stream: u64, lines: usize) {
        let (slot, slots) = (self.numbers.slot(number), self.shape.slots());
        if let (true, Some((_, flags))) = (lines > 0, &self.side.flagged) {
            self.side.whole.resize(slots, flags.from);
            self.side.whole[slot] = number;
        }
        if let Some((end, serial)) = lane.end_of(put) {
            let before = self.copied_before(number).cloned();
            let copied = Copied {
                number,
                stream,
                end: end.clone(),
                serial,
            };
            self.side.sent.resize_with(slots, || None);
            self.side.sent[slot] = Some(Sent { copied, before });
        }
    }

    /// Prepares message `number` of at most one piece for the peer's flagged room. `None`: the peer has
    /// none for it.
    pub fn put_flagged<const N: usize>(
        &mut self,
        batch: &mut Batch<'_, N>,
        number: u64,
        piece: Option<Piece<'_>>,
        stream: u64,
    ) -> Result<Option<Put>> {
        let Some((room, lines)) = self.flagged_room(number)? else {
            return Ok(None);
        };
        let (to, credit) = ([room, self.pair(number)?], self.credit(number, stream));
        let put = batch.flag(piece, to, number, lines as u64, credit)?;
        self.note_flagged(batch.of_lane(), put, number, stream, lines);
        Ok(Some(put))
    }

    /// Prepares message `number` of one piece for the memory of its receive, whose flagged room shows
    /// it. `known`: this memory; else a kernel waits for it. `None`: the peer has no flagged room for
    /// it.
    pub fn put_direct(
        &mut self,
        batch: &mut Batch<'_>,
        number: u64,
        piece: Piece<'_>,
        known: Option<Span>,
        stream: u64,
    ) -> Result<Option<Put>> {
        let (Some((room, lines)), Some(block)) =
            (self.flagged_room(number)?, &self.side.device_block)
        else {
            return Ok(None);
        };
        let slot = self.numbers.slot(number);
        let params = Direct {
            slot: self.credit(number, stream),
            place: block.addr(self.shape.place_at(slot)),
            ready: self.ready(number).addr().0,
            info: self.place_addr(number),
            go: block.addr(self.shape.go_at(slot)),
            lost: block.addr(self.shape.lost_at()),
            lines: lines as u64,
            number,
            ..Direct::default()
        };
        let put = batch.direct(piece, [room, self.pair(number)?], known, params)?;
        self.note_flagged(batch.of_lane(), put, number, stream, lines);
        Ok(Some(put))
    }

    pub fn is_open(&self) -> bool {
        self.remote.is_some() && !self.side.retiring
    }

    #[inline]
    pub fn has_rooms(&self) -> bool {
        self.side.rooms.is_some()
    }

    /// Whether it waits for the peer.
    pub fn is_opening(&self) -> bool {
        !self.is_open() || self.side.asked && !self.has_rooms()
    }

    /// Whether the peer must be asked for rooms now. A peer that was asked to retire the channel may
    /// have removed it.
    pub fn asks(&mut self) -> bool {
        let asks = !self.side.asked && !self.side.retiring && !self.has_rooms();
        self.side.asked |= asks;
        asks
    }

    /// Whether every message was taken.
    pub fn is_idle(&self) -> bool {
        let mut last = self.numbers.last(self.numbers.next());
        let mut sent = self.side.sent.iter().flatten();
        let taken = last.all(|number| self.is_taken(number));
        !self.is_opening() && taken && sent.all(|sent| sent.copied.is_done())
    }

    /// The word, and the previous message in this slot, for which message `number` has to wait;
    /// `None`: its slot is free.
    pub fn blocked_by(&self, number: u64) -> Option<(&Word64, u64)> {
        let before = self.numbers.previous(number)?;
        if on(Mutant::EarlySlotReuse) {
            return None;
        }
        (!self.is_taken(before)).then(|| (self.taken(before), before))
    }

    /// How many of the last messages before `number` the receiver has taken.
    pub fn taken_before(&self, number: u64) -> u32 {
        let last = self.numbers.last(number);
        last.filter(|n| self.is_taken(*n)).count() as u32
    }

    /// The word that stores that the receive of `number` is posted.
    #[inline]
    pub fn ready(&self, number: u64) -> &Word64 {
        &self.side.ready[self.numbers.slot(number)]
    }

    /// The ready word of message `number`, if only short messages used its slot for so long that
    /// the word's 16 bits would soon compare as a later number. The sender of a short message sets
    /// the word to the number of that message: the receive of a short message writes no ready word,
    /// and the next receive in the slot is posted after it.
    pub fn stale(&self, number: u64) -> Option<&Word64> {
        // The check is made once in `WINDOW` messages for each slot: the word is then at most twice
        // as old, which 16 bits still represent.
        if number % WINDOW >= u64::from(self.shape.depth) {
            return None;
        }
        let ready = self.ready(number);
        let age = |w: u64| (number as u16).wrapping_sub(word::parse(w).0);
        let old = ready.load().is_ok_and(|w| u64::from(age(w)) > WINDOW);
        old.then_some(ready)
    }

    /// What a stream does before message `number`: it waits until two words reach a value, for
    /// credit and for the end of the message before, unless both are known. Before a `short` message
    /// it also stores a value into a stale ready word. `by_kernel`: the kernel of the message waits.
    #[inline]
    pub fn lead_in(
        &self,
        number: u64,
        short: bool,
        stream: u64,
        by_kernel: bool,
    ) -> Result<LeadIn<'_>> {
        let blocked = self.blocked_by(number);
        let stale = self.stale(number).filter(|_| short);
        if let (None, Some(ready)) = (blocked, stale) {
            ready.store(word::threshold(number))?;
            return Ok(LeadIn::default());
        }
        if by_kernel && stale.is_none() {
            return Ok(LeadIn::default());
        }
        let credit = blocked.map(|(taken, before)| (taken, word::threshold(before)));
        Ok(LeadIn {
            waits: [credit, self.sent_before(number, Some(stream))],
            store: stale.map(|ready| (ready, word::threshold(number))),
        })
    }

    /// The memory of the receive of `number`, if that receive is posted and has room for `len`
    /// bytes, and `stream` waits for nothing before it writes there.
    pub fn known_place(&self, number: u64, len: u64, stream: u64) -> Option<Span> {
        let free = self.sent_before(number, Some(stream)).is_none();
        match self.reply(number)? {
            (Some(WordKind::Ready), room) if len <= room && free => self.place(number).ok(),
            _ => None,
        }
    }

    /// The destination of an eager message.
    pub fn payload(&self, number: u64) -> Result<Span> {
        let at = self.numbers.slot(number) * self.shape.room();
        span(&self.side.rooms, at, self.shape.room())
    }

    /// The destination of both words of a message.
    pub fn pair(&self, number: u64) -> Result<Span> {
        self.span(self.numbers.slot(number) * PAIR, PAIR)
    }

    /// Kind and length in the ready word of message `number`, once the word has reached it.
    pub fn reply(&self, number: u64) -> Option<(Option<WordKind>, u64)> {
        let w = self.ready(number).load().ok()?;
        if !word::reached(w, number) {
            return None;
        }
        let (low, kind, len) = word::parse(w);
        match kind {
            Some(WordKind::Failed) => Some((kind, len)),
            _ if low == number as u16 => Some((kind, len)),
            // The receive has ended, and a later one is posted in its slot.
            _ => Some((Some(WordKind::Refused), 0)),
        }
    }

    /// Stores a refusal of message `number`, whose receive has ended without it. The peer's own
    /// word may be queued behind an operation that waits for this message; this store releases the
    /// waits for that receive.
    pub fn refuse(&self, number: u64) {
        let ready = self.ready(number);
        if let Ok(now) = ready.load()
            && !word::reached(now, number)
        {
            // The peer's own word, or one of a later receive, may arrive meanwhile; it is not
            // overwritten. Pinned memory, which the CPU reaches: it cannot fail.
            let _ = ready.compare_swap(now, word::word(number, WordKind::Refused, 0));
        }
    }

    /// The memory of the receive of `number`, which the peer wrote before its ready word.
    pub fn place(&self, number: u64) -> Result<Span> {
        let mut bytes = [0; Place::LEN];
        let at = self.numbers.slot(number) * Place::ROOM;
        self.memory.region().read(at, &mut bytes)?;
        Span::of(self.path, &Place::decode(&bytes))
    }

    /// The address of that place, for kernels.
    pub fn place_addr(&self, number: u64) -> u64 {
        self.memory.region().addr().0 + (self.numbers.slot(number) * Place::ROOM) as u64
    }

    /// Allocates the memory of the stamps, with the first message that needs it. As for the
    /// channel's other memory, this is done under the context's lock and before anything is posted:
    /// pinned memory belongs to a driver context of gdsync, which no waiting stream blocks.
    pub fn make_stamps(&mut self, paths: &Paths) -> Result<()> {
        if self.side.stamps.is_none() {
            let len = self.shape.slots() * PAIR;
            self.side.stamps = Some(paths.pinned(len, Rights::Source)?);
        }
        Ok(())
    }

    /// The stamp of `number`, if there are stamps.
    pub fn stamp(&self, number: u64) -> Option<Piece<'_>> {
        let stamps = self.side.stamps.as_ref()?;
        Some(stamps.piece(self.numbers.slot(number) * PAIR, PAIR))
    }

    /// The address of the stamp of `number`, for kernels.
    pub fn stamp_addr(&self, number: u64) -> u64 {
        let at = (self.numbers.slot(number) * PAIR) as u64;
        let stamps = self.side.stamps.as_ref();
        stamps.map_or(0, |stamps| stamps.region().addr().0 + at)
    }

    /// Releases every stream that waits in this channel, with `status`. Kernels that have not started
    /// then write into no receive.
    pub fn release(&self, status: Status) {
        if let Some(block) = &self.side.device_block
            && let Err(e) = block.write(self.shape.lost_at(), &1_u64.to_le_bytes())
        {
            tracing::debug!(target: "mp", "kernels do not find the peer lost: {e}");
        }
        let words = self.side.ready.iter().chain(&self.taken);
        store_failure(words, self.numbers.next(), status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_keeps_the_ready_word_of_the_next_receive_in_its_slot() {
        let gpu = gdsync::Gpu::soft().unwrap();
        let device = gdsync::rdma::Device::emulated(&gpu).unwrap();
        let shape = Shape {
            depth: 4,
            eager: 64,
            start: 0,
        };
        let channel = SendChannel::new(&Paths::for_test(&device), 1, shape).unwrap();
        let later = word::word(4, WordKind::Ready, 100);
        channel.ready(0).store(later).unwrap();
        for number in [0, 1] {
            channel.refuse(number);
        }
        assert_eq!(channel.ready(0).load().unwrap(), later);
        assert_eq!(channel.reply(1), Some((Some(WordKind::Refused), 0)));
    }
}
