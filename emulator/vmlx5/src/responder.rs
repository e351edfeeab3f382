//! The receiving half of a queue pair: places what arrives, uses receives up, and answers in
//! order.
//!
//! Writes and sends are carried out as their frames arrive. Reads and atomics wait in
//! `answers` and are carried out when their turn comes, one after the other, so a later write
//! may overtake them, as it may on the wire: that is what the fence is for.

use std::collections::VecDeque;

use mlx5_prm::cqe::Success;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Sge, parse_recv};

use crate::error::{Fault, vendor};
use crate::fabric::SendRefused;
use crate::frame::{FIRST, Frame, IMM, Kind, LAST, MAX_PAYLOAD, SOLICITED, seq};
use crate::mr::{Access, MrTable, PdId, write};
use crate::nic::Ctx;
use crate::qp::{Qp, QpState};
use crate::requester::{Allowance, Turn};
use crate::wire::Wire;

#[derive(Default)]
pub(crate) struct Responder {
    /// Number of the next message.
    pub expect: u32,
    /// The message whose first frame arrived and whose last did not.
    pub msg: Option<Message>,
    /// Where the bytes of a SEND go: the list of the next receive.
    sges: Vec<Sge>,
    /// Answers to send, in order.
    pub answers: VecDeque<Answer>,
    /// Reads and atomics among them.
    reads: u8,
    pub max_reads: u8,
    /// A message found no receive and waits at the other end.
    pub starved: bool,
}

/// A message under way.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    kind: Kind,
    total: u32,
    got: u32,
    va: u64,
    rkey: u32,
}

/// What the other end shall hear.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Ack(u32),
    Nak(u32, Fault),
    NotReady(u32),
    Resume(u32),
    Hello,
    Gone(u32),
    Read {
        seq: u32,
        at: Target,
        sent: u32,
    },
    Atomic {
        seq: u32,
        at: Target,
        op: AtomicOp,
        /// What was there, once the operation is carried out.
        was: Option<u64>,
    },
}

/// Bytes that the other end named.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    va: u64,
    rkey: u32,
    len: u32,
}

#[derive(Clone, Copy)]
pub(crate) enum AtomicOp {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Most answers of one queue pair that wait for room. Sane peers stay far below: reads are
/// limited, and acknowledgements in a row are one.
const MAX_ANSWERS: usize = 1024;

/// What the other end is told when the fault is on this side.
const REMOTE_OP: Fault = Fault::new(Syndrome::REMOTE_OP, vendor::RESPONDER);

const fn refused(why: u8) -> Fault {
    Fault::new(Syndrome::REMOTE_ACCESS, why)
}

const fn invalid(why: u8) -> Fault {
    Fault::new(Syndrome::REMOTE_INVAL_REQ, why)
}

/// How an arriving frame was received.
enum Outcome {
    /// Carried out.
    Done,
    /// No receive for it.
    Starved,
    /// Refused: what the other end is told, and what the receive it found is told if it is
    /// the receive's fault.
    Refused(Fault, Option<Fault>),
}

impl Qp {
    /// Takes a request from the other end. True if there is something to answer.
    pub fn request(&mut self, ctx: &mut Ctx<'_>, frame: &Frame, payload: &[u8]) -> bool {
        if self.resp.answers.len() >= MAX_ANSWERS {
            // No sane NIC lets so many wait.
            return false;
        }
        if frame.seq != self.resp.expect {
            // What follows a message that was turned away, or late word from a former
            // connection.
            return false;
        }
        let outcome = match frame.kind {
            Kind::Send | Kind::Write => self.place(ctx, frame, payload),
            Kind::Read => self.queue_read(ctx.mrs, frame),
            _ => self.queue_atomic(ctx.mrs, frame),
        };
        match outcome {
            Outcome::Done => {}
            Outcome::Starved if self.resp.starved => return false,
            Outcome::Starved => {
                self.resp.starved = true;
                self.resp.answers.push_back(Answer::NotReady(frame.seq));
            }
            Outcome::Refused(theirs, ours) => {
                if let Some(fault) = ours {
                    self.recv_error(ctx, fault);
                }
                self.resp.answers.push_back(Answer::Nak(frame.seq, theirs));
                self.enter_error();
            }
        }
        !self.resp.answers.is_empty()
    }

