//! The numbers that the two sides of a connection exchange: executed requests and posted receives.
//! Pure.

use std::time::Instant;

use crate::provider::tcp::delay::Delay;
use crate::provider::tcp::frame::{Head, Kind};

/// Number of executed requests whose count does not wait.
const ACK_AT: u64 = 32;
/// If the peer may still take this many receives, new ones are announced only by a frame with other
/// content, or with the count of executed requests.
const ENOUGH: u16 = 32;

/// Numbers of receives are modulo 2^16.
#[derive(Default)]
pub struct Counts {
    /// Number of the peer's requests that are executed, and that the peer knows to be.
    executed: u64,
    acked: u64,
    /// Number of receives that this side has posted, that the peer knows of, and that it has taken.
    posted: u16,
    announced: u16,
    taken: u16,
    /// Number of receives that the peer has announced, and that requests of this side have taken.
    peer_announced: u16,
    peer_taken: u16,
    delay: Delay,
}

impl Counts {
    /// The head with the counts, which the peer then knows.
    pub fn stamp(&mut self, head: Head) -> Head {
        (self.acked, self.announced) = (self.executed, self.posted);
        self.delay.sent(head.kind != Kind::Ack);
        Head {
            ack: self.executed,
            receives: self.posted,
            ..head
        }
    }

    /// The peer has announced receives up to this number.
    pub fn heard(&mut self, receives: u16) {
        self.peer_announced = receives;
    }

    /// Whether the peer has a receive that no request has taken.
    pub fn may_take(&self) -> bool {
        self.peer_announced != self.peer_taken
    }

    /// A request of this side takes a receive of the peer.
    pub fn take(&mut self) {
        self.peer_taken = self.peer_taken.wrapping_add(1);
    }

    pub fn executed(&mut self) {
        self.executed += 1;
    }

    pub fn posted(&mut self) {
        self.posted = self.posted.wrapping_add(1);
    }

    /// A request of the peer has taken a receive.
    pub fn taken(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Number of receives that the peer may still take, as far as it knows.
    fn offered(&self) -> u16 {
        self.announced.wrapping_sub(self.taken)
    }

    /// Whether there are receives that the peer may wait for.
    fn has_receives(&self) -> bool {
        self.announced != self.posted && self.offered() < ENOUGH
    }

    /// Whether the peer lacks a count that it may wait for.
    pub fn has_news(&self) -> bool {
        self.has_receives() || self.acked != self.executed
    }

    /// Whether the peer lacks a count that must not wait for another frame.
    pub fn is_urgent(&self) -> bool {
        self.has_receives() && self.offered() == 0 || self.executed - self.acked >= ACK_AT
    }

    /// Whether the counts that the peer lacks have waited for another frame long enough.
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.delay.is_over(now)
    }

    /// A frame has the counts alone, because they were due.
    pub fn sent_alone(&mut self, now: Instant) {
        self.delay.sent_alone(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wait_for_other_frames_up_to_a_limit() {
        let mut counts = Counts::default();
        for n in 1..ACK_AT {
            counts.executed();
            assert!(counts.has_news() && !counts.is_urgent(), "{n}");
        }
        counts.executed();
        assert!(counts.is_urgent());
        assert_eq!(counts.stamp(Head::new(Kind::Ack, 0)).ack, ACK_AT);
        assert!(!counts.has_news() && !counts.is_urgent());
    }

    #[test]
    fn receives_are_announced_alone_to_a_peer_with_few() {
        let mut counts = Counts::default();
        // The numbers wrap.
        for _ in 0..2 << 16 {
            assert!(!counts.has_news());
            counts.posted();
            assert!(counts.has_news() && counts.is_urgent(), "the peer has none");
            counts.stamp(Head::new(Kind::Ack, 0));
            counts.posted();
            assert!(counts.has_news() && !counts.is_urgent(), "the peer has one");
            counts.stamp(Head::new(Kind::Ack, 0));
            counts.taken();
            counts.taken();
        }
        for n in 0..ENOUGH {
            counts.posted();
            assert!(counts.has_news(), "{n}");
            counts.stamp(Head::new(Kind::Ack, 0));
        }
        counts.posted();
        assert!(!counts.has_news());
        counts.taken();
        assert!(counts.has_news());
    }

    #[test]
    fn a_request_takes_a_receive_that_is_announced() {
        let mut counts = Counts::default();
        for n in 1..=(2_u32 << 16) {
            assert!(!counts.may_take());
            counts.heard(n as u16);
            assert!(counts.may_take());
            counts.take();
        }
    }
}
