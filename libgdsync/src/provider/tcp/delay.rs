//! How long the count of executed requests waits for a frame that carries it.
//!
//! A stream answers a message after 10 to 30 us. A frame that carries the count alone shortly before such
//! an answer costs both CPUs a call of the system, and delays the answer. So the time is longer where an
//! answer follows such frames, and shorter where none does: there a sender waits for the count.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_micros(20);
const SHORTEST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_micros(160);

pub struct Delay {
    time: Duration,
    /// Since when a count waits.
    since: Option<Instant>,
    /// When the last frame was sent, if it carried the count alone.
    alone: Option<Instant>,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay {
            time: FIRST,
            since: None,
            alone: None,
        }
    }
}

impl Delay {
    /// A count waits. Returns whether it has waited for the whole time.
    pub fn is_over(&mut self, now: Instant) -> bool {
        now - *self.since.get_or_insert(now) >= self.time
    }

    /// A frame carries the count alone, because the count has waited for the whole time.
    pub fn sent_alone(&mut self, now: Instant) {
        if self.alone.replace(now).is_some() {
            self.time = (self.time / 2).max(SHORTEST);
        }
    }

    /// A frame carries the count; `more`: and something else.
    pub fn sent(&mut self, more: bool) {
        self.since = None;
        if more
            && let Some(at) = self.alone.take()
            && at.elapsed() < self.time
        {
            self.time = (self.time * 2).min(LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A count that waits until it is sent alone; `answered`: an answer follows at once.
    fn wait(delay: &mut Delay, answered: bool) -> Duration {
        let start = Instant::now();
        assert!(!delay.is_over(start));
        let mut waited = Duration::ZERO;
        while !delay.is_over(start + waited) {
            waited += Duration::from_micros(1);
        }
        // An answer that is late by the clock of a busy machine would change nothing.
        delay.sent(false);
        delay.sent_alone(Instant::now() + Duration::from_secs(1));
        if answered {
            delay.sent(true);
        }
        waited
    }

    #[test]
    fn a_count_waits_longer_where_an_answer_follows_and_shorter_where_none_does() {
        let mut delay = Delay::default();
        let waits: Vec<u128> = (0..5).map(|_| wait(&mut delay, true).as_micros()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 160]);
        let waits: Vec<u128> = (0..7)
            .map(|_| wait(&mut delay, false).as_micros())
            .collect();
        assert_eq!(waits, [160, 160, 80, 40, 20, 10, 10]);
    }
}
