//! The atomic word of generic protocol code.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic word. `AtomicU32` and `AtomicU64` implement it. The protocol tests implement it for a
/// model checker's words, so that the model checker runs the shipped source.
pub trait Word {
    /// The plain value, `u32` or `u64`.
    type Value: Copy + Eq + std::fmt::Debug;

    /// An atomic load.
    fn load(&self, order: Ordering) -> Self::Value;
    /// An atomic store.
    fn store(&self, value: Self::Value, order: Ordering);
    /// An atomic exchange; returns the old value.
    fn swap(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// An atomic compare-and-exchange; `Err` has the actual value.
    ///
    /// # Errors
    /// The word did not hold `current`.
    fn compare_exchange(
        &self,
        current: Self::Value,
        new: Self::Value,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self::Value, Self::Value>;
    /// A fence between words of this kind (a model checker has its own fence).
    fn fence(order: Ordering);
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word for $atomic {
            type Value = $value;

            #[inline]
            fn load(&self, order: Ordering) -> $value {
                <$atomic>::load(self, order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                <$atomic>::store(self, value, order)
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                <$atomic>::swap(self, value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                <$atomic>::compare_exchange(self, current, new, success, failure)
            }
            #[inline]
            fn fence(order: Ordering) {
                std::sync::atomic::fence(order)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);
