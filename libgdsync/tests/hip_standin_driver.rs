//! The stand-in for libamdhip64 alone, called directly: it orders, refuses and blocks as HIP does,
//! because the tests of the runtime depend on that.

mod standin;

use standin::{Control, Driver as Vendor, Variant, functions, inside, thread, until};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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
        count(out: &mut c_int) -> c_int = "hipGetDeviceCount";
        set_device(device: c_int) -> c_int = "hipSetDevice";
        device(out: &mut c_int) -> c_int = "hipGetDevice";
        error_name(code: c_int) -> *const c_char = "hipGetErrorName";
        properties(out: *mut u8, device: c_int) -> c_int = "hipGetDevicePropertiesR0600";
        enable_peer(peer: c_int, flags: c_uint) -> c_int = "hipDeviceEnablePeerAccess";
        alloc(out: &mut u64, len: usize) -> c_int = "hipMalloc";
        alloc_with(out: &mut u64, len: usize, flags: c_uint) -> c_int = "hipExtMallocWithFlags";
        free(at: u64) -> c_int = "hipFree";
        host_alloc(out: &mut u64, len: usize, flags: c_uint) -> c_int = "hipHostMalloc";
        host_free(at: u64) -> c_int = "hipHostFree";
        register(at: *mut u8, len: usize, flags: c_uint) -> c_int = "hipHostRegister";
        unregister(at: *mut u8) -> c_int = "hipHostUnregister";
        attributes(out: &mut [u64; 4], at: u64) -> c_int = "hipPointerGetAttributes";
        stream(out: &mut Handle, flags: c_uint) -> c_int = "hipStreamCreateWithFlags";
        destroy(stream: Handle) -> c_int = "hipStreamDestroy";
        query(stream: Handle) -> c_int = "hipStreamQuery";
        wait32(stream: Handle, at: u64, value: u32, flags: c_uint, mask: u32) -> c_int = "hipStreamWaitValue32";
        wait64(stream: Handle, at: u64, value: u64, flags: c_uint, mask: u64) -> c_int = "hipStreamWaitValue64";
        write32(stream: Handle, at: u64, value: u32, flags: c_uint) -> c_int = "hipStreamWriteValue32";
        write64(stream: Handle, at: u64, value: u64, flags: c_uint) -> c_int = "hipStreamWriteValue64";
        copy(to: u64, from: u64, len: usize, kind: c_int, stream: Handle) -> c_int = "hipMemcpyAsync";
        load(out: &mut Handle, image: *const u8) -> c_int = "hipModuleLoadData";
        function(out: &mut Handle, module: Handle, name: *const c_char) -> c_int = "hipModuleGetFunction";
        launch(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
            shared: c_uint, stream: Handle, each: *mut *const c_void, extra: *mut *mut c_void) -> c_int = "hipModuleLaunchKernel";
        begin_capture(stream: Handle, mode: c_int) -> c_int = "hipStreamBeginCapture";
        end_capture(stream: Handle, graph: &mut Handle) -> c_int = "hipStreamEndCapture";
        event(out: &mut Handle, flags: c_uint) -> c_int = "hipEventCreateWithFlags";
        record(event: Handle, stream: Handle) -> c_int = "hipEventRecord";
        reached(event: Handle) -> c_int = "hipEventQuery";
        wait_event(stream: Handle, event: Handle, flags: c_uint) -> c_int = "hipStreamWaitEvent";
        code_object(target: *const c_char, kernel: *const c_char, bytes: u32, out: *mut u8, len: usize) -> usize = "standin_code_object";
    }
}

const GTE: c_uint = 0;
const EQ: c_uint = 1;
const AND: c_uint = 2;
const NOR: c_uint = 3;
const ALL: u32 = u32::MAX;

const FINE: c_uint = 1;
const SIGNAL: c_uint = 2;

/// The handle that a successful call stores.
fn made(call: impl FnOnce(&mut Handle) -> c_int) -> Handle {
    let mut handle = std::ptr::null_mut();
    assert_eq!(call(&mut handle), 0);
    handle
}

/// The address that a successful call stores.
fn placed(call: impl FnOnce(&mut u64) -> c_int) -> u64 {
    let mut at = 0;
    assert_eq!(call(&mut at), 0);
    at
}

/// Coherent pinned words, zeroed.
struct Words(u64);

