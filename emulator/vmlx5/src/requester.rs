//! The sending half of a queue pair: fetches work queue entries, sends their messages, and
//! completes them in order as answers arrive.
//!
//! An entry that was fetched waits in `pending` until its message is answered. `cursor` tells
//! how many of those were sent; a responder that was not ready makes it go back, and the
//! entries are fetched from the ring again.

use std::collections::VecDeque;

use mlx5_prm::cqe::Success;
use mlx5_prm::opcode::{CqeOpcode, SendOpcode};
use mlx5_prm::syndrome::Syndrome;
use mlx5_prm::wqe::{Atomic, Data, Sge, WqeFlags, parse_send};

use crate::error::{Fault, vendor};
use crate::fabric::SendRefused;
use crate::frame::{FIRST, Frame, IMM, Kind, LAST, MAX_PAYLOAD, SOLICITED, seq};
use crate::nic::Ctx;
use crate::qp::{Qp, QpState, SqAttr, before};
use crate::sq::{Checks, Entry, MAX_WQE, Ring, gather, wants_answer};
use crate::wire::Wire;

/// Most entries of one queue that are fetched and not complete.
const MAX_PENDING: usize = 1024;

pub(crate) struct Requester {
    pub ring: Ring,
    start: u16,
    /// Index of the entry fetched next, and up to which the doorbell was rung.
    pub next: u16,
    pub rung: u16,
    /// Entries fetched and not completed, in order.
    pub pending: VecDeque<Pending>,
    /// How many of `pending` were sent.
    pub cursor: usize,
    /// Bytes sent of the message at `cursor`.
    sent: u32,
    /// The entry at `cursor` lies in `wqe`.
    loaded: bool,
    wqe: Box<[u8; MAX_WQE]>,
    /// Number of the next message.
    psn: u32,
    /// Every message before this number was answered.
    acked: u32,
    /// The number after the last message of which anything was ever sent. Not the same as
    /// that of `cursor`, which may have gone back.
    top: u32,
    max_rd_atomic: u8,
    /// Reads and atomics that wait for their answer, in order.
    reads: VecDeque<ReadCtx>,
    spare: Vec<Vec<Sge>>,
    /// The responder asked to wait.
    held: bool,
    /// What is wrong with the entry at `cursor`: reported once those before it are complete.
    fault: Option<Fault>,
    /// Entries fetched.
    pub fetched: u64,
}

/// An entry that was fetched.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub index: u16,
    pub opcode: SendOpcode,
    blocks: u8,
    flags: WqeFlags,
    /// The number of its message; if it has none, that of the next.
    seq: u32,
    /// It has a message. NOPs have none, nor has an entry that was malformed from the start.
    numbered: bool,
    total: u32,
}

struct ReadCtx {
    seq: u32,
    total: u32,
    got: u32,
    sges: Vec<Sge>,
}

/// How far a queue pair got in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There is nothing to do until something happens.
    Done,
    /// There is more to do.
    More,
    /// The fabric has no room.
    Full,
}

/// How much a queue pair may do in its turn.
pub(crate) struct Allowance {
    pub frames: u32,
    pub bytes: usize,
}

impl Allowance {
    pub fn spend(&mut self, bytes: usize) {
        self.frames = self.frames.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub fn spent(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }
}

impl Requester {
    pub fn new(sq: SqAttr, start: u16) -> Requester {
        Requester {
            ring: Ring {
                mem: sq.mem,
                offset: sq.offset,
                log_blocks: sq.log_blocks,
            },
            start,
            next: start,
            rung: start,
            pending: VecDeque::new(),
            cursor: 0,
            sent: 0,
            loaded: false,
            wqe: Box::new([0; MAX_WQE]),
            psn: 0,
            acked: 0,
            top: 0,
            max_rd_atomic: 0,
            reads: VecDeque::new(),
            spare: Vec::new(),
            held: false,
            fault: None,
            fetched: 0,
        }
    }

    pub fn reset(&mut self) {
        self.next = self.start;
        self.rung = self.start;
        self.pending.clear();
        self.stop();
        self.cursor = 0;
        while let Some(read) = self.reads.pop_front() {
            self.spare.push(read.sges);
        }
    }

