//! Work requests for a queue pair.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, Payload, Remote, WqeFlags};

use super::{Destination, Mr};
use crate::nic::RemoteSpan;

/// A segment of registered memory that a request reads or writes locally. [`Mr::sge`] makes it.
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

/// A request for a send queue.
///
/// A constructor makes it; [`signaled`](Work::signaled) and the other methods set its flags. A
/// request that is not `signaled` cannot be waited for: its success raises no completion entry; its
/// failure always raises one. The borrowed lists are read when the request is prepared, the memory
/// that they name when the NIC executes it.
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

    /// SEND: the peer's next receive takes the bytes.
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

    /// RDMA WRITE to the peer's memory.
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

    /// RDMA READ from the peer's memory.
    pub fn read(sges: &'a [Sge<'a>], from: RemoteSpan) -> Work<'a> {
        Work {
            sges,
            remote: Some(from),
            ..Work::new(SendOpcode::RDMA_READ)
        }
    }

    /// Compare-and-swap of a 64-bit word of the peer; `old` receives the old value (8 bytes, in one
    /// segment).
    pub fn compare_swap(old: &'a [Sge<'a>], word: RemoteSpan, compare: u64, swap: u64) -> Work<'a> {
        Work {
            sges: old,
            remote: Some(word),
            atomic: Some(Atomic::CompareSwap { compare, swap }),
            ..Work::new(SendOpcode::ATOMIC_CS)
        }
    }

    /// Fetch-and-add on a 64-bit word of the peer; `old` receives the old value (8 bytes, in one
    /// segment).
    pub fn fetch_add(old: &'a [Sge<'a>], word: RemoteSpan, add: u64) -> Work<'a> {
        Work {
            sges: old,
            remote: Some(word),
            atomic: Some(Atomic::FetchAdd { add }),
            ..Work::new(SendOpcode::ATOMIC_FA)
        }
    }

    /// NOP: does nothing, and completes in order.
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

    /// Makes success raise a completion entry.
    #[must_use]
    pub fn signaled(mut self) -> Work<'a> {
        self.flags.signaled = true;
        self
    }

    /// Requests a solicited event at the peer.
    #[must_use]
    pub fn solicited(mut self) -> Work<'a> {
        self.flags.solicited = true;
        self
    }

    /// Fence: the request starts only when earlier READs and atomics are done.
    #[must_use]
    pub fn fenced(mut self) -> Work<'a> {
        self.flags.fence = true;
        self
    }

    /// Adds immediate data: four bytes for the peer's completion. A WRITE then consumes one of the
    /// peer's receives. No effect on requests other than SEND and WRITE.
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
