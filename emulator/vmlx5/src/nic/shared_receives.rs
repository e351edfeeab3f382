//! Control operations on shared receive queues, and their events.

use super::{Core, Nic};
use crate::error::NicError;
use crate::event::{self, Event, Source};
use crate::object::Srqn;
use crate::srq::{Srq, SrqAttr, SrqInfo};

impl Nic {
    /// Creates a shared receive queue. Its entries must form a list already: each entry names the
    /// next one, from the first entry on.
    ///
    /// # Errors
    /// Its domain is unknown, its bytes are not inside the memory, it is too large, its limit
    /// exceeds its size, or the limit of shared receive queues is reached.
    pub fn create_srq(&mut self, attr: SrqAttr) -> Result<Srqn, NicError> {
        let core = &mut self.core;
        let pd = attr.pd;
        core.pds.get(pd.0)?;
        let srq = Srq::new(attr, &core.config)?;
        let number = core.ctx.srqs.insert(|_| srq)?;
        core.pds.count_users(pd.0, 1);
        core.reserve_events();
        core.ctx.srq_news = true;
        core.tell_of_srqs();
        Ok(Srqn(number))
    }

    /// Sets the limit of a shared receive queue. The NIC raises an event when fewer receives are
    /// posted than the limit, immediately if fewer are posted already, and then clears the limit.
    /// Zero: no limit.
    ///
    /// # Errors
    /// The queue does not exist, or the limit exceeds its size.
    pub fn modify_srq(&mut self, srq: Srqn, limit: u16) -> Result<(), NicError> {
        self.core.ctx.srqs.get_mut(srq.0)?.arm(limit)?;
        self.core.ctx.srq_news = true;
        self.core.tell_of_srqs();
        Ok(())
    }

    /// Returns the status of a shared receive queue.
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn query_srq(&self, srq: Srqn) -> Result<SrqInfo, NicError> {
        let srqs = &self.core.ctx.srqs;
        Ok(srqs.get(srq.0)?.info(srqs.users(srq.0)))
    }

    /// Removes a shared receive queue and its receives, without completions.
    ///
    /// # Errors
    /// The queue does not exist, or queue pairs use it.
    pub fn destroy_srq(&mut self, srq: Srqn) -> Result<(), NicError> {
        let core = &mut self.core;
        let (slot, gone) = core.ctx.srqs.remove(srq.0)?;
        core.ctx.events.forget(Source::Srq(slot));
        core.pds.count_users(gone.attr.pd.0, -1);
        Ok(())
    }
}

impl Core {
    /// Puts shared receive queues with pending events into the event queue.
    pub fn tell_of_srqs(&mut self) {
        if !std::mem::take(&mut self.ctx.srq_news) {
            return;
        }
        for (slot, srq) in self.ctx.srqs.iter_mut() {
            if srq.events != 0 && !srq.telling {
                srq.telling = true;
                self.ctx.events.push(Source::Srq(slot));
            }
        }
    }

    /// The next event of the shared receive queue in a slot.
    pub(super) fn srq_event(&mut self, slot: u32) -> Option<Event> {
        let srqn = Srqn(self.ctx.srqs.number_at(slot)?);
        let srq = self.ctx.srqs.at(slot)?;
        let bit = srq.events & srq.events.wrapping_neg();
        srq.events &= !bit;
        srq.telling = srq.events != 0;
        if srq.telling {
            self.ctx.events.again(Source::Srq(slot));
        }
        (bit != 0).then(|| event::of_srq(bit, srqn, srq.attr.owner))
    }
}
