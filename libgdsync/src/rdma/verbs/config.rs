//! The configuration of a queue pair, and the environment variables for it.

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

/// The lowering: how doorbells and waits become work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Lowering {
    /// Stream memory operations (CUDA: `cuStreamBatchMemOp`): they use no SM, and an enqueue is
    /// cheap.
    MemOps,
    /// One small kernel per submission, of one block of 32 threads. It holds an SM while it waits.
    Kernel,
    /// The value of `GDS_LOWER`, or else a choice for each list by its cost: one kernel instead of
    /// many memory operations, where kernels can run in parallel with the application's. Never for
    /// waits whose release a spinning kernel could block.
    #[default]
    Auto,
}

impl Lowering {
    /// The environment variable.
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

    /// Replaces `Auto` by the value of the environment variable.
    pub(in crate::rdma) fn resolve(self) -> Result<Lowering> {
        match self {
            Lowering::Auto => Lowering::VARIABLE.read(),
            other => Ok(other),
        }
    }
}

/// The side that writes the doorbell for work posted on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Doorbell {
    /// The stream, by memory operations or a kernel.
    Direct,
    /// A CPU thread, triggered by a word that the stream writes: possible with any NIC.
    CpuThread,
    /// The value of `GDS_DOORBELL`, or else the stream.
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

/// The configuration of a queue pair, for [`Pd::create_qp`](super::Pd::create_qp).
///
/// ```
/// use std::time::Duration;
///
/// use gdsync::rdma::{Doorbell, QpConfig};
/// # use gdsync::rdma::Device;
///
/// # fn main() -> gdsync::Result<()> {
/// # let gpu = gdsync::Gpu::soft()?;
/// # let pd = Device::emulated(&gpu)?.alloc_pd()?;
/// let config = QpConfig::default()
///     .send_blocks(1024)
///     .timeout(Duration::from_secs(5)) // `None`: no limit
///     .doorbell(Doorbell::CpuThread);
/// let qp = pd.create_qp(&config)?;
/// assert_eq!(qp.doorbell(), Doorbell::CpuThread);
/// # Ok(())
/// # }
/// ```
///
/// Values are checked when a queue pair is created.
///
/// # Route and retries
/// A setting that is not set takes the value of its environment variable, or the default in the
/// last column.
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
/// NIC may take up to four times as long for each retry.
///
/// The virtual NIC has one partition and one route: it uses only the last four settings, and
/// refuses any other partition.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QpConfig {
    /// The transport. Default: a reliable connection.
    pub transport: Transport,
    /// Basic blocks (64 bytes) of the send queue, a power of two, 4 to 32768. A send with up to 3
    /// or a write with up to 2 segments takes one block, a datagram with up to 4 segments takes
    /// two. A signaled request also takes a completion entry. The library frees these entries in
    /// quarters of the completion queue, so signaled requests can use between half and all of the
    /// blocks at a time. Default: 256.
    pub send_blocks: u32,
    /// Entries of the receive queue, a power of two, 4 to 32768. Default: 256.
    pub recv_entries: u32,
    /// Maximum number of segments per receive, 1 to 16. Default: 4.
    pub recv_sges: u32,
    /// The location of the work queues. Default: pinned memory. [`Qp::memory`](super::Qp::memory)
    /// returns the actual location.
    pub ring_memory: MemoryKind,
    /// The location of the completion queues. Default: pinned memory.
    pub cq_memory: MemoryKind,
    /// The location of the doorbell record. Default: pinned memory.
    pub record_memory: MemoryKind,
    /// The time limit of a send, from its doorbell to its completion. A send that exceeds it puts
    /// the queue pair in error, with [`Status::TIMEOUT`](crate::Status::TIMEOUT). `None`: no limit.
    /// Default: 60 s.
    pub timeout: Option<Duration>,
    /// The lowering of posts and waits on streams. Default: `Auto`.
    pub lowering: Lowering,
    /// The side that writes the doorbell for streams. Default: `Auto`.
    pub doorbell: Doorbell,
    /// The route of its packets, and their retransmission.
    pub(in crate::rdma) path: PathConfig,
    /// The operations of peers that this queue pair permits, within the rights of registrations.
    /// Default: all.
    pub access: Access,
    /// An additional error word, which several queue pairs may share. If it is 0 when a signaled
    /// request fails, it takes the value of [`Qp::error_word`](super::Qp::error_word), before a
    /// stream that waits for the request continues. It must be in pinned memory. Default: none.
    pub error: Option<Word32>,
    /// The first index of queues and completion positions, for tests of the wrap-around.
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
    /// Sets the partition key (P_Key). Both ends must have the same key, at least one of them as a
    /// full member; the membership bit (0x8000) is not compared. Default: the port's first.
    pkey: u16,
    /// Sets the service level, 0 to 15, which selects a virtual lane on InfiniBand and a priority
    /// on Ethernet. Default: 0.
    service_level: u8,
    /// Sets the traffic class of the global header; on Ethernet its upper six bits are the DSCP.
    /// Default: 0.
    traffic_class: u8,
    /// Sets the flow label of the global header, 20 bits; on Ethernet it determines the UDP source
    /// port. Default: 0.
    flow_label: u32,
    /// Sets the hop limit: the maximum number of routers on the path of a packet, from 1 on.
    /// Default: 64.
    hop_limit: u8,
    /// Sets the acknowledgement timeout to 4.096 us * 2^`ack_timeout`, 0 to 31. 0: no timeout, so
    /// that a dead peer is never detected. Default: 15, which is 0.13 s.
    ack_timeout: u8,
    /// Sets the number of retransmissions of a packet that is not acknowledged, 0 to 7. At 7 the
    /// kernel's soft-RoCE retries without a limit. Default: 7, or 6 by
    /// [`Device::verbs`](crate::rdma::Device::verbs).
    retry_count: u8,
    /// Sets the number of retries of a request for which the peer has no receive, 0 to 7. 7: no
    /// limit, the default.
    rnr_retry: u8,
    /// Sets the time for which the peer waits before it retries a request for which this side has
    /// no receive, in InfiniBand's code, 0 to 31: 1 is 0.01 ms, 12 is 0.64 ms (the default), 31 is
    /// 491.52 ms, 0 is 655.36 ms.
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