    /// Drops what was under way of the entry at `cursor`.
    fn drop_current(&mut self) {
        self.sent = 0;
        self.loaded = false;
        self.fault = None;
    }

    fn stop(&mut self) {
        self.drop_current();
        self.held = false;
    }

    pub fn begin(&mut self, psn: u32, max_rd_atomic: u8) {
        self.psn = psn;
        self.acked = psn;
        self.top = psn;
        self.max_rd_atomic = max_rd_atomic;
    }

    /// The index up to which entries are done.
    pub fn done(&self) -> u16 {
        self.pending.front().map_or(self.next, |p| p.index)
    }

    /// True if (a part of) message `s` was sent and not answered.
    fn waits_for(&self, s: u32) -> bool {
        seq::after(self.acked, s) < seq::after(self.acked, self.top)
    }

    /// True if something was sent that was not answered.
    pub fn outstanding(&self) -> bool {
        self.acked != self.top
    }

    /// True if a read or atomic before message `s` waits for its answer.
    fn read_before(&self, s: u32) -> bool {
        self.reads.front().is_some_and(|r| before(r.seq, s))
    }

    /// Sends on from message `s`, which was sent before.
    fn go_back(&mut self, s: u32) {
        let unnumbered = |p: &Pending| !p.numbered && p.opcode != SendOpcode::NOP;
        if self.fault.is_some()
            && let Some(bad) = self.pending.pop_back_if(|p| unnumbered(p))
        {
            self.next = bad.index;
        }
        let found = self.pending.iter().position(|p| p.numbered && p.seq == s);
        self.cursor = found.unwrap_or(self.cursor).min(self.pending.len());
        self.stop();
    }
}

impl Qp {
    /// Sends what can be sent.
    pub fn pump(&mut self, ctx: &mut Ctx<'_>, wire: &mut Wire, may: &mut Allowance) -> Turn {
        loop {
            if self.state != QpState::Rts || self.sq.held {
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
                match self.transmit(ctx, wire, may) {
                    // A link that proved to be lost leaves work to flush.
                    Turn::More if self.state == QpState::Rts => continue,
                    turn => return turn,
                }
            }
            let sq = &self.sq;
            let fresh = sq.cursor == sq.pending.len();
            if fresh && (sq.next == sq.rung || sq.pending.len() >= MAX_PENDING) {
                return Turn::Done;
            }
            self.load(ctx, fresh);
        }
    }

    /// Fetches the entry at `cursor`: the next one if `fresh`, else once more.
    fn load(&mut self, ctx: &Ctx<'_>, fresh: bool) {
        let checks = Checks {
            mrs: ctx.mrs,
            pd: self.pd,
            qpn: self.number,
            max_rd_atomic: self.sq.max_rd_atomic,
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
            sq.fetched += 1;
            sq.push(index, entry);
        } else if let Some(p) = sq.pending.get(sq.cursor)
            && (p.opcode, p.total) != (entry.opcode, entry.total)
            && fault.is_none()
        {
            // Overwritten while it was still the NIC's.
            sq.loaded = false;
            sq.fault = Some(Fault::new(Syndrome::LOCAL_QP_OP, vendor::WQE_FORMAT));
        }
    }