    /// True, once, when a message that found no receive may come again.
    pub fn fed(&mut self) -> bool {
        if !self.resp.starved || !self.receives() {
            return false;
        }
        self.resp.starved = false;
        self.resp
            .answers
            .push_back(Answer::Resume(self.resp.expect));
        true
    }

    /// Places a frame of a SEND or WRITE.
    fn place(&mut self, ctx: &mut Ctx<'_>, frame: &Frame, payload: &[u8]) -> Outcome {
        if frame.is(FIRST) {
            self.resp.msg = None;
            let begun = match frame.kind {
                Kind::Send => self.begin_send(ctx.mrs, frame),
                _ => self.begin_write(ctx.mrs, frame),
            };
            if let Err(outcome) = begun {
                return outcome;
            }
            self.resp.msg = Some(Message {
                kind: frame.kind,
                total: frame.total,
                got: 0,
                va: frame.va,
                rkey: frame.rkey,
            });
        }
        let Some(msg) = &mut self.resp.msg else {
            // The rest of a message that was turned away.
            return Outcome::Done;
        };
        if (msg.kind, msg.total, msg.got) != (frame.kind, frame.total, frame.offset) {
            return Outcome::Done;
        }
        let last = frame.is(LAST);
        let at = u64::from(msg.got);
        if msg.kind == Kind::Send {
            let list = &self.resp.sges;
            if let Err(why) = ctx.mrs.scatter(self.pd, list, at, payload, last) {
                let ours = Fault::new(Syndrome::LOCAL_PROT, why);
                return Outcome::Refused(REMOTE_OP, Some(ours));
            }
        } else if !payload.is_empty() {
            let va = msg.va.wrapping_add(at);
            let need = Access::REMOTE_WRITE;
            let put = ctx
                .mrs
                .find(self.pd, msg.rkey, need, va, payload.len() as u64)
                .and_then(|(mem, offset)| write(mem, offset, payload, last));
            if let Err(why) = put {
                return Outcome::Refused(refused(why), None);
            }
        }
        msg.got += payload.len() as u32;
        if last {
            self.finish(ctx, frame);
        }
        Outcome::Done
    }

    /// A message is complete.
    fn finish(&mut self, ctx: &mut Ctx<'_>, frame: &Frame) {
        self.resp.msg = None;
        self.resp.expect = seq::next(frame.seq);
        self.resp.ack(frame.seq);
        let opcode = match (frame.kind, frame.is(IMM)) {
            (Kind::Send, false) => CqeOpcode::RESP_SEND,
            (Kind::Send, true) => CqeOpcode::RESP_SEND_IMM,
            (_, true) => CqeOpcode::RESP_WR_IMM,
            (_, false) => return,
        };
        let say = Success {
            opcode,
            byte_cnt: frame.total,
            imm: if frame.is(IMM) { frame.imm } else { [0; 4] },
            solicited: frame.is(SOLICITED),
            ..Success::default()
        };
        self.recv_success(ctx, say);
    }

    /// Finds the receive for a SEND.
    fn begin_send(&mut self, mrs: &MrTable, frame: &Frame) -> Result<(), Outcome> {
        self.have_receive()?;
        let own = |syndrome, why| Fault::new(syndrome, why);
        let fail = |fault| Outcome::Refused(REMOTE_OP, Some(fault));
        let (Some(rq), resp) = (self.rq.as_ref(), &mut self.resp) else {
            return Ok(());
        };
        let mut entry = [0; 512];
        let entry = &mut entry[..rq.stride as usize];
        let slot = u64::from(rq.next) & ((1 << rq.log_entries) - 1);
        rq.mem
            .read(rq.offset + slot * u64::from(rq.stride), entry)
            .map_err(|_| fail(own(Syndrome::LOCAL_QP_OP, vendor::MEMORY)))?;
        let list =
            parse_recv(entry).map_err(|_| fail(own(Syndrome::LOCAL_QP_OP, vendor::WQE_FORMAT)))?;
        resp.sges.clear();
        resp.sges.extend(list);
        let room: u64 = resp.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let total = u64::from(frame.total);
        if total > room {
            let ours = own(Syndrome::LOCAL_LENGTH, vendor::LENGTH);
            return Err(Outcome::Refused(invalid(vendor::LENGTH), Some(ours)));
        }
        let need = Access::LOCAL_WRITE;
        mrs.check(self.pd, need, resp.sges.iter().copied(), total)
            .map_err(|why| fail(own(Syndrome::LOCAL_PROT, why)))
    }

