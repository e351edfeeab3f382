//! Enqueueing and executing allocates nothing in steady state.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{rig, sync, wait32, write32};
use softgpu::{Config, Dims, InlineData, Kernel, MemOp};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

extern "C" fn nothing(_: *const std::ffi::c_void) {}

// SAFETY: takes nothing, does nothing.
static NOTHING: Kernel = unsafe { Kernel::new("nothing", nothing, 0) };

#[test]
fn no_allocation_in_steady_state() {
    let (env, gpu) = rig(Config::default());
    let (dev, pin) = (
        gpu.alloc_device(4096).unwrap(),
        gpu.alloc_pinned(4096).unwrap(),
    );
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let event = softgpu::Event::new();
    let data = InlineData::new(&[1; 64]).unwrap();
    let round = |n: u32| {
        a.submit([wait32(pin.addr(), n), write32(dev.addr(), n)])
            .unwrap();
        a.submit([
            MemOp::Copy {
                addr: dev.addr() + 64,
                data,
            },
            MemOp::Fence,
        ])
        .unwrap();
        a.record(&event).unwrap();
        b.wait_event(&event).unwrap();
        b.copy(pin.addr() + 64, dev.addr(), 128).unwrap();
        b.launch(&NOTHING, Dims::linear(2, 32).unwrap(), &[])
            .unwrap();
        env.steps(3);
        pin.window().store32(0, n).unwrap();
        sync(&b);
        assert_eq!(pin.window().load32(64), Ok(n));
    };
    for n in 1..5 {
        round(n);
    }
    let before = COUNT.get();
    for n in 5..3_000 {
        round(n);
    }
    assert_eq!(COUNT.get() - before, 0);
}
