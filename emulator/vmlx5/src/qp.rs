//! Queue pairs: what one is made of, its states, and what happens to its work when it fails.
//!
//! The sending half is in `requester`, the receiving half in `responder`.

use std::sync::Arc;

use mlx5_prm::cqe::{Failure, Success};
use mlx5_prm::doorbell;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{BASIC_BLOCK, MAX_SEGMENTS, SEGMENT, basic_blocks};

use crate::cq::{Cqn, check_span};
use crate::dma::Dma;
use crate::error::{Fault, NicError, Object};
use crate::fabric::{NodeId, PeerId};
use crate::frame::{Frame, Kind, seq};
use crate::mr::{Access, PdId};
use crate::nic::{Ctx, NicConfig, UarId};
use crate::requester::Requester;
use crate::responder::{Answer, Responder};

/// Names a queue pair: its QPN, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Qpn(pub u32);

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

/// A queue pair to create: reliable connected, in state RESET.
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
    /// The memory of its doorbell record (8 bytes, aligned): see [`mlx5_prm::doorbell`].
    pub record: (Arc<dyn Dma>, u64),
    /// What its completion entries carry as the user's index.
    pub uidx: u32,
    /// Index of the first send basic block: 0, or a number near a wrap to test it. The
    /// doorbell record must start there too, also after RESET.
    pub sq_start: u16,
    /// Index of the first receive: as `sq_start`.
    pub rq_start: u16,
}

/// The states of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Fresh: no work is looked at.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// All work is flushed.
    Err,
}

/// A change of state, with what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// To RESET, from any state: outstanding work vanishes without completions, the indices
    /// go back to their start.
    Reset,
    /// RESET to INIT.
    Init {
        /// What the remote end may do: of the `REMOTE_` rights.
        access: Access,
    },
    /// INIT to RTR.
    Rtr {
        /// The NIC at the other end; may be this one.
        remote: NodeId,
        /// The queue pair at the other end.
        remote_qpn: Qpn,
        /// Number of the first message it sends: its `sq_psn`. Fresh numbers keep messages
        /// of a former connection out. 24 bits.
        rq_psn: u32,
        /// Reads and atomics that may wait here for their answer: at least what the other
        /// end keeps outstanding.
        max_dest_rd_atomic: u8,
    },
    /// RTR to RTS.
    Rts {
        /// Number of the first message sent: the other end's `rq_psn`. 24 bits.
        sq_psn: u32,
        /// Reads and atomics kept outstanding.
        max_rd_atomic: u8,
    },
    /// To ERR, from any state but RESET: outstanding work is flushed.
    Error,
}

impl Modify {
    /// The state it leads to.
    pub fn target(&self) -> QpState {
        match self {
            Modify::Reset => QpState::Reset,
            Modify::Init { .. } => QpState::Init,
            Modify::Rtr { .. } => QpState::Rtr,
            Modify::Rts { .. } => QpState::Rts,
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
    /// Messages sent that wait for their answer.
    pub outstanding: usize,
    /// The receive index up to which receives were used.
    pub rq_next: u16,
    /// True while a message waits for a receive that is not posted.
    pub starved: bool,
    /// The other end, once known.
    pub remote: Option<(NodeId, Qpn)>,
}

/// The other end of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub node: NodeId,
    pub peer: PeerId,
    pub qpn: u32,
    /// Its present life, once it has said that it is ready.
    pub life: Option<u16>,
}

pub(crate) struct Qp {
    pub number: u32,
    pub pd: PdId,
    pub uar: UarId,
    pub send_cq: Cqn,
    pub recv_cq: Cqn,
    pub uidx: u32,
    pub state: QpState,
    pub access: Access,
    pub remote: Option<Remote>,
    /// Which life this is: every RESET begins another. Never zero.
    pub life: u16,
    record: (Arc<dyn Dma>, u64),
    pub sq: Requester,
    pub rq: Option<RecvQueue>,
    pub resp: Responder,
    /// It is in the list of those with something to do.
    pub queued: bool,
    /// It is in the list of those whose receive record is looked at.
    pub watched: bool,
}

/// Who sent a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The other end, in this connection.
    Partner,
    /// The other end, in a former life, or before it was heard to be ready: it will send
    /// again what matters.
    OtherLife,
    /// Anybody else.
    Stranger,
}

pub(crate) struct RecvQueue {
    pub mem: Arc<dyn Dma>,
    pub offset: u64,
    pub log_entries: u8,
    pub stride: u32,
    start: u16,
    /// Index of the receive used next.
    pub next: u16,
    /// The record as last read.
    pub posted: u16,
}

