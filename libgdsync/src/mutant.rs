//! Committed mutants: each breaks one rule on purpose, so that the suite can show that it
//! notices. Without the feature `mutants` every question is the constant *no*.

/// The rules that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Mutant {
    /// The doorbell write is not fenced against the doorbell record.
    NoFenceBeforeDoorbell = 1,
    /// Completion buffers are preset with owner 0.
    PresetF0,
    /// Completion waits expect the parity of the other lap.
    ParityOffByOne,
    /// Completion waits test the owner bit alone.
    ErrorEntryPasses,
    /// An abort does not give its slots back.
    LostRollback,
    /// Waits never flush.
    DroppedFlush,
    /// Completion entries count as reusable before their waiters have passed.
    EntryReusedEarly,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 7] = [
        Mutant::NoFenceBeforeDoorbell,
        Mutant::PresetF0,
        Mutant::ParityOffByOne,
        Mutant::ErrorEntryPasses,
        Mutant::LostRollback,
        Mutant::DroppedFlush,
        Mutant::EntryReusedEarly,
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

/// What `op_own` of an entry of a new completion buffer is.
#[cfg(feature = "mutants")]
pub fn preset_byte() -> u8 {
    use std::cell::Cell;

    use crate::ring::{CompletionRing, RingMemory};

    /// Remembers the first word stored: the first entry's last dword.
    struct First<'a>(&'a Cell<Option<u32>>);

    impl RingMemory for First<'_> {
        fn store_segment(&self, _: usize, _: &[u8; 16]) {}
        fn load_segment(&self, _: usize) -> [u8; 16] {
            [0; 16]
        }
        fn load32(&self, _: usize) -> u32 {
            0
        }
        fn store32(&self, _: usize, value: u32) {
            self.0.set(self.0.get().or(Some(value)));
        }
    }

    let first = Cell::new(None);
    CompletionRing::new(First(&first), First(&Cell::new(None)), 3, 0);
    (first.get().unwrap_or(0) >> 24) as u8
}

/// Whether `mutant` is on: never, in a build without the feature.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn on(_mutant: Mutant) -> bool {
    false
}
