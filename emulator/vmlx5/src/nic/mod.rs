//! The NIC: its objects and the control operations on them; those on queue pairs are in
//! `queue_pairs`.

mod queue_pairs;
mod shared_receives;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use gds_step::Time;
use mlx5_prm::doorbell::{BF_OFFSET, BF_SIZE, PAGE};

use crate::config::NicConfig;
use crate::cq::{Cq, CqAttr, CqInfo, check_span};
use crate::dma::Dma;
use crate::error::{NicError, Object};
use crate::event::{self, Event, Events, Source};
use crate::fabric::faults::{FaultStats, Faults};
use crate::fabric::{Fabric, NodeId, PeerId};
use crate::frame::Frame;
use crate::mr::{MrAttr, MrKeys, MrTable};
use crate::object::{Cqn, PdId, Qpn, UarId};
use crate::qp::Ctx;
use crate::qp::Qp;
use crate::qp::responder::late::Disorder;
use crate::route::Resolve;
use crate::table::Table;
use crate::timer::Timers;
use crate::wire::Wire;

/// What a NIC did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicStats {
    /// Doorbells picked up.
    pub doorbells: u64,
    /// Frames sent, to itself too.
    pub frames_sent: u64,
    /// Frames received, from itself too.
    pub frames_received: u64,
    /// Frames received that no queue pair took, and frames sent on links that are lost.
    pub frames_dropped: u64,
}

/// How many objects a NIC has, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Population {
    /// Protection domains.
    pub pds: usize,
    /// Memory regions.
    pub mrs: usize,
    /// Doorbell pages.
    pub uars: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
}

/// A virtual ConnectX. See the crate's text.
///
/// Its control operations are plain methods; ranks reach them through
/// [`gds_step::Shared`], and ring the driver afterwards, since some of them give the NIC
/// something to say to its peers.
pub struct Nic {
    pub(crate) core: Core,
    pub(crate) wire: Wire,
}

/// All of the NIC but its way to others.
pub(crate) struct Core {
    pub config: NicConfig,
    pub pds: Table<()>,
    pub uars: Table<Uar>,
    pub qps: Table<Qp>,
    pub ctx: Ctx,
    /// Slots of the queue pairs that have something to do, whose turn it is first.
    pub ready: VecDeque<u32>,
    /// Slots of those whose receive record is looked at though no message arrives.
    pub watch: Vec<u32>,
    /// What to tell peers apart from any queue pair's answers.
    pub strays: VecDeque<(PeerId, Frame)>,
    /// Queue pairs whose clock runs.
    pub timers: Timers,
    /// It has reported that it failed.
    pub failed: bool,
    pub doorbells: u64,
    pub dropped: u64,
    /// The ports that are down, as the wire has them.
    pub down: u32,
}

pub(crate) struct Uar {
    pub mem: Arc<dyn Dma>,
    pub offset: u64,
    /// Slots of the queue pairs that ring here.
    pub users: Vec<u32>,
    /// Slots of the completion queues that are armed here.
    pub cqs: Vec<u32>,
}

/// The doorbell registers of a page: the two halves of each of the two BlueFlame registers that
/// a page of 4096 bytes gives to users.
pub(crate) const REGISTERS: [u64; 4] = {
    let (first, size) = (BF_OFFSET as u64, BF_SIZE as u64);
    [first, first + size, first + 2 * size, first + 3 * size]
};

/// Most words to peers that wait for room; more are dropped, as a lossy wire would.
const MAX_STRAYS: usize = 1024;

impl Core {
    /// The queue pair in a slot, and what it works with.
    pub fn qp(&mut self, slot: u32) -> Option<(&mut Qp, &mut Ctx)> {
        Some((self.qps.at(slot)?, &mut self.ctx))
    }

    /// Gives the queue pair in `slot` a turn, and looks after its receives if it needs that.
    pub fn schedule(&mut self, slot: u32) {
        let Some(qp) = self.qps.at(slot) else {
            return;
        };
        if !qp.queued {
            qp.queued = true;
            self.ready.push_back(slot);
        }
        if qp.wants_watch() && !qp.watched {
            qp.watched = true;
            self.watch.push(slot);
        }
        if qp.events != 0
            || qp
                .sq
                .deadline
                .is_some_and(|t| !qp.timed || t < self.timers.next)
        {
            self.heed_clock(slot);
        }
    }

