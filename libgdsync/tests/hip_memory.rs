//! Memory on HIP, by a stand-in for libamdhip64: coarse-grained memory has no words, memory of the
//! process and of another one is opened by IPC handles, host memory is registered once, and frees wait
//! until streams are idle.

mod common;
mod standin;

use std::ffi::c_void;
use std::sync::Arc;

use common::*;
use gdsync::gpu::{Condition, DevicePtr, Word32};
use gdsync_sys::hip::{Hip, HipResult, consts};
use standin::{Control, Driver, HIP_LIBRARY, Variant, inside, until};

fn hip() -> &'static Hip {
    Hip::get().unwrap()
}

/// Memory of the application, 16 KiB: fine-grained, or coarse-grained as `hipMalloc` makes it.
fn of_application(fine: bool) -> DevicePtr {
    let mut at: *mut c_void = std::ptr::null_mut();
    let flags = consts::hipDeviceMallocFinegrained;
    // SAFETY: stores an address.
    let made = unsafe {
        match fine {
            true => (hip().hipExtMallocWithFlags)(&mut at, 16384, flags),
            false => (hip().hipMalloc)(&mut at, 16384),
        }
    };
    assert_eq!(made, HipResult::SUCCESS);
    DevicePtr(at as u64)
}

#[test]
fn coarse_grained_memory_has_no_words() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let stream = gpu.stream().unwrap();
    for fine in [false, true] {
        // SAFETY: the memory is never freed.
        let region = unsafe { gpu.adopt(of_application(fine), 4096) }.unwrap();
        // Bytes of both kinds can be copied.
        region.write(0, &[7; 64]).unwrap();
        let span = region.span(0, 64).unwrap();
        stream.copy(&region.span(64, 64).unwrap(), &span).unwrap();
        let words = [region.word32(128).err(), region.word64(128).err()];
        for word in words {
            match fine {
                true => assert!(word.is_none(), "{word:?}"),
                false => {
                    let word = word.expect("coarse-grained");
                    assert_eq!(word.kind(), Kind::Unsupported);
                    let text = word.to_string();
                    assert!(
                        text.contains("coarse-grained") && text.contains("Gpu::alloc"),
                        "{text}"
                    );
                }
            }
        }
    }
    // Memory of the library has words.
    for kind in [MemoryKind::Device, MemoryKind::Pinned] {
        let word = gpu.alloc(kind, 64).unwrap().word32(0).unwrap();
        post_on(&stream, &mut [], &[write32(&word, 9)]).unwrap();
        until("the stream ends", || stream.is_idle().unwrap());
        assert_eq!(word.load().unwrap(), 9);
    }
}

/// HIP opens no handle in the process that made it; the library does.
#[test]
fn handles_open_in_the_same_process() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let memory = gpu.alloc_exportable(8192).unwrap();
    memory.write(4096, b"payload").unwrap();
    let shared = memory.share().unwrap();
    // SAFETY: the memory stays until the other region is dropped.
    let same = unsafe { gpu.open_shared(&shared) }.unwrap();
    assert_eq!(same.addr(), memory.addr());
    // A second handle is opened and closed by itself.
    // SAFETY: as above.
    drop(unsafe { gpu.open_shared(&memory.share().unwrap()) }.unwrap());
    let mut bytes = [0; 7];
    same.read(4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"payload");
    drop(same);
    memory.write(0, &[1]).unwrap();
}

/// `hipFree` blocks until the streams are idle: the library calls it only then.
#[test]
fn memory_is_freed_when_no_stream_waits() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let gate = gpu
        .alloc(MemoryKind::Pinned, 64)
        .unwrap()
        .word32(0)
        .unwrap();
    let wait = gdsync::rdma::Descriptor::wait_value(&gate, Condition::Eq, 1);
    post_on(&stream, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() == 1);
    let before = control.live();
    for _ in 0..3 {
        // A new stream and new memory do not block either.
        drop(gpu.alloc(MemoryKind::Device, 1 << 20).unwrap());
        drop(gpu.stream().unwrap());
    }
    assert!(
        control.live()["device"] > before["device"],
        "freed under a wait"
    );
    assert_eq!(control.blocked(), []);
    gate.store(1).unwrap();
    until("the memory is freed", || {
        control.live()["device"] == before["device"]
    });
    assert_eq!(control.blocked(), []);
}

