//! Collects the library's warnings for tests: the watchdog must not raise an alarm without a cause.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::OnceLock;

use tracing::{Dispatch, Level};

#[path = "../../../libgdsync/tests/common/listen.rs"]
mod listen;

use listen::Events;

/// The warnings of the library, in order.
#[derive(Clone)]
pub struct Warnings(Events);

impl Default for Warnings {
    fn default() -> Warnings {
        Warnings(Events::down_to(Level::WARN))
    }
}

impl Warnings {
    pub fn all(&self) -> Vec<String> {
        let lines = self.0.lines().into_iter();
        let text = |line: String| line.split_once(' ').map(|(_, text)| text.to_owned());
        lines.filter_map(text).collect()
    }

    /// The alarms of the watchdog.
    pub fn alarms(&self) -> Vec<String> {
        let mut all = self.all();
        all.retain(|line| line.contains("has waited for"));
        all
    }

    /// A dispatcher that collects warnings here.
    pub fn dispatch(&self) -> Dispatch {
        Dispatch::new(self.0.clone())
    }
}

/// The warnings of this process from the first call on.
pub fn of_this_process() -> &'static Warnings {
    static ALL: OnceLock<Warnings> = OnceLock::new();
    ALL.get_or_init(|| Warnings(Events::of_this_process(Level::WARN)))
}
