//! The receiving side of a channel: its mailbox and its rooms, and the words that it writes to its
//! sender.

use gdsync::Status;
use gdsync::gpu::{Region, Word64};

use super::{
    ALIGN, Channel, Credits, PAIR, RecvChannel, adopt, check_aligned, not_open, refresh,
    store_failure,
};
use crate::error::{Error, Kind, Result};
use crate::kernels::UNKNOWN;
use crate::mutant::{Mutant, on};
use crate::path::{Exported, Keys, Path, Paths, Put, Remote, Rights, Span};
use crate::request::table::{InDevice, RequestKey};
use crate::wire::control::{RoomsPlace, Shape};
use crate::wire::flag::{self, Head};
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
    /// The long rooms, with the bytes of a message that has room in one; behind them a word for each
    /// slot, for the blocks of a kernel.
    long: Option<(Exported, u64, usize)>,
    /// Whether it was tried to make the flagged rooms, and the long ones.
    tried: [bool; 2],
    /// The sender's device block, its offset, and the first message whose kernels look for a place there.
    device_block: Option<(Remote, u64, u64)>,
    /// By slot: the last receive whose place was stored there.
    placed: Vec<Option<u64>>,
    /// By slot: the last message that a kernel takes in which stores its end in device memory, and the
    /// stream of the kernel.
    pub(super) taking: Vec<Option<(u64, u64, InDevice)>>,
    /// The stream that posted the last receive took it in.
    pub taken_by_poster: bool,
    /// By slot: the newest receive.
    receives: Vec<Option<RequestKey>>,
    /// By slot: the put that last wrote a ready word, and its lane. Another lane writes the next
    /// one only when that put is done: words must not overtake each other.
    ready_puts: Vec<Option<(u8, Put)>>,
    pub credits: Credits,
    /// By slot: the credit in device memory behind the kernels that are enqueued; [`UNKNOWN`] if it is not known.
    credited: Vec<u64>,
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
            long: None,
            tried: [false; 2],
            device_block: None,
            placed: vec![None; shape.slots()],
            taking: (0..shape.slots()).map(|_| None).collect(),
            taken_by_poster: false,
            receives: vec![None; shape.slots()],
            ready_puts: vec![None; shape.slots()],
            credits: Credits::new(shape.slots()),
            credited: vec![UNKNOWN; shape.slots()],
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

    /// Whether a receive on a stream makes the flagged rooms, or the long ones if it is `large`.
    #[inline]
    pub fn lacks_flagged(&self, large: bool) -> bool {
        let [flagged, long] = self.side.tried;
        self.path == Path::Ipc && !(flagged && (long || !large))
    }

    /// Makes the flagged rooms, and the long ones for a `large` receive, from the next message on, if the
    /// driver exports device memory. `true`: it made some.
    #[cold]
    pub fn make_flagged(&mut self, paths: &Paths, large: bool) -> bool {
        let from = self.numbers.next();
        let (slots, mut made) = (self.shape.slots(), false);
        let make = |len: usize, behind: &[u8]| {
            let rooms = paths.copier().exported(len + behind.len())?;
            let mut bytes = flag::before(from, len);
            bytes.extend_from_slice(behind);
            rooms.write(0, &bytes)?;
            Ok(rooms)
        };
        let refused = |e: Error| {
            tracing::debug!(target: "mp", "messages use rooms in host memory: {e}");
        };
        if !std::mem::replace(&mut self.side.tried[0], true) {
            let len = slots * flag::size(self.shape.flagged_bytes());
            let mut behind = vec![0; self.shape.flagged_len() - len];
            let credits = self.shape.credits_at() - len..self.shape.sender_lost_at() - len;
            behind[credits].copy_from_slice(&self.no_credits());
            let rooms = make(len, &behind);
            self.side.flagged = rooms.map_err(refused).ok().map(|rooms| (rooms, from));
            made |= self.side.flagged.is_some();
        }
        let bytes = paths.long_message();
        let first = large && !std::mem::replace(&mut self.side.tried[1], true);
        if first && bytes > self.shape.room() && self.side.flagged.is_some() {
            let rooms = make(slots * flag::lines_len(bytes), &vec![0; slots * 8]);
            self.side.long = rooms
                .map_err(refused)
                .ok()
                .map(|rooms| (rooms, from, bytes));
            made |= self.side.long.is_some();
        }
        made
    }

    /// The flagged rooms and the offset of that of message `number`; `None`: no message `number` is
    /// in one.
    fn flagged(&self, number: u64) -> Option<(&Exported, usize)> {
        let (rooms, from) = self.side.flagged.as_ref()?;
        let at = self.numbers.slot(number) * flag::size(self.shape.flagged_bytes());
        (number >= *from).then_some((rooms, at))
    }

    /// As [`RecvChannel::flagged`], of the long rooms, with the bytes of a message that has room.
    fn long(&self, number: u64) -> Option<(&Exported, usize, usize)> {
        let (rooms, from, bytes) = self.side.long.as_ref()?;
        let at = self.numbers.slot(number) * flag::lines_len(*bytes);
        (number >= *from).then_some((rooms, at, *bytes))
    }

    /// The address of the long room of message `number`, its bytes of payload, and the address of the
    /// word for the blocks of its kernel; or zeros.
    pub fn long_room(&self, number: u64) -> (u64, u64, u64) {
        self.long(number).map_or((0, 0, 0), |(rooms, at, bytes)| {
            let counts = self.shape.slots() * flag::lines_len(bytes);
            let count = counts + 8 * self.numbers.slot(number);
            (rooms.addr(at), bytes as u64, rooms.addr(count))
        })
    }

    /// The word behind the flagged rooms that is set when the peer is given up, for kernels, or 0.
    pub fn lost_addr(&self) -> u64 {
        let rooms = self.side.flagged.as_ref();
        rooms.map_or(0, |(rooms, _)| rooms.addr(self.shape.sender_lost_at()))
    }

    /// Sets that word: kernels that start then name no memory to the peer.
    pub fn set_lost(&self) {
        if let Some((rooms, _)) = &self.side.flagged
            && let Err(e) = rooms.write(self.shape.sender_lost_at(), &1_u64.to_le_bytes())
        {
            tracing::debug!(target: "mp", "kernels do not find the peer lost: {e}");
        }
    }

    /// Bytes of the longest message in a flagged room or a long one.
    pub fn longest_flagged(&self) -> u64 {
        let long = self.side.long.as_ref().map_or(0, |(.., bytes)| *bytes);
        long.max(self.shape.flagged_bytes()) as u64
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
    pub fn open_device_block(
        &mut self,
        memory: &[Record],
        (offset, from): (u64, u64),
    ) -> Result<()> {
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
        check_aligned(&memory, offset, ALIGN[0], "a device block")?;
        adopt(&mut self.side.device_block, (memory, offset, from))
    }

    /// The address of the credit for the slot of message `number`, behind the flagged rooms, for kernels; or 0.
    #[inline]
    pub fn credit_addr(&self, number: u64) -> u64 {
        let at = self.shape.credits_at() + 8 * self.numbers.slot(number);
        let rooms = self.side.flagged.as_ref();
        rooms.map_or(0, |(rooms, _)| rooms.addr(at))
    }

    /// Notes that a kernel returns the credit for message `number`. Returns that of its slot before.
    pub fn expect_credit(&mut self, number: u64) -> u64 {
        let slot = self.numbers.slot(number);
        let behind =
            number.wrapping_sub(u64::from(on(Mutant::StaleCredit)) * self.shape.slots() as u64);
        std::mem::replace(&mut self.side.credited[slot], word::credit(behind))
    }

    /// The kernel of [`RecvChannel::expect_credit`] may not be enqueued.
    pub fn forget_credit(&mut self, number: u64) {
        let slot = self.numbers.slot(number);
        self.side.credited[slot] = UNKNOWN;
    }

    /// Whether the sender looks for the credit of message `number` behind the flagged rooms: the next message of
    /// the slot was prepared when it had a device block.
    pub fn credits_in_device(&self, number: u64) -> bool {
        let from = self.side.device_block.as_ref().map(|(_, _, from)| *from);
        from.is_some_and(|from| number + u64::from(self.shape.depth) >= from)
    }

    /// Where a stream stores the place of the receive of `number` for kernels of the sender, which then
    /// need no word in host memory; `None`: nowhere.
    pub fn lines_of_place(&mut self, number: u64) -> Result<Option<Span>> {
        let slot = self.numbers.slot(number);
        let last = &mut self.side.placed[slot];
        // The lines of that receive would seem to be of this one.
        let alike = |last: u64| last != number && last as u32 == number as u32;
        if let Some((memory, offset, from)) = &self.side.device_block
            && number >= *from
            && !last.is_some_and(alike)
            && self.side.flagged.is_some()
        {
            *last = Some(number);
            let at = *offset as usize + self.shape.place_at(slot);
            return memory.span(at, flag::PLACE).map(Some);
        }
        Ok(None)
    }

    /// The word of message `number`, as a kernel composes it, if a flagged room has or shows the whole
    /// message; else `None`. Without an access to host memory, this takes a copy of an engine or more.
    pub fn shown(&self, number: u64) -> Option<u64> {
        let (rooms, at) = self.flagged(number)?;
        let read = |at: usize, len: usize| {
            let mut bytes = vec![0; len];
            rooms.read(at, &mut bytes).ok().map(|()| bytes)
        };
        let behind = at + flag::HEAD_LEN;
        let (kind, len) = match flag::head(&read(at, flag::HEAD_LEN)?, number)? {
            Head::Here(len) | Head::Long(len) => (WordKind::Flagged, len as u64),
            Head::Elsewhere(blocks) => {
                let len = flag::shown_len(blocks);
                if len > flag::lines_len(self.shape.flagged_bytes()) {
                    return None;
                }
                (
                    WordKind::Direct,
                    flag::shown(&read(behind, len)?, number, blocks)?,
                )
            }
        };
        Some(word::word(number, kind, len))
    }

    /// The payload of message `number`, of `len` bytes, in its flagged room or its long one; `None` while
    /// a part is missing.
    pub fn flagged_payload(&self, number: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let (rooms, at) = self.flagged(number).ok_or_else(not_open)?;
        let mut head = [0; flag::HEAD_LEN];
        rooms.read(at, &mut head)?;
        let (rooms, at) = match flag::head(&head, number) {
            Some(Head::Here(own)) if own == len && len <= self.shape.flagged_bytes() => {
                (rooms, at + flag::HEAD_LEN)
            }
            Some(Head::Long(own)) if own == len => match self.long(number) {
                Some((rooms, at, bytes)) if len <= bytes => (rooms, at),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let mut lines = vec![0; flag::lines_len(len)];
        rooms.read(at, &mut lines)?;
        Ok(flag::payload(&lines, number, len))
    }

    /// The records of the memory of the flagged rooms and of the long ones, none if there are none, and
    /// where they are.
    pub fn flagged_rooms(&self) -> [(Vec<Record>, RoomsPlace); 2] {
        let named = |rooms: &Exported, from: u64, bytes: usize| {
            let flags = RoomsPlace {
                offset: rooms.offset() as u64,
                from,
                bytes: bytes as u32,
            };
            (vec![rooms.record()], flags)
        };
        let (flagged, long) = (self.side.flagged.as_ref(), self.side.long.as_ref());
        [
            flagged.map(|(rooms, from)| named(rooms, *from, 0)),
            long.map(|(rooms, from, bytes)| named(rooms, *from, *bytes)),
        ]
        .map(Option::unwrap_or_default)
    }

    /// The record of the rooms; none if there are none.
    pub fn rooms(&self) -> Result<Vec<Record>> {
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
    pub fn has_word(&self, number: u64, large: bool) -> bool {
        super::has_come(self.word(number, large), number)
    }

    /// The word of a message that has arrived, in host memory or in a flagged room; see
    /// [`RecvChannel::shown`]. If the sender stores both words, it has stored the other one as well: the
    /// credit lets another poster of the sender store the next words there.
    #[inline]
    pub fn arrived(&self, number: u64, large: bool) -> Option<u64> {
        let w = self.word(number, large).load().ok()?;
        if !word::reached(w, number) {
            return self.shown(number);
        }
        let (_, kind, _) = word::parse(w);
        let one = matches!(kind, Some(WordKind::Announce | WordKind::Failed));
        (one || self.has_word(number, !large)).then_some(w)
    }

    /// Whether the message has arrived.
    pub fn has_come(&self, number: u64, large: bool) -> bool {
        self.arrived(number, large).is_some()
    }

    /// Refreshes the words of message `number` before it is received, if only messages without these
    /// words used its slot for so long that their 16 bits would soon compare as a later number: a
    /// refused message has no arrival word, and one in a flagged room has none.
    pub fn refresh_words(&self, number: u64) {
        for large in [false, true] {
            refresh(self.word(number, large), number, self.shape.depth);
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

    /// The word and its value for which a stream waits until the previous message in the slot of `number` was
    /// taken; `None`: it was, or an earlier kernel of the stream takes it.
    pub fn blocked_by(&self, number: u64, stream: u64) -> Option<(&Word64, u64)> {
        let before = self.numbers.previous(number)?;
        if self.is_taken(before) {
            return None;
        }
        match &self.side.taking[self.numbers.slot(number)] {
            Some((taking, by, _)) if *taking == before && *by == stream => None,
            Some((taking, _, report)) if *taking == before => Some((&report.word, report.value)),
            _ => Some((self.taken(before), word::threshold(before))),
        }
    }

    /// Stores that message `number`, which a kernel has taken in, was taken.
    pub fn set_taken(&self, number: u64) {
        let taken = self.taken(number);
        // Pinned memory, which the CPU reaches: it cannot fail. A kernel may store the word of a later
        // message at this moment; it stays.
        if let Ok(before) = taken.load()
            && !word::reached(before, number)
        {
            let _ = taken.compare_swap(before, word::word(number, WordKind::Taken, 0));
        }
    }

    /// Whether the message seems to have arrived: its word has come, or its flagged room, if the CPU loads
    /// from there, has it.
    pub fn seems_to_have_come(&self, number: u64, large: bool) -> bool {
        let rooms = self.side.flagged.as_ref();
        let near = rooms.is_some_and(|(rooms, _)| rooms.is_near());
        self.has_word(number, large) || near && self.shown(number).is_some()
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
        let next = self.numbers.next();
        let word = self.first_word(next);
        let short = |kind| matches!(kind, Some(WordKind::Eager));
        self.has_rooms() && word.is_some_and(|(kind, _)| short(kind)) || self.shown(next).is_some()
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
