//! The recorded calls and submissions: a bounded ring, and the times at which streams passed the
//! submissions. Pure: times come with the calls, and a stamp says when a stream passed it.

use std::collections::{BTreeMap, VecDeque};

use gds_step::Time;
use gdsync::gpu::Passed;

use super::call::Facts;

/// The mark behind a submission on a stream.
pub(super) trait Stamp {
    /// When the stream passed the mark; `None` if it has not.
    fn at(&self) -> Option<Time>;
}

impl Stamp for Passed {
    fn at(&self) -> Option<Time> {
        Passed::at(self)
    }
}

/// A row of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Track {
    /// A thread of the CPU, numbered in the order of the first calls.
    Cpu(usize),
    /// A stream, by its number.
    Stream(u64),
}

/// A call of the CPU, or a submission on a stream.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub track: Track,
    pub name: String,
    /// The kind of work, for colours and filters: `send`, `kernel`, `wait`, ..
    pub kind: &'static str,
    /// What the submission contains: `kernel gds_copy`; empty for a call.
    pub work: String,
    /// The number of the call: its own, or the one that made the submission; 0: none.
    pub call: u64,
    pub facts: Facts,
    /// The time before the call that enqueued it.
    pub posted: Time,
    /// The start on its track: of a call, its begin; of a submission, when the stream had passed
    /// the earlier one and this one was posted.
    pub start: Time,
    /// `None`: the stream has not passed it, or has no stamp of it.
    pub end: Option<Time>,
    /// Whether its end becomes known.
    pub stamped: bool,
}

/// The submissions of a stream that it has not passed.
struct Open<S> {
    /// Their numbers, oldest first.
    stamps: VecDeque<(u64, S)>,
    /// When the stream passed the last submission.
    last: Time,
}

/// The number of streams from which on those without open submissions are forgotten.
const MOST_IDLE: usize = 1024;

/// The newest events, at most a fixed number.
pub(super) struct Ring<S> {
    most: usize,
    events: VecDeque<Event>,
    /// Number of the oldest event.
    first: u64,
    open: BTreeMap<u64, Open<S>>,
    /// Events that newer ones replaced, by track.
    dropped: BTreeMap<Track, u64>,
}

impl<S: Stamp> Ring<S> {
    pub fn new(most: usize) -> Ring<S> {
        Ring {
            most: most.max(1),
            events: VecDeque::new(),
            first: 0,
            open: BTreeMap::new(),
            dropped: BTreeMap::new(),
        }
    }

    /// Adds an event; for a submission with its stamp.
    pub fn add(&mut self, event: Event, stamp: Option<S>) {
        if self.events.len() == self.most
            && let Some(oldest) = self.events.pop_front()
        {
            *self.dropped.entry(oldest.track).or_default() += 1;
            if let Track::Stream(stream) = oldest.track
                && let Some(open) = self.open.get_mut(&stream)
                && open
                    .stamps
                    .front()
                    .is_some_and(|(number, _)| *number == self.first)
            {
                open.stamps.pop_front();
            }
            self.first += 1;
        }
        let number = self.first + self.events.len() as u64;
        if let (Track::Stream(stream), Some(stamp)) = (event.track, stamp) {
            let open = self.open.entry(stream).or_insert_with(|| Open {
                stamps: VecDeque::new(),
                last: Time::ZERO,
            });
            open.stamps.push_back((number, stamp));
        }
        self.events.push_back(event);
    }

    /// Notes the submissions that their streams have passed. `true`: there are new ones.
    pub fn collect(&mut self) -> bool {
        let mut new = false;
        for open in self.open.values_mut() {
            while let Some((number, stamp)) = open.stamps.front() {
                let Some(at) = stamp.at() else { break };
                if let Some(event) = self.events.get_mut((number - self.first) as usize) {
                    event.start = open.last.max(event.posted);
                    // Clocks of GPU and host differ by microseconds.
                    open.last = at.max(event.start);
                    event.end = Some(open.last);
                }
                open.stamps.pop_front();
                new = true;
            }
        }
        if self.open.len() > MOST_IDLE {
            self.open.retain(|_, open| !open.stamps.is_empty());
        }
        new
    }

    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }

    pub fn dropped(&self) -> &BTreeMap<Track, u64> {
        &self.dropped
    }
}
