//! A fiber: a stack on which kernel threads run, one after the other.
//!
//! The grid assigns a range of threads of one block to a fiber. If a thread never suspends, the
//! fiber continues with the next thread on the same stack. A thread that suspends keeps the fiber
//! until it ends, and the grid assigns the rest of the range to another fiber.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::{io, ptr};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::Entry;
use super::abi::{self, View};
use super::block::BarrierKind;
use super::hook::StoreHook;
use super::shared::{Shared, SharedError};
use super::warp::WarpCall;

/// The reason for which a fiber yields.
#[derive(Debug)]
pub(super) enum Request {
    /// Every thread of its range has ended.
    Idle,
    /// The thread waits for the others of its block. Reply: the vote.
    Barrier { kind: BarrierKind, predicate: bool },
    /// The thread waits for lanes of its warp. Reply: the value.
    Warp(WarpCall),
    /// The thread found a condition false: for the first time, or `again` without other work in
    /// between. It requests another check at `deadline` (nanoseconds, `u64::MAX`: none).
    Spin { again: bool, deadline: u64 },
    /// The thread sleeps until `until`. Reply: the time.
    Sleep { until: u64 },
    /// The thread has failed and is never resumed.
    Fail(Misuse),
}

/// An action of a thread that no GPU permits.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misuse {
    #[error("{0}")]
    Shared(SharedError),
    #[error("a warp operation has mask {0:#010x}, which leaves out the calling lane")]
    LaneNotInMask(u64),
    #[error("{0} {1} does not exist")]
    Code(&'static str, u32),
    #[error("threads of the block wait at different barriers: {0} after {1}")]
    MixedBarriers(BarrierKind, BarrierKind),
    #[error("the thread executed __trap()")]
    Trap,
}

/// The threads of one block that a fiber runs, and their data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) entry: Entry,
    pub(super) args: *const c_void,
    pub(super) shared: *const Shared,
    /// `None` only before the first job.
    pub(super) hook: Option<NonNull<dyn StoreHook>>,
    pub(super) block_idx: [u32; 3],
    pub(super) block_dim: [u32; 3],
    pub(super) grid_dim: [u32; 3],
    pub(super) order: Order,
}

/// The order in which the threads of a block start: `(step * position + offset) % threads`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Order {
    pub(super) threads: u32,
    /// Coprime to `threads`.
    pub(super) step: u32,
    pub(super) offset: u32,
    /// Lanes of a warp: 32 or 64.
    pub(super) warp: u32,
}

impl Order {
    /// The linear thread number at a position.
    #[inline]
    pub(super) fn thread(self, position: u32) -> u32 {
        if self.step == 1 && self.offset == 0 {
            position
        } else {
            (position * self.step + self.offset) % self.threads
        }
    }

    /// The warp of a linear thread number, and its lane there.
    #[inline]
    pub(super) fn place(self, thread: u32) -> (u32, u32) {
        (thread / self.warp, thread % self.warp)
    }
}

/// The state that a fiber and the grid share: the fiber writes it while it runs, the grid while the
/// fiber does not run. It does not move, so that kernel code can hold the address of its view.
pub(super) struct ThreadState {
    view: UnsafeCell<View>,
    job: Cell<Job>,
    /// The position in the job's order of the running thread, and one past the last thread of this
    /// fiber.
    at: Cell<u32>,
    end: Cell<u32>,
    /// The last time that the thread read.
    clock: Cell<u64>,
    yielder: Cell<*const Yielder<u64, Request>>,
}

impl ThreadState {
    #[inline]
    pub(super) fn view(&self) -> *const View {
        self.view.get()
    }

    /// The running thread's lane in its warp, and the lanes of a warp.
    #[inline]
    pub(super) fn lane(&self) -> (u32, u32) {
        let order = self.job.get().order;
        (order.place(order.thread(self.at.get())).1, order.warp)
    }

    /// The shared memory of the running thread's block.
    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        // SAFETY: the grid keeps a block's shared memory in its place until all its threads have
        // ended or been reset; a thread of the block is running.
        unsafe { &*self.job.get().shared }
    }

    /// The memory and clock of the grid's stream.
    #[inline]
    pub(super) fn hook(&self) -> &dyn StoreHook {
        let Some(hook) = self.job.get().hook else {
            unreachable!("a kernel thread runs only as part of a job");
        };
        // SAFETY: the grid holds a share of the hook until its threads have ended or been
        // reset; a thread of the grid is running.
        unsafe { hook.as_ref() }
    }

    /// Stores the clock and returns the previous value.
    #[inline]
    pub(super) fn swap_clock(&self, now: u64) -> u64 {
        self.clock.replace(now)
    }

    /// Yields. Returns the grid's reply when the thread is resumed, possibly by another OS thread.
    #[inline]
    pub(super) fn suspend(&self, request: Request) -> u64 {
        // SAFETY: set by `run_threads` on this fiber's stack, where it outlives every thread.
        unsafe { &*self.yielder.get() }.suspend(request)
    }

    /// Stops the thread permanently.
    #[cold]
    pub(super) fn fail(&self, why: Misuse) -> ! {
        let mut request = Request::Fail(why);
        loop {
            self.suspend(request);
            // A failed thread is never resumed: its grid has faulted.
            request = Request::Fail(Misuse::Trap);
        }
    }

    /// Sets the view of the thread at `position` and runs the thread to its end.
    #[inline]
    fn run_thread(&self, job: &Job, position: u32) {
        let linear = job.order.thread(position);
        let [x, y, _] = job.block_dim;
        let thread_idx = if linear < x {
            [linear, 0, 0]
        } else {
            [linear % x, linear / x % y, linear / x / y]
        };
        self.at.set(position);
        self.clock.set(u64::MAX);
        // SAFETY: the view is only read by the kernel thread that this fiber runs, and none
        // runs now; the grid does not touch it.
        unsafe {
            let view = self.view.get();
            (*view).thread_idx = thread_idx;
            (*view).lane = job.order.place(linear).1;
        }
        // SAFETY: `Kernel::new` promises an entry that takes these parameters; the grid keeps
        // `args`, as long and as aligned as the kernel wants, until its threads have ended.
        unsafe { (job.entry)(job.args) };
    }
}

