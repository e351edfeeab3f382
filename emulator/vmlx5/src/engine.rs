//! The step of a NIC: frames, doorbells, timeouts, and turns of the queue pairs.

use gds_step::{Awaits, Machine, Step, Time};
use mlx5_prm::doorbell;

use crate::attr::Service;
use crate::dma::Dma;
use crate::error::vendor;
use crate::event::{Source, qp_event};
use crate::fabric::{Budget, PeerId, SendRefused};
use crate::frame::{FIRST, Frame, FrameError, FrameHeader, Kind, nak};
use crate::nic::{Core, Nic, REGISTERS};
use crate::object::QpState;
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::qp::requester::{Allowance, Turn};
use crate::timer::earliest;
use crate::wire::Wire;

/// The budget of frames from the fabric in one step.
const RECEIVE: Budget = Budget {
    frames: 256,
    bytes: 512 * 1024,
};
/// How many queue pairs get a turn in a step, and how much each may send in its turn.
const TURNS: usize = 64;
const TURN_FRAMES: u32 = 32;
const TURN_BYTES: usize = 128 * 1024;
/// The wait that requesters observe for a queue pair that is not ready yet: 0.64 ms.
const NOT_READY_TIMER: u8 = 12;

impl Nic {
    /// Applies the due faults of the NIC itself. Returns whether the NIC still works.
    #[cold]
    fn survives(&mut self, now: Time) -> bool {
        if self.wire.fatal(now) {
            self.fail();
            return false;
        }
        while let Some((port, up)) = self.wire.port_edge(now) {
            // A port that does not exist is ignored.
            let _ = self.set_port(port, up);
        }
        true
    }
}

impl Machine for Nic {
    fn step(&mut self, now: Time) -> Step {
        if self.wire.is_faulty() && !self.survives(now) {
            return Step::IdleUntil(None);
        }
        let Nic { core, wire } = self;
        core.ctx.now = now;
        core.down = wire.down;
        let deadline = wire.step(now);
        let mut busy = core.pick_up_doorbells();
        busy |= wire.receive(RECEIVE, &mut |peer, header, payload| {
            core.take(peer, header, payload)
        }) > 0;
        busy |= self.drop_lost_links();
        let Nic { core, wire } = self;
        busy |= core.look_at_clocks(wire);
        busy |= core.read_receive_records();
        busy |= core.ctx.disorder.is_some() && core.place_late();
        busy |= core.send_strays(wire);
        busy |= core.give_turns(wire);
        if core.ctx.cq_failed {
            core.fail_users_of_cqs();
            busy = true;
        }
        core.tell_of_srqs();
        wire.flush();
        if busy || wire.pending() {
            return Step::Progress;
        }
        let next = earliest(deadline, core.timers.deadline());
        Step::IdleUntil(match &core.ctx.disorder {
            Some(disorder) if disorder.next != Time::NEVER => earliest(next, Some(disorder.next)),
            _ => next,
        })
    }

    fn name(&self) -> String {
        self.core.config.name.clone()
    }

    /// The CPU rings behind a doorbell; another device does not.
    fn awaits(&self) -> Awaits {
        Awaits::Devices
    }
}

/// Reads and clears a doorbell register. Returns true if a doorbell was written.
///
/// Two 32-bit stores may write both halves of a register, so any bit counts. A load is cheaper than
/// a swap, which takes the line from the writer of the doorbell.
#[inline]
fn emptied(mem: &dyn Dma, at: u64) -> bool {
    mem.load64(at).is_ok_and(|v| v != 0) && mem.swap64(at, 0).is_ok_and(|v| v != 0)
}