impl Qp {
    pub fn new(number: u32, attr: QpAttr) -> Qp {
        Qp {
            number,
            pd: attr.pd,
            uar: attr.uar,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            uidx: attr.uidx,
            state: QpState::Reset,
            access: Access::NONE,
            remote: None,
            life: 1,
            record: attr.record,
            sq: Requester::new(attr.sq, attr.sq_start),
            rq: attr.rq.map(|rq| RecvQueue {
                mem: rq.mem,
                offset: rq.offset,
                log_entries: rq.log_entries,
                stride: rq.stride,
                start: attr.rq_start,
                next: attr.rq_start,
                posted: attr.rq_start,
            }),
            resp: Responder::default(),
            queued: false,
            watched: false,
        }
    }

    /// Checks everything about `attr` that does not depend on other objects.
    pub fn check(attr: &QpAttr, config: &NicConfig) -> Result<(), NicError> {
        let object = Object::Qp;
        let limit = |what, value: u64, limit: u64| {
            let error = NicError::Limit {
                object,
                what,
                value,
                limit,
            };
            if value > limit { Err(error) } else { Ok(()) }
        };
        let sq = &attr.sq;
        limit(
            "sq.log_blocks",
            sq.log_blocks.into(),
            config.max_log_sq.min(15).into(),
        )?;
        let bytes = (BASIC_BLOCK as u64) << sq.log_blocks;
        check_span(object, &*sq.mem, sq.offset, bytes, BASIC_BLOCK as u64)?;
        if let Some(rq) = &attr.rq {
            limit(
                "rq.log_entries",
                rq.log_entries.into(),
                config.max_log_rq.min(15).into(),
            )?;
            limit("rq.stride", rq.stride.into(), MAX_STRIDE.into())?;
            if !rq.stride.is_power_of_two() || rq.stride < SEGMENT as u32 {
                return Err(NicError::Limit {
                    object,
                    what: "rq.stride (a power of two of at least 16)",
                    value: rq.stride.into(),
                    limit: MAX_STRIDE.into(),
                });
            }
            let bytes = u64::from(rq.stride) << rq.log_entries;
            check_span(object, &*rq.mem, rq.offset, bytes, SEGMENT as u64)?;
        }
        limit("uidx", attr.uidx.into(), 0xff_ffff)?;
        check_span(object, &*attr.record.0, attr.record.1, 8, 8)
    }

    pub fn info(&self) -> QpInfo {
        QpInfo {
            state: self.state,
            sq_rung: self.sq.rung,
            sq_next: self.sq.next,
            sq_done: self.sq.done(),
            outstanding: self.sq.pending.len(),
            rq_next: self.rq.as_ref().map_or(0, |rq| rq.next),
            starved: self.resp.starved,
            remote: self.remote.map(|r| (r.node, Qpn(r.qpn))),
        }
    }

    /// True if its receive record must be looked at though no message arrives.
    pub fn wants_watch(&self) -> bool {
        self.resp.starved || self.state == QpState::Err && self.rq.is_some()
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.access = Access::NONE;
        self.remote = None;
        self.life = self.life.wrapping_add(1).max(1);
        self.sq.reset();
        if let Some(rq) = &mut self.rq {
            rq.next = rq.start;
            rq.posted = rq.start;
        }
        self.resp = Responder::default();
    }

    /// Reads the send counter of the doorbell record. True if there is new work.
    pub fn ring(&mut self) -> bool {
        if !matches!(self.state, QpState::Rts | QpState::Err) {
            return false;
        }
        let (mem, offset) = &self.record;
        let Ok(word) = mem.load32(offset + doorbell::SND as u64) else {
            return false;
        };
        let rung = doorbell::record_index(u32::from_le(word));
        let news = rung != self.sq.rung;
        self.sq.rung = rung;
        news
    }

    /// Reads the receive counter of the doorbell record. True if a receive is there.
    pub fn receives(&mut self) -> bool {
        let Some(rq) = &mut self.rq else {
            return false;
        };
        if rq.posted == rq.next {
            let (mem, offset) = &self.record;
            if let Ok(word) = mem.load32(offset + doorbell::RCV as u64) {
                rq.posted = doorbell::record_index(u32::from_le(word));
            }
        }
        rq.posted != rq.next
    }

    /// A frame from this life to the other end.
    pub fn frame(&self, kind: Kind, to: Remote, s: u32) -> Frame {
        Frame {
            life: self.life,
            ..Frame::new(kind, to.qpn, self.number, s)
        }
    }

