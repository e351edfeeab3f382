//! How long anything may take that has to end: limits that only end what hangs, times
//! `GDS_PATIENCE` on machines that are slow.

use std::sync::OnceLock;
use std::time::Duration;

use super::verdict::Verdict;

/// The variable.
const PATIENCE: &str = "GDS_PATIENCE";

/// On a machine of usual speed.
const LIMIT: Duration = Duration::from_secs(40);

fn factor() -> Result<u32, String> {
    match std::env::var(PATIENCE) {
        Err(_) => Ok(1),
        Ok(said) => said
            .parse()
            .ok()
            .filter(|factor| (1..=1000).contains(factor))
            .ok_or_else(|| format!("{PATIENCE}={said}: a number from 1 to 1000")),
    }
}

/// That what the environment says makes sense.
pub fn check() -> Verdict {
    Ok(factor().map(drop)?)
}

/// A limit for a machine of usual speed, for this one.
pub fn scaled(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    limit * *FACTOR.get_or_init(|| factor().unwrap_or(1))
}

/// Ends what hangs.
pub fn time_limit() -> Duration {
    scaled(LIMIT)
}
