//! The receiving side of a channel: its mailbox and its rooms, and the words that it writes to its
//! sender.

use gdsync::Status;
use gdsync::gpu::{Region, Word64};

use super::{
    Channel, Credits, PAIR, RecvChannel, WINDOW, adopt, check_aligned, not_open, store_failure,
};
use crate::error::{Error, Kind, Result};
use crate::path::{Exported, Keys, Path, Paths, Put, Remote, Rights, Span};
use crate::request::table::RequestKey;
use crate::wire::control::{Flags, Shape};
use crate::wire::flag;
use crate::wire::record::{Place, Record};
use crate::wire::word::{self, WordKind};

/// The fields of a receiver. The channel's memory is the mailbox.
pub(crate) struct Receiving {
    /// By slot: the message has arrived, or is announced.
    first: Vec<Word64>,
    /// By slot: the message has arrived.
    arrival: Vec<Word64>,
    /// The words that say which messages were taken, copied into the sender's return block; then
    /// the address of each slot's room, or 0, for kernels.
    pub(super) taken_words: Keys,
    /// The rooms for eager messages.
    pub(super) rooms: Option<Keys>,
    /// The rooms for eager messages that streams exchange by `Path::Ipc`, and the number of the first
    /// message that may use them.
    flagged: Option<(Exported, u64)>,
    /// Whether it was tried to make them.
    tried_flagged: bool,
    /// The sender's device block, and its offset.
    device_block: Option<(Remote, u64)>,
    /// By slot: the last receive whose place was stored there.
    placed: Vec<Option<u64>>,
    /// By slot: the newest receive.
    receives: Vec<Option<RequestKey>>,
    /// By slot: the put that last wrote a ready word, and its lane. Another lane writes the next
    /// one only when that put is done: words must not overtake each other.
    ready_puts: Vec<Option<(u8, Put)>>,
    pub credits: Credits,
}

impl RecvChannel {
    pub fn new(paths: &Paths, peer: u32, shape: Shape) -> Result<RecvChannel> {
        let mailbox = paths.pinned(shape.mailbox_len(), Rights::Words)?;
        let taken_words = paths.pinned(2 * shape.slots() * 8, Rights::Source)?;
        let taken = shape.words(&taken_words, |slot| slot * 8)?;
        taken_words
            .region()
            .write(shape.slots() * 8, &vec![0; shape.slots() * 8])?;
        let side = Receiving {
            first: shape.words(&mailbox, |slot| slot * PAIR)?,
            arrival: shape.words(&mailbox, |slot| slot * PAIR + 8)?,
            taken_words,
            rooms: None,
            flagged: None,
            tried_flagged: false,
            device_block: None,
            placed: vec![None; shape.slots()],
            receives: vec![None; shape.slots()],
            ready_puts: vec![None; shape.slots()],
            credits: Credits::default(),
        };
        Ok(Channel::of(paths.to(peer), shape, mailbox, taken, side))
    }

    /// Makes the rooms for eager messages. `true`: there were none.
    pub fn make_rooms(&mut self, paths: &Paths) -> Result<bool> {
        if self.side.rooms.is_some() {
            return Ok(false);
        }
        let rooms = paths.pinned(self.shape.rooms_len(), Rights::Write)?;
        for slot in 0..self.shape.slots() {
            let room = rooms.region().addr().0 + (slot * self.shape.room()) as u64;
            let word = self.side.taken_words.region().word64(self.room_at(slot))?;
            word.store(room)?;
        }
        self.side.rooms = Some(rooms);
        Ok(true)
    }

    #[inline]
    pub fn has_rooms(&self) -> bool {
        self.side.rooms.is_some()
    }

    /// Whether a receive on a stream makes the flagged rooms.
    #[inline]
    pub fn lacks_flagged(&self) -> bool {
        self.path == Path::Ipc && !self.side.tried_flagged
    }

    /// Makes the flagged rooms, from the next message on, if the driver exports device memory. `true`:
    /// it made them.
    #[cold]
    pub fn make_flagged(&mut self, paths: &Paths) -> bool {
        self.side.tried_flagged = true;
        let from = self.numbers.next();
        let made = paths.copier().exported(self.shape.flagged_len());
        let clear = |rooms: &Exported| rooms.write(0, &flag::before(from, rooms.len()));
        match made.and_then(|rooms| clear(&rooms).map(|()| rooms)) {
            Ok(rooms) => self.side.flagged = Some((rooms, from)),
            Err(e) => tracing::debug!(target: "mp", "messages use rooms in host memory: {e}"),
        }
        self.side.flagged.is_some()
    }

