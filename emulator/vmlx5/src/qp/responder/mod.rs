//! The receiving half of a queue pair: it handles requests in the order of their packets, each
//! once, and answers in order.
//!
//! Writes and sends are executed as their frames arrive (`place`). Reads and atomics wait in
//! `answers` and are executed in their turn (`answer`), one after the other. So a later write may
//! overtake them, as it may on the wire; a fence prevents this. A duplicate has no effect.

mod answer;
mod datagram;
pub(crate) mod late;
mod place;
mod shared;

use std::collections::VecDeque;

use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::Sge;

use crate::attr::Service;
use crate::error::{Fault, vendor};
use crate::event::qp_event;
use crate::frame::{ACKREQ, FIRST, Frame, Kind, LAST, nak, packets, psn};
use crate::mutant::{self, Mutant};
use crate::object::QpState;
use crate::qp::Ctx;
use crate::qp::Qp;

#[derive(Default)]
pub(crate) struct Responder {
    /// Number of the next packet.
    pub expect: u32,
    /// The message in progress: its first frame arrived, its last frame did not.
    pub msg: Option<Message>,
    /// The scatter list of the next receive, for the bytes of a SEND.
    sges: Vec<Sge>,
    /// The receive that was taken from a shared queue and is not used yet.
    pub taken: Option<u16>,
    /// The event for the last receive in ERR was raised.
    last_reported: bool,
    /// Answers to send, in order.
    pub answers: VecDeque<Answer>,
    /// Number of new reads and atomics in `answers`, and number of repeated reads.
    reads: u8,
    again: u8,
    pub max_reads: u8,
    /// A message found no receive and waits at the other end (RNR).
    pub starved: bool,
    /// A NAK for the missing packet was sent: no further NAK before the packet arrives.
    nak_sent: bool,
    pub min_rnr_timer: u8,
    /// Pieces of WRITEs that are not visible yet.
    pub late: Vec<late::Late>,
    /// An acknowledgement waits for the late pieces.
    ack_deferred: bool,
    /// The last atomics by packet, with their results: a duplicate must get the same result.
    replay: VecDeque<(u32, u64)>,
}

/// A message in progress.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    kind: Kind,
    total: u32,
    got: u32,
    va: u64,
    rkey: u32,
}

/// An answer for the other end.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Ack(u32),
    Nak {
        psn: u32,
        code: u8,
        vendor: u8,
    },
    Hint,
    Read {
        psn: u32,
        at: Target,
        sent: u32,
        again: bool,
    },
    Atomic {
        psn: u32,
        at: Target,
        op: AtomicOp,
        /// The old value, after the execution.
        was: Option<u64>,
    },
    /// The result of an atomic that was executed before.
    Found {
        psn: u32,
        value: u64,
    },
}

/// The bytes that the other end named.
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

/// Most answers of one queue pair that wait for room. Correct peers stay far below: reads are
/// limited, and consecutive acknowledgements are merged.
const MAX_ANSWERS: usize = 1024;

/// Numbers within this distance before the expected one are old, others are new.
const BEHIND: u32 = 1 << 23;

/// The fault that the other end gets when this side is at fault.
const REMOTE_OP: Fault = Fault::new(Syndrome::REMOTE_OP, vendor::RESPONDER);

const fn refused(why: u8) -> Fault {
    Fault::new(Syndrome::REMOTE_ACCESS, why)
}

const fn invalid(why: u8) -> Fault {
    Fault::new(Syndrome::REMOTE_INVAL_REQ, why)
}

/// The code of the NAK that reports `fault` to the other end.
fn code_of(fault: Fault) -> u8 {
    match fault.syndrome {
        Syndrome::REMOTE_INVAL_REQ => nak::INVALID,
        Syndrome::REMOTE_ACCESS => nak::ACCESS,
        _ => nak::OPERATION,
    }
}

/// The event of a queue pair that refuses a request.
fn event_of(code: u8) -> u8 {
    match code {
        nak::INVALID => qp_event::REQUEST,
        nak::ACCESS => qp_event::ACCESS,
        _ => qp_event::FATAL,
    }
}

/// The result of an arriving frame.
enum Outcome {
    /// The request was executed.
    Done,
    /// No receive is posted (RNR).
    Starved,
    /// The request is refused: the fault for the other end, and the fault for the receive if the
    /// receive is at fault.
    Refused(Fault, Option<Fault>),
}

