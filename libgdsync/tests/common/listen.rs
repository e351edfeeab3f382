//! The libraries' `tracing` events, kept for tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// The events of the libraries down to a level, in their order: `LEVEL message`.
#[derive(Clone)]
pub struct Events {
    lines: Arc<Mutex<Vec<String>>>,
    least: Level,
}

impl Events {
    /// Collects the events of code that runs with this subscriber.
    pub fn down_to(least: Level) -> Events {
        let lines = Arc::default();
        Events { lines, least }
    }

    /// Collects the events of this process from now on.
    pub fn of_this_process(least: Level) -> Events {
        let events = Events::down_to(least);
        tracing::subscriber::set_global_default(events.clone())
            .expect("no other subscriber is set");
        events
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["mp", "gdsync"].contains(&metadata.target()) && *metadata.level() <= self.least
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = format!("{} ", event.metadata().level());
        event.record(&mut Message(&mut line));
        self.lines.lock().unwrap().push(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