    /// Checks the target of a WRITE, and that its receive is there if it needs one.
    fn begin_write(&mut self, mrs: &MrTable, frame: &Frame) -> Result<(), Outcome> {
        if frame.total > 0 {
            self.may(mrs, frame, frame.total, Access::REMOTE_WRITE)
                .map_err(|fault| Outcome::Refused(fault, None))?;
        }
        if frame.is(IMM) {
            self.have_receive()
        } else {
            Ok(())
        }
    }

    /// Makes sure that a receive is posted.
    fn have_receive(&mut self) -> Result<(), Outcome> {
        if self.rq.is_none() {
            let fault = invalid(vendor::NO_RECEIVE_QUEUE);
            return Err(Outcome::Refused(fault, None));
        }
        if !self.receives() {
            return Err(Outcome::Starved);
        }
        match &self.rq {
            Some(rq) if rq.posted.wrapping_sub(rq.next) > 1 << rq.log_entries => {
                let ours = Fault::new(Syndrome::LOCAL_QP_OP, vendor::RECORD);
                Err(Outcome::Refused(REMOTE_OP, Some(ours)))
            }
            _ => Ok(()),
        }
    }

    /// Checks what the other end may do to `len` bytes that it named.
    fn may(&self, mrs: &MrTable, frame: &Frame, len: u32, need: Access) -> Result<(), Fault> {
        if !self.access.contains(need) {
            return Err(refused(vendor::QP_ACCESS));
        }
        mrs.find(self.pd, frame.rkey, need, frame.va, len.into())
            .map(|_| ())
            .map_err(refused)
    }

    fn queue_read(&mut self, mrs: &MrTable, frame: &Frame) -> Outcome {
        let at = Target {
            va: frame.va,
            rkey: frame.rkey,
            len: frame.total,
        };
        if at.len > 0
            && let Err(fault) = self.may(mrs, frame, at.len, Access::REMOTE_READ)
        {
            return Outcome::Refused(fault, None);
        }
        self.queue(frame.seq, |seq| Answer::Read { seq, at, sent: 0 })
    }

    fn queue_atomic(&mut self, mrs: &MrTable, frame: &Frame) -> Outcome {
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
        self.queue(frame.seq, |seq| Answer::Atomic {
            seq,
            at,
            op,
            was: None,
        })
    }

    fn queue(&mut self, s: u32, answer: impl FnOnce(u32) -> Answer) -> Outcome {
        let resp = &mut self.resp;
        if resp.reads >= resp.max_reads {
            return Outcome::Refused(invalid(vendor::READ_LIMIT), None);
        }
        resp.reads += 1;
        resp.expect = seq::next(s);
        resp.answers.push_back(answer(s));
        Outcome::Done
    }

    /// Sends answers as far as there is room.
    pub fn reply(&mut self, ctx: &Ctx<'_>, wire: &mut Wire, may: &mut Allowance) -> Turn {
        while let Some(&answer) = self.resp.answers.front() {
            if may.spent() {
                return Turn::More;
            }
            match self.send_answer(ctx.mrs, wire, may, answer) {
                Ok(true) => {
                    if matches!(answer, Answer::Read { .. } | Answer::Atomic { .. }) {
                        self.resp.reads -= 1;
                    }
                    self.resp.answers.pop_front();
                }
                Ok(false) => {}
                Err(SendRefused::Full) => return Turn::Full,
                // Nobody listens any more.
                Err(_) => self.resp.forget_answers(),
            }
        }
        Turn::Done
    }

