//! A running grid: the choice of the next thread, and the detection of its end, of deadlocks and of
//! waits.

use std::ptr::NonNull;
use std::sync::Arc;

use fastrand::Rng;

use super::abi;
use super::block::FiberId;
use super::fiber::{Job, Misuse, Order, Request};
use super::hook::{KernelContext, StoreHook};
use super::pool::Lease;
use super::work::BlockId;
use super::{Dims, Fault, Kernel};

/// In order, one of so many turns goes to a spinning thread. More rarely, because each needs
/// stacks, a turn goes to threads that have not started and to the next block, even while other
/// threads can continue: these may wait for threads not yet started.
const TURNS_TO_POLL: u32 = 16;
const TURNS_TO_START: u32 = 2048;

/// The state of a grid after [`Grid::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GridState {
    /// The budget is used up; threads can continue.
    Progress,
    /// Every live thread of every started block spins or sleeps, or waits for a thread that does.
    /// Each has checked its condition since the last progress. Only a change from outside or the
    /// clock ends the waits: see [`Grid::deadline`].
    Spinning,
    /// Every thread of every block has ended.
    Done,
    /// The grid has failed.
    Faulted(Fault),
}

/// The blocks and threads of a launch, from start to end.
///
/// The grid is `Send` between steps, because all its parts are: see `Fiber`. Dropping an unfinished
/// grid abandons its threads.
pub(crate) struct Grid {
    lease: Lease,
    hook: Arc<dyn StoreHook>,
    kernel: Kernel,
    dims: Dims,
    /// Lanes of a warp.
    warp: u32,
    resident_limit: u32,
    resident: u32,
    next_block: u64,
    turns: u32,
    rng: Option<Rng>,
    fault: Option<Fault>,
}

/// The next action of a grid.
enum Turn {
    /// A thread continues, or checks its condition if it spins.
    Resume(FiberId),
    /// Threads of a block start.
    Start(BlockId),
    /// The next block starts.
    Open,
    /// Every thread has checked its condition: no work.
    Quiet,
}

impl Grid {
    /// Prepares a launch with parameters of the kernel's size; no thread runs yet.
    pub(crate) fn new(kernel: &Kernel, dims: Dims, args: &[u8], context: KernelContext) -> Grid {
        debug_assert_eq!(kernel.check_args(args.len()), Ok(()));
        let KernelContext { hook, config } = context;
        let by_threads = config.resident_threads / dims.threads();
        let mut lease = config.pool.lease(config.stack_bytes);
        lease.set_args(args);
        Grid {
            lease,
            hook,
            kernel: *kernel,
            dims,
            warp: config.warp,
            resident_limit: config.resident_blocks.min(by_threads).max(1),
            resident: 0,
            next_block: 0,
            turns: 0,
            rng: config.seed.map(Rng::with_seed),
            fault: None,
        }
    }

    /// The number of stacks that the grid holds.
    #[cfg(test)]
    pub(super) fn stacks(&self) -> usize {
        self.lease.fibers.len()
    }

