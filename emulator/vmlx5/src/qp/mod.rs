//! Queue pairs: their parts, their states, and the flush of their work after a failure.
//!
//! The sending half is in `requester`, the receiving half in `responder`.

pub(crate) mod requester;
pub(crate) mod responder;

use std::sync::Arc;

use gds_step::Time;
use mlx5_prm::cqe::{Failure, Success};
use mlx5_prm::doorbell;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::wqe::{BASIC_BLOCK, MAX_SEGMENTS, SEGMENT, basic_blocks};

use crate::attr::{AttrChange, QpAttr, QpInfo, RqAttr, Scatter, Service};
use crate::config::NicConfig;
use crate::cq::{Cq, check_span};
use crate::dma::Dma;
use crate::error::{Fault, NicError, Object, vendor};
use crate::event::{Events, Source, qp_event};
use crate::fabric::{NodeId, PeerId};
use crate::frame::{Frame, Kind, MTU_LOGS};
use crate::mr::{Access, MrTable};
use crate::object::{Cqn, PdId, QpState, Qpn, Srqn, UarId};
use crate::srq::{Refused, Srq};
use crate::table::Table;
use crate::timer::ack_timeout;
use requester::{Datagrams, Requester};
use responder::Responder;
use responder::late::Disorder;

/// The objects that a queue pair works with.
pub(crate) struct Ctx {
    pub mrs: MrTable,
    pub cqs: Table<Cq>,
    /// A completion queue failed, and its queue pairs are not in ERR yet.
    pub cq_failed: bool,
    pub events: Events,
    pub srqs: Table<Srq>,
    /// A shared receive queue may have a pending event.
    pub srq_news: bool,
    /// The source of out-of-order WRITEs, if they are enabled.
    pub disorder: Option<Box<Disorder>>,
    pub now: Time,
}

impl Ctx {
    /// Takes a receive of a shared queue; returns the number of its entry.
    pub fn take_shared(&mut self, srq: Srqn) -> Result<u16, Refused> {
        let Ok(srq) = self.srqs.get_mut(srq.0) else {
            return Err(Refused::Failed(vendor::SRQ));
        };
        let taken = srq.take();
        self.srq_news |= srq.events != 0;
        taken
    }

    /// Writes the entry of completed work, with the payload if one is given.
    pub fn succeed(&mut self, number: Cqn, content: &Success, payload: Option<&[u8]>) {
        self.complete(number, |cq| cq.succeed(content, payload));
    }

    pub fn fail(&mut self, number: Cqn, content: &Failure) {
        self.complete(number, |cq| cq.fail(content));
    }

    #[inline]
    fn complete(&mut self, number: Cqn, write: impl FnOnce(&mut Cq)) {
        if let Ok(cq) = self.cqs.get_mut(number.0) {
            write(cq);
            self.cq_failed |= cq.fresh_failure;
            if cq.arm.is_some() {
                self.notify(number);
            }
        }
    }

    #[cold]
    fn notify(&mut self, cq: Cqn) {
        if let Some(slot) = self.cqs.slot(cq.0) {
            self.raise_completion(slot);
        }
    }

