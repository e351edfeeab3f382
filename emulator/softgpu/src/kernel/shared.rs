//! The shared memory of a block.

use std::alloc::{self, Layout};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use super::MAX_DYNAMIC_SHARED;

/// The maximal named shared memory of a block in bytes, as on a GPU.
const MAX_NAMED: usize = 48 * 1024;
/// The maximal number of variables of a block.
const MAX_NAMES: usize = 64;
/// The initial content of shared memory, on which no kernel may rely.
const GARBAGE: u8 = 0xa5;
/// Dynamic memory, then named memory; both have the maximal alignment of a variable.
const LAYOUT: Layout = match Layout::from_size_align(MAX_NAMED + MAX_DYNAMIC_SHARED as usize, 128) {
    Ok(layout) => layout,
    Err(_) => panic!("a valid layout"),
};

const _: () = assert!((MAX_DYNAMIC_SHARED as usize).is_multiple_of(LAYOUT.align()));

/// A request of a thread for shared memory that cannot be satisfied.
#[derive(Debug, thiserror::Error)]
pub(super) enum SharedError {
    #[error(
        "{want} bytes of shared memory do not fit beside {used} bytes in use; the limit is {MAX_NAMED}"
    )]
    Full { want: usize, used: usize },
    #[error("the block has more than {MAX_NAMES} variables in shared memory")]
    TooManyNames,
    #[error("shared memory cannot be aligned to {0} bytes; the limit is 128")]
    Alignment(usize),
}

/// Storage that the threads of one block share: dynamic memory first, then variables, each
/// identified by the address of its declaration's key.
#[derive(Default)]
pub(super) struct Shared {
    /// Allocated at the first request of a block, and kept for later blocks.
    base: Cell<Option<NonNull<u8>>>,
    /// Bytes taken by variables.
    used: Cell<usize>,
    /// Key and offset of each variable.
    names: RefCell<Vec<(usize, usize)>>,
}

impl Shared {
    /// Resets it for a new block with `dynamic` bytes of dynamic memory.
    pub(super) fn reset(&self, dynamic: u32) {
        let dynamic = dynamic as usize;
        self.used.set(0);
        self.names.borrow_mut().clear();
        if dynamic > 0 {
            // SAFETY: at least MAX_DYNAMIC_SHARED bytes, and no thread of the block runs yet.
            unsafe { self.base().as_ptr().write_bytes(GARBAGE, dynamic) };
        }
    }

    fn base(&self) -> NonNull<u8> {
        if let Some(base) = self.base.get() {
            return base;
        }
        // SAFETY: the layout is not of size zero.
        let Some(base) = NonNull::new(unsafe { alloc::alloc(LAYOUT) }) else {
            alloc::handle_alloc_error(LAYOUT)
        };
        self.base.set(Some(base));
        base
    }

    /// The block's dynamic memory.
    pub(super) fn dynamic(&self) -> *mut u8 {
        self.base().as_ptr()
    }

    /// The variable of this key; the first thread that requests it creates it.
    pub(super) fn named(
        &self,
        key: usize,
        size: usize,
        align: usize,
    ) -> Result<*mut u8, SharedError> {
        let mut names = self.names.borrow_mut();
        if let Some(&(_, offset)) = names.iter().find(|name| name.0 == key) {
            // SAFETY: the offset was found to be inside the allocation below.
            return Ok(unsafe { self.base().as_ptr().add(offset) });
        }
        if align > LAYOUT.align() {
            return Err(SharedError::Alignment(align));
        }
        let used = self.used.get().next_multiple_of(align.max(1));
        let end = used.checked_add(size).filter(|&end| end <= MAX_NAMED);
        let Some(end) = end else {
            return Err(SharedError::Full { want: size, used });
        };
        if names.len() == MAX_NAMES {
            return Err(SharedError::TooManyNames);
        }
        let offset = MAX_DYNAMIC_SHARED as usize + used;
        // SAFETY: `end` is at most MAX_NAMED, so offset + size is inside the allocation, which is
        // aligned to more than `align`; there is no other pointer to these bytes yet.
        let p = unsafe {
            let p = self.base().as_ptr().add(offset);
            p.write_bytes(GARBAGE, size);
            p
        };
        self.used.set(end);
        names.push((key, offset));
        Ok(p)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(base) = self.base.get() {
            // SAFETY: allocated with this layout in `base`; no thread of the block is left.
            unsafe { alloc::dealloc(base.as_ptr(), LAYOUT) };
        }
    }
}
