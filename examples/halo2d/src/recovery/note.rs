//! The notes that ranks send each other about lost ranks, as bytes.

/// A note between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A probe: the receiver must answer.
    Probe,
    /// The answer to a probe.
    Answer,
    /// A rank is lost.
    Lost {
        /// The lost rank.
        rank: u32,
        /// Iterations begun by the sender.
        begun: u64,
    },
}

impl Note {
    /// Length of the message in bytes.
    pub const BYTES: usize = 16;

    /// The note as a message.
    pub fn to_bytes(self) -> [u8; Note::BYTES] {
        let (kind, rank, begun) = match self {
            Note::Probe => (0u32, 0, 0),
            Note::Answer => (1, 0, 0),
            Note::Lost { rank, begun } => (2, rank, begun),
        };
        let mut bytes = [0; Note::BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&rank.to_le_bytes());
        bytes[8..].copy_from_slice(&begun.to_le_bytes());
        bytes
    }

    /// The note in a message; `None` if the kind is unknown.
    pub fn from_bytes(bytes: [u8; Note::BYTES]) -> Option<Note> {
        let ([kind, rank, ..], _) = bytes.as_chunks::<4>() else {
            return None;
        };
        let (words, _) = bytes.as_chunks::<8>();
        match u32::from_le_bytes(*kind) {
            0 => Some(Note::Probe),
            1 => Some(Note::Answer),
            2 => Some(Note::Lost {
                rank: u32::from_le_bytes(*rank),
                begun: words.get(1).copied().map_or(0, u64::from_le_bytes),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_between_ranks_round_trip() {
        let lost = Note::Lost {
            rank: 7,
            begun: u64::MAX - 3,
        };
        for note in [Note::Probe, Note::Answer, lost] {
            assert_eq!(Note::from_bytes(note.to_bytes()), Some(note));
        }
        assert_eq!(Note::from_bytes([9; Note::BYTES]), None);
    }
}
