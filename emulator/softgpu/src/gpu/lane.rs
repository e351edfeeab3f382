//! A stream on the engine's side: its current operation, and one bounded part of it per step.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use gds_step::Time;

use super::Core;
use super::stream::Shared;
use super::stream_memory::StreamMemory;
use crate::DeviceError;
use crate::event::Mark;
use crate::kernel::{Grid, GridConfig, GridState, KernelContext};
use crate::op::{DATA, InlineData, Op, Recorded, Target, Wait};
use crate::protect::DeviceAccess;
use crate::queue::Consumer;
use crate::span;

/// The maximal number of bytes of a copy in one chunk.
const CHUNK: usize = 64 * 1024;
/// A stream's work.
pub(crate) struct Lane {
    pub(crate) shared: Arc<Shared>,
    queue: Consumer<Op>,
    /// The graph whose operations run, and the number of operations that were taken from it. It is
    /// kept until its last operation has ended and all writes are visible.
    graph: Option<(Arc<Recorded>, usize)>,
    current: Current,
    memory: Arc<StreamMemory>,
}

/// The current operation. A grid is stored in place, so that a launch allocates nothing.
#[allow(clippy::large_enum_variant)]
enum Current {
    Nothing,
    /// Weak memory: an operation that starts when all earlier writes of the stream are visible.
    Held(Op),
    /// Weak memory: a kernel or a graph that completes when all writes of the stream are visible.
    Ending,
    /// An unsatisfied wait.
    Wait(Wait),
    Event(Mark),
    /// The rest of an [`Op::Copy`] or [`Op::Fill`].
    Moving(Op),
    Grid(Grid),
}

/// The resources of a lane for one step.
pub(crate) struct Cx<'a> {
    pub(crate) core: &'a Core,
    pub(crate) kernels: &'a GridConfig,
    pub(crate) now: Time,
    /// Turns of a kernel's threads in one step.
    pub(crate) turns: u32,
    /// The number of hardware channels, and how many of them waiting streams hold.
    pub(crate) channels: usize,
    pub(crate) waiting: usize,
}

/// The result of running a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// The lane made progress.
    Something,
    /// No progress was possible; a spinning kernel requests to run again at the given time.
    Nothing(Option<Time>),
}

impl Lane {
    pub(crate) fn new(shared: Arc<Shared>, queue: Consumer<Op>, memory: StreamMemory) -> Lane {
        Lane {
            shared,
            queue,
            graph: None,
            current: Current::Nothing,
            memory: Arc::new(memory),
        }
    }

    /// Whether the lane can make progress without another actor.
    pub(crate) fn is_ready(&self) -> bool {
        match self.current {
            Current::Nothing => self.graph.is_some() || !self.queue.is_empty(),
            Current::Moving(_) => true,
            _ => false,
        }
    }

    /// Whether the stream has no handle and no work, so that it can be removed.
    pub(crate) fn is_over(&self) -> bool {
        !self.has_begun()
            && self.shared.closed.load(Ordering::Acquire)
            && self.queue.is_empty()
            && !self.queue.has_unretired()
    }

    /// Once a step under weak memory. Returns whether stores are still held back.
    pub(crate) fn pass_time(&mut self) -> bool {
        let Some(mut buffer) = self.memory.weak() else {
            return false;
        };
        buffer.pass_time();
        let held_back = !buffer.is_empty();
        if !held_back {
            self.queue.retire();
        }
        held_back
    }

    /// Whether an operation has begun and not ended.
    pub(crate) fn has_begun(&self) -> bool {
        self.graph.is_some() || !matches!(self.current, Current::Nothing)
    }

    /// Takes the next operation: that of the graph that runs, or that of the queue.
    #[inline]
    fn next(&mut self, core: &Core) -> Option<Op> {
        match &mut self.graph {
            None => self.queue.pop(),
            Some((graph, taken)) => {
                let op = &graph.ops[*taken];
                *taken += 1;
                Some(match op {
                    // A clone would allocate.
                    Op::Launch(l) => Op::Launch(core.launches.take(&l.kernel, l.dims, &l.args)),
                    op => op.clone(),
                })
            }
        }
    }

