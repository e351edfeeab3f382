//! The protocol of a channel of zero-SM messages, without memory, streams and clocks: the words of an
//! entry, and the messages that a side has in flight.
//!
//! Message n uses entry n modulo [`ENTRIES`]. Addresses and lengths of a copy engine are constants, so a copy is
//! enqueued when its source and its destination are known. The two ranks agree by the *agreement word* which half
//! was enqueued first, and with it which side copies:
//! - The receive: the sender's stream waits until the receive is `ready`, copies to its memory, and
//!   stores `sent`.
//! - The send, of a short message: the sender's stream copies to a slot in memory of the receiver and stores
//!   `sent`; the stream that waits for the receive copies from there and stores `done`.
//! - The send, of a long message: the sender's stream stores `sent`; the stream that waits for the receive
//!   copies from the memory of the send and stores `done`.
//!
//! An entry is used again when both sides have *settled* its message: they need none of its words any more.
//! So no word is stored or awaited for two messages at a time.

use std::collections::VecDeque;

use crate::request::zero_sm::Way;

/// Number of entries: a side is at most so many messages ahead of what both sides have settled.
pub const ENTRIES: u64 = 256;
/// Number of slots for short messages whose receive is not posted.
pub const SLOTS: u64 = 16;

/// The half of a message that was enqueued first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    Receive,
    Send,
}

/// The agreement word of a message. Smaller values are of earlier messages of the entry.
pub fn agreement(number: u64, first: First) -> u64 {
    let first = match first {
        First::Receive => 1,
        First::Send => 2,
    };
    4 * (number + 1) + first
}

/// What an agreement word says about a message: `None` if no half was enqueued.
///
/// # Errors
/// The word, if no rank stores it for the message or an earlier one of the entry.
pub fn agreed(word: u64, number: u64) -> Result<Option<First>, u64> {
    match word.checked_sub(4 * (number + 1)) {
        None => Ok(None),
        Some(1) => Ok(Some(First::Receive)),
        Some(2) => Ok(Some(First::Send)),
        Some(_) => Err(word),
    }
}

/// The value that the words `ready`, `sent`, `done` and `cut` of a message take.
pub fn value(number: u64) -> u64 {
    2 * (number + 1)
}

/// The value by which a rank releases its own streams from their wait for a word of the peer, and for which
/// they wait. It is smaller than the word's value, for which all others wait, and greater than that of
/// earlier messages of the entry.
pub fn released(number: u64) -> u64 {
    value(number) - 1
}

/// Whether a word has the value of a message, or of a later one of its entry.
pub fn has(word: u64, number: u64) -> bool {
    reaches(word, value(number))
}

/// Whether a stream that waits for `value` passes on every GPU. Words with the highest bit set are of a hostile
/// peer: GPUs that compare cyclically and others differ in them, so the CPU takes none for a message.
pub fn reaches(word: u64, value: u64) -> bool {
    word.cast_signed() >= 0 && word >= value
}

/// A message in flight, of one side.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub way: Way,
    /// Bytes of the message, or of the room of the receive.
    pub len: u64,
    /// The earlier message for whose slot the stream of a short one waits.
    pub behind: Option<u64>,
    /// The CPU copies a send, and no stream does.
    pub queued: bool,
    /// The request has ended.
    pub ended: bool,
    /// This rank has released its streams: the message is lost.
    pub lost: bool,
    /// The receive has ended without its message, which is to be acknowledged.
    pub discards: bool,
}

impl Flight {
    pub fn new(way: Way, len: u64) -> Flight {
        Flight {
            way,
            len,
            behind: None,
            queued: false,
            ended: false,
            lost: false,
            discards: false,
        }
    }
}

/// The messages of one side that are not settled.
#[derive(Debug, Default)]
pub struct Window {
    settled: u64,
    flights: VecDeque<Flight>,
}

impl Window {
    /// The number of the next message.
    pub fn next(&self) -> u64 {
        self.settled + self.flights.len() as u64
    }

    /// Number of messages that this side has settled: all with smaller numbers.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Whether the entry of the next message is in use by this side or by the other one, which has settled
    /// `theirs` messages.
    pub fn is_full(&self, theirs: u64) -> bool {
        self.next() >= ENTRIES + self.settled.min(theirs)
    }

    /// Adds the next message.
    pub fn push(&mut self, flight: Flight) {
        self.flights.push_back(flight);
    }

    pub fn get(&self, number: u64) -> Option<&Flight> {
        let at = number.checked_sub(self.settled)?;
        self.flights.get(usize::try_from(at).ok()?)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Flight> {
        let at = number.checked_sub(self.settled)?;
        self.flights.get_mut(usize::try_from(at).ok()?)
    }

    /// The messages with their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Flight)> {
        (self.settled..).zip(&mut self.flights)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Flight)> {
        (self.settled..).zip(&self.flights)
    }

    /// Settles messages from the oldest on, as long as `over` holds. `true`: there was one.
    pub fn settle(&mut self, mut over: impl FnMut(u64, &Flight) -> bool) -> bool {
        let before = self.settled;
        while let Some(first) = self.flights.front()
            && over(self.settled, first)
        {
            self.flights.pop_front();
            self.settled += 1;
        }
        self.settled != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_words_of_an_entry_grow_and_name_the_first_half() {
        for number in [0, 1, 300, 1 << 40] {
            for first in [First::Receive, First::Send] {
                let word = agreement(number, first);
                assert_eq!(agreed(word, number), Ok(Some(first)));
                assert_eq!(agreed(word, number + ENTRIES), Ok(None));
                // The word of a later message of the entry is no answer for this one.
                assert!(number < ENTRIES || agreed(word, number - ENTRIES).is_err());
            }
        }
        assert_eq!(agreed(0, 0), Ok(None));
        assert!(agreed(4, 0).is_err() && agreed(7, 0).is_err() && agreed(u64::MAX, 0).is_err());
    }

    #[test]
    fn value_that_releases_own_streams_is_between_those_of_two_messages_of_an_entry() {
        for number in [0, 5, ENTRIES, 1 << 40] {
            let (own, others) = (released(number), value(number));
            assert!(own < others && !has(own, number) && has(others, number));
            assert!(has(value(number + ENTRIES), number));
            let before = number.checked_sub(ENTRIES).map_or(0, value);
            assert!(before < own && !has(before, number));
            let hostile = [1 << 63, u64::MAX];
            assert!(
                hostile
                    .iter()
                    .all(|w| !has(*w, number) && !reaches(*w, own))
            );
        }
    }

    #[test]
    fn entries_are_free_when_both_sides_have_settled_their_messages() {
        let mut window = Window::default();
        for number in 0..ENTRIES {
            assert!(!window.is_full(0), "{number}");
            window.push(Flight::new(Way::Direct, number));
        }
        assert!(window.is_full(0) && window.is_full(u64::MAX));
        window.get_mut(1).unwrap().ended = true;
        assert!(!window.settle(|_, flight| flight.ended));
        window.get_mut(0).unwrap().ended = true;
        assert!(window.settle(|_, flight| flight.ended));
        assert_eq!((window.settled(), window.next()), (2, ENTRIES));
        assert!(window.is_full(0) && !window.is_full(1) && !window.is_full(u64::MAX));
        assert_eq!(window.get(2).unwrap().len, 2);
        assert!(window.get(1).is_none() && window.get(ENTRIES).is_none());
    }
}
