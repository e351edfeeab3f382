//! The send path: the NIC fetches entries and sends their messages, frame by frame.

use mlx5_prm::cqe::MAX_SCATTER;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Data, ParsedWqe, parse_send};

use super::{Allowance, MAX_PENDING, Pending, ReadCtx, Requester, Turn, WINDOW};
use crate::attr::Service;
use crate::error::{Fault, vendor};
use crate::fabric::SendRefused;
use crate::frame::{
    ACKREQ, FIRST, Frame, IMM, INVALIDATE, Kind, LAST, MAX_PAYLOAD, SOLICITED, packets, psn,
};
use crate::mutant::{self, Mutant};
use crate::object::QpState;
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::sq::{Checks, gather, is_atomic, wants_answer};
use crate::wire::Wire;

/// A long message requests an acknowledgement once per this number of packets.
const ACK_EVERY: u32 = 64;

impl Qp {
    /// Sends as much as possible.
    pub fn pump(&mut self, ctx: &mut Ctx, wire: &mut Wire, may: &mut Allowance) -> Turn {
        loop {
            self.note_rest();
            if !self.sends() || self.sq.held {
                return Turn::Done;
            }
            if let Some(fault) = self.sq.fault {
                if self.sq.cursor > 0 {
                    return Turn::Done;
                }
                self.fail_front(ctx, fault);
                return Turn::More;
            }
            if may.spent() {
                return Turn::More;
            }
            if self.sq.loaded {
                let turn = match self.ud {
                    None => self.transmit(ctx, wire, may),
                    Some(_) => self.transmit_datagram(ctx, wire, may),
                };
                match turn {
                    Turn::More => continue,
                    turn => return turn,
                }
            }
            let sq = &self.sq;
            let fresh = sq.cursor == sq.pending.len();
            let may_begin = self.state == QpState::Rts && sq.pending.len() < MAX_PENDING;
            if fresh && (sq.next == sq.rung || !may_begin) {
                return Turn::Done;
            }
            self.load(ctx, fresh);
        }
    }

    /// Fetches the entry at `cursor`: a new one if `fresh`, otherwise once more.
    fn load(&mut self, ctx: &Ctx, fresh: bool) {
        let checks = Checks {
            mrs: &ctx.mrs,
            pd: self.pd,
            qpn: self.number,
            max_rd_atomic: self.sq.max_rd_atomic,
            service: self.service,
        };
        let sq = &mut self.sq;
        let (index, left) = match sq.pending.get(sq.cursor) {
            Some(p) => (p.index, u16::from(p.blocks)),
            None => (sq.next, sq.rung.wrapping_sub(sq.next)),
        };
        let fetched = sq.ring.fetch(index, left, &mut sq.wqe, &checks);
        let (entry, fault) = match fetched {
            Ok(entry) => (entry, None),
            Err((entry, fault)) => (entry, Some(fault)),
        };
        sq.loaded = fault.is_none();
        sq.fault = fault;
        if fresh {
            sq.push(index, entry);
        } else if let Some(p) = sq.pending.get(sq.cursor)
            && (p.opcode, p.total) != (entry.opcode, entry.total)
            && fault.is_none()
        {
            // The host overwrote the entry while the NIC still owned it.
            sq.loaded = false;
            sq.fault = Some(Fault::new(Syndrome::LOCAL_QP_OP, vendor::WQE_FORMAT));
        }
    }

