//! What a queue pair is made of, and what the environment may say about it.

use std::time::Duration;

use crate::env::Variable;
use crate::error::Result;
use crate::gpu::{MemoryKind, Word32};
use crate::nic::{Access, PathConfig, Transport};
use crate::options::setters;

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
    /// What the environment says.
    #[doc(hidden)]
    pub const VARIABLE: Variable<Lowering> = Variable {
        name: "GDS_LOWER",
        former_name: None,
        words: &[
            ("auto", Lowering::Auto),
            ("memops", Lowering::MemOps),
            ("kernel", Lowering::Kernel),
        ],
        former_words: &[],
    };

    /// What the environment makes of `Auto`.
    pub(in crate::rdma) fn resolve(self) -> Result<Lowering> {
        match self {
            Lowering::Auto => Lowering::VARIABLE.read(),
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
///
/// # Route and retries
/// What is not set takes the value of its environment variable, or the default in the last column.
///
/// | method | variable | range | default |
/// | --- | --- | --- | --- |
/// | [`pkey`](QpConfig::pkey) | `GDS_PKEY` | 0x0001 to 0xffff, without the membership bit not 0 | the port's first |
/// | [`service_level`](QpConfig::service_level) | `GDS_SL` | 0 to 15 | 0 |
/// | [`traffic_class`](QpConfig::traffic_class) | `GDS_TRAFFIC_CLASS` | 0 to 255 | 0 |
/// | [`flow_label`](QpConfig::flow_label) | `GDS_FLOW_LABEL` | 0 to 0xfffff | 0 |
/// | [`hop_limit`](QpConfig::hop_limit) | `GDS_HOP_LIMIT` | 1 to 255 | 64 |
/// | [`ack_timeout`](QpConfig::ack_timeout) | `GDS_ACK_TIMEOUT` | 0 to 31 | 15 |
/// | [`retry_count`](QpConfig::retry_count) | `GDS_RETRY_COUNT` | 0 to 7 | 7; 6 by [`Device::verbs`](crate::rdma::Device::verbs) |
/// | [`rnr_retry`](QpConfig::rnr_retry) | `GDS_RNR_RETRY` | 0 to 7 | 7 |
/// | [`rnr_timer`](QpConfig::rnr_timer) | `GDS_RNR_TIMER` | 0 to 31 | 12 |
///
/// A NIC does not detect that a peer is dead. It retransmits a packet that is not acknowledged
/// within 4.096 us * 2^`ack_timeout`, `retry_count` times, and then fails the request with
/// [`Status::TRANSPORT_RETRY`](crate::Status::TRANSPORT_RETRY): after 1.07 s with the defaults. A
/// NIC may take up to four times as long for each.
///
/// The virtual NIC has one partition and one route: it uses only the last four, and refuses any
/// other partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpConfig {
    /// How it talks to others.
    pub transport: Transport,
    /// Basic blocks (64 bytes) of the send queue, a power of two, 4 to 32768. A send with up
    /// to 3 or a write with up to 2 segments takes one, a datagram with up to 4 takes two. Signaled requests also need entries for
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
    pub(in crate::rdma) path: PathConfig,
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

setters! { QpConfig {
    transport: Transport,
    send_blocks: u32,
    recv_entries: u32,
    recv_sges: u32,
    ring_memory: MemoryKind,
    cq_memory: MemoryKind,
    record_memory: MemoryKind,
    lowering: Lowering,
    doorbell: Doorbell,
    access: Access,
} optional {
    timeout: Duration,
    error: Word32,
} }

/// Gives [`QpConfig`] a method for each of the settings of its path.
macro_rules! path_setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        impl QpConfig { $(
            $(#[$doc])*
            #[must_use]
            pub fn $field(mut self, $field: $type) -> QpConfig {
                self.path.$field = Some($field);
                self
            }
        )* }
    };
}

path_setters! {
    /// The partition key. Both ends must have it, at least one of them as a full member; the
    /// membership bit (0x8000) is not compared.
    pkey: u16,
    /// The service level, which chooses a virtual lane on InfiniBand and a priority on Ethernet.
    service_level: u8,
    /// The traffic class of the global header; on Ethernet the DSCP is its upper six bits.
    traffic_class: u8,
    /// The flow label of the global header; on Ethernet the UDP source port follows from it.
    flow_label: u32,
    /// Routers that a packet may pass.
    hop_limit: u8,
    /// How long an acknowledgement may take: 4.096 us * 2^`ack_timeout`. 0: without a limit, so
    /// that a dead peer is never detected.
    ack_timeout: u8,
    /// How often a packet that is not acknowledged is retransmitted. The kernel's soft-RoCE retries
    /// without a limit at 7.
    retry_count: u8,
    /// How often a request for which the peer has no receive is retried. 7: without a limit.
    rnr_retry: u8,
    /// How long the peer waits before it retries a request for which there is no receive here, in
    /// InfiniBand's code: 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491.52 ms, 0 is 655.36 ms.
    rnr_timer: u8,
}

impl QpConfig {
    /// Sets the first index of queues and completion positions.
    #[doc(hidden)]
    #[must_use]
    pub fn start(mut self, start: u32) -> QpConfig {
        self.start = start;
        self
    }
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