    pub fn stray(&mut self, peer: PeerId, frame: Frame) {
        if self.strays.len() < MAX_STRAYS {
            self.strays.push_back((peer, frame));
        }
    }

    /// Notes a clock that was started, and an event that happened.
    #[inline]
    pub fn heed_clock(&mut self, slot: u32) {
        let Some(qp) = self.qps.at(slot) else {
            return;
        };
        if let Some(deadline) = qp.sq.deadline {
            if !qp.timed {
                qp.timed = true;
                self.timers.listed.push(slot);
            }
            self.timers.next = self.timers.next.min(deadline);
        }
        if qp.events != 0 && !qp.telling {
            qp.telling = true;
            self.ctx.events.push(Source::Qp(slot));
        }
    }

    /// Makes room for the events of every object there is.
    pub fn reserve_events(&mut self) {
        let objects = self.qps.slots() + 2 * self.ctx.cqs.slots() + self.ctx.srqs.slots();
        self.ctx.events.reserve(objects as usize + MAX_PORT_EVENTS);
    }
}

/// Most changes of ports that wait to be told.
const MAX_PORT_EVENTS: usize = 64;

fn check_port(port: u8, config: &NicConfig) -> Result<(), NicError> {
    let most = config.ports.min(32);
    if (1..=most).contains(&port) {
        return Ok(());
    }
    Err(NicError::Limit {
        object: Object::Qp,
        what: "port (from 1)",
        value: port.into(),
        limit: most.into(),
    })
}

impl Nic {
    /// A NIC without objects, on `fabric`.
    pub fn new(config: NicConfig, fabric: Box<dyn Fabric>) -> Nic {
        Nic {
            wire: Wire::new(fabric, config.loopback_bytes),
            core: Core {
                pds: Table::new(Object::Pd, config.log_max_pd),
                ctx: Ctx {
                    mrs: MrTable::new(config.log_max_mr),
                    cqs: Table::new(Object::Cq, config.log_max_cq),
                    cq_failed: false,
                    events: Events::default(),
                    srqs: Table::new(Object::Srq, config.log_max_srq),
                    srq_news: false,
                    disorder: None,
                    now: Time::ZERO,
                },
                uars: Table::new(Object::Uar, config.log_max_uar),
                qps: match config.qpn {
                    Some(space) => Table::within(Object::Qp, space.base, space.bits),
                    None => Table::new(Object::Qp, config.log_max_qp),
                },
                config,
                ready: VecDeque::new(),
                watch: Vec::new(),
                strays: VecDeque::new(),
                timers: Timers::new(),
                failed: false,
                doorbells: 0,
                dropped: 0,
                down: 0,
            },
        }
    }

    /// The NIC's name among all: what a peer needs to connect.
    pub fn node(&self) -> NodeId {
        self.wire.node()
    }

    /// What the NIC did so far.
    pub fn stats(&self) -> NicStats {
        NicStats {
            doorbells: self.core.doorbells,
            frames_sent: self.wire.sent,
            frames_received: self.wire.received,
            frames_dropped: self.core.dropped + self.wire.vanished,
        }
    }

    /// Who answers to the addresses of datagrams; nobody, as long as nothing was set. To be set
    /// before the first is sent: what was found out once is not asked again.
    pub fn set_resolver(&mut self, resolver: Arc<dyn Resolve>) {
        self.wire.resolver = Some(resolver);
    }

    /// How many objects there are: none, once everything that was made was removed.
    pub fn population(&self) -> Population {
        let core = &self.core;
        Population {
            pds: core.pds.count(),
            mrs: core.ctx.mrs.count(),
            uars: core.uars.count(),
            cqs: core.ctx.cqs.count(),
            qps: core.qps.count(),
            srqs: core.ctx.srqs.count(),
        }
    }

