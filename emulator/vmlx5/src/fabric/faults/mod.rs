//! An unreliable wire, with faults drawn from a seed: frames of a NIC are lost, duplicated, delayed
//! or reordered, a NIC stops sending and receiving, and its ports go down.
//!
//! The faults apply between the NIC and its fabric, so they affect loopback frames too. Held frames
//! are copies. A NIC without faults has no object of this module.

mod text;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

use gds_step::Time;

use super::PeerId;
use crate::frame::FrameHeader;
pub use text::{FaultsError, FaultsWhy};

/// The faults of the frames that a NIC sends. Rates are from 0 to 1. Times are those of the NIC's
/// steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// The seed of all draws, together with the node's number.
    pub seed: u64,
    /// The rate of lost frames.
    pub loss: f64,
    /// The rate of duplicated frames.
    pub dup: f64,
    /// The rate of frames that are held back for 1 to 20 us, so that later frames overtake them.
    pub reorder: f64,
    /// The rate of pieces of WRITEs, received on connections, that become visible 1 to 20 us late,
    /// after later ones. `docs/virtual-connectx.md` describes the order that remains.
    pub ooo: f64,
    /// The range of the delay of each frame; an empty range means no delay.
    pub delay: Range<Duration>,
    /// The periods in which the NIC sends and receives nothing.
    pub deaf: Vec<Range<Time>>,
    /// The time after which the NIC sends and receives nothing.
    pub die_at: Option<Time>,
    /// The time at which the NIC stops for good; one event reports it
    /// ([`Event::DeviceFatal`](crate::Event::DeviceFatal)).
    pub fatal_at: Option<Time>,
    /// Ports, and the period in which each is down; at its end the port is up again.
    pub port_down: Vec<(u8, Range<Time>)>,
}

/// Counters of the faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames sent, lost frames included.
    pub frames: u64,
    /// Frames lost, and frames sent while the NIC was silent.
    pub lost: u64,
    /// Frames sent twice.
    pub doubled: u64,
    /// Copies that were held back.
    pub held: u64,
    /// Pieces of WRITEs that became visible late.
    pub displaced: u64,
}

/// A held frame.
pub(crate) struct Held {
    pub peer: PeerId,
    pub header: FrameHeader,
    pub payload: Vec<u8>,
}

/// The active faults of one NIC.
pub(crate) struct Faulty {
    plan: Faults,
    rng: fastrand::Rng,
    pub stats: FaultStats,
    /// When each held frame is due; the number makes the order total and is the index of its slot.
    due: BinaryHeap<Reverse<(Time, u64, usize)>>,
    held: Vec<Option<Held>>,
    number: u64,
    /// The times at which ports go down or up, in descending order.
    edges: Vec<(Time, u8)>,
    /// The payload of the drawn frame, before the copies are made.
    pub scratch: Vec<u8>,
}

/// The plan for one frame.
pub(crate) struct Fate {
    /// Number of copies: none, one or two.
    pub copies: u8,
    /// The delays of the copies.
    pub late: Duration,
}

impl Faulty {
    pub fn new(plan: Faults, node: u64) -> Faulty {
        let ends =
            |(port, window): &(u8, Range<Time>)| [(window.start, *port), (window.end, *port)];
        let mut edges: Vec<(Time, u8)> = plan.port_down.iter().flat_map(ends).collect();
        edges.sort_by_key(|&edge| Reverse(edge));
        Faulty {
            edges,
            rng: fastrand::Rng::with_seed(plan.seed ^ node.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            plan,
            stats: FaultStats::default(),
            due: BinaryHeap::new(),
            held: Vec::new(),
            number: 0,
            scratch: Vec::new(),
        }
    }

    /// Returns true if the NIC sends and receives nothing now.
    pub fn silent(&self, now: Time) -> bool {
        self.plan.die_at.is_some_and(|t| t <= now)
            || self.plan.deaf.iter().any(|r| r.contains(&now))
    }

    /// Returns true if the NIC has failed by now.
    pub fn fatal(&self, now: Time) -> bool {
        self.plan.fatal_at.is_some_and(|t| t <= now)
    }

    /// A due change of a port, and whether the port is up after it.
    pub fn edge(&mut self, now: Time) -> Option<(u8, bool)> {
        let (_, port) = self.edges.pop_if(|(at, _)| *at <= now)?;
        let down = |(p, window): &(u8, Range<Time>)| *p == port && window.contains(&now);
        Some((port, !self.plan.port_down.iter().any(down)))
    }

    /// Draws the plan for the next frame.
    pub fn draw(&mut self, now: Time) -> Fate {
        let mut happens = |rate: f64| rate > 0.0 && self.rng.f64() < rate;
        let plan = &self.plan;
        let copies = match (happens(plan.loss), happens(plan.dup)) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 1,
        };
        let overtaken = happens(plan.reorder);
        let mut late = match plan.delay.is_empty() {
            true => Duration::ZERO,
            false => {
                let nanos = |d: Duration| d.as_nanos() as u64;
                Duration::from_nanos(self.rng.u64(nanos(plan.delay.start)..nanos(plan.delay.end)))
            }
        };
        if overtaken {
            late += Duration::from_nanos(self.rng.u64(1000..20_000));
        }
        let copies = if self.silent(now) { 0 } else { copies };
        self.stats.frames += 1;
        self.stats.lost += u64::from(copies == 0);
        self.stats.doubled += u64::from(copies == 2);
        Fate { copies, late }
    }

    /// Holds a frame back until `due`.
    pub fn hold(&mut self, due: Time, frame: Held) {
        self.stats.held += 1;
        let free = self.held.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[at] = Some(frame);
        self.due.push(Reverse((due, self.number, at)));
        self.number += 1;
    }

    /// A held frame that is due.
    pub fn take(&mut self, now: Time) -> Option<Held> {
        let &Reverse((due, _, at)) = self.due.peek()?;
        if due > now {
            return None;
        }
        self.due.pop();
        self.held[at].take()
    }

    /// The time at which the next held frame is due or the next port changes.
    pub fn deadline(&self) -> Option<Time> {
        let frame = self.due.peek().map(|Reverse((due, ..))| *due);
        let edge = self.edges.last().map(|(at, _)| *at);
        [frame, edge].into_iter().flatten().min()
    }
}
