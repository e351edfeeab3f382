//! The pool of stacks and tables for grids.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use super::work::Work;

/// The limits of the sets of tables kept for later grids, and of the stacks in all of them. A stack
/// uses two of the 65,530 mappings that Linux permits per process.
const KEPT: usize = 8;
const KEPT_STACKS: usize = 4096;

/// Stacks and tables of ended grids, for later grids: a launch in steady state allocates nothing.
/// Clones share the pool; a GPU has one.
#[derive(Clone, Default)]
#[allow(clippy::vec_box)] // The boxes are what is lent.
pub struct GridPool(Arc<Mutex<Vec<Box<Work>>>>);

impl GridPool {
    /// Lends an idle set whose stacks have `stack_bytes` bytes.
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

    fn put(&self, mut work: Box<Work>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            let stacks: usize = kept.iter().map(|work| work.fibers.len()).sum();
            work.reset(KEPT_STACKS.saturating_sub(stacks));
            kept.push(work);
        }
    }
}

impl fmt::Debug for GridPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GridPool(..)")
    }
}

/// A set of stacks and tables that returns to its pool when dropped.
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
        // SAFETY: taken only here, and `work` is not used again.
        let work = unsafe { ManuallyDrop::take(&mut self.work) };
        self.pool.put(work);
    }
}
