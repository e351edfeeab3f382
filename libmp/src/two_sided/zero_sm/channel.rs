//! The two sides of a channel of zero-SM messages: the entries in host memory of the receiver, the slots
//! in its device memory, and the messages in flight.

use gdsync::Stream;
use gdsync::gpu::{Region, Word64};

use super::protocol::{
    ENTRIES, First, Flight, SLOTS, Window, agreed, agreement, has, reaches, released, value,
};
use crate::error::{Error, Kind, Result};
use crate::path::{Exported, Keys, List, Path, Paths, Remote, Rights};
use crate::request::zero_sm::Way;
use crate::wire::control::ZeroSmRoom;

pub(super) const OPEN: &str = "open zero-SM channel";

/// Bytes of the block: the numbers of messages that each side has settled, then the entries.
pub(super) const BLOCK_LEN: usize = FIRST_ENTRY + ENTRIES as usize * ENTRY;
const FIRST_ENTRY: usize = 128;
const ENTRY: usize = 128;

/// The words of the block. Each is stored by one party at a time, except by [`Entries::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Number of messages that the receiver has settled. Its CPU stores it; the CPU of the sender loads it
    /// before it uses an entry again.
    ReceiverSettled,
    /// The same of the sender, for the receiver.
    SenderSettled,
    /// The agreement word. The CPU that enqueues the first half compares and swaps it behind its own fields;
    /// the other one loads it before it reads them.
    Agreement,
    /// Of the receiver, before the agreement word or, if the send was first, before `done`: bytes of
    /// room.
    Capacity,
    /// The receiver's key of the memory of the receive, and the offset there.
    RoomKey,
    RoomOffset,
    /// Of the sender, before the agreement word or, if the receive was first, before `sent` or `cut`:
    /// bytes of the message.
    Len,
    /// The sender's key of the memory of a long message, and the offset there.
    SourceKey,
    SourceOffset,
    /// The slot of a short message, plus 1; 0 for a long one.
    Slot,
    /// The receive is reached: stored by the stream or the CPU that posts it. The sender's stream or CPU waits
    /// for it before it copies, as does a stream or the CPU that takes the message in for another stream.
    Ready,
    /// The sender has copied the message or, of a long one that was first, has reached the send: stored by the
    /// stream or the CPU that does. The receiver waits for it, and so do those that wait for a send that copies.
    Sent,
    /// The receiver has taken the message in: stored by the stream or the CPU that copies. The sender waits for
    /// it before it uses the slot again, or before a long send ends.
    Done,
    /// Nothing is copied, because the message is longer than its receive. If the receive was first, the sender's
    /// CPU stores it, behind `Len`, and the receiver's CPU loads it; for a long message that was first, the
    /// reverse. The CPU that loads it then stores `sent` or `done` for its own streams.
    /// Of a message in a slot: the sender's CPU stores it before it releases a stream that writes to the slot, and
    /// the receiver's CPU loads it behind its copy.
    Cut,
    /// The sender's CPU has copied a send, or will not, because the receiver was given up: streams of the sender that
    /// wait for a send by the CPU wait for it, and no other party loads it.
    Left,
}

impl Field {
    fn offset(self, number: u64) -> usize {
        let at = match self {
            Field::ReceiverSettled => return 0,
            Field::SenderSettled => return 64,
            Field::Agreement => 0,
            Field::Capacity => 8,
            Field::RoomKey => 16,
            Field::RoomOffset => 24,
            Field::Len => 32,
            Field::SourceKey => 40,
            Field::SourceOffset => 48,
            Field::Slot => 56,
            Field::Ready => 64,
            Field::Sent => 72,
            Field::Done => 80,
            Field::Cut => 88,
            Field::Left => 96,
        };
        FIRST_ENTRY + (number % ENTRIES) as usize * ENTRY + at
    }
}

/// The entries, as this rank reaches them.
pub struct Entries(Region);

impl Entries {
    /// A word of the entry of message `number`.
    pub fn word(&self, number: u64, field: Field) -> Result<Word64> {
        Ok(self.0.word64(field.offset(number))?)
    }

