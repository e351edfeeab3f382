//! The end of a context and its GPU behind a kernel that never ends: it takes bounded time, and
//! resources that are still in use are named and kept. This file has one test only, because the
//! kernel occupies the thread of the software devices.

#[path = "common/alarm.rs"]
mod alarm;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use gdsync::Gpu;
use gdsync::gpu::{Dims, Kernel, MemoryKind};
use mp::Context;
use mp::bootstrap::Local;

/// Far longer than the library waits.
const LIMIT: Duration = Duration::from_secs(60);

/// 1: the kernel runs; 2: the kernel may end.
static STATE: AtomicU32 = AtomicU32::new(0);
/// The address that the kernel writes to repeatedly.
static PLACE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

unsafe extern "C" fn gives_no_way(_: *const c_void) {
    STATE.store(1, Ordering::Release);
    let place = PLACE.load(Ordering::Acquire) as *mut u32;
    while STATE.load(Ordering::Acquire) != 2 {
        // SAFETY: pinned memory, which stays mapped while this kernel runs.
        unsafe { place.write_volatile(7) };
        std::hint::spin_loop();
    }
}

#[test]
fn a_context_behind_a_kernel_that_never_ends_is_dropped_in_bounded_time() {
    let warnings = alarm::of_this_process();
    let gpu = Gpu::soft().unwrap();
    let bootstrap = Local::ranks(1).remove(0);
    let ctx = Context::builder().bootstrap(bootstrap).gpu(&gpu);
    let ctx = ctx.build().unwrap();
    let stream = gpu.stream().unwrap();
    let memory = ctx.alloc(MemoryKind::Pinned, 4096).unwrap();
    PLACE.store(memory.region().addr().0 as usize, Ordering::Release);
    // SAFETY: the kernel takes no parameters.
    let kernel = unsafe { softgpu::Kernel::new("gives_no_way", gives_no_way, 0) };
    // SAFETY: the kernel writes to memory of the GPU that is freed after it.
    unsafe { stream.launch(&Kernel::soft(kernel), Dims::linear(1, 1), &()) }.unwrap();
    let start = Instant::now();
    while STATE.load(Ordering::Acquire) != 1 {
        assert!(start.elapsed() < LIMIT, "the kernel never runs");
        std::thread::yield_now();
    }
    let name = format!("stream {}", stream.id());
    let (dropped, is_dropped) = channel();
    std::thread::spawn(move || {
        drop(memory);
        drop(ctx);
        drop(stream);
        drop(gpu);
        dropped.send(()).unwrap();
    });
    let in_time = is_dropped.recv_timeout(LIMIT);
    let all = warnings.all();
    // The kernel has continued to write to memory that the application has freed.
    STATE.store(2, Ordering::Release);
    in_time.expect("the drop hangs");
    let named = |line: &&String| line.contains(&name) && line.contains("gives_no_way");
    assert_eq!(all.iter().filter(named).count(), 1, "{all:?}");
}
