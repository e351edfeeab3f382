//! One stream memory operation.

use std::fmt;

use super::caps::{Caps, Needs};

/// An address as the GPU sees it. It is not a host pointer: it cannot be dereferenced, even where
/// the numbers are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on (wrapping, as addresses do).
    #[must_use]
    pub const fn offset(self, bytes: u64) -> DevicePtr {
        DevicePtr(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The width of an operation's word; the operation's address is a multiple of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Width {
    /// 4 bytes.
    Bits32,
    /// 8 bytes.
    Bits64,
}

impl Width {
    /// The number of bits of the word.
    pub const fn bits(self) -> u32 {
        match self {
            Width::Bits32 => 32,
            Width::Bits64 => 64,
        }
    }

    /// The highest bit of the word.
    pub(crate) const fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// A word with every bit set.
    pub const fn all(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

/// The condition under which a wait for a word passes: those of CUDA's `cuStreamWaitValue32` and
/// `cuStreamWaitValue64`, on every runtime. `*at` is the word, `value` the operand; both have the width of the word,
/// 32 or 64 bits. If the wait has a mask, bits outside it do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Condition {
    /// `*at - value`, as a signed number of the word's width, is not negative: a cyclic *greater or
    /// equal*, for counters that wrap around.
    ///
    /// Streams of HIP compare plain unsigned numbers. There a kernel waits, one for consecutive
    /// waits, or `Unsupported` is returned on a GPU without kernels
    /// ([`Caps::cyclic`](super::Caps)). Memory operations still wait for the values 0 and
    /// 2^(width - 1), which test the highest bit, and for counts that never wrap
    /// ([`Descriptor::wait_count`](crate::rdma::Descriptor::wait_count)).
    Geq,
    /// `*at == value`.
    Eq,
    /// `*at & value` is not zero: some bit of `value` is set.
    And,
    /// `!(*at | value)` is not zero: some bit outside `value` is clear. As a memory
    /// operation it needs [`Caps::nor`](super::Caps).
    Nor,
}

impl Condition {
    /// Whether a word of this width passes. `mask` has no bits outside the width.
    pub fn holds(self, width: Width, word: u64, value: u64, mask: u64) -> bool {
        match self {
            Condition::Geq => (word & mask).wrapping_sub(value) & width.sign() == 0,
            Condition::Eq => word & mask == value,
            Condition::And => word & mask & value != 0,
            Condition::Nor => !(word | value) & mask != 0,
        }
    }
}

/// Up to 32 bytes that are part of the operation itself, so that their source may be reused as soon
/// as the call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inline {
    len: u8,
    bytes: [u8; Inline::MAX],
}

impl Inline {
    /// The most bytes of one operation.
    pub const MAX: usize = 32;

    /// Captures `data`; `None` if it is longer than [`Inline::MAX`].
    pub fn new(data: &[u8]) -> Option<Inline> {
        let mut bytes = [0; Inline::MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(Inline {
            len: data.len() as u8,
            bytes,
        })
    }

    /// The captured bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Inline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in self.bytes() {
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

/// One operation of a stream's front end. All run in stream order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Stores `value` (native byte order). `fenced`: all earlier writes of the stream are visible
    /// to the whole system before this store is. Otherwise it may be seen in any order among
    /// unfenced stores, and a store of 64 bits may be seen as two halves.
    Write {
        /// Width of the word.
        width: Width,
        /// Address of the word.
        at: DevicePtr,
        /// The value to store.
        value: u64,
        /// Whether earlier writes are ordered before this one.
        fenced: bool,
    },
    /// Stalls the stream until the word passes.
    Wait {
        /// Width of the word.
        width: Width,
        /// Address of the word.
        at: DevicePtr,
        /// The value to compare with.
        value: u64,
        /// The bits of the word that take part in the comparison.
        mask: u64,
        /// The comparison.
        condition: Condition,
        /// Whether the writes that devices made to GPU memory before they wrote the word are
        /// visible after this wait.
        flush: bool,
    },
    /// Stores up to 32 bytes; equivalent to several unfenced writes.
    Copy {
        /// Start address, aligned to 4 bytes; the length is a multiple of 4 bytes.
        at: DevicePtr,
        /// The bytes to store.
        data: Inline,
    },
    /// Makes all earlier writes of the stream visible to the whole system before any later
    /// operation of the stream.
    Fence,
    /// Makes devices' earlier writes to GPU memory visible to later work of the stream.
    Flush,
}

impl Op {
    /// A fenced write.
    pub fn write(width: Width, at: DevicePtr, value: impl Into<u64>) -> Op {
        Op::Write {
            width,
            at,
            value: value.into(),
            fenced: true,
        }
    }

    /// A wait that compares all bits and does not flush.
    pub fn wait(width: Width, at: DevicePtr, condition: Condition, value: impl Into<u64>) -> Op {
        Op::Wait {
            width,
            at,
            value: value.into(),
            mask: width.all(),
            condition,
            flush: false,
        }
    }

    /// A wait until a count of 64 bits has reached `value`. Neither ever has its highest bit set,
    /// so that cyclic and plain comparison are the same; the mask shows this to runtimes with the
    /// latter.
    pub(crate) fn wait_count(at: DevicePtr, value: u64, caps: &Caps) -> Op {
        const COUNT: u64 = u64::MAX >> 1;
        let mut op = Op::wait(Width::Bits64, at, Condition::Geq, value);
        if let Op::Wait { mask, .. } = &mut op
            && !caps.cyclic
            && caps.mask
        {
            *mask = COUNT;
        }
        op
    }

    /// Whether this is a wait.
    pub fn is_wait(&self) -> bool {
        matches!(self, Op::Wait { .. })
    }

    /// Whether this is a wait that flushes.
    pub(crate) fn flushes(&self) -> bool {
        matches!(self, Op::Wait { flush: true, .. })
    }

    /// The capabilities that a runtime must have to run the operation as it is.
    #[inline]
    pub(crate) fn needs(&self) -> Needs {
        let wide = |width| Needs::WIDE.only_if(width == Width::Bits64);
        match *self {
            Op::Write { width, .. } => wide(width),
            Op::Wait {
                width,
                value,
                mask,
                condition,
                flush,
                ..
            } => {
                let masked = mask != width.all();
                let (nor, geq) = (condition == Condition::Nor, condition == Condition::Geq);
                wide(width)
                    | Needs::MASK.only_if(masked)
                    | Needs::NOR.only_if(nor)
                    | Needs::MASKED_NOR.only_if(nor && masked)
                    | Needs::CYCLIC.only_if(geq && (mask | value) & width.sign() != 0)
                    | Needs::FLUSH.only_if(flush)
            }
            Op::Copy { .. } => Needs::COPY,
            Op::Fence => Needs::FENCE,
            Op::Flush => Needs::FLUSH,
        }
    }

    /// The same wait with or without a flush; other operations are unchanged.
    #[must_use]
    pub(crate) fn flushing(mut self, on: bool) -> Op {
        if let Op::Wait { flush, .. } = &mut self {
            *flush = on;
        }
        self
    }

    /// The same write with or without a fence; other operations are unchanged.
    #[must_use]
    pub(crate) fn fenced(mut self, on: bool) -> Op {
        if let Op::Write { fenced, .. } = &mut self {
            *fenced = on;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_mean_what_the_driver_documents() {
        use Condition::{And, Eq, Geq, Nor};
        use Width::{Bits32, Bits64};
        let yes32 = |c: Condition, word: u32, value: u32| {
            assert!(c.holds(Bits32, word.into(), value.into(), Bits32.all()));
        };
        let no32 = |c: Condition, word: u32, value: u32| {
            assert!(!c.holds(Bits32, word.into(), value.into(), Bits32.all()));
        };
        yes32(Geq, 5, 5);
        yes32(Geq, 2, u32::MAX);
        no32(Geq, u32::MAX, 2);
        no32(Geq, 0x8000_0000, 0);
        yes32(And, 0x0100_0000, 0x0100_0000);
        no32(And, 0, 1);
        yes32(Nor, 0xf0ff_ffff, !0x0100_0000);
        no32(Nor, 0x0100_0000, !0x0100_0000);
        assert!(Eq.holds(Bits32, 0xff05, 5, 0xff) && !Eq.holds(Bits32, 5, 0xff05, 0xff));
        let all = u64::MAX;
        assert!(
            Nor.holds(Bits32, u64::from(!2u32), 0, 2) && !Nor.holds(Bits32, 2, 0, 2),
            "bits outside the mask do not count"
        );
        assert!(Geq.holds(Bits64, 1, all, all) && !Geq.holds(Bits64, 1 << 63, 0, all));
        assert!(Nor.holds(Bits64, 0, !1, all) && !Nor.holds(Bits64, 1, !1, all));
    }

    #[test]
    fn inline_data_is_bounded() {
        assert_eq!(Inline::new(&[1, 2, 3]).unwrap().bytes(), [1, 2, 3]);
        assert!(Inline::new(&[0; 32]).is_some() && Inline::new(&[0; 33]).is_none());
    }
}
