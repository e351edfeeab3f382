//! The handles of a NIC's objects, and the states of a queue pair.

/// The number of a queue pair: its QPN, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qpn(pub u32);

/// The number of a completion queue: its CQN, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cqn(pub u32);

/// The number of a shared receive queue, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Srqn(pub u32);

/// The handle of a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub(crate) u32);

impl PdId {
    /// The number of the domain.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// The handle of a doorbell page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UarId(pub(crate) u32);

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Initial state: the queue pair executes no work.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive (RTR).
    Rtr,
    /// Ready to send and receive (RTS).
    Rts,
    /// Send queue drained (SQD): as RTS, but the queue pair begins no new work.
    Sqd,
    /// Send queue error (SQE): a send of an unreliable queue pair failed. Sends are flushed,
    /// receives continue.
    Sqe,
    /// Error (ERR): all work is flushed.
    Err,
}
