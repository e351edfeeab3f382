//! What queue pairs are made of and how they are changed: the attributes of control operations.

use std::sync::Arc;

use crate::dma::Dma;
use crate::fabric::NodeId;
use crate::mr::Access;
use crate::object::{Cqn, PdId, QpState, Qpn, Srqn, UarId};

/// The send queue of a queue pair to create.
#[derive(Clone)]
pub struct SqAttr {
    /// The memory of its ring.
    pub mem: Arc<dyn Dma>,
    /// Where in it the ring begins: a multiple of 64.
    pub offset: u64,
    /// It has 2 to this power basic blocks of 64 bytes.
    pub log_blocks: u8,
}

/// The receive queue of a queue pair to create.
#[derive(Clone)]
pub struct RqAttr {
    /// The memory of its ring.
    pub mem: Arc<dyn Dma>,
    /// Where in it the ring begins: a multiple of 16.
    pub offset: u64,
    /// It has 2 to this power entries.
    pub log_entries: u8,
    /// Bytes of an entry: a power of two, 16 to 512.
    pub stride: u32,
}

/// The kind of transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc = 0,
    /// Unreliable connection: sends and writes only, which complete when they are sent; what is
    /// lost is lost, whole messages at a time.
    Uc = 1,
    /// Unreliable datagrams: sends only, of one packet of 4096 bytes at most, each to whom its
    /// entry names (see [`Resolve`](crate::Resolve)). A send completes when it was sent; what is
    /// lost, or finds no receive, is lost. In front of what is received there is room of 40 bytes
    /// for the header by which it came.
    Ud = 2,
}

/// Which payloads of at most 32 bytes lie in the completion entry, and not in the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scatter {
    /// What signaled reads and atomics bring; of reliable connections alone.
    pub requester: bool,
    /// What sends bring.
    pub responder: bool,
}

/// A queue pair to create, in state RESET.
#[derive(Clone)]
pub struct QpAttr {
    /// Its protection domain: its regions must belong to the same.
    pub pd: PdId,
    /// The page its doorbell is rung on.
    pub uar: UarId,
    /// Where its sends complete.
    pub send_cq: Cqn,
    /// Where its receives complete.
    pub recv_cq: Cqn,
    /// Its send queue.
    pub sq: SqAttr,
    /// Its receive queue, unless it only ever writes, reads and is written to.
    pub rq: Option<RqAttr>,
    /// The queue that it takes its receives from, instead of one of its own.
    pub srq: Option<Srqn>,
    /// The memory of its doorbell record (8 bytes, aligned): see [`mlx5_prm::doorbell`].
    pub record: (Arc<dyn Dma>, u64),
    /// What its completion entries carry as the user's index.
    pub uidx: u32,
    /// Index of the first send basic block: 0, or a number near a wrap to test it. The
    /// doorbell record must start there too, also after RESET.
    pub sq_start: u16,
    /// Index of the first receive: as `sq_start`.
    pub rq_start: u16,
    /// What its events carry; means nothing to the NIC.
    pub owner: u64,
    /// How it talks to its peer.
    pub service: Service,
    /// What lies in completion entries.
    pub scatter: Scatter,
}

impl QpAttr {
    /// A reliable connection with a send queue alone that completes into `cq`, its record at
    /// an offset of a memory; all counts start at 0.
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

/// The bytes of one packet: what a message is cut into.
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
    /// The MTU that verbs number so: 1 for 256 bytes to 5 for 4096.
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

    /// Its logarithm.
    pub(crate) const fn log(self) -> u8 {
        self as u8
    }
}

/// The way to the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The NIC at the other end; may be this one.
    pub remote: NodeId,
    /// The queue pair at the other end.
    pub remote_qpn: Qpn,
    /// What messages are cut into; the same at both ends.
    pub mtu: Mtu,
    /// The port it leaves by, from 1.
    pub port: u8,
}

impl Path {
    /// The way to a queue pair, in packets of 4096 bytes, from port 1.
    pub const fn to(remote: NodeId, remote_qpn: Qpn) -> Path {
        Path {
            remote,
            remote_qpn,
            mtu: Mtu::B4096,
            port: 1,
        }
    }
}

/// A change of state, with what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// To RESET, from any state: outstanding work vanishes without completions, the indices
    /// go back to their start.
    Reset,
    /// RESET to INIT, or anew in INIT.
    Init {
        /// What the remote end may do: of the `REMOTE_` rights.
        access: Access,
        /// What a datagram must carry; means nothing on a connection.
        qkey: u32,
        /// The port, from 1.
        port: u8,
    },
    /// INIT to RTR.
    Rtr {
        /// The way to the other end.
        path: Path,
        /// Number of the first packet it sends: its `sq_psn`. Fresh numbers keep packets of a
        /// former connection out. 24 bits.
        rq_psn: u32,
        /// Reads and atomics that may wait here for their answer: at least what the other
        /// end keeps outstanding.
        max_dest_rd_atomic: u8,
        /// When the other end shall come again after it found no receive: 0 to 31, see
        /// [`rnr_delay`](crate::rnr_delay).
        min_rnr_timer: u8,
    },
    /// INIT to RTR, without a connection.
    UdRtr,
    /// RTR to RTS, without a connection.
    UdRts {
        /// Number of the first packet sent, 24 bits. Nobody looks at it.
        sq_psn: u32,
    },
    /// RTR to RTS.
    Rts {
        /// Number of the first packet sent: the other end's `rq_psn`. 24 bits.
        sq_psn: u32,
        /// Reads and atomics kept outstanding.
        max_rd_atomic: u8,
        /// How long an answer may take before all is sent again: 4.096 us times 2 to this
        /// power, at most 31; 0 is without end. See [`ack_timeout`](crate::ack_timeout).
        timeout: u8,
        /// How often that may happen in a row, without progress, before work fails: 0 to 7.
        retry_cnt: u8,
        /// How often in a row the other end may have no receive: 0 to 6, or 7 for any number.
        rnr_retry: u8,
    },
    /// RTS to SQD: what was begun is finished, and then an event says so.
    Sqd,
    /// SQD or SQE to RTS: work goes on.
    Resume,
    /// Changes attributes in a state between INIT and SQE, and stays there.
    Attr(AttrChange),
    /// To ERR, from any state but RESET: outstanding work is flushed.
    Error,
}

/// Attributes to change; those that are `None` stay. The first three may change in all states
/// from INIT on but ERR; the others in SQD alone, once nothing is outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrChange {
    /// What the remote end may do.
    pub access: Option<Access>,
    /// What a datagram must carry.
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
    /// True if it changes what may change in SQD alone.
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
    /// The state it leads to; RTS for a change of attributes, which leads nowhere.
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

/// How a queue pair stands. Send indices count basic blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// Its state.
    pub state: QpState,
    /// The send index up to which the doorbell was rung.
    pub sq_rung: u16,
    /// The send index up to which entries were fetched.
    pub sq_next: u16,
    /// The send index up to which entries are done.
    pub sq_done: u16,
    /// Entries begun that are not done.
    pub outstanding: usize,
    /// True in SQD as long as there are such entries.
    pub draining: bool,
    /// The receive index up to which receives were used; 0 if they are of a shared queue.
    pub rq_next: u16,
    /// True while a message waits for a receive that is not posted.
    pub starved: bool,
    /// The other end, once known.
    pub remote: Option<(NodeId, Qpn)>,
}
