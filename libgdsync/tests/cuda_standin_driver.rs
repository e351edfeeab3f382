//! The stand-in for libcuda alone, called directly: it orders, refuses and blocks as the driver
//! does, because the tests of the runtime depend on that.

mod standin;

use standin::{Control, Variant, functions, inside, thread, until};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

type Handle = *mut c_void;

/// The calls of the table that these tests use.
#[derive(Clone, Copy)]
struct Driver(Control);

// SAFETY: the handle inside is a loaded library, and any thread may call its functions.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    unsafe fn get<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller's promise.
        unsafe { self.0.get(name) }
    }

    functions! {
        init(flags: c_uint) -> c_int = "cuInit";
        retain(out: &mut Handle, device: c_int) -> c_int = "cuDevicePrimaryCtxRetain";
        create(out: &mut Handle, flags: c_uint, device: c_int) -> c_int = "cuCtxCreate_v2";
        set_current(context: Handle) -> c_int = "cuCtxSetCurrent";
        alloc(out: &mut u64, len: usize) -> c_int = "cuMemAlloc_v2";
        free(at: u64) -> c_int = "cuMemFree_v2";
        host_alloc(out: &mut u64, len: usize, flags: c_uint) -> c_int = "cuMemHostAlloc";
        register(at: *mut u8, len: usize, flags: c_uint) -> c_int = "cuMemHostRegister_v2";
        unregister(at: *mut u8) -> c_int = "cuMemHostUnregister";
        stream(out: &mut Handle, flags: c_uint) -> c_int = "cuStreamCreate";
        query(stream: Handle) -> c_int = "cuStreamQuery";
        batch(stream: Handle, n: c_uint, ops: *const [u64; 6], flags: c_uint) -> c_int = "cuStreamBatchMemOp_v2";
        copy_in(to: u64, from: *const u8, len: usize, stream: Handle) -> c_int = "cuMemcpyHtoDAsync_v2";
        copy_out(to: *mut u8, from: u64, len: usize, stream: Handle) -> c_int = "cuMemcpyDtoHAsync_v2";
        load(out: &mut Handle, image: *const u8) -> c_int = "cuModuleLoadData";
        function(out: &mut Handle, module: Handle, name: *const c_char) -> c_int = "cuModuleGetFunction";
        function_load(function: Handle) -> c_int = "cuFuncLoad";
        launch(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
            shared: c_uint, stream: Handle, each: *mut *const c_void, extra: *mut *mut c_void) -> c_int = "cuLaunchKernel";
        begin_capture(stream: Handle, mode: c_int) -> c_int = "cuStreamBeginCapture_v2";
        end_capture(stream: Handle, graph: &mut Handle) -> c_int = "cuStreamEndCapture";
        exchange_mode(mode: &mut c_int) -> c_int = "cuThreadExchangeStreamCaptureMode";
        event(out: &mut Handle, flags: c_uint) -> c_int = "cuEventCreate";
        record(event: Handle, stream: Handle) -> c_int = "cuEventRecord";
        reached(event: Handle) -> c_int = "cuEventQuery";
        wait_event(stream: Handle, event: Handle, flags: c_uint) -> c_int = "cuStreamWaitEvent";
    }
}

const GEQ: u64 = 0;
const EQ: u64 = 1;
const AND: u64 = 2;
const NOR: u64 = 3;
const FLUSH: u64 = 1 << 30;

fn wait32(at: u64, value: u32, flags: u64) -> [u64; 6] {
    [1, at, value.into(), flags, 0, 0]
}

fn write32(at: u64, value: u32) -> [u64; 6] {
    [2, at, value.into(), 0, 0, 0]
}

fn wait64(at: u64, value: u64, flags: u64) -> [u64; 6] {
    [4, at, value, flags, 0, 0]
}

fn write64(at: u64, value: u64) -> [u64; 6] {
    [5, at, value, 0, 0, 0]
}

/// The handle that a successful call stores.
fn made(call: impl FnOnce(&mut Handle) -> c_int) -> Handle {
    let mut handle = std::ptr::null_mut();
    assert_eq!(call(&mut handle), 0);
    handle
}

/// Pinned words, zeroed.
struct Words(u64);

impl Words {
    fn at(&self, i: u64) -> u64 {
        self.0 + 8 * i
    }

