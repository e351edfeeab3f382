//! Agreements on lost ranks: the rules, without threads, clocks or messages.
//!
//! Each rank that calls sends a note to all others, with the ranks that it counts as lost, and
//! counts those as lost that other ranks name. A rank is *complete* when it has a note of every
//! rank that is not lost; it then sends its set again, after each change. It decides when every
//! rank that is not lost is complete with the same set, and sends its decision. A rank that
//! receives a decision takes it over.
//!
//! # Why all survivors decide the same
//! Sets only grow, and do not change after a decision. A rank ignores notes of ranks that it counts
//! as lost. Suppose that two survivors, A and B, decide by the rule. B has sent A's set before A
//! decided it, so the set that B decides contains A's set. Equally A's set contains B's set, so the
//! two are equal. A decision that a rank takes over was made by the rule, by a rank that none of
//! the ranks which passed it on counted as lost; so the argument applies to that rank as well.
//!
//! A rank that lives and that another rank counts as lost is not a survivor: it receives a note
//! with itself in the set, sends a last note that names itself alone, and its agreements fail.

#[cfg(test)]
mod tests;

use crate::error::{Error, Kind, Result};
use crate::mutant::{self, Mutant};
use crate::wire::agree::{Note, Ranks, Stage};

/// The agreements of one rank, one after the other.
#[derive(Debug)]
pub(crate) struct Agreement {
    rank: u32,
    /// The number of the agreement that this rank has called or will call next.
    number: u64,
    /// This rank's value, if it has called.
    value: Option<u64>,
    /// By rank: whether it is lost.
    lost: Vec<bool>,
    /// By rank: its latest note of this agreement.
    notes: Vec<Option<Note>>,
    /// The stage and the number of lost ranks of the last note that was sent.
    sent: Option<(Stage, usize)>,
    /// Something has changed since the last step.
    changed: bool,
    /// The rank that counts this rank as lost.
    expelled_by: Option<u32>,
    /// The other ranks have the last note of this rank, which is expelled.
    left: bool,
    /// Ranks that named themselves.
    leaving: Vec<u32>,
    /// The decision of the agreement before.
    last: Option<Decision>,
    /// A call has returned it.
    taken: bool,
}

/// The result of an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub lost: Vec<u32>,
    pub value: u64,
}

/// The result of one step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Notes for all other ranks, in order.
    pub notes: Vec<Note>,
    /// Ranks that are lost from now on, each with the rank that named it.
    pub reported: Vec<(u32, u32)>,
}

impl Agreement {
    pub fn new(rank: u32, size: u32) -> Agreement {
        Agreement {
            rank,
            number: 0,
            value: None,
            lost: vec![false; size as usize],
            notes: (0..size).map(|_| None).collect(),
            sent: None,
            changed: false,
            expelled_by: None,
            left: false,
            leaving: Vec::new(),
            last: None,
            taken: true,
        }
    }

    /// Begins the next agreement with this rank's value, or continues the one that it has begun and
    /// whose decision no call has returned. Returns the number of the agreement.
    pub fn call(&mut self, value: u64) -> u64 {
        if !self.taken {
            return self.number - 1;
        }
        self.value.get_or_insert(value);
        self.changed = true;
        self.number
    }

    /// The decision of agreement `number` that a call returns, if it was made.
    pub fn take(&mut self, number: u64) -> Option<Decision> {
        let decision = self.last.as_ref().filter(|_| number < self.number)?;
        self.taken = true;
        Some(decision.clone())
    }

    /// The rank that counts this rank as lost.
    pub fn expelled_by(&self) -> Option<u32> {
        self.expelled_by
    }

    /// Counts a rank as lost.
    pub fn lose(&mut self, rank: u32) {
        self.lost[rank as usize] = true;
        self.changed = true;
    }

    /// Counts a rank as not lost: it has given this rank up, and may be alive.
    pub fn spare(&mut self, rank: u32) {
        self.lost[rank as usize] = false;
    }

    /// Whether this rank has called, and no decision was made.
    pub fn is_open(&self) -> bool {
        self.value.is_some() && self.expelled_by.is_none()
    }

    /// Whether another rank has called, and this rank has not.
    pub fn is_asked(&self) -> bool {
        let mut notes = self.notes.iter().zip(&self.lost);
        self.value.is_none() && notes.any(|(note, lost)| note.is_some() && !lost)
    }

    /// The other ranks that are not lost.
    pub fn others(&self) -> impl Iterator<Item = u32> {
        let ranks = (0..).zip(&self.lost);
        ranks.filter_map(|(rank, lost)| (!lost && rank != self.rank).then_some(rank))
    }

