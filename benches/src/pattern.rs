//! The contents of payloads: tags, and the words as the host computes them, the same as
//! `device/pattern.hpp`.

/// Multiplier of the pattern: 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The tag of one payload: the number of the message and the rank that wrote it.
pub fn tag(message: u64, sender: u32) -> u64 {
    2 * message + u64::from(sender)
}

/// The inverse of [`tag`].
pub fn untag(tag: u64) -> (u64, u32) {
    (tag / 2, (tag % 2) as u32)
}

/// The first index of the words of a tag; those of different tags are far apart.
pub fn seed(tag: u64) -> u64 {
    let x = tag.wrapping_add(1).wrapping_mul(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A word of a seed: bytes `8 * index` and on, little-endian.
pub fn word(seed: u64, index: u64) -> u64 {
    let x = seed.wrapping_add(index).wrapping_mul(GOLDEN);
    x ^ (x >> 29)
}

/// The first `len` bytes of a tag's payload.
pub fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let seed = seed(tag);
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| word(seed, i).to_le_bytes());
    words.take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_contains_message_and_sender() {
        for (message, sender) in [(0, 0), (0, 1), (7, 0), (u32::MAX as u64, 1)] {
            assert_eq!(untag(tag(message, sender)), (message, sender));
        }
    }

    #[test]
    fn payloads_differ_by_tag_and_by_place() {
        let zero = bytes(tag(5, 0), 4096);
        assert_eq!(zero, bytes(tag(5, 0), 4096));
        // One equal byte in 256 is chance; an equal word is an error.
        for other in [bytes(tag(5, 1), 4096), bytes(tag(6, 0), 4096)] {
            assert!(zero.chunks(8).zip(other.chunks(8)).all(|(a, b)| a != b));
        }
        let mut words: Vec<&[u8]> = zero.chunks(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 512);
    }

    #[test]
    fn ragged_length_is_a_prefix() {
        assert_eq!(bytes(3, 13), bytes(3, 16)[..13]);
    }
}