    /// The earliest time, in nanoseconds of the hook's clock, at which a thread that sleeps, or
    /// that spins with a timeout, must run. It is meaningful while the grid is spinning.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.lease.deadline()
    }

    /// Runs threads: starts or continues at most `budget` of them, at least one. Stores, fences and
    /// the clock are those of the context's hook.
    pub(crate) fn run(&mut self, budget: u32) -> GridState {
        if let Some(fault) = &self.fault {
            return GridState::Faulted(fault.clone());
        }
        let state = self.run_turns(budget.max(1));
        abi::set_thread(std::ptr::null());
        match state {
            Ok(state) => state,
            Err(fault) => {
                self.fault = Some(fault.clone());
                GridState::Faulted(fault)
            }
        }
    }

    fn run_turns(&mut self, budget: u32) -> Result<GridState, Fault> {
        let mut left = budget;
        self.wake();
        while left > 0 {
            let used = match self.choose() {
                Turn::Resume(id) => self.resume(id)?,
                Turn::Start(id) => self.start(id, left)?,
                Turn::Open => {
                    self.open();
                    0
                }
                Turn::Quiet if self.wake() => 0,
                Turn::Quiet => {
                    let work = &mut *self.lease;
                    if work.sleeping.is_empty() && work.polled.is_empty() {
                        return Ok(GridState::Done);
                    }
                    work.look_again();
                    return Ok(GridState::Spinning);
                }
            };
            left = left.saturating_sub(used);
        }
        Ok(GridState::Progress)
    }

    /// Continues the threads whose sleep has ended; returns whether there were any.
    fn wake(&mut self) -> bool {
        let work = &mut *self.lease;
        !work.sleeping.is_empty() && work.wake(self.hook.now_ns())
    }

    fn can_open(&self) -> bool {
        self.next_block < self.dims.blocks() && self.resident < self.resident_limit
    }

    fn choose(&mut self) -> Turn {
        self.turns = self.turns.wrapping_add(1);
        if self.rng.is_some() {
            return self.choose_any();
        }
        let can_open = self.can_open();
        let work = &mut *self.lease;
        if self.turns.is_multiple_of(TURNS_TO_POLL) {
            let turn = if !self.turns.is_multiple_of(TURNS_TO_START) {
                work.spinning.pop_front().map(Turn::Resume)
            } else if self.turns.is_multiple_of(2 * TURNS_TO_START) {
                can_open.then_some(Turn::Open)
            } else {
                work.starting.front().copied().map(Turn::Start)
            };
            if let Some(turn) = turn {
                return turn;
            }
        }
        if let Some(id) = work.ready.pop_front() {
            Turn::Resume(id)
        } else if let Some(&id) = work.starting.front() {
            Turn::Start(id)
        } else if can_open {
            Turn::Open
        } else if let Some(id) = work.spinning.pop_front() {
            Turn::Resume(id)
        } else {
            Turn::Quiet
        }
    }

    /// A random turn; all have the same probability.
    fn choose_any(&mut self) -> Turn {
        let can_open = self.can_open();
        let work = &mut *self.lease;
        let (ready, spinning) = (work.ready.len(), work.spinning.len());
        let starting = work.starting.len();
        let turns = ready + spinning + starting + usize::from(can_open);
        let Some(rng) = self.rng.as_mut().filter(|_| turns > 0) else {
            return Turn::Quiet;
        };
        let mut n = rng.usize(..turns);
        if n < ready {
            return work
                .ready
                .swap_remove_back(n)
                .map_or(Turn::Quiet, Turn::Resume);
        }
        n -= ready;
        if n < spinning {
            return work
                .spinning
                .swap_remove_back(n)
                .map_or(Turn::Quiet, Turn::Resume);
        }
        n -= spinning;
        if n < starting {
            Turn::Start(work.starting[n])
        } else {
            Turn::Open
        }
    }

    /// Makes the next block resident.
    fn open(&mut self) {
        let [x, y, _] = self.dims.grid().map(u64::from);
        let n = self.next_block;
        // Each is below its dimension, which is 32 bits.
        let index = [n % x, n / x % y, n / x / y].map(|i| i as u32);
        self.next_block += 1;
        self.resident += 1;
        let threads = self.dims.threads();
        let order = match &mut self.rng {
            Some(rng) => random_order(rng, threads, self.warp),
            None => Order {
                threads,
                step: 1,
                offset: 0,
                warp: self.warp,
            },
        };
        let work = &mut *self.lease;
        let id = work.free_block();
        work.blocks[id as usize].reset(index, order, self.dims.shared());
        work.starting.push_back(id);
    }

    /// Starts threads of a block on one fiber, until one suspends or `most` have ended.
    fn start(&mut self, id: BlockId, most: u32) -> Result<u32, Fault> {
        let most = if self.rng.is_some() { 1 } else { most };
        let work = &mut *self.lease;
        let fiber = work.idle_fiber().map_err(|error| Fault::NoStack {
            kernel: self.kernel.name,
            stacks: work.fibers.len(),
            reason: error.to_string(),
        })?;
        let job_args = work.args();
        let block = &work.blocks[id as usize];
        let job = Job {
            entry: self.kernel.entry,
            args: job_args,
            shared: &*block.shared,
            hook: Some(NonNull::from(&*self.hook)),
            block_idx: block.index,
            block_dim: self.dims.block(),
            grid_dim: self.dims.grid(),
            order: block.order,
        };
        let positions = block.next..(block.next.saturating_add(most)).min(block.order.threads);
        let slot = &mut work.fibers[fiber as usize];
        slot.fiber.assign(job, positions);
        slot.block = id;
        slot.busy = true;
        self.resume(fiber)
    }

    /// Resumes a fiber and records the results of its threads. Returns how many threads ran.
    fn resume(&mut self, id: FiberId) -> Result<u32, Fault> {
        let work = &mut *self.lease;
        let slot = &mut work.fibers[id as usize];
        let first = slot.fiber.position();
        let request = slot.fiber.resume(slot.reply);
        let at = slot.fiber.position();
        let block_id = slot.block;
        let block = &mut work.blocks[block_id as usize];
        for position in first..at {
            block.exit(position, &mut work.released);
        }
        let started = match request {
            Request::Idle => at,
            _ => {
                slot.fiber.bind();
                at + 1
            }
        };
        if started > block.next {
            block.next = started;
            if !block.has_unstarted() {
                work.starting.retain(|&b| b != block_id);
            }
        }
        let mut misuse = None;
        let mut did_something = true;
        match request {
            Request::Idle => {
                slot.busy = false;
                work.idle.push(id);
            }
            Request::Barrier { kind, predicate } => {
                let arrived = block.arrive(id, kind, predicate, &mut work.released);
                misuse = arrived.err();
            }
            Request::Warp(call) => block.call_warp(id, at, call, &mut work.released),
            Request::Spin { again, deadline } => {
                slot.deadline = deadline;
                did_something = !again || at > first;
                let queue = if again {
                    &mut work.polled
                } else {
                    &mut work.spinning
                };
                queue.push_back(id);
            }
            Request::Sleep { until } => {
                slot.deadline = until;
                work.sleeping.push(id);
            }
            Request::Fail(why) => misuse = Some(why),
        }
        if let Some(why) = misuse {
            return Err(self.misuse(block_id, at, &why));
        }
        if did_something {
            work.look_again();
            self.settle_block(block_id)?;
        }
        Ok((at - first).max(1))
    }

    /// After threads of the block ran: continues the threads whose waits have ended, closes the
    /// block if it has no thread left, and detects a divergence.
    fn settle_block(&mut self, id: BlockId) -> Result<(), Fault> {
        let work = &mut *self.lease;
        work.release();
        let block = &work.blocks[id as usize];
        if block.live() == 0 {
            work.free_blocks.push(id);
            self.resident -= 1;
        } else if block.is_stuck() {
            return Err(Fault::Divergence {
                kernel: self.kernel.name,
                block: block.index,
                waits: block.describe_waits(),
            });
        }
        Ok(())
    }

    fn misuse(&self, id: BlockId, position: u32, what: &Misuse) -> Fault {
        let block = &self.lease.blocks[id as usize];
        let [x, y, _] = self.dims.block();
        let thread = block.order.thread(position);
        Fault::Thread {
            kernel: self.kernel.name,
            block: block.index,
            thread: [thread % x, thread / x % y, thread / x / y],
            what: what.to_string(),
        }
    }
}

/// An order of a block's threads: every `step`-th thread, cyclic.
fn random_order(rng: &mut Rng, threads: u32, warp: u32) -> Order {
    let step = loop {
        let step = rng.u32(1..=threads);
        if gcd(step, threads) == 1 {
            break step;
        }
    };
    Order {
        threads,
        step,
        offset: rng.u32(..threads),
        warp,
    }
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
