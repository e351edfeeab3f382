//! A block: its live threads, its waiting threads, and the end of each wait.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use super::fiber::{Misuse, Order};
use super::shared::Shared;
use super::warp::{Warp, WarpCall, lanes};

/// A barrier of the whole block; the numbers are those of `softgpu_barrier_kind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BarrierKind {
    #[default]
    Sync,
    Or,
    And,
    Count,
}

impl fmt::Display for BarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BarrierKind::Sync => "__syncthreads()",
            BarrierKind::Or => "__syncthreads_or()",
            BarrierKind::And => "__syncthreads_and()",
            BarrierKind::Count => "__syncthreads_count()",
        })
    }
}

/// The index of a fiber of the grid.
pub(super) type FiberId = u32;

/// Fibers whose wait has ended, with the reply to each.
pub(super) type Released = Vec<(FiberId, u64)>;

/// The state of a running block.
#[derive(Default)]
pub(super) struct Block {
    pub(super) index: [u32; 3],
    /// An `Rc` instead of a box, because its threads point to it too; the count stays one.
    pub(super) shared: Rc<Shared>,
    pub(super) order: Order,
    /// The position in `order` of the next thread to start.
    pub(super) next: u32,
    live: u32,
    /// Threads that wait for others of the block, at the barrier or at a warp operation.
    parked: u32,
    barrier: BarrierKind,
    votes: u32,
    arrived: Vec<FiberId>,
    warps: Vec<Warp>,
    /// The fiber of each thread that waits at a warp operation.
    by_thread: Vec<FiberId>,
}

// SAFETY: there is no clone of the `Rc` in `shared`, which owns its memory. The only other pointers
// into it are those of the block's threads, which move with the grid that owns both.
unsafe impl Send for Block {}

impl Block {
    /// Resets it to a new block without started threads.
    pub(super) fn reset(&mut self, index: [u32; 3], order: Order, dynamic_shared: u32) {
        let threads = order.threads;
        self.index = index;
        self.order = order;
        self.next = 0;
        self.live = threads;
        self.parked = 0;
        self.votes = 0;
        self.arrived.clear();
        self.shared.reset(dynamic_shared);
        self.warps.truncate(threads.div_ceil(order.warp) as usize);
        let in_warp = |w: u32| (threads - w * order.warp).min(order.warp);
        for (w, warp) in (0..).zip(&mut self.warps) {
            warp.reset(in_warp(w));
        }
        for w in self.warps.len() as u32..threads.div_ceil(order.warp) {
            self.warps.push(Warp::new(in_warp(w)));
        }
        self.by_thread.resize(threads as usize, 0);
    }

    /// Threads that have not ended.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    /// Whether threads have yet to start.
    pub(super) fn has_unstarted(&self) -> bool {
        self.next < self.order.threads
    }

    /// Every live thread waits for others of the block: no change outside can end the waits.
    pub(super) fn is_stuck(&self) -> bool {
        self.live > 0 && self.parked == self.live
    }

    /// The running thread on `fiber` waits at the barrier.
    ///
    /// # Errors
    /// Other threads wait at a different barrier.
    pub(super) fn arrive(
        &mut self,
        fiber: FiberId,
        kind: BarrierKind,
        predicate: bool,
        released: &mut Released,
    ) -> Result<(), Misuse> {
        if self.arrived.is_empty() {
            self.barrier = kind;
        } else if self.barrier != kind {
            return Err(Misuse::MixedBarriers(kind, self.barrier));
        }
        self.arrived.push(fiber);
        self.votes += u32::from(predicate);
        self.parked += 1;
        self.try_barrier(released);
        Ok(())
    }

    fn try_barrier(&mut self, released: &mut Released) {
        let arrived = self.arrived.len() as u32;
        if arrived == 0 || arrived < self.live {
            return;
        }
        let reply = match self.barrier {
            BarrierKind::Sync => 0,
            BarrierKind::Or => u64::from(self.votes > 0),
            BarrierKind::And => u64::from(self.votes == arrived),
            BarrierKind::Count => u64::from(self.votes),
        };
        self.parked -= arrived;
        self.votes = 0;
        released.extend(self.arrived.drain(..).map(|fiber| (fiber, reply)));
    }

    /// The running thread at `position` waits on `fiber` for lanes of its warp.
    pub(super) fn call_warp(
        &mut self,
        fiber: FiberId,
        position: u32,
        call: WarpCall,
        released: &mut Released,
    ) {
        let thread = self.order.thread(position);
        self.by_thread[thread as usize] = fiber;
        self.parked += 1;
        let (warp, lane) = self.order.place(thread);
        let done = self.warps[warp as usize].call(lane, call);
        self.release_lanes(warp, done, released);
    }

    fn release_lanes(&mut self, warp: u32, done: u64, released: &mut Released) {
        let w = &mut self.warps[warp as usize];
        for lane in lanes(done) {
            let fiber = self.by_thread[(warp * self.order.warp + lane) as usize];
            released.push((fiber, w.result(lane, done)));
        }
        w.release(done);
        self.parked -= done.count_ones();
    }

    /// The thread at `position` has ended.
    pub(super) fn exit(&mut self, position: u32, released: &mut Released) {
        let thread = self.order.thread(position);
        self.live -= 1;
        let (warp, lane) = self.order.place(thread);
        let mut done = self.warps[warp as usize].exit(lane);
        while done != 0 {
            self.release_lanes(warp, done, released);
            done = self.warps[warp as usize].exit(lane);
        }
        self.try_barrier(released);
    }

    /// The waiting threads and their places, for the message of a divergence.
    pub(super) fn describe_waits(&self) -> String {
        let mut counts = BTreeMap::new();
        if !self.arrived.is_empty() {
            counts.insert(self.barrier.to_string(), self.arrived.len());
        }
        for (w, warp) in self.warps.iter().enumerate() {
            for call in warp.waits() {
                let place = format!("{} of warp {w}, mask {:#010x}", call.kind.name(), call.mask);
                *counts.entry(place).or_default() += 1;
            }
        }
        let places: Vec<String> = counts
            .iter()
            .map(|(place, n)| format!("{n} of {} live threads at {place}", self.live))
            .collect();
        places.join("; ")
    }
}
