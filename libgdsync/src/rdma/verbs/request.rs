//! Values that callers keep: prepared requests, completions, fields.

use super::core::Side;

/// The handle of a prepared request of a send queue, returned by
/// [`Qp::prepare`](super::Qp::prepare). It is a plain value: a drop changes nothing, and the
/// request stays prepared until it is posted or aborted.
///
/// ```
/// use gdsync::Kind;
/// use gdsync::rdma::Work;
/// # use gdsync::rdma::{Device, QpConfig};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// # let config = QpConfig::default();
/// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// # a.connect(&b.address())?;
/// # b.connect(&a.address())?;
/// let first = a.prepare(&Work::nop())?;
/// let second = a.prepare(&Work::nop().signaled())?;
/// assert_eq!(a.post(second).unwrap_err().kind(), Kind::OutOfOrder);
/// a.abort(first)?; // its entry becomes a NOP
/// a.post(second)?;
/// assert_eq!(a.post(second).unwrap_err().kind(), Kind::NoSuchRequest); // posted already
/// # a.wait(second, std::time::Duration::from_secs(10))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendRequest {
    pub(in crate::rdma) queue: u64,
    pub(in crate::rdma) ticket: u64,
    pub(in crate::rdma) serial: u64,
}

/// The handle of a prepared receive, returned by
/// [`Qp::prepare_receive`](super::Qp::prepare_receive). It is a plain value, as a [`SendRequest`]
/// is.
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

/// The completion of a request, for which a stream ([`Descriptor::wait`]) or the CPU ([`Qp::wait`])
/// waits. Every call that takes one also takes a [`SendRequest`] or a [`ReceiveRequest`].
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::Status;
/// use gdsync::rdma::{Completion, Work};
/// # use gdsync::rdma::{Device, QpConfig};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// # let config = QpConfig::default();
/// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// # a.connect(&b.address())?;
/// # b.connect(&a.address())?;
/// let request = a.prepare(&Work::nop().signaled())?;
/// let completion = Completion::from(request);
/// assert_eq!(a.poll(completion)?, None); // not posted
/// a.post(request)?;
/// a.wait(completion, Duration::from_secs(10))?; // an error if the request has failed
/// assert_eq!(a.poll(completion)?, Some(Status::SUCCESS));
/// # Ok(())
/// # }
/// ```
///
/// [`Descriptor::wait`]: crate::rdma::Descriptor::wait
/// [`Qp::wait`]: super::Qp::wait
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

/// The result of a completed receive, returned by [`Qp::received`](super::Qp::received).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Length of the message in bytes. For a datagram it includes the [`GRH`](super::GRH) bytes
    /// before the payload, as in verbs.
    pub len: u32,
    /// The immediate data of the message, 32 bits, with the value that the sender gave to
    /// [`Work::with_imm`](super::Work::with_imm); `None` if the message has none.
    pub imm: Option<u32>,
    /// The source of a datagram; `None` for a message of a connection.
    pub source: Option<Source>,
}

/// The source of a datagram. [`Pd::answer_to`](super::Pd::answer_to) makes a destination from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The number of the sender's queue pair (verbs: `src_qp`).
    pub qpn: u32,
    /// The LID of the sender's port; 0 on Ethernet and for NICs without LIDs.
    pub lid: u16,
    /// The service level of the datagram; 0 on Ethernet.
    pub service_level: u8,
    /// Whether the [`GRH`](super::GRH) bytes before the payload contain the sender's address.
    pub grh: bool,
}

/// A field of a prepared WQE that a stream or kernel may change before the doorbell:
/// [`Qp::field32`](super::Qp::field32). All fields are big-endian, as the PRM of the ConnectX
/// defines them. A number counts the data segments of the request from 0, without those of length
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Opcode, in a word of 32 bits: the lowest byte of the first dword of the entry. With the
    /// opcode of a NOP (0), the request has no effect and completes with success.
    Opcode,
    /// Byte count of a data segment, 32 bits.
    Length(usize),
    /// Local key (lkey) of a data segment, 32 bits.
    Key(usize),
    /// Address of a data segment, 64 bits.
    Address(usize),
    /// Remote address of a WRITE, READ or atomic, 64 bits.
    RemoteAddress,
    /// Remote key (rkey) of a WRITE, READ or atomic, 32 bits.
    RemoteKey,
}
