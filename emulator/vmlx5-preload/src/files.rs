//! The descriptors of our device files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmlx5_uverbs::Context;

/// Descriptors with a separate mark.
const MARKS: usize = 1 << 16;

const NONE: u8 = 0;
const OURS: u8 = 1;
/// Opened by the parent before the fork.
const DEAD: u8 = 2;

/// The kind of each descriptor. Read relaxed on every interposed call: a program receives a
/// descriptor from the thread that opened it, and with it all earlier writes. The table itself is
/// behind a lock.
static MARK: [AtomicU8; MARKS] = [const { AtomicU8::new(NONE) }; MARKS];

/// The number of our descriptors above those with marks. Relaxed, as the marks.
static BEYOND: AtomicUsize = AtomicUsize::new(0);

type Table = Mutex<BTreeMap<i32, Arc<Context>>>;

/// The open device files of this process. A child starts with another table, because its parent's
/// table may have been locked at the fork. Written in the child's only thread, so relaxed suffices.
static TABLE: AtomicUsize = AtomicUsize::new(0);

fn table() -> MutexGuard<'static, BTreeMap<i32, Arc<Context>>> {
    let mut at = TABLE.load(Ordering::Acquire);
    if at == 0 {
        let new = Box::into_raw(Box::new(Table::default())) as usize;
        at = match TABLE.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: there is no other reference to this box.
                drop(unsafe { Box::from_raw(new as *mut Table) });
                other
            }
        };
    }
    // SAFETY: a box that was leaked above: it stays for ever.
    let table = unsafe { &*(at as *const Table) };
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kind of a descriptor.
pub enum File {
    Ours(Arc<Context>),
    /// Opened by the process before the fork.
    Dead,
}

/// The kind of a descriptor, if it is one of ours.
#[inline]
pub fn find(fd: i32) -> Option<File> {
    match mark(fd) {
        NONE => None,
        DEAD => Some(File::Dead),
        _ => table().get(&fd).cloned().map(File::Ours),
    }
}

#[inline]
fn mark(fd: i32) -> u8 {
    match MARK.get(fd as usize) {
        Some(mark) => mark.load(Ordering::Relaxed),
        None if fd >= 0 && BEYOND.load(Ordering::Relaxed) > 0 => OURS,
        None => NONE,
    }
}

fn set_mark(fd: i32, value: u8) {
    if let Some(mark) = MARK.get(fd as usize) {
        mark.store(value, Ordering::Relaxed);
    }
}

/// Adds a descriptor to ours.
pub fn insert(fd: i32, context: Arc<Context>) {
    if fd as usize >= MARKS {
        BEYOND.fetch_add(1, Ordering::Relaxed);
    }
    let former = table().insert(fd, context);
    set_mark(fd, OURS);
    // Outside the lock: the drop of a context takes time.
    drop(former);
}

/// Removes a closed descriptor. Its context ends with its last descriptor.
pub fn remove(fd: i32) {
    if mark(fd) == NONE {
        return;
    }
    set_mark(fd, NONE);
    let former = table().remove(&fd);
    if former.is_some() && fd as usize >= MARKS {
        BEYOND.fetch_sub(1, Ordering::Relaxed);
    }
    drop(former);
}

/// Removes all descriptors from `first` to `last`, which are closed in one call.
pub fn remove_range(first: u32, last: u32) {
    let end = MARKS.min((last as usize).saturating_add(1));
    for fd in first as usize..end {
        remove(fd as i32);
    }
    if last as usize >= MARKS && BEYOND.load(Ordering::Relaxed) > 0 {
        let first = i32::try_from(first.max(MARKS as u32)).unwrap_or(i32::MAX);
        let beyond: Vec<i32> = table().range(first..).map(|(&fd, _)| fd).collect();
        for fd in beyond.into_iter().filter(|&fd| fd as u32 <= last) {
            remove(fd);
        }
    }
}

/// Called in the child of a fork: no device file of the parent is usable here.
pub fn forget() {
    TABLE.store(0, Ordering::Release);
    BEYOND.store(0, Ordering::Relaxed);
    for mark in &MARK {
        if mark.load(Ordering::Relaxed) == OURS {
            mark.store(DEAD, Ordering::Relaxed);
        }
    }
}