impl Words {
    fn at(&self, i: u64) -> u64 {
        self.0 + 8 * i
    }

    fn wide(&self, i: u64) -> &AtomicU64 {
        // SAFETY: inside the page of `words`, aligned, and never freed.
        unsafe { AtomicU64::from_ptr(self.at(i) as *mut u64) }
    }

    fn get(&self, i: u64) -> u64 {
        self.wide(i).load(Ordering::Acquire)
    }

    fn set(&self, i: u64, value: u64) {
        self.wide(i).store(value, Ordering::Release);
    }
}

impl Driver {
    fn open() -> Driver {
        Driver(Control::open())
    }

    fn new_stream(&self) -> Handle {
        made(|out| self.stream(out, 1))
    }

    fn words(&self) -> Words {
        let at = placed(|out| self.host_alloc(out, 4096, 0x4000_0000));
        // SAFETY: a page that was allocated above.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, 4096) };
        Words(at)
    }

    fn finish(&self, stream: Handle) {
        until("the stream ends", || self.query(stream) == 0);
    }

    /// A code object with one kernel.
    fn image(&self, target: &CStr, kernel: &CStr, bytes: u32) -> Vec<u8> {
        let make = |out, len| self.code_object(target.as_ptr(), kernel.as_ptr(), bytes, out, len);
        let mut image = vec![0; make(std::ptr::null_mut(), 0)];
        make(image.as_mut_ptr(), image.len());
        image
    }
}

#[test]
fn standin_waits_compare_masked_words_and_gte_is_not_cyclic() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    // A word below the value in unsigned order, though above it in cyclic order.
    assert_eq!(d.wait32(stream, w.at(0), u32::MAX - 1, GTE, ALL), 0);
    assert_eq!(d.write32(stream, w.at(1), 7, 0), 0);
    w.set(0, 5);
    until("it waits", || d.0.waiting() == 1);
    assert_eq!((w.get(1), d.query(stream)), (0, 600));
    w.set(0, u64::from(u32::MAX));
    d.finish(stream);
    assert_eq!(w.get(1), 7);

    // The mask hides bits of the word, and for NOR also those of the value.
    let passes = |value: u32, condition, mask, now: u64| {
        w.set(2, now);
        let before = d.0.operations();
        assert_eq!(d.wait32(stream, w.at(2), value, condition, mask), 0);
        until("it ran or waits", || {
            d.0.operations() > before || d.0.waiting() == 1
        });
        let passed = d.0.operations() > before;
        if !passed {
            let release = match condition {
                GTE | AND => u64::MAX,
                EQ => u64::from(value),
                _ => 0,
            };
            w.set(2, release);
            d.finish(stream);
        }
        passed
    };
    assert!(passes(0x10, EQ, 0xf0, 0xab_0000_0013));
    assert!(!passes(0x10, EQ, ALL, 0x13));
    assert!(passes(0x10, GTE, 0xf0, 0x1f));
    assert!(!passes(0x10, GTE, 0xff, 0x10f));
    assert!(passes(3, AND, 2, 2));
    assert!(passes(0xffff_fff0, NOR, ALL, 7), "bit 3 is clear in both");
    assert!(!passes(0xffff_fff0, NOR, ALL, 15));
    assert!(
        passes(0xffff_ffff, NOR, 0xffff_fffe, 0xf),
        "the mask clears bit 0 of both"
    );

    // 64 bits: the upper half takes part.
    assert_eq!(d.wait64(stream, w.at(3), 1 << 40, GTE, u64::MAX), 0);
    assert_eq!(d.write64(stream, w.at(4), 0x1_2345_6789, 0), 0);
    w.set(3, (1 << 40) - 1);
    until("it waits", || d.0.waiting() == 1);
    w.set(3, 1 << 41);
    d.finish(stream);
    assert_eq!((w.get(4), d.0.waiting()), (0x1_2345_6789, 0));
}

