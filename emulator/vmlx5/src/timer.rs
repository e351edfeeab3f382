//! Timeouts: their lengths, and which queue pairs have one running.
//!
//! A queue pair keeps its own deadline and moves it without an update of the list. The list here
//! contains the queue pairs that may have a deadline, and a time before which none is due. So a
//! message costs nothing, and the NIC reads the list about once per timeout.

use std::time::Duration;

use gds_step::Time;

/// The timeout of an answer, for the exponent in [`Modify::Rts`](crate::Modify::Rts): 4.096 us
/// times 2 to this power; `None`, no timeout, for 0.
pub const fn ack_timeout(exponent: u8) -> Option<Duration> {
    match exponent {
        0 => None,
        e => Some(Duration::from_nanos(4096 << (e & 31))),
    }
}

/// The RNR timer: the wait that a responder without a receive requests, for the number in
/// [`Modify::Rtr`](crate::Modify::Rtr). Only the low five bits count.
pub const fn rnr_delay(number: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_nanos(HUNDREDTHS_OF_MS[(number & 31) as usize] as u64 * 10_000)
}

/// The earlier of two times; the only one if one is missing.
#[inline]
pub(crate) fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The queue pairs with a running timeout.
pub(crate) struct Timers {
    /// Slots of queue pairs.
    pub listed: Vec<u32>,
    /// No timeout is due before this time.
    pub next: Time,
}

impl Timers {
    pub fn new() -> Timers {
        Timers {
            listed: Vec::new(),
            next: Time::NEVER,
        }
    }

    /// The time of the next check.
    pub fn deadline(&self) -> Option<Time> {
        (self.next != Time::NEVER).then_some(self.next)
    }
}
