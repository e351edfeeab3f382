//! The attributes of control operations on queue pairs: creation and changes of state.

use std::sync::Arc;

use crate::dma::Dma;
use crate::fabric::NodeId;
use crate::mr::Access;
use crate::object::{Cqn, PdId, QpState, Qpn, Srqn, UarId};

/// The send queue of a queue pair to create.
#[derive(Clone)]
pub struct SqAttr {
    /// The memory of the ring.
    pub mem: Arc<dyn Dma>,
    /// Offset of the ring in this memory: a multiple of 64.
    pub offset: u64,
    /// Logarithm of the number of basic blocks of 64 bytes.
    pub log_blocks: u8,
}

/// The receive queue of a queue pair to create.
#[derive(Clone)]
pub struct RqAttr {
    /// The memory of the ring.
    pub mem: Arc<dyn Dma>,
    /// Offset of the ring in this memory: a multiple of 16.
    pub offset: u64,
    /// Logarithm of the number of entries.
    pub log_entries: u8,
    /// Bytes of an entry: a power of two, 16 to 512.
    pub stride: u32,
}

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection: sends and writes only. A request completes when its message is sent.
    /// A lost packet loses its whole message.
    Uc = 1,
    /// Unreliable datagrams: sends only, one packet of at most 4096 bytes each. The entry names the
    /// destination (see [`Resolve`](crate::Resolve)). A send completes when its datagram is sent. A
    /// datagram that is lost on the way, or finds no receive, is dropped. The first 40 bytes of
    /// each receive are reserved for the header of the datagram.
    Ud = 2,
}

/// Which payloads of at most 32 bytes the NIC writes into the completion entry instead of the
/// buffers (inline scatter).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// The results of signaled reads and atomics; only on reliable connections.
    pub requester: bool,
    /// The payloads of received sends.
    pub responder: bool,
}

/// The attributes of a queue pair to create; it starts in state RESET.
#[derive(Clone)]
pub struct QpAttr {
    /// The protection domain. Its regions must belong to the same domain.
    pub pd: PdId,
    /// The page of its doorbell.
    pub uar: UarId,
    /// The completion queue of its sends.
    pub send_cq: Cqn,
    /// The completion queue of its receives.
    pub recv_cq: Cqn,
    /// Its send queue.
    pub sq: SqAttr,
    /// Its receive queue; `None` if it only writes, reads, and is the target of writes and reads.
    pub rq: Option<RqAttr>,
    /// The shared receive queue that it takes receives from, instead of its own receive queue.
    pub srq: Option<Srqn>,
    /// The memory of its doorbell record (8 bytes, aligned): see [`mlx5_prm::doorbell`].
    pub record: (Arc<dyn Dma>, u64),
    /// The user index in its completion entries.
    pub uidx: u32,
    /// Index of the first send basic block: 0, or a number near a wrap to test the wrap. The
    /// doorbell record must start there too, also after RESET.
    pub sq_start: u16,
    /// Index of the first receive: as `sq_start`.
    pub rq_start: u16,
    /// The owner value in its events; the NIC does not interpret it.
    pub owner: u64,
    /// Its transport.
    pub service: Service,
    /// Which payloads its completion entries contain.
    pub scatter: Scatter,
}

impl QpAttr {
    /// A reliable connection without a receive queue. Sends complete into `cq`. The doorbell record
    /// is at an offset of a memory. All counts start at 0.
    pub fn new(pd: PdId, uar: UarId, cq: Cqn, sq: SqAttr, record: (Arc<dyn Dma>, u64)) -> QpAttr {
        QpAttr {
            pd,
            uar,
            send_cq: cq,
            recv_cq: cq,
            sq,
            rq: None,
            srq: None,
            record,
            uidx: 0,
            sq_start: 0,
            rq_start: 0,
            owner: 0,
            service: Service::default(),
            scatter: Scatter::default(),
        }
    }
}

/// The path MTU: the bytes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 8,
    /// 512 bytes.
    B512 = 9,
    /// 1024 bytes.
    B1024 = 10,
    /// 2048 bytes.
    B2048 = 11,
    /// 4096 bytes.
    B4096 = 12,
}

impl Mtu {
    /// The MTU for a number of verbs: 1 is 256 bytes, 5 is 4096 bytes.
    pub const fn from_verbs(number: u8) -> Option<Mtu> {
        Some(match number {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return None,
        })
    }

    /// The logarithm of the MTU in bytes.
    pub(crate) const fn log(self) -> u8 {
        self as u8
    }
}

/// The path to the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The NIC at the other end; may be this NIC.
    pub remote: NodeId,
    /// The queue pair at the other end.
    pub remote_qpn: Qpn,
    /// The packet size; the same at both ends.
    pub mtu: Mtu,
    /// The port that it sends from, counted from 1.
    pub port: u8,
}

impl Path {
    /// The path to a queue pair, in packets of 4096 bytes, from port 1.
    pub const fn to(remote: NodeId, remote_qpn: Qpn) -> Path {
        Path {
            remote,
            remote_qpn,
            mtu: Mtu::B4096,
            port: 1,
        }
    }
}

