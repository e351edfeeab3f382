//! The send path of answers: reads and atomics are executed in their turn.

use super::{Answer, AtomicOp, Target, code_of, event_of, refused};
use crate::error::{Fault, vendor};
use crate::fabric::SendRefused;
use crate::frame::{FIRST, Frame, Kind, LAST, MAX_PAYLOAD, psn};
use crate::mr::{Access, MrTable};
use crate::mutant::{self, Mutant};
use crate::object::{PdId, QpState};
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::qp::requester::{Allowance, Turn};
use crate::wire::Wire;

impl Qp {
    /// Sends answers as long as there is room.
    pub fn reply(&mut self, ctx: &Ctx, wire: &mut Wire, may: &mut Allowance) -> Turn {
        while let Some(&answer) = self.resp.answers.front() {
            if may.spent() {
                return Turn::More;
            }
            match self.send_answer(&ctx.mrs, wire, may, answer) {
                Ok(true) => {
                    let resp = &mut self.resp;
                    match answer {
                        Answer::Read { again: true, .. } => resp.again -= 1,
                        Answer::Read { .. } | Answer::Atomic { .. } => resp.reads -= 1,
                        _ => {}
                    }
                    resp.answers.pop_front();
                }
                Ok(false) => {}
                Err(SendRefused::Full) => return Turn::Full,
                // The queue pair was never connected.
                Err(_) => self.resp.forget_answers(),
            }
        }
        Turn::Done
    }

    /// Sends (a part of) the first answer. Returns true if the answer is complete.
    fn send_answer(
        &mut self,
        mrs: &MrTable,
        wire: &mut Wire,
        may: &mut Allowance,
        answer: Answer,
    ) -> Result<bool, SendRefused> {
        let remote = self.remote.ok_or(SendRefused::Lost)?;
        let pd = self.pd;
        let (number, mtu_log) = (self.number, self.mtu_log);
        let frame = |kind, psn| Frame {
            mtu_log,
            ..Frame::new(kind, remote.qpn, number, psn)
        };
        if matches!(
            answer,
            Answer::Read { sent: 0, .. } | Answer::Atomic { was: None, .. }
        ) {
            self.place_all(mrs);
        }
        let (frame, len, source) = match answer {
            Answer::Ack(psn) => (frame(Kind::Ack, psn), 0, None),
            Answer::Hint => (frame(Kind::Hint, self.resp.expect), 0, None),
            Answer::Nak { psn, code, vendor } => {
                let mut nak = frame(Kind::Nak, psn);
                (nak.code, nak.vendor) = (code, vendor);
                (nak, 0, None)
            }
            Answer::Found { psn, value } => {
                let mut data = frame(Kind::AtomicData, psn);
                data.operand = value;
                (data, 0, None)
            }
            Answer::Read { psn, at, sent, .. } => {
                let mut data = frame(Kind::ReadData, psn::add(psn, sent >> mtu_log));
                let len = (at.len - sent).min(MAX_PAYLOAD as u32);
                (data.total, data.offset) = (at.len, sent);
                data.flags |= if sent == 0 { FIRST } else { 0 };
                data.flags |= if sent + len == at.len { LAST } else { 0 };
                (data, len as usize, Some(at))
            }
            Answer::Atomic { psn, at, op, was } => {
                let value = match was {
                    Some(value) => value,
                    None => match atomic(mrs, pd, at, op) {
                        Ok(value) => value,
                        Err(why) => {
                            self.refuse_first(psn, refused(why));
                            return Ok(false);
                        }
                    },
                };
                if was.is_none() {
                    self.resp.found(psn, value);
                }
                let mut data = frame(Kind::AtomicData, psn);
                data.operand = value;
                (data, 0, None)
            }
        };
        let mut fault = None;
        let from = u64::from(frame.offset);
        let sent = wire.send(remote.peer, remote.port, &frame, len, &mut |room| {
            let Some(at) = source else {
                return true;
            };
            let (va, len) = (at.va.wrapping_add(from), room.len() as u64);
            fault = mrs
                .find(pd, at.rkey, Access::REMOTE_READ, va, len)
                .and_then(|(mem, offset)| mem.read(offset, room).map_err(|_| vendor::MEMORY))
                .err();
            fault.is_none()
        });
        if sent == Err(SendRefused::Unfilled) {
            self.refuse_first(frame.psn, refused(fault.unwrap_or(vendor::MEMORY)));
            return Ok(false);
        }
        sent?;
        may.spend(len);
        if let Some(Answer::Read { at, sent, .. }) = self.resp.answers.front_mut() {
            *sent += len as u32;
            return Ok(*sent == at.len);
        }
        Ok(true)
    }

    /// Refuses the read or atomic whose turn it is.
    fn refuse_first(&mut self, psn: u32, fault: Fault) {
        let (code, vendor) = (code_of(fault), fault.vendor);
        self.resp.forget_answers();
        self.resp
            .answers
            .push_back(Answer::Nak { psn, code, vendor });
        if self.state != QpState::Err {
            self.events |= event_of(code);
            self.enter_error();
        }
    }
}

impl super::Responder {
    /// Keeps the result of the atomic whose turn it is.
    fn found(&mut self, psn: u32, value: u64) {
        if let Some(Answer::Atomic { was, .. }) = self.answers.front_mut() {
            *was = Some(value);
        }
        if self.replay.len() >= usize::from(self.max_reads) {
            self.replay.pop_front();
        }
        if !mutant::on(Mutant::ReplayMissing) {
            self.replay.push_back((psn, value));
        }
    }
}

/// Executes an atomic operation; returns the old value.
fn atomic(mrs: &MrTable, pd: PdId, at: Target, op: AtomicOp) -> Result<u64, u8> {
    let (mem, offset) = mrs.find(pd, at.rkey, Access::REMOTE_ATOMIC, at.va, 8)?;
    match op {
        AtomicOp::CompareSwap { compare, swap } => mem.compare_swap64(offset, compare, swap),
        AtomicOp::FetchAdd { add } => mem.fetch_add64(offset, add),
    }
    .map_err(|_| vendor::MEMORY)
}
