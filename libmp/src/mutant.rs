//! Committed mutants: each breaks one rule on purpose, so that the suite can show that it
//! notices. Without the feature `mutants` every question is the constant *no*.

/// The rules that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Mutant {
    /// Some messages that were taken are never told to their sender.
    LostCredit = 1,
    /// A sender uses a slot before its last message was taken.
    EarlySlotReuse,
    /// A large receive does not tell its sender that it is there.
    MissingReadyWord,
    /// Two messages of one tag take each other's number.
    SwappedMatchOrder,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 4] = [
        Mutant::LostCredit,
        Mutant::EarlySlotReuse,
        Mutant::MissingReadyWord,
        Mutant::SwappedMatchOrder,
    ];
}

#[cfg(feature = "mutants")]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The mutant that is switched on, 0 for none. Set by a test before it starts and read,
    /// relaxed, by the code under test: it orders nothing.
    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Switches one mutant on for the whole process, or all off.
    pub fn set(mutant: Option<super::Mutant>) {
        ACTIVE.store(mutant.map_or(0, |m| m as u32), Ordering::Relaxed);
    }

    /// Whether `mutant` is on.
    pub fn on(mutant: super::Mutant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == mutant as u32
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