impl Core {
    /// Reads and clears every doorbell register. Where a doorbell was written, reads the records of
    /// the queue pairs and completion queues bound to the page.
    fn pick_up_doorbells(&mut self) -> bool {
        let mut any = false;
        for (_, uar) in self.uars.iter_mut() {
            if !uar.cqs.is_empty() && emptied(&*uar.mem, uar.offset + doorbell::CQ_ARM as u64) {
                for &slot in &uar.cqs {
                    self.ctx.raise_completion(slot);
                }
                any = true;
            }
            if uar.users.is_empty() {
                continue;
            }
            let mut rung = false;
            for register in REGISTERS {
                rung |= emptied(&*uar.mem, uar.offset + register);
            }
            if !rung {
                continue;
            }
            self.doorbells += 1;
            for &slot in &uar.users {
                if let Some(qp) = self.qps.at(slot)
                    && qp.ring()
                    && !qp.queued
                {
                    qp.queued = true;
                    self.ready.push_back(slot);
                }
            }
            any = true;
        }
        any
    }

    /// Handles a received frame.
    fn take(
        &mut self,
        peer: PeerId,
        header: &FrameHeader,
        payload: &[u8],
    ) -> Result<(), FrameError> {
        let frame = header.decode(payload.len())?;
        let request = frame.kind.is_request();
        let down = self.down;
        let slot = self.qps.slot(frame.dst_qpn);
        let Some((slot, (qp, ctx))) = slot.and_then(|s| Some((s, self.qp(s)?))) else {
            self.dropped += 1;
            return Ok(());
        };
        if down != 0 && down >> (qp.port() - 1) & 1 != 0 {
            self.dropped += 1;
            return Ok(());
        }
        match qp.state {
            _ if frame.service != qp.service as u8 => self.dropped += 1,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe if qp.ud.is_some() => {
                let taken = qp.take_datagram(ctx, &frame, payload);
                let failed = qp.state == QpState::Err;
                self.dropped += u64::from(!taken);
                if failed {
                    self.schedule(slot);
                }
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
                if qp.is_from_partner(peer, &frame) =>
            {
                if request {
                    if !qp.request(ctx, &frame, payload) && qp.events == 0 {
                        return Ok(());
                    }
                } else {
                    qp.answer(ctx, &frame, payload);
                }
                self.schedule(slot);
            }
            QpState::Reset | QpState::Init if qp.patient && qp.service == Service::Rc => {
                self.put_off(peer, &frame)
            }
            _ => self.dropped += 1,
        }
        Ok(())
    }

    /// Answers a request to a queue pair before RTR with an RNR NAK.
    fn put_off(&mut self, peer: PeerId, frame: &Frame) {
        self.dropped += 1;
        if frame.kind.is_request() && (!frame.kind.carries() || frame.is(FIRST)) {
            let answer = Frame::new(Kind::Nak, frame.src_qpn, frame.dst_qpn, frame.psn);
            let code = nak::RNR | NOT_READY_TIMER;
            let vendor = vendor::NOT_READY;
            self.stray(
                peer,
                Frame {
                    code,
                    vendor,
                    ..answer
                },
            );
        }
    }

    /// Handles the queue pairs whose timeout expired.
    fn look_at_clocks(&mut self, wire: &mut Wire) -> bool {
        if self.ctx.now < self.timers.next {
            return false;
        }
        self.timers.next = Time::NEVER;
        let (mut any, mut i) = (false, 0);
        while let Some(&slot) = self.timers.listed.get(i) {
            let now = self.ctx.now;
            if let Some((qp, ctx)) = self.qp(slot)
                && qp.sq.deadline.is_some_and(|t| t <= now)
            {
                qp.time_is_up(ctx);
                if let Some(to) = qp.remote.filter(|_| qp.sends()) {
                    wire.relink(to.node, to.peer);
                }
                any = true;
                self.schedule(slot);
            }
            let deadline = self.qps.at(slot).and_then(|qp| {
                qp.timed = qp.sq.deadline.is_some();
                qp.sq.deadline
            });
            match deadline {
                Some(t) => {
                    self.timers.next = self.timers.next.min(t);
                    i += 1;
                }
                None => drop(self.timers.listed.swap_remove(i)),
            }
        }
        any
    }

    /// Reads the receive records of queue pairs that a message waits for, and of those that flush.
    fn read_receive_records(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while let Some(&slot) = self.watch.get(i) {
            let Some((qp, ctx)) = self.qp(slot) else {
                self.watch.swap_remove(i);
                continue;
            };
            let flushes = qp.state == QpState::Err && qp.receives();
            let ready = flushes || qp.fed(ctx);
            if !qp.wants_watch() {
                qp.watched = false;
                self.watch.swap_remove(i);
            } else {
                i += 1;
            }
            if ready {
                self.schedule(slot);
                any = true;
            }
        }
        any
    }

    /// Places the late pieces of WRITEs that are due.
    #[cold]
    fn place_late(&mut self) -> bool {
        let now = self.ctx.now;
        match &mut self.ctx.disorder {
            Some(disorder) if disorder.next <= now => disorder.next = Time::NEVER,
            _ => return false,
        }
        for slot in 0..self.qps.slots() {
            let Some((qp, ctx)) = self.qp(slot) else {
                continue;
            };
            let next = qp.place_late(&ctx.mrs, now);
            if let (Some(next), Some(disorder)) = (next, &mut ctx.disorder) {
                disorder.next = disorder.next.min(next);
            }
            if !qp.resp.answers.is_empty() {
                self.schedule(slot);
            }
        }
        true
    }

    fn send_strays(&mut self, wire: &mut Wire) -> bool {
        let mut any = false;
        for _ in 0..self.strays.len() {
            let Some((peer, frame)) = self.strays.pop_front() else {
                break;
            };
            match wire.send(peer, 1, &frame, 0, &mut |_| true) {
                Err(SendRefused::Full) => self.strays.push_back((peer, frame)),
                // The link is lost, so no peer can receive the frame.
                Ok(()) | Err(_) => any = true,
            }
        }
        any
    }

    /// Gives a turn to each queue pair with work, in order.
    fn give_turns(&mut self, wire: &mut Wire) -> bool {
        let mut any = false;
        for _ in 0..self.ready.len().min(TURNS) {
            let Some(slot) = self.ready.pop_front() else {
                break;
            };
            let Some((qp, ctx)) = self.qp(slot) else {
                continue;
            };
            qp.queued = false;
            let mut may = Allowance {
                frames: TURN_FRAMES,
                bytes: TURN_BYTES,
            };
            let replied = qp.reply(ctx, wire, &mut may);
            let sent = if matches!(qp.state, QpState::Err | QpState::Sqe) {
                match qp.flush(ctx, &mut may.frames) {
                    true => Turn::More,
                    false => Turn::Done,
                }
            } else {
                qp.pump(ctx, wire, &mut may)
            };
            any |= may.frames < TURN_FRAMES || sent == Turn::More;
            self.heed_clock(slot);
            if replied != Turn::Done || sent != Turn::Done {
                self.schedule(slot);
            }
        }
        any
    }

    /// Puts the queue pairs that complete into a broken completion queue into ERR.
    fn fail_users_of_cqs(&mut self) {
        self.ctx.cq_failed = false;
        let mut broken = Vec::new();
        for slot in 0..self.ctx.cqs.slots() {
            if let Some(cq) = self.ctx.cqs.at(slot)
                && std::mem::take(&mut cq.fresh_failure)
            {
                broken.extend(self.ctx.cqs.number_at(slot));
                self.ctx.events.push(Source::Cq(slot));
            }
        }
        self.for_qps(|qp, _| {
            let hit = broken.contains(&qp.send_cq.0) || broken.contains(&qp.recv_cq.0);
            if hit && !matches!(qp.state, QpState::Reset | QpState::Err) {
                qp.events |= qp_event::FATAL;
                qp.enter_error();
            }
        });
    }

    /// Applies a function to every queue pair, and schedules a turn for each.
    fn for_qps(&mut self, mut act: impl FnMut(&mut Qp, &mut Ctx)) {
        for slot in 0..self.qps.slots() {
            if let Some((qp, ctx)) = self.qp(slot) {
                act(qp, ctx);
                self.schedule(slot);
            }
        }
    }
}