#[test]
fn standin_memory_operations_need_fine_grained_memory() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let write = |at| d.write32(stream, at, 1, 0);
    let wait = |at| d.wait32(stream, at, 0, GTE, ALL);
    let coarse = placed(|out| d.alloc(out, 64));
    assert_eq!((write(coarse), wait(coarse)), (1, 1), "hipMalloc");
    for flags in [FINE, 3] {
        let fine = placed(|out| d.alloc_with(out, 64, flags));
        assert_eq!((write(fine), wait(fine)), (0, 0), "flags {flags}");
    }
    let signal = placed(|out| d.alloc_with(out, 8, SIGNAL));
    assert_eq!((write(signal), wait(signal)), (0, 0));
    let mut none = 0;
    assert_eq!(
        d.alloc_with(&mut none, 16, SIGNAL),
        1,
        "a signal has 8 bytes"
    );
    for (flags, code) in [(0x8000_0000, 1), (1, 1), (0, 0), (2, 0), (0x1000_0000, 0)] {
        let at = placed(|out| d.host_alloc(out, 64, flags));
        assert_eq!(write(at), code, "hipHostMalloc with {flags:#x}");
    }
    assert_eq!(
        d.host_alloc(&mut none, 64, 0xc000_0000),
        1,
        "coherent and not"
    );
    let mine = vec![0u64; 1024];
    let page = mine.as_ptr().wrapping_byte_add(4096);
    let page = page.map_addr(|at| at & !4095).cast_mut().cast::<u8>();
    assert_eq!(write(page as u64), 1, "not pinned");
    assert_eq!(d.register(page, 64, 8), 0);
    assert_eq!(write(page as u64), 1, "registered as coarse-grained");
    assert_eq!(d.register(page, 64, 0), 0, "registered again");
    assert_eq!((d.unregister(page), d.unregister(page)), (0, 713));
    assert_eq!(d.register(page, 64, 0), 0);
    assert_eq!(write(page as u64), 0);
    assert_eq!(write(w.at(0) + 2), 1, "alignment");
    assert_eq!(d.write32(stream, w.at(0), 1, 1), 1, "flags");
    assert_eq!(d.wait32(stream, w.at(0), 1, 4, ALL), 1, "flags");
    d.finish(stream);
    assert_eq!(d.unregister(page), 0);
    drop(mine);
}

#[test]
fn standin_old_releases_wait_for_signals_only() {
    inside!(Variant::of(
        Vendor::Hip6,
        None,
        &[("GPU_STREAMOPS_CP_WAIT", "1")]
    ));
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let signal = placed(|out| d.alloc_with(out, 8, SIGNAL));
    assert_eq!(d.wait32(stream, w.at(0), 0, GTE, ALL), 1);
    assert_eq!(d.wait64(stream, signal, 0, GTE, u64::MAX), 0);
    assert_eq!(d.write32(stream, w.at(0), 1, 0), 0);
    d.finish(stream);
}

#[test]
fn standin_blocks_the_calls_that_hip_blocks_until_the_device_is_idle() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, stream, other) = (d.words(), d.new_stream(), d.new_stream());
    let device = placed(|out| d.alloc(out, 4096));
    let host = placed(|out| d.host_alloc(out, 64, 0));
    let mine = [0u64; 8];
    let mine = mine.as_ptr().cast_mut().cast::<u8>() as u64;
    assert_eq!(d.register(mine as *mut u8, 8, 0), 0);
    let image = d.image(c"gfx942", c"gds_program_40", 1288);
    assert_eq!(d.wait32(stream, w.at(0), 1, EQ, ALL), 0);
    let handle = stream as usize;
    let blocked = |name: &str| d.0.blocked().iter().any(|(_, function)| function == name);
    let done = AtomicBool::new(false);
    let caller = AtomicU32::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            caller.store(thread() as u32, Ordering::Release);
            assert_eq!(d.free(device), 0);
            done.store(true, Ordering::Release);
        });
        s.spawn(|| assert_eq!(d.host_free(host), 0));
        s.spawn(|| assert_eq!(d.unregister(mine as *mut u8), 0));
        s.spawn(|| made(|out| d.load(out, image.as_ptr())) as usize);
        s.spawn(move || assert_eq!(d.destroy(handle as Handle), 0));
        for name in [
            "hipFree",
            "hipHostFree",
            "hipHostUnregister",
            "hipModuleLoadData",
            "hipStreamDestroy",
        ] {
            until(name, || blocked(name));
        }
        assert!(!done.load(Ordering::Acquire));
        // These return.
        placed(|out| d.alloc(out, 64));
        assert_eq!(d.write32(other, w.at(1), 1, 0), 0);
        until("another stream goes on", || w.get(1) == 1);
        w.set(0, 1);
    });
    let by = u64::from(caller.load(Ordering::Acquire));
    assert!(d.0.blocked().contains(&(by, "hipFree".to_owned())));
    assert_eq!(d.0.blocked().len(), 5);
    assert_eq!(d.free(0), 0, "nothing to free");
}