/// A change of state, with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// To RESET, from any state: outstanding work is dropped without completions, and the indices
    /// return to their start values.
    Reset,
    /// RESET to INIT, or INIT to INIT.
    Init {
        /// The access that the remote end gets: some of the `REMOTE_` rights.
        access: Access,
        /// The queue key that a datagram must carry; unused on a connection.
        qkey: u32,
        /// The port, counted from 1.
        port: u8,
    },
    /// INIT to RTR.
    Rtr {
        /// The path to the other end.
        path: Path,
        /// Number of the first packet from the other end: the other end's `sq_psn`, 24 bits. A new
        /// number rejects packets of a former connection.
        rq_psn: u32,
        /// How many reads and atomics of the other end may wait here for their answers: at least
        /// the number that the other end keeps outstanding.
        max_dest_rd_atomic: u8,
        /// The wait that the other end observes before it retries a message without a receive (the
        /// RNR timer): 0 to 31, see [`rnr_delay`](crate::rnr_delay).
        min_rnr_timer: u8,
    },
    /// INIT to RTR, of a queue pair without a connection.
    UdRtr,
    /// RTR to RTS, of a queue pair without a connection.
    UdRts {
        /// Number of the first packet sent, 24 bits. No receiver checks it.
        sq_psn: u32,
    },
    /// RTR to RTS.
    Rts {
        /// Number of the first packet sent: the other end's `rq_psn`. 24 bits.
        sq_psn: u32,
        /// The most reads and atomics outstanding.
        max_rd_atomic: u8,
        /// The timeout of an answer before the NIC retransmits: 4.096 us times 2 to this power, at
        /// most 31. 0 disables the timeout. See [`ack_timeout`](crate::ack_timeout).
        timeout: u8,
        /// How many timeouts in a row, without progress, the NIC retries before work fails: 0 to 7.
        retry_cnt: u8,
        /// How many times in a row the NIC retries while the other end has no receive: 0 to 6, or 7
        /// for no limit.
        rnr_retry: u8,
    },
    /// RTS to SQD (drain): the NIC finishes work that was begun, then reports an event.
    Sqd,
    /// SQD or SQE to RTS: the send queue resumes.
    Resume,
    /// Changes attributes in a state between INIT and SQE; the state remains.
    Attr(AttrChange),
    /// To ERR, from any state but RESET: outstanding work is flushed.
    Error,
}

/// Attributes to change; those that are `None` remain. The first three may change in all states
/// from INIT on except ERR. The others may change in SQD alone, after the drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// The access that the remote end gets.
    pub access: Option<Access>,
    /// The queue key that a datagram must carry.
    pub qkey: Option<u32>,
    /// As in [`Modify::Rtr`].
    pub min_rnr_timer: Option<u8>,
    /// As in [`Modify::Rtr`].
    pub max_dest_rd_atomic: Option<u8>,
    /// As in [`Modify::Rts`].
    pub max_rd_atomic: Option<u8>,
    /// As in [`Modify::Rts`].
    pub timeout: Option<u8>,
    /// As in [`Modify::Rts`].
    pub retry_cnt: Option<u8>,
    /// As in [`Modify::Rts`].
    pub rnr_retry: Option<u8>,
}

impl AttrChange {
    /// Returns true if it changes an attribute that may change in SQD alone.
    pub(crate) fn needs_rest(&self) -> bool {
        let rest = AttrChange {
            access: None,
            qkey: None,
            min_rnr_timer: None,
            ..*self
        };
        rest != AttrChange::default()
    }
}

impl Modify {
    /// The target state; RTS for a change of attributes, which has no target state.
    pub fn target(&self) -> QpState {
        match self {
            Modify::Sqd => QpState::Sqd,
            Modify::Resume | Modify::Attr(_) => QpState::Rts,
            Modify::Reset => QpState::Reset,
            Modify::Init { .. } => QpState::Init,
            Modify::Rtr { .. } | Modify::UdRtr => QpState::Rtr,
            Modify::Rts { .. } | Modify::UdRts { .. } => QpState::Rts,
            Modify::Error => QpState::Err,
        }
    }
}

/// The status of a queue pair. Send indices count basic blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// Its state.
    pub state: QpState,
    /// The send index that the last doorbell announced.
    pub sq_rung: u16,
    /// The send index up to which the NIC fetched entries.
    pub sq_next: u16,
    /// The send index up to which entries are complete.
    pub sq_done: u16,
    /// Number of entries that are begun and not complete.
    pub outstanding: usize,
    /// True in SQD while the drain is in progress.
    pub draining: bool,
    /// The receive index up to which receives are used; 0 with a shared receive queue.
    pub rq_next: u16,
    /// True while a message waits for a receive (RNR).
    pub starved: bool,
    /// The other end, after RTR.
    pub remote: Option<(NodeId, Qpn)>,
}