    fn word(&self, i: u64) -> &AtomicU32 {
        // SAFETY: inside the page of `words`, aligned, and never freed.
        unsafe { AtomicU32::from_ptr(self.at(i) as *mut u32) }
    }

    fn get(&self, i: u64) -> u32 {
        self.word(i).load(Ordering::Acquire)
    }

    fn set(&self, i: u64, value: u32) {
        self.word(i).store(value, Ordering::Release);
    }
}

impl Driver {
    /// Initialised, with the primary context current.
    fn open() -> Driver {
        let d = Driver(Control::open());
        assert_eq!(d.init(0), 0);
        d.enter();
        d
    }

    /// Makes the primary context current on the calling thread.
    fn enter(&self) {
        let context = made(|out| self.retain(out, 0));
        assert_eq!(self.set_current(context), 0);
    }

    fn new_stream(&self) -> Handle {
        made(|out| self.stream(out, 1))
    }

    /// Device memory.
    fn memory(&self, len: usize) -> u64 {
        let mut at = 0;
        assert_eq!(self.alloc(&mut at, len), 0);
        at
    }

    /// The library's kernels, from its own PTX.
    fn kernels(&self) -> Handle {
        let text = include_str!("../device/ptx/gds_kernels.ptx");
        let image = CString::new(text).unwrap();
        made(|out| self.load(out, image.as_ptr().cast()))
    }

    /// Launches a kernel with these parameters.
    fn run(&self, kernel: Handle, stream: Handle, params: &[u64]) -> c_int {
        let mut each = [params.as_ptr().cast::<c_void>()];
        let (each, extra) = (each.as_mut_ptr(), std::ptr::null_mut());
        self.launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, each, extra)
    }

    fn words(&self) -> Words {
        let mut at = 0;
        assert_eq!(self.host_alloc(&mut at, 4096, 1), 0);
        // SAFETY: a page that was allocated above.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, 4096) };
        Words(at)
    }

    fn submit(&self, stream: Handle, ops: &[[u64; 6]]) -> c_int {
        self.batch(stream, ops.len() as c_uint, ops.as_ptr(), 0)
    }

    fn finish(&self, stream: Handle) {
        until("the stream ends", || self.query(stream) == 0);
    }
}

#[test]
fn standin_runs_memory_operations_in_order_with_the_drivers_conditions() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let list = [
        wait32(w.at(0), 1, GEQ),
        write32(w.at(1), 7),
        wait32(w.at(2), 0x0100_0000, AND),
        wait32(w.at(3), !0x0100_0000, NOR),
        wait64(w.at(4), 1 << 40, EQ),
        write64(w.at(5), 0x1_2345_6789),
    ];
    w.set(3, 0x0100_0000);
    assert_eq!(d.submit(stream, &list), 0);
    assert_eq!(d.query(stream), 600);
    // A cyclic comparison: one less is not enough, far less counts as greater.
    w.set(0, 0x8000_0001);
    until("it waits", || d.0.waiting() == 1);
    assert_eq!(w.get(1), 0);
    w.set(0, 0x7fff_ffff);
    until("the write", || w.get(1) == 7);
    w.set(2, !0x0100_0000);
    until("still at AND", || d.0.waiting() == 1);
    w.set(2, 0x0180_0000);
    w.set(3, 0);
    until("NOR passed", || d.0.operations() == 4);
    // SAFETY: an aligned word of the page.
    unsafe { AtomicU32::from_ptr((w.at(4) + 4) as *mut u32) }.store(1 << 8, Ordering::Release);
    d.finish(stream);
    assert_eq!((w.get(5), d.0.waiting()), (0x2345_6789, 0));
}