#[test]
fn standin_streams_share_the_hardware_queues() {
    inside!(Variant::of(
        Vendor::Hip6,
        None,
        &[("GPU_MAX_HW_QUEUES", "2")]
    ));
    let d = Driver::open();
    let w = d.words();
    // The third stream shares the queue of the first one, the fourth that of the second.
    let streams: Vec<Handle> = (0..4).map(|_| d.new_stream()).collect();
    assert_eq!(d.wait32(streams[0], w.at(0), 1, EQ, ALL), 0);
    until("it waits", || d.0.waiting() == 1);
    assert_eq!(d.write32(streams[2], w.at(2), 1, 0), 0);
    assert_eq!(d.write32(streams[3], w.at(3), 1, 0), 0);
    until("the other queue goes on", || w.get(3) == 1);
    assert_eq!(d.wait32(streams[1], w.at(1), 1, EQ, ALL), 0);
    until("both wait", || d.0.waiting() == 2);
    assert_eq!(d.write32(streams[3], w.at(3), 2, 0), 0);
    let default = std::ptr::null_mut();
    assert_eq!(d.write32(default, w.at(4), 1, 0), 0);
    until("the default stream has its own queue", || w.get(4) == 1);
    assert_eq!((w.get(2), w.get(3)), (0, 1), "all queues are held");
    w.set(0, 1);
    until("the first queue goes on", || w.get(2) == 1);
    assert_eq!(w.get(3), 1);
    w.set(1, 1);
    until("the second queue goes on", || w.get(3) == 2);
}

#[test]
fn standin_default_number_of_hardware_queues_is_four() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let w = d.words();
    let streams: Vec<Handle> = (0..5).map(|_| d.new_stream()).collect();
    for stream in &streams[..3] {
        assert_eq!(d.wait32(*stream, w.at(0), 1, EQ, ALL), 0);
    }
    assert_eq!(d.write32(streams[3], w.at(1), 1, 0), 0);
    until("the fourth goes on", || w.get(1) == 1);
    assert_eq!(d.wait32(streams[3], w.at(0), 1, EQ, ALL), 0);
    until("four wait", || d.0.waiting() == 4);
    assert_eq!(d.write32(streams[4], w.at(2), 1, 0), 0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(w.get(2), 0, "the fifth does not");
    w.set(0, 1);
    until("it goes on", || w.get(2) == 1);
}

#[test]
fn standin_refuses_what_hip_refuses() {
    inside!(Variant::of(Vendor::Hip6, None, &[("STANDIN_DEVICES", "2")]));
    let d = Driver::open();
    let mut n = 0;
    assert_eq!((d.count(&mut n), n), (0, 2), "without hipInit");
    let (w, stream) = (d.words(), d.new_stream());
    assert_eq!((d.set_device(2), d.set_device(-1)), (101, 101));
    let there = placed(|out| d.alloc_with(out, 64, FINE));
    assert_eq!(d.set_device(1), 0);
    assert_eq!((d.device(&mut n), n), (0, 1));
    assert_eq!(d.write32(stream, w.at(0), 1, 0), 400, "of another device");
    let here = d.new_stream();
    assert_eq!(d.write32(here, w.at(0), 1, 0), 0, "pinned memory is of all");
    assert_eq!(d.write32(here, there, 1, 0), 1, "no access yet");
    assert_eq!((d.enable_peer(1, 0), d.enable_peer(0, 1)), (101, 1));
    assert_eq!((d.enable_peer(0, 0), d.enable_peer(0, 0)), (0, 704));
    assert_eq!(d.write32(here, there, 1, 0), 0);
    d.finish(here);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut n = 9;
            assert_eq!((d.device(&mut n), n), (0, 0), "the device is of the thread");
        });
    });
    let mut gone = 0u64;
    let no_stream = (&raw mut gone).cast();
    assert_eq!(d.query(no_stream), 709);
    assert_eq!(d.write32(no_stream, w.at(0), 1, 0), 709);
    assert_eq!((d.free(w.at(0)), d.host_free(there)), (1, 1));
    // SAFETY: HIP's names are static strings.
    let name = |code| unsafe { CStr::from_ptr(d.error_name(code)) };
    assert_eq!(name(709), c"hipErrorContextIsDestroyed");
    assert_eq!(name(4711), c"hipErrorUnknown");
    let mut properties = vec![0; 1472];
    assert_eq!(d.properties(properties.as_mut_ptr(), 0), 0);
    let arch = CStr::from_bytes_until_nul(&properties[1160..]).unwrap();
    assert_eq!(arch, c"gfx942:sramecc+:xnack-");
}