    /// From now on, `faults` happen to what the NIC sends; those before happen no more, but to
    /// frames that are held back already, which are lost. What the NIC receives by WRITE is placed
    /// out of order as they say.
    pub fn set_faults(&mut self, faults: Faults) {
        let before = self.core.ctx.disorder.take();
        if before.is_some() || faults.ooo > 0.0 {
            let mut disorder = Disorder::new(&faults, self.node().0);
            if let Some(before) = before {
                (disorder.next, disorder.displaced) = (before.next, before.displaced);
            }
            self.core.ctx.disorder = Some(Box::new(disorder));
        }
        self.wire.set_faults(faults);
    }

    /// What faults did since they were set.
    pub fn fault_stats(&self) -> FaultStats {
        let disorder = self.core.ctx.disorder.as_ref();
        FaultStats {
            displaced: disorder.map_or(0, |disorder| disorder.displaced),
            ..self.wire.fault_stats()
        }
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// There are as many as there can be.
    pub fn alloc_pd(&mut self) -> Result<PdId, NicError> {
        self.core.pds.insert(|_| ()).map(PdId)
    }

    /// Removes a protection domain.
    ///
    /// # Errors
    /// There is none, or regions or queue pairs belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), NicError> {
        self.core.pds.remove(pd.0).map(drop)
    }

    /// Registers a memory region. Its key is new: keys of former regions stay invalid.
    ///
    /// # Errors
    /// The domain is unknown, the bytes do not lie in the memory, the rights do not go
    /// together, or there are as many regions as there can be.
    pub fn reg_mr(&mut self, attr: MrAttr) -> Result<MrKeys, NicError> {
        let pd = attr.pd;
        self.core.pds.get(pd.0)?;
        let keys = self.core.ctx.mrs.register(attr)?;
        self.core.pds.count_users(pd.0, 1);
        Ok(keys)
    }

    /// Removes a memory region. Work that still uses its key fails.
    ///
    /// # Errors
    /// No region has the key.
    pub fn dereg_mr(&mut self, lkey: u32) -> Result<(), NicError> {
        let pd = self.core.ctx.mrs.deregister(lkey)?.attr.pd;
        self.core.pds.count_users(pd.0, -1);
        Ok(())
    }

    /// Makes the 4096 bytes at `offset` of `mem` a doorbell page: its registers, at 0x800,
    /// 0x900, 0xa00 and 0xb00, are polled as long as a queue pair is bound to it, and the one at
    /// 0x20 as long as a completion queue is that tells events.
    ///
    /// # Errors
    /// The page does not lie in the memory, or not aligned, or there are as many as there can be.
    pub fn alloc_uar(&mut self, mem: Arc<dyn Dma>, offset: u64) -> Result<UarId, NicError> {
        let page = PAGE as u64;
        check_span(Object::Uar, &*mem, offset, page, page)?;
        let uar = |_| Uar {
            mem,
            offset,
            users: Vec::new(),
            cqs: Vec::new(),
        };
        self.core.uars.insert(uar).map(UarId)
    }

    /// Gives a doorbell page back.
    ///
    /// # Errors
    /// There is none, or queue pairs or completion queues are bound to it.
    pub fn free_uar(&mut self, uar: UarId) -> Result<(), NicError> {
        self.core.uars.remove(uar.0).map(drop)
    }

    /// Creates a completion queue. Its entries stay as their owner preset them.
    ///
    /// # Errors
    /// Its bytes do not lie in the memory, it is too large, it has no record and does not
    /// ignore overruns or tells events, the page of its events is unknown, or there are as many
    /// as there can be.
    pub fn create_cq(&mut self, attr: CqAttr) -> Result<Cqn, NicError> {
        let core = &mut self.core;
        let page = attr.events;
        if let Some(uar) = page {
            core.uars.get(uar.0)?;
        }
        let cq = Cq::new(attr, core.config.max_log_cq.min(22))?;
        let number = core.ctx.cqs.insert(|_| cq)?;
        core.reserve_events();
        if let Some(page) = page
            && let Some(slot) = core.ctx.cqs.slot(number)
            && let Ok(uar) = core.uars.get_mut(page.0)
        {
            uar.cqs.push(slot);
            core.uars.count_users(page.0, 1);
        }
        Ok(Cqn(number))
    }

