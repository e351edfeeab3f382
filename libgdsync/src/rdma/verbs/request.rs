//! Values that callers keep: prepared requests, completions, fields.

use super::core::Side;

/// A prepared request of a send queue. It is a plain value: a drop changes nothing, and the request
/// stays prepared until it is posted or aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest {
    pub(in crate::rdma) queue: u64,
    pub(in crate::rdma) ticket: u64,
    pub(in crate::rdma) serial: u64,
}

/// A prepared receive.
///
/// It cannot be posted as a send, nor a [`SendRequest`] as a receive:
///
/// ```compile_fail,E0308
/// # use gdsync::rdma::{Descriptor, Qp, ReceiveRequest};
/// fn post(qp: &mut Qp, stream: &gdsync::Stream, recv: ReceiveRequest) -> gdsync::Result<()> {
///     qp.post_on(stream, &[Descriptor::Send(recv)]) // `Descriptor::Receive` takes it
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveRequest {
    pub(in crate::rdma) queue: u64,
    pub(in crate::rdma) ticket: u64,
    pub(in crate::rdma) serial: u64,
}

/// The completion of a request, for which streams and the CPU wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    pub(in crate::rdma) queue: u64,
    pub(in crate::rdma) side: Side,
    pub(in crate::rdma) ticket: u64,
    pub(in crate::rdma) serial: u64,
}

impl From<SendRequest> for Completion {
    fn from(r: SendRequest) -> Completion {
        Completion {
            queue: r.queue,
            side: Side::Send,
            ticket: r.ticket,
            serial: r.serial,
        }
    }
}

impl From<ReceiveRequest> for Completion {
    fn from(r: ReceiveRequest) -> Completion {
        Completion {
            queue: r.queue,
            side: Side::Receive,
            ticket: r.ticket,
            serial: r.serial,
        }
    }
}

/// The result of a completed receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Length of the message in bytes. For a datagram it includes the [`GRH`](super::GRH) bytes
    /// before the payload, as in verbs.
    pub len: u32,
    /// The immediate data of the message, four bytes; `None` without.
    pub imm: Option<u32>,
    /// The source of a datagram; `None` for a message of a connection.
    pub source: Option<Source>,
}

/// The source of a datagram. [`Pd::answer_to`](super::Pd::answer_to) makes a destination from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The number of the sender's queue pair.
    pub qpn: u32,
    /// The LID of the sender's port; 0 on Ethernet and for NICs without LIDs.
    pub lid: u16,
    /// The service level of the datagram; 0 on Ethernet.
    pub service_level: u8,
    /// Whether the [`GRH`](super::GRH) bytes before the payload contain the sender's address.
    pub grh: bool,
}

/// A field of a prepared entry that a stream or kernel may change before the doorbell. All fields
/// are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Opcode: the lowest byte of the first dword of the entry. With the opcode of a NOP (0), the
    /// request has no effect and completes with success.
    Opcode,
    /// Byte count of a data segment.
    Length(usize),
    /// Local key of a data segment.
    Key(usize),
    /// Address of a data segment.
    Address(usize),
    /// Remote address.
    RemoteAddress,
    /// Remote key (rkey).
    RemoteKey,
}
