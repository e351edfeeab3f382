//! [`Batch`]: puts that are prepared together on a lane, all or none, and posted in order.

use gdsync::Stream;

use super::{Atomic, Lane, Path, Piece, Span, copy, foreign, nic};
use crate::error::{Error, Kind, Result};
use crate::kernels::{Credit, Direct, Flag, MOST_CHUNKS, Name, Relay};

const PREPARE: &str = "prepare request";

/// A put that is prepared on a lane, in flight, or done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Nic(nic::Put),
    Copy(copy::Put),
}

impl Put {
    /// Whether its kernel waits for the credit of its message, so that the stream does not.
    pub fn takes_credit(&self) -> bool {
        matches!(self, Put::Copy(put) if put.takes_credit())
    }

    /// Whether a kernel reports its end in device memory.
    pub fn reports(&self) -> bool {
        matches!(self, Put::Copy(put) if put.reports())
    }

    /// Whether its kernel waits for a peer.
    pub fn waits(&self) -> bool {
        matches!(self, Put::Copy(put) if put.waits)
    }

    /// Whether its kernel waits for a receive.
    pub fn waits_for_receive(&self) -> bool {
        matches!(self, Put::Copy(put) if put.waits_for_receive())
    }

    /// Whether it is a copy.
    pub fn is_copy(&self) -> bool {
        matches!(self, Put::Copy(_))
    }

    pub(super) fn nic(&self) -> Option<nic::Put> {
        match self {
            Put::Nic(put) => Some(*put),
            Put::Copy(_) => None,
        }
    }

    pub(super) fn copy(&self) -> Option<copy::Put> {
        match self {
            Put::Nic(_) => None,
            Put::Copy(put) => Some(*put),
        }
    }
}

/// Puts that are prepared all or not at all. At most `N`.
pub(crate) struct Batch<'q, const N: usize = { MOST_CHUNKS + 3 }> {
    lane: &'q mut Lane,
    made: [Option<Put>; N],
    count: usize,
}

