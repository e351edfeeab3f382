//! The C functions that kernels call, and the running kernel thread on whose behalf they act.
//!
//! While a grid runs, a thread-local names the running kernel thread. It is read once at the
//! entry of each function, never after a suspension, for a grid may be resumed by another OS
//! thread. `softgpu.hpp` of gdsync-build is the other side.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::block::BarrierKind;
use super::fiber::{Misuse, Request, ThreadState};
use super::warp::{WarpCall, WarpKind, mask_of};

/// The sleep, in nanoseconds, of a thread that reads an unchanged clock.
const CLOCK_NAP: u64 = 64;

/// The data of a thread that a kernel reads; `softgpu_view` in C++.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) thread_idx: [u32; 3],
    pub(super) block_idx: [u32; 3],
    pub(super) block_dim: [u32; 3],
    pub(super) grid_dim: [u32; 3],
    pub(super) lane: u32,
    pub(super) warp_size: u32,
}

thread_local! {
    /// The kernel thread that runs on this OS thread; null outside of `Grid::run`.
    static THREAD: Cell<*const ThreadState> = const { Cell::new(ptr::null()) };
}

/// Sets the kernel thread that is about to be resumed; null: none.
#[inline]
pub(super) fn set_thread(state: *const ThreadState) {
    THREAD.set(state);
}

/// The running kernel thread.
///
/// # Safety
/// A kernel thread is running: kernel code that a grid resumed has called the caller. The reference
/// must not outlive the thread, whose state outlives all its calls.
#[inline]
unsafe fn thread<'a>() -> &'a ThreadState {
    // SAFETY: set by the grid before the resume that led here; the state belongs to a fiber
    // that the grid keeps for as long as it is suspended or runs.
    unsafe { &*THREAD.get() }
}

/// Defines functions as methods of the running kernel thread.
macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? {
        |$thread:ident| $body:expr
    })*) => {$(
        /// # Safety
        /// The caller is kernel code that a grid runs. A pointer is aligned and valid for the
        /// atomic access; for a store it stays valid until the grid is done.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: the caller's promise.
            let $thread = unsafe { thread() };
            $body
        }
    )*};
}

functions! {
    softgpu_self() -> *const View {
        |thread| thread.view()
    }
    softgpu_shared(key: *const c_void, size: usize, align: usize) -> *mut c_void {
        |thread| match thread.shared().named(key as usize, size, align) {
            Ok(p) => p.cast(),
            Err(why) => thread.fail(Misuse::Shared(why)),
        }
    }
    softgpu_dynamic_shared() -> *mut c_void {
        |thread| thread.shared().dynamic().cast()
    }
    softgpu_trap() -> ! {
        |thread| thread.fail(Misuse::Trap)
    }
    softgpu_store32(p: *mut u32, value: u32) {
        // SAFETY: the caller's promise, as in the three that follow.
        |thread| unsafe { thread.hook().store(p.cast(), value.into(), false, true) }
    }
    softgpu_store64(p: *mut u64, value: u64) {
        // SAFETY: as above.
        |thread| unsafe { thread.hook().store(p.cast(), value, true, false) }
    }
    softgpu_store64_whole(p: *mut u64, value: u64) {
        // SAFETY: as above.
        |thread| unsafe { thread.hook().store(p.cast(), value, true, true) }
    }
    softgpu_load32(p: *const u32) -> u32 {
        // SAFETY: as above.
        |thread| unsafe { thread.hook().load(p.cast(), false) as u32 }
    }
    softgpu_load64(p: *const u64) -> u64 {
        // SAFETY: as above.
        |thread| unsafe { thread.hook().load(p.cast(), true) }
    }
    softgpu_settle(p: *const c_void, size: usize) {
        |thread| thread.hook().settle(p.cast(), size)
    }
    softgpu_fence() {
        |thread| thread.hook().fence()
    }
    softgpu_now_ns() -> u64 {
        |thread| thread.hook().now_ns()
    }
}

/// # Safety
/// Called by kernel code that a grid runs.
#[unsafe(no_mangle)]
unsafe extern "C" fn softgpu_yield(reason: u32, deadline_ns: u64) {
    // SAFETY: the caller's promise.
    let thread = unsafe { thread() };
    let deadline = if deadline_ns == 0 {
        u64::MAX
    } else {
        deadline_ns
    };
    thread.suspend(match reason {
        0 => Request::Spin {
            again: false,
            deadline,
        },
        1 => Request::Spin {
            again: true,
            deadline,
        },
        2 => Request::Sleep { until: deadline_ns },
        other => Request::Fail(Misuse::Code("yield reason", other)),
    });
}

/// # Safety
/// Called by kernel code that a grid runs.
#[unsafe(no_mangle)]
unsafe extern "C" fn softgpu_barrier(kind: u32, predicate: u32) -> u32 {
    // SAFETY: the caller's promise.
    let thread = unsafe { thread() };
    let kind = match kind {
        0 => BarrierKind::Sync,
        1 => BarrierKind::Or,
        2 => BarrierKind::And,
        3 => BarrierKind::Count,
        other => thread.fail(Misuse::Code("barrier", other)),
    };
    thread.suspend(Request::Barrier {
        kind,
        predicate: predicate != 0,
    }) as u32
}

/// # Safety
/// Called by kernel code that a grid runs.
#[unsafe(no_mangle)]
unsafe extern "C" fn softgpu_warp(kind: u32, mask: u64, value: u64, arg: u32, width: u32) -> u64 {
    // SAFETY: the caller's promise.
    let thread = unsafe { thread() };
    let kind = match kind {
        0 => WarpKind::Sync,
        1 => WarpKind::Ballot,
        2 => WarpKind::Shuffle,
        3 => WarpKind::ShuffleUp,
        4 => WarpKind::ShuffleDown,
        5 => WarpKind::ShuffleXor,
        other => thread.fail(Misuse::Code("warp operation", other)),
    };
    let (lane, lanes) = thread.lane();
    let mask = mask & mask_of(lanes);
    if mask >> lane & 1 == 0 {
        thread.fail(Misuse::LaneNotInMask(mask));
    }
    if !(width.is_power_of_two() && width <= lanes) {
        thread.fail(Misuse::Code("shuffle width", width));
    }
    thread.suspend(Request::Warp(WarpCall {
        kind,
        mask,
        value,
        arg,
        width,
    }))
}

/// The time for kernels. A thread that reads the same time again sleeps, so that a loop that polls
/// the clock does not stop the clock.
///
/// # Safety
/// Called by kernel code that a grid runs.
#[unsafe(no_mangle)]
unsafe extern "C" fn softgpu_clock_ns() -> u64 {
    // SAFETY: the caller's promise.
    let thread = unsafe { thread() };
    let now = thread.hook().now_ns();
    if now != thread.swap_clock(now) {
        return now;
    }
    // The reply to a sleep is the time.
    let now = thread.suspend(Request::Sleep {
        until: now.saturating_add(CLOCK_NAP),
    });
    thread.swap_clock(now);
    now
}
