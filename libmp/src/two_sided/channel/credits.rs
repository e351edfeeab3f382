//! Credits: acknowledgements of taken messages, returned to senders when those of half the slots of a
//! channel are due, by the stream that took the messages or by the library.

use gdsync::Stream;

use super::{RecvChannel, has_come};
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Lane, List, Put};
use crate::request::table::InDevice;

/// A run of messages that one poster has taken and whose credits are not returned yet. Messages `from..to`,
/// taken by `stream` (`None`: the CPU) and returned on `lane`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub lane: u8,
    pub stream: Option<u64>,
    pub from: u64,
    pub to: u64,
}

/// The pending runs of one channel.
#[derive(Debug)]
pub(crate) struct Credits {
    /// The run that grows.
    run: Option<Run>,
    /// Runs that grow no more. The library returns them.
    stale: Vec<Run>,
}

impl Credits {
    /// For a channel of `slots`. The list has room for a run of each slot, so that it does not grow
    /// while the library is late.
    pub fn new(slots: usize) -> Credits {
        Credits {
            run: None,
            stale: Vec::with_capacity(slots),
        }
    }

    /// Counts a message as taken by a poster. Returns a run of `most` messages if its credits are
    /// due now.
    pub fn count(&mut self, number: u64, lane: u8, stream: Option<u64>, most: u32) -> Option<Run> {
        let (from, to) = (number, number + 1);
        let new = Run {
            lane,
            stream,
            from,
            to,
        };
        match &mut self.run {
            // At either end: requests of the CPU end in any order.
            Some(run)
                if (run.lane, run.stream) == (lane, stream)
                    && (run.to == from || run.from == to) =>
            {
                (run.from, run.to) = (run.from.min(from), run.to.max(to));
            }
            run => self.stale.extend(run.replace(new)),
        }
        let full = |run: &mut Run| run.to - run.from >= most.into();
        let run = self.run.take_if(full)?;
        (!(on(Mutant::LostCredit) && run.from % 3 == 0)).then_some(run)
    }

    /// Removes the run that grows, if this poster takes its messages and it begins with `oldest` or
    /// earlier.
    pub fn take_old(&mut self, lane: u8, stream: Option<u64>, oldest: u64) -> Option<Run> {
        let old = |run: &mut Run| (run.lane, run.stream) == (lane, stream) && run.from <= oldest;
        self.run.take_if(old)
    }

    /// Keeps a run whose credits could not be returned.
    pub fn keep(&mut self, run: Run) {
        self.stale.push(run);
    }

    /// Removes the first messages in a row of a run that were all taken: their credits can be returned. Kernels
    /// may still take the others. The run that grows is removed only as a whole; its poster returns it later.
    pub fn due(&mut self, is_taken: impl Fn(u64) -> bool) -> Option<Run> {
        let taken = |(at, run): (usize, &Run)| {
            let from = (run.from..run.to).find(|n| is_taken(*n))?;
            let to = (from..run.to).find(|n| !is_taken(*n)).unwrap_or(run.to);
            Some((at, Run { from, to, ..*run }))
        };
        if let Some((at, due)) = self.stale.iter().enumerate().find_map(taken) {
            let run = self.stale.swap_remove(at);
            let rest = [(run.from, due.from), (due.to, run.to)];
            let rest = rest.into_iter().filter(|(from, to)| from < to);
            self.stale
                .extend(rest.map(|(from, to)| Run { from, to, ..run }));
            return Some(due);
        }
        let all = |run: &mut Run| (run.from..run.to).all(&is_taken) && !on(Mutant::LostCredit);
        self.run.take_if(all)
    }

    /// Whether the credits of at least `least` messages are not returned.
    pub fn are_late(&self, least: u32) -> bool {
        let runs = self.run.iter().chain(&self.stale);
        runs.map(|run| run.to - run.from).sum::<u64>() >= least.into()
    }

    /// Whether all credits are returned.
    pub fn is_empty(&self) -> bool {
        self.run.is_none() && self.stale.is_empty()
    }
}

impl RecvChannel {
    /// Whether the credits for half of the slots are not returned: the sender may wait for them.
    #[inline]
    pub fn are_credits_late(&self) -> bool {
        self.side.credits.are_late(self.shape.depth / 2)
    }

