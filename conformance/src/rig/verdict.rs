//! The result of a trial, and its text.

use gdsync::{Error, Kind};
use libtest_mimic::Failed;

/// The result of a trial.
pub type Verdict<T = ()> = Result<T, Failed>;

/// Fails the trial unless `holds`.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    match holds {
        true => Ok(()),
        false => Err(what().into()),
    }
}

/// Checks that a call was refused with this kind of error.
///
/// # Errors
/// The call succeeded, or failed for another reason.
pub fn refused<T>(result: Result<T, Error>, kind: Kind, what: &str) -> Verdict<Error> {
    match result {
        Ok(_) => Err(format!("{what}: accepted, where {kind:?} was expected").into()),
        Err(e) if e.kind() == kind => Ok(e),
        Err(e) => Err(format!("{what}: {e:?}, where {kind:?} was expected").into()),
    }
}

/// The text of a failure.
pub fn text(failed: &Failed) -> &str {
    failed.message().unwrap_or("no reason given")
}
