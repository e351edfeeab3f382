//! The sending side of a channel: its return block, and where messages go.

use gdsync::Status;
use gdsync::gpu::Word64;

use super::{Channel, PAIR, SendChannel, WINDOW, store_failure};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::path::{Keys, List, Paths, Piece, Rights, Span};
use crate::wire::control::Shape;
use crate::wire::record::{Place, Record};
use crate::wire::word::{self, WordKind};

/// What only a sender has. Its memory is the return block.
pub(crate) struct Sending {
    /// Position of the channel's last use in the order of requests.
    pub last_use: u64,
    /// That of its first use.
    pub first_use: u64,
    /// The peer was asked whether it can go.
    pub retiring: bool,
    /// By slot: the receive is there.
    ready: Vec<Word64>,
    /// Stamps that kernels write and the NIC reads; made when first needed.
    stamps: Option<Keys>,
}

impl SendChannel {
    pub fn new(paths: &Paths, peer: u32, shape: Shape) -> Result<SendChannel> {
        let block = paths.pinned(shape.block_len(), Rights::Words)?;
        let side = Sending {
            last_use: u64::MAX,
            first_use: u64::MAX,
            retiring: false,
            ready: shape.words(&block, |slot| shape.ready_at(slot))?,
            stamps: None,
        };
        let taken = shape.words(&block, |slot| shape.taken_at(slot))?;
        Ok(Channel::of(paths.to(peer), shape, block, taken, side))
    }

    /// The peer's mailbox is known now.
    pub fn open(&mut self, mailbox: &[Record]) -> Result<()> {
        self.adopt(mailbox, self.shape.mailbox_len())
    }

    pub fn is_open(&self) -> bool {
        self.remote.is_some() && !self.side.retiring
    }

    /// Whether every message was taken.
    pub fn is_idle(&self) -> bool {
        let mut last = self.numbers.last(self.numbers.next());
        self.is_open() && last.all(|number| self.is_taken(number))
    }

    /// What to wait for until the slot of `number` is free; `None`: it is.
    pub fn room(&self, number: u64) -> Option<(&Word64, u64)> {
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

    /// The word that says that the receive of `number` is there.
    #[inline]
    pub fn ready(&self, number: u64) -> &Word64 {
        &self.side.ready[self.numbers.slot(number)]
    }

    /// The word of the receive of `number`, if only short messages used its slot for so long that
    /// its 16 bits would soon tell of the future. Who sends a short message makes it tell of that
    /// one: its receive has nothing to say, and the next in the slot is not there before it.
    pub fn stale(&self, number: u64) -> Option<&Word64> {
        // Once in so many messages for each slot: at most twice as old, 16 bits tell it still.
        if number % WINDOW >= u64::from(self.shape.depth) {
            return None;
        }
        let ready = self.ready(number);
        let age = |w: u64| (number as u16).wrapping_sub(word::parse(w).0);
        let old = ready.load().is_ok_and(|w| u64::from(age(w)) > WINDOW);
        old.then_some(ready)
    }

    /// What a stream does before message `number`: it waits for room, if that is not known to be
    /// there, and, before a `short` one, sees to it that the word of its receive does not grow old.
    #[inline]
    pub fn lead_in<'a, const N: usize>(
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

    /// Where an eager message goes.
    pub fn payload(&self, number: u64) -> Result<Span> {
        let at = self.shape.payload_at(self.numbers.slot(number));
        self.span(at, self.shape.room())
    }

    /// Where both words of a message go.
    pub fn pair(&self, number: u64) -> Result<Span> {
        self.span(self.numbers.slot(number) * PAIR, PAIR)
    }

    /// What the receive of `number` said, if it is there.
    pub fn reply(&self, number: u64) -> Option<(Option<WordKind>, u64)> {
        let w = self.ready(number).load().ok()?;
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
        let ready = self.ready(number);
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
        let at = self.numbers.slot(number) * Place::ROOM;
        self.memory.region().read(at, &mut bytes)?;
        Span::of(self.path, &Place::decode(&bytes))
    }

    /// Address of that, for kernels.
    pub fn place_addr(&self, number: u64) -> u64 {
        self.memory.region().addr().0 + (self.numbers.slot(number) * Place::ROOM) as u64
    }

    /// Makes the memory of the stamps, with the first message that needs it, as the channel's other
    /// memory under the context's lock and before anything is posted: pinned memory belongs to a
    /// driver context of gdsync's, which no waiting stream holds up.
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

    /// Its address, for kernels.
    pub fn stamp_addr(&self, number: u64) -> u64 {
        let at = (self.numbers.slot(number) * PAIR) as u64;
        let stamps = self.side.stamps.as_ref();
        stamps.map_or(0, |stamps| stamps.region().addr().0 + at)
    }

    /// Lets every stream pass that waits here, with `status`.
    pub fn release(&self, status: Status) {
        let words = self.side.ready.iter().chain(&self.taken);
        store_failure(words, self.numbers.next(), status);
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
        let channel = SendChannel::new(&Paths::of(&device), 1, shape).unwrap();
        let later = word::word(4, WordKind::Ready, 100);
        channel.ready(0).store(later).unwrap();
        for number in [0, 1] {
            channel.refuse(number);
        }
        assert_eq!(channel.ready(0).load().unwrap(), later);
        assert_eq!(channel.reply(1), Some((Some(WordKind::Refused), 0)));
    }
}
