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
        let open = |entry: &Entry| {
            let posted = entry.send().is_some() && !entry.is_prepared();
            posted && entry.status().is_none()
        };
        let mut keys: Vec<RequestKey> = {
            let state = self.lock();
            let sends = state.requests.iter().filter(|(_, entry)| open(entry));
            sends.map(|(key, _)| key).collect()
        };
        self.wait_until(limit, &mut |state| {
            keys.retain(|key| {
                self.visit(state, *key);
                state.requests.get(*key).is_some_and(open)
            });
            keys.is_empty()
        });
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
}