    /// Sends (a part of) the first answer. True if that was all of it.
    fn send_answer(
        &mut self,
        mrs: &MrTable,
        wire: &mut Wire,
        may: &mut Allowance,
        answer: Answer,
    ) -> Result<bool, SendRefused> {
        let remote = self.remote.ok_or(SendRefused::Lost)?;
        let pd = self.pd;
        let (life, number) = (self.life, self.number);
        let frame = |kind, s| Frame {
            life,
            ..Frame::new(kind, remote.qpn, number, s)
        };
        let simple = |kind, s| (frame(kind, s), 0, None);
        let (frame, len, source) = match answer {
            Answer::Ack(s) => simple(Kind::Ack, s),
            Answer::NotReady(s) => simple(Kind::NotReady, s),
            Answer::Resume(s) => simple(Kind::Resume, s),
            Answer::Hello => simple(Kind::Hello, 0),
            Answer::Gone(s) => simple(Kind::Gone, s),
            Answer::Nak(s, fault) => {
                let mut nak = frame(Kind::Nak, s);
                (nak.code, nak.vendor) = (fault.syndrome.0, fault.vendor);
                (nak, 0, None)
            }
            Answer::Read { seq, at, sent } => {
                let mut data = frame(Kind::ReadData, seq);
                let len = (at.len - sent).min(MAX_PAYLOAD as u32);
                (data.total, data.offset) = (at.len, sent);
                data.flags |= if sent == 0 { FIRST } else { 0 };
                data.flags |= if sent + len == at.len { LAST } else { 0 };
                (data, len as usize, Some(at))
            }
            Answer::Atomic { seq, at, op, was } => {
                let value = match was.map_or_else(|| atomic(mrs, pd, at, op), Ok) {
                    Ok(value) => value,
                    Err(why) => {
                        self.refuse_first(seq, refused(why));
                        return Ok(false);
                    }
                };
                if let Some(Answer::Atomic { was, .. }) = self.resp.answers.front_mut() {
                    *was = Some(value);
                }
                let mut data = frame(Kind::AtomicData, seq);
                data.operand = value;
                (data, 0, None)
            }
        };
        let mut fault = None;
        let from = u64::from(frame.offset);
        let sent = wire.send(remote.peer, &frame, len, &mut |room| {
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
            self.refuse_first(frame.seq, refused(fault.unwrap_or(vendor::MEMORY)));
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

    /// The read or atomic whose turn it is cannot be carried out after all.
    fn refuse_first(&mut self, s: u32, fault: Fault) {
        self.resp.forget_answers();
        self.resp.answers.push_back(Answer::Nak(s, fault));
        let known = self.state == QpState::Err;
        self.enter_error();
        if known {
            self.resp.answers.push_back(Answer::Gone(self.resp.expect));
        }
    }
}

impl Responder {
    /// Queues an acknowledgement; it speaks for all before it.
    fn ack(&mut self, s: u32) {
        if let Some(Answer::Ack(last)) = self.answers.back_mut() {
            *last = s;
        } else {
            self.answers.push_back(Answer::Ack(s));
        }
    }

    /// Queues word of who speaks here, if it is not queued already.
    pub fn hello(&mut self) {
        let queued = |a: &Answer| matches!(a, Answer::Hello);
        if !self.answers.iter().any(queued) {
            self.answers.push_back(Answer::Hello);
        }
    }

    pub fn forget_answers(&mut self) {
        self.answers.clear();
        self.reads = 0;
    }
}

/// Carries an atomic operation out; returns what was there.
fn atomic(mrs: &MrTable, pd: PdId, at: Target, op: AtomicOp) -> Result<u64, u8> {
    let (mem, offset) = mrs.find(pd, at.rkey, Access::REMOTE_ATOMIC, at.va, 8)?;
    match op {
        AtomicOp::CompareSwap { compare, swap } => mem.compare_swap64(offset, compare, swap),
        AtomicOp::FetchAdd { add } => mem.fetch_add64(offset, add),
    }
    .map_err(|_| vendor::MEMORY)
}