    /// Sends the next frame of the entry at `cursor`.
    fn transmit(&mut self, ctx: &mut Ctx<'_>, wire: &mut Wire, may: &mut Allowance) -> Turn {
        let (Some(&p), Some(remote)) = (self.sq.pending.get(self.sq.cursor), self.remote) else {
            return Turn::Done;
        };
        let mut frame = self.frame(Kind::Send, remote, p.seq);
        let sq = &mut self.sq;
        if p.flags.fence && sq.read_before(p.seq) {
            return Turn::Done;
        }
        if p.opcode == SendOpcode::NOP {
            may.spend(0);
            sq.advance();
            self.retire(ctx);
            return Turn::More;
        }
        let answered = wants_answer(p.opcode);
        // Sent once already, and sent again because the responder was not ready.
        let again = sq.reads.back().is_some_and(|r| !before(r.seq, p.seq));
        if answered && !again && sq.reads.len() >= usize::from(sq.max_rd_atomic) {
            return Turn::Done;
        }
        let Ok(wqe) = parse_send(&sq.wqe[..]) else {
            return Turn::Done;
        };
        frame.total = p.total;
        frame.offset = sq.sent;
        if let Some(at) = wqe.remote {
            frame.va = at.addr;
            frame.rkey = at.rkey;
        }
        let mut len = 0;
        match wqe.atomic {
            Some(Atomic::CompareSwap { compare, swap }) => {
                frame.kind = Kind::CompareSwap;
                (frame.operand, frame.compare) = (swap, compare);
            }
            Some(Atomic::FetchAdd { add }) => {
                frame.kind = Kind::FetchAdd;
                frame.operand = add;
            }
            None if answered => frame.kind = Kind::Read,
            None => {
                len = (p.total - sq.sent).min(MAX_PAYLOAD as u32) as usize;
                let op = p.opcode;
                if op == SendOpcode::RDMA_WRITE || op == SendOpcode::RDMA_WRITE_IMM {
                    frame.kind = Kind::Write;
                }
                let imm = op == SendOpcode::RDMA_WRITE_IMM || op == SendOpcode::SEND_IMM;
                let last = sq.sent + len as u32 == p.total;
                for (flag, is) in [
                    (FIRST, sq.sent == 0),
                    (LAST, last),
                    (IMM, imm),
                    (SOLICITED, p.flags.solicited),
                ] {
                    frame.flags |= if is { flag } else { 0 };
                }
                frame.imm = wqe.ctrl.imm;
            }
        }
        let mut fault = None;
        let sent = wire.send(remote.peer, &frame, len, &mut |room| {
            fault = gather(&wqe, ctx.mrs, self.pd, sq.sent, room).err();
            fault.is_none()
        });
        match sent {
            Ok(()) => {}
            Err(SendRefused::Full) => return Turn::Full,
            Err(SendRefused::Lost) => {
                let lost = Fault::new(Syndrome::TRANSPORT_RETRY, vendor::LINK_LOST);
                self.fail_front(ctx, lost);
                return Turn::More;
            }
            Err(SendRefused::Unfilled) => {
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
                seq: p.seq,
                total: p.total,
                got: 0,
                sges,
            });
        }
        if !before(p.seq, sq.top) {
            sq.top = seq::next(p.seq);
        }
        sq.sent += len as u32;
        if answered || frame.is(LAST) {
            sq.advance();
        }
        Turn::More
    }

    /// Completes what is answered, in order.
    fn retire(&mut self, ctx: &mut Ctx<'_>) {
        while let Some(&p) = self.sq.pending.front() {
            let answered = p.numbered && before(p.seq, self.sq.acked);
            if !answered && (p.numbered || self.sq.cursor == 0) {
                break;
            }
            self.sq.pending.pop_front();
            if self.sq.cursor > 0 {
                self.sq.cursor -= 1;
            } else {
                // It was to be sent again, and need not.
                self.sq.drop_current();
            }
            if !p.flags.signaled {
                continue;
            }
            let say = Success {
                opcode: CqeOpcode::REQ,
                qpn: self.number,
                uidx: self.uidx,
                send_opcode: p.opcode,
                byte_cnt: if wants_answer(p.opcode) { p.total } else { 0 },
                wqe_counter: p.index,
                timestamp: ctx.now.as_nanos(),
                ..Success::default()
            };
            ctx.succeed(self.send_cq, &say);
        }
    }

    /// Reports the oldest entry as failed, and goes into ERR.
    pub fn fail_front(&mut self, ctx: &mut Ctx<'_>, fault: Fault) {
        self.sq.stop();
        if let Some(p) = self.sq.pending.pop_front() {
            self.sq.cursor = self.sq.cursor.saturating_sub(1);
            self.send_error(ctx, p.index, p.opcode, fault);
        }
        self.enter_error();
    }

