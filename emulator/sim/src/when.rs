//! When a simulation does something to a rank or a machine.

use gds_step::Time;

/// When something happens to a rank or a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At a virtual time.
    Time(Time),
    /// In a turn.
    Turn(u64),
}
