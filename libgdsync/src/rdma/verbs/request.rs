//! The small values that callers keep: prepared requests, completions, fields.

use super::core::Side;

/// A request that was prepared on a send queue. A plain value: dropping it changes nothing,
/// the request waits to be posted or aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest {
    pub(in crate::rdma) queue: u64,
    pub(in crate::rdma) ticket: u64,
    pub(in crate::rdma) serial: u64,
}

/// A receive that was prepared.
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

/// The completion of a request: what streams and the CPU wait for.
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

/// What a completed receive tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes that arrived. For a datagram the [`GRH`](super::GRH) bytes in front of it count, as
    /// with verbs.
    pub len: u32,
    /// The four bytes that travelled with the message, if any did.
    pub imm: Option<u32>,
    /// Where a datagram came from; `None` for a message of a connection.
    pub source: Option<Source>,
}

/// Where a datagram came from. [`Pd::answer_to`](super::Pd::answer_to) makes a destination of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The queue pair that sent it.
    pub qpn: u32,
    /// The local identifier of the port that it was sent from; 0 on Ethernet and where NICs have
    /// none.
    pub lid: u16,
    /// The service level that it came by; 0 on Ethernet.
    pub service_level: u8,
    /// Whether the [`GRH`](super::GRH) bytes in front of it tell where it came from.
    pub grh: bool,
}

/// A field of a prepared entry that a stream or kernel may change before the doorbell.
/// All fields are big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Opcode: the lowest byte of the dword that starts the entry. Set to that of a NOP (0),
    /// the request does nothing and completes as if it had.
    Opcode,
    /// Byte count of a data segment.
    Length(usize),
    /// Local key of a data segment.
    Key(usize),
    /// Address of a data segment.
    Address(usize),
    /// The peer's address.
    RemoteAddress,
    /// The peer's key.
    RemoteKey,
}