/// Runs the test `name` on HIP 6 with the stand-in as the HSA runtime, too.
fn with_hsa(name: &str, more: &[(&'static str, &'static str)]) {
    let library = standin::build(&Variant::HIP6);
    let path: &'static str = library.to_str().unwrap().to_owned().leak();
    let env = [&[("GDS_HSA_LIB", path)], more].concat().leak();
    standin::run(name, &library, &Variant::of(Driver::Hip6, None, env));
}

/// The HSA runtime exports a whole allocation, and says where in it a range is.
#[test]
fn hsa_exports_memory_to_nics() {
    if std::env::var_os(HIP_LIBRARY).is_none() {
        return with_hsa("hsa_exports_memory_to_nics", &[]);
    }
    let gpu = Gpu::hip(0).unwrap();
    let at = of_application(false).0;
    for start in [0, 64, 8192 + 64] {
        // SAFETY: the memory is never freed.
        let region = unsafe { gpu.adopt(DevicePtr(at + start), 64) }.unwrap();
        assert_eq!(region.dma_buf().unwrap().1, start);
    }
    let memory = gpu.alloc(MemoryKind::Device, 64).unwrap();
    memory.dma_buf().unwrap();
    let pinned = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    assert_eq!(kind(pinned.dma_buf()), Some(Kind::Unsupported));
}

#[test]
fn hsa_refuses_an_export() {
    if std::env::var_os(HIP_LIBRARY).is_none() {
        return with_hsa("hsa_refuses_an_export", &[("STANDIN_HSA", "4104")]);
    }
    let memory = Gpu::hip(0).unwrap().alloc(MemoryKind::Device, 64).unwrap();
    let names = &["hsa_amd_portable_export_dmabuf"];
    common::refused(memory.dma_buf(), Kind::System, None, names);
}

#[test]
fn nothing_exports_memory() {
    inside!(Variant::HIP6);
    let memory = Gpu::hip(0).unwrap().alloc(MemoryKind::Device, 64).unwrap();
    let names = &["hipMemGetHandleForAddressRange"];
    common::refused(memory.dma_buf(), Kind::Unsupported, None, names);
}

/// Host memory of the application that is coarse-grained has no words either.
#[test]
fn host_memory_that_is_not_coherent_has_no_words() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    for (flags, has) in [(0, true), (consts::hipHostMallocNonCoherent, false)] {
        let mut at: *mut c_void = std::ptr::null_mut();
        // SAFETY: stores an address.
        let made = unsafe { (hip().hipHostMalloc)(&mut at, 4096, flags) };
        assert_eq!(made, HipResult::SUCCESS);
        // SAFETY: the memory is never freed.
        let region = unsafe { gpu.adopt(DevicePtr(at as u64), 4096) }.unwrap();
        assert_eq!(region.word32(0).is_ok(), has, "{flags:#x}");
    }
}

const PAGE: usize = 4096;

/// Pages of the application.
fn pages(n: usize) -> *mut u8 {
    let layout = std::alloc::Layout::from_size_align(n * PAGE, PAGE).unwrap();
    // SAFETY: not empty; never freed.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!at.is_null());
    at
}

/// Registers memory for the application.
fn register(at: *mut u8, len: usize) {
    let flags = consts::hipHostRegisterPortable;
    // SAFETY: pages that are never freed.
    let made = unsafe { (hip().hipHostRegister)(at.cast(), len, flags) };
    assert_eq!(made, HipResult::SUCCESS);
}