    /// Raises a completion event of the completion queue in `slot` if it is armed and has a new
    /// entry.
    pub fn raise_completion(&mut self, slot: u32) {
        if let Some(cq) = self.cqs.at(slot)
            && cq.raises_event()
            && let Some(arm) = &mut cq.arm
            && !std::mem::replace(&mut arm.telling, true)
        {
            self.events.push(Source::Armed(slot));
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub node: NodeId,
    pub peer: PeerId,
    pub qpn: u32,
    pub port: u8,
}

pub(crate) struct Qp {
    pub number: u32,
    pub pd: PdId,
    pub uar: UarId,
    pub send_cq: Cqn,
    pub recv_cq: Cqn,
    pub uidx: u32,
    pub state: QpState,
    pub service: Service,
    pub scatter: Scatter,
    pub access: Access,
    pub remote: Option<Remote>,
    /// The state of a datagram queue pair, instead of `remote`.
    pub ud: Option<Box<Datagrams>>,
    /// Logarithm of the packet size in bytes.
    pub mtu_log: u8,
    /// The NIC is not strict: it sends hints and accepts them.
    pub patient: bool,
    /// No packet arrived since RTR.
    pub fresh: bool,
    /// The event for the end of the drain in SQD was raised.
    pub drained: bool,
    pub owner: u64,
    /// Events that are not reported yet: bits of `qp_event`.
    pub events: u8,
    /// The queue of sources with events contains it.
    pub telling: bool,
    record: (Arc<dyn Dma>, u64),
    pub sq: Requester,
    pub rq: Option<RecvQueue>,
    pub srq: Option<Srqn>,
    /// The protection domain of its receives.
    pub recv_pd: PdId,
    pub resp: Responder,
    /// The list of queue pairs with work contains it.
    pub queued: bool,
    /// The list of queue pairs whose receive record is read contains it.
    pub watched: bool,
    /// The list of queue pairs with a running timeout contains it.
    pub timed: bool,
}

pub(crate) struct RecvQueue {
    pub attr: RqAttr,
    start: u16,
    /// Index of the next receive.
    pub next: u16,
    /// The record as last read.
    pub posted: u16,
}

impl Qp {
    pub fn new(number: u32, attr: QpAttr, recv_pd: PdId, patient: bool) -> Qp {
        Qp {
            number,
            pd: attr.pd,
            uar: attr.uar,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            uidx: attr.uidx,
            state: QpState::Reset,
            service: attr.service,
            scatter: attr.scatter,
            access: Access::NONE,
            remote: None,
            ud: None,
            mtu_log: MTU_LOGS.1,
            patient,
            fresh: false,
            drained: false,
            owner: attr.owner,
            events: 0,
            telling: false,
            record: attr.record,
            sq: Requester::new(attr.sq, attr.sq_start),
            rq: attr.rq.map(|rq| RecvQueue {
                attr: rq,
                start: attr.rq_start,
                next: attr.rq_start,
                posted: attr.rq_start,
            }),
            srq: attr.srq,
            recv_pd,
            resp: Responder::default(),
            queued: false,
            watched: false,
            timed: false,
        }
    }

    /// Checks the part of `attr` that does not depend on other objects.
    pub fn check(attr: &QpAttr, config: &NicConfig) -> Result<(), NicError> {
        let object = Object::Qp;
        let limit = |what, value: u32, limit: u32| NicError::within(object, what, value, limit);
        let sq = &attr.sq;
        limit(
            "sq.log_blocks",
            sq.log_blocks.into(),
            config.max_log_sq.min(15).into(),
        )?;
        let bytes = (BASIC_BLOCK as u64) << sq.log_blocks;
        check_span(object, &*sq.mem, sq.offset, bytes, BASIC_BLOCK as u64)?;
        if attr.rq.is_some() && attr.srq.is_some() {
            return Err(NicError::TwoReceiveQueues);
        }
        if let Some(rq) = &attr.rq {
            limit(
                "rq.log_entries",
                rq.log_entries.into(),
                config.max_log_rq.min(15).into(),
            )?;
            limit("rq.stride", rq.stride, MAX_STRIDE)?;
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
        limit("uidx", attr.uidx, 0xff_ffff)?;
        check_span(object, &*attr.record.0, attr.record.1, 8, 8)
    }

    pub fn info(&self) -> QpInfo {
        QpInfo {
            state: self.state,
            sq_rung: self.sq.rung,
            sq_next: self.sq.next,
            sq_done: self.sq.done(),
            outstanding: self.sq.pending.len(),
            draining: self.state == QpState::Sqd && !self.sq.pending.is_empty(),
            rq_next: self.rq.as_ref().map_or(0, |rq| rq.next),
            starved: self.resp.starved,
            remote: self.remote.map(|r| (r.node, Qpn(r.qpn))),
        }
    }

    /// The port that it sends from and receives on; the first port before INIT.
    pub fn port(&self) -> u8 {
        let own = self.ud.as_ref().map(|ud| ud.port);
        self.remote.map(|r| r.port).or(own).unwrap_or(1)
    }

    /// Returns true if its receive record must be read even if no message arrives.
    pub fn wants_watch(&self) -> bool {
        self.resp.starved || self.state == QpState::Err && self.rq.is_some()
    }

    /// Resets all state.
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.access = Access::NONE;
        self.remote = None;
        self.fresh = false;
        self.drained = false;
        self.sq.reset();
        if let Some(rq) = &mut self.rq {
            rq.next = rq.start;
            rq.posted = rq.start;
        }
        self.resp.reset();
    }

    /// Reads the send counter of the doorbell record. Returns true if there is new work.
    pub fn ring(&mut self) -> bool {
        if !matches!(
            self.state,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
        ) {
            return false;
        }
        let (mem, offset) = &self.record;
        let Ok(word) = mem.load32(offset + doorbell::SND as u64) else {
            return false;
        };
        let rung = doorbell::record_index(u32::from_le(word));
        let changed = rung != self.sq.rung;
        self.sq.rung = rung;
        changed
    }

    /// Reads the receive counter of the doorbell record. Returns true if a receive is posted.
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

    /// A frame to the other end.
    pub fn frame(&self, kind: Kind, to: Remote, psn: u32) -> Frame {
        Frame {
            mtu_log: self.mtu_log,
            service: self.service as u8,
            ..Frame::new(kind, to.qpn, self.number, psn)
        }
    }

    /// Returns true if the other end of this connection sent the frame.
    pub fn is_from_partner(&self, peer: PeerId, frame: &Frame) -> bool {
        let partner = |r: Remote| r.peer == peer && r.qpn == frame.src_qpn;
        self.remote.is_some_and(partner)
    }

    /// Changes attributes that were checked.
    pub fn change(&mut self, to: &AttrChange) {
        let set = |old: &mut u8, new: Option<u8>| *old = new.unwrap_or(*old);
        self.access = to.access.unwrap_or(self.access);
        if let (Some(ud), Some(qkey)) = (&mut self.ud, to.qkey) {
            ud.qkey = qkey;
        }
        set(&mut self.resp.min_rnr_timer, to.min_rnr_timer);
        set(&mut self.resp.max_reads, to.max_dest_rd_atomic);
        set(&mut self.sq.max_rd_atomic, to.max_rd_atomic);
        set(&mut self.sq.retry_cnt, to.retry_cnt);
        set(&mut self.sq.rnr_retry, to.rnr_retry);
        if let Some(exponent) = to.timeout {
            self.sq.timeout = ack_timeout(exponent);
        }
        if to.needs_rest() {
            self.sq.refill();
        }
    }

    /// Returns true if it sends; in SQD only work that it has begun.
    pub fn sends(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Raises the event for the end of the drain in SQD, once.
    pub fn note_rest(&mut self) {
        if self.state == QpState::Sqd && self.sq.pending.is_empty() && !self.drained {
            self.drained = true;
            self.events |= qp_event::SQ_DRAINED;
        }
    }

    /// Enters ERR: from here on all work is flushed, and frames of the other end are dropped.
    pub fn enter_error(&mut self) {
        if self.state == QpState::Err {
            return;
        }
        self.state = QpState::Err;
        self.resp.msg = None;
        self.resp.starved = false;
        // Pieces that are not acknowledged need not be placed.
        self.resp.late.clear();
        self.sq.stop_clock();
    }

    /// Enters SQE, or ERR on a reliable connection: all sends are flushed.
    pub fn enter_send_error(&mut self) {
        match self.service {
            Service::Uc | Service::Ud if self.state != QpState::Err => self.state = QpState::Sqe,
            _ => self.enter_error(),
        }
    }

    /// Flushes at most `budget` entries; in SQE only sends. Returns true if there may be more.
    pub fn flush(&mut self, ctx: &mut Ctx, budget: &mut u32) -> bool {
        while *budget > 0 {
            let Some((index, opcode)) = self.next_to_flush() else {
                break;
            };
            *budget -= 1;
            if let Some(opcode) = opcode {
                self.send_error(ctx, index, opcode, Fault::FLUSH);
            }
        }
        while *budget > 0 && self.state == QpState::Err && self.receives() {
            *budget -= 1;
            self.recv_error(ctx, Fault::FLUSH);
        }
        if self.srq.is_some() && self.state == QpState::Err {
            self.end_shared(ctx);
        }
        *budget == 0
    }

    /// The next send entry to flush; without an opcode if there is no entry at that index, which
    /// happens after a malformed one.
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

    /// An error entry.
    fn failure(&self, opcode: CqeOpcode, wqe_counter: u16, fault: Fault) -> Failure {
        Failure {
            opcode,
            syndrome: fault.syndrome,
            vendor_err: fault.vendor,
            qpn: self.number,
            uidx: self.uidx,
            send_opcode: SendOpcode::default(),
            wqe_counter,
        }
    }

    /// Writes the error entry of a send.
    pub fn send_error(&self, ctx: &mut Ctx, index: u16, opcode: SendOpcode, fault: Fault) {
        let content = Failure {
            send_opcode: opcode,
            ..self.failure(CqeOpcode::REQ_ERR, index, fault)
        };
        ctx.fail(self.send_cq, &content);
    }

    /// Uses the next receive (of a shared queue: the taken one); returns its index.
    fn use_up(&mut self) -> Option<u16> {
        if self.srq.is_some() {
            return self.resp.taken.take();
        }
        let rq = self.rq.as_mut()?;
        let index = rq.next;
        rq.next = index.wrapping_add(1);
        Some(index)
    }

    /// Writes the error entry of the next receive, and uses the receive.
    pub fn recv_error(&mut self, ctx: &mut Ctx, fault: Fault) {
        if let Some(index) = self.use_up() {
            let content = self.failure(CqeOpcode::RESP_ERR, index, fault);
            ctx.fail(self.recv_cq, &content);
        }
    }

    /// Writes the entry of a completed receive, with the payload if one is given, and uses the
    /// receive.
    pub fn recv_success(&mut self, ctx: &mut Ctx, content: Success, payload: Option<&[u8]>) {
        let Some(wqe_counter) = self.use_up() else {
            return;
        };
        let content = Success {
            qpn: self.number,
            uidx: self.uidx,
            wqe_counter,
            timestamp: ctx.now.as_nanos(),
            ..content
        };
        ctx.succeed(self.recv_cq, &content, payload);
    }
}

/// Most bytes of a receive entry.
const MAX_STRIDE: u32 = 512;
