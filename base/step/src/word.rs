//! The atomic word that protocol code is generic over.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic word. Implemented for `AtomicU32` and `AtomicU64`; the protocol tests
/// implement it for a model checker's words, so the shipped source is what is checked.
pub trait Word {
    /// The plain value, `u32` or `u64`.
    type Value: Copy + Eq + std::fmt::Debug;

    /// An atomic load.
    fn load(&self, order: Ordering) -> Self::Value;
    /// An atomic store.
    fn store(&self, value: Self::Value, order: Ordering);
    /// An atomic exchange; returns what was there.
    fn swap(&self, value: Self::Value, order: Ordering) -> Self::Value;
    /// An atomic compare-and-exchange; `Err` carries what was there instead.
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
    /// A fence among the words of this kind (a model checker has its own).
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
