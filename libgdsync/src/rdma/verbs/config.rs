//! What a queue pair is made of, and what the environment may say about it.

use std::time::Duration;

use crate::env::Variable;
use crate::error::Result;
use crate::gpu::{MemoryKind, Word32};
use crate::nic::{Access, PathConfig, Transport};

const LOWER: Variable<Lowering> = Variable {
    name: "GDS_LOWER",
    former_name: None,
    words: &[
        ("auto", Lowering::Auto),
        ("memops", Lowering::MemOps),
        ("kernel", Lowering::Kernel),
    ],
    former_words: &[],
};

const DOORBELL: Variable<Doorbell> = Variable {
    name: "GDS_DOORBELL",
    former_name: Some("GDS_ENDPOINT"),
    words: &[
        ("auto", Doorbell::Direct),
        ("direct", Doorbell::Direct),
        ("cpu-thread", Doorbell::CpuThread),
    ],
    former_words: &[("ring", "direct"), ("proxy", "cpu-thread")],
};

/// How doorbells and waits become work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Lowering {
    /// Stream memory operations: no SM is used, enqueueing is cheap.
    MemOps,
    /// One tiny kernel a submission.
    Kernel,
    /// What the environment says (`GDS_LOWER`), or for each list what it costs: one kernel in
    /// place of many memory operations, where kernels run beside the application's, and never
    /// for waits that a spinning kernel could keep from coming true.
    #[default]
    Auto,
}

impl Lowering {
    /// What the environment makes of `Auto`.
    pub(in crate::rdma) fn resolve(self) -> Result<Lowering> {
        match self {
            Lowering::Auto => LOWER.read(),
            other => Ok(other),
        }
    }
}

/// Who rings the NIC for work that is posted on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Doorbell {
    /// The stream itself, by memory operations or a kernel.
    Direct,
    /// A CPU thread, on a word that the stream writes: possible with any NIC.
    CpuThread,
    /// What the environment (`GDS_DOORBELL`) says, or the stream.
    #[default]
    Auto,
}

impl Doorbell {
    pub(in crate::rdma) fn resolve(self) -> Result<Doorbell> {
        match self {
            Doorbell::Auto => DOORBELL.read(),
            other => Ok(other),
        }
    }
}

/// What a queue pair is made of.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// How it talks to others.
    pub transport: Transport,
    /// Basic blocks (64 bytes) of the send queue, a power of two, 4 to 32768. A send with up
    /// to 3 or a write with up to 2 segments takes one, a datagram with up to 4 takes two. Signaled requests also need places for
    /// their completions, which come free by the quarter: between half and all of the blocks
    /// are to be had for them at once.
    pub send_blocks: u32,
    /// Entries of the receive queue, a power of two, 4 to 32768.
    pub recv_entries: u32,
    /// Segments of a receive, 1 to 16.
    pub recv_sges: u32,
    /// Where work queues lie.
    pub ring_memory: MemoryKind,
    /// Where completion queues lie.
    pub cq_memory: MemoryKind,
    /// Where the doorbell record lies.
    pub record_memory: MemoryKind,
    /// A send whose doorbell was rung and that does not complete for this long puts the queue
    /// pair in error, with [`Status::TIMEOUT`](crate::Status::TIMEOUT). `None`: never.
    pub timeout: Option<Duration>,
    /// How posts and waits on streams are lowered.
    pub lowering: Lowering,
    /// Who rings the NIC for streams.
    pub doorbell: Doorbell,
    /// How its packets travel, and how often they are sent again.
    pub path: PathConfig,
    /// What peers may do through this queue pair, within what registrations permit.
    pub access: Access,
    /// A further error word, which several queue pairs may share. If it is 0 when a signaled
    /// request fails, it becomes what [`Qp::error_word`](super::Qp::error_word) is, before a
    /// stream that waits for the request goes on. In pinned memory.
    pub error: Option<Word32>,
    /// First index of queues and completion positions; for tests that want to see them wrap.
    #[doc(hidden)]
    pub start: u32,
}

impl Default for QpConfig {
    fn default() -> QpConfig {
        QpConfig {
            transport: Transport::Rc,
            send_blocks: 256,
            recv_entries: 256,
            recv_sges: 4,
            ring_memory: MemoryKind::Pinned,
            cq_memory: MemoryKind::Pinned,
            record_memory: MemoryKind::Pinned,
            timeout: Some(Duration::from_secs(60)),
            lowering: Lowering::Auto,
            doorbell: Doorbell::Auto,
            path: PathConfig::default(),
            access: Access::ALL,
            error: None,
            start: 0,
        }
    }
}