    /// 0 if it cannot be loaded: host memory, which the CPU reaches.
    pub fn load(&self, number: u64, field: Field) -> u64 {
        let word = self.0.word64(field.offset(number));
        word.and_then(|word| word.load()).unwrap_or(0)
    }

    pub fn store(&self, number: u64, field: Field, value: u64) {
        // Host memory, which the CPU reaches: it cannot fail.
        let _ = self.0.store_words(field.offset(number), &[value]);
    }

    /// Whether a word has the value of message `number`.
    pub fn has(&self, number: u64, field: Field) -> bool {
        has(self.load(number, field), number)
    }

    /// Stores the value of message `number` into a word.
    pub fn set(&self, number: u64, field: Field) {
        self.store(number, field, value(number));
    }

    /// Stores the value of message `number` into a word, by a stream or by the CPU.
    pub fn set_on(&self, stream: Option<&Stream>, number: u64, field: Field) -> Result<()> {
        let Some(stream) = stream else {
            self.set(number, field);
            return Ok(());
        };
        let word = self.word(number, field)?;
        let mut list = List::<2>::new();
        list.store(&word, value(number));
        // A stream that stores it has passed the waits of earlier messages.
        list.passed_by(&word, value(number));
        list.post(stream, None)
    }

    /// Releases the streams that wait for a word of message `number`.
    fn release(&self, number: u64, field: Field) {
        let Ok(word) = self.word(number, field) else {
            return;
        };
        // The peer may store the value meanwhile, which is greater, and may not be overwritten. Host memory, which
        // the CPU reaches: it cannot fail.
        for _ in 0..2 {
            let now = word.load().unwrap_or_default();
            if reaches(now, released(number)) {
                return;
            }
            let _ = word.compare_swap(now, released(number));
        }
    }

    /// The half of message `number` that was enqueued first; `None`: none was.
    ///
    /// # Errors
    /// `Protocol` for a word that no rank stores.
    pub fn agreed(&self, number: u64) -> Result<Option<First>> {
        let word = self.load(number, Field::Agreement);
        agreed(word, number).map_err(|word| {
            let what =
                format!("the peer has stored {word:#x} as the agreement on message {number}");
            Error::new("post zero-SM message", Kind::Protocol, what)
        })
    }

    /// Tries to make a half of message `number` the first one, behind the fields of this rank. `false`:
    /// the other rank was faster.
    ///
    /// # Errors
    /// As [`Entries::agreed`].
    pub fn agree(&self, number: u64, first: First) -> Result<bool> {
        let word = self.word(number, Field::Agreement)?;
        let now = word.load()?;
        match self.agreed(number)? {
            Some(_) => Ok(false),
            None => Ok(word.compare_swap(now, agreement(number, first))? == now),
        }
    }
}

/// The sending side of a channel.
pub struct Sends {
    pub entries: Entries,
    /// The memory of the slots, and their offset and size there.
    slots: Region,
    slots_at: usize,
    pub room: usize,
    pub window: Window,
    /// Number of messages that used a slot.
    staged: u64,
    /// By slot: the last message.
    last: [Option<u64>; SLOTS as usize],
}

impl Sends {
    /// Opens the side from the memory that the receiver has named.
    ///
    /// # Errors
    /// `Protocol` if the memory is not mapped, or has another size.
    pub fn open(paths: &Paths, room: usize, theirs: &ZeroSmRoom) -> Result<Sends> {
        let slots_len = SLOTS * room as u64;
        let region = |remote: Remote| {
            let region = remote.copy_key().and_then(|key| paths.copier().region(key));
            region.ok_or_else(|| {
                let what = "the peer named memory that is not mapped";
                Error::new(OPEN, Kind::Protocol, what)
            })
        };
        let block = Remote::read(Path::Ipc, &theirs.block, BLOCK_LEN)?;
        let slots = Remote::any(Path::Ipc, &theirs.slots)?;
        let end = theirs.offset.checked_add(slots_len);
        if end.is_none_or(|end| end > slots.len()) {
            let what = "the peer named memory that the slots do not fit in";
            return Err(Error::new(OPEN, Kind::Protocol, what));
        }
        Ok(Sends {
            entries: Entries(region(block)?),
            slots: region(slots)?,
            slots_at: theirs.offset as usize,
            room,
            window: Window::default(),
            staged: 0,
            last: [None; SLOTS as usize],
        })
    }

