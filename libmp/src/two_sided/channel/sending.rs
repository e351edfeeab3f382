//! The sending side of a channel: its return block, and the destinations of messages.

use gdsync::Status;
use gdsync::gpu::Word64;

use super::{
    ALIGN, Channel, PAIR, PLACE_ROOM, SendChannel, WINDOW, adopt, check_aligned, refresh, span,
    stale_value, store_failure,
};
use crate::error::Result;
use crate::kernels::{Credit, Direct, Flag, Relay};
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Exported, Keys, List, Path, Paths, Piece, Put, Remote, Rights, Span};
use crate::request::entry::{Late, Outgoing};
use crate::wire::control::{RoomsPlace, Shape};
use crate::wire::flag;
use crate::wire::record::{Place, Record};
use crate::wire::word::{self, WordKind};

/// Messages after which every line of a room is written again: a line's flag has 32 bits of the number.
const REWRITE: u64 = 1 << 30;
/// Messages after which a room whose lines were not all written again is used no more.
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
    /// The peer's flagged rooms.
    flagged: Option<Rooms>,
    /// The peer's long rooms.
    long: Option<Rooms>,
    /// The device block.
    device_block: Option<Exported>,
    /// By slot: the receive is posted.
    ready: Vec<Word64>,
    /// Stamps that kernels write and the NIC reads; allocated on first use.
    stamps: Option<Keys>,
    /// The late fields of sends that have ended, empty, with their memory.
    #[expect(clippy::vec_box, reason = "the boxes are memory that is kept as well")]
    lates: Vec<Box<Late>>,
}

/// Rooms of the peer in device memory, one for each slot.
struct Rooms {
    memory: Remote,
    flags: RoomsPlace,
    /// By slot: the message that last wrote every line of its room; empty before the first.
    whole: Vec<u64>,
}

impl Rooms {
    /// Rooms of `size` bytes for `slots` slots.
    fn read(
        path: Path,
        memory: &[Record],
        flags: RoomsPlace,
        size: usize,
        slots: usize,
        align: u64,
    ) -> Result<Rooms> {
        let memory = Remote::any(path, memory)?;
        // All rooms are in the memory.
        memory.span(flags.offset as usize, size.saturating_mul(slots))?;
        check_aligned(&memory, flags.offset, align, "flagged rooms")?;
        let whole = Vec::new();
        Ok(Rooms {
            memory,
            flags,
            whole,
        })
    }

    /// The age of the lines of message `number`'s room; `None`: the message may not use it. The flags of
    /// an old message would seem to be its own, and a message that is prepared behind a later one of its
    /// slot uses none, because the later one may have written every line.
    fn age(&self, slot: usize, number: u64) -> Option<u64> {
        let whole = self.whole.get(slot).copied().unwrap_or(self.flags.from);
        let age = number.wrapping_sub(whole);
        (number >= self.flags.from && age < STALE).then_some(age)
    }

    /// The room of `size` bytes of message `number`, and whether the message writes every line.
    fn room(&self, slot: usize, number: u64, size: usize) -> Result<Option<(Span, bool)>> {
        let Some(age) = self.age(slot, number) else {
            return Ok(None);
        };
        let room = self
            .memory
            .span(self.flags.offset as usize + slot * size, size)?;
        Ok(Some((room, age >= REWRITE)))
    }

    /// Notes that message `number` writes every line.
    fn note_whole(&mut self, slot: usize, slots: usize, number: u64) {
        self.whole.resize(slots, self.flags.from);
        self.whole[slot] = number;
    }
}

