//! The names of a NIC's objects, and the states of a queue pair.

/// Names a queue pair: its QPN, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qpn(pub u32);

/// Names a completion queue: its CQN, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cqn(pub u32);

/// Names a shared receive queue: its number, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Srqn(pub u32);

/// Names a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub(crate) u32);

impl PdId {
    /// The number of the domain.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Names a doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UarId(pub(crate) u32);

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Fresh: no work is looked at.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// As RTS, but no work is begun that was not begun before.
    Sqd,
    /// A send of an unreliable queue pair failed: sends are flushed, receives go on.
    Sqe,
    /// All work is flushed.
    Err,
}
