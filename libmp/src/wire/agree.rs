//! The notes of an agreement on lost ranks, as bytes.

use crate::error::{Error, Kind, Result};

/// How far a rank is in an agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has called the function; notes of other ranks are missing.
    Called,
    /// It has a note of every rank that it does not count as lost.
    Complete,
    /// It has decided.
    Decided,
}

/// A rank's message to all others about an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The number of the agreement, in the order of the calls.
    pub number: u64,
    pub stage: Stage,
    /// The value of the rank; if it has decided, the agreed value.
    pub value: u64,
    /// The ranks that it counts as lost.
    pub lost: Ranks,
}

/// A set of ranks, a bit for each. Equal sets have equal bytes: the last byte is not zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranks(Vec<u8>);

impl Ranks {
    pub fn insert(&mut self, rank: u32) {
        let at = rank as usize / 8;
        self.0.resize(self.0.len().max(at + 1), 0);
        self.0[at] |= 1 << (rank % 8);
    }

    pub fn contains(&self, rank: u32) -> bool {
        let byte = self.0.get(rank as usize / 8);
        byte.is_some_and(|byte| byte >> (rank % 8) & 1 == 1)
    }

    /// The ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..8 * self.0.len() as u32).filter(|rank| self.contains(*rank))
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Ranks {
        let mut set = Ranks::default();
        ranks.into_iter().for_each(|rank| set.insert(rank));
        set
    }
}

/// The most bytes of the list of lost ranks: one bit for each rank of the largest job.
const MOST: usize = (crate::bootstrap::wire::MAX_RANKS / 8) as usize;

impl Note {
    /// Encodes number, value and stage, and the lost ranks as bits.
    pub fn encode(&self, b: &mut Vec<u8>) {
        b.extend(self.number.to_le_bytes());
        b.extend(self.value.to_le_bytes());
        b.push(match self.stage {
            Stage::Called => 0,
            Stage::Complete => 1,
            Stage::Decided => 2,
        });
        b.extend((self.lost.0.len() as u32).to_le_bytes());
        b.extend(&self.lost.0);
    }

    /// Decodes a note, and returns the bytes behind it.
    ///
    /// # Errors
    /// `Protocol` for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<(Note, &[u8])> {
        let short = || refuse("the note of an agreement is too short".to_owned());
        let (number, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let (value, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (stage, rest) = rest.split_first().ok_or_else(short)?;
        let (len, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let stage = match stage {
            0 => Stage::Called,
            1 => Stage::Complete,
            2 => Stage::Decided,
            other => return Err(refuse(format!("an agreement has no stage {other}"))),
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MOST {
            let what = format!("{len} bytes of lost ranks are too many");
            return Err(refuse(what).with_limit(MOST, "bytes"));
        }
        let (bits, rest) = rest.split_at_checked(len).ok_or_else(short)?;
        if bits.last() == Some(&0) {
            return Err(refuse("the list of lost ranks ends with a zero".to_owned()));
        }
        let note = Note {
            number: u64::from_le_bytes(*number),
            stage,
            value: u64::from_le_bytes(*value),
            lost: Ranks(bits.to_vec()),
        };
        Ok((note, rest))
    }
}

fn refuse(what: String) -> Error {
    Error::new("read control message", Kind::Protocol, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_than_those_of_a_note_are_refused() {
        let (number, value, stage) = (3, 4, Stage::Decided);
        let lost = [0, 9, 65_535].into_iter().collect();
        let note = Note {
            number,
            stage,
            value,
            lost,
        };
        let mut good = Vec::new();
        note.encode(&mut good);
        assert_eq!(note.lost.iter().collect::<Vec<_>>(), [0, 9, 65_535]);
        assert!(note.lost.contains(9) && !note.lost.contains(8) && !note.lost.contains(1 << 20));
        assert_eq!(Note::decode(&good).unwrap(), (note, &[][..]));
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let e = Note::decode(&bytes).unwrap_err();
            assert_eq!(e.kind(), Kind::Protocol, "{e}");
        };
        refused(&|bytes| bytes[16] = 3);
        refused(&|bytes| *bytes.last_mut().unwrap() = 0);
        refused(&|bytes| bytes[17..21].copy_from_slice(&(MOST as u32 + 1).to_le_bytes()));
        refused(&|bytes| bytes.truncate(bytes.len() - 1));
    }
}
