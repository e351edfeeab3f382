//! Where a grid's stacks and tables come from, and go back to.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::work::Work;

/// Sets of tables kept for grids to come.
const KEPT: usize = 8;

/// Stacks and tables of grids that have ended, for the next ones: a launch in steady state
/// allocates nothing. Clones share; a GPU has one.
#[derive(Clone, Default)]
pub struct GridPool(Arc<Mutex<Vec<Box<Work>>>>);

impl GridPool {
    /// Lends a set whose stacks have `stack_bytes`, all of it idle.
    pub(super) fn lease(&self, stack_bytes: usize) -> Lease {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let work = match kept {
            Some(work) if work.stack_bytes() == stack_bytes => work,
            _ => Box::new(Work::new(stack_bytes)),
        };
        Lease {
            work: ManuallyDrop::new(work),
            pool: self.clone(),
        }
    }

    fn put(&self, work: Box<Work>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(work);
        }
    }
}

impl fmt::Debug for GridPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GridPool(..)")
    }
}

/// A set of stacks and tables that goes back to its pool, reset, when dropped.
pub(super) struct Lease {
    work: ManuallyDrop<Box<Work>>,
    pool: GridPool,
}

impl Deref for Lease {
    type Target = Work;

    fn deref(&self) -> &Work {
        &self.work
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Work {
        &mut self.work
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: taken only here, and `work` is not looked at again.
        let mut work = unsafe { ManuallyDrop::take(&mut self.work) };
        work.reset();
        self.pool.put(work);
    }
}