    /// Counts a message as taken by a poster. Returns a run whose credits are due now.
    #[inline]
    fn count(&mut self, number: u64, lane: u8, stream: Option<u64>) -> Option<Run> {
        let half = self.shape.depth / 2;
        self.side.credits.count(number, lane, stream, half)
    }

    /// Counts a message whose credit the library returns.
    #[inline]
    pub fn count_for_library(&mut self, number: u64) {
        if let Some(run) = self.count(number, 0, None) {
            self.keep_credit(run);
        }
    }

    /// Notes a message that a kernel of `stream` takes in. Returns a run whose credits are due now on
    /// `lane`. With a `report`, the kernel returns the credit in device memory and stores its end there,
    /// and the library returns the credit to the CPU of the sender.
    pub fn take_in(
        &mut self,
        number: u64,
        lane: u8,
        stream: u64,
        report: Option<InDevice>,
    ) -> Option<Run> {
        let Some(report) = report else {
            return self.count(number, lane, Some(stream));
        };
        // The run that grows, if the stream took its messages: from now on kernels return the credits.
        let last = self.side.credits.take_old(lane, Some(stream), u64::MAX);
        let slot = self.numbers.slot(number);
        self.side.taking[slot] = Some((number, stream, report));
        self.count_for_library(number);
        last
    }

    /// A run whose credits can be returned and are not.
    fn credit_due(&mut self) -> Option<Run> {
        let (numbers, taken) = (self.numbers, &self.taken);
        let is_taken = |n: u64| has_come(&taken[numbers.slot(n)], n);
        self.side.credits.due(is_taken)
    }

    /// Enqueues the return of a run's credits on the stream. If that fails, the run is kept.
    pub fn credit_on(&mut self, stream: &Stream, lane: &mut Lane, run: Run) -> Result<()> {
        let mut batch = Batch::short(lane);
        let posted = self.put_credit(&mut batch, &run).and_then(|()| {
            let mut list = List::<2>::new();
            list.put(batch.all());
            list.post(stream, Some(batch.lane()))
        });
        if posted.is_err() {
            batch.undo();
            self.side.credits.keep(run);
        }
        posted
    }

    /// A run of messages that `stream` has taken, one of which has the slot of message `number`: its
    /// sender waits for the credit. A stream that waits for the message returns the run first.
    pub fn credit_for(&mut self, number: u64, lane: u8, stream: u64) -> Option<Run> {
        let oldest = self.numbers.previous(number)?;
        self.side.credits.take_old(lane, Some(stream), oldest)
    }

    /// Prepares the return of a run's credits on a lane. If that fails, the run is kept.
    pub fn prepare_credit(&mut self, lane: &mut Lane, run: Run) -> Result<[Option<Put>; 3]> {
        let mut batch = Batch::short(lane);
        match self.put_credit(&mut batch, &run) {
            Ok(()) => Ok(batch.first_three()),
            Err(e) => {
                batch.undo();
                self.keep_credit(run);
                Err(e)
            }
        }
    }

    /// Keeps a run whose credits were not returned, for the library.
    pub fn keep_credit(&mut self, run: Run) {
        self.side.credits.keep(run);
    }

    /// Returns the credits that are due, by the CPU. `true`: it returned some.
    pub fn return_credits(&mut self, mut lane: Option<&mut Lane>) -> bool {
        let mut any = false;
        while let Some(run) = self.credit_due()
            && self.credit_by_cpu(lane.as_deref_mut(), run)
        {
            any = true;
        }
        any
    }

    /// Returns a run's credits by the CPU, or keeps the run for the next round. `true`: they were
    /// returned.
    fn credit_by_cpu(&mut self, lane: Option<&mut Lane>, run: Run) -> bool {
        let written = lane.is_some_and(|lane| {
            // A stream may return the credits of later messages of these slots meanwhile, by other
            // words: then the words are copied again, so that none falls back to an earlier message.
            let words = || (run.from..run.to).map(|n| self.taken(n).load().unwrap_or(0));
            loop {
                let before = words().fold(0, u64::wrapping_add);
                if !self.copy_credits(lane, &run).unwrap_or(false) {
                    let mut batch = Batch::short(lane);
                    if self.put_credit(&mut batch, &run).is_err() || batch.post().is_err() {
                        break false;
                    }
                }
                if words().fold(0, u64::wrapping_add) == before {
                    break true;
                }
            }
        });
        if !written {
            self.side.credits.keep(run);
        }
        written
    }