    /// Whether the entry of the next message is in use.
    pub fn is_full(&self) -> bool {
        let theirs = self.entries.load(0, Field::ReceiverSettled);
        self.window.is_full(theirs)
    }

    /// The slot for the next short message, and the message that used it before, if the receiver is not known to have
    /// taken that in.
    pub fn next_slot(&self) -> (u64, Option<u64>) {
        let slot = self.staged % SLOTS;
        let before = self.last[slot as usize];
        (slot, before.filter(|n| !self.entries.has(*n, Field::Done)))
    }

    /// The memory of a slot.
    pub fn slot(&self, slot: u64) -> (&Region, usize) {
        (&self.slots, self.slots_at + slot as usize * self.room)
    }

    /// Adds the next message.
    pub fn push(&mut self, flight: Flight) {
        if let Way::Staged { slot } = flight.way {
            self.last[slot as usize] = Some(self.window.next());
            self.staged += 1;
        }
        self.window.push(flight);
    }

    /// The word that a message sets when its send has ended.
    pub fn end(way: Way) -> Field {
        match way {
            Way::Direct | Way::Staged { .. } => Field::Sent,
            Way::Pulled => Field::Done,
        }
    }

    /// Whether the CPU may copy a message now.
    pub fn may_leave(&self, number: u64) -> bool {
        let Some(flight) = self.window.get(number) else {
            return false;
        };
        match flight.way {
            Way::Direct => self.entries.has(number, Field::Ready),
            _ => (flight.behind).is_none_or(|before| self.entries.has(before, Field::Done)),
        }
    }

    /// Whether a send waits for the peer: to reach the receive, to free the slot, or to take a long message in.
    pub fn lacks(&self, number: u64) -> bool {
        let Some(flight) = self.window.get(number) else {
            return false;
        };
        let has = |number, field| self.entries.has(number, field);
        match flight.way {
            Way::Direct => !has(number, Field::Ready),
            Way::Staged { .. } => flight
                .behind
                .is_some_and(|before| !has(before, Field::Done)),
            Way::Pulled => has(number, Field::Sent) && !has(number, Field::Done),
        }
    }

    /// Settles what both sides need no more. Calls `cut` with the short messages that were longer than their
    /// receives, and their lengths.
    pub fn settle(&mut self, mut cut: impl FnMut(u64, u64)) {
        let entries = &self.entries;
        let settled = self.window.settle(|number, flight| {
            let staged = matches!(flight.way, Way::Staged { .. });
            let over = flight.ended && (!staged || entries.has(number, Field::Done));
            if over && staged && entries.load(number, Field::Capacity) < flight.len {
                cut(number, flight.len);
            }
            over
        });
        if settled {
            entries.store(0, Field::SenderSettled, self.window.settled());
        }
    }

    /// Whether no send will copy: each has ended, or has stored `sent`.
    pub fn is_quiet(&self) -> bool {
        let mut flights = self.window.iter();
        flights.all(|(number, flight)| flight.ended || self.entries.has(number, Field::Sent))
    }

    /// Says which messages are in slots to which streams write once they are released, in any order.
    fn cut_slots(&self) {
        let mut written = [false; SLOTS as usize];
        for (number, flight) in self.window.iter() {
            if let (Way::Staged { slot }, Some(_)) = (flight.way, flight.behind) {
                written[slot as usize] |= !flight.queued && !self.entries.has(number, Field::Sent);
            }
        }
        for (number, flight) in self.window.iter() {
            if let Way::Staged { slot } = flight.way
                && written[slot as usize]
                && !self.entries.has(number, Field::Done)
            {
                self.entries.set(number, Field::Cut);
            }
        }
    }

