//! Samples of the resources of a long run: their use must not grow.

use crate::heap::Held;

/// The most that a later sample may exceed the early one: queues of streams that double once or
/// twice when the CPU runs further ahead, and much less than one block, or two bytes, per request.
const BOUND: Held = Held {
    bytes: 1 << 19,
    blocks: 128,
    files: 4,
    maps: 8,
};

/// Memory in flight varies: the minimum of each tenth of the run counts.
#[derive(Debug)]
pub struct Samples {
    turns: u64,
    every: u64,
    tenths: [Option<Held>; 10],
}

impl Samples {
    /// Samples of a run of so many turns.
    pub fn of(turns: u64) -> Samples {
        Samples {
            turns,
            every: turns.div_ceil(1000),
            tenths: [None; 10],
        }
    }

    /// Takes a sample in some of the turns.
    pub fn sample(&mut self, turn: u64) {
        if !turn.is_multiple_of(self.every) {
            return;
        }
        let least = &mut self.tenths[(turn * 10 / self.turns) as usize];
        let now = Held::now();
        *least = Some(least.map_or(now, |held| held.least(now)));
    }

    /// Checks that no tenth exceeds the second by more than the bound.
    pub fn check(&self) {
        let early = self.tenths[1].expect("a sample was taken");
        for later in &self.tenths[2..] {
            let grew = later.expect("a sample was taken").since(early);
            assert!(grew.within(BOUND), "it grew by {grew:?} from {early:?}");
        }
    }
}