#[track_caller]
fn unregister(at: *mut u8) {
    // SAFETY: the application registered it.
    let gone = unsafe { (hip().hipHostUnregister)(at.cast()) };
    assert_eq!(gone, HipResult::SUCCESS);
}

/// # Safety
/// As for `Gpu::register_host`.
unsafe fn host(gpu: &Gpu, at: *mut u8, len: usize) -> gdsync::Result<Region> {
    // SAFETY: the caller's promise.
    unsafe { gpu.register_host(at, len) }
}

/// A stream that waits until 1 is stored to the word.
fn waiting_stream(gpu: &Gpu, control: &Control) -> (Stream, Word32) {
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let (stream, gate) = (gpu.stream().unwrap(), memory.word32(0).unwrap());
    let wait = gdsync::rdma::Descriptor::wait_value(&gate, Condition::Eq, 1);
    let waiting = control.waiting();
    post_on(&stream, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() > waiting);
    (stream, gate)
}

/// Fails if a call of the driver blocks in `work` behind the stream of `gate`.
fn does_not_block(control: &Control, gate: &Word32, work: impl FnOnce() + Send) {
    std::thread::scope(|s| {
        let work = s.spawn(work);
        until("it ends or blocks", || {
            work.is_finished() || !control.blocked().is_empty()
        });
        let blocked = control.blocked();
        // Lets a call that blocks return.
        if !blocked.is_empty() {
            gate.store(1).unwrap();
        }
        assert_eq!(blocked, []);
    });
}

/// HIP would register pages twice, and end both registrations by one call: pages of the application
/// stay the application's.
#[test]
fn host_memory_that_the_application_registered_stays_registered() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let at = pages(3);
    // The last page is the library's.
    let pages = [at, at.wrapping_add(PAGE)];
    for page in pages {
        register(page, PAGE);
    }
    for len in [PAGE, 3 * PAGE] {
        // SAFETY: pages that are never freed, and accessed by the region alone.
        drop(unsafe { host(&gpu, at, len) }.unwrap());
    }
    pages.into_iter().for_each(unregister);
}

/// One registration serves all GPUs until no stream of any GPU uses it, and it ends when no stream
/// waits of the GPU that made it.
#[test]
fn gpus_share_a_registration() {
    inside!(Variant::of(Driver::Hip7, None, &[("STANDIN_DEVICES", "2")]));
    let control = Control::open();
    let [one, two] = [0, 1].map(|n| Gpu::hip(n).unwrap());
    let at = pages(1);
    // SAFETY: pages that are never freed, and accessed by regions alone.
    let first = unsafe { host(&one, at, PAGE) }.unwrap();
    let dropped = Arc::new(());
    let owner = Box::new(Arc::clone(&dropped));
    // SAFETY: as above.
    let second = unsafe { two.register_host_owned(at, PAGE, owner) }.unwrap();
    let (stream, gate) = waiting_stream(&two, &control);
    let word = second.word32(0).unwrap();
    post_on(&stream, &mut [], &[write32(&word, 6)]).unwrap();
    let registered = control.live()["registered"];
    drop(first);
    assert_eq!(control.live()["registered"], registered);
    let (_first_stream, first_gate) = waiting_stream(&one, &control);
    let registered = control.live()["registered"];
    post_on(&stream, &mut [], &[write32(&word, 7)]).unwrap();
    gate.store(1).unwrap();
    passes(&stream);
    assert_eq!(word.load().unwrap(), 7);
    drop((word, second));
    // The call would block behind the stream of the first GPU.
    // SAFETY: as above.
    drop(unsafe { host(&two, at, PAGE) }.unwrap());
    assert_eq!(control.live()["registered"], registered);
    assert_eq!(Arc::strong_count(&dropped), 2, "the memory is registered");
    first_gate.store(1).unwrap();
    until("the registration ends", || {
        control.live()["registered"] == registered - 1
    });
    until("the owner is dropped", || Arc::strong_count(&dropped) == 1);
    assert_eq!(control.blocked(), []);
}