    /// Message `s` failed: those before it are done, and it is reported.
    fn fail_message(&mut self, ctx: &mut Ctx<'_>, s: u32, fault: Fault) {
        self.sq.acked = s;
        self.retire(ctx);
        self.fail_front(ctx, fault);
    }

    /// Takes an answer from the other end.
    pub fn answer(&mut self, ctx: &mut Ctx<'_>, frame: &Frame, payload: &[u8]) {
        if self.state != QpState::Rts {
            return;
        }
        let s = frame.seq;
        let waits = self.sq.waits_for(s);
        let bad = Fault::new(Syndrome::BAD_RESP, vendor::BAD_ANSWER);
        let gone = Fault::new(Syndrome::TRANSPORT_RETRY, vendor::PEER_GONE);
        match frame.kind {
            Kind::Ack if waits => {
                if self.sq.read_before(seq::next(s)) {
                    self.fail_front(ctx, bad);
                    return;
                }
                self.sq.acked = seq::next(s);
                // It listens: a message that crossed its word to wait was taken after all.
                self.sq.held = false;
                self.retire(ctx);
            }
            Kind::Nak if waits => {
                if self.sq.read_before(s) {
                    self.fail_front(ctx, bad);
                    return;
                }
                let fault = Fault::new(Syndrome(frame.code), frame.vendor);
                self.fail_message(ctx, s, fault);
            }
            Kind::ReadData | Kind::AtomicData if waits => self.take(ctx, frame, payload),
            Kind::NotReady if waits => {
                self.sq.go_back(s);
                self.sq.held = true;
            }
            Kind::Resume if waits => self.sq.go_back(s),
            // It waits for something that was never sent, or long ago: another connection's.
            Kind::Resume if self.sq.outstanding() && s != self.sq.top => {
                self.fail_front(ctx, gone);
            }
            // Nothing to send again, but it listens again.
            Kind::Resume => self.sq.held = false,
            Kind::Gone if waits => self.fail_front(ctx, gone),
            // Late word from a former connection.
            _ => {}
        }
    }

    /// Takes (part of) what a read or atomic brings.
    fn take(&mut self, ctx: &mut Ctx<'_>, frame: &Frame, payload: &[u8]) {
        let bad = Fault::new(Syndrome::BAD_RESP, vendor::BAD_ANSWER);
        let s = frame.seq;
        let operand = frame.operand.to_ne_bytes();
        let sq = &mut self.sq;
        let atomic = frame.kind == Kind::AtomicData;
        let (bytes, last) = match atomic {
            true => (&operand[..], true),
            false => (payload, frame.is(LAST)),
        };
        let Some(read) = sq.reads.front_mut().filter(|r| r.seq == s) else {
            self.fail_front(ctx, bad);
            return;
        };
        let fits = atomic && read.total == 8 || frame.total == read.total;
        if !fits || !atomic && frame.offset != read.got {
            self.fail_front(ctx, bad);
            return;
        }
        let put = ctx
            .mrs
            .scatter(self.pd, &read.sges, read.got.into(), bytes, last);
        read.got += bytes.len() as u32;
        if let Err(why) = put {
            let fault = Fault::new(Syndrome::LOCAL_PROT, why);
            self.fail_message(ctx, s, fault);
            return;
        }
        if last {
            if let Some(read) = sq.reads.pop_front() {
                sq.spare.push(read.sges);
            }
            sq.acked = seq::next(s);
            self.retire(ctx);
        }
    }
}

impl Requester {
    fn push(&mut self, index: u16, entry: Entry) {
        let numbered = self.loaded && entry.opcode != SendOpcode::NOP;
        self.pending.push_back(Pending {
            index,
            opcode: entry.opcode,
            blocks: entry.blocks,
            flags: entry.flags,
            seq: self.psn,
            numbered,
            total: entry.total,
        });
        self.next = index.wrapping_add(u16::from(entry.blocks));
        if numbered {
            self.psn = seq::next(self.psn);
        }
    }

    /// The entry at `cursor` is sent: on to the next.
    fn advance(&mut self) {
        self.cursor += 1;
        self.sent = 0;
        self.loaded = false;
    }
}
