//! Why an entry failed: the syndrome byte of an error completion.

use core::fmt;

use crate::opcode::display;

/// The reason an error completion entry gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Syndrome(pub u8);

impl Syndrome {
    /// The message does not fit the local buffers (a receive shorter than what arrived).
    pub const LOCAL_LENGTH: Syndrome = Syndrome(0x01);
    /// The queue entry makes no sense to the NIC, or the queue pair is in the wrong state.
    pub const LOCAL_QP_OP: Syndrome = Syndrome(0x02);
    /// A local key is wrong, or does not cover the buffer.
    pub const LOCAL_PROT: Syndrome = Syndrome(0x04);
    /// The queue pair was in error already: this entry was never tried.
    pub const WR_FLUSH: Syndrome = Syndrome(0x05);
    /// A memory window could not be bound.
    pub const MW_BIND: Syndrome = Syndrome(0x06);
    /// The peer answered with something unexpected.
    pub const BAD_RESP: Syndrome = Syndrome(0x10);
    /// The local memory does not allow the access (responder side).
    pub const LOCAL_ACCESS: Syndrome = Syndrome(0x11);
    /// The peer found the request malformed, or longer than its receive.
    pub const REMOTE_INVAL_REQ: Syndrome = Syndrome(0x12);
    /// The peer refused the key, the range or the kind of access.
    pub const REMOTE_ACCESS: Syndrome = Syndrome(0x13);
    /// The peer failed while carrying the request out.
    pub const REMOTE_OP: Syndrome = Syndrome(0x14);
    /// The peer did not acknowledge after all retries.
    pub const TRANSPORT_RETRY: Syndrome = Syndrome(0x15);
    /// The peer had no receive posted, after all retries.
    pub const RNR_RETRY: Syndrome = Syndrome(0x16);
    /// The peer gave the operation up.
    pub const REMOTE_ABORTED: Syndrome = Syndrome(0x22);

    /// The syndrome's name, or `None` for one this crate does not know.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Syndrome::LOCAL_LENGTH => "LOCAL_LENGTH",
            Syndrome::LOCAL_QP_OP => "LOCAL_QP_OP",
            Syndrome::LOCAL_PROT => "LOCAL_PROT",
            Syndrome::WR_FLUSH => "WR_FLUSH",
            Syndrome::MW_BIND => "MW_BIND",
            Syndrome::BAD_RESP => "BAD_RESP",
            Syndrome::LOCAL_ACCESS => "LOCAL_ACCESS",
            Syndrome::REMOTE_INVAL_REQ => "REMOTE_INVAL_REQ",
            Syndrome::REMOTE_ACCESS => "REMOTE_ACCESS",
            Syndrome::REMOTE_OP => "REMOTE_OP",
            Syndrome::TRANSPORT_RETRY => "TRANSPORT_RETRY",
            Syndrome::RNR_RETRY => "RNR_RETRY",
            Syndrome::REMOTE_ABORTED => "REMOTE_ABORTED",
            _ => return None,
        })
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, self.name(), self.0)
    }
}
