//! The NIC: its objects and their control operations; those of queue pairs are in `queue_pairs`.

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

/// Counters of a NIC since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicStats {
    /// Doorbells that the NIC read.
    pub doorbells: u64,
    /// Frames sent, loopback included.
    pub frames_sent: u64,
    /// Frames received, loopback included.
    pub frames_received: u64,
    /// Frames received that no queue pair accepted, and frames sent on lost links.
    pub frames_dropped: u64,
}

/// Number of objects of a NIC, by kind.
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

/// A virtual ConnectX; the crate page describes it.
///
/// Its control operations are plain methods. Ranks call them through [`gds_step::Shared`] and wake
/// the driver afterwards, since some operations queue frames for peers.
pub struct Nic {
    pub(crate) core: Core,
    pub(crate) wire: Wire,
}

/// The state of a NIC without its connection to others.
pub(crate) struct Core {
    pub config: NicConfig,
    pub pds: Table<()>,
    pub uars: Table<Uar>,
    pub qps: Table<Qp>,
    pub ctx: Ctx,
    /// Slots of queue pairs with work, in the order of their turns.
    pub ready: VecDeque<u32>,
    /// Slots of queue pairs whose receive record the NIC reads even if no message arrives.
    pub watch: Vec<u32>,
    /// Frames to peers that do not belong to a queue pair's answers.
    pub strays: VecDeque<(PeerId, Frame)>,
    /// Queue pairs with a running timeout.
    pub timers: Timers,
    /// The NIC has reported its failure.
    pub failed: bool,
    pub doorbells: u64,
    pub dropped: u64,
    /// The ports that are down, as in `Wire`.
    pub down: u32,
}

pub(crate) struct Uar {
    pub mem: Arc<dyn Dma>,
    pub offset: u64,
    /// Slots of the queue pairs with their doorbell on this page.
    pub users: Vec<u32>,
    /// Slots of the completion queues with their completion register on this page.
    pub cqs: Vec<u32>,
}

/// The doorbell registers of a page: both halves of each of the two BlueFlame registers in a page
/// of 4096 bytes.
pub(crate) const REGISTERS: [u64; 4] = {
    let (first, size) = (BF_OFFSET as u64, BF_SIZE as u64);
    [first, first + size, first + 2 * size, first + 3 * size]
};

/// Most frames to peers that wait for room; further ones are dropped, as on a lossy wire.
const MAX_STRAYS: usize = 1024;

impl Core {
    /// The queue pair in a slot, and the context that it works with.
    pub fn qp(&mut self, slot: u32) -> Option<(&mut Qp, &mut Ctx)> {
        Some((self.qps.at(slot)?, &mut self.ctx))
    }

    /// Gives the queue pair in `slot` a turn, and schedules a read of its receive record if needed.
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

    /// Records a started timeout and a raised event.
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

    /// Reserves room for the events of every object.
    pub fn reserve_events(&mut self) {
        let objects = self.qps.slots() + 2 * self.ctx.cqs.slots() + self.ctx.srqs.slots();
        self.ctx.events.reserve(objects as usize + MAX_PORT_EVENTS);
    }
}

/// Most changes of ports that wait to be reported.
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

    /// The node of the NIC: a peer needs it to connect.
    pub fn node(&self) -> NodeId {
        self.wire.node()
    }

    /// The counters of the NIC.
    pub fn stats(&self) -> NicStats {
        NicStats {
            doorbells: self.core.doorbells,
            frames_sent: self.wire.sent,
            frames_received: self.wire.received,
            frames_dropped: self.core.dropped + self.wire.vanished,
        }
    }

    /// Sets the resolver of datagram addresses. Without one, no address resolves and datagrams are
    /// dropped. Set it before the first datagram: the NIC caches resolved addresses.
    pub fn set_resolver(&mut self, resolver: Arc<dyn Resolve>) {
        self.wire.resolver = Some(resolver);
    }

    /// Number of objects: zero of each kind once all objects are removed.
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

    /// Applies `faults` to the frames that the NIC sends from now on. Former faults end, except
    /// that frames that are held back already are lost. The NIC places received WRITEs out of order
    /// as the faults specify.
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

    /// Counters of the faults since they were set.
    pub fn fault_stats(&self) -> FaultStats {
        let disorder = self.core.ctx.disorder.as_ref();
        FaultStats {
            displaced: disorder.map_or(0, |disorder| disorder.displaced),
            ..self.wire.fault_stats()
        }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The limit of protection domains is reached.
    pub fn alloc_pd(&mut self) -> Result<PdId, NicError> {
        self.core.pds.insert(|_| ()).map(PdId)
    }

    /// Removes a protection domain.
    ///
    /// # Errors
    /// The domain does not exist, or regions or queue pairs belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), NicError> {
        self.core.pds.remove(pd.0).map(drop)
    }

    /// Registers a memory region. Its keys are new: keys of former regions stay invalid.
    ///
    /// # Errors
    /// The domain is unknown, the bytes are not inside the memory, the rights are inconsistent, or
    /// the limit of regions is reached.
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

    /// Makes the 4096 bytes at `offset` of `mem` a doorbell page. The NIC polls its registers at
    /// 0x800, 0x900, 0xa00 and 0xb00 while a queue pair is bound to it, and the register at 0x20
    /// while a completion queue with events is bound to it.
    ///
    /// # Errors
    /// The page is not inside the memory or is misaligned, or the limit of pages is reached.
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

    /// Frees a doorbell page.
    ///
    /// # Errors
    /// The page does not exist, or queue pairs or completion queues are bound to it.
    pub fn free_uar(&mut self, uar: UarId) -> Result<(), NicError> {
        self.core.uars.remove(uar.0).map(drop)
    }

    /// Creates a completion queue. Its entries keep the values that their owner preset.
    ///
    /// # Errors
    /// Its bytes are not inside the memory, it is too large, it has no record although it detects
    /// overruns or raises events, the page of its events is unknown, or the limit of completion
    /// queues is reached.
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
    /// The queue does not exist, or queue pairs complete into it.
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

    /// Returns the status of a completion queue.
    ///
    /// # Errors
    /// The queue does not exist.
    pub fn query_cq(&self, cq: Cqn) -> Result<CqInfo, NicError> {
        let cqs = &self.core.ctx.cqs;
        Ok(cqs.get(cq.0)?.info(cqs.users(cq.0)))
    }

    /// Returns whether [`Nic::next_event`] may have an event: a cheap check for after every step.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.core.ctx.events.is_empty()
    }

    /// Returns the oldest pending event. An event that occurs several times before it is returned
    /// is returned once.
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

    /// Takes a port up or down. While a port is down, queue pairs with a path through it send and
    /// receive nothing; their timeouts run.
    ///
    /// # Errors
    /// The port does not exist.
    pub fn set_port(&mut self, port: u8, up: bool) -> Result<(), NicError> {
        if self.port(port)? != up {
            let bit = 1 << (port - 1);
            self.wire.down ^= bit;
            self.core.ctx.events.push(Source::Port(port, up));
        }
        Ok(())
    }

    /// Returns whether a port is up.
    ///
    /// # Errors
    /// The port does not exist.
    pub fn port(&self, port: u8) -> Result<bool, NicError> {
        check_port(port, &self.core.config)?;
        Ok(self.wire.is_up(port))
    }

    /// Reports the failure of the NIC, once.
    pub(crate) fn fail(&mut self) {
        if !std::mem::replace(&mut self.core.failed, true) {
            self.core.ctx.events.push(Source::Device);
        }
    }

    /// Discards the reports of lost links: work sent there is retried, and fails in the end.
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
