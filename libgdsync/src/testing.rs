//! Helpers for the unit tests.

/// Number of cases for property tests: `GDS_CASES`, or the default of the test.
pub(crate) fn cases(default: u32) -> u32 {
    std::env::var("GDS_CASES")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}
