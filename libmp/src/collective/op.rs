//! [`Op`] and [`Number`]: how an all-reduce combines elements. `device/mp_collect.cu` does the same
//! on streams.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How an all-reduce combines the elements of the ranks (`MPI_Op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Op {
    /// The sum. Integers wrap.
    Sum = 0,
    /// The product. Integers wrap.
    Product = 1,
    /// The minimum; a NaN if an element is NaN.
    Min = 2,
    /// The maximum; a NaN if an element is NaN.
    Max = 3,
    /// The bitwise *and* of integers.
    And = 4,
    /// The bitwise *or* of integers.
    Or = 5,
}

impl Op {
    /// Whether it is for integers only.
    pub(crate) fn is_bitwise(self) -> bool {
        matches!(self, Op::And | Op::Or)
    }
}

/// A type of elements that an all-reduce combines: `f32`, `f64`, `i32`, `i64`, `u32` or `u64`.
pub trait Number: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + sealed::Number {}

pub(crate) mod sealed {
    use super::Op;

    pub trait Number: Sized {
        /// Its code in words and kernels.
        const TYPE: u32;
        /// Whether it has bitwise operations.
        const IS_INTEGER: bool;
        const ZERO: Self;

        /// The combination of the elements of two ranks, the lower rank first.
        fn combine(self, op: Op, other: Self) -> Self;

        /// The result: every NaN becomes the same one, because GPUs and CPUs make different ones.
        fn plain(self) -> Self;
    }
}

macro_rules! integer {
    ($($type:ident $code:literal)*) => {$(
        impl Number for $type {}

        impl sealed::Number for $type {
            const TYPE: u32 = $code;
            const IS_INTEGER: bool = true;
            const ZERO: $type = 0;

            #[inline]
            fn combine(self, op: Op, other: $type) -> $type {
                match op {
                    Op::Sum => self.wrapping_add(other),
                    Op::Product => self.wrapping_mul(other),
                    Op::Min => self.min(other),
                    Op::Max => self.max(other),
                    Op::And => self & other,
                    Op::Or => self | other,
                }
            }

            #[inline]
            fn plain(self) -> $type {
                self
            }
        }
    )*};
}

macro_rules! float {
    ($($type:ident $code:literal $nan:literal)*) => {$(
        impl Number for $type {}

        impl sealed::Number for $type {
            const TYPE: u32 = $code;
            const IS_INTEGER: bool = false;
            const ZERO: $type = 0.0;

            #[inline]
            fn combine(self, op: Op, other: $type) -> $type {
                match op {
                    Op::Sum => self + other,
                    Op::Product => self * other,
                    Op::Min if self.is_nan() || self <= other => self,
                    Op::Max if self.is_nan() || self >= other => self,
                    Op::Min | Op::Max => other,
                    // Refused before.
                    Op::And | Op::Or => self,
                }
            }

            #[inline]
            fn plain(self) -> $type {
                if self.is_nan() { $type::from_bits($nan) } else { self }
            }
        }
    )*};
}

float!(f32 0 0x7fc0_0000 f64 1 0x7ff8_0000_0000_0000);
integer!(i32 2 i64 3 u32 4 u64 5);
