//! The time of the machines: nanoseconds since the driver started.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

/// A point in time: nanoseconds since the driver started. Virtual under `sim`, monotonic under
/// `live`. Times of different drivers or processes are not comparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start of the driver.
    pub const ZERO: Time = Time(0);
    /// A time that no driver reaches.
    pub const NEVER: Time = Time(u64::MAX);

    /// `ns` nanoseconds after the driver's start.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the driver's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The instant at which `limit`, counted from now, ends. A limit that exceeds the clock's range
/// counts as 100 years.
pub fn deadline(limit: Duration) -> Instant {
    after(Instant::now(), limit)
}

/// As [`deadline`], counted from `start`.
pub fn after(start: Instant, limit: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    // The clock counts from the machine's start, so a century always fits.
    start.checked_add(limit).unwrap_or_else(|| start + CENTURY)
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, d: Duration) -> Time {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(ns))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}us", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_the_clock_are_a_century() {
        let now = Instant::now();
        let day = Duration::from_secs(24 * 3600);
        for limit in [
            Duration::MAX,
            Duration::from_secs(u64::MAX),
            Duration::MAX / 2,
        ] {
            assert!(after(now, limit) > now + day, "{limit:?}");
        }
        assert_eq!(after(now, day), now + day);
        assert!(deadline(day) >= now + day);
        assert_eq!(Time::from_nanos(1) + Duration::MAX, Time::NEVER);
    }
}
