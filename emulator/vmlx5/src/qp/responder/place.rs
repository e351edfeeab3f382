//! New requests: the place of their bytes, and the receives that they use.

use mlx5_prm::cqe::{MAX_SCATTER, Success};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::parse_recv;

use super::{Answer, AtomicOp, Message, Outcome, REMOTE_OP, Target, invalid, refused};
use crate::attr::Service;
use crate::error::{Fault, vendor};
use crate::frame::{ACKREQ, FIRST, Frame, IMM, INVALIDATE, Kind, LAST, SOLICITED, packets, psn};
use crate::mr::{Access, MrTable, write};
use crate::qp::Ctx;
use crate::qp::Qp;

impl Qp {
    /// Places a frame of a SEND or WRITE; `old` of its packets were placed before.
    pub(super) fn place(
        &mut self,
        ctx: &mut Ctx,
        frame: &Frame,
        payload: &[u8],
        old: u32,
    ) -> Outcome {
        let skip = old << self.mtu_log;
        let Some(payload) = payload.get(skip as usize..) else {
            return Outcome::Done;
        };
        if frame.is(FIRST) && old == 0 {
            if self.resp.msg.is_some() {
                return Outcome::Refused(invalid(vendor::FRAMING), None);
            }
            let begun = match frame.kind {
                Kind::Send => self.begin_send(ctx, frame),
                _ => self.begin_write(&ctx.mrs, frame),
            };
            if let Err(outcome) = begun {
                return outcome;
            }
        }
        let msg = self.resp.msg.unwrap_or(Message {
            kind: frame.kind,
            total: frame.total,
            got: 0,
            va: frame.va,
            rkey: frame.rkey,
        });
        let here = (frame.kind, frame.total, frame.offset + skip);
        if (msg.kind, msg.total, msg.got) != here {
            return Outcome::Refused(invalid(vendor::FRAMING), None);
        }
        let last = frame.is(LAST);
        let at = u64::from(msg.got);
        let scattered = msg.kind == Kind::Send
            && self.scatter.responder
            && (1..=MAX_SCATTER).contains(&(frame.total as usize));
        if scattered {
            // The payload goes into the completion entry.
        } else if msg.kind == Kind::Send {
            let list = &self.resp.sges;
            if let Err(why) = ctx.mrs.scatter(self.recv_pd, list, at, payload, last) {
                let ours = Fault::new(Syndrome::LOCAL_PROT, why);
                return Outcome::Refused(REMOTE_OP, Some(ours));
            }
        } else {
            // The receive of a WRITE with immediate is used when the whole WRITE is placed.
            if last
                && frame.is(IMM)
                && let Err(outcome) = self.have_receive(ctx)
            {
                return outcome;
            }
            if !payload.is_empty() {
                let va = msg.va.wrapping_add(at);
                let need = Access::REMOTE_WRITE;
                let put = match &mut ctx.disorder {
                    Some(disorder) if self.service == Service::Rc => {
                        let (to, on) = ((msg.rkey, va), (&ctx.mrs, ctx.now));
                        self.place_in_disorder(disorder, on, to, payload)
                    }
                    _ => ctx
                        .mrs
                        .find(self.pd, msg.rkey, need, va, payload.len() as u64)
                        .and_then(|(mem, offset)| write(mem, offset, payload, last)),
                };
                if let Err(why) = put {
                    return Outcome::Refused(refused(why), None);
                }
            }
        }
        if last
            && frame.is(INVALIDATE)
            && frame.kind == Kind::Send
            && let Err(why) = ctx.mrs.invalidate(self.pd, u32::from_be_bytes(frame.imm))
        {
            let ours = Fault::new(Syndrome::REMOTE_INVAL_REQ, why);
            return Outcome::Refused(refused(why), Some(ours));
        }
        self.resp.expect = psn::add(frame.psn, frame.count);
        if last {
            self.finish(ctx, frame, scattered.then_some(payload));
            return Outcome::Done;
        }
        let got = msg.got + payload.len() as u32;
        self.resp.msg = Some(Message { got, ..msg });
        if frame.is(ACKREQ) {
            self.resp.ack();
        }
        Outcome::Done
    }

    /// Completes a message.
    fn finish(&mut self, ctx: &mut Ctx, frame: &Frame, scattered: Option<&[u8]>) {
        self.resp.msg = None;
        if frame.kind == Kind::Send || frame.is(IMM) {
            self.place_all(&ctx.mrs);
        }
        self.resp.ack();
        let carries = frame.is(IMM) || frame.is(INVALIDATE);
        let opcode = match (frame.kind, frame.is(IMM)) {
            (Kind::Send, _) if frame.is(INVALIDATE) => CqeOpcode::RESP_SEND_INV,
            (Kind::Send, false) => CqeOpcode::RESP_SEND,
            (Kind::Send, true) => CqeOpcode::RESP_SEND_IMM,
            (_, true) => CqeOpcode::RESP_WR_IMM,
            (_, false) => return,
        };
        let content = Success {
            opcode,
            byte_cnt: frame.total,
            imm: if carries { frame.imm } else { [0; 4] },
            solicited: frame.is(SOLICITED),
            ..Success::default()
        };
        self.recv_success(ctx, content, scattered);
    }

