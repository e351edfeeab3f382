//! What a trial finds, and how it says so.

use gdsync::{Error, Kind};
use libtest_mimic::Failed;

/// What a trial finds.
pub type Verdict<T = ()> = Result<T, Failed>;

/// Fails the trial unless `holds`.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(what().into()),
    }
}

/// That a call was refused so.
///
/// # Errors
/// It was not, or for another reason.
pub fn refused<T>(result: Result<T, Error>, kind: Kind, what: &str) -> Verdict<Error> {
    match result {
        Ok(_) => Err(format!("{what}: taken, where {kind:?} was due").into()),
        Err(e) if e.kind() == kind => Ok(e),
        Err(e) => Err(format!("{what}: {e:?}, where {kind:?} was due").into()),
    }
}

/// What a failure says.
pub fn text(failed: &Failed) -> &str {
    failed.message().unwrap_or("no reason given")
}