    /// Who sent a frame.
    pub fn origin(&mut self, peer: PeerId, frame: &Frame) -> Origin {
        let Some(remote) = &mut self.remote else {
            return Origin::Stranger;
        };
        if remote.peer != peer || remote.qpn != frame.src_qpn {
            return Origin::Stranger;
        }
        if remote.life == Some(frame.life) || frame.echo == self.life {
            return Origin::Partner;
        }
        if !matches!(frame.kind, Kind::Resume | Kind::Hello) {
            return Origin::OtherLife;
        }
        remote.life = Some(frame.life);
        if frame.kind == Kind::Resume && self.state != QpState::Err {
            // It may have become ready only now, after we said that we are.
            self.resp.hello();
        }
        Origin::Partner
    }

    /// Into ERR: from here on all work is flushed, and the other end learns that its requests
    /// find nobody any more.
    pub fn enter_error(&mut self) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.resp.msg = None;
        self.resp.starved = false;
        if self.remote.is_some() {
            self.resp.answers.push_back(Answer::Gone(self.resp.expect));
        }
    }

    /// Flushes at most `budget` entries. True if there may be more.
    pub fn flush(&mut self, ctx: &mut Ctx<'_>, budget: &mut u32) -> bool {
        while *budget > 0 {
            let Some((index, opcode)) = self.next_to_flush() else {
                break;
            };
            *budget -= 1;
            if let Some(opcode) = opcode {
                self.send_error(ctx, index, opcode, Fault::FLUSH);
            }
        }
        while *budget > 0 && self.receives() {
            *budget -= 1;
            self.recv_error(ctx, Fault::FLUSH);
        }
        *budget == 0
    }

    /// The next send entry to flush; without an opcode if there is no entry at that index,
    /// which happens after a malformed one.
    fn next_to_flush(&mut self) -> Option<(u16, Option<SendOpcode>)> {
        if let Some(p) = self.sq.pending.pop_front() {
            self.sq.cursor = self.sq.cursor.saturating_sub(1);
            return Some((p.index, Some(p.opcode)));
        }
        let index = self.sq.next;
        let left = self.sq.rung.wrapping_sub(index);
        if left == 0 {
            return None;
        }
        let ctrl = self.sq.ring.ctrl(index).filter(|c| {
            c.index() == index
                && c.qpn() == self.number
                && (1..=MAX_SEGMENTS).contains(&usize::from(c.ds()))
        });
        let blocks = ctrl.map_or(1, |c| u16::from(basic_blocks(c.ds())));
        self.sq.next = index.wrapping_add(blocks.min(left));
        Some((index, ctrl.map(|c| c.opcode())))
    }

    /// Writes the error entry of a send.
    pub fn send_error(&self, ctx: &mut Ctx<'_>, index: u16, opcode: SendOpcode, fault: Fault) {
        let say = Failure {
            opcode: CqeOpcode::REQ_ERR,
            syndrome: fault.syndrome,
            vendor_err: fault.vendor,
            qpn: self.number,
            uidx: self.uidx,
            send_opcode: opcode,
            wqe_counter: index,
        };
        ctx.fail(self.send_cq, &say);
    }

    /// Writes the error entry of the next receive, and uses it up.
    pub fn recv_error(&mut self, ctx: &mut Ctx<'_>, fault: Fault) {
        let Some(rq) = &mut self.rq else {
            return;
        };
        let say = Failure {
            opcode: CqeOpcode::RESP_ERR,
            syndrome: fault.syndrome,
            vendor_err: fault.vendor,
            qpn: self.number,
            uidx: self.uidx,
            send_opcode: SendOpcode::default(),
            wqe_counter: rq.next,
        };
        ctx.fail(self.recv_cq, &say);
        rq.next = rq.next.wrapping_add(1);
    }

    /// Writes the entry of a receive that was used, and uses it up.
    pub fn recv_success(&mut self, ctx: &mut Ctx<'_>, say: Success) {
        let Some(rq) = &mut self.rq else {
            return;
        };
        let say = Success {
            qpn: self.number,
            uidx: self.uidx,
            wqe_counter: rq.next,
            timestamp: ctx.now.as_nanos(),
            ..say
        };
        ctx.succeed(self.recv_cq, &say);
        rq.next = rq.next.wrapping_add(1);
    }

    /// The link to the other end is lost: what waits for an answer gets none.
    pub fn link_lost(&mut self, ctx: &mut Ctx<'_>, fault: Fault) {
        self.resp.forget_answers();
        self.resp.msg = None;
        self.resp.starved = false;
        if self.state == QpState::Rts && self.sq.outstanding() {
            self.fail_front(ctx, fault);
        }
    }
}

/// Most bytes of a receive entry.
const MAX_STRIDE: u32 = 512;

/// True if message `a` comes before message `b`, both recent.
pub(crate) fn before(a: u32, b: u32) -> bool {
    (1..1 << 23).contains(&seq::after(a, b))
}
