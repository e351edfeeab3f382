//! The kernels of `tests/kernels.cpp`, run and checked against references.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::span;

mod run;
mod sync;
mod wait;

/// The calls that a hook has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookCall {
    /// The address, the value, and whether the store is wide.
    Store(usize, u64, bool),
    Settle(usize, usize),
    Fence,
}

/// A hook that stores at once, records its calls, and has a settable clock.
#[derive(Default)]
struct Plain {
    now: AtomicU64,
    calls: Mutex<Vec<HookCall>>,
}

impl Plain {
    fn note(&self, calls: HookCall) {
        self.calls.lock().unwrap().push(calls);
    }

    fn set_now(&self, ns: u64) {
        self.now.store(ns, Ordering::Relaxed);
    }
}

impl StoreHook for Plain {
    unsafe fn store(&self, ptr: *mut u8, value: u64, wide: bool, _whole: bool) {
        self.note(HookCall::Store(ptr as usize, value, wide));
        // SAFETY: the caller's promise.
        unsafe { span::store(ptr, value, wide, Ordering::Release) };
    }

    unsafe fn load(&self, ptr: *const u8, wide: bool) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { span::load(ptr, wide) }
    }

    fn settle(&self, ptr: *const u8, len: usize) {
        self.note(HookCall::Settle(ptr as usize, len));
    }

    fn fence(&self) {
        self.note(HookCall::Fence);
    }

    fn now_ns(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}

/// A pointer argument; its pointee outlives the grid in every test.
type Ptr<T> = *mut T;

/// The bytes of a parameter struct, field by field in the layout of C.
trait Arg {
    fn push(&self, bytes: &mut Vec<u8>);
}

impl<T> Arg for Ptr<T> {
    fn push(&self, bytes: &mut Vec<u8>) {
        (*self as usize as u64).push(bytes);
    }
}

impl Arg for u64 {
    fn push(&self, bytes: &mut Vec<u8>) {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(self.to_ne_bytes());
    }
}

impl Arg for u32 {
    fn push(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.to_ne_bytes());
    }
}

/// Arranges arguments as a C struct does.
fn args(fields: &[&dyn Arg]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        field.push(&mut bytes);
    }
    if bytes.len() > 4 {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    bytes
}

macro_rules! kernels {
    ($($name:ident: $symbol:ident, $len:expr;)*) => {
        unsafe extern "C" { $(fn $symbol(params: *const c_void);)* }
        $(
            // SAFETY: a GDS_KERNEL of tests/kernels.cpp whose parameters have this
            // size, built by this crate's build script.
            static $name: Kernel = unsafe { Kernel::new(stringify!($symbol), $symbol, $len) };
        )*
    };
}

kernels! {
    ADD: softgpu_test_add, 32;
    WHERE: softgpu_test_where, 8;
    REDUCE: softgpu_test_reduce, 16;
    REVERSE: softgpu_test_reverse, 16;
    FRESH: softgpu_test_fresh, 8;
    VOTES: softgpu_test_votes, 8;
    WARP_OPS: softgpu_test_warp, 8;
    MASKS: softgpu_test_masks, 8;
    EARLY_EXIT: softgpu_test_early_exit, 16;
    DIVERGE: softgpu_test_diverge, 4;
    SPIN: softgpu_test_spin, 24;
    PRODUCE: softgpu_test_produce, 40;
    CONSUME: softgpu_test_consume, 40;
    GATHER: softgpu_test_gather, 16;
    BUSY: softgpu_test_busy, 16;
    TRACE: softgpu_test_trace, 16;
    LOOK: softgpu_test_look, 24;
    STORES: softgpu_test_stores, 24;
    ATOMICS: softgpu_test_atomics, 24;
    CLOCK: softgpu_test_clock, 24;
}

fn linear(blocks: u32, threads: u32) -> Dims {
    Dims::linear(blocks, threads).unwrap()
}

/// A new configuration, in order or with a seed.
fn seeded(seed: Option<u64>) -> GridConfig {
    GridConfig {
        seed,
        ..GridConfig::default()
    }
}

/// Several orders, in order and at random, with warps of either size.
fn in_orders(mut run: impl FnMut(&GridConfig)) {
    for seed in [None, Some(1), Some(2), Some(3)] {
        for warp in [32, 64] {
            run(&GridConfig {
                warp,
                ..seeded(seed)
            });
        }
    }
}

/// A grid and its hook.
struct Launch {
    grid: Grid,
    hook: Arc<Plain>,
}

fn launch(kernel: &Kernel, dims: Dims, args: &[u8], config: &GridConfig) -> Launch {
    let hook = Arc::<Plain>::default();
    let context = KernelContext {
        hook: hook.clone(),
        config: config.clone(),
    };
    let grid = Grid::new(kernel, dims, args, context);
    Launch { grid, hook }
}

impl Launch {
    fn run(&mut self, budget: u32) -> GridState {
        self.grid.run(budget)
    }

    /// Runs, a few turns at a time, until no work is left for now.
    fn finish(&mut self) -> GridState {
        for _ in 0..1_000_000 {
            match self.run(37) {
                GridState::Progress => {}
                other => return other,
            }
        }
        panic!("the grid has no end");
    }

    /// Runs to the end of the grid, and fails if the grid does not end.
    fn done(mut self) -> Arc<Plain> {
        assert_eq!(self.finish(), GridState::Done);
        assert_eq!(self.run(1), GridState::Done, "a grid that is done stays so");
        self.hook
    }
}
