//! Flush: waits until the sends that were posted so far have ended. [`Engine::synchronize`] uses parts of it.

use std::time::Duration;

use super::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::request::entry::Entry;
use crate::request::table::RequestKey;

impl Engine {
    /// Waits until all posted sends have ended; see [`Context::flush`](crate::Context::flush).
    pub fn flush(&self, limit: Duration) -> Result<()> {
        const OPERATION: &str = "flush sends";
        let mut keys = self.keys_where(is_open);
        self.wait_for_sends(&mut keys, limit);
        // Late sends first: the error of a send that fails after this is found below.
        let late = self.late_sends(OPERATION, &keys, limit);
        let first = self.first_error(OPERATION, None, late.is_none());
        Err(match (late, first) {
            (Some(late), Some(first)) => late.with_source(first),
            (Some(error), None) | (None, Some(error)) => error,
            (None, None) => return Ok(()),
        })
    }

    /// The error of the oldest of these sends that has not ended within `limit`.
    pub(super) fn late_sends(
        &self,
        operation: &'static str,
        keys: &[RequestKey],
        limit: Duration,
    ) -> Option<Error> {
        let state = self.lock();
        let sends = keys.iter().filter_map(|key| state.requests.get(*key));
        // Some may have ended since the last check.
        let late = || sends.clone().filter(|entry| entry.status().is_none());
        let oldest = late().min_by_key(|entry| entry.order)?;
        let mut text = self.late_text(&state, oldest, limit);
        if late().nth(1).is_some() {
            text += &format!(" ({} sends have not ended)", late().count());
        }
        let error = Error::new(operation, Kind::Timeout, text);
        Some(oldest.name().attribute(error))
    }

    /// The requests for which `wanted` is true.
    pub(super) fn keys_where(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<RequestKey> {
        let state = self.lock();
        let requests = state.requests.iter();
        let wanted = requests.filter(|(_, entry)| wanted(entry));
        wanted.map(|(key, _)| key).collect()
    }

    /// Waits for the ends of sends, and keeps those that have not ended.
    pub(super) fn wait_for_sends(&self, keys: &mut Vec<RequestKey>, limit: Duration) {
        self.wait_until(limit, &mut |state| {
            keys.retain(|key| {
                self.visit(state, *key);
                state.requests.get(*key).is_some_and(is_open)
            });
            keys.is_empty()
        });
    }
}

/// Whether it is a send that was posted and has not ended.
fn is_open(entry: &Entry) -> bool {
    entry.send().is_some() && !entry.is_prepared() && entry.status().is_none()
}
