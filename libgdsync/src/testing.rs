//! What the unit tests share.

/// Cases for property tests: `GDS_CASES`, or what the test asks for.
pub(crate) fn cases(default: u32) -> u32 {
    std::env::var("GDS_CASES")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}
