//! The time of a scheduled change of a rank or a machine.

use gds_step::Time;

/// The time of a scheduled change of a rank or a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At a virtual time.
    Time(Time),
    /// At a turn.
    Turn(u64),
}
