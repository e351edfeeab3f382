//! Missing answers: timeouts, retransmission, and failure after the last retry.

use gds_step::Time;
use mlx5_prm::opcode::SendOpcode;
use mlx5_prm::syndrome::Syndrome;

use super::{Pending, Requester};
use crate::error::{Fault, vendor};
use crate::frame::psn;
use crate::mutant::{self, Mutant};
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::sq::wants_answer;

impl Requester {
    /// Starts the timeout for the packets that are sent now, unless it runs.
    #[inline]
    pub(super) fn start_clock(&mut self, now: Time) {
        if self.deadline.is_none() {
            self.deadline = self.timeout.map(|t| now + t);
        }
    }

    pub fn stop_clock(&mut self) {
        self.deadline = None;
    }

    /// Records progress: more packets are acknowledged.
    pub(super) fn progress(&mut self, now: Time) {
        if !mutant::on(Mutant::RetriesNeverReset) {
            self.retries_left = self.retry_cnt;
        }
        self.rnr_left = self.rnr_retry;
        self.loss_at = None;
        // The responder is ready: it accepted the message for which it had no receive.
        self.held = false;
        self.deadline = None;
        if self.outstanding() {
            self.start_clock(now);
        }
    }

    /// Stops sending until `then`, since the responder is not ready (RNR). Returns false if no
    /// retry remains.
    pub(super) fn hold(&mut self, then: Time) -> bool {
        if self.held {
            return true;
        }
        match self.rnr_left {
            0 => return false,
            7 => {}
            _ if mutant::on(Mutant::RnrUncounted) => {}
            _ => self.rnr_left -= 1,
        }
        self.go_back();
        self.held = true;
        self.deadline = Some(then);
        true
    }

    /// The responder is ready: ends the wait.
    pub(super) fn resume(&mut self, now: Time) {
        if self.held {
            self.held = false;
            self.deadline = None;
            self.start_clock(now);
        }
    }

    /// Retransmits from the first packet that is not acknowledged.
    fn go_back(&mut self) {
        let unnumbered = |p: &Pending| !p.numbered && p.opcode != SendOpcode::NOP;
        if self.fault.is_some()
            && let Some(bad) = self.pending.pop_back_if(|p| unnumbered(p))
        {
            self.next = bad.index;
        }
        let arrived = |p: &Pending| psn::after(p.psn, self.acked);
        let found = self.pending.iter().take(self.cursor + 1);
        let found = found
            .enumerate()
            .find(|(_, p)| p.numbered && arrived(p) < p.packets);
        let at = found.map(|(i, p)| (i, arrived(p), p.opcode));
        self.stop();
        if let Some((i, arrived, opcode)) = at {
            self.cursor = i;
            if !wants_answer(opcode) {
                self.sent = arrived << self.mtu_log;
            }
        }
    }
}

impl Qp {
    /// Handles the loss of packets from the first unacknowledged one on.
    pub(super) fn lost(&mut self, ctx: &mut Ctx) {
        let sq = &mut self.sq;
        if sq.held || sq.loss_at == Some(sq.acked) {
            return;
        }
        sq.loss_at = Some(sq.acked);
        self.try_again(ctx);
    }

    /// Retransmits unacknowledged packets, if a retry remains.
    fn try_again(&mut self, ctx: &mut Ctx) {
        let sq = &mut self.sq;
        if sq.retries_left == 0 {
            self.fail_front(ctx, Fault::new(Syndrome::TRANSPORT_RETRY, vendor::RETRY));
            return;
        }
        sq.retries_left -= 1;
        sq.go_back();
        sq.deadline = None;
        sq.start_clock(ctx.now);
    }

    /// Handles an expired timeout.
    pub fn time_is_up(&mut self, ctx: &mut Ctx) {
        if self.sq.held {
            self.sq.resume(ctx.now);
        } else if self.ud.is_some() && self.sends() {
            // A message that waits for room is tried a last time in its turn.
        } else if self.sends() {
            self.sq.loss_at = None;
            self.try_again(ctx);
        } else {
            self.sq.stop_clock();
        }
    }
}