    /// The flagged rooms and the offset of that of message `number`; `None`: no message `number` is
    /// in one.
    fn flagged(&self, number: u64) -> Option<(&Exported, usize)> {
        let (rooms, from) = self.side.flagged.as_ref()?;
        let at = self.numbers.slot(number) * self.shape.flagged_room();
        (number >= *from).then_some((rooms, at))
    }

    #[inline]
    pub fn has_flagged(&self, number: u64) -> bool {
        self.flagged(number).is_some()
    }

    /// The address of the flagged room of message `number`, for kernels, or 0.
    #[inline]
    pub fn flagged_addr(&self, number: u64) -> u64 {
        self.flagged(number).map_or(0, |(rooms, at)| rooms.addr(at))
    }

    /// Sets the sender's device block.
    pub fn open_device_block(&mut self, memory: &[Record], offset: u64) -> Result<()> {
        if memory.is_empty() {
            // This rank could not map it.
            return Ok(());
        }
        if self.path != Path::Ipc {
            let what = "the peer announced a device block on a path by which this rank stores none";
            return Err(Error::new("open channel", Kind::Protocol, what));
        }
        let memory = Remote::any(self.path, memory)?;
        memory.span(offset as usize, self.shape.device_block_len())?;
        check_aligned(&memory, offset, "a device block")?;
        adopt(&mut self.side.device_block, (memory, offset))
    }

    /// The address of the sender's credit for the slot of message `number`, for kernels, or 0.
    #[inline]
    pub fn credit_addr(&self, number: u64) -> u64 {
        let at = (self.numbers.slot(number) * 8) as u64;
        let block = self.side.device_block.as_ref();
        block.map_or(0, |(memory, offset)| memory.addr() + offset + at)
    }

    /// Where a stream stores the place of the receive of `number` for kernels of the sender, which then
    /// need no word in host memory; `None`: nowhere.
    pub fn lines_of_place(&mut self, number: u64) -> Result<Option<Span>> {
        let slot = self.numbers.slot(number);
        let last = &mut self.side.placed[slot];
        // The lines of that receive would seem to be of this one.
        let alike = |last: u64| last != number && last as u32 == number as u32;
        if let Some((memory, offset)) = &self.side.device_block
            && !last.is_some_and(alike)
        {
            *last = Some(number);
            let at = *offset as usize + self.shape.place_at(slot);
            return memory.span(at, flag::PLACE).map(Some);
        }
        Ok(None)
    }

    /// The payload of message `number`, of `len` bytes, in its flagged room; `None` while a part is
    /// missing.
    pub fn flagged_payload(&self, number: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let (rooms, at) = self.flagged(number).ok_or_else(not_open)?;
        let mut bytes = vec![0; flag::size(len).min(self.shape.flagged_room())];
        rooms.read(at, &mut bytes)?;
        Ok(flag::payload(&bytes, number, len))
    }

    /// The record of the memory of the flagged rooms, none if there are none, and where they are.
    pub fn flagged_rooms(&self) -> (Vec<Record>, Flags) {
        let Some((rooms, from)) = &self.side.flagged else {
            return Default::default();
        };
        let offset = rooms.offset() as u64;
        (
            vec![rooms.record()],
            Flags {
                offset,
                from: *from,
            },
        )
    }

    /// The record of the rooms; none if there are none.
    pub fn rooms(&self) -> Vec<Record> {
        let rooms = self.side.rooms.iter();
        rooms.map(|rooms| rooms.record(self.path)).collect()
    }

    /// The offset of the address of a slot's room.
    fn room_at(&self, slot: usize) -> usize {
        (self.shape.slots() + slot) * 8
    }

    /// Sets the peer's return block.
    pub fn open(&mut self, block: &[Record]) -> Result<()> {
        self.adopt(block, self.shape.block_len())
    }

    pub fn is_open(&self) -> bool {
        self.remote.is_some()
    }

    /// The word that a receive waits for: a small receive also ends when a message is announced for
    /// which it has no room.
    #[inline]
    pub fn word(&self, number: u64, large: bool) -> &Word64 {
        match large {
            true => &self.side.arrival[self.numbers.slot(number)],
            false => &self.side.first[self.numbers.slot(number)],
        }
    }

    /// Whether the message has arrived, by that word.
    pub fn has_come(&self, number: u64, large: bool) -> bool {
        super::has_come(self.word(number, large), number)
    }

