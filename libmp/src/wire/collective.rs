//! The words of collective calls: each rank stores one to every other rank, behind its contribution.
//!
//! `number (24) | kind (4) | detail (12) | length (24)`. The number is the lowest 24 bits of the
//! call's number, in the highest bits of the word, so that a stream can wait for a word that is
//! cyclically *greater or equal*. The other fields say what the rank has called; a rank that finds
//! other fields than its own has another call under the same number.

use std::fmt;

const NUMBER: u32 = 40;
const KIND: u32 = 36;
const DETAIL: u32 = 24;
/// Greatest length of a contribution in bytes.
pub const MOST_LEN: usize = (1 << DETAIL) - 1;

/// The names of the types of elements, by their code.
pub const ELEMENTS: [&str; 6] = ["f32", "f64", "i32", "i64", "u32", "u64"];
/// The names of the operations of an all-reduce, by their code.
pub const OPS: [&str; 6] = ["sum", "product", "minimum", "maximum", "and", "or"];

/// What a collective call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// No contributions.
    Barrier,
    /// One contribution, of the root, to all.
    Broadcast {
        /// The rank that sends.
        root: u32,
    },
    /// One contribution of each rank, the same to all.
    AllGather,
    /// A contribution of each rank to each, of equal length.
    AllToAll,
    /// A contribution of each rank to each, of any length.
    AllToAllV,
    /// One contribution of each rank; the result combines them.
    AllReduce {
        /// The code of the elements' type.
        element: u32,
        /// The code of the operation.
        op: u32,
    },
}

impl Call {
    fn code(self) -> u64 {
        let (kind, detail) = match self {
            Call::Barrier => (1, 0),
            Call::Broadcast { root } => (2, root),
            Call::AllGather => (3, 0),
            Call::AllToAll => (4, 0),
            Call::AllToAllV => (5, 0),
            Call::AllReduce { element, op } => (6, element << 4 | op),
        };
        kind << KIND | u64::from(detail & 0xfff) << DETAIL
    }

    /// Its name in errors.
    pub fn name(self) -> &'static str {
        match self {
            Call::Barrier => "barrier",
            Call::Broadcast { .. } => "broadcast",
            Call::AllGather => "all-gather",
            Call::AllToAll => "all-to-all",
            Call::AllToAllV => "all-to-all-v",
            Call::AllReduce { .. } => "all-reduce",
        }
    }
}

/// The word of call `number`, with a contribution of `len` bytes.
pub fn word(number: u64, call: Call, len: usize) -> u64 {
    threshold(number) | call.code() | len as u64 & MOST_LEN as u64
}

/// The threshold of call `number`: its words and those of later calls are cyclically not less.
pub fn threshold(number: u64) -> u64 {
    number << NUMBER
}

/// A word of call `number` that no rank stores: the library releases a stream with it.
pub fn released(number: u64) -> u64 {
    threshold(number) | 15 << KIND
}

/// Whether `word` belongs to call `number` or a later one (of the next 2^23).
pub fn reached(word: u64, number: u64) -> bool {
    word.wrapping_sub(threshold(number)) as i64 >= 0
}

/// What the rank that stored a word has called, for texts: `broadcast of 8 bytes from rank 0`.
pub struct Called(pub u64);

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, detail) = (self.0 & MOST_LEN as u64, self.0 >> DETAIL & 0xfff);
        let name = |names: &[&'static str], code: u64| {
            names.get(code as usize).copied().unwrap_or("unknown type")
        };
        match self.0 >> KIND & 0xf {
            1 => write!(f, "barrier"),
            2 => write!(f, "broadcast of {len} bytes from rank {detail}"),
            3 => write!(f, "all-gather of {len} bytes"),
            4 => write!(f, "all-to-all of {len} bytes"),
            5 => write!(f, "all-to-all-v of {len} bytes between the two ranks"),
            6 => {
                let (op, element) = (name(&OPS, detail & 0xf), name(&ELEMENTS, detail >> 4));
                write!(f, "all-reduce ({op}) of {len} bytes of {element}")
            }
            kind => write!(f, "call of the unknown kind {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_order_cyclically_and_name_their_call() {
        let reduce = Call::AllReduce { element: 1, op: 2 };
        for number in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff, 0x100_0000, u64::MAX] {
            let word = word(number, reduce, MOST_LEN);
            assert!(reached(word, number) && !reached(word, number.wrapping_add(1)));
            assert!(reached(released(number), number) && released(number) != word);
            assert_eq!(
                Called(word).to_string(),
                "all-reduce (minimum) of 16777215 bytes of f64"
            );
        }
        let calls = [
            Call::Barrier,
            Call::Broadcast { root: 1 },
            Call::Broadcast { root: 2 },
            Call::AllGather,
            Call::AllToAll,
            Call::AllToAllV,
            reduce,
            Call::AllReduce { element: 1, op: 3 },
        ];
        let words: Vec<_> = calls.iter().map(|call| word(7, *call, 8)).collect();
        for (i, one) in words.iter().enumerate() {
            assert!(!words[..i].contains(one), "{}", Called(*one));
        }
    }
}