#[test]
fn standin_refuses_what_the_driver_refuses() {
    inside!(Variant::default());
    let d = Driver(Control::open());
    let mut context = std::ptr::null_mut();
    assert_eq!(d.retain(&mut context, 0), 3, "not initialised");
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let ok = write32(w.at(0), 1);
    assert_eq!(d.submit(stream, &[ok; 255]), 0);
    assert_eq!(d.submit(stream, &[ok; 256]), 1);
    let mut relaxed = ok;
    relaxed[3] = 1;
    assert_eq!(d.submit(stream, &[relaxed]), 1, "NO_MEMORY_BARRIER");
    assert_eq!(d.submit(stream, &[write32(w.at(0) + 2, 1)]), 1, "alignment");
    let mine = [0u64; 2];
    assert_eq!(
        d.submit(stream, &[write32(mine.as_ptr() as u64, 1)]),
        1,
        "not the device's"
    );
    assert_eq!(d.submit(stream, &[wait32(w.at(0), 0, FLUSH)]), 801);
    d.0.set_attribute(98, 1);
    assert_eq!(d.submit(stream, &[wait32(w.at(0), 0, FLUSH)]), 0);
    d.0.set_attribute(122, 0);
    assert_eq!(d.submit(stream, &[write64(w.at(0), 0)]), 801);
    d.finish(stream);
    // No context, and another one.
    assert_eq!(d.set_current(std::ptr::null_mut()), 0);
    assert_eq!(d.submit(stream, &[ok]), 201);
    made(|out| d.create(out, 0, 0));
    assert_eq!(d.submit(stream, &[ok]), 201);
    let (here, own) = (d.memory(8), d.new_stream());
    assert_eq!(d.submit(own, &[write32(here, 1)]), 0);
    assert_eq!(
        d.submit(own, &[ok]),
        0,
        "every context may use portable pinned memory"
    );
    d.finish(own);
}

#[test]
fn standin_registers_host_memory_by_pages() {
    inside!(Variant::default());
    let d = Driver::open();
    let layout = std::alloc::Layout::from_size_align(4 * 4096, 4096).unwrap();
    // SAFETY: not empty.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!at.is_null());
    let page = |i: usize| at.wrapping_add(4096 * i);
    assert_eq!(d.register(page(0), 100, 1 | 2 | 4), 1, "not I/O memory");
    assert_eq!(d.register(page(0), 100, 1 | 2), 0);
    assert_eq!(
        d.register(page(0).wrapping_add(200), 100, 1 | 2),
        712,
        "the same page"
    );
    assert_eq!(d.register(page(1), 4096, 1 | 2), 0);
    assert_eq!(d.unregister(page(0).wrapping_add(8)), 713);
    assert_eq!((d.unregister(page(0)), d.unregister(page(0))), (0, 713));
    d.0.io_memory(page(2), 4096);
    assert_eq!(d.register(page(2), 4096, 1 | 2), 1, "not ordinary memory");
    assert_eq!(d.register(page(2), 4096, 1 | 2 | 4), 0);
    assert_eq!(d.register(std::ptr::without_provenance_mut(4096), 64, 3), 1);
    assert_eq!(d.0.live()["registered"], 2);
}

#[test]
fn standin_blocks_the_calls_that_the_driver_blocks_behind_a_wait() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let device = d.memory(4096);
    assert_eq!(d.submit(stream, &[wait32(w.at(0), 1, EQ)]), 0);
    let (done, caller) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            caller.store(thread() as u32, Ordering::Release);
            d.enter();
            assert_eq!(d.free(device), 0);
            done.store(true, Ordering::Release);
        });
        until("the call is counted", || d.0.blocked().len() == 1);
        assert!(!done.load(Ordering::Acquire));
        // These return.
        d.memory(64);
        let other = d.new_stream();
        assert_eq!(d.submit(other, &[write32(w.at(1), 1)]), 0);
        until("another stream goes on", || w.get(1) == 1);
        w.set(0, 1);
    });
    let by = u64::from(caller.load(Ordering::Acquire));
    assert_eq!(d.0.blocked(), [(by, "cuMemFree_v2".to_owned())]);
}

#[test]
fn standin_waiting_streams_hold_the_channels_of_their_context() {
    let variant = Variant::env(&[("CUDA_DEVICE_MAX_CONNECTIONS", "4")]);
    inside!(variant);
    let d = Driver::open();
    let w = d.words();
    let waiting: Vec<Handle> = (0..3).map(|_| d.new_stream()).collect();
    let other = d.new_stream();
    for stream in &waiting {
        assert_eq!(d.submit(*stream, &[wait32(w.at(0), 1, EQ)]), 0);
    }
    until("all wait", || d.0.waiting() == 3);
    assert_eq!(d.submit(other, &[write32(w.at(1), 1)]), 0);
    made(|out| d.create(out, 0, 0));
    let elsewhere = d.new_stream();
    assert_eq!(d.submit(elsewhere, &[write32(w.at(2), 1)]), 0);
    until("another context goes on", || w.get(2) == 1);
    assert_eq!(w.get(1), 0, "this one does not");
    w.set(0, 1);
    until("it goes on", || w.get(1) == 1);
}