    /// Runs at most `budget` operations, or one chunk of a longer one.
    pub(crate) fn run(&mut self, cx: &mut Cx<'_>, budget: u32) -> Ran {
        let mut ran = Ran::Nothing(None);
        for _ in 0..budget {
            let advanced = match &self.current {
                Current::Nothing => {
                    // When waiting streams hold every channel, no other stream starts an operation.
                    if cx.waiting >= cx.channels {
                        break;
                    }
                    let Some(op) = self.next(cx.core) else { break };
                    self.start(op, cx)
                }
                Current::Held(_) | Current::Ending if !self.all_visible() => break,
                Current::Held(_) => match std::mem::replace(&mut self.current, Current::Nothing) {
                    Current::Held(op) => self.start(op, cx),
                    _ => break,
                },
                Current::Ending => {
                    self.finish();
                    true
                }
                Current::Wait(wait) => {
                    let wait = *wait;
                    if !self.holds(wait) {
                        break;
                    }
                    cx.waiting -= 1;
                    self.pass(wait.flush, cx);
                    true
                }
                Current::Event(mark) => {
                    if !mark.is_complete() {
                        break;
                    }
                    self.finish();
                    true
                }
                Current::Moving(_) => {
                    self.move_chunk();
                    return Ran::Something;
                }
                Current::Grid(_) => return self.run_grid(cx),
            };
            ran = Ran::Something;
            if !advanced {
                break;
            }
        }
        ran
    }

    /// Executes an operation, or starts it. Returns `false` if it waits.
    #[inline]
    fn start(&mut self, op: Op, cx: &mut Cx<'_>) -> bool {
        if op.comes_after_writes() && !self.all_visible() {
            self.current = Current::Held(op);
            return false;
        }
        match op {
            Op::Write {
                at,
                value,
                wide,
                fenced,
            } => self.write(at, value, wide, fenced),
            Op::Wait(wait) => return self.start_wait(wait, cx),
            Op::Inline { at, len } => {
                self.inline_copy(at, len.into(), cx.core);
                self.finish();
            }
            Op::Fence => {
                fence(Ordering::SeqCst);
                self.finish();
            }
            Op::FlushRemote => self.pass(true, cx),
            Op::Record => self.finish(),
            Op::Stamp(stamp) => {
                stamp.set(cx.now);
                self.finish();
            }
            Op::Copy { .. } | Op::Fill { .. } => self.current = Current::Moving(op),
            Op::Launch(launch) => {
                self.shared.set_kernel(launch.kernel.name());
                let context = KernelContext {
                    hook: Arc::clone(&self.memory) as _,
                    config: cx.kernels.clone(),
                };
                let grid = Grid::new(&launch.kernel, launch.dims, &launch.args, context);
                self.current = Current::Grid(grid);
                cx.core.launches.put(launch);
            }
            Op::WaitEvent { ring, upto } => {
                let mark = Mark { ring, upto };
                if !mark.is_complete() {
                    self.current = Current::Event(mark);
                    return false;
                }
                self.finish();
            }
            // It does not end with this item, but with its last operation.
            Op::Graph(graph) => self.graph = Some((graph, 0)),
            // It was taken with its operation.
            Op::Data(_) => debug_assert!(false, "inline data without its operation"),
        }
        true
    }

    #[inline]
    fn write(&mut self, at: Target, value: u64, wide: bool, fenced: bool) {
        match self.memory.weak() {
            // SAFETY: see `Target`; alignment was checked when it was enqueued. Release, as
            // memory operations of strong memory are all ordered.
            None => unsafe { span::store(at.0, value, wide, Ordering::Release) },
            // SAFETY: see `Target`; the submission retires with an empty buffer.
            Some(mut buffer) => unsafe { buffer.store_word(at.0, value, wide, !fenced) },
        }
        self.finish();
    }

    #[inline]
    fn start_wait(&mut self, wait: Wait, cx: &mut Cx<'_>) -> bool {
        if self.holds(wait) {
            self.pass(wait.flush, cx);
            return true;
        }
        self.current = Current::Wait(wait);
        cx.waiting += 1;
        false
    }

