//! Work requests for a queue pair.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, Payload, Remote, WqeFlags};

use super::{Destination, Mr};
use crate::nic::RemoteSpan;

/// A segment of registered local memory that a request reads or writes (verbs: `ibv_sge`).
/// [`Mr::sge`] makes it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sge<'a> {
    /// The registration.
    pub mr: &'a Mr,
    /// Offset in the registration, in bytes.
    pub offset: u64,
    /// Length in bytes, at most 2 GiB. A segment of length 0 is omitted from the request.
    pub len: u32,
}

/// A work request for a send queue (verbs: `ibv_send_wr`), for [`Qp::prepare`](super::Qp::prepare).
///
/// A constructor makes it; [`signaled`](Work::signaled) and the other methods set its flags. The
/// success of a request that is not `signaled` raises no completion entry: a stream cannot wait for
/// it, and the CPU detects its completion when a later signaled request has completed. Its failure
/// always raises an entry. The borrowed lists are read when the request is prepared; the memory
/// that they name is read or written when the NIC executes the request.
///
/// A request has at most 30 segments, or at most 988 inline bytes (a WRITE: 972, a datagram: 940),
/// because a WQE has at most 63 units of 16 bytes.
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::rdma::Work;
/// # use gdsync::{gpu::MemoryKind, rdma::{Access, Device, QpConfig}};
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// # let config = QpConfig::default();
/// # let (mut a, mut b) = (pd.create_qp(&config)?, pd.create_qp(&config)?);
/// # a.connect(&b.address())?;
/// # b.connect(&a.address())?;
/// # let limit = Duration::from_secs(10);
/// let memory = pd.register(&gpu.alloc(MemoryKind::Pinned, 64)?, Access::ALL)?;
/// let there = memory.remote(); // a peer sends its own record
/// // 8 bytes from offset 0 here to offset 16 there, and then 5 added to the word at offset 32.
/// let put = a.prepare(&Work::write(&[memory.sge(0, 8)], there.span(16, 8)?))?;
/// let word = there.span(32, 8)?;
/// let add = a.prepare(&Work::fetch_add(&[memory.sge(40, 8)], word, 5).signaled())?;
/// a.post(put)?;
/// a.post(add)?;
/// a.wait(add, limit)?; // a connection executes requests in order: the WRITE is complete too
/// assert_eq!(memory.region().word64(32)?.load()?, 5);
/// # let bytes = [0; 989];
/// # assert!(a.prepare(&Work::send_inline(&[&bytes[..988]])).is_ok());
/// # assert!(a.prepare(&Work::send_inline(&[&bytes])).is_err());
/// # assert!(a.prepare(&Work::write_inline(&[&bytes[..972]], there.span(0, 8)?)).is_ok());
/// # assert!(a.prepare(&Work::write_inline(&[&bytes[..973]], there.span(0, 8)?)).is_err());
/// # Ok(())
/// # }
/// ```
///
/// `work` borrows a registration until the request is prepared; then the queue pair keeps it:
///
/// ```compile_fail,E0505
/// # use gdsync::rdma::{Mr, Qp, SendRequest, Work};
/// fn send(qp: &mut Qp, mr: Mr) -> gdsync::Result<SendRequest> {
///     let sges = [mr.sge(0, 64)];
///     let work = Work::send(&sges);
///     drop(mr); // `work` borrows it
///     qp.prepare(&work)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    pub(crate) opcode: SendOpcode,
    pub(crate) sges: &'a [Sge<'a>],
    pub(crate) inline: Option<&'a [&'a [u8]]>,
    pub(crate) remote: Option<RemoteSpan>,
    pub(crate) to: Option<&'a Destination>,
    pub(crate) atomic: Option<Atomic>,
    pub(crate) imm: [u8; 4],
    pub(crate) flags: WqeFlags,
}

