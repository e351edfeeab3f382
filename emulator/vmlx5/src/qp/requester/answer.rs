//! Handling of answers: acknowledgements, read data, and completion of entries in order.

use mlx5_prm::cqe::{MAX_SCATTER, Success};
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;

use crate::attr::Service;
use crate::error::{Fault, vendor};
use crate::frame::{Frame, Kind, LAST, nak, psn};
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::sq::wants_answer;
use crate::timer::rnr_delay;

const BAD: Fault = Fault::new(Syndrome::BAD_RESP, vendor::BAD_ANSWER);

impl Qp {
    /// Handles an answer from the other end.
    pub fn answer(&mut self, ctx: &mut Ctx, frame: &Frame, payload: &[u8]) {
        if !self.sends() || self.service != Service::Rc {
            return;
        }
        let waits = self.sq.waits_for(frame.psn);
        match frame.kind {
            Kind::Ack if waits => self.arrived(ctx, psn::add(frame.psn, 1)),
            Kind::Nak if waits => self.refused(ctx, frame),
            Kind::ReadData | Kind::AtomicData if waits => self.take(ctx, frame, payload),
            Kind::Hint if self.patient => self.sq.resume(ctx.now),
            // A late answer, to an earlier packet or from a former connection.
            _ => {}
        }
    }

    /// Acknowledges every packet before `upto`. Returns false if a read before it has no answer
    /// yet: that answer was lost, since answers arrive in order.
    fn acknowledge(&mut self, ctx: &mut Ctx, upto: u32) -> bool {
        let missing = self.sq.reads.front().map(|r| r.next(self.mtu_log));
        let missing = missing.filter(|&p| psn::before(p, upto));
        let acked = missing.unwrap_or(upto);
        if self.sq.acked != acked {
            self.sq.acked = acked;
            self.sq.progress(ctx.now);
            self.retire(ctx);
        }
        missing.is_none()
    }

    /// Handles an acknowledgement of all packets before `upto`.
    fn arrived(&mut self, ctx: &mut Ctx, upto: u32) {
        if !self.acknowledge(ctx, upto) {
            self.lost(ctx);
        }
    }

    /// Handles a NAK.
    fn refused(&mut self, ctx: &mut Ctx, frame: &Frame) {
        // A queue pair that is not ready cannot acknowledge packets.
        if frame.vendor != vendor::NOT_READY && !self.acknowledge(ctx, frame.psn) {
            self.lost(ctx);
            return;
        }
        let syndrome = match frame.code {
            nak::PSN => return self.lost(ctx),
            nak::INVALID => Syndrome::REMOTE_INVAL_REQ,
            nak::ACCESS => Syndrome::REMOTE_ACCESS,
            nak::OPERATION => Syndrome::REMOTE_OP,
            code => {
                if !self.sq.hold(ctx.now + rnr_delay(code)) {
                    self.fail_front(ctx, Fault::new(Syndrome::RNR_RETRY, vendor::RNR));
                }
                return;
            }
        };
        self.fail_front(ctx, Fault::new(syndrome, frame.vendor));
    }

    /// Handles (part of) the data of a read or atomic.
    fn take(&mut self, ctx: &mut Ctx, frame: &Frame, payload: &[u8]) {
        let operand = frame.operand.to_ne_bytes();
        let atomic = frame.kind == Kind::AtomicData;
        let (bytes, last) = match atomic {
            true => (&operand[..], true),
            false => (payload, frame.is(LAST)),
        };
        let log = self.mtu_log;
        let of = |p: u32| move |r: &&super::ReadCtx| psn::after(r.psn, p) < r.packets;
        let Some(read) = self.sq.reads.iter().find(of(frame.psn)) else {
            self.fail_front(ctx, BAD);
            return;
        };
        let fits = match atomic {
            true => read.atomic,
            false => !read.atomic && frame.mtu_log == log,
        };
        let ahead = psn::before(read.next(log), frame.psn);
        let rest = frame.total.wrapping_sub(frame.offset);
        if !fits || !ahead && !atomic && rest != read.total - read.got {
            self.fail_front(ctx, BAD);
            return;
        }
        // All packets before it arrived, except answers that were lost.
        let first = self.sq.reads.front().is_some_and(|r| r.psn == read.psn);
        if !self.acknowledge(ctx, frame.psn) || ahead || !first {
            self.lost(ctx);
            return;
        }
        let sq = &mut self.sq;
        let Some(read) = sq.reads.front_mut() else {
            return;
        };
        let put = if read.scattered {
            let mut brought = [0; MAX_SCATTER];
            let len = bytes.len().min(MAX_SCATTER);
            brought[..len].copy_from_slice(&bytes[..len]);
            sq.brought.push_back((read.psn, brought));
            Ok(())
        } else {
            let at = read.got.into();
            ctx.mrs.scatter(self.pd, &read.sges, at, bytes, last)
        };
        read.got += bytes.len() as u32;
        if let Err(why) = put {
            self.fail_front(ctx, Fault::new(Syndrome::LOCAL_PROT, why));
            return;
        }
        if last && let Some(read) = sq.reads.pop_front() {
            sq.spare.push(read.sges);
        }
        self.acknowledge(ctx, psn::add(frame.psn, frame.count));
    }

    /// Completes acknowledged entries, in order.
    pub(super) fn retire(&mut self, ctx: &mut Ctx) {
        while let Some(&p) = self.sq.pending.front() {
            let sq = &mut self.sq;
            let arrived = psn::after(p.psn, sq.acked);
            let done = p.numbered && arrived >= p.packets && !psn::before(sq.acked, p.psn);
            if !done && (p.numbered || sq.cursor == 0) {
                if p.numbered && sq.cursor == 0 && psn::before(p.psn, sq.acked) {
                    // The entry is being retransmitted; the acknowledged start can be skipped.
                    sq.sent = sq.sent.max((arrived << sq.mtu_log).min(p.total));
                }
                break;
            }
            sq.pending.pop_front();
            if sq.cursor > 0 {
                sq.cursor -= 1;
            } else {
                // The entry was due for retransmission, which is no longer needed.
                sq.drop_current();
            }
            if !p.flags.signaled {
                continue;
            }
            let content = Success {
                opcode: CqeOpcode::REQ,
                qpn: self.number,
                uidx: self.uidx,
                send_opcode: p.opcode,
                byte_cnt: if wants_answer(p.opcode) { p.total } else { 0 },
                wqe_counter: p.index,
                timestamp: ctx.now.as_nanos(),
                ..Success::default()
            };
            let its = |b: &mut (u32, _)| b.0 == p.psn && wants_answer(p.opcode);
            let brought = self.sq.brought.pop_front_if(its);
            let payload = brought
                .as_ref()
                .map(|(_, bytes)| &bytes[..(p.total as usize).min(MAX_SCATTER)]);
            ctx.succeed(self.send_cq, &content, payload);
        }
    }

    /// Reports the oldest entry as failed, and enters ERR.
    pub fn fail_front(&mut self, ctx: &mut Ctx, fault: Fault) {
        self.sq.stop();
        if let Some(p) = self.sq.pending.pop_front() {
            self.sq.cursor = self.sq.cursor.saturating_sub(1);
            self.send_error(ctx, p.index, p.opcode, fault);
        }
        self.enter_send_error();
    }
}