#[test]
fn standin_a_full_stream_blocks_the_enqueue() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    assert_eq!(d.submit(stream, &[wait32(w.at(0), 1, EQ)]), 0);
    let handle = stream as usize;
    let taken = AtomicU32::new(1);
    std::thread::scope(|s| {
        s.spawn(|| {
            d.enter();
            for i in 1..1100 {
                assert_eq!(d.submit(handle as Handle, &[write32(w.at(1), i)]), 0);
                taken.fetch_add(1, Ordering::AcqRel);
            }
        });
        until("it blocks", || d.0.full() == 1);
        assert_eq!(taken.load(Ordering::Acquire), 1020);
        w.set(0, 1);
    });
    d.finish(stream);
    assert_eq!(w.get(1), 1099);
}

#[test]
fn standin_copies_reach_device_memory_that_the_cpu_cannot() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let device = d.memory(8192);
    let data: Vec<u8> = (0..=255).cycle().take(8192).collect();
    assert_eq!(d.copy_in(device, data.as_ptr(), 8192, stream), 0);
    assert_eq!(
        d.copy_in(device + 1, data.as_ptr(), 8192, stream),
        1,
        "too long"
    );
    let mut back = vec![0; 8192];
    assert_eq!(
        d.copy_out(back.as_mut_ptr(), device, 8192, stream),
        0,
        "into pageable memory: done when it returns"
    );
    assert_eq!(back, data);
    // From pageable memory: read when the call returns, also behind a wait.
    assert_eq!(d.submit(stream, &[wait32(w.at(0), 1, EQ)]), 0);
    let gone = [9u8; 4].to_vec();
    assert_eq!(d.copy_in(device, gone.as_ptr(), 4, stream), 0);
    drop(gone);
    assert_eq!(
        d.copy_out(w.at(1) as *mut u8, device, 4, stream),
        0,
        "into pinned memory: later"
    );
    assert_eq!(w.get(1), 0);
    w.set(0, 1);
    d.finish(stream);
    assert_eq!(w.get(1), 0x0909_0909);
    assert!(
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .contains("---s")
    );
}

/// A program for the kernel of 40 operations, of steps of `[code, at, value, extra]`.
fn program(steps: &[&[[u64; 4]]]) -> Vec<u64> {
    let mut words = vec![0; 161];
    let mut i = 0;
    for step in steps {
        let size = (step.len() as u64) << 24;
        for (first, op) in step.iter().enumerate() {
            words[1 + 4 * i..][..4].copy_from_slice(op);
            words[1 + 4 * i] |= if first == 0 { size } else { 0 };
            i += 1;
        }
    }
    words[0] = i as u64;
    words
}

#[test]
fn standin_runs_the_library_s_kernels() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let mut none = std::ptr::null_mut();
    assert_eq!(d.load(&mut none, c"\x7fELF".as_ptr().cast()), 200);
    let module = d.kernels();
    let lacking = d.function(&mut none, module, c"gds_no_such".as_ptr());
    assert_eq!(lacking, 500);
    let kernel = made(|out| d.function(out, module, c"gds_program_40".as_ptr()));
    assert_eq!(d.function_load(kernel), 0);
    let device = d.memory(64);
    let params = program(&[
        &[[3, w.at(0), 5, u64::from(u32::MAX) << 32 | EQ]],
        &[[1, w.at(1), 6, 0], [2, device, 7 << 32 | 8, 0]],
    ]);
    d.0.record(true);
    assert_eq!(d.run(kernel, stream, &params), 0);
    drop(params);
    let other = d.new_stream();
    assert_eq!(d.submit(other, &[write32(w.at(2), 1)]), 0);
    until("a spinning kernel stalls no other stream", || w.get(2) == 1);
    assert_eq!((w.get(1), d.0.waiting()), (0, 0));
    w.set(0, 5);
    d.finish(stream);
    assert_eq!(w.get(1), 6);
    let mut got = [0; 8];
    assert_eq!(d.copy_out(got.as_mut_ptr(), device, 8, stream), 0);
    assert_eq!(u64::from_le_bytes(got), 7 << 32 | 8);
    let calls = d.0.calls();
    assert!(
        calls.contains("kernel gds_program_40 0300000000000000"),
        "{calls}"
    );
    assert!(
        calls.contains(&format!("  write32 {:#x} 0x1 flags 0", w.at(2))),
        "{calls}"
    );
    // Many barriers, with two lanes between each.
    let ops: Vec<[u64; 4]> = (0..40).map(|i| [1, w.at(8 + i), i, 0]).collect();
    let ops: Vec<&[[u64; 4]]> = ops.chunks(2).collect();
    assert_eq!(d.run(kernel, stream, &program(&ops)), 0);
    d.finish(stream);
    assert!((0..40).all(|i| u64::from(w.get(8 + i)) == i));
}

