//! Receives: a queue pair uses those of its own queue in place. It takes those of a shared queue
//! first, and then owns them until it uses them.

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
    /// Returns true if the queue pair can have receives.
    pub(super) fn can_receive(&self) -> bool {
        self.rq.is_some() || self.srq.is_some()
    }

    /// Returns true if a receive is posted.
    pub(super) fn receives_any(&mut self, ctx: &mut Ctx) -> bool {
        match self.srq {
            // Without the queue the message must fail, which it cannot do while it waits.
            Some(srq) => ctx.srqs.get_mut(srq.0).map_or(true, |srq| !srq.is_empty()),
            None => self.receives(),
        }
    }

    /// Takes a receive of the shared queue, unless one is taken already: an unreliable message
    /// whose rest was lost leaves its receive to the next message.
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

    /// Copies the scatter list of the posted receive into `entry`.
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

    /// In ERR: flushes the receive that was taken from the shared queue, and raises, once, the
    /// event for the last receive. The shared queue keeps the receives that were not taken.
    pub fn end_shared(&mut self, ctx: &mut Ctx) {
        self.recv_error(ctx, Fault::FLUSH);
        if !self.resp.last_reported {
            self.resp.last_reported = true;
            self.events |= qp_event::LAST_WQE;
        }
    }
}
