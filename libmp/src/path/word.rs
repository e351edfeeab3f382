//! [`Word`]: a word of this rank's memory, of 32 or 64 bits, and the conditions of waits for it.

use gdsync::gpu::{Condition, DevicePtr, Word32, Word64};

use crate::error::Result;

/// A word of this rank's memory. Its values have the width of the word.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// 32 bits.
    Narrow(Word32),
    /// 64 bits.
    Wide(Word64),
}

impl Word {
    pub fn load(&self) -> Result<u64> {
        Ok(match self {
            Word::Narrow(word) => word.load()?.into(),
            Word::Wide(word) => word.load()?,
        })
    }

    pub fn store(&self, value: u64) -> Result<()> {
        match self {
            Word::Narrow(word) => word.store(value as u32)?,
            Word::Wide(word) => word.store(value)?,
        }
        Ok(())
    }

    pub fn addr(&self) -> DevicePtr {
        match self {
            Word::Narrow(word) => word.addr(),
            Word::Wide(word) => word.addr(),
        }
    }

    pub fn bits(&self) -> u32 {
        match self {
            Word::Narrow(_) => 32,
            Word::Wide(_) => 64,
        }
    }

    /// Whether the word satisfies `condition` with `value` while it is `word`.
    pub fn holds(&self, condition: Condition, word: u64, value: u64) -> bool {
        holds(self.bits(), condition, word, value)
    }

    /// Whether the word can satisfy `condition` with `value`. If it can, `value` does.
    pub fn is_possible(&self, condition: Condition, value: u64) -> bool {
        self.holds(condition, value, value)
    }
}

/// Whether a word of `bits` bits satisfies the condition with `value`, as a stream's wait compares
/// them.
fn holds(bits: u32, condition: Condition, word: u64, value: u64) -> bool {
    let all = u64::MAX >> (64 - bits);
    match condition {
        Condition::Geq => word.wrapping_sub(value) >> (bits - 1) & 1 == 0,
        Condition::Eq => word == value,
        Condition::And => word & value != 0,
        Condition::Nor => word | value != all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_as_their_names_say() {
        use Condition::{And, Eq, Geq, Nor};
        for bits in [32, 64] {
            let (max, top) = (u64::MAX >> (64 - bits), 1 << (bits - 1));
            for (condition, word, value, met) in [
                (Geq, 4, 4, true),
                (Geq, 5, 4, true),
                (Geq, 3, 4, false),
                // Cyclic: 1 follows the greatest value.
                (Geq, 1, max, true),
                (Geq, max, 1, false),
                (Geq, top, 0, false),
                (Eq, 4, 4, true),
                (Eq, 5, 4, false),
                (And, 0b110, 0b011, true),
                (And, 0b110, 0b001, false),
                (And, top, top, true),
                (Nor, max - 1, 0, true),
                (Nor, max - 1, 1, false),
                (Nor, max, 0, false),
            ] {
                assert_eq!(
                    holds(bits, condition, word, value),
                    met,
                    "{bits} bits, {word:#x} {condition:?} {value:#x}"
                );
            }
            let possible = |condition, value| holds(bits, condition, value, value);
            assert!(!possible(And, 0) && !possible(Nor, max));
            assert!(possible(Nor, 0) && possible(And, 1) && possible(Geq, 0));
        }
    }
}