    /// Removes a completion queue.
    ///
    /// # Errors
    /// There is none, or queue pairs complete into it.
    pub fn destroy_cq(&mut self, cq: Cqn) -> Result<(), NicError> {
        let core = &mut self.core;
        let (slot, gone) = core.ctx.cqs.remove(cq.0)?;
        core.ctx.events.forget(Source::Cq(slot));
        core.ctx.events.forget(Source::Armed(slot));
        if let Some(arm) = gone.arm
            && let Ok(uar) = core.uars.get_mut(arm.uar.0)
        {
            uar.cqs.retain(|&s| s != slot);
            core.uars.count_users(arm.uar.0, -1);
        }
        Ok(())
    }

    /// How a completion queue stands.
    ///
    /// # Errors
    /// There is none.
    pub fn query_cq(&self, cq: Cqn) -> Result<CqInfo, NicError> {
        let cqs = &self.core.ctx.cqs;
        Ok(cqs.get(cq.0)?.info(cqs.users(cq.0)))
    }

    /// Whether [`Nic::next_event`] may have an event: a cheap question for after every step.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.core.ctx.events.is_empty()
    }

    /// What happened to an object, oldest first. What happened again before it was asked for is
    /// told once.
    pub fn next_event(&mut self) -> Option<Event> {
        let core = &mut self.core;
        loop {
            match core.ctx.events.pop()? {
                Source::Device => return Some(Event::DeviceFatal),
                Source::Port(port, up) => return Some(Event::Port { port, up }),
                source @ (Source::Cq(slot) | Source::Armed(slot)) => {
                    let number = core.ctx.cqs.number_at(slot);
                    let (Some(number), Some(queue)) = (number, core.ctx.cqs.at(slot)) else {
                        continue;
                    };
                    let (cq, owner) = (Cqn(number), queue.attr.owner);
                    if source == Source::Cq(slot) {
                        return Some(Event::CqError { cq, owner });
                    }
                    if let Some(arm) = &mut queue.arm {
                        arm.telling = false;
                    }
                    return Some(Event::Completion { cq, owner });
                }
                Source::Srq(slot) => {
                    if let Some(event) = core.srq_event(slot) {
                        return Some(event);
                    }
                }
                Source::Qp(slot) => {
                    let Some(qp) = core.qps.at(slot) else {
                        continue;
                    };
                    let bit = qp.events & qp.events.wrapping_neg();
                    qp.events &= !bit;
                    qp.telling = qp.events != 0;
                    let (qpn, owner) = (Qpn(qp.number), qp.owner);
                    if qp.telling {
                        core.ctx.events.again(Source::Qp(slot));
                    }
                    if bit != 0 {
                        return Some(event::of_qp(bit, qpn, owner));
                    }
                }
            }
        }
    }

    /// Takes a port up or down. While one is down, nothing goes out or comes in for the queue
    /// pairs whose path leads through it; their clocks run.
    ///
    /// # Errors
    /// There is no such port.
    pub fn set_port(&mut self, port: u8, up: bool) -> Result<(), NicError> {
        if self.port(port)? != up {
            let bit = 1 << (port - 1);
            self.wire.down ^= bit;
            self.core.ctx.events.push(Source::Port(port, up));
        }
        Ok(())
    }

    /// Whether a port is up.
    ///
    /// # Errors
    /// There is no such port.
    pub fn port(&self, port: u8) -> Result<bool, NicError> {
        check_port(port, &self.core.config)?;
        Ok(self.wire.is_up(port))
    }

    /// Reports, once, that the NIC failed.
    pub(crate) fn fail(&mut self) {
        if !std::mem::replace(&mut self.core.failed, true) {
            self.core.ctx.events.push(Source::Device);
        }
    }

    /// Forgets the news of lost links: what was sent there is retried, and fails in the end.
    pub(crate) fn drop_lost_links(&mut self) -> bool {
        let mut any = false;
        while self.wire.lost().is_some() {
            any = true;
        }
        any
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("name", &self.core.config.name)
            .field("node", &self.node())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
