//! Control operations on shared receive queues, and what these tell.

use super::{Core, Nic};
use crate::error::NicError;
use crate::event::{self, Event, Source};
use crate::object::Srqn;
use crate::srq::{Srq, SrqAttr, SrqInfo};

impl Nic {
    /// Creates a shared receive queue. Its entries must form a list already: each names the
    /// next, from the first on.
    ///
    /// # Errors
    /// Its domain is unknown, its bytes do not lie in the memory, it is too large, its limit is
    /// beyond its size, or there are as many as there can be.
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

    /// Sets the limit of a shared receive queue: when fewer receives are posted than that, an
    /// event says so, at once if they are fewer already, and the limit is gone. Zero: no limit.
    ///
    /// # Errors
    /// There is none, or the limit is beyond its size.
    pub fn modify_srq(&mut self, srq: Srqn, limit: u16) -> Result<(), NicError> {
        self.core.ctx.srqs.get_mut(srq.0)?.arm(limit)?;
        self.core.ctx.srq_news = true;
        self.core.tell_of_srqs();
        Ok(())
    }

    /// How a shared receive queue stands.
    ///
    /// # Errors
    /// There is none.
    pub fn query_srq(&self, srq: Srqn) -> Result<SrqInfo, NicError> {
        let srqs = &self.core.ctx.srqs;
        Ok(srqs.get(srq.0)?.info(srqs.users(srq.0)))
    }

    /// Removes a shared receive queue, its receives without completions.
    ///
    /// # Errors
    /// There is none, or queue pairs take from it.
    pub fn destroy_srq(&mut self, srq: Srqn) -> Result<(), NicError> {
        let core = &mut self.core;
        let (slot, gone) = core.ctx.srqs.remove(srq.0)?;
        core.ctx.events.forget(Source::Srq(slot));
        core.pds.count_users(gone.attr.pd.0, -1);
        Ok(())
    }
}

impl Core {
    /// Puts the shared receive queues that have something to tell in the queue of those.
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