    /// Refreshes the arrival word before message `number` is received, if only refused messages
    /// used its slot for so long that the word's 16 bits would soon compare as a later number: a
    /// refused message has no arrival word.
    pub fn refresh_arrival(&self, number: u64) {
        // As in `SendChannel::stale`.
        if number % WINDOW >= u64::from(self.shape.depth) {
            return;
        }
        let arrival = self.word(number, true);
        let age = |w: u64| (number as u16).wrapping_sub(word::parse(w).0);
        if let Ok(now) = arrival.load()
            && u64::from(age(now)) > WINDOW
        {
            // A message that arrives meanwhile is not overwritten. All messages before the window
            // are taken. Pinned memory, which the CPU reaches: it cannot fail.
            let _ = arrival.compare_swap(now, word::threshold(number.wrapping_sub(WINDOW)));
        }
    }

    /// Kind and length in the first word of a message, if the word belongs to that message.
    pub fn first_word(&self, number: u64) -> Option<(Option<WordKind>, u64)> {
        let (low, kind, len) = word::parse(self.word(number, false).load().ok()?);
        (low == number as u16).then_some((kind, len))
    }

    /// The newest receive in the slot of `number`.
    #[inline]
    pub fn newest(&mut self, number: u64) -> &mut Option<RequestKey> {
        &mut self.side.receives[self.numbers.slot(number)]
    }

    /// The put that last wrote a ready word for the slot of `number`, and its lane.
    #[inline]
    pub fn ready_put(&mut self, number: u64) -> &mut Option<(u8, Put)> {
        &mut self.side.ready_puts[self.numbers.slot(number)]
    }

    /// The puts that last wrote ready words, and their lanes, for all slots that have one.
    pub fn ready_puts(&self) -> impl Iterator<Item = (u8, Put)> + '_ {
        self.side.ready_puts.iter().flatten().copied()
    }

    /// The address of an eager message's payload; `None` while there are no rooms.
    #[inline]
    pub fn payload_addr(&self, number: u64) -> Option<u64> {
        let rooms = self.side.rooms.as_ref()?;
        let at = self.numbers.slot(number) * self.shape.room();
        Some(rooms.region().addr().0 + at as u64)
    }

    /// The address of the word with the address of an eager message's payload, or 0 while there are
    /// no rooms.
    pub fn room_addr(&self, number: u64) -> u64 {
        let at = self.room_at(self.numbers.slot(number));
        self.side.taken_words.region().addr().0 + at as u64
    }

    /// The memory of an eager message's payload, and its offset there.
    pub fn payload(&self, number: u64) -> Result<(&Region, usize)> {
        let rooms = self.side.rooms.as_ref().ok_or_else(not_open)?;
        Ok((
            rooms.region(),
            self.numbers.slot(number) * self.shape.room(),
        ))
    }

    /// Whether the previous message in the slot of `number` was taken.
    pub fn is_free(&self, number: u64) -> bool {
        let before = self.numbers.previous(number);
        before.is_none_or(|before| self.is_taken(before))
    }

    /// Where the receive of `number` writes its place, in the sender's memory.
    pub fn place(&self, number: u64) -> Result<Span> {
        self.span(self.numbers.slot(number) * Place::ROOM, Place::LEN)
    }

    /// Where the receive of `number` writes its ready word, in the sender's memory.
    pub fn ready(&self, number: u64) -> Result<Span> {
        self.span(self.shape.ready_at(self.numbers.slot(number)), 8)
    }

    /// Whether every message up to `next` was taken, all credits are returned, and no receive waits
    /// for another message.
    pub fn is_idle(&self, next: u64) -> bool {
        let credited = self.numbers.next() == next && self.side.credits.is_empty();
        credited && self.numbers.last(next).all(|n| self.is_taken(n))
    }

    /// Whether the next message is in the mailbox, and no receive matches it.
    pub fn has_unexpected(&self) -> bool {
        let word = self.first_word(self.numbers.next());
        let short = |kind| matches!(kind, Some(WordKind::Eager | WordKind::Flagged));
        self.has_rooms() && word.is_some_and(|(kind, _)| short(kind))
    }

    /// Releases every stream that waits for a message, with `status`; for the end of the context.
    pub fn release(&self, status: Status) {
        // A message that has arrived and was not taken is lost: its receive ends with `status`. A
        // store over the word of a message without a receive is harmless: no stream waits in its
        // slot, because the previous message was taken.
        let words = self.side.first.iter().chain(&self.side.arrival);
        store_failure(words, self.numbers.next(), status);
    }
}
