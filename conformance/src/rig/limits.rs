//! Time limits of operations that must complete. A limit only ends a hang; `GDS_TIMEOUT_SCALE`
//! multiplies it on slow machines.

use std::env::VarError;
use std::sync::{Once, OnceLock};
use std::time::Duration;

use super::verdict::Verdict;

/// The variable, and its former name.
const SCALE: &str = "GDS_TIMEOUT_SCALE";
const FORMER: &str = "GDS_PATIENCE";

/// The limit on a machine of usual speed.
const LIMIT: Duration = Duration::from_secs(40);

fn factor() -> Result<u32, String> {
    static WARNED: Once = Once::new();
    let former = || -> Result<String, VarError> {
        let value = std::env::var(FORMER)?;
        WARNED.call_once(|| eprintln!("{FORMER}={value} is now called {SCALE}={value}"));
        Ok(value)
    };
    match std::env::var(SCALE).or_else(|_| former()) {
        Err(_) => Ok(1),
        Ok(value) => value
            .parse()
            .ok()
            .filter(|factor| (1..=1000).contains(factor))
            .ok_or_else(|| format!("{SCALE}={value}: a number from 1 to 1000")),
    }
}

/// Checks that the value in the environment is valid.
pub fn check() -> Verdict {
    Ok(factor().map(drop)?)
}

/// Scales a limit for a machine of usual speed to this machine.
pub fn scaled(limit: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    limit * *FACTOR.get_or_init(|| factor().unwrap_or(1))
}

/// The limit that ends a hang.
pub fn time_limit() -> Duration {
    scaled(LIMIT)
}
