//! The stacks and tables of a running grid: its fibers, its blocks, and the queues of runnable
//! threads.

use std::collections::VecDeque;
use std::io;

use super::block::{Block, FiberId, Released};
use super::fiber::Fiber;

/// The maximal number of blocks kept after the end of a grid.
const KEPT_BLOCKS: usize = 64;

/// The index of a resident block.
pub(super) type BlockId = u32;

/// A fiber and the state of the thread on it.
pub(super) struct Slot {
    pub(super) fiber: Fiber,
    /// A thread of `block` is suspended on the fiber.
    pub(super) busy: bool,
    pub(super) block: BlockId,
    /// The reply to its request at the next resume.
    pub(super) reply: u64,
    /// The time at which a spinning or sleeping thread must check again; `u64::MAX`: never.
    pub(super) deadline: u64,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Work {
    stack_bytes: usize,
    pub(super) fibers: Vec<Slot>,
    /// Fibers without a thread; the one used last is taken first, because its stack is in the
    /// cache.
    pub(super) idle: Vec<FiberId>,
    /// Threads that can continue.
    pub(super) ready: VecDeque<FiberId>,
    /// Threads that spin and have not checked since the last progress.
    pub(super) spinning: VecDeque<FiberId>,
    /// Threads that spin and have checked.
    pub(super) polled: VecDeque<FiberId>,
    pub(super) sleeping: Vec<FiberId>,
    pub(super) blocks: Vec<Block>,
    pub(super) free_blocks: Vec<BlockId>,
    /// Blocks with threads left to start.
    pub(super) starting: VecDeque<BlockId>,
    pub(super) released: Released,
    args: Vec<u128>,
}

impl Work {
    pub(super) fn new(stack_bytes: usize) -> Work {
        Work {
            stack_bytes,
            ..Work::default()
        }
    }

    pub(super) fn stack_bytes(&self) -> usize {
        self.stack_bytes
    }

    /// Copies a kernel's parameters to the memory that its threads read, aligned to 16 bytes.
    pub(super) fn set_args(&mut self, args: &[u8]) {
        self.args.clear();
        self.args.extend(args.chunks(16).map(|chunk| {
            let mut bytes = [0; 16];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(bytes)
        }));
    }

    /// The address of the parameters, valid until they are set again.
    pub(super) fn args(&self) -> *const std::ffi::c_void {
        self.args.as_ptr().cast()
    }

    /// Returns an idle fiber; creates one if there is none.
    ///
    /// # Errors
    /// The operating system returned no stack.
    pub(super) fn idle_fiber(&mut self) -> io::Result<FiberId> {
        if let Some(id) = self.idle.pop() {
            return Ok(id);
        }
        let id = self.fibers.len() as FiberId;
        self.fibers.push(Slot {
            fiber: Fiber::new(self.stack_bytes)?,
            busy: false,
            block: 0,
            reply: 0,
            deadline: u64::MAX,
        });
        Ok(id)
    }

    /// Returns a block without threads; creates one if there is none.
    pub(super) fn free_block(&mut self) -> BlockId {
        self.free_blocks.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            (self.blocks.len() - 1) as BlockId
        })
    }

    /// Continues the fibers whose wait has ended.
    pub(super) fn release(&mut self) {
        for (fiber, reply) in self.released.drain(..) {
            self.fibers[fiber as usize].reply = reply;
            self.ready.push_back(fiber);
        }
    }

    /// Records progress: the spinning threads must check again.
    #[inline]
    pub(super) fn look_again(&mut self) {
        if !self.polled.is_empty() {
            self.spinning.append(&mut self.polled);
        }
    }

    /// Continues the threads whose sleep has ended. Returns whether there were any.
    pub(super) fn wake(&mut self, now: u64) -> bool {
        let (fibers, ready) = (&mut self.fibers, &mut self.ready);
        let before = self.sleeping.len();
        self.sleeping.retain(|&id| {
            let slot = &mut fibers[id as usize];
            let due = slot.deadline <= now;
            if due {
                slot.reply = now;
                ready.push_back(id);
            }
            !due
        });
        self.sleeping.len() < before
    }

    /// The earliest time at which a thread must check again.
    pub(super) fn deadline(&self) -> Option<u64> {
        let waiting = self
            .spinning
            .iter()
            .chain(&self.polled)
            .chain(&self.sleeping);
        waiting
            .map(|&id| self.fibers[id as usize].deadline)
            .min()
            .filter(|&deadline| deadline != u64::MAX)
    }

    /// Abandons the grid: all fibers and blocks are idle afterwards, and at most the given number
    /// of fibers is kept.
    pub(super) fn reset(&mut self, most_fibers: usize) {
        let unfinished = self.idle.len() < self.fibers.len();
        if unfinished {
            for slot in self.fibers.iter_mut().filter(|slot| slot.busy) {
                slot.fiber.reset();
                slot.busy = false;
            }
        }
        if unfinished || self.fibers.len() > most_fibers {
            self.fibers.truncate(most_fibers);
            self.idle.clear();
            self.idle.extend(0..self.fibers.len() as FiberId);
        }
        if self.free_blocks.len() < self.blocks.len() || self.blocks.len() > KEPT_BLOCKS {
            self.blocks.truncate(KEPT_BLOCKS);
            self.free_blocks.clear();
            self.free_blocks.extend(0..self.blocks.len() as BlockId);
        }
        self.ready.clear();
        self.spinning.clear();
        self.polled.clear();
        self.sleeping.clear();
        self.starting.clear();
        self.released.clear();
    }
}