/// What a stream does before a message: it waits for a word or, by a kernel, for a credit; then it stores a
/// value.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeadIn<'a> {
    pub wait: Option<(&'a Word64, u64)>,
    pub credit: Option<Credit>,
    pub store: Option<(&'a Word64, u64)>,
}

impl<'a> LeadIn<'a> {
    /// Without the credit, which is a put.
    pub fn add_to<const N: usize>(self, list: &mut List<'a, N>) {
        if let Some((word, value)) = self.wait {
            list.wait(word, value, false);
        }
        if let Some((word, value)) = self.store {
            list.store(word, value);
        }
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
            long: None,
            device_block: None,
            ready: shape.words(&block, |slot| shape.ready_at(slot))?,
            stamps: None,
            lates: Vec::new(),
        };
        let taken = shape.words(&block, |slot| shape.taken_at(slot))?;
        Ok(Channel::of(paths.to(peer), shape, block, taken, side))
    }

    /// Notes a use of the channel, by its position in the order of requests.
    #[inline]
    pub fn note_use(&mut self, order: u64) {
        self.side.last_use = order;
        self.side.first_use = self.side.first_use.min(order);
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

    /// Sets the peer's flagged rooms, and its long rooms, if it has any.
    pub fn open_flagged(
        &mut self,
        [flagged, long]: [&[Record]; 2],
        [flags, long_flags]: [RoomsPlace; 2],
    ) -> Result<()> {
        let (path, slots) = (self.path, self.shape.slots());
        let bytes = self.shape.flagged_bytes();
        if !flagged.is_empty() {
            let rooms = Rooms::read(path, flagged, flags, flag::size(bytes), slots, ALIGN[1])?;
            // With the credits behind them.
            rooms
                .memory
                .span(flags.offset as usize, self.shape.flagged_len())?;
            adopt_rooms(&mut self.side.flagged, rooms)?;
        }
        if !long.is_empty() {
            let size = flag::lines_len(long_flags.bytes as usize);
            let rooms = Rooms::read(path, long, long_flags, size, slots, ALIGN[0])?;
            adopt_rooms(&mut self.side.long, rooms)?;
        }
        Ok(())
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
        let mut bytes = self.no_credits();
        for slot in 0..slots {
            let len = self.shape.place_at(slot + 1) - self.shape.place_at(slot);
            bytes.extend(flag::no_place(slot, len));
        }
        bytes.resize(len, 0);
        bytes
    }

    /// The address in the device block, or 0.
    fn block_addr(&self, at: usize) -> u64 {
        let block = self.side.device_block.as_ref();
        block.map_or(0, |block| block.addr(at))
    }

    /// What the kernel of message `number` waits for.
    fn credit(&self, number: u64) -> Credit {
        let Some((taken, before)) = self.blocked_by(number) else {
            return Credit::default();
        };
        let at = 8 * self.numbers.slot(number);
        let credits = (self.shape.credits_at() + at) as u64;
        let rooms = self.side.flagged.as_ref();
        // Without the memory in which a kernel keeps what it reads, it reads words in host memory.
        let rooms = rooms.filter(|_| self.side.device_block.is_some());
        Credit {
            credit: rooms.map_or(0, |rooms| {
                rooms.memory.addr() + rooms.flags.offset + credits
            }),
            known: self.block_addr(at),
            taken: taken.addr().0,
            before,
        }
    }

    /// Prepares message `number` of at most one piece for the peer's flagged room, or for its long room.
    /// `None`: the peer has none for it.
    pub fn put_flagged<const N: usize>(
        &mut self,
        batch: &mut Batch<'_, N>,
        number: u64,
        piece: Option<Piece<'_>>,
    ) -> Result<Option<Put>> {
        let (slot, slots) = (self.numbers.slot(number), self.shape.slots());
        let (len, bytes) = (piece.map_or(0, Piece::len), self.shape.flagged_bytes());
        let credit = match on(Mutant::UncreditedRoom) {
            true => Credit::default(),
            false => self.credit(number),
        };
        let slot = match on(Mutant::WrongRoom) {
            true => (slot + 1) % slots,
            false => slot,
        };
        let Some(flagged) = &mut self.side.flagged else {
            return Ok(None);
        };
        let Some((room, every)) = flagged.room(slot, number, flag::size(bytes))? else {
            return Ok(None);
        };
        let params = Flag {
            slot: credit,
            number,
            ..Flag::default()
        };
        if len <= self.shape.room() {
            let lines = if every { flag::lines(bytes) as u64 } else { 0 };
            let put = batch.flag(piece, room, Flag { lines, ..params })?;
            if every {
                flagged.note_whole(slot, slots, number);
            }
            return Ok(Some(put));
        }
        let Some(long) = &mut self.side.long else {
            return Ok(None);
        };
        let bytes = long.flags.bytes as usize;
        if len > bytes {
            return Ok(None);
        }
        let Some((long_room, every)) = long.room(slot, number, flag::lines_len(bytes))? else {
            return Ok(None);
        };
        let params = Flag {
            long_room: long_room.addr(),
            lines: if every { flag::lines(bytes) as u64 } else { 0 },
            ..params
        };
        let put = batch.flag(piece, room, params)?;
        if every {
            long.note_whole(slot, slots, number);
        }
        Ok(Some(put))
    }

    /// Prepares message `number` of one piece for the memory of its receive, for which a kernel waits; the
    /// flagged room shows it. `None`: the peer has no flagged room for it.
    pub fn put_direct(
        &mut self,
        batch: &mut Batch<'_>,
        number: u64,
        piece: Piece<'_>,
    ) -> Result<Option<Put>> {
        let (slot, slots) = (self.numbers.slot(number), self.shape.slots());
        let bytes = self.shape.flagged_bytes();
        let params = Direct {
            slot: self.credit(number),
            place: self.block_addr(self.shape.place_at(slot)),
            found: self.block_addr(self.shape.place_at(slot) + PLACE_ROOM),
            ready: self.ready(number).addr().0,
            info: self.place_addr(number),
            lost: self.block_addr(self.shape.lost_at()),
            room_lines: flag::lines(bytes) as u64,
            pair: self.pair(number)?.addr(),
            number,
            ..Direct::default()
        };
        let (Some(flagged), Some(_)) = (&mut self.side.flagged, &self.side.device_block) else {
            return Ok(None);
        };
        let Some((room, every)) = flagged.room(slot, number, flag::size(bytes))? else {
            return Ok(None);
        };
        let lines = if every { params.room_lines } else { 0 };
        let put = batch.direct(piece, room, Direct { lines, ..params })?;
        if every {
            flagged.note_whole(slot, slots, number);
        }
        Ok(Some(put))
    }

    /// Whether messages of `len` bytes go to long rooms.
    pub fn has_long(&self, len: u64) -> bool {
        let long = self.side.long.as_ref();
        long.is_some_and(|long| len <= long.flags.bytes.into())
    }

    /// Whether message `number`, of one segment of `len` bytes, goes to a long room.
    pub fn has_long_room(&self, number: u64, len: u64) -> bool {
        let slot = self.numbers.slot(number);
        let takes = |rooms: &Option<Rooms>| {
            let rooms = rooms.as_ref();
            rooms.is_some_and(|rooms| rooms.age(slot, number).is_some())
        };
        self.has_long(len) && takes(&self.side.flagged) && takes(&self.side.long)
    }

    /// The parameters of the kernel that finds the place of the receive of `number` in the device block;
    /// `None`: there is no such block, or the place is known.
    pub fn relay(&self, number: u64) -> Option<Relay> {
        let block = self.side.device_block.as_ref()?;
        let known = self.reply(number).is_some();
        (!known).then(|| Relay {
            place: block.addr(self.shape.place_at(self.numbers.slot(number))),
            ready: self.ready(number).addr().0,
            info: self.place_addr(number),
            number,
            ..Relay::default()
        })
    }

    /// Looks for the place of the receive of `number` in the device block, as the kernel of
    /// [`SendChannel::relay`] does.
    pub fn find_place(&self, number: u64) {
        let Some(block) = &self.side.device_block else {
            return;
        };
        let mut lines = [0; flag::PLACE];
        let slot = self.numbers.slot(number);
        if self.reply(number).is_some()
            || block.read(self.shape.place_at(slot), &mut lines).is_err()
        {
            return;
        }
        let Some((addr, key, len)) = flag::placed(&lines, number) else {
            return;
        };
        let (info, ready) = (slot * Place::ROOM, word::word(number, WordKind::Ready, len));
        let place = Place {
            addr,
            keys: [Some(key), None, None, None],
        };
        // Pinned memory, which the CPU reaches: it cannot fail.
        let _ = self.memory.region().write(info, &place.encode());
        let _ = self.ready(number).store(ready);
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
        !self.is_opening() && last.all(|number| self.is_taken(number))
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
    /// the word's 16 bits would soon compare as a later number. A stream that waits for the slot of a short message
    /// sets the word to the number of that message: the receive of a short message writes no ready word,
    /// and the next receive in the slot is posted after it.
    pub fn stale(&self, number: u64) -> Option<&Word64> {
        let ready = self.ready(number);
        stale_value(ready, number, self.shape.depth).map(|_| ready)
    }

    /// Refreshes the ready word of message `number` before the message is sent, if the word is stale.
    pub fn refresh_ready(&self, number: u64) {
        refresh(self.ready(number), number, self.shape.depth);
    }

    /// Whether receives that streams post may name their memory in device memory, and write no ready word.
    pub fn has_device_block(&self) -> bool {
        self.side.device_block.is_some()
    }

    /// What a stream does before message `number`: it waits for the credit, unless that is known. Before a
    /// `short` message it also stores a value into a stale ready word. `by_kernel`: the kernel of the
    /// message waits. A word that the CPU can refresh now does not get the number of the message, because the
    /// message may yet be refused.
    #[inline]
    pub fn lead_in(&self, number: u64, short: bool, by_kernel: bool) -> LeadIn<'_> {
        let blocked = self.blocked_by(number);
        let stale = self.stale(number).filter(|_| short);
        if blocked.is_none() && stale.is_some() {
            self.refresh_ready(number);
            return LeadIn::default();
        }
        if by_kernel && stale.is_none() {
            return LeadIn::default();
        }
        // The credit comes in device memory or in host memory: a kernel waits for either.
        let credit = self
            .side
            .device_block
            .is_some()
            .then(|| self.credit(number));
        let credit = credit.filter(|credit| credit.taken != 0);
        let blocked = blocked.filter(|_| credit.is_none());
        LeadIn {
            wait: blocked.map(|(taken, before)| (taken, word::threshold(before))),
            credit,
            store: stale.map(|ready| (ready, word::threshold(number))),
        }
    }

    /// The memory of the receive of `number`, if that receive is posted and has room for `len`
    /// bytes.
    pub fn known_place(&self, number: u64, len: u64) -> Option<Span> {
        match self.reply(number)? {
            (Some(WordKind::Ready), room) if len <= room => self.place(number).ok(),
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
            && let Err(e) = block.write(self.shape.lost_at(), &u64::from(status.0).to_le_bytes())
        {
            tracing::debug!(target: "mp", "kernels do not find the peer lost: {e}");
        }
        let words = self.side.ready.iter().chain(&self.taken);
        store_failure(words, self.numbers.next(), status);
    }
}

/// Sets rooms that the peer has named, which it may name again.
fn adopt_rooms(known: &mut Option<Rooms>, rooms: Rooms) -> Result<()> {
    let mut memory = known.as_ref().map(|known| (known.memory, known.flags));
    adopt(&mut memory, (rooms.memory, rooms.flags))?;
    known.get_or_insert(rooms);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A channel of 4 slots.
    fn channel() -> SendChannel {
        let gpu = gdsync::Gpu::soft().unwrap();
        let device = gdsync::rdma::Device::emulated(&gpu).unwrap();
        let shape = Shape {
            depth: 4,
            eager: 64,
            start: 0,
            zero_sm: false,
        };
        SendChannel::new(&Paths::for_test(&device), 1, shape).unwrap()
    }

    /// A send of the CPU refreshes the word, and may then not be posted: a long message gets its number.
    #[test]
    fn refreshed_ready_word_is_no_reply() {
        let channel = channel();
        for number in (1..20).map(|i| i * WINDOW + 1) {
            channel.refresh_ready(number);
            assert!(channel.stale(number).is_none());
            assert_eq!(channel.reply(number), None);
        }
        let ready = word::word(20 * WINDOW, WordKind::Ready, 100);
        channel.ready(0).store(ready).unwrap();
        channel.refresh_ready(20 * WINDOW);
        assert_eq!(channel.ready(0).load().unwrap(), ready);
    }

    #[test]
    fn refusal_keeps_the_ready_word_of_the_next_receive_in_its_slot() {
        let channel = channel();
        let later = word::word(4, WordKind::Ready, 100);
        channel.ready(0).store(later).unwrap();
        for number in [0, 1] {
            channel.refuse(number);
        }
        assert_eq!(channel.ready(0).load().unwrap(), later);
        assert_eq!(channel.reply(1), Some((Some(WordKind::Refused), 0)));
    }
}
