//! Stream operations: the memory operations of the public interface, and their form in the ring to
//! the engine.

use std::sync::Arc;

use crate::backing::Backing;
use crate::queue::Ring;
use crate::{DevAddr, Dims, Error, Kernel, Stamp};

/// The condition of a wait. `v` is the word in memory under the wait's mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cond {
    /// `v - value`, cyclic in the word's width, is not negative; without
    /// [`Caps::cyclic`](crate::Caps::cyclic), `v` is not less than `value`, both unsigned.
    Geq,
    /// `v` equals `value`.
    Eq,
    /// `v` and `value` have a bit in common.
    And,
    /// Some bit is clear in `v` and in `value` under the mask. As HIP documents it: with a mask,
    /// every bit outside it is such a bit, so the wait passes always.
    Nor,
}

impl Cond {
    /// Whether `word` satisfies the condition. The words have 64 bits if they are `wide`; else the
    /// upper halves are ignored. `cyclic`: see [`Caps::cyclic`](crate::Caps::cyclic).
    #[inline]
    pub fn holds(self, word: u64, value: u64, mask: u64, wide: bool, cyclic: bool) -> bool {
        let low = |n: u64| u64::from(n as u32);
        if wide {
            self.over(word, value, mask, 63, cyclic)
        } else {
            self.over(low(word), low(value), low(mask), 31, cyclic)
        }
    }

    /// `sign` is the uppermost bit of the words. Inlined, so that it is a constant.
    #[inline(always)]
    fn over(self, word: u64, value: u64, mask: u64, sign: u32, cyclic: bool) -> bool {
        let v = word & mask;
        match self {
            Cond::Geq if !cyclic => v >= value,
            Cond::Geq => v.wrapping_sub(value) >> sign & 1 == 0,
            Cond::Eq => v == value,
            Cond::And => v & value != 0,
            Cond::Nor => !(v | value & mask) << (63 - sign) != 0,
        }
    }
}

/// Up to 64 bytes that an operation carries by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InlineData {
    len: u8,
    bytes: [u8; InlineData::LIMIT],
}

impl InlineData {
    /// The maximal length in bytes.
    pub const LIMIT: usize = 64;

    /// A copy of `data`.
    ///
    /// # Errors
    /// `data` is longer than [`LIMIT`](Self::LIMIT).
    pub fn new(data: &[u8]) -> Result<InlineData, Error> {
        let len = data.len();
        let mut bytes = [0; InlineData::LIMIT];
        match bytes.get_mut(..len) {
            Some(part) => part.copy_from_slice(data),
            None => {
                let limit = InlineData::LIMIT;
                return Err(Error::InlineTooLong { len, limit });
            }
        }
        Ok(InlineData {
            len: len as u8,
            bytes,
        })
    }
}

impl std::ops::Deref for InlineData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for InlineData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

/// A memory operation on a stream. Words are in the byte order of the machine and aligned to
/// their size.
///
/// Operations of a stream run in order. Under weak memory, a write that is not `fenced` may become
/// visible to others late, and after later writes. [`Fence`](MemOp::Fence), a fenced write, a copy,
/// a kernel and an event record order all earlier writes. The stream itself observes its own
/// writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemOp {
    /// Stores a word.
    Write {
        /// The address.
        addr: DevAddr,
        /// The value; the whole value if the word is wide, else the lower half.
        value: u64,
        /// A word of 64 bits, not 32. Under weak memory, if it is not `fenced`, its halves may
        /// become visible separately.
        wide: bool,
        /// All earlier writes are visible before this one.
        fenced: bool,
    },
    /// Stops the stream until a word satisfies a condition.
    Wait {
        /// The address.
        addr: DevAddr,
        /// The operand of the comparison.
        value: u64,
        /// The mask of the compared bits.
        mask: u64,
        /// The comparison.
        cond: Cond,
        /// A word of 64 bits, not 32.
        wide: bool,
        /// After the wait, earlier NIC writes to device memory are visible to later operations.
        flush: bool,
    },
    /// Stores inline bytes, at any alignment.
    Copy {
        /// The address.
        addr: DevAddr,
        /// The bytes.
        data: InlineData,
    },
    /// Makes all earlier writes of the stream visible.
    Fence,
    /// Makes earlier NIC writes to device memory visible to later operations.
    FlushRemote,
}

/// The engine's address of an operand. The address was checked at the enqueue, and the memory stays
/// mapped until the operation has retired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target(pub(crate) *mut u8);

// SAFETY: only the engine uses the pointer, as the comment above says.
unsafe impl Send for Target {}
// SAFETY: threads that share it only copy it.
unsafe impl Sync for Target {}

/// A wait for a word: of 64 bits if it is wide, else of 32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) at: Target,
    pub(crate) value: u64,
    pub(crate) mask: u64,
    pub(crate) cond: Cond,
    pub(crate) wide: bool,
    pub(crate) flush: bool,
    pub(crate) cyclic: bool,
}

/// The number of inline bytes of an [`Op::Data`].
pub(crate) const DATA: usize = 24;

