//! Distributions of durations.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The percentiles that a summary contains.
const PERCENTILES: [f64; 13] = [
    0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0,
];

/// Longest duration that is distinguished from longer ones: a minute, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// The summary of many durations in nanoseconds, exact to a thousandth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of durations.
    pub count: u64,
    /// The minimum.
    pub min: u64,
    /// The median.
    pub median: u64,
    /// The mean.
    pub mean: f64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
    /// Pairs of a percentile and its value.
    pub percentiles: Vec<(f64, u64)>,
}

/// A histogram of durations.
pub struct Samples(Histogram<u64>);

impl Default for Samples {
    /// An empty histogram. It allocates all memory that recording needs.
    fn default() -> Samples {
        // The bounds are valid arguments, by the documentation of the crate.
        Samples(Histogram::new_with_bounds(1, LONGEST, 3).expect("constant bounds"))
    }
}

impl Samples {
    /// Adds one duration in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// The summary of the durations so far.
    pub fn summary(&self) -> Summary {
        let h = &self.0;
        Summary {
            count: h.len(),
            min: h.min(),
            median: h.value_at_percentile(50.0),
            mean: h.mean(),
            p99: h.value_at_percentile(99.0),
            max: h.max(),
            percentiles: PERCENTILES.map(|p| (p, h.value_at_percentile(p))).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_that_of_its_samples() {
        let mut samples = Samples::default();
        (1..=1000).for_each(|n| samples.record(n * 1000));
        let s = samples.summary();
        let near = |got: u64, want: f64| (got as f64 / want - 1.0).abs() < 0.002;
        assert_eq!(s.count, 1000);
        assert!(
            near(s.min, 1e3) && near(s.median, 5e5) && near(s.p99, 9.9e5) && near(s.max, 1e6),
            "{s:?}"
        );
        assert!((s.mean / 500_500.0 - 1.0).abs() < 0.002);
        assert!(s.percentiles.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        let json = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), s);
    }

    #[test]
    fn duration_beyond_the_longest_counts_as_the_longest() {
        let mut samples = Samples::default();
        samples.record(u64::MAX);
        assert_eq!(samples.summary().count, 1);
        assert!(samples.summary().max >= LONGEST);
    }
}
