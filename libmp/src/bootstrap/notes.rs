//! The files in a shared directory, as bytes and names. Pure: no file, no clock.

use super::bytes::{Bytes, Malformed};
use super::secret::Nonce;
use super::wire::MAX_RANKS;

const RANK_MAGIC: [u8; 8] = *b"mp-rank\x01";
const JOB_MAGIC: [u8; 8] = *b"mp-job\0\x01";

const SHORT: &str = "it is too short";

/// Bytes of a rank's note.
pub(super) const RANK_NOTE: usize = 8 + 4 + 4 + 8 + 32;

/// The note of a rank that has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankNote {
    /// The rank's number.
    pub rank: u32,
    /// The job size that the rank expects.
    pub size: u32,
    /// The number of its host.
    pub host: u64,
    /// A fresh random number that distinguishes it from ranks of other jobs. Only processes of the
    /// user can read it.
    pub nonce: Nonce,
}

impl RankNote {
    /// Encodes the note.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RANK_NOTE);
        bytes.extend(RANK_MAGIC);
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.host.to_le_bytes());
        bytes.extend(self.nonce);
        bytes
    }

    /// Decodes a note.
    ///
    /// # Errors
    /// The bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<RankNote, Malformed> {
        let mut bytes = Bytes(bytes, SHORT);
        if bytes.array()? != RANK_MAGIC {
            return Err(Malformed("it is not a rank's note of this version"));
        }
        let note = RankNote {
            rank: bytes.u32()?,
            size: bytes.u32()?,
            host: bytes.u64()?,
            nonce: bytes.array()?,
        };
        bytes.end("it has trailing bytes")?;
        Ok(note)
    }
}

/// Host and nonce of a rank.
pub(super) type Member = (u64, Nonce);

/// The number and the members of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobNote {
    /// The job's number.
    pub job: u64,
    /// Indexed by rank.
    pub ranks: Vec<Member>,
}

impl JobNote {
    /// Encodes the note.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(JOB_MAGIC);
        bytes.extend(self.job.to_le_bytes());
        for (host, nonce) in &self.ranks {
            bytes.extend(host.to_le_bytes());
            bytes.extend(nonce);
        }
        bytes
    }

    /// Decodes a note.
    ///
    /// # Errors
    /// The bytes are malformed.
    pub fn decode(bytes: &[u8]) -> Result<JobNote, Malformed> {
        let mut bytes = Bytes(bytes, SHORT);
        if bytes.array()? != JOB_MAGIC {
            return Err(Malformed("it is not a job's note of this version"));
        }
        let job = bytes.u64()?;
        let mut ranks = Vec::new();
        while !bytes.0.is_empty() {
            if ranks.len() == MAX_RANKS as usize {
                return Err(Malformed("it names too many ranks"));
            }
            ranks.push((bytes.u64()?, bytes.array()?));
        }
        Ok(JobNote { job, ranks })
    }
}

/// The file name of a rank's note.
pub(super) fn note_name(rank: u32) -> String {
    format!("rank-{rank}")
}

/// The directory name of a rank's mailbox.
pub(super) fn mailbox_name(rank: u32, nonce: &Nonce) -> String {
    let mark = nonce[..8].iter().map(|b| format!("{b:02x}"));
    format!("to-{rank}-{}", mark.collect::<String>())
}

/// The file name of the `number`-th message of a sender.
pub(super) fn mail_name(from: u32, number: u64) -> String {
    format!("{from}.{number}")
}

/// Sender and number in the file name of a message. None if the name has another form.
pub(super) fn parse_mail_name(name: &str) -> Option<(u32, u64)> {
    let (from, number) = name.split_once('.')?;
    let parsed = (from.parse().ok()?, number.parse().ok()?);
    (mail_name(parsed.0, parsed.1) == name).then_some(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip_and_truncated_notes_fail() {
        let rank = RankNote {
            rank: 3,
            size: 9,
            host: 77,
            nonce: [5; 32],
        };
        let bytes = rank.encode();
        assert_eq!(bytes.len(), RANK_NOTE);
        assert_eq!(RankNote::decode(&bytes), Ok(rank));
        let job = JobNote {
            job: 11,
            ranks: vec![(1, [2; 32]), (3, [4; 32])],
        };
        assert_eq!(JobNote::decode(&job.encode()), Ok(job.clone()));
        for end in 0..RANK_NOTE {
            assert!(RankNote::decode(&bytes[..end]).is_err());
            assert!(JobNote::decode(&bytes[..end]).is_err());
        }
        assert!(RankNote::decode(&[bytes, vec![0]].concat()).is_err());
        assert!(JobNote::decode(&job.encode()[..17]).is_err());
    }

    #[test]
    fn mail_names_are_parsed_exactly() {
        assert_eq!(parse_mail_name(&mail_name(7, 12)), Some((7, 12)));
        for name in [
            "", ".", "7", ".7.12", "7.12.1", "+7.12", "07.1", "7.-1", "x.1",
        ] {
            assert_eq!(parse_mail_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_job_note_of_more_ranks_than_the_limit_is_refused() {
        let ranks = |count: u32| JobNote {
            job: 1,
            ranks: vec![(0, [0; 32]); count as usize],
        };
        assert!(JobNote::decode(&ranks(MAX_RANKS).encode()).is_ok());
        assert!(JobNote::decode(&ranks(MAX_RANKS + 1).encode()).is_err());
    }
}
