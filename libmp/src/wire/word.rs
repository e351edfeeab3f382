//! The words that announce, acknowledge and refuse messages: 64 bits that a NIC writes atomically.
//!
//! `number (16) | kind (4) | length (44)`. The number is the lowest 16 bits of the message's
//! number, in the highest bits of the word. A stream that waits for a word cyclically *greater or
//! equal* to the number alone passes for this message and for no earlier one. `device/mp_wire.hpp`
//! has the same layout.

use gdsync::Status;

/// Bits of the length.
const LEN_BITS: u32 = 44;
/// Greatest length that a word can hold.
pub const MAX_LEN: u64 = (1 << LEN_BITS) - 1;

/// The kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WordKind {
    /// The slot contains the payload.
    Eager = 1,
    /// The memory of the receive contains the payload.
    Direct = 2,
    /// The message is longer than the receive, or than its sender declared: nothing was written.
    TooLong = 3,
    /// The sender waits for the receive, to write into its memory (rendezvous).
    Announce = 4,
    /// The receive is posted, with room for this many bytes.
    Ready = 5,
    /// The receive has ended without the message.
    Refused = 6,
    /// The message was taken.
    Taken = 7,
    /// The flagged room contains the payload.
    Flagged = 8,
    /// Written by this side's library: the peer failed; the length field is a status.
    Failed = 15,
}

impl WordKind {
    const ALL: [WordKind; 9] = [
        WordKind::Eager,
        WordKind::Direct,
        WordKind::TooLong,
        WordKind::Announce,
        WordKind::Ready,
        WordKind::Refused,
        WordKind::Taken,
        WordKind::Flagged,
        WordKind::Failed,
    ];
}

/// Encodes a word of message `number`.
pub fn word(number: u64, kind: WordKind, len: u64) -> u64 {
    threshold(number) | (kind as u64) << LEN_BITS | len & MAX_LEN
}

/// The threshold of message `number`: its word and the words of later messages are cyclically not
/// less.
pub fn threshold(number: u64) -> u64 {
    number << 48
}

/// Whether `word` belongs to message `number` or a later one (of the next 32767).
pub fn reached(word: u64, number: u64) -> bool {
    word.wrapping_sub(threshold(number)) as i64 >= 0
}

/// The value of a word before message `first` uses it, in a ring of `depth` words.
pub fn before(first: u64, depth: u64) -> u64 {
    threshold(first.wrapping_sub(depth))
}

/// Decodes a word: lowest 16 bits of the number, kind (`None`: unknown kind), length.
pub fn parse(word: u64) -> (u16, Option<WordKind>, u64) {
    let code = (word >> LEN_BITS & 0xf) as u8;
    let kind = WordKind::ALL.into_iter().find(|k| *k as u8 == code);
    ((word >> 48) as u16, kind, word & MAX_LEN)
}

/// Encodes how a request ended, in one word; a word of 0 means that it has not ended.
pub fn result(status: Status, len: u64) -> u64 {
    u64::from(status.0) << 48 | len & MAX_LEN
}

/// The status in a word of kind [`WordKind::Failed`]; `BAD_RESPONSE` if the value is no failure
/// status.
pub fn failure(len: u64) -> Status {
    match len & 0xffff {
        status @ 2..0x8000 => Status(status as u32),
        _ => Status::BAD_RESPONSE,
    }
}

/// The value of a word in device memory after its `uses`-th receive, of 0 bytes. It is cyclically greater than those of
/// the receives before. Bits 0 to 36 are for the length, bit 37 is [`TURN`], bits 38 to 43 count shares
/// (`device/mp_unpack.hpp`) and are 0 between two receives, and the bits from 44 on count the receives.
pub fn ended(uses: u32) -> u64 {
    (u64::from(uses) << LEN_BITS) | (u64::from(uses % 2) * TURN)
}

/// The bits that count shares.
pub const COUNT_BITS: u32 = 6;

/// A bit of [`ended`] that differs from that of the receive before. It is above any length.
pub const TURN: u64 = 1 << (LEN_BITS - COUNT_BITS - 1);

/// The credit for message `number` in device memory. The lower bits count shares, as those of [`ended`].
pub fn credit(number: u64) -> u64 {
    number << COUNT_BITS
}

/// Decodes a result word; `None` if it is 0.
pub fn parse_result(word: u64) -> Option<(Status, u64)> {
    (word != 0).then_some((Status((word >> 48) as u32), word & MAX_LEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_order_cyclically() {
        for number in [0, 1, 0x7fff, 0x8000, 0xffff, 0x1_0000, u64::MAX] {
            for kind in WordKind::ALL {
                let w = word(number, kind, MAX_LEN);
                assert_eq!(parse(w), (number as u16, Some(kind), MAX_LEN));
                assert!(reached(w, number) && !reached(w, number.wrapping_add(1)));
                assert!(reached(word(number.wrapping_add(16), kind, 0), number));
                assert!(!reached(before(number, 16), number));
                assert!(!reached(
                    word(number.wrapping_sub(16), kind, MAX_LEN),
                    number
                ));
            }
        }
        assert_eq!(parse(word(3, WordKind::Eager, MAX_LEN + 1)).2, 0);
        assert_eq!(parse(9 << LEN_BITS).1, None);
        assert_eq!(parse_result(0), None);
        assert_eq!(
            parse_result(result(Status::TRUNCATED, 77)),
            Some((Status::TRUNCATED, 77))
        );
    }
}
