//! The fiber of a rank, and how code in a fiber yields to the scheduler.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Result;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use gds_step::Step;

/// The running rank, for code deep inside it.
#[derive(Clone, Copy)]
struct Here {
    /// The address of the simulation's core, which distinguishes simulations on one thread.
    sim: *const (),
    yielder: *const Yielder<(), Step>,
}

thread_local! {
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
}

/// The code of a rank on a separate stack. It yields the result of each step.
pub(super) struct Fiber(Coroutine<(), Step, ()>);

impl Fiber {
    /// `sim`: the address of the simulation's core.
    pub(super) fn new(stack: usize, sim: *const (), body: Box<dyn FnOnce()>) -> io::Result<Fiber> {
        let stack = DefaultStack::new(stack)?;
        Ok(Fiber(Coroutine::with_stack(stack, move |yielder, ()| {
            HERE.set(Some(Here { sim, yielder }));
            body();
        })))
    }

    /// Runs the rank until it waits, or to its end (`None`).
    ///
    /// # Errors
    /// The payload of the rank's panic.
    pub(super) fn resume(&mut self) -> Result<Option<Step>> {
        outside(|| {
            catch_unwind(AssertUnwindSafe(|| match self.0.resume(()) {
                CoroutineResult::Yield(step) => Some(step),
                CoroutineResult::Return(()) => None,
            }))
        })
    }

    /// Unwinds a rank that has not ended, so that its destructors run.
    ///
    /// # Errors
    /// The payload of a panic of the rank during the unwinding.
    pub(super) fn unwind(&mut self) -> Result<()> {
        outside(|| catch_unwind(AssertUnwindSafe(|| self.0.force_unwind())))
    }
}

/// Runs `f` as code outside all ranks, such as the scheduler or a machine's step.
pub(super) fn outside<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Here>);
    impl Drop for Restore {
        fn drop(&mut self) {
            HERE.set(self.0);
        }
    }
    let _restore = Restore(HERE.replace(None));
    f()
}

/// Whether the caller runs inside a rank of the simulation.
pub(super) fn inside(sim: *const ()) -> bool {
    HERE.get().is_some_and(|here| std::ptr::eq(here.sim, sim))
}

/// Yields to the scheduler with the result since the last yield. The caller must be [`inside`] a
/// rank.
pub(super) fn pause(achieved: Step) {
    let here = HERE.get();
    let Some(Here { yielder, .. }) = here else {
        return;
    };
    // SAFETY: HERE names the rank that is running on this thread now: it is set when a fiber
    // starts or continues and cleared while anything else runs (`outside`). The yielder lives on
    // the running fiber's stack, below every frame of its body.
    unsafe { &*yielder }.suspend(achieved);
    HERE.set(here);
}
