//! The memory size of a GPU, and the part in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Error;

/// The memory of one GPU.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// The bytes in use. Relaxed: a count, which orders nothing.
    used: AtomicUsize,
}

/// A part of a GPU's memory size, returned when dropped.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<Budget>,
    len: usize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Arc<Budget> {
        let used = AtomicUsize::new(0);
        Arc::new(Budget { limit, used })
    }

    /// Takes `len` bytes for `what`.
    ///
    /// # Errors
    /// Less than `len` bytes are left.
    pub(crate) fn take(
        self: &Arc<Budget>,
        what: &'static str,
        len: usize,
    ) -> Result<Reserved, Error> {
        let limit = self.limit;
        let more = |used: usize| used.checked_add(len).filter(|used| *used <= limit);
        match (self.used).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Reserved {
                budget: Arc::clone(self),
                len,
            }),
            Err(used) => Err(Error::OutOfMemory {
                what,
                len,
                used,
                limit,
            }),
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.len, Ordering::Relaxed);
    }
}
