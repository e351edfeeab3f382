//! Receives: those of a queue pair's own queue, which are used where they lie, and those of a
//! shared one, which are taken first and then belong to the queue pair until they are used up.

use mlx5_prm::wqe::SEGMENT;

use super::{Outcome, REMOTE_OP};
use crate::attr::RqAttr;
use crate::error::{Fault, vendor};
use crate::event::qp_event;
use crate::object::Srqn;
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::srq::Refused;

impl Qp {
    /// True if there can be receives.
    pub(super) fn can_receive(&self) -> bool {
        self.rq.is_some() || self.srq.is_some()
    }

    /// True if a receive is there.
    pub(super) fn receives_any(&mut self, ctx: &mut Ctx) -> bool {
        match self.srq {
            // Without the queue the message fails, which it cannot as long as it waits.
            Some(srq) => ctx.srqs.get_mut(srq.0).map_or(true, |srq| !srq.is_empty()),
            None => self.receives(),
        }
    }

    /// Takes a receive of the shared queue, unless one is taken: an unreliable message of which
    /// the rest was lost leaves its own to the next.
    pub(super) fn have_shared(&mut self, ctx: &mut Ctx, srq: Srqn) -> Result<(), Outcome> {
        if self.resp.taken.is_none() {
            let taken = ctx.take_shared(srq).map_err(|refused| match refused {
                Refused::Empty => Outcome::Starved,
                Refused::Failed(vendor) => {
                    let theirs = Fault {
                        vendor,
                        ..REMOTE_OP
                    };
                    Outcome::Refused(theirs, None)
                }
            })?;
            self.resp.taken = Some(taken);
        }
        self.resp.starved = false;
        Ok(())
    }

    /// Copies the list of the receive that is there into `entry`.
    ///
    /// # Errors
    /// A vendor syndrome.
    pub(super) fn fetch_receive<'e>(
        &self,
        ctx: &Ctx,
        entry: &'e mut [u8; 512],
    ) -> Result<&'e [u8], u8> {
        if let (Some(srq), Some(taken)) = (self.srq, self.resp.taken) {
            let srq = ctx.srqs.get(srq.0).map_err(|_| vendor::SRQ)?;
            let list = &mut entry[..srq.attr.stride as usize - SEGMENT];
            srq.read(taken, list)?;
            return Ok(list);
        }
        let rq = self.rq.as_ref().ok_or(vendor::NO_RECEIVE_QUEUE)?;
        let RqAttr {
            mem,
            offset,
            log_entries,
            stride,
        } = &rq.attr;
        let list = &mut entry[..*stride as usize];
        let slot = u64::from(rq.next) & ((1 << log_entries) - 1);
        let at = offset + slot * u64::from(*stride);
        mem.read(at, list).map_err(|_| vendor::MEMORY)?;
        Ok(list)
    }

    /// In ERR: flushes the receive that was taken of the shared queue, and tells, once, that
    /// there is none any more. Those that were not taken are others'.
    pub fn end_shared(&mut self, ctx: &mut Ctx) {
        self.recv_error(ctx, Fault::FLUSH);
        if !self.resp.told_last {
            self.resp.told_last = true;
            self.events |= qp_event::LAST_WQE;
        }
    }
}
