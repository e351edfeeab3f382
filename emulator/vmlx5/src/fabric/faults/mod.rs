//! A wire that is not reliable: frames that a NIC sends are lost, doubled, late, or overtake
//! each other, a NIC falls silent, and its ports go down, all drawn from a seed.
//!
//! It lies between the NIC and its fabric, so what a NIC sends to itself suffers too. Held
//! frames are copies; without faults nothing of this exists.

mod text;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::time::Duration;

use gds_step::Time;

use super::PeerId;
use crate::frame::FrameHeader;
pub use text::{FaultsError, FaultsWhy};

/// What may happen to the frames that a NIC sends. Rates are parts of one, and times those that
/// the NIC is stepped with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// What all is drawn from, together with the node's name.
    pub seed: u64,
    /// How many are lost.
    pub loss: f64,
    /// How many arrive twice.
    pub dup: f64,
    /// How many are held back for 1 to 20 us, so that later ones overtake them.
    pub reorder: f64,
    /// The share of the pieces of WRITEs received on connections that become visible late, by 1 to
    /// 20 us, behind later ones. `docs/virtual-connectx.md` says what stays ordered.
    pub ooo: f64,
    /// How late each is; as they come if the range is empty.
    pub delay: Range<Duration>,
    /// When nothing is sent or received.
    pub deaf: Vec<Range<Time>>,
    /// From when on nothing is sent or received any more.
    pub die_at: Option<Time>,
    /// The time at which the NIC stops for good, which one event reports
    /// ([`Event::DeviceFatal`](crate::Event::DeviceFatal)).
    pub fatal_at: Option<Time>,
    /// Ports, and when each is taken down; at the end it is up again.
    pub port_down: Vec<(u8, Range<Time>)>,
}

/// What happened to frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultStats {
    /// Frames sent, the lost ones too.
    pub frames: u64,
    /// Frames lost, and those sent while the NIC was silent.
    pub lost: u64,
    /// Frames that were sent twice.
    pub doubled: u64,
    /// Copies that were held back.
    pub held: u64,
    /// Pieces of WRITEs that became visible late.
    pub displaced: u64,
}

/// A frame that is held back.
pub(crate) struct Held {
    pub peer: PeerId,
    pub header: FrameHeader,
    pub payload: Vec<u8>,
}

/// The faults of one NIC at work.
pub(crate) struct Faulty {
    plan: Faults,
    rng: fastrand::Rng,
    pub stats: FaultStats,
    /// When each held frame is due; the number makes the order total, and names its place.
    due: BinaryHeap<Reverse<(Time, u64, usize)>>,
    held: Vec<Option<Held>>,
    number: u64,
    /// When ports go down or up, the last one first.
    edges: Vec<(Time, u8)>,
    /// What was drawn up last is written here first.
    pub scratch: Vec<u8>,
}

/// What becomes of one frame.
pub(crate) struct Fate {
    /// How many copies there are: none, one or two.
    pub copies: u8,
    /// How late they are.
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

    /// True if nothing goes in or out now.
    pub fn silent(&self, now: Time) -> bool {
        self.plan.die_at.is_some_and(|t| t <= now)
            || self.plan.deaf.iter().any(|r| r.contains(&now))
    }

    /// True if the NIC has failed by now.
    pub fn fatal(&self, now: Time) -> bool {
        self.plan.fatal_at.is_some_and(|t| t <= now)
    }

    /// A port that goes down or up by now, and whether it is up then.
    pub fn edge(&mut self, now: Time) -> Option<(u8, bool)> {
        let (_, port) = self.edges.pop_if(|(at, _)| *at <= now)?;
        let down = |(p, window): &(u8, Range<Time>)| *p == port && window.contains(&now);
        Some((port, !self.plan.port_down.iter().any(down)))
    }

    /// Draws what becomes of the next frame.
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

    /// When the next held frame is due, or the next port changes.
    pub fn deadline(&self) -> Option<Time> {
        let frame = self.due.peek().map(|Reverse((due, ..))| *due);
        let edge = self.edges.last().map(|(at, _)| *at);
        [frame, edge].into_iter().flatten().min()
    }
}