    /// Finds the receive for a SEND.
    pub(super) fn begin_send(&mut self, ctx: &mut Ctx, frame: &Frame) -> Result<(), Outcome> {
        self.have_receive(ctx)?;
        let own = |syndrome, why| Fault::new(syndrome, why);
        let fail = |fault| Outcome::Refused(REMOTE_OP, Some(fault));
        let mut entry = [0; 512];
        let list = self
            .fetch_receive(ctx, &mut entry)
            .map_err(|why| fail(own(Syndrome::LOCAL_QP_OP, why)))?;
        let list =
            parse_recv(list).map_err(|_| fail(own(Syndrome::LOCAL_QP_OP, vendor::WQE_FORMAT)))?;
        let resp = &mut self.resp;
        resp.sges.clear();
        resp.sges.extend(list);
        let room: u64 = resp.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let total = u64::from(frame.total);
        if total > room {
            let ours = own(Syndrome::LOCAL_LENGTH, vendor::LENGTH);
            return Err(Outcome::Refused(invalid(vendor::LENGTH), Some(ours)));
        }
        let need = Access::LOCAL_WRITE;
        ctx.mrs
            .check(self.recv_pd, need, resp.sges.iter().copied(), total)
            .map_err(|why| fail(own(Syndrome::LOCAL_PROT, why)))
    }

    /// Checks the target of a WRITE and, if it needs a receive, that the queue pair can have one.
    fn begin_write(&mut self, mrs: &MrTable, frame: &Frame) -> Result<(), Outcome> {
        if frame.total > 0 {
            self.may(mrs, frame, frame.total, Access::REMOTE_WRITE)
                .map_err(|fault| Outcome::Refused(fault, None))?;
        }
        if frame.is(IMM) && !self.can_receive() {
            let fault = invalid(vendor::NO_RECEIVE_QUEUE);
            return Err(Outcome::Refused(fault, None));
        }
        Ok(())
    }

    /// Checks that a receive is posted.
    fn have_receive(&mut self, ctx: &mut Ctx) -> Result<(), Outcome> {
        if let Some(srq) = self.srq {
            return self.have_shared(ctx, srq);
        }
        if self.rq.is_none() {
            let fault = invalid(vendor::NO_RECEIVE_QUEUE);
            return Err(Outcome::Refused(fault, None));
        }
        if !self.receives() {
            return Err(Outcome::Starved);
        }
        self.resp.starved = false;
        match &self.rq {
            Some(rq) if rq.posted.wrapping_sub(rq.next) > 1 << rq.attr.log_entries => {
                let ours = Fault::new(Syndrome::LOCAL_QP_OP, vendor::RECORD);
                Err(Outcome::Refused(REMOTE_OP, Some(ours)))
            }
            _ => Ok(()),
        }
    }

    /// Checks the rights of the other end on `len` bytes that it named.
    fn may(&self, mrs: &MrTable, frame: &Frame, len: u32, need: Access) -> Result<(), Fault> {
        if !self.access.contains(need) {
            return Err(refused(vendor::QP_ACCESS));
        }
        mrs.find(self.pd, frame.rkey, need, frame.va, len.into())
            .map(|_| ())
            .map_err(refused)
    }

    /// The target of a READ, if the other end may read it.
    fn readable(&self, mrs: &MrTable, frame: &Frame) -> Result<Target, Outcome> {
        let at = Target {
            va: frame.va,
            rkey: frame.rkey,
            len: frame.total,
        };
        if at.len > 0 {
            self.may(mrs, frame, at.len, Access::REMOTE_READ)
                .map_err(|fault| Outcome::Refused(fault, None))?;
        }
        Ok(at)
    }

    pub(super) fn queue_read(&mut self, mrs: &MrTable, frame: &Frame) -> Outcome {
        let at = match self.readable(mrs, frame) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        self.queue(frame, packets(at.len, self.mtu_log), |psn| Answer::Read {
            psn,
            at,
            sent: 0,
            again: false,
        })
    }

    /// Queues a READ once more.
    pub(super) fn read_again(&mut self, mrs: &MrTable, frame: &Frame) -> Outcome {
        let at = match self.readable(mrs, frame) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        self.resp.again += 1;
        self.resp.answers.push_back(Answer::Read {
            psn: frame.psn,
            at,
            sent: 0,
            again: true,
        });
        Outcome::Done
    }

    pub(super) fn queue_atomic(&mut self, mrs: &MrTable, frame: &Frame) -> Outcome {
        if !frame.va.is_multiple_of(8) {
            return Outcome::Refused(invalid(vendor::MISALIGNED), None);
        }
        if let Err(fault) = self.may(mrs, frame, 8, Access::REMOTE_ATOMIC) {
            return Outcome::Refused(fault, None);
        }
        let at = Target {
            va: frame.va,
            rkey: frame.rkey,
            len: 8,
        };
        let op = match frame.kind {
            Kind::CompareSwap => AtomicOp::CompareSwap {
                compare: frame.compare,
                swap: frame.operand,
            },
            _ => AtomicOp::FetchAdd { add: frame.operand },
        };
        let was = None;
        self.queue(frame, 1, |psn| Answer::Atomic { psn, at, op, was })
    }

    fn queue(
        &mut self,
        frame: &Frame,
        packets: u32,
        answer: impl FnOnce(u32) -> Answer,
    ) -> Outcome {
        let resp = &mut self.resp;
        if resp.msg.is_some() {
            return Outcome::Refused(invalid(vendor::FRAMING), None);
        }
        if resp.reads >= resp.max_reads {
            return Outcome::Refused(invalid(vendor::READ_LIMIT), None);
        }
        resp.reads += 1;
        resp.expect = psn::add(frame.psn, packets);
        resp.answers.push_back(answer(frame.psn));
        Outcome::Done
    }
}