/// An item of a stream's ring. Half a cache line.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Write {
        at: Target,
        value: u64,
        wide: bool,
        fenced: bool,
    },
    Wait(Wait),
    /// `Data` items with the `len` bytes follow.
    Inline {
        at: Target,
        len: u8,
    },
    Data([u8; DATA]),
    Fence,
    FlushRemote,
    Copy {
        to: Target,
        from: Target,
        len: usize,
    },
    Fill {
        to: Target,
        len: usize,
        byte: u8,
    },
    Launch(Box<Launch>),
    /// All earlier writes are visible when the submission retires.
    Record,
    /// As `Record`, and notes the time.
    Stamp(Stamp),
    /// Continues when the other stream has retired this many submissions.
    WaitEvent {
        ring: Arc<Ring<Op>>,
        upto: u64,
    },
    /// The operations of a graph, which has at least one.
    Graph(Arc<Recorded>),
}

const _: () = assert!(size_of::<Op>() == 32);

impl Op {
    /// Whether all earlier writes of the stream must be visible before this operation starts.
    #[inline]
    pub(crate) fn comes_after_writes(&self) -> bool {
        match self {
            Op::Write { fenced, .. } => *fenced,
            Op::Fence
            | Op::Record
            | Op::Stamp(_)
            | Op::Copy { .. }
            | Op::Fill { .. }
            | Op::Launch(_) => true,
            Op::Wait(_)
            | Op::Inline { .. }
            | Op::Data(_)
            | Op::FlushRemote
            | Op::WaitEvent { .. }
            | Op::Graph(_) => false,
        }
    }

    /// Whether a graph can contain the operation.
    pub(crate) fn can_be_recorded(&self) -> bool {
        !matches!(
            self,
            Op::Record | Op::Stamp(_) | Op::WaitEvent { .. } | Op::Graph(_)
        )
    }
}

/// What a launch of a graph runs. A ring holds it until the launch has run.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) ops: Vec<Op>,
    /// The memory of the operands, which is kept.
    pub(crate) memory: Vec<Arc<Backing>>,
}

/// A kernel, its dimensions and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Kernel,
    pub(crate) dims: Dims,
    pub(crate) args: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::Cond::{And, Eq, Geq, Nor};
    use super::*;

    fn narrow(cond: Cond, word: u32, value: u32, mask: u32) -> bool {
        // Bits above the word are ignored.
        let above = |half: u32| 0xdead_beef << 32 | u64::from(half);
        cond.holds(above(word), above(value), above(mask), false, true)
    }

    fn wide(cond: Cond, word: u64, value: u64, mask: u64) -> bool {
        cond.holds(word, value, mask, true, true)
    }

    #[test]
    fn geq_is_cyclic() {
        assert!(narrow(Geq, 5, 5, !0));
        assert!(narrow(Geq, 6, 5, !0));
        assert!(!narrow(Geq, 4, 5, !0));
        assert!(narrow(Geq, 1, u32::MAX - 3, !0), "past the wrap");
        assert!(!narrow(Geq, u32::MAX, 1, !0), "before the wrap");
        assert!(narrow(Geq, 0x8000_0004, 5, !0), "half the range ahead");
        assert!(!narrow(Geq, 0x8000_0005, 5, !0));
        assert!(wide(Geq, 1, u64::MAX, !0));
        assert!(!wide(Geq, u32::MAX.into(), 1 << 32, !0));
        // An mlx5 completion entry: op_own 0xf0 is negative, 0x00 is not.
        assert!(!narrow(Geq, 0xf000_0000, 0, !0));
        assert!(narrow(Geq, 0x0012_3456, 0, !0));
    }

    #[test]
    fn geq_without_cycles_compares_unsigned_words_under_the_mask() {
        let holds = |word, value, mask, wide| Geq.holds(word, value, mask, wide, false);
        for (wide, top) in [(false, 1u64 << 31), (true, 1 << 63)] {
            let max = top | (top - 1);
            for (word, value, mask, passes) in [
                (5, 5, max, true),
                (4, 5, max, false),
                (1, max, max, false),
                (max, 1, max, true),
                (top, 0, max, true),
                (top, top, max, true),
                (top - 1, top, max, false),
                (top | 4, 5, max ^ top, false),
                (top | 5, 5, max ^ top, true),
            ] {
                assert_eq!(
                    holds(word, value, mask, wide),
                    passes,
                    "{word:#x} {value:#x}"
                );
            }
        }
        assert!(!holds(1 << 32 | 4, 5, !0, false), "bits above the word");
    }

    #[test]
    fn eq_and_nor_and_masks() {
        assert!(narrow(Eq, 0xab12, 0x12, 0xff));
        assert!(!narrow(Eq, 0xab12, 0x12, !0));
        assert!(narrow(And, 0b110, 0b010, !0));
        assert!(!narrow(And, 0b101, 0b010, !0));
        assert!(!narrow(And, 0b110, 0b010, 0b100), "the bit is masked out");
        // The owner bit: over when it is clear.
        assert!(narrow(Nor, 0xfeff_ffff, !0x0100_0000, !0));
        assert!(!narrow(Nor, 0x0100_0000, !0x0100_0000, !0));
        assert!(!narrow(Nor, !0, 0, !0), "no bit is clear");
        assert!(wide(Nor, 0, !1, !0) && !wide(Nor, 1, !1, !0));
        assert!(
            wide(Nor, 1 << 40, 0, 1 << 40) && narrow(Nor, 8, 0, 8),
            "bits outside of the mask are clear"
        );
        assert!(wide(Eq, 1 << 63 | 7, 1 << 63, 1 << 63));
    }

    #[test]
    fn inline_data_is_limited() {
        assert_eq!(&*InlineData::new(&[7; 64]).unwrap(), &[7; 64]);
        assert_eq!(
            InlineData::new(&[0; 65]),
            Err(Error::InlineTooLong { len: 65, limit: 64 })
        );
    }
}
