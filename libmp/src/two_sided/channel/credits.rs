//! Credits: which messages were taken and their sender is not told of. A sender is told of half the
//! slots of a channel at a time.

use crate::mutant::{Mutant, on};

/// Messages that were taken by one poster and of which the sender is not told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub lane: u8,
    pub stream: Option<u64>,
    pub from: u64,
    pub to: u64,
}

/// The runs of one channel.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    /// The one that grows.
    run: Option<Run>,
    /// Runs that the library tells, as their poster went elsewhere.
    stale: Vec<Run>,
}

impl Credits {
    /// Counts a message as taken by a poster. Answers a run of `most` messages, of which its sender
    /// is to be told now.
    pub fn count(&mut self, number: u64, lane: u8, stream: Option<u64>, most: u32) -> Option<Run> {
        let (from, to) = (number, number + 1);
        let new = Run {
            lane,
            stream,
            from,
            to,
        };
        match &mut self.run {
            Some(run) if run.lane == lane && run.stream == stream && run.to == number => {
                run.to += 1;
            }
            place => self.stale.extend(place.replace(new)),
        }
        let full = |run: &mut Run| run.to - run.from >= most.into();
        let run = self.run.take_if(full)?;
        (!(on(Mutant::LostCredit) && run.from % 3 == 0)).then_some(run)
    }

    /// Keeps a run of which its sender could not be told.
    pub fn keep(&mut self, run: Run) {
        self.stale.push(run);
    }

    /// Takes a run out whose messages were all `taken`: its sender can be told.
    pub fn due(&mut self, taken: impl Fn(&Run) -> bool) -> Option<Run> {
        if let Some(at) = self.stale.iter().position(&taken) {
            return Some(self.stale.remove(at));
        }
        self.run
            .take_if(|run| taken(run) && !on(Mutant::LostCredit))
    }

    /// Whether the sender is told of all.
    pub fn is_empty(&self) -> bool {
        self.run.is_none() && self.stale.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_grows_while_its_poster_stays_and_is_told_of_when_it_is_long() {
        let mut credits = Credits::default();
        let (a, b) = ((1, Some(7)), (2, None));
        let mut count = |number, (lane, stream)| credits.count(number, lane, stream, 2);
        assert_eq!(count(0, a), None);
        let (from, to) = (0, 2);
        let (lane, stream) = a;
        let run = Run {
            lane,
            stream,
            from,
            to,
        };
        assert_eq!(count(1, a), Some(run));
        // Another poster, and a message in between, end a run that is short.
        for (number, poster) in [(2, a), (3, b), (5, b)] {
            assert_eq!(count(number, poster), None);
        }
        let mut due = |most| Some(credits.due(|run| run.to <= most)?.to);
        assert_eq!([due(2), due(3), due(3)], [None, Some(3), None]);
        assert_eq!([due(9), due(9), due(9)], [Some(4), Some(6), None]);
        assert!(credits.is_empty());
        credits.keep(run);
        assert!(!credits.is_empty());
    }
}