    /// Whether a wait is satisfied. One load.
    #[inline]
    fn holds(&self, wait: Wait) -> bool {
        let Wait {
            at,
            value,
            mask,
            cond,
            wide,
            cyclic,
            ..
        } = wait;
        let word = match self.memory.weak() {
            // SAFETY: see `Target`; alignment was checked when it was enqueued. The acquire pairs
            // with the release store that satisfies the wait.
            None => unsafe { span::load(at.0, wide) },
            // SAFETY: as above.
            Some(buffer) => unsafe { buffer.load(at.0, wide) },
        };
        cond.holds(word, value, mask, wide, cyclic)
    }

    /// Completes a wait.
    #[inline]
    fn pass(&mut self, flush: bool, cx: &Cx<'_>) {
        if flush && let Some(posted) = &cx.core.posted {
            posted.drain();
        }
        self.finish();
    }

    /// Completes the current operation.
    #[inline]
    fn finish(&mut self) {
        self.current = Current::Nothing;
        if let Some((graph, taken)) = &self.graph {
            if *taken < graph.ops.len() {
                return;
            }
            if !self.all_visible() {
                self.current = Current::Ending;
                return;
            }
            self.graph = None;
        }
        if self.queue.finish() && self.all_visible() {
            self.queue.retire();
        }
    }

    /// Whether all writes of the stream are visible to others.
    #[inline]
    fn all_visible(&self) -> bool {
        self.memory.weak().is_none_or(|b| b.is_empty())
    }

    fn inline_copy(&mut self, at: Target, len: usize, core: &Core) {
        let mut bytes = [0; InlineData::LIMIT.next_multiple_of(DATA)];
        for part in bytes.chunks_exact_mut(DATA).take(len.div_ceil(DATA)) {
            match self.next(core) {
                Some(Op::Data(data)) => part.copy_from_slice(&data),
                other => debug_assert!(false, "{other:?} instead of inline data"),
            }
        }
        match self.memory.weak() {
            None => {
                fence(Ordering::Release);
                // SAFETY: see `Target`; the range was checked when it was enqueued.
                unsafe { span::copy(at.0, bytes.as_ptr(), len) };
            }
            Some(mut buffer) => {
                for (i, part) in bytes[..len].chunks(8).enumerate() {
                    // SAFETY: as above; the submission retires with an empty buffer.
                    unsafe { buffer.store(at.0.wrapping_add(8 * i), part, true) };
                }
            }
        }
    }

    /// Executes a chunk of a copy or fill.
    fn move_chunk(&mut self) {
        let Current::Moving(op) = &mut self.current else {
            return;
        };
        let (to, left) = match op {
            Op::Copy { to, from, len } => {
                let n = (*len).min(CHUNK);
                // SAFETY: see `Target`; both ranges were checked when the copy was enqueued,
                // and do not overlap.
                unsafe { span::copy(to.0, from.0, n) };
                from.0 = from.0.wrapping_add(n);
                (to, len)
            }
            Op::Fill { to, len, byte } => {
                // SAFETY: see `Target`; the range was checked when the fill was enqueued.
                unsafe { span::fill(to.0, *byte, (*len).min(CHUNK)) };
                (to, len)
            }
            _ => return,
        };
        let n = (*left).min(CHUNK);
        to.0 = to.0.wrapping_add(n);
        *left -= n;
        if *left == 0 {
            self.finish();
        }
    }

    /// Runs turns of a kernel's threads.
    fn run_grid(&mut self, cx: &Cx<'_>) -> Ran {
        let Current::Grid(grid) = &mut self.current else {
            return Ran::Nothing(None);
        };
        self.memory.set_now(cx.now.as_nanos());
        let access = DeviceAccess::enable(cx.core.key);
        cx.core
            .running
            .0
            .store(self.shared.id + 1, Ordering::Relaxed);
        let state = grid.run(cx.turns);
        cx.core.running.0.store(0, Ordering::Relaxed);
        drop(access);
        match state {
            GridState::Progress => Ran::Something,
            GridState::Spinning => Ran::Nothing(grid.deadline().map(Time::from_nanos)),
            GridState::Done => {
                self.current = Current::Ending;
                if self.all_visible() {
                    self.finish();
                }
                Ran::Something
            }
            GridState::Faulted(fault) => {
                cx.core.fail(DeviceError {
                    stream: self.shared.id,
                    fault,
                });
                Ran::Something
            }
        }
    }
}