#[test]
fn standin_kinds_of_memory_have_the_numbers_of_hip_6() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (host, device) = (d.words().0, placed(|out| d.alloc(out, 64)));
    let kind = |at| {
        let mut out = [0; 4];
        assert_eq!(d.attributes(&mut out, at), 0);
        (out[0] as u32, out[2])
    };
    assert_eq!((kind(host + 8), kind(device)), ((1, host + 8), (2, 0)));
    assert_eq!(d.attributes(&mut [0; 4], 4096), 1);
}

#[test]
fn standin_kinds_of_memory_have_the_numbers_of_hip_5() {
    inside!(Variant::of(
        Vendor::Hip6,
        None,
        &[("STANDIN_VERSION", "50221153")]
    ));
    let d = Driver::open();
    let mut out = [9; 4];
    assert_eq!(d.attributes(&mut out, d.words().0), 0);
    assert_eq!(out[0] as u32, 0);
}

#[test]
fn standin_copies_reach_device_memory_that_the_cpu_cannot() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let device = placed(|out| d.alloc(out, 4096));
    let data: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let (from, mut back) = (data.as_ptr() as u64, vec![0u8; 4096]);
    assert_eq!(d.copy(device, from, 4096, 1, stream), 0);
    assert_eq!(d.copy(device + 1, from, 4096, 1, stream), 1, "too long");
    assert_eq!(d.copy(device, from, 4096, 5, stream), 21);
    assert_eq!(
        d.copy(device, from, 4096, 3, stream),
        1,
        "not of the device"
    );
    assert_eq!(d.copy(back.as_mut_ptr() as u64, device, 4096, 4, stream), 0);
    assert_eq!(back, data);
    assert_eq!(d.wait32(stream, w.at(0), 1, EQ, ALL), 0);
    assert_eq!(d.copy(w.at(1), device, 8, 2, stream), 0, "pinned: later");
    assert_eq!(w.get(1), 0);
    w.set(0, 1);
    d.finish(stream);
    assert_eq!(w.get(1), 0x0706_0504_0302_0100);
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
fn standin_runs_the_kernels_that_a_code_object_names() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, stream) = (d.words(), d.new_stream());
    let mut none = std::ptr::null_mut();
    let load = |out: &mut Handle, image: &[u8]| d.load(out, image.as_ptr());
    let old = d.image(c"gfx90a", c"gds_program_40", 1288);
    assert_eq!(load(&mut none, &old), 209, "for another GPU");
    let mut damaged = d.image(c"gfx942", c"gds_program_40", 1288);
    damaged[0] = 0;
    assert_eq!(load(&mut none, &damaged), 200);
    let image = d.image(c"gfx942", c"gds_program_40", 1288);
    let module = made(|out| load(out, &image));
    assert_eq!(d.function(&mut none, module, c"gds_copy".as_ptr()), 500);
    let kernel = made(|out| d.function(out, module, c"gds_program_40".as_ptr()));
    let run = |params: &[u64]| {
        let mut each = [params.as_ptr().cast::<c_void>()];
        let (each, extra) = (each.as_mut_ptr(), std::ptr::null_mut());
        d.launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, each, extra)
    };
    let wait = [3, w.at(0), 5, u64::from(u32::MAX) << 32 | u64::from(EQ)];
    assert_eq!(run(&program(&[&[wait], &[[1, w.at(1), 6, 0]]])), 0);
    // A kernel that runs holds its queue: the fifth stream has that of the first one.
    let others: Vec<Handle> = (0..4).map(|_| d.new_stream()).collect();
    assert_eq!(d.write32(others[0], w.at(2), 1, 0), 0);
    assert_eq!(d.write32(others[3], w.at(3), 1, 0), 0);
    until("another queue goes on", || w.get(2) == 1);
    assert_eq!((w.get(1), w.get(3)), (0, 0));
    w.set(0, 5);
    d.finish(stream);
    until("the queue goes on", || w.get(3) == 1);
    assert_eq!(w.get(1), 6);

    // Packed arguments end with 3, not with null.
    let params = program(&[&[[1, w.at(4), 8, 0]]]);
    let mut len = 1288usize;
    let mut extra: [Handle; 5] = [
        std::ptr::without_provenance_mut(1),
        params.as_ptr().cast_mut().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut len).cast(),
        std::ptr::without_provenance_mut(3),
    ];
    let (each, extra) = (std::ptr::null_mut(), extra.as_mut_ptr());
    assert_eq!(
        d.launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, each, extra),
        0
    );
    d.finish(stream);
    assert_eq!(w.get(4), 8);
    assert_eq!(
        d.launch(kernel, 1, 1, 1, 2048, 1, 1, 0, stream, each, extra),
        1
    );
}

