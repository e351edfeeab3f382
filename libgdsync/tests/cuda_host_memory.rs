//! Host memory of the application on CUDA, by a stand-in for libcuda: registered repeatedly,
//! overlapping, by two GPUs, in part by the application, dropped while a stream waits, of a device,
//! and unmapped addresses.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use application::{
    begin_capture, driver, end_capture, make_current, ok, post, raw_stream, retained, writes,
};
use common::*;
use gdsync::Result;
use gdsync::gpu::Word32;
use gdsync_sys::cuda::consts;
use standin::{Control, Variant, inside, until};

const PAGE: usize = 4096;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` and a value.
const COMPUTE_MODE: i32 = 20;
const EXCLUSIVE_PROCESS: i32 = 3;

/// Pages of the application.
fn pages(n: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(n * PAGE, PAGE).unwrap();
    // SAFETY: not empty; never freed.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!at.is_null());
    at
}

/// # Safety
/// As for `Gpu::register_host`.
unsafe fn host(gpu: &Gpu, at: *mut u8, offset: usize, len: usize) -> Result<Region> {
    // SAFETY: the caller's promise.
    unsafe { gpu.register_host(at.wrapping_add(offset), len) }
}

/// The number of registrations that stay: a file for small pinned regions is registered once and
/// kept.
fn kept(gpu: &Gpu, control: &Control) -> u64 {
    drop(gpu.word());
    control.live()["registered"]
}

/// Stalls the stream until 1 is stored to the word.
fn gate(gpu: &Gpu, stream: &Stream) -> Word32 {
    let gate = gpu.word();
    post(gpu, stream, &[geq(&gate, 1)]).unwrap();
    gate
}

/// Makes the stream write a word of `region`.
fn write(gpu: &Gpu, stream: &Stream, region: &Region, at: usize, value: u32) {
    let word = region.word32(at).unwrap();
    post(gpu, stream, &[write32(&word, value)]).unwrap();
}

/// Memory of the application, registered several times, and dropped while a stream waits.
#[test]
fn host_memory_that_overlaps() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let at = pages(8);
    // SAFETY: pages that are never freed, and accessed by regions alone.
    let regions: Vec<Region> = [
        (0, 4 * PAGE),
        (2 * PAGE, 4 * PAGE),
        (3 * PAGE + 100, 8),
        (PAGE - 8, 16),
        (0, 8 * PAGE),
        (7 * PAGE, 1),
    ]
    .map(|(offset, len)| unsafe { host(&gpu, at, offset, len) }.unwrap())
    .into();
    let stream = gpu.stream().unwrap();
    let gate = gate(&gpu, &stream);
    for (value, region) in (1..).zip(&regions[..3]) {
        let offset = if region.len() == 8 { 0 } else { 2 * PAGE - 64 };
        write(&gpu, &stream, region, offset, value);
    }
    until("it waits", || control.waiting() == 1);
    control.record(true);
    let registered = control.live()["registered"];
    assert!(registered > kept);
    drop(regions);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!control.calls().contains("cuMemHostUnregister"));
    assert_eq!(control.live()["registered"], registered);
    gate.store(1).unwrap();
    passes(&stream);
    until("all is given back", || control.live()["registered"] == kept);
    assert_eq!(control.blocked(), []);
    let word = |offset: usize| {
        // SAFETY: inside the pages, which have no writer any more.
        unsafe { at.wrapping_add(offset).cast::<u32>().read() }
    };
    assert_eq!(
        [
            word(2 * PAGE - 64),
            word(4 * PAGE - 64),
            word(3 * PAGE + 100)
        ],
        [1, 2, 3]
    );
    // Again, from the start.
    // SAFETY: as above.
    let again = unsafe { host(&gpu, at, 0, 8 * PAGE) }.unwrap();
    assert_eq!(again.word32(2 * PAGE - 64).unwrap().load().unwrap(), 1);
}

/// Memory that was dropped and is registered again while its first use has not ended.
#[test]
fn host_memory_registered_again_while_in_use() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let at = pages(2);
    let stream = gpu.stream().unwrap();
    for value in 1..20 {
        let gate = gate(&gpu, &stream);
        for _ in 0..3 {
            // SAFETY: pages that are never freed, and accessed by regions alone.
            let region = unsafe { host(&gpu, at, 0, 2 * PAGE) }.unwrap();
            write(&gpu, &stream, &region, 64, value);
        }
        gate.store(1).unwrap();
    }
    passes(&stream);
    until("all is given back", || control.live()["registered"] == kept);
    assert_eq!(control.blocked(), []);
}

/// Memory that the application registered itself stays registered for the application.
#[test]
fn host_memory_that_the_application_registered() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let at = pages(4);
    register(at, 4 * PAGE);
    // SAFETY: as above, accessed by the region alone.
    let region = unsafe { host(&gpu, at, PAGE, PAGE) }.unwrap();
    let stream = gpu.stream().unwrap();
    writes(&gpu, &stream, &region, 0, 8);
    drop(region);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(control.live()["registered"], kept + 1);
    // SAFETY: registered above.
    ok(unsafe { (driver().cuMemHostUnregister)(at.cast()) });
}

/// Registers memory for the application, in its context.
fn register(at: *mut u8, len: usize) {
    make_current(retained());
    let flags = consts::CU_MEMHOSTREGISTER_PORTABLE;
    // SAFETY: pages that are never freed.
    ok(unsafe { (driver().cuMemHostRegister_v2)(at.cast(), len, flags) });
}

/// One registration serves all GPUs until no stream of any GPU uses it.
#[test]
fn gpus_share_a_registration() {
    inside!(Variant::env(&[("STANDIN_DEVICES", "2")]));
    let control = Control::open();
    let [one, two] = [0, 1].map(|n| Gpu::cuda(n).unwrap());
    let kept = [&one, &two].map(|gpu| kept(gpu, &control))[1];
    let at = pages(1);
    // SAFETY: pages that are never freed, and accessed by regions alone.
    let [first, second] = [&one, &two].map(|gpu| unsafe { host(gpu, at, 0, PAGE) }.unwrap());
    assert_eq!(control.live()["registered"], kept + 1);
    let stream = two.stream().unwrap();
    let gate = gate(&two, &stream);
    write(&two, &stream, &second, 0, 6);
    until("it waits", || control.waiting() == 1);
    drop(first);
    assert_eq!(control.live()["registered"], kept + 1);
    write(&two, &stream, &second, 64, 7);
    gate.store(1).unwrap();
    passes(&stream);
    let words = [0, 64].map(|at| second.word32(at).unwrap().load().unwrap());
    assert_eq!(words, [6, 7]);
    drop(second);
    until("the registration ends", || {
        control.live()["registered"] == kept
    });
    assert_eq!(control.blocked(), []);
}

/// CUDA refuses an access beyond the bytes that the application registered.
#[test]
fn pages_that_the_application_registered_in_part_are_refused() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    for from in [0, 64] {
        let at = pages(3);
        register(at.wrapping_add(PAGE + from), 256);
        // SAFETY: pages that are never freed.
        let refused = unsafe { host(&gpu, at, 0, 3 * PAGE) };
        let names = &["shares a page with a registration of the application"];
        common::refused(refused, Kind::Unsupported, None, names);
        // SAFETY: registered above.
        ok(unsafe { (driver().cuMemHostUnregister)(at.wrapping_add(PAGE + from).cast()) });
        assert_eq!(control.live()["registered"], kept);
    }
}

/// Pages of the application in a region cost one more registration, not one for each page.
#[test]
fn pages_around_those_of_the_application_have_one_registration() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let at = pages(64);
    register(at.wrapping_add(10 * PAGE), 2 * PAGE);
    // SAFETY: pages that are never freed, and accessed by the region alone.
    let _region = unsafe { host(&gpu, at, 0, 64 * PAGE) }.unwrap();
    assert_eq!(control.live()["registered"], kept + 3);
}

/// The driver refuses a copy of memory that has two registrations. In a graph, too.
#[test]
fn copies_work_over_several_registrations() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    let stream = gpu.stream().unwrap();
    let device = gpu.alloc(MemoryKind::Device, 4 * PAGE).unwrap();
    let at = pages(4);
    // SAFETY: pages that are never freed, and accessed by regions alone.
    let (_first, region) = unsafe { (host(&gpu, at, 0, 2 * PAGE), host(&gpu, at, 0, 4 * PAGE)) };
    let (region, span) = (region.unwrap(), |region: &Region| region.span(64, 3 * PAGE));
    let to = || stream.copy(&span(&device).unwrap(), &span(&region).unwrap());
    let from = || stream.copy(&span(&region).unwrap(), &span(&device).unwrap());
    let fill = |byte| region.write(0, &[byte; 4 * PAGE]).unwrap();
    let check = |byte| {
        passes(&stream);
        let mut bytes = vec![0; 3 * PAGE];
        region.read(64, &mut bytes).unwrap();
        assert!(bytes.iter().all(|found| *found == byte));
    };
    fill(7);
    to().unwrap();
    passes(&stream);
    fill(8);
    from().unwrap();
    check(7);
    stream.begin_capture().unwrap();
    to().unwrap();
    let graph = stream.end_capture().unwrap();
    fill(9);
    graph.launch(&stream).unwrap();
    passes(&stream);
    fill(8);
    from().unwrap();
    check(9);
}

/// Registers of a device are registered as device registers, ordinary memory as ordinary memory,
/// and memory that cannot be registered leaves no registration behind.
#[test]
fn host_memory_of_devices_and_unmapped_addresses() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let at = pages(4);
    control.io_memory(at, PAGE);
    // SAFETY: pages that are never freed, and accessed by regions alone.
    let (io, ram) = unsafe { (host(&gpu, at, 0, PAGE), host(&gpu, at, PAGE, PAGE)) };
    let (io, ram) = (io.unwrap(), ram.unwrap());
    assert_eq!(control.live()["registered"], kept + 2);
    drop((io, ram));
    until("both are given back", || {
        control.live()["registered"] == kept
    });
    let nowhere = std::ptr::without_provenance_mut(PAGE);
    // SAFETY: refused, because no memory is mapped there.
    let refused = unsafe { host(&gpu, nowhere, 0, PAGE) };
    assert_eq!(refused.unwrap_err().kind(), Kind::Invalid);
    // SAFETY: as above.
    let middle = unsafe { host(&gpu, at, 2 * PAGE, 1) }.unwrap();
    control.fail("cuMemHostRegister_v2", 4242, 2);
    // Two gaps: the first is registered by the second attempt, the second fails.
    // SAFETY: as above.
    let error = unsafe { host(&gpu, at, PAGE, 3 * PAGE) }.unwrap_err();
    assert!(error.to_string().contains("4242"), "{error}");
    assert_eq!(control.live()["registered"], kept + 1);
    control.fail("cuMemHostRegister_v2", 0, 0);
    drop(middle);
    until("all is given back", || control.live()["registered"] == kept);
}

/// Records its drop.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The owner of the application's memory is dropped when no stream can reach the memory.
#[test]
fn an_owner_is_dropped_behind_the_last_use() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let (at, dropped) = (pages(2), Arc::new(AtomicBool::new(false)));
    let owner = Box::new(DropFlag(Arc::clone(&dropped)));
    // SAFETY: pages that are never freed, and accessed by the region alone.
    let region = unsafe { gpu.register_host_owned(at, 2 * PAGE, owner) }.unwrap();
    let stream = gpu.stream().unwrap();
    let gate = gate(&gpu, &stream);
    write(&gpu, &stream, &region, 0, 8);
    drop(region);
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        !dropped.load(Ordering::Acquire),
        "a stream has yet to write"
    );
    gate.store(1).unwrap();
    passes(&stream);
    until("the owner is dropped", || dropped.load(Ordering::Acquire));
    assert_eq!(
        control.live()["registered"],
        kept,
        "the registration ends first"
    );
    assert_eq!(control.blocked(), []);
}

#[test]
fn an_adopted_buffer_comes_back_behind_the_work_of_streams() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let region = gpu.adopt_vec(vec![1; 5 * PAGE]).unwrap();
    let stream = gpu.stream().unwrap();
    let first = gate(&gpu, &stream);
    write(&gpu, &stream, &region, 0, 0x0707_0707);
    let taken = region.into_vec(Duration::from_millis(20));
    let (region, e) = taken.expect_err("a stream has yet to write");
    assert_eq!(e.kind(), Kind::Timeout, "{e}");
    // It does not wait for work that another stream gets meanwhile.
    let other = gpu.stream().unwrap();
    let buffer = std::thread::scope(|s| {
        let late = s.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            let late = gate(&gpu, &other);
            first.store(1).unwrap();
            late
        });
        let buffer = region.into_vec(LIMIT).unwrap();
        assert_eq!(control.live()["registered"], kept);
        assert!(!other.is_idle().unwrap());
        late.join().unwrap().store(1).unwrap();
        buffer
    });
    assert_eq!(buffer[..8], [7, 7, 7, 7, 1, 1, 1, 1]);
    passes(&other);
    assert_eq!(control.blocked(), []);
}

/// Enqueues a copy when it is dropped, then records that.
struct Copies {
    stream: Stream,
    memory: Region,
    _flag: DropFlag,
}

impl Drop for Copies {
    fn drop(&mut self) {
        let half = |at| self.memory.span(at, 32).unwrap();
        self.stream.copy(&half(0), &half(32)).unwrap();
    }
}

/// On a GPU where memory is freed only while no work is enqueued.
#[test]
fn an_owner_may_enqueue_on_an_exclusive_gpu() {
    inside!(Variant::default());
    let control = Control::open();
    control.set_attribute(COMPUTE_MODE, EXCLUSIVE_PROCESS);
    let gpu = Gpu::cuda(0).unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let owner = Copies {
        stream: gpu.stream().unwrap(),
        memory,
        _flag: DropFlag(Arc::clone(&dropped)),
    };
    // SAFETY: pages that are never freed, and accessed by the region alone.
    let region = unsafe { gpu.register_host_owned(pages(2), PAGE, Box::new(owner)) }.unwrap();
    std::thread::spawn(move || drop(region));
    until("the owner is dropped", || dropped.load(Ordering::Acquire));
}

/// No event can be recorded for a stream's earlier work while the stream is being captured. Without
/// the last handle the end of this work is not known, so the memory is kept.
#[test]
fn an_owner_outlives_a_stream_dropped_during_a_capture() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let raw = raw_stream();
    // SAFETY: a stream of the current context, which stays.
    let stream = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let (at, owner) = (pages(2), Box::new(DropFlag(Arc::clone(&dropped))));
    // SAFETY: pages that are never freed, and accessed by the region alone.
    let region = unsafe { gpu.register_host_owned(at, 2 * PAGE, owner) }.unwrap();
    let gate = gate(&gpu, &stream);
    write(&gpu, &stream, &region, 0, 8);
    begin_capture(raw, consts::CU_STREAM_CAPTURE_MODE_RELAXED);
    drop(stream);
    drop(region);
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        !dropped.load(Ordering::Acquire),
        "the stream has yet to write"
    );
    end_capture(raw);
    gate.store(1).unwrap();
    until("the stream has written", || control.waiting() == 0);
    // The stream can be passed to the library again.
    // SAFETY: as above.
    let again = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
    passes(&again);
}

/// The registrations of pinned memory, own and of others, end after the work that uses them, and no
/// call waits for it. The memory has no other registration: pieces of one file have that of the file.
#[test]
fn pinned_memory_is_unregistered_behind_its_last_use() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let kept = kept(&gpu, &control);
    let stream = gpu.stream().unwrap();
    let small: Vec<Region> = (0..100)
        .map(|_| gpu.alloc(MemoryKind::Pinned, 64).unwrap())
        .collect();
    assert_eq!(control.live()["registered"], kept, "all in one file");
    let long = gpu.alloc(MemoryKind::Pinned, 1 << 20).unwrap();
    // SAFETY: the descriptor keeps the memory.
    let opened = unsafe { gpu.open_shared(&long.share().unwrap()) }.unwrap();
    assert_eq!(control.live()["registered"], kept + 2);
    let gate = gate(&gpu, &stream);
    for region in [&small[7], &long, &opened] {
        write(&gpu, &stream, region, 0, 8);
    }
    until("it waits", || control.waiting() == 1);
    control.record(true);
    drop((small, long, opened));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!control.calls().contains("cuMemHostUnregister"));
    gate.store(1).unwrap();
    passes(&stream);
    until("both are given back", || {
        control.live()["registered"] == kept
    });
    assert_eq!(control.blocked(), []);
}
