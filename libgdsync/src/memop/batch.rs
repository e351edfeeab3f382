//! A list of operations, and the places where it may be cut.

use std::ops::Range;

use super::caps::Needs;
use super::{Caps, Op};
use crate::error::{Error, Kind, Result};

/// Facts about an operation beyond [`Op`]. Memory operations run in order and need none of them; a
/// program kernel runs operations of one role in parallel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// No further facts.
    #[default]
    Plain,
    /// One of the two writes that ring a queue's doorbell: the record, then the doorbell, glued.
    Ring,
    /// A fenced write of a word that others poll and that no other mark of the list shares.
    Mark,
    /// A wait whose condition stays true after it has become true.
    Wait,
    /// The first of two tests of a completion entry. A program does both tests at once.
    EntryHalf,
    /// The last test of a completion entry with this owner bit.
    Entry(u8),
    /// As `Entry`, but no memory operations of this runtime can test the entry: a program must.
    EntryByKernel(u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Note {
    role: Role,
    /// The operation goes into the same submission as the next one.
    glued: bool,
}

/// Operations to be run by a stream in order.
///
/// A runtime takes a limited number at once, so a long batch is cut into several submissions,
/// but never between operations that were [glued](Batch::push_glued): a doorbell stays with
/// its doorbell record. Clearing a batch keeps its memory, so a reused one does not allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    ops: Vec<Op>,
    /// One note for each operation.
    notes: Vec<Note>,
    /// The needs of all operations together.
    needs: Needs,
    cost: usize,
    waits_for_others: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// An empty batch with room for `n` operations.
    pub fn with_capacity(n: usize) -> Batch {
        Batch {
            ops: Vec::with_capacity(n),
            notes: Vec::with_capacity(n),
            ..Batch::default()
        }
    }

    /// Appends `op`.
    pub fn push(&mut self, op: Op) {
        self.add(op, Role::Plain, false);
    }

    /// Appends `op`, which will not be separated from the operation pushed after it.
    pub fn push_glued(&mut self, op: Op) {
        self.add(op, Role::Plain, true);
    }

    /// Appends `op` with a note.
    #[inline]
    pub(crate) fn add(&mut self, op: Op, role: Role, glued: bool) {
        let by_kernel = matches!(role, Role::EntryByKernel(_));
        self.needs = self.needs | op.needs() | Needs::KERNEL.only_if(by_kernel);
        self.cost += match (role, op) {
            // The tests of an entry count as two, their maximum, so that the cost of a list does
            // not depend on the lap.
            (Role::EntryHalf, _) => 0,
            (Role::Entry(_) | Role::EntryByKernel(_), _) => 2,
            // At an address that is not a multiple of 8, one more.
            (_, Op::Copy { data, .. }) => data.bytes().len() / 8 + 1,
            _ => 1,
        };
        self.waits_for_others |= role == Role::Plain && op.is_wait();
        self.ops.push(op);
        self.notes.push(Note { role, glued });
    }

    /// The capabilities that a runtime must have to run every operation as it is.
    pub(crate) fn needs(&self) -> Needs {
        self.needs
    }

    /// Whether a runtime with `caps` runs every operation as it is.
    pub(crate) fn is_legal(&self, caps: &Caps) -> bool {
        caps.met().has(self.needs)
    }

    /// The most memory operations of at most 64 bits that the batch becomes.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Whether the batch waits for a word that may be written by others than a NIC or a stream of
    /// the library.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.waits_for_others
    }

    /// The operations in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operations, for changes that keep the counts: neither needs nor cost may grow.
    pub(crate) fn ops_mut(&mut self) -> &mut [Op] {
        &mut self.ops
    }

    /// The role of operation `index`.
    pub(crate) fn role(&self, index: usize) -> Role {
        self.notes[index].role
    }

    /// Whether operation `index` is glued to the next.
    pub fn is_glued(&self, index: usize) -> bool {
        self.notes.get(index).is_some_and(|note| note.glued)
    }

    /// The length of the longest glued run of operations.
    pub(crate) fn longest_glued(&self) -> usize {
        let runs = self.notes.split(|note| !note.glued);
        runs.map(|run| run.len() + 1).max().unwrap_or(1)
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Removes the operations and keeps the memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.notes.clear();
        (self.needs, self.cost, self.waits_for_others) = Default::default();
    }

    /// The submissions: ranges of at most `limit` operations, cut where nothing is glued,
    /// each as long as it can be.
    ///
    /// # Errors
    /// `Unsupported` if more than `limit` operations are glued together.
    pub fn split(&self, limit: usize) -> Result<Split<'_>> {
        let mut run = 0;
        for note in &self.notes {
            run += 1;
            if run > limit {
                let what = "a run of operations that cannot be split is longer than a submission";
                return Err(Error::new("split batch", Kind::Unsupported, what)
                    .with_limit(limit as u64, "operations"));
            }
            if !note.glued {
                run = 0;
            }
        }
        Ok(Split {
            batch: self,
            at: 0,
            limit,
        })
    }
}

