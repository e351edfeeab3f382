//! Committed mutants: each breaks one rule of the transport on purpose, so that the tests can
//! show that they notice. Without the feature `mutants` every question is the constant *no*.

/// The rules that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Mutant {
    /// A responder that misses a packet says nothing.
    NoNak = 1,
    /// An atomic that comes again is carried out again.
    DuplicateCarriedOut,
    /// What an atomic found is not kept for when it comes again.
    ReplayMissing,
    /// Progress does not give retries back.
    RetriesNeverReset,
    /// A responder without a receive may be asked any number of times.
    RnrUncounted,
    /// A fence holds nothing back.
    FenceIgnored,
    /// Packets are numbered by 23 bits.
    ShortNumbers,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 7] = [
        Mutant::NoNak,
        Mutant::DuplicateCarriedOut,
        Mutant::ReplayMissing,
        Mutant::RetriesNeverReset,
        Mutant::RnrUncounted,
        Mutant::FenceIgnored,
        Mutant::ShortNumbers,
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
