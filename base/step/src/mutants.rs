//! Committed mutants: rules that can be broken on purpose, so that tests can show that they
//! notice.

/// Makes, in a module of its own, the enum `Mutant` of the rules named, and `on`, which code under
/// test asks. In builds of the calling package with its feature `mutants` there is also `set`;
/// without it the answer to every question is the constant *no*.
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

            /// What is switched on: a mutant's number plus one, 0 for none. Set by a test before
            /// it starts and read, relaxed, by the code under test: it orders nothing.
            static ACTIVE: AtomicU32 = AtomicU32::new(0);

            /// Switches one mutant on for the whole process, or all off.
            pub fn set(mutant: Option<super::Mutant>) {
                ACTIVE.store(mutant.map_or(0, |m| m as u32 + 1), Ordering::Relaxed);
            }

            /// Whether `mutant` is on.
            pub fn on(mutant: super::Mutant) -> bool {
                ACTIVE.load(Ordering::Relaxed) == mutant as u32 + 1
            }
        }

        #[cfg(feature = "mutants")]
        pub use switch::{on, set};

        /// Whether `mutant` is on: never, in a build without the feature.
        #[cfg(not(feature = "mutants"))]
        #[inline(always)]
        pub const fn on(_mutant: Mutant) -> bool {
            false
        }
    };
}
