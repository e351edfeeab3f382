//! Committed mutants: rules that a test can break on purpose, to show that the tests detect it.

/// Defines, in a separate module, the enum `Mutant` of the named rules, and the function `on` for
/// the code under test. If the calling package has its feature `mutants`, the module also has
/// `set`. Without the feature, `on` is always `false`.
#[macro_export]
macro_rules! mutants {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The rules that can be broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Mutant {
            $($(#[$doc])+ $name,)+
        }

        impl Mutant {
            /// All of them.
            pub const ALL: [Mutant; [$(stringify!($name)),+].len()] = [$(Mutant::$name),+];
        }

        #[cfg(feature = "mutants")]
        mod switch {
            use std::sync::atomic::{AtomicU32, Ordering};

            /// The active mutant: its number plus one, 0 for none. A test sets it before it starts,
            /// and the code under test reads it relaxed: it orders nothing.
            static ACTIVE: AtomicU32 = AtomicU32::new(0);

            /// Activates one mutant for the whole process, or none.
            pub fn set(mutant: Option<super::Mutant>) {
                ACTIVE.store(mutant.map_or(0, |m| m as u32 + 1), Ordering::Relaxed);
            }

            /// Whether `mutant` is active.
            pub fn on(mutant: super::Mutant) -> bool {
                ACTIVE.load(Ordering::Relaxed) == mutant as u32 + 1
            }
        }

        #[cfg(feature = "mutants")]
        pub use switch::{on, set};

        /// Whether `mutant` is active: always `false` in a build without the feature.
        #[cfg(not(feature = "mutants"))]
        #[inline(always)]
        pub const fn on(_mutant: Mutant) -> bool {
            false
        }
    };
}