impl<'q> Batch<'q> {
    /// A batch for the puts of the longest message.
    pub fn new(lane: &'q mut Lane) -> Batch<'q> {
        Batch::of(lane)
    }
}

impl<'q> Batch<'q, 3> {
    /// A batch for the three puts of a short message.
    pub fn short(lane: &'q mut Lane) -> Batch<'q, 3> {
        Batch::of(lane)
    }
}

impl<'q, const N: usize> Batch<'q, N> {
    fn of(lane: &'q mut Lane) -> Batch<'q, N> {
        Batch {
            lane,
            made: [None; N],
            count: 0,
        }
    }

    /// Keeps a put that was prepared; undoes the whole batch if one is refused.
    #[inline]
    fn keep(&mut self, made: Result<Put>) -> Result<Put> {
        match made {
            Ok(put) => {
                self.made[self.count] = Some(put);
                self.count += 1;
                Ok(put)
            }
            Err(e) => {
                self.undo();
                Err(e)
            }
        }
    }

    /// Prepares a put of pieces of memory, concatenated; at most
    /// [`MOST_PIECES`](super::MOST_PIECES) pieces and [`MOST_BYTES`](super::MOST_BYTES) bytes.
    #[inline]
    pub fn put<'a>(
        &mut self,
        pieces: impl ExactSizeIterator<Item = Piece<'a>>,
        to: Span,
    ) -> Result<Put> {
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, path| {
                lane.put(pieces.map(|piece| piece.nic(path)), to)
            }),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.put(pieces.map(Piece::copy), to)),
        };
        self.keep(made)
    }

    /// Prepares a put of one piece, whose completion can be waited for.
    #[inline]
    pub fn put_signaled(&mut self, piece: Piece<'_>, to: Span) -> Result<Put> {
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, path| {
                lane.put_signaled(piece.nic(path)?, to)
            }),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.put([piece.copy()].into_iter(), to)),
        };
        self.keep(made)
    }

    /// Prepares a get: a copy of the peer's memory `from` to `into`, after all earlier puts of this
    /// lane. Its completion can be waited for.
    #[inline]
    pub fn get(&mut self, into: Piece<'_>, from: Span) -> Result<Put> {
        let made = match from {
            Span::Nic(from) => on_nic(self.lane, |lane, path| lane.get(into.nic(path)?, from)),
            Span::Copy(from) => {
                by_copy(self.lane, |lane| lane.get(into.copy_span(), into.len, from))
            }
        };
        self.keep(made)
    }

    /// Prepares an atomic operation on a word of the peer; `old` receives the old value.
    ///
    /// # Errors
    /// `Unsupported` on the path of a rank to itself: the NICs of other ranks would not be atomic
    /// with it.
    #[inline]
    pub fn atomic(&mut self, old: Piece<'_>, word: Span, atomic: Atomic) -> Result<Put> {
        let made = match word {
            Span::Nic(word) => on_nic(self.lane, |lane, path| {
                lane.atomic(old.nic(path)?, word, atomic)
            }),
            Span::Copy(_) => {
                let what = "the word is in memory of this rank itself, where NICs execute the \
                            atomics of other ranks, and neither the CPU nor a kernel is atomic \
                            with them; use a word of another rank";
                Err(Error::new(PREPARE, Kind::Unsupported, what))
            }
        };
        self.keep(made)
    }

    /// Orders later puts of this lane after the earlier ones, if the path does not order them;
    /// `to`: memory of the peer, at least one word.
    pub fn fence(&mut self, to: Span) -> Result<()> {
        self.look(to)?;
        if let (Some(lane), Span::Nic(to)) = (&mut self.lane.nic, to)
            && let Some(made) = lane.fence(to)
        {
            self.keep(made.map(Put::Nic))?;
        }
        Ok(())
    }

    /// Prepares a put of 64-bit words in memory, each written atomically.
    #[inline]
    pub fn put_words(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, path| lane.put_words(words.nic(path)?, to)),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.put_words(words.copy(), to)),
        };
        self.keep(made)
    }

    /// Prepares a put of a few bytes, which are copied now (inline).
    #[inline]
    pub fn put_bytes(&mut self, bytes: &[u8], to: Span) -> Result<Put> {
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, _| lane.put_bytes(bytes, to)),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.put_bytes(bytes, to)),
        };
        self.keep(made)
    }

    /// Prepares a put of one word, which is copied now and has no order with other puts. Its
    /// completion can be waited for.
    #[inline]
    pub fn put_word(&mut self, word: u64, to: Span) -> Result<Put> {
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, _| lane.put_word(word, to)),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.announce(&word.to_le_bytes(), to)),
        };
        self.keep(made)
    }

    /// Prepares a put of words, copied now, that become visible only after all earlier puts of this
    /// lane. Its completion is the completion of the batch.
    #[inline]
    pub fn announce(&mut self, words: &[u8], to: Span) -> Result<Put> {
        self.look(to)?;
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, _| lane.announce(words, to)),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.announce(words, to)),
        };
        self.keep(made)
    }

    /// Prepares a message of at most one piece to a flagged room; see [`copy::Lane::flag`].
    #[inline]
    pub fn flag(&mut self, piece: Option<Piece<'_>>, room: Span, params: Flag) -> Result<Put> {
        self.reporting(room, |lane, room| {
            lane.flag(piece.map(Piece::copy), room, params)
        })
    }

    /// Prepares a message of one piece to the memory of its receive; see [`copy::Lane::direct`].
    pub fn direct(&mut self, piece: Piece<'_>, room: Span, params: Direct) -> Result<Put> {
        self.reporting(room, |lane, room| lane.direct(piece.copy(), room, params))
    }

    /// Prepares the name of a receive's memory; see [`copy::Lane::name`].
    pub fn name(&mut self, to: Span, params: Name) -> Result<Put> {
        self.reporting(to, |lane, to| lane.name(to, params))
    }

    /// Prepares a wait for the credit of a message; see [`copy::Lane::credit`].
    pub fn credit(&mut self, slot: Credit) -> Result<Put> {
        let made = by_copy(self.lane, |lane| lane.credit(slot));
        self.keep(made)
    }

    /// Prepares a wait for the name of a receive's memory; see [`copy::Lane::relay`].
    pub fn relay(&mut self, params: Relay) -> Result<Put> {
        let made = by_copy(self.lane, |lane| lane.relay(params));
        self.keep(made)
    }

    fn reporting(
        &mut self,
        to: Span,
        make: impl FnOnce(&mut copy::Lane, copy::Span) -> Result<copy::Put>,
    ) -> Result<Put> {
        let made = match to {
            Span::Copy(to) => by_copy(self.lane, |lane| make(lane, to)),
            Span::Nic(_) => Err(foreign(PREPARE)),
        };
        self.keep(made)
    }

    /// As [`Batch::announce`], for words that are read when the put is executed.
    pub fn announce_from(&mut self, words: Piece<'_>, to: Span) -> Result<Put> {
        self.look(to)?;
        let made = match to {
            Span::Nic(to) => on_nic(self.lane, |lane, path| {
                lane.announce_from(words.nic(path)?, to)
            }),
            Span::Copy(to) => by_copy(self.lane, |lane| lane.put_words(words.copy(), to)),
        };
        self.keep(made)
    }

    /// Prepares the READ that a NIC may need before words.
    #[inline]
    fn look(&mut self, to: Span) -> Result<()> {
        if let (Some(lane), Span::Nic(to)) = (&mut self.lane.nic, to)
            && let Some(made) = lane.look(to)
        {
            self.keep(made.map(Put::Nic))?;
        }
        Ok(())
    }

    /// Whether a put to `to` is by the NIC on a lane that also copies. Its completion must be
    /// observable, because copies may have to follow it: [`Lane::order`].
    pub fn mixes(&self, to: Span) -> bool {
        matches!(to, Span::Nic(_)) && self.lane.copy.is_some()
    }

    /// [`Lane::order`] for the puts of the batch.
    pub fn order(&mut self, stream: Option<&Stream>) -> Result<()> {
        let made = self.made[..self.count].iter().flatten().copied();
        self.lane.order(made, stream)
    }

    /// Checks that the destinations of the batch's copies are mapped; undoes it if one is not.
    ///
    /// # Errors
    /// `PeerFailed` if the peer has released the memory; the lane fails then.
    pub fn reach(&mut self) -> Result<()> {
        let Some(copy) = &mut self.lane.copy else {
            return Ok(());
        };
        let made = self.made[..self.count].iter().flatten();
        let reached = copy.reach(made.filter_map(Put::copy));
        if reached.is_err() {
            self.undo();
        }
        reached
    }

    /// The first three puts.
    pub fn first_three(&self) -> [Option<Put>; 3] {
        let mut all = self.all();
        [all.next(), all.next(), all.next()]
    }

    /// All puts, in their order.
    pub fn all(&self) -> impl Iterator<Item = Put> + '_ {
        self.made[..self.count].iter().flatten().copied()
    }

    /// Aborts all puts, the newest first.
    pub fn undo(&mut self) {
        let made = self.made[..self.count].iter_mut();
        for put in made.rev().filter_map(Option::take) {
            // It was prepared just now and not posted.
            let _ = self.lane.abort(put);
        }
        self.count = 0;
    }

    /// Posts all puts from the CPU. Returns the last one.
    pub fn post(self) -> Result<Put> {
        let made = &self.made[..self.count];
        self.lane.post(made.iter().flatten().copied())?;
        let last = made.last().copied().flatten();
        last.ok_or_else(|| Error::new("post request", Kind::Invalid, "the batch has no puts"))
    }

    /// The lane on which the puts are prepared, for its addresses.
    pub fn of_lane(&self) -> &Lane {
        self.lane
    }

    /// The lane on which the puts are prepared.
    pub fn lane(&mut self) -> &mut Lane {
        self.lane
    }
}

#[inline]
fn on_nic(
    lane: &mut Lane,
    make: impl FnOnce(&mut nic::Lane, Path) -> Result<nic::Put>,
) -> Result<Put> {
    let lane = lane.nic(PREPARE)?;
    let path = lane.path();
    make(lane, path).map(Put::Nic)
}

#[inline]
fn by_copy(
    lane: &mut Lane,
    make: impl FnOnce(&mut copy::Lane) -> Result<copy::Put>,
) -> Result<Put> {
    lane.copy(PREPARE).and_then(make).map(Put::Copy)
}