impl Qp {
    /// Handles a request from the other end. Returns true if there are answers to send.
    pub fn request(&mut self, ctx: &mut Ctx, frame: &Frame, payload: &[u8]) -> bool {
        if self.resp.answers.len() >= MAX_ANSWERS {
            // No correct NIC lets this many answers wait.
            return false;
        }
        if std::mem::take(&mut self.fresh) && self.state == QpState::Rtr {
            self.events |= qp_event::COMM_EST;
        }
        if self.service == Service::Uc {
            self.take_unreliable(ctx, frame, payload);
            return self.state == QpState::Err;
        }
        let old = psn::after(frame.psn, self.resp.expect);
        let outcome = if old > BEHIND {
            self.place_all(&ctx.mrs);
            self.gap();
            Outcome::Done
        } else if frame.mtu_log != self.mtu_log {
            Outcome::Refused(invalid(vendor::MTU), None)
        } else if old > 0 && !(frame.kind.carries() && frame.count > old) {
            self.duplicate(ctx, frame)
        } else {
            self.resp.nak_sent = false;
            match frame.kind {
                Kind::Send | Kind::Write => self.place(ctx, frame, payload, old),
                Kind::Read => self.queue_read(&ctx.mrs, frame),
                _ => self.queue_atomic(&ctx.mrs, frame),
            }
        };
        if !matches!(outcome, Outcome::Done) {
            // A NAK acknowledges all packets before it.
            self.place_all(&ctx.mrs);
        }
        let resp = &mut self.resp;
        match outcome {
            Outcome::Done => {}
            Outcome::Starved => {
                resp.starved = true;
                resp.nak_sent = true;
                let code = nak::RNR | resp.min_rnr_timer & 31;
                resp.nak(code, vendor::RNR);
            }
            Outcome::Refused(theirs, ours) => {
                let code = code_of(theirs);
                resp.nak(code, theirs.vendor);
                match ours {
                    Some(fault) => self.recv_error(ctx, fault),
                    // No completion entry reports the fault.
                    None => self.events |= event_of(code),
                }
                self.enter_error();
            }
        }
        !self.resp.answers.is_empty()
    }

    /// Handles a frame of an unreliable connection. If a frame of a message is lost, the rest of
    /// the message is dropped.
    fn take_unreliable(&mut self, ctx: &mut Ctx, frame: &Frame, payload: &[u8]) {
        let resp = &mut self.resp;
        let follows = frame.psn == resp.expect && resp.msg.is_some();
        if !frame.is(FIRST) && !follows || !frame.kind.carries() || frame.mtu_log != self.mtu_log {
            resp.msg = None;
            return;
        }
        if frame.is(FIRST) {
            resp.msg = None;
        }
        match self.place(ctx, frame, payload, 0) {
            Outcome::Done => {}
            Outcome::Refused(_, Some(ours)) => {
                self.recv_error(ctx, ours);
                self.enter_error();
            }
            Outcome::Starved | Outcome::Refused(_, None) => self.resp.msg = None,
        }
        // An unreliable connection sends no acknowledgements.
        self.resp.answers.clear();
    }

    /// Handles a gap: a packet before this one did not arrive.
    fn gap(&mut self) {
        if !self.resp.nak_sent && !mutant::on(Mutant::NoNak) {
            self.resp.nak_sent = true;
            self.resp.nak(nak::PSN, 0);
        }
    }

    /// Handles a duplicate of a request.
    fn duplicate(&mut self, ctx: &Ctx, frame: &Frame) -> Outcome {
        let resp = &mut self.resp;
        match frame.kind {
            Kind::Send | Kind::Write => {
                if frame.is(LAST) || frame.is(ACKREQ) {
                    resp.ack();
                }
                Outcome::Done
            }
            Kind::Read => {
                let requested = packets(frame.total, self.mtu_log);
                let whole = psn::after(frame.psn, resp.expect) >= requested;
                let queued =
                    |a: &Answer| matches!(a, Answer::Read { psn, .. } if *psn == frame.psn);
                if !whole || resp.again >= resp.max_reads || resp.answers.iter().any(queued) {
                    return Outcome::Done;
                }
                self.read_again(&ctx.mrs, frame)
            }
            _ if mutant::on(Mutant::DuplicateCarriedOut) => {
                let expect = resp.expect;
                let outcome = self.queue_atomic(&ctx.mrs, frame);
                self.resp.expect = expect;
                outcome
            }
            _ => {
                let found = resp.replay.iter().find(|(psn, _)| *psn == frame.psn);
                if let Some(&(psn, value)) = found {
                    resp.answers.push_back(Answer::Found { psn, value });
                }
                Outcome::Done
            }
        }
    }

    /// Returns true, once, when a message that found no receive may be retried.
    pub fn fed(&mut self, ctx: &mut Ctx) -> bool {
        if !self.resp.starved || !self.receives_any(ctx) {
            return false;
        }
        self.resp.starved = false;
        if self.patient {
            self.resp.answers.push_back(Answer::Hint);
        }
        true
    }
}

impl Responder {
    /// Resets the state for a new connection; buffers keep their memory.
    pub fn begin(&mut self, expect: u32, max_reads: u8, min_rnr_timer: u8) {
        self.expect = expect;
        self.max_reads = max_reads;
        self.min_rnr_timer = min_rnr_timer;
        self.replay.reserve(max_reads.into());
    }

    pub fn reset(&mut self) {
        *self = Responder {
            sges: std::mem::take(&mut self.sges),
            ..Responder::default()
        };
    }

    /// Queues one acknowledgement of all packets that arrived, after all of them are placed.
    fn ack(&mut self) {
        if !self.late.is_empty() {
            self.ack_deferred = true;
            return;
        }
        let last = psn::add(self.expect, psn::MASK);
        if let Some(Answer::Ack(psn)) = self.answers.back_mut() {
            *psn = last;
        } else {
            self.answers.push_back(Answer::Ack(last));
        }
    }

    /// Queues a NAK of the expected packet.
    fn nak(&mut self, code: u8, vendor: u8) {
        let psn = self.expect;
        self.answers.push_back(Answer::Nak { psn, code, vendor });
    }

    fn forget_answers(&mut self) {
        self.answers.clear();
        (self.reads, self.again) = (0, 0);
    }
}