/// HIP registers bytes, and the library pages: a page of which the application registered a part would
/// have two registrations.
#[test]
fn pages_that_the_application_registered_in_part_are_refused() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    // A region of one page from `offset`, and the application's bytes: the first ones of the page, the
    // last ones, those in the middle of a page, and those of a neighbour with which it shares a page.
    for (from, len, offset) in [
        (PAGE, 1000, PAGE),
        (2 * PAGE - 64, 64, PAGE),
        (PAGE + 64, 256, PAGE),
        (64, PAGE + 1000, PAGE + 2048),
    ] {
        let at = pages(3);
        let bytes = at.wrapping_add(from);
        register(bytes, len);
        let registered = control.live()["registered"];
        // SAFETY: pages that are never freed, and accessed by the region alone.
        let region = unsafe { host(&gpu, at.wrapping_add(offset), PAGE) };
        let names = &["shares a page with a registration of the application"];
        common::refused(region, Kind::Unsupported, None, names);
        assert_eq!(control.live()["registered"], registered);
        unregister(bytes);
    }
}

/// Pages of the application in a region cost one more registration each, not one for each page.
#[test]
fn pages_between_those_of_the_application_have_one_registration() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let at = pages(256);
    let of_application = [at.wrapping_add(10 * PAGE), at.wrapping_add(100 * PAGE)];
    for page in of_application {
        register(page, 2 * PAGE);
    }
    let registered = control.live()["registered"];
    // SAFETY: pages that are never freed, and accessed by the region alone.
    let region = unsafe { host(&gpu, at, 256 * PAGE) }.unwrap();
    assert_eq!(control.live()["registered"], registered + 3);
    drop(region);
    assert_eq!(control.live()["registered"], registered);
    of_application.into_iter().for_each(unregister);
}

/// A part that is registered before another one is refused is unregistered when no stream waits.
#[test]
fn a_registration_that_fails_does_not_block_behind_a_stream_that_waits() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let (_stream, gate) = waiting_stream(&gpu, &control);
    let at = pages(3);
    register(at.wrapping_add(PAGE), PAGE);
    let registered = control.live()["registered"];
    // The third page is refused, at both tries; the first one takes two.
    control.fail("hipHostRegister", 2, 2);
    let (at, gpu) = (at.expose_provenance(), &gpu);
    does_not_block(&control, &gate, || {
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: pages that are never freed.
        let refused = unsafe { host(gpu, at, 3 * PAGE) };
        assert_eq!(kind(refused), Some(Kind::System));
    });
    assert_eq!(control.live()["registered"], registered + 1);
    gate.store(1).unwrap();
    until("the first page is unregistered", || {
        control.live()["registered"] == registered
    });
    assert_eq!(control.blocked(), []);
}

/// The driver refuses a copy of memory that has two registrations.
#[test]
fn copies_and_words_work_over_several_registrations() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let device = gpu.alloc(MemoryKind::Device, 3 * PAGE).unwrap();
    let at = pages(4);
    register(at, PAGE);
    // SAFETY: pages that are never freed, and accessed by regions alone.
    let _second = unsafe { host(&gpu, at.wrapping_add(2 * PAGE), PAGE) }.unwrap();
    // SAFETY: as above. Pages 1 and 3 get registrations.
    let region = unsafe { host(&gpu, at.wrapping_add(PAGE / 2), 3 * PAGE) }.unwrap();
    // In front of each edge and behind it.
    let words: Vec<_> = [PAGE / 2, 3 * PAGE / 2, 5 * PAGE / 2]
        .into_iter()
        .flat_map(|edge| [region.word32(edge - 4), region.word32(edge)])
        .map(Result::unwrap)
        .collect();
    let writes: Vec<_> = (1..)
        .zip(&words)
        .map(|(n, word)| write32(word, n))
        .collect();
    post_on(&stream, &mut [], &writes).unwrap();
    let span = |region: &Region| region.span(0, 3 * PAGE).unwrap();
    stream.copy(&span(&device), &span(&region)).unwrap();
    passes(&stream);
    assert!((1..).zip(&words).all(|(n, word)| word.load().unwrap() == n));
    region.write(0, &[0; 3 * PAGE]).unwrap();
    stream.copy(&span(&region), &span(&device)).unwrap();
    passes(&stream);
    assert!((1..).zip(&words).all(|(n, word)| word.load().unwrap() == n));
    // A copy within one registration is the driver's.
    control.record(true);
    let part = |region: &Region| region.span(PAGE / 2, PAGE).unwrap();
    stream.copy(&part(&region), &part(&device)).unwrap();
    passes(&stream);
    assert!(control.calls().contains("hipMemcpy"));
}

