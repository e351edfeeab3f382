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

/// What a rank tells all others about an agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The number of the agreement, in the order of the calls.
    pub number: u64,
    pub stage: Stage,
    /// The value of the rank; if it has decided, the agreed value.
    pub value: u64,
    /// The ranks that it counts as lost, ascending.
    pub lost: Vec<u32>,
}

/// The most bytes of the list of lost ranks: one bit for each rank of the largest job.
const MOST: usize = (crate::bootstrap::wire::MAX_RANKS / 8) as usize;

impl Note {
    /// Encodes number, stage and value, and the lost ranks as bits.
    pub fn encode(&self, b: &mut Vec<u8>) {
        b.extend(self.number.to_le_bytes());
        b.extend(self.value.to_le_bytes());
        b.push(match self.stage {
            Stage::Called => 0,
            Stage::Complete => 1,
            Stage::Decided => 2,
        });
        let mut bits = vec![0; self.lost.last().map_or(0, |last| *last as usize / 8 + 1)];
        for rank in &self.lost {
            bits[*rank as usize / 8] |= 1 << (rank % 8);
        }
        b.extend((bits.len() as u32).to_le_bytes());
        b.extend(bits);
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
        let set = |rank: &u32| bits[*rank as usize / 8] >> (rank % 8) & 1 == 1;
        let note = Note {
            number: u64::from_le_bytes(*number),
            stage,
            value: u64::from_le_bytes(*value),
            lost: (0..8 * len as u32).filter(set).collect(),
        };
        Ok((note, rest))
    }
}

fn refuse(what: String) -> Error {
    Error::new("read control message", Kind::Protocol, what)
}