#[test]
fn standin_loading_a_kernel_blocks_behind_a_wait() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream, other) = (d.words(), d.new_stream(), d.new_stream());
    let module = d.kernels();
    let kernel = made(|out| d.function(out, module, c"gds_program_40".as_ptr()));
    assert_eq!(d.submit(stream, &[wait32(w.at(0), 1, EQ)]), 0);
    let [kernel, other] = [kernel, other].map(|h| h as usize);
    std::thread::scope(|s| {
        s.spawn(move || {
            d.enter();
            let code = d.run(kernel as Handle, other as Handle, &program(&[]));
            assert_eq!(code, 0);
        });
        until("it blocks", || {
            d.0.blocked()
                .iter()
                .any(|(_, name)| name == "cuLaunchKernel")
        });
        w.set(0, 1);
    });
}

#[test]
fn standin_events_and_captures() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, first, second) = (d.words(), d.new_stream(), d.new_stream());
    let event = made(|out| d.event(out, 2));
    assert_eq!(d.reached(event), 0, "never recorded");
    assert_eq!(d.submit(first, &[wait32(w.at(0), 1, EQ)]), 0);
    assert_eq!(d.record(event, first), 0);
    assert_eq!(d.wait_event(second, event, 0), 0);
    assert_eq!(d.submit(second, &[write32(w.at(1), 1)]), 0);
    assert_eq!(d.reached(event), 600);
    until("both wait", || d.0.waiting() == 2);
    assert_eq!(w.get(1), 0);
    w.set(0, 1);
    until("it goes on", || w.get(1) == 1);
    assert_eq!(d.reached(event), 0);
    let mut graph = std::ptr::null_mut();
    assert_eq!(d.end_capture(first, &mut graph), 903);
    assert_eq!(d.begin_capture(first, 0), 0);
    assert_eq!(d.submit(first, &[write32(w.at(1), 2)]), 0);
    assert_eq!(d.end_capture(first, &mut graph), 0);
    d.finish(first);
    assert_eq!(w.get(1), 1, "captured, not run");
    // Another thread invalidates it, by a call that may wait for streams, unless the thread relaxes
    // its mode.
    let event = event as usize;
    for (mode, result, end) in [(2, 0, 0), (0, 900, 901)] {
        assert_eq!(d.begin_capture(first, 0), 0);
        std::thread::spawn(move || {
            d.enter();
            let mut mode = mode;
            assert_eq!(d.exchange_mode(&mut mode), 0);
            assert_eq!(d.reached(event as Handle), result);
            assert_eq!(d.reached(event as Handle), result);
        })
        .join()
        .unwrap();
        assert_eq!(d.end_capture(first, &mut graph), end);
    }
}

#[test]
fn standin_faults_and_a_lost_device() {
    inside!(Variant::default());
    let d = Driver::open();
    let (w, stream, other) = (d.words(), d.new_stream(), d.new_stream());
    d.0.fail("cuMemAlloc_v2", 4242, 1);
    let mut at = 0;
    let mut alloc = || d.alloc(&mut at, 64);
    assert_eq!([alloc(), alloc(), alloc()], [0, 4242, 4242]);
    d.0.fail("cuMemAlloc_v2", 0, 0);
    assert_eq!(alloc(), 0);
    let before = d.0.operations();
    d.0.lose_device(719, 2);
    assert_eq!(d.submit(other, &[wait32(w.at(0), 1, EQ)]), 0);
    let list = [
        write32(w.at(1), 1),
        write32(w.at(1), 2),
        write32(w.at(1), 3),
    ];
    assert_eq!(d.submit(stream, &list), 0);
    until("it is lost", || d.query(stream) == 719);
    assert_eq!((w.get(1), d.0.operations()), (2, before + 2));
    w.set(0, 1);
    assert_eq!((d.query(other), d.free(at), d.init(0)), (719, 719, 719));
}
