//! Message numbers: the next number, its slot, and the number of messages that may be in flight.
//!
//! Message n uses slot n modulo the depth on both sides, so equal numbers use the same slot.

use std::ops::Range;

use crate::wire::control::Shape;
use crate::wire::word;

/// Number of messages of one channel that may be in flight: much less than half of the range of a
/// word's 16 bits.
pub(crate) const WINDOW: u64 = 8192;

/// The numbers of one side of a channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    next: u64,
    first: u64,
    /// A power of two.
    depth: u64,
}

impl Numbers {
    pub fn new(shape: &Shape) -> Numbers {
        Numbers {
            next: shape.start,
            first: shape.start,
            depth: shape.depth.into(),
        }
    }

    /// The number of the next message.
    #[inline]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Gives the next message its number.
    #[inline]
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Whether any message has a number.
    pub fn is_used(&self) -> bool {
        self.next != self.first
    }

    /// Whether `number` is the newest, so that it can be released.
    pub fn is_newest(&self, number: u64) -> bool {
        self.next == number + 1
    }

    /// Releases the newest number.
    pub fn give_back(&mut self) {
        self.next -= 1;
    }

    /// The slot of message `number`.
    #[inline]
    pub fn slot(&self, number: u64) -> usize {
        // The depth is a power of two, so no division is needed.
        (number & (self.depth - 1)) as usize
    }

    /// The previous message in the slot; `None` for the first message in it.
    #[inline]
    pub fn previous(&self, number: u64) -> Option<u64> {
        (number - self.first >= self.depth).then(|| number - self.depth)
    }

    /// The newest message of each slot before `end`.
    pub fn last(&self, end: u64) -> Range<u64> {
        end.saturating_sub(self.depth).max(self.first)..end
    }

    /// Whether the window is full, so that no further message gets a number; `taken` returns
    /// whether a message was taken.
    #[inline]
    pub fn is_full(&self, taken: impl FnOnce(u64) -> bool) -> bool {
        let oldest = self.next.checked_sub(WINDOW).filter(|n| *n >= self.first);
        oldest.is_some_and(|oldest| !taken(oldest))
    }

    /// The value of a slot's words before its first message.
    pub fn before(&self, slot: usize) -> u64 {
        let ahead = (slot as u64).wrapping_sub(self.first) % self.depth;
        word::before(self.first.wrapping_add(ahead), self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(start: u64) -> Numbers {
        let (depth, eager) = (4, 64);
        Numbers::new(&Shape {
            depth,
            eager,
            start,
            zero_sm: false,
        })
    }

    #[test]
    fn a_slot_is_used_again_after_the_depth() {
        let numbers = numbers(6);
        assert_eq!([6, 7, 8, 9, 10].map(|n| numbers.slot(n)), [2, 3, 0, 1, 2]);
        assert_eq!([6, 9].map(|n| numbers.previous(n)), [None; 2]);
        assert_eq!(numbers.previous(10), Some(6));
        assert_eq!([6, 8, 20].map(|n| numbers.last(n)), [6..6, 6..8, 16..20]);
        // The initial word of a slot belongs to no message of the slot.
        for n in 6..10 {
            let before = numbers.before(numbers.slot(n));
            assert!(!word::reached(before, n) && word::reached(before, n - 4));
        }
    }

    #[test]
    fn window_is_full_until_its_oldest_message_is_taken() {
        let mut numbers = numbers(3);
        for _ in 0..WINDOW {
            assert!(!numbers.is_full(|_| false));
            numbers.advance();
        }
        assert!(numbers.is_full(|_| false));
        assert!(!numbers.is_full(|n| n == 3));
    }

    #[test]
    fn only_the_newest_number_can_be_released() {
        let mut numbers = numbers(0);
        assert!(!numbers.is_used());
        numbers.advance();
        numbers.advance();
        assert!(numbers.is_used() && numbers.is_newest(1) && !numbers.is_newest(0));
        numbers.give_back();
        assert_eq!(numbers.next(), 1);
    }
}