    /// Sends the next frame of the entry at `cursor`.
    fn transmit(&mut self, ctx: &mut Ctx, wire: &mut Wire, may: &mut Allowance) -> Turn {
        let (Some(&p), Some(remote)) = (self.sq.pending.get(self.sq.cursor), self.remote) else {
            return Turn::Done;
        };
        let mut frame = self.frame(Kind::Send, remote, p.psn);
        let sq = &mut self.sq;
        if p.flags.fence && sq.read_before(p.psn) && !mutant::on(Mutant::FenceIgnored) {
            return Turn::Done;
        }
        if p.opcode == SendOpcode::NOP {
            may.spend(0);
            sq.advance();
            self.retire(ctx);
            return Turn::More;
        }
        let answered = wants_answer(p.opcode);
        // A retransmission: the message, or its answer, was lost.
        let again = sq.reads.back().is_some_and(|r| !psn::before(r.psn, p.psn));
        if answered && !again && sq.reads.len() >= usize::from(sq.max_rd_atomic) {
            return Turn::Done;
        }
        sq.start_clock(ctx.now);
        let Ok(wqe) = parse_send(&sq.wqe[..]) else {
            return Turn::Done;
        };
        let len = sq.describe(&mut frame, &p, &wqe);
        let end = match answered {
            true => psn::add(p.psn, p.packets),
            false => psn::add(frame.psn, packets(len as u32, sq.mtu_log)),
        };
        if frame.psn != sq.acked && psn::after(sq.acked, end) > WINDOW {
            return Turn::Done;
        }
        let mut fault = None;
        let sent = wire.send(remote.peer, remote.port, &frame, len, &mut |room| {
            fault = gather(&wqe, &ctx.mrs, self.pd, sq.sent, room).err();
            fault.is_none()
        });
        match sent {
            Ok(()) => {}
            Err(SendRefused::Full) => return Turn::Full,
            Err(SendRefused::Lost | SendRefused::Unfilled) => {
                sq.loaded = false;
                sq.fault = fault;
                return Turn::More;
            }
        }
        may.spend(len);
        if answered && !again {
            let mut sges = sq.spare.pop().unwrap_or_default();
            sges.clear();
            sges.extend(wqe.data().filter_map(|data| match data {
                Data::Sge(sge) => Some(sge),
                Data::Inline(_) => None,
            }));
            sq.reads.push_back(ReadCtx {
                psn: p.psn,
                packets: p.packets,
                atomic: is_atomic(p.opcode),
                total: p.total,
                got: 0,
                scattered: self.scatter.requester
                    && p.flags.signaled
                    && (1..=MAX_SCATTER as u32).contains(&p.total),
                sges,
            });
        }
        if !psn::before(end, sq.top) {
            sq.top = end;
        }
        sq.sent += len as u32;
        let done = answered || frame.is(LAST);
        if done {
            sq.advance();
        }
        if self.service == Service::Uc {
            // A message of an unreliable queue pair is complete when it is sent.
            sq.acked = end;
            if done {
                self.retire(ctx);
            }
        }
        Turn::More
    }
}

impl Requester {
    /// Makes `frame` the next frame of the entry at `cursor`; returns its payload bytes.
    #[inline]
    fn describe(&self, frame: &mut Frame, p: &Pending, wqe: &ParsedWqe<'_>) -> usize {
        frame.total = p.total;
        if let Some(at) = wqe.remote {
            frame.va = at.addr;
            frame.rkey = at.rkey;
        }
        match wqe.atomic {
            Some(Atomic::CompareSwap { compare, swap }) => {
                frame.kind = Kind::CompareSwap;
                (frame.operand, frame.compare) = (swap, compare);
                return 0;
            }
            Some(Atomic::FetchAdd { add }) => {
                frame.kind = Kind::FetchAdd;
                frame.operand = add;
                return 0;
            }
            None if p.opcode == SendOpcode::RDMA_READ => {
                frame.kind = Kind::Read;
                // A repeated READ requests only the missing bytes.
                if let Some(read) = self.reads.iter().find(|r| r.psn == p.psn) {
                    frame.psn = read.next(self.mtu_log);
                    frame.va = frame.va.wrapping_add(read.got.into());
                    frame.total -= read.got;
                }
                return 0;
            }
            None => {}
        }
        let len = (p.total - self.sent).min(MAX_PAYLOAD as u32);
        frame.offset = self.sent;
        frame.psn = psn::add(p.psn, self.sent >> self.mtu_log);
        let op = p.opcode;
        if op == SendOpcode::RDMA_WRITE || op == SendOpcode::RDMA_WRITE_IMM {
            frame.kind = Kind::Write;
        }
        let imm = op == SendOpcode::RDMA_WRITE_IMM || op == SendOpcode::SEND_IMM;
        let last = self.sent + len == p.total;
        let count = packets(len, self.mtu_log);
        let requests_ack = !last && frame.psn % ACK_EVERY + count >= ACK_EVERY;
        for (flag, is) in [
            (FIRST, self.sent == 0),
            (LAST, last),
            (IMM, imm),
            (SOLICITED, p.flags.solicited),
            (INVALIDATE, op == SendOpcode::SEND_INV),
            (ACKREQ, requests_ack),
        ] {
            frame.flags |= if is { flag } else { 0 };
        }
        frame.imm = wqe.ctrl.imm;
        len as usize
    }
}