/// `hipStreamDestroy` waits for the stream's work. The library calls it for idle streams only, also if it
/// drops more streams than the pool of CUDA's keeps, whose hardware queue another stream holds.
#[test]
fn dropped_streams_do_not_block_behind_a_stream_that_waits() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let [gate, word] = [0, 8].map(|at| memory.word32(at).unwrap());
    let waiting = gpu.stream().unwrap();
    let wait = gdsync::rdma::Descriptor::wait_value(&gate, Condition::Eq, 1);
    post_on(&waiting, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() == 1);
    // One of four streams has the queue of the one that waits.
    let streams: Vec<_> = (0..160).map(|_| gpu.stream().unwrap()).collect();
    for stream in &streams {
        post_on(stream, &mut [], &[write32(&word, 7)]).unwrap();
    }
    drop(streams);
    assert!(control.live()["commands"] > 32, "{:?}", control.live());
    assert_eq!(control.blocked(), []);
    gate.store(1).unwrap();
    until("the streams are idle", || {
        drop(gpu.stream().unwrap());
        control.live()["commands"] == 0
    });
    assert_eq!(control.blocked(), []);
}

/// Whether an event can be recorded for the end of a busy stream or not: its drop does not destroy it.
#[test]
fn a_busy_stream_without_an_event_is_not_destroyed() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let (captured, gate) = waiting_stream(&gpu, &control);
    captured.begin_capture().unwrap();
    does_not_block(&control, &gate, || drop(captured));
    let (stream, other) = waiting_stream(&gpu, &control);
    control.fail("hipEventCreateWithFlags", 2, 0);
    does_not_block(&control, &other, || drop(stream));
    control.fail("hipEventCreateWithFlags", 0, 0);
    does_not_block(&control, &gate, || drop(gpu.stream().unwrap()));
    gate.store(1).unwrap();
    other.store(1).unwrap();
}

/// Streams that were dropped while they were busy are destroyed without a call of the application.
#[test]
fn dropped_streams_are_destroyed_when_their_work_has_ended() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let streams = control.live()["streams"];
    let (stream, gate) = waiting_stream(&gpu, &control);
    drop(stream);
    assert_eq!(control.live()["streams"], streams + 1);
    gate.store(1).unwrap();
    until("the stream is destroyed", || {
        control.live()["streams"] == streams
    });
    assert_eq!(control.blocked(), []);
}

/// A GPU with a register for flushes: the CPU writes it, for itself and for a stream.
#[test]
fn register_flushes_writes_of_nics() {
    inside!(Variant::of(Driver::Hip6, None, &[("STANDIN_HDP", "1")]));
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    assert!(gpu.caps().host_flush);
    control.flushed();
    gpu.flush_remote_writes();
    assert!(control.flushed());
    let _device = Device::emulated(&gpu).unwrap();
    let stream = gpu.stream().unwrap();
    post_on(&stream, &mut [], &[gdsync::rdma::Descriptor::Flush]).unwrap();
    passes(&stream);
    assert!(control.flushed());
}

#[test]
fn gpu_without_the_register_has_no_flush_by_the_cpu() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    assert!(!gpu.caps().host_flush);
    gpu.flush_remote_writes();
}