/// A stack with the threads that run on it.
pub(super) struct Fiber {
    coroutine: ManuallyDrop<Coroutine<u64, Request, ()>>,
    /// An `Rc` instead of a box, because a box would claim unique access; the count stays one.
    state: Rc<ThreadState>,
}

// SAFETY: a suspended fiber's stack holds the frames of `run_threads`, of a kernel (C++, whose
// contract forbids thread-locals) and of `abi` functions, which hold no value bound to an OS
// thread across a suspension: they read their thread-locals before it and never after. The
// pointers in `state` lead to memory that the grid owns and moves along with the fiber, and
// there is no clone of the `Rc` in `state`.
unsafe impl Send for Fiber {}

impl Fiber {
    /// Creates a fiber with a stack and a guard page below it.
    ///
    /// # Errors
    /// The operating system returned no memory.
    pub(super) fn new(stack_bytes: usize) -> io::Result<Fiber> {
        unsafe extern "C" fn nothing(_: *const c_void) {}
        let state = Rc::new(ThreadState {
            view: UnsafeCell::default(),
            job: Cell::new(Job {
                entry: nothing,
                args: ptr::null(),
                shared: ptr::null(),
                hook: None,
                block_idx: [0; 3],
                block_dim: [1; 3],
                grid_dim: [1; 3],
                order: Order::default(),
            }),
            at: Cell::new(0),
            end: Cell::new(0),
            clock: Cell::new(0),
            yielder: Cell::new(ptr::null()),
        });
        let stack = DefaultStack::new(stack_bytes)?;
        Ok(Fiber {
            coroutine: ManuallyDrop::new(start(stack, &state)),
            state,
        })
    }

    /// Gives an idle fiber the threads at `positions` to run at its next resume.
    #[inline]
    pub(super) fn assign(&mut self, job: Job, positions: Range<u32>) {
        self.state.at.set(positions.start);
        self.state.end.set(positions.end);
        self.state.job.set(job);
        // SAFETY: the fiber is idle: no kernel thread reads the view.
        let view = unsafe { &mut *self.state.view.get() };
        view.block_idx = job.block_idx;
        view.block_dim = job.block_dim;
        view.grid_dim = job.grid_dim;
        view.warp_size = job.order.warp;
    }

    /// The position of the thread that suspended, or one past the last that ended.
    #[inline]
    pub(super) fn position(&self) -> u32 {
        self.state.at.get()
    }

    /// Leaves this fiber to the thread that suspended on it: the rest of its range is run by
    /// another fiber.
    #[inline]
    pub(super) fn bind(&mut self) {
        self.state.end.set(self.state.at.get() + 1);
    }

    /// Runs the fiber until it yields. `reply` answers its last request.
    #[inline]
    pub(super) fn resume(&mut self, reply: u64) -> Request {
        abi::set_thread(&*self.state);
        match self.coroutine.resume(reply) {
            CoroutineResult::Yield(request) => request,
            CoroutineResult::Return(()) => unreachable!("run_threads has no end"),
        }
    }

    /// Abandons the thread on the fiber, which is idle afterwards.
    pub(super) fn reset(&mut self) {
        // SAFETY: taken once, and written again before any other access.
        let mut old = unsafe { ManuallyDrop::take(&mut self.coroutine) };
        // SAFETY: nothing on the stack needs its destructor: see `Drop`.
        unsafe { old.force_reset() };
        self.coroutine = ManuallyDrop::new(start(old.into_stack(), &self.state));
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // SAFETY: `run_threads` and the `abi` functions hold no value with a destructor
        // across a suspension, and kernels promise none that matters; so the frames may be
        // forgotten and the stack freed. Unwinding them instead is not possible: they are C++
        // frames built without exceptions.
        unsafe {
            self.coroutine.force_reset();
            ManuallyDrop::drop(&mut self.coroutine);
        }
    }
}

fn start(stack: DefaultStack, state: &ThreadState) -> Coroutine<u64, Request, ()> {
    let state: *const ThreadState = state;
    Coroutine::with_stack(stack, move |yielder, _| {
        // SAFETY: the state belongs to the fiber that owns the coroutine, and outlives it.
        run_threads(yielder, unsafe { &*state })
    })
}

/// The main loop of a fiber: it runs ranges of threads, for ever.
fn run_threads(yielder: &Yielder<u64, Request>, state: &ThreadState) {
    state.yielder.set(yielder);
    loop {
        let job = state.job.get();
        let mut position = state.at.get();
        // The end is read again after each thread: a suspended thread has moved it.
        while position < state.end.get() {
            state.run_thread(&job, position);
            position += 1;
        }
        state.at.set(position);
        yielder.suspend(Request::Idle);
    }
}
