//! How long anything may take that has to end: limits that only end what hangs, times
//! `GDS_TIMEOUT_SCALE` on machines that are slow.

use std::env::VarError;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use super::verdict::Verdict;

/// The variable, and its former name.
const SCALE: &str = "GDS_TIMEOUT_SCALE";
const FORMER: &str = "GDS_PATIENCE";

/// On a machine of usual speed.
const LIMIT: Duration = Duration::from_secs(40);

fn factor() -> Result<u32, String> {
    static WARNED: Once = Once::new();
    let former = || -> Result<String, VarError> {
        let said = std::env::var(FORMER)?;
        WARNED.call_once(|| eprintln!("{FORMER}={said} is now called {SCALE}={said}"));
        Ok(said)
    };
    match std::env::var(SCALE).or_else(|_| former()) {
        Err(_) => Ok(1),
        Ok(said) => said
            .parse()
            .ok()
            .filter(|factor| (1..=1000).contains(factor))
            .ok_or_else(|| format!("{SCALE}={said}: a number from 1 to 1000")),
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