impl<'a> Work<'a> {
    fn new(opcode: SendOpcode) -> Work<'a> {
        Work {
            opcode,
            sges: &[],
            inline: None,
            remote: None,
            to: None,
            atomic: None,
            imm: [0; 4],
            flags: WqeFlags::default(),
        }
    }

    /// SEND: the peer's next posted receive takes the bytes.
    pub fn send(sges: &'a [Sge<'a>]) -> Work<'a> {
        Work {
            sges,
            ..Work::new(SendOpcode::SEND)
        }
    }

    /// SEND of inline bytes, which are copied when the request is prepared and need no
    /// registration.
    pub fn send_inline(pieces: &'a [&'a [u8]]) -> Work<'a> {
        Work {
            inline: Some(pieces),
            ..Work::new(SendOpcode::SEND)
        }
    }

    /// RDMA WRITE to the peer's memory. The peer gets no completion; see [`Work::with_imm`]. Its
    /// completion here means that the peer's NIC has acknowledged the data.
    pub fn write(sges: &'a [Sge<'a>], to: RemoteSpan) -> Work<'a> {
        Work {
            sges,
            remote: Some(to),
            ..Work::new(SendOpcode::RDMA_WRITE)
        }
    }

    /// RDMA WRITE of inline bytes, which are copied when the request is prepared and need no
    /// registration.
    pub fn write_inline(pieces: &'a [&'a [u8]], to: RemoteSpan) -> Work<'a> {
        Work {
            inline: Some(pieces),
            remote: Some(to),
            ..Work::new(SendOpcode::RDMA_WRITE)
        }
    }

    /// RDMA READ from the peer's memory into local memory with
    /// [`Access::LOCAL_WRITE`](crate::rdma::Access::LOCAL_WRITE).
    pub fn read(sges: &'a [Sge<'a>], from: RemoteSpan) -> Work<'a> {
        Work {
            sges,
            remote: Some(from),
            ..Work::new(SendOpcode::RDMA_READ)
        }
    }

    /// Compare-and-swap of a 64-bit word of the peer, aligned to 8 bytes: stores `swap` if the word
    /// is `compare`. `old` receives the old value (8 bytes, in one segment).
    pub fn compare_swap(old: &'a [Sge<'a>], word: RemoteSpan, compare: u64, swap: u64) -> Work<'a> {
        Work {
            sges: old,
            remote: Some(word),
            atomic: Some(Atomic::CompareSwap { compare, swap }),
            ..Work::new(SendOpcode::ATOMIC_CS)
        }
    }

    /// Fetch-and-add on a 64-bit word of the peer, aligned to 8 bytes, modulo 2^64. `old` receives
    /// the old value (8 bytes, in one segment).
    pub fn fetch_add(old: &'a [Sge<'a>], word: RemoteSpan, add: u64) -> Work<'a> {
        Work {
            sges: old,
            remote: Some(word),
            atomic: Some(Atomic::FetchAdd { add }),
            ..Work::new(SendOpcode::ATOMIC_FA)
        }
    }

    /// NOP: transfers nothing, and completes in the order of the queue.
    pub fn nop() -> Work<'a> {
        Work::new(SendOpcode::NOP)
    }

    /// Sets the destination of the request: required on a datagram queue pair, and refused on a
    /// connection.
    #[must_use]
    pub fn to(mut self, destination: &'a Destination) -> Work<'a> {
        self.to = Some(destination);
        self
    }

    /// Makes success raise a completion entry (`IBV_SEND_SIGNALED`), so that a stream or the CPU
    /// can wait for the request.
    #[must_use]
    pub fn signaled(mut self) -> Work<'a> {
        self.flags.signaled = true;
        self
    }

    /// Requests a completion event at the peer (`IBV_SEND_SOLICITED`).
    #[must_use]
    pub fn solicited(mut self) -> Work<'a> {
        self.flags.solicited = true;
        self
    }

    /// Fence (`IBV_SEND_FENCE`): the request starts only when the earlier READs and atomics of the
    /// queue are complete.
    #[must_use]
    pub fn fenced(mut self) -> Work<'a> {
        self.flags.fence = true;
        self
    }

    /// Adds immediate data: 32 bits for the peer's completion, [`Received::imm`]. A WRITE then
    /// consumes one of the peer's receives. No effect on requests other than SEND and WRITE.
    ///
    /// [`Received::imm`]: super::Received::imm
    #[must_use]
    pub fn with_imm(mut self, imm: u32) -> Work<'a> {
        self.opcode = match self.opcode {
            SendOpcode::SEND | SendOpcode::SEND_IMM => SendOpcode::SEND_IMM,
            SendOpcode::RDMA_WRITE | SendOpcode::RDMA_WRITE_IMM => SendOpcode::RDMA_WRITE_IMM,
            _ => return self,
        };
        self.imm = imm.to_be_bytes();
        self
    }

    /// The remote side of the request, by the peer's `rail`.
    ///
    /// # Errors
    /// The rail, if the peer's record has no key for it.
    pub(crate) fn remote(&self, rail: u8) -> Result<Option<Remote>, u8> {
        let Some(to) = &self.remote else {
            return Ok(None);
        };
        let (addr, rkey) = (to.addr, to.rkey_of(rail).ok_or(rail)?);
        Ok(Some(Remote { addr, rkey }))
    }

    pub(crate) fn payload<'p>(&self, sges: &'p [mlx5_prm::wqe::Sge]) -> Payload<'p>
    where
        'a: 'p,
    {
        match self.inline {
            Some(pieces) => Payload::Inline(pieces),
            None if sges.is_empty() => Payload::None,
            None => Payload::Gather(sges),
        }
    }
}