/// Iterates over the submissions of a [`Batch`]; see [`Batch::split`].
#[derive(Clone, Debug)]
pub struct Split<'a> {
    batch: &'a Batch,
    at: usize,
    limit: usize,
}

impl Iterator for Split<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let len = self.batch.len();
        if self.at == len {
            return None;
        }
        let mut end = len.min(self.at + self.limit);
        // Step back out of a glued run; `split` has checked that at least one operation remains.
        while end < len && self.batch.notes[end - 1].glued {
            end -= 1;
        }
        let range = self.at..end;
        self.at = end;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Condition, DevicePtr, Inline, Width};
    use super::*;

    fn batch(glue: &[bool]) -> Batch {
        let mut b = Batch::new();
        for &g in glue {
            b.add(Op::Fence, Role::Plain, g);
        }
        b
    }

    #[test]
    fn a_batch_is_cut_only_between_groups_and_as_late_as_possible() {
        // 338 operations as a 26-neighbour exchange makes: groups of (record, doorbell) and singles.
        let glue: Vec<bool> = (0..338).map(|i| i % 13 == 0).collect();
        let b = batch(&glue);
        let cuts: Vec<_> = b.split(255).unwrap().collect();
        assert_eq!(cuts, [0..255, 255..338]);
        let b = batch(&[false, true, false, true, true, false]);
        assert_eq!(b.split(3).unwrap().collect::<Vec<_>>(), [0..3, 3..6]);
        assert_eq!(b.split(4).unwrap().collect::<Vec<_>>(), [0..3, 3..6]);
        for limit in 3..8 {
            for r in b.split(limit).unwrap() {
                assert!(r.len() <= limit && !b.is_glued(r.end - 1));
            }
        }
        let e = b.split(2).unwrap_err();
        assert_eq!((e.kind(), e.limit()), (Kind::Unsupported, Some(2)));
        assert_eq!(Batch::new().split(1).unwrap().count(), 0);
        assert_eq!((b.longest_glued(), Batch::new().longest_glued()), (3, 1));
        let open = batch(&[false, true]);
        assert_eq!(
            open.split(2).unwrap().next(),
            Some(0..2),
            "no cut at the end"
        );
    }

    #[test]
    fn clear_drops_all_notes_of_the_operations() {
        let mut b = batch(&[true, true]);
        b.push(Op::wait(Width::Bits64, DevicePtr(8), Condition::Nor, 1u64));
        b.clear();
        assert_eq!(b, Batch::new());
    }

    #[test]
    fn an_inline_copy_counts_as_the_words_it_becomes() {
        let data = Inline::new(&[0; 32]).unwrap();
        let mut list = Batch::new();
        list.push(Op::Copy {
            at: DevicePtr(64),
            data,
        });
        assert_eq!(list.cost(), 5);
        list.push(Op::Fence);
        assert_eq!(list.cost(), 6);
    }
}
