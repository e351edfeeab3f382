//! Flush: waits until the sends that were posted so far have ended.

use std::time::Duration;

use super::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::request::entry::Entry;
use crate::request::table::RequestKey;

impl Engine {
    /// Waits until all posted sends have ended; see [`Context::flush`](crate::Context::flush).
    pub fn flush(&self, limit: Duration) -> Result<()> {
        const OPERATION: &str = "flush sends";
        let mut keys = self.sends(is_open);
        self.wait_for_sends(&mut keys, limit);
        let first = self.first_error(OPERATION, None, keys.is_empty());
        let state = self.lock();
        let oldest = keys.iter().filter_map(|key| state.requests.get(*key));
        let Some(late) = oldest.min_by_key(|entry| entry.order) else {
            return first.map_or(Ok(()), Err);
        };
        let mut text = self.late_text(&state, late, limit);
        if keys.len() > 1 {
            text += &format!(" ({} sends have not ended)", keys.len());
        }
        let error = Error::new(OPERATION, Kind::Timeout, text);
        let error = error.of_message(late.name().peer, late.tag, late.number);
        Err(match first {
            Some(first) => error.with_source(first),
            None => error,
        })
    }

    /// The sends for which `wanted` is true.
    pub(super) fn sends(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<RequestKey> {
        let state = self.lock();
        let sends = state.requests.iter().filter(|(_, entry)| wanted(entry));
        sends.map(|(key, _)| key).collect()
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