    /// Releases the streams of this rank that wait for the peer. The error word is set.
    pub fn fail(&mut self) {
        self.cut_slots();
        for (number, flight) in self.window.iter_mut() {
            if flight.queued {
                self.entries.set(number, Field::Left);
            }
            flight.lost = !self.entries.has(number, Sends::end(flight.way));
            let awaited = match flight.way {
                Way::Direct => Some((number, Field::Ready)),
                Way::Staged { .. } => flight.behind.map(|before| (before, Field::Done)),
                Way::Pulled => Some((number, Field::Done)),
            };
            if let Some((number, field)) = awaited {
                self.entries.release(number, field);
            }
        }
    }
}

/// The receiving side of a channel.
pub struct Recvs {
    pub entries: Entries,
    /// Holds the registration of the entries.
    keys: Keys,
    slots: Exported,
    pub room: usize,
    pub window: Window,
    /// The program has posted a receive.
    pub used: bool,
    /// Number of messages in flight that are discarded.
    discards: usize,
}

impl Recvs {
    /// Makes the memory of a channel whose slots have `room` bytes.
    ///
    /// # Errors
    /// Those of the memory.
    pub fn make(paths: &Paths, room: usize) -> Result<Recvs> {
        let keys = paths.pinned(BLOCK_LEN, Rights::Words)?;
        keys.region().write(0, &[0; BLOCK_LEN])?;
        Ok(Recvs {
            entries: Entries(keys.region().clone()),
            slots: paths.copier().exported(SLOTS as usize * room)?,
            keys,
            room,
            window: Window::default(),
            used: false,
            discards: 0,
        })
    }

    /// What the sender must know.
    pub fn record(&self, tag: u32) -> Result<ZeroSmRoom> {
        Ok(ZeroSmRoom {
            tag,
            block: vec![self.keys.record(Path::Ipc)?],
            slots: vec![self.slots.record()],
            offset: self.slots.offset() as u64,
        })
    }

    /// Whether the entry of the next message is in use.
    pub fn is_full(&self) -> bool {
        let theirs = self.entries.load(0, Field::SenderSettled);
        self.window.is_full(theirs)
    }

    /// Adds the next message.
    pub fn push(&mut self, flight: Flight) {
        self.discards += usize::from(flight.discards);
        self.window.push(flight);
    }

    /// Whether the next message has arrived.
    pub fn has_next(&self) -> bool {
        self.entries.has(self.window.next(), Field::Sent)
    }

    /// Whether the sender has given this rank up, and may have written another message to the slot of the next one.
    pub fn has_lost_next(&self) -> bool {
        let number = self.window.next();
        self.has_next()
            && self.entries.load(number, Field::Slot) != 0
            && self.entries.has(number, Field::Cut)
    }

    /// The memory of a slot.
    pub fn slot(&self, slot: u64) -> (&Region, usize) {
        let at = self.slots.offset() + slot as usize * self.room;
        (self.slots.region(), at)
    }

    /// Acknowledges messages that are discarded, and settles what both sides need no more.
    pub fn settle(&mut self) {
        let entries = &self.entries;
        if self.discards > 0 {
            for (number, flight) in self.window.iter_mut() {
                if flight.discards && entries.has(number, Field::Sent) {
                    let field = match flight.way {
                        Way::Pulled => Field::Cut,
                        _ => Field::Done,
                    };
                    entries.set(number, field);
                    flight.discards = false;
                    self.discards -= 1;
                }
            }
        }
        // A receive that has failed may have ended before its stream reaches it.
        let settled = (self.window).settle(|number, flight| {
            flight.ended && !flight.discards && entries.has(number, Field::Ready)
        });
        if settled {
            entries.store(0, Field::ReceiverSettled, self.window.settled());
        }
    }

    /// Releases the streams of this rank that wait for the peer.
    pub fn fail(&mut self) {
        for (number, flight) in self.window.iter_mut() {
            flight.lost = !self.entries.has(number, Field::Sent);
            self.entries.release(number, Field::Sent);
        }
    }
}