    /// Copies the words of a run into the sender's return block at once. `false`: a put is needed.
    fn copy_credits(&self, lane: &Lane, run: &Run) -> Result<bool> {
        /// Words that are copied together: those of a run, with the usual depth.
        const WORDS: usize = 8;
        if self.path.has_queues() {
            return Ok(false);
        }
        let mut words = [0; WORDS];
        for (first, count) in self.parts(run) {
            let end = first + count;
            for slot in (first..end).step_by(WORDS) {
                let taken = &self.taken[slot..end.min(slot + WORDS)];
                let words = &mut words[..taken.len()];
                for (word, taken) in words.iter_mut().zip(taken) {
                    *word = taken.load()?;
                }
                if on(Mutant::MissingCredit) && slot == 0 {
                    continue;
                }
                let to = self.span(self.shape.taken_at(slot), 8 * words.len())?;
                // Without a payload, whose destination is not used.
                if !lane.copy_now(std::iter::empty(), to, words, to)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Puts the words of a run into the sender's return block.
    fn put_credit(&self, batch: &mut Batch<'_, 3>, run: &Run) -> Result<()> {
        self.parts(run).try_for_each(|(slot, count)| {
            let to = self.span(self.shape.taken_at(slot), 8 * count)?;
            let piece = self.side.taken_words.piece(8 * slot, 8 * count);
            batch.put_words(piece, to).map(drop)
        })
    }

    /// The slots of a run: the first and their number, of one part, or of two at the end of the ring.
    fn parts(&self, run: &Run) -> impl Iterator<Item = (usize, usize)> {
        let count = (run.to - run.from) as usize;
        let slot = self.numbers.slot(run.from);
        let head = count.min(self.shape.slots() - slot);
        let parts = [(slot, head), (0, count - head)];
        parts.into_iter().filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_grows_while_its_poster_stays_and_is_returned_when_full() {
        let mut credits = Credits::new(4);
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
        // Another poster, or a gap in the numbers, ends a run early.
        for (number, poster) in [(2, a), (3, b), (5, b)] {
            assert_eq!(count(number, poster), None);
        }
        assert!(credits.are_late(3) && !credits.are_late(4));
        let mut due = |most| Some(credits.due(|n| n < most)?.to);
        assert_eq!([due(2), due(3), due(3)], [None, Some(3), None]);
        assert_eq!([due(9), due(9), due(9)], [Some(4), Some(6), None]);
        assert!(credits.is_empty());
        // The messages of a run are taken in any order.
        let all = Run {
            from: 30,
            to: 35,
            ..run
        };
        credits.keep(all);
        let mut due = |taken: &[u64]| {
            let due = credits.due(|n| taken.contains(&n));
            due.map(|run| run.from..run.to)
        };
        let taken = [31, 32, 34];
        assert_eq!(
            [due(&taken), due(&taken), due(&taken)],
            [Some(31..33), Some(34..35), None]
        );
        assert_eq!(
            [due(&[30, 33]), due(&[30, 33])],
            [Some(30..31), Some(33..34)]
        );
        assert!(credits.is_empty());
        // The run that grows is removed whole, or stays with its poster.
        for number in [40, 41] {
            assert_eq!(credits.count(number, lane, stream, 4), None);
        }
        assert_eq!(credits.due(|n| n == 40), None);
        let last = credits.due(|n| n <= 41).map(|run| run.from..run.to);
        assert_eq!(last, Some(40..42));
        // It grows at both ends.
        let mut count = |number| credits.count(number, b.0, b.1, 3);
        assert_eq!([11, 10].map(&mut count), [None; 2]);
        assert_eq!(count(12).map(|run| (run.from, run.to)), Some((10, 13)));
        credits.keep(run);
        assert!(!credits.is_empty());
        // The run that grows is taken by its poster alone, once a message in it is needed.
        let (lane, stream) = a;
        assert_eq!(credits.count(20, lane, stream, 2), None);
        assert_eq!(credits.take_old(lane, stream, 19), None);
        assert_eq!(credits.take_old(b.0, b.1, 20), None);
        assert_eq!(
            credits.take_old(lane, stream, 20).map(|run| run.to),
            Some(21)
        );
    }
}
