//! Operation codes of work queue entries and completion entries, and which parts a work
//! request with a given code is made of.

use core::fmt;

/// What a send queue entry asks for: the low byte of its first dword.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendOpcode(pub u8);

impl SendOpcode {
    /// Does nothing, in order; completes like any other entry if it is signaled.
    pub const NOP: SendOpcode = SendOpcode(0x00);
    /// SEND that invalidates a key of the receiver; the key travels in the immediate field.
    pub const SEND_INV: SendOpcode = SendOpcode(0x01);
    /// RDMA WRITE.
    pub const RDMA_WRITE: SendOpcode = SendOpcode(0x08);
    /// RDMA WRITE that also consumes a receive and delivers four bytes with its completion.
    pub const RDMA_WRITE_IMM: SendOpcode = SendOpcode(0x09);
    /// SEND.
    pub const SEND: SendOpcode = SendOpcode(0x0a);
    /// SEND that delivers four bytes with the receive completion.
    pub const SEND_IMM: SendOpcode = SendOpcode(0x0b);
    /// RDMA READ.
    pub const RDMA_READ: SendOpcode = SendOpcode(0x10);
    /// Compare and swap of eight bytes.
    pub const ATOMIC_CS: SendOpcode = SendOpcode(0x11);
    /// Fetch and add of eight bytes.
    pub const ATOMIC_FA: SendOpcode = SendOpcode(0x12);

    /// The code's name, or `None` for one this crate does not know.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            SendOpcode::NOP => "NOP",
            SendOpcode::SEND_INV => "SEND_INV",
            SendOpcode::RDMA_WRITE => "RDMA_WRITE",
            SendOpcode::RDMA_WRITE_IMM => "RDMA_WRITE_IMM",
            SendOpcode::SEND => "SEND",
            SendOpcode::SEND_IMM => "SEND_IMM",
            SendOpcode::RDMA_READ => "RDMA_READ",
            SendOpcode::ATOMIC_CS => "ATOMIC_CS",
            SendOpcode::ATOMIC_FA => "ATOMIC_FA",
            _ => return None,
        })
    }

    /// The parts an entry with this code has; `None` if the code is not known.
    #[inline]
    pub(crate) const fn shape(self) -> Option<Shape> {
        const SEND: Shape = Shape {
            remote: false,
            atomic: false,
            imm: false,
            payload: true,
            inline: true,
            av: true,
        };
        const RDMA: Shape = Shape {
            remote: true,
            av: false,
            ..SEND
        };
        Some(match self {
            SendOpcode::NOP => Shape {
                payload: false,
                av: false,
                ..SEND
            },
            SendOpcode::SEND => SEND,
            SendOpcode::SEND_IMM => Shape { imm: true, ..SEND },
            SendOpcode::SEND_INV => Shape {
                imm: true,
                av: false,
                ..SEND
            },
            SendOpcode::RDMA_WRITE => RDMA,
            SendOpcode::RDMA_WRITE_IMM => Shape { imm: true, ..RDMA },
            SendOpcode::RDMA_READ => Shape {
                inline: false,
                ..RDMA
            },
            SendOpcode::ATOMIC_CS | SendOpcode::ATOMIC_FA => Shape {
                inline: false,
                atomic: true,
                ..RDMA
            },
            _ => return None,
        })
    }
}

/// Which parts belong to an entry, beyond the control segment that all have.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// A remote address segment follows the control segment. Never together with `av`.
    pub(crate) remote: bool,
    /// An atomic segment follows the remote address segment.
    pub(crate) atomic: bool,
    /// The immediate field means something.
    pub(crate) imm: bool,
    /// Data segments may follow.
    pub(crate) payload: bool,
    /// Data may be inline.
    pub(crate) inline: bool,
    /// On a UD queue pair an address vector follows the control segment.
    pub(crate) av: bool,
}

impl fmt::Display for SendOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, self.name(), self.0)
    }
}

/// What a completion entry reports: the high nibble of its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqeOpcode(pub u8);

impl CqeOpcode {
    /// A send queue entry is done.
    pub const REQ: CqeOpcode = CqeOpcode(0);
    /// A receive was consumed by an RDMA WRITE with immediate.
    pub const RESP_WR_IMM: CqeOpcode = CqeOpcode(1);
    /// A receive was filled by a SEND.
    pub const RESP_SEND: CqeOpcode = CqeOpcode(2);
    /// A receive was filled by a SEND with immediate.
    pub const RESP_SEND_IMM: CqeOpcode = CqeOpcode(3);
    /// A receive was filled by a SEND with invalidate.
    pub const RESP_SEND_INV: CqeOpcode = CqeOpcode(4);
    /// A send queue entry failed.
    pub const REQ_ERR: CqeOpcode = CqeOpcode(13);
    /// A receive failed.
    pub const RESP_ERR: CqeOpcode = CqeOpcode(14);
    /// The entry was never written by the NIC.
    pub const INVALID: CqeOpcode = CqeOpcode(15);

    /// The code's name, or `None` for one this crate does not know.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            CqeOpcode::REQ => "REQ",
            CqeOpcode::RESP_WR_IMM => "RESP_WR_IMM",
            CqeOpcode::RESP_SEND => "RESP_SEND",
            CqeOpcode::RESP_SEND_IMM => "RESP_SEND_IMM",
            CqeOpcode::RESP_SEND_INV => "RESP_SEND_INV",
            CqeOpcode::REQ_ERR => "REQ_ERR",
            CqeOpcode::RESP_ERR => "RESP_ERR",
            CqeOpcode::INVALID => "INVALID",
            _ => return None,
        })
    }

    /// Whether the code is one of the upper half, all of which mean anything but success. One
    /// bit tells, which is what lets a wait on a single word refuse error entries.
    #[inline]
    pub const fn is_error(self) -> bool {
        self.0 & 0x8 != 0
    }
}

impl fmt::Display for CqeOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, self.name(), self.0)
    }
}

/// The name if there is one, else the number.
pub(crate) fn display(f: &mut fmt::Formatter<'_>, name: Option<&str>, code: u8) -> fmt::Result {
    match name {
        Some(name) => f.pad(name),
        None => write!(f, "{code:#04x}"),
    }
}
