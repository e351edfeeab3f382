//! The errors of control operations ([`Nic`](crate::Nic)), and the vendor syndromes in error
//! entries.

use mlx5_prm::syndrome::Syndrome;
use thiserror::Error;

use crate::fabric::LinkError;
use crate::object::QpState;

/// The kinds of objects of a NIC, for errors.
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
    /// The object does not exist, or was removed.
    #[error("{object} {number:#x} does not exist")]
    Unknown {
        /// The kind of object.
        object: Object,
        /// The number or key from the caller.
        number: u32,
    },
    /// The NIC has no room for another object of this kind.
    #[error("the NIC has no room for another {object}: the limit is {limit}")]
    Full {
        /// The kind of object.
        object: Object,
        /// The most objects of this kind.
        limit: u32,
    },
    /// Other objects still use the object.
    #[error("{object} {number:#x} is in use by {users} other objects")]
    InUse {
        /// The kind of object.
        object: Object,
        /// The number of the object.
        number: u32,
        /// Number of objects that use it.
        users: u32,
    },
    /// The object's bytes are not inside the given memory, or are misaligned.
    #[error(
        "{object} of {len:#x} bytes at offset {offset:#x} exceeds its memory of {limit:#x} bytes \
         or is not aligned to {align}"
    )]
    Span {
        /// The kind of object.
        object: Object,
        /// Offset of the object in the memory.
        offset: u64,
        /// Length of the object in bytes.
        len: u64,
        /// The required alignment in bytes.
        align: u64,
        /// Size of the memory in bytes.
        limit: u64,
    },
    /// An attribute exceeds its limit.
    #[error("{object} has an invalid {what}: {value}, the limit is {limit}")]
    Limit {
        /// The kind of object.
        object: Object,
        /// The attribute.
        what: &'static str,
        /// The value from the caller.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The access rights are invalid on this object, or need other rights.
    #[error("{object} cannot have access {access:#x}: {why}")]
    Access {
        /// The kind of object.
        object: Object,
        /// The rights from the caller.
        access: u32,
        /// The reason.
        why: &'static str,
    },
    /// A completion queue that detects overruns, or raises events, needs a doorbell record to read
    /// the consumer index.
    #[error("a CQ without a doorbell record must ignore overruns and raise no events")]
    NoRecord,
    /// The queue pair cannot change from its state to the requested one.
    #[error("QP {qpn:#x} cannot go from {from:?} to {to:?}")]
    Transition {
        /// The queue pair.
        qpn: u32,
        /// Its present state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// A queue pair has its own receive queue or a shared one, not both.
    #[error("a QP cannot have both an RQ and an SRQ")]
    TwoReceiveQueues,
    /// The link to the remote node cannot be made.
    #[error("QP {qpn:#x} has no link to its remote node: {source}")]
    Link {
        /// The queue pair.
        qpn: u32,
        /// The reason.
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

/// Vendor syndromes: the exact reason of an error, in addition to the syndrome. The numbers are
/// specific to this NIC.
pub mod vendor {
    /// The work was not executed: the queue pair was in error already (flush).
    pub const FLUSHED: u8 = 0x01;
    /// No region has the key, or the region was removed.
    pub const KEY_UNKNOWN: u8 = 0x11;
    /// The region belongs to another protection domain.
    pub const KEY_DOMAIN: u8 = 0x12;
    /// The region does not grant the access right.
    pub const KEY_ACCESS: u8 = 0x13;
    /// The bytes are not inside the region.
    pub const KEY_RANGE: u8 = 0x14;
    /// The memory behind the region refused the access.
    pub const MEMORY: u8 = 0x15;
    /// The queue pair does not grant the access right.
    pub const QP_ACCESS: u8 = 0x16;
    /// An atomic operand is not aligned to 8 bytes.
    pub const MISALIGNED: u8 = 0x17;
    /// The entry is no valid work queue entry.
    pub const WQE_FORMAT: u8 = 0x21;
    /// The entry's index is not the expected one.
    pub const WQE_INDEX: u8 = 0x22;
    /// The entry names another queue pair.
    pub const WQE_QPN: u8 = 0x23;
    /// The NIC does not support the entry's operation.
    pub const WQE_OPCODE: u8 = 0x24;
    /// The entry reaches past the blocks that the doorbell announced.
    pub const WQE_SIZE: u8 = 0x25;
    /// The doorbell record announces more entries than the queue holds.
    pub const RECORD: u8 = 0x26;
    /// The shared receive queue is in error.
    pub const SRQ: u8 = 0x27;
    /// The message is longer than its target.
    pub const LENGTH: u8 = 0x31;
    /// More reads and atomics are outstanding than the responder accepts.
    pub const READ_LIMIT: u8 = 0x32;
    /// The responder has no receive queue.
    pub const NO_RECEIVE_QUEUE: u8 = 0x33;
    /// An answer matches no request.
    pub const BAD_ANSWER: u8 = 0x34;
    /// The responder's own buffer or entry is at fault.
    pub const RESPONDER: u8 = 0x35;
    /// A frame does not continue the message in progress.
    pub const FRAMING: u8 = 0x36;
    /// The two ends have different MTUs.
    pub const MTU: u8 = 0x37;
    /// The queue pair cannot receive yet: a NAK of this kind acknowledges nothing.
    pub const NOT_READY: u8 = 0x43;
    /// No answer arrived after all retries (timeout).
    pub const RETRY: u8 = 0x81;
    /// The responder had no receive after all retries (RNR).
    pub const RNR: u8 = 0x82;
}

/// The reason of a failure, as in an error entry.
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
