//! What control operations refuse, and why work fails: the typed errors of [`Nic`](crate::Nic)
//! and the vendor syndromes in its error entries.

use mlx5_prm::syndrome::Syndrome;
use thiserror::Error;

use crate::fabric::LinkError;
use crate::object::QpState;

/// The objects of a NIC, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Object {
    /// A protection domain.
    Pd,
    /// A memory region.
    Mr,
    /// A doorbell page.
    Uar,
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Object::Pd => "PD",
            Object::Mr => "MR",
            Object::Uar => "UAR",
            Object::Cq => "CQ",
            Object::Qp => "QP",
            Object::Srq => "SRQ",
        })
    }
}

/// A control operation was refused; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NicError {
    /// There is no such object, or no more.
    #[error("no {object} {number:#x}")]
    Unknown {
        /// What kind.
        object: Object,
        /// The number or key that was given.
        number: u32,
    },
    /// The NIC holds no more objects of that kind.
    #[error("no room for another {object}: the limit is {limit}")]
    Full {
        /// What kind.
        object: Object,
        /// How many there can be.
        limit: u32,
    },
    /// Something still uses the object.
    #[error("{object} {number:#x} is in use by {users} others")]
    InUse {
        /// What kind.
        object: Object,
        /// Which.
        number: u32,
        /// How many objects use it.
        users: u32,
    },
    /// The object's bytes do not lie in the memory given, or not aligned as they must be.
    #[error(
        "{object} at offset {offset:#x}, {len:#x} bytes aligned to {align}, in {limit:#x} bytes"
    )]
    Span {
        /// What kind.
        object: Object,
        /// Where it would begin.
        offset: u64,
        /// How many bytes it would take.
        len: u64,
        /// The alignment it needs.
        align: u64,
        /// How many bytes the memory has.
        limit: u64,
    },
    /// An attribute is beyond its limit.
    #[error("{object} with {what} {value}: the limit is {limit}")]
    Limit {
        /// What kind.
        object: Object,
        /// Which attribute.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The most there can be.
        limit: u64,
    },
    /// Rights that cannot be given, or not without others.
    #[error("{object} with access {access:#x}: {why}")]
    Access {
        /// What kind.
        object: Object,
        /// The rights asked for.
        access: u32,
        /// What is wrong with them.
        why: &'static str,
    },
    /// A completion queue that minds overruns, or tells events, needs a doorbell record to see its
    /// consumer.
    #[error("a CQ without a doorbell record must ignore overruns and tell no events")]
    NoRecord,
    /// The queue pair cannot go from its state to that one.
    #[error("QP {qpn:#x} cannot go from {from:?} to {to:?}")]
    Transition {
        /// Which.
        qpn: u32,
        /// Where it stands.
        from: QpState,
        /// Where it was to go.
        to: QpState,
    },
    /// A queue pair takes receives from a queue of its own or from a shared one, not from both.
    #[error("a QP with an RQ of its own and an SRQ")]
    TwoReceiveQueues,
    /// The link to the remote node cannot be had.
    #[error("QP {qpn:#x}: {source}")]
    Link {
        /// Which queue pair wanted it.
        qpn: u32,
        /// Why not.
        source: LinkError,
    },
}

impl NicError {
    /// Refuses a value beyond a limit.
    pub(crate) fn within(
        object: Object,
        what: &'static str,
        value: impl Into<u64>,
        limit: impl Into<u64>,
    ) -> Result<(), NicError> {
        let (value, limit) = (value.into(), limit.into());
        if value <= limit {
            return Ok(());
        }
        Err(NicError::Limit {
            object,
            what,
            value,
            limit,
        })
    }
}

/// Vendor syndromes: what exactly was wrong, beside the syndrome that says what kind of
/// error it is. The numbers are this NIC's own.
pub mod vendor {
    /// The work was never tried: the queue pair was in error already.
    pub const FLUSHED: u8 = 0x01;
    /// No region has the key, or no more.
    pub const KEY_UNKNOWN: u8 = 0x11;
    /// The region belongs to another protection domain.
    pub const KEY_DOMAIN: u8 = 0x12;
    /// The region does not grant the access.
    pub const KEY_ACCESS: u8 = 0x13;
    /// The bytes do not lie in the region.
    pub const KEY_RANGE: u8 = 0x14;
    /// The memory behind the region refused.
    pub const MEMORY: u8 = 0x15;
    /// The queue pair does not grant the access.
    pub const QP_ACCESS: u8 = 0x16;
    /// An atomic operand is not aligned to 8 bytes.
    pub const MISALIGNED: u8 = 0x17;
    /// The entry is no valid work queue entry.
    pub const WQE_FORMAT: u8 = 0x21;
    /// The entry's index is not the one that was next.
    pub const WQE_INDEX: u8 = 0x22;
    /// The entry names another queue pair.
    pub const WQE_QPN: u8 = 0x23;
    /// The entry's operation is not one of this NIC's.
    pub const WQE_OPCODE: u8 = 0x24;
    /// The entry reaches past what was rung.
    pub const WQE_SIZE: u8 = 0x25;
    /// The doorbell record says that more was posted than the queue holds.
    pub const RECORD: u8 = 0x26;
    /// The shared receive queue is in error.
    pub const SRQ: u8 = 0x27;
    /// The message is longer than what it must fit.
    pub const LENGTH: u8 = 0x31;
    /// More reads and atomics outstanding than the responder takes.
    pub const READ_LIMIT: u8 = 0x32;
    /// The responder has no receive queue.
    pub const NO_RECEIVE_QUEUE: u8 = 0x33;
    /// An answer that fits no request.
    pub const BAD_ANSWER: u8 = 0x34;
    /// The responder's own buffer or entry was at fault.
    pub const RESPONDER: u8 = 0x35;
    /// A frame that does not continue the message under way.
    pub const FRAMING: u8 = 0x36;
    /// The two ends cut messages into packets of different sizes.
    pub const MTU: u8 = 0x37;
    /// The queue pair cannot receive yet: a NAK of this kind acknowledges nothing.
    pub const NOT_READY: u8 = 0x43;
    /// No answer came, whatever was sent again.
    pub const RETRY: u8 = 0x81;
    /// The responder had no receive, however often it was asked.
    pub const RNR: u8 = 0x82;
}

/// Why work failed: what an error entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub syndrome: Syndrome,
    pub vendor: u8,
}

impl Fault {
    pub const FLUSH: Fault = Fault::new(Syndrome::WR_FLUSH, vendor::FLUSHED);

    pub const fn new(syndrome: Syndrome, vendor: u8) -> Fault {
        Fault { syndrome, vendor }
    }
}
