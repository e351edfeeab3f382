//! Work requests: what a queue pair is asked to do.

use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::wqe::{Atomic, Payload, Remote, WqeFlags};

use super::{Destination, Mr};
use crate::nic::RemoteSpan;

/// A piece of registered memory: where a request reads or writes locally. [`Mr::sge`] makes it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sge<'a> {
    /// The registration.
    pub mr: &'a Mr,
    /// Offset within it, in bytes.
    pub offset: u64,
    /// Length in bytes, at most 2 GiB. A length of 0 takes no part in the request.
    pub len: u32,
}

/// A request for a send queue.
///
/// Built by one of the constructors and refined by [`signaled`](Work::signaled) and its like.
/// Without `signaled`, success raises no completion entry and nobody can wait for it; failure
/// always shows. The borrowed lists are read when the request is prepared, the memory they
/// name when it runs.
///
/// A registration outlives the request until it is prepared; then the queue pair keeps it:
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

    /// SEND of bytes that are captured now and need no registration.
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

    /// RDMA WRITE of bytes that are captured now and need no registration.
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

    /// Compare-and-swap of a 64-bit word of the peer; the old value lands in `old` (8 bytes, in one piece).
    pub fn compare_swap(old: &'a [Sge<'a>], word: RemoteSpan, compare: u64, swap: u64) -> Work<'a> {
        Work {
            sges: old,
            remote: Some(word),
            atomic: Some(Atomic::CompareSwap { compare, swap }),
            ..Work::new(SendOpcode::ATOMIC_CS)
        }
    }

    /// Fetch-and-add on a 64-bit word of the peer; the old value lands in `old` (8 bytes, in one piece).
    pub fn fetch_add(old: &'a [Sge<'a>], word: RemoteSpan, add: u64) -> Work<'a> {
        Work {
            sges: old,
            remote: Some(word),
            atomic: Some(Atomic::FetchAdd { add }),
            ..Work::new(SendOpcode::ATOMIC_FA)
        }
    }

    /// NOP: does nothing, in order.
    pub fn nop() -> Work<'a> {
        Work::new(SendOpcode::NOP)
    }

    /// Names whom the request is for: needed, and possible, on a queue pair of datagrams alone.
    #[must_use]
    pub fn to(mut self, destination: &'a Destination) -> Work<'a> {
        self.to = Some(destination);
        self
    }

    /// Success raises a completion entry.
    #[must_use]
    pub fn signaled(mut self) -> Work<'a> {
        self.flags.signaled = true;
        self
    }

    /// The peer is asked for an event.
    #[must_use]
    pub fn solicited(mut self) -> Work<'a> {
        self.flags.solicited = true;
        self
    }

    /// Starts only when earlier READs and atomics are done.
    #[must_use]
    pub fn fenced(mut self) -> Work<'a> {
        self.flags.fence = true;
        self
    }

    /// Carries four bytes to the peer's completion; a WRITE then takes one of its receives.
    /// Without effect on requests other than SEND and WRITE.
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

    /// Where it goes by the peer's `rail`.
    ///
    /// # Errors
    /// The rail, if it has no key.
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
