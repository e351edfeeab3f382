//! The free parts of a unit of memory that pieces are allocated from.

use std::collections::BTreeMap;

/// The parts of a unit that are not allocated.
#[derive(Debug)]
pub(crate) struct Room {
    /// The length of the unit in bytes.
    len: usize,
    /// Length of each free part in bytes, by offset.
    free: BTreeMap<usize, usize>,
    /// Bytes that are never allocated again: they were exported, so others may have access.
    spent: usize,
}

impl Room {
    /// A unit of `len` bytes, all of them free.
    pub fn new(len: usize) -> Room {
        Room {
            len,
            free: BTreeMap::from([(0, len)]),
            spent: 0,
        }
    }

    /// Whether no piece of the unit is in use.
    pub fn is_unused(&self) -> bool {
        self.free.values().sum::<usize>() + self.spent == self.len
    }

    /// Whether every byte of the unit can be allocated again.
    pub fn is_whole(&self) -> bool {
        self.spent == 0
    }

    /// Allocates a piece; returns its offset.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let mut parts = self.free.iter();
        let (&offset, &left) = parts.find(|(_, left)| **left >= len)?;
        self.free.remove(&offset);
        if left > len {
            self.free.insert(offset + len, left - len);
        }
        Some(offset)
    }

    /// Releases a piece, which can be allocated again unless it was exported; returns whether no
    /// other piece is in use.
    pub fn give(&mut self, mut offset: usize, mut len: usize, exported: bool) -> bool {
        if exported {
            self.spent += len;
            return self.is_unused();
        }
        if let Some(after) = self.free.remove(&(offset + len)) {
            len += after;
        }
        let before = self.free.range(..offset).next_back();
        if let Some((start, before)) = before.map(|(start, len)| (*start, *len))
            && start + before == offset
        {
            self.free.remove(&start);
            (offset, len) = (start, before + len);
        }
        self.free.insert(offset, len);
        self.is_unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn released_pieces_are_merged_and_reused() {
        let mut unit = Room::new(16 * PAGE);
        let pieces: Vec<usize> = (1..=5).map(|n| unit.take(n * PAGE).unwrap()).collect();
        assert_eq!(pieces, [0, 1, 3, 6, 10].map(|page| page * PAGE));
        assert_eq!(unit.take(2 * PAGE), None);
        assert_eq!(unit.take(PAGE), Some(15 * PAGE));
        let mut rng = fastrand::Rng::with_seed(7);
        let mut held: Vec<(usize, usize)> = pieces.iter().map(|at| *at / PAGE).zip(1..).collect();
        held.push((15, 1));
        for _ in 0..10_000 {
            if rng.bool() && !held.is_empty() {
                let (at, pages) = held.swap_remove(rng.usize(..held.len()));
                assert_eq!(unit.give(at * PAGE, pages * PAGE, false), held.is_empty());
            } else {
                let pages = rng.usize(1..6);
                let Some(at) = unit.take(pages * PAGE) else {
                    continue;
                };
                let at = at / PAGE;
                assert!(at + pages <= 16);
                let apart = |&(other, n): &(usize, usize)| at + pages <= other || other + n <= at;
                assert!(held.iter().all(apart), "two pieces overlap");
                held.push((at, pages));
            }
        }
        for (at, pages) in held.drain(..) {
            unit.give(at * PAGE, pages * PAGE, false);
        }
        assert_eq!(unit.free, BTreeMap::from([(0, 16 * PAGE)]));
        // An exported piece is not allocated again, and does not keep the unit in use.
        let (first, second) = (unit.take(PAGE).unwrap(), unit.take(15 * PAGE).unwrap());
        assert!(!unit.give(first, PAGE, true) && !unit.is_whole());
        assert_eq!(unit.take(PAGE), None);
        assert!(unit.give(second, 15 * PAGE, false));
        assert_eq!(unit.take(16 * PAGE), None);
    }
}