    /// The other ranks that are not lost and have not called.
    pub fn absent(&self) -> impl Iterator<Item = u32> {
        self.others().filter(|rank| self.note(*rank).is_none())
    }

    fn note(&self, rank: u32) -> Option<&Note> {
        self.notes[rank as usize].as_ref()
    }

    fn lost(&self) -> Vec<u32> {
        let ranks = (0..).zip(&self.lost);
        ranks
            .filter_map(|(rank, lost)| lost.then_some(rank))
            .collect()
    }

    /// Processes a note of another rank; [`Agreement::step`] continues with it.
    ///
    /// # Errors
    /// `Protocol` for ranks outside the job, and for an agreement that cannot have begun.
    pub fn receive(&mut self, from: u32, note: Note) -> Result<()> {
        let size = self.lost.len();
        if note.lost.iter().any(|rank| rank as usize >= size) {
            let what = format!("rank {from} named a lost rank outside the job of {size} ranks");
            return Err(refuse(from, what));
        }
        if self.lost[from as usize] || from == self.rank {
            return Ok(());
        }
        if note.lost.contains(self.rank) {
            self.expelled_by.get_or_insert(from);
            return Ok(());
        }
        if note.lost.contains(from) {
            if !self.leaving.contains(&from) {
                self.leaving.push(from);
            }
            self.changed = true;
            return Ok(());
        }
        if note.number < self.number {
            return Ok(());
        }
        if note.number > self.number || note.stage == Stage::Decided && self.value.is_none() {
            let what = format!(
                "rank {from} is ahead of agreement {}, which needs this rank",
                self.number
            );
            return Err(refuse(from, what));
        }
        self.notes[from as usize] = Some(note);
        self.changed = true;
        Ok(())
    }

    /// Continues with what has changed.
    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        if self.expelled_by.is_some() && !self.left {
            self.left = true;
            step.notes.push(Note {
                number: self.number,
                stage: Stage::Called,
                value: 0,
                lost: [self.rank].into_iter().collect(),
            });
        }
        let Some(mine) = self.value.filter(|_| self.is_open() && self.changed) else {
            return step;
        };
        self.changed = false;
        let decided = |rank| {
            let note = self.note(rank)?;
            let lost = || note.lost.iter().collect();
            (note.stage == Stage::Decided).then(|| (lost(), note.value))
        };
        let taken = self.others().find_map(decided);
        if let Some(decision) = taken {
            self.decide(decision, &mut step);
            return step;
        }
        self.merge(&mut step);
        let lost = self.lost();
        let set: Ranks = lost.iter().copied().collect();
        let complete = self.absent().next().is_none();
        let stage = match complete {
            true => Stage::Complete,
            false => Stage::Called,
        };
        if self.sent != Some((stage, lost.len())) {
            self.sent = Some((stage, lost.len()));
            step.notes.push(Note {
                number: self.number,
                stage,
                value: mine,
                lost: set.clone(),
            });
        }
        let same = |rank: u32| {
            let equal = |note: &Note| note.stage == Stage::Complete && note.lost == set;
            self.note(rank).is_some_and(equal) || mutant::on(Mutant::HastyAgreement)
        };
        if complete && self.others().all(same) {
            let values = self.others().filter_map(|rank| self.note(rank));
            let value = values.map(|note| note.value).fold(mine, u64::max);
            self.decide((lost, value), &mut step);
        }
        step
    }

    /// Counts the ranks as lost that the other ranks name.
    fn merge(&mut self, step: &mut Step) {
        for rank in std::mem::take(&mut self.leaving) {
            if !std::mem::replace(&mut self.lost[rank as usize], true) {
                step.reported.push((rank, rank));
            }
        }
        loop {
            let named = self.others().find_map(|by| {
                let mut named = self.note(by)?.lost.iter();
                let new = named.find(|rank| !self.lost[*rank as usize])?;
                Some((by, new))
            });
            let Some((by, rank)) = named else {
                return;
            };
            self.lost[rank as usize] = true;
            step.reported.push((by, rank));
        }
    }

    fn decide(&mut self, (lost, value): (Vec<u32>, u64), step: &mut Step) {
        step.notes.push(Note {
            number: self.number,
            stage: Stage::Decided,
            value,
            lost: lost.iter().copied().collect(),
        });
        self.last = Some(Decision { lost, value });
        self.taken = false;
        self.number += 1;
        self.value = None;
        self.sent = None;
        self.notes.fill(None);
    }
}

fn refuse(from: u32, what: String) -> Error {
    Error::new("agree on lost ranks", Kind::Protocol, what).with_rank(from)
}