#[test]
fn standin_events_and_captures() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, first, second) = (d.words(), d.new_stream(), d.new_stream());
    let event = made(|out| d.event(out, 2));
    assert_eq!(d.wait32(first, w.at(0), 1, EQ, ALL), 0);
    assert_eq!(d.record(event, first), 0);
    assert_eq!(d.wait_event(second, event, 0), 0);
    assert_eq!(d.write32(second, w.at(1), 1, 0), 0);
    assert_eq!(d.reached(event), 600);
    until("both wait", || d.0.waiting() == 2);
    assert_eq!(w.get(1), 0);
    w.set(0, 1);
    until("it goes on", || w.get(1) == 1);
    assert_eq!(d.reached(event), 0);
    let mut graph = std::ptr::null_mut();
    assert_eq!(d.end_capture(first, &mut graph), 903);
    assert_eq!(d.begin_capture(first, 0), 0);
    assert_eq!(d.write32(first, w.at(1), 2, 0), 0);
    let mut none = 0;
    assert_eq!(d.alloc(&mut none, 64), 900, "a capture forbids it");
    assert_eq!(d.end_capture(first, &mut graph), 901);
    until("a memory operation is not recorded", || w.get(1) == 2);
}

#[test]
fn standin_faults_and_a_lost_device() {
    inside!(Variant::HIP6);
    let d = Driver::open();
    let (w, stream, other) = (d.words(), d.new_stream(), d.new_stream());
    d.0.fail("hipMalloc", 4242, 1);
    let mut at = 0;
    let mut alloc = || d.alloc(&mut at, 64);
    assert_eq!([alloc(), alloc(), alloc()], [0, 4242, 4242]);
    d.0.fail("hipMalloc", 0, 0);
    assert_eq!(alloc(), 0);
    let before = d.0.operations();
    d.0.lose_device(719, 2);
    assert_eq!(d.wait32(other, w.at(0), 1, EQ, ALL), 0);
    for value in 1..=3 {
        assert_eq!(d.write32(stream, w.at(1), value, 0), 0);
    }
    until("it is lost", || d.query(stream) == 719);
    assert_eq!((w.get(1), d.0.operations()), (2, before + 2));
    w.set(0, 1);
    assert_eq!((d.query(other), d.free(at)), (719, 719));
}

#[test]
fn standin_without_devices_says_so() {
    inside!(Variant::of(Vendor::Hip6, None, &[("STANDIN_DEVICES", "0")]));
    let mut n = 9;
    assert_eq!((Driver::open().count(&mut n), n), (100, 0));
}

/// The symbols that a stand-in exports.
fn exported(variant: &Variant) -> Vec<String> {
    let library = standin::build(variant);
    let output = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .expect("nm is here");
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.rsplit(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn standins_export_no_function_of_the_other_driver() {
    let has = |names: &[String], start: &str| names.iter().any(|name| name.starts_with(start));
    let cuda = exported(&Variant::default());
    assert!(has(&cuda, "cuInit") && !has(&cuda, "hip"));
    let hip6 = exported(&Variant::HIP6);
    assert!(has(&hip6, "hipInit") && !has(&hip6, "cu"));
    assert!(!has(&hip6, "hipMemGetHandleForAddressRange"));
    assert!(has(
        &exported(&Variant::HIP7),
        "hipMemGetHandleForAddressRange"
    ));
}
