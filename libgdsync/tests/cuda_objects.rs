//! Objects that an application passes to the library and gets from it on CUDA, by a stand-in for
//! libcuda: contexts, streams, captures, memory, modules, and memory of another process.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use std::ffi::c_void;

use application::{
    begin_capture, driver, end_capture, make_current, ok, post, raw_stream, retained, writes,
};
use common::*;
use gdsync::gpu::{DevicePtr, KERNELS, SharedMemory};
use gdsync::internals::{Fill, Report, Verify};
use gdsync_sys::cuda::types::CUcontext;
use gdsync_sys::cuda::{CudaResult, consts};
use standin::{Control, Variant, inside, until};

fn current() -> CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: stores a handle.
    ok(unsafe { (driver().cuCtxGetCurrent)(&mut context) });
    context
}

/// A context of the application.
fn new_context() -> CUcontext {
    let mut context = std::ptr::null_mut();
    let mut popped = std::ptr::null_mut();
    // SAFETY: makes a context, and takes it from the thread's stack.
    unsafe {
        ok((driver().cuCtxCreate_v2)(&mut context, 0, 0));
        ok((driver().cuCtxPopCurrent_v2)(&mut popped));
    }
    context
}

#[test]
fn contexts() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    assert!(current().is_null(), "the thread's context is as it was");
    // SAFETY: no context is destroyed here or below.
    let none = unsafe { Gpu::cuda_current() };
    assert_eq!(kind(none), Some(Kind::Invalid));
    make_current(retained());
    // SAFETY: as above.
    assert!(gpu.is(&unsafe { Gpu::cuda_current() }.unwrap()));
    let own = new_context();
    // SAFETY: as above.
    let other = unsafe { Gpu::cuda_context(own.cast()) }.unwrap();
    assert!(!gpu.is(&other));
    make_current(own);
    // SAFETY: as above.
    assert!(other.is(&unsafe { Gpu::cuda_current() }.unwrap()));
    // SAFETY: as above.
    let null = unsafe { Gpu::cuda_context(std::ptr::null_mut()) };
    assert_eq!(null.unwrap_err().kind(), Kind::Invalid);
    // With any current context, each GPU works in its own context, and restores the current one.
    for before in [std::ptr::null_mut(), own, retained()] {
        make_current(before);
        for gpu in [&gpu, &other] {
            let stream = gpu.stream().unwrap();
            let memory = gpu.alloc(MemoryKind::Device, 64).unwrap();
            writes(gpu, &stream, &memory, 0, 9);
        }
        assert_eq!(current(), before);
    }
    let memory = other.alloc(MemoryKind::Pinned, 64).unwrap();
    let word = memory.word32(0).unwrap();
    let write = write32(&word, 1);
    let posted = post(&gpu, &gpu.stream().unwrap(), &[write]);
    assert_eq!(kind(posted), Some(Kind::Foreign));
}

#[test]
fn streams_of_the_application() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    for legacy in [0, 1] {
        let raw: *mut c_void = std::ptr::without_provenance_mut(legacy);
        // SAFETY: refused.
        let stream = unsafe { gpu.cuda_stream(raw) };
        refused(stream, Kind::Invalid, None, &["legacy"]);
    }
    make_current(retained());
    let raw = raw_stream();
    let other = new_context();
    make_current(other);
    let foreign = raw_stream();
    make_current(std::ptr::null_mut());
    // SAFETY: live streams, destroyed after the handles are dropped, or never.
    unsafe {
        let refused = gpu.cuda_stream(foreign.cast());
        assert_eq!(kind(refused), Some(Kind::Foreign));
        let elsewhere = Gpu::cuda_context(other.cast()).unwrap();
        elsewhere.cuda_stream(foreign.cast()).unwrap();
        let stream = gpu.cuda_stream(raw.cast()).unwrap();
        assert_eq!(stream.as_cuda(), Some(raw.cast()));
        assert_eq!(gpu.cuda_stream(raw.cast()).unwrap().id(), stream.id());
        let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        writes(&gpu, &stream, &memory, 0, 3);
        drop(stream);
        // The application still owns its stream.
        ok((driver().cuStreamDestroy_v2)(raw));
    }
}

/// The legacy stream is the one of the GPU's context, whatever context is current on the thread.
#[test]
fn the_legacy_stream_if_it_is_wanted() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    let legacy = gpu.cuda_legacy_stream().unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let word = memory.word32(0).unwrap();
    for (value, current) in (1..).zip([std::ptr::null_mut(), new_context(), retained()]) {
        make_current(current);
        let wait = geq(&word, value);
        post(&gpu, &legacy, &[wait]).unwrap();
        assert!(!legacy.is_idle().unwrap() && !legacy.is_capturing().unwrap());
        word.store(value).unwrap();
        passes(&legacy);
    }
}

/// While a stream is captured, no call enqueues on it; and no work of the library, on any thread,
/// invalidates the capture.
#[test]
fn captures() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let raw = raw_stream();
    // SAFETY: a live stream.
    let stream = unsafe { gpu.cuda_stream(raw.cast()) }.unwrap();
    let busy = gpu.stream().unwrap();
    let gate = gpu.word();
    let wait = geq(&gate, 1);
    post(&gpu, &busy, &[wait]).unwrap();
    // Memory whose free is deferred.
    drop(gpu.alloc(MemoryKind::Device, 64).unwrap());
    begin_capture(raw, consts::CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert!(stream.is_capturing().unwrap());
    control.record(true);
    let captured = post(&gpu, &stream, &[wait]);
    refused(captured, Kind::Unsupported, None, &["captured"]);
    assert!(!control.calls().contains("cuStreamBatchMemOp"));
    control.record(false);
    // Other streams, memory, copies; here and on another thread; and deferred frees.
    let work = || {
        let memory = gpu.alloc(MemoryKind::Device, 64).unwrap();
        memory.write(0, &[7; 64]).unwrap();
        let word = memory.word32(0).unwrap();
        let other = gpu.stream().unwrap();
        let write = write32(&word, 1);
        post(&gpu, &other, &[write]).unwrap();
        passes(&other);
        assert!(!busy.is_idle().unwrap());
        let event = other.record().unwrap();
        until("the event", || event.is_done().unwrap());
        drop(gpu.alloc(MemoryKind::Pinned, 64).unwrap());
    };
    work();
    std::thread::scope(|s| s.spawn(work).join().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    gate.store(1).unwrap();
    passes(&busy);
    std::thread::sleep(Duration::from_millis(50));
    end_capture(raw);
    post(&gpu, &stream, &[wait]).unwrap();
    passes(&stream);
}

/// Device and pinned memory of the application.
#[test]
fn adopted_memory() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let cuda = driver();
    let (mut device, mut pinned) = (0, std::ptr::null_mut());
    // SAFETY: allocates.
    unsafe {
        ok((cuda.cuMemAlloc_v2)(&mut device, 4096));
        ok((cuda.cuMemHostAlloc)(&mut pinned, 4096, 1));
    }
    let stream = gpu.stream().unwrap();
    for at in [device, pinned as u64] {
        // SAFETY: memory that is freed after its regions.
        let region = unsafe { gpu.adopt(DevicePtr(at + 64), 128) }.unwrap();
        region.write(0, &[1; 128]).unwrap();
        writes(&gpu, &stream, &region, 4, 77);
        // SAFETY: refused.
        let longer = unsafe { gpu.adopt(DevicePtr(at + 64), 4096) };
        refused(longer, Kind::Invalid, Some(4096), &[]);
    }
    let stack = [0u64; 2];
    // SAFETY: refused.
    let error = unsafe { gpu.adopt(DevicePtr(stack.as_ptr() as u64), 8) }.unwrap_err();
    assert!(
        matches!(error.kind(), Kind::Invalid | Kind::System),
        "{error:?}"
    );
    // SAFETY: allocated above, and without users.
    unsafe {
        ok((cuda.cuMemFree_v2)(device));
        ok((cuda.cuMemFreeHost)(pinned));
    }
}

/// Its pages have no fixed place. The error says which memory to use instead.
#[test]
fn managed_memory_is_refused_with_its_remedy() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    type Alloc = unsafe extern "C" fn(&mut u64, usize, u32) -> CudaResult;
    let (mut managed, global) = (0, 1);
    // SAFETY: the function of the driver with this name has this type; it allocates.
    unsafe {
        let alloc: Alloc = Control::open().get("cuMemAllocManaged");
        ok(alloc(&mut managed, 4096, global));
    }
    let at = managed as *mut u8;
    for offset in [0, 64] {
        // SAFETY: refused.
        let (adopted, registered) = unsafe {
            let adopted = gpu.adopt(DevicePtr(managed + offset as u64), 64);
            (adopted, gpu.register_host(at.wrapping_add(offset), 64))
        };
        for region in [adopted, registered] {
            refused(
                region,
                Kind::Unsupported,
                None,
                &["managed", "cuMemAlloc,", "copy"],
            );
        }
    }
    // SAFETY: allocated above, and without users.
    ok(unsafe { (driver().cuMemFree_v2)(managed) });
}

#[test]
fn handles_of_another_runtime_are_refused() {
    inside!(Variant::default());
    let (cuda, soft) = (Gpu::cuda(0).unwrap(), Gpu::soft().unwrap());
    for (gpu, other) in [(&cuda, &soft), (&soft, &cuda)] {
        let stream = gpu.stream().unwrap();
        let event = other.stream().unwrap().record().unwrap();
        let kernel = other.load(&KERNELS).unwrap().kernel("gds_fill").unwrap();
        let (dims, args) = (Dims::linear(1, 1), Fill::default());
        // SAFETY: refused.
        let launched = unsafe { stream.launch(&kernel, dims, args.bytes()) };
        for refused in [stream.wait_event(&event), launched] {
            assert_eq!(refused.unwrap_err().kind(), Kind::Foreign);
        }
        assert!(stream.is_idle().unwrap());
    }
    // SAFETY: refused.
    let (adopted, legacy) = unsafe { (soft.adopt(DevicePtr(8), 8), soft.cuda_legacy_stream()) };
    assert_eq!(kind(adopted), Some(Kind::Foreign));
    assert_eq!(kind(legacy), Some(Kind::Foreign));
}

/// A second load would block behind waiting streams.
#[test]
fn image_is_loaded_once_for_each_gpu() {
    inside!(Variant::default());
    let control = Control::open();
    control.record(true);
    let gpu = Gpu::cuda(0).unwrap();
    let first = gpu.load(&KERNELS).unwrap();
    let second = gpu.load(&KERNELS).unwrap();
    control.record(false);
    let calls = control.calls();
    assert_eq!(calls.matches("cuModuleLoadData").count(), 1, "{calls}");
    first.kernel("gds_fill").unwrap();
    assert_eq!(kind(second.kernel("gds_no_such")), Some(Kind::Invalid));
    assert_eq!(gpu.dims_for(1000).grid, [4, 1, 1]);
}

/// The library's kernels from its own PTX: fill, copy, verify.
#[test]
fn modules_kernels_events() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    for bad in [&b"no code"[..], b".version 7.0\0 and more"] {
        assert_eq!(kind(gpu.load_module(bad)), Some(Kind::Invalid));
    }
    let module = gpu.load_module(KERNELS.ptx().unwrap().as_bytes()).unwrap();
    let missing = module.kernel("gds_no_such");
    refused(missing, Kind::Invalid, None, &["gds_no_such"]);
    let (fill, verify) = (
        module.kernel("gds_fill").unwrap(),
        module.kernel("gds_verify").unwrap(),
    );
    let (first, second) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let memory = gpu.alloc(MemoryKind::Device, 1 << 16).unwrap();
    let report = gpu.alloc(MemoryKind::Device, 64).unwrap();
    report.write(0, &Report::CLEAN.to_bytes()).unwrap();
    let half = 1 << 15;
    let filled = Fill {
        at: memory.addr(),
        len: half,
        seed: 5,
    };
    let checked = |seed| Verify {
        at: memory.addr().offset(half),
        len: half,
        seed,
        report: report.addr(),
    };
    let dims = Dims::linear(4, 64);
    let found = || Report::from_bytes(report.bytes(0));
    // SAFETY: pointers into `memory` and `report`, which live until both streams are done.
    unsafe {
        first.launch(&fill, dims, filled.bytes()).unwrap();
        let (to, from) = (
            memory.span(1 << 15, 1 << 15).unwrap(),
            memory.span(0, 1 << 15).unwrap(),
        );
        first.copy(&to, &from).unwrap();
        let event = first.record().unwrap();
        second.wait_event(&event).unwrap();
        second.launch(&verify, dims, checked(5).bytes()).unwrap();
        passes(&second);
        assert!(event.is_done().unwrap());
        assert_eq!(found(), Report::CLEAN);
        second.launch(&verify, dims, checked(6).bytes()).unwrap();
        passes(&second);
        assert!(found().wrong > half / 2 && found().first < 8);
        // Parameters of another size, and no block.
        for (dims, args) in [(dims, &[0; 8][..]), (Dims::linear(0, 1), filled.bytes())] {
            assert_eq!(kind(second.launch(&fill, dims, args)), Some(Kind::Invalid));
        }
    }
}

/// A copy from host to host that is enqueued on a waiting stream does not wait for the stream.
#[test]
fn copies_between_all_kinds_of_memory() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let stream = gpu.stream().unwrap();
    let gate = gpu.word();
    for (round, (to, from)) in [
        (MemoryKind::Pinned, MemoryKind::Pinned),
        (MemoryKind::Pinned, MemoryKind::Device),
        (MemoryKind::Device, MemoryKind::Pinned),
        (MemoryKind::Device, MemoryKind::Device),
    ]
    .into_iter()
    .enumerate()
    {
        let (to, from) = (gpu.alloc(to, 5000).unwrap(), gpu.alloc(from, 5000).unwrap());
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7 + round as u32) as u8).collect();
        from.write(0, &bytes).unwrap();
        let opened = round as u32 + 1;
        let wait = [geq(&gate, opened)];
        post_on(&stream, &mut [], &wait).unwrap();
        for (at, len) in [(0, 1000), (1000, 7), (1008, 2992), (4001, 999)] {
            let (to, from) = (to.span(at, len).unwrap(), from.span(at, len).unwrap());
            stream.copy(&to, &from).unwrap();
        }
        assert_eq!(control.blocked(), [], "no call blocked");
        let got = to.vec(0, 5000);
        assert_eq!(got, [0; 5000], "nothing has moved");
        gate.store(opened).unwrap();
        passes(&stream);
        let got = to.vec(0, 5000);
        let mut want = bytes;
        want[1007] = 0;
        want[4000] = 0;
        assert_eq!(got, want);
    }
}

const EXPORTER: &str = "STANDIN_EXPORTER";

/// Memory of another process, by both ways: the other process sees the writes of this one.
#[test]
fn memory_of_another_process() {
    inside!(Variant::default());
    let gpu = Gpu::cuda(0).unwrap();
    if std::env::var(EXPORTER).is_ok() {
        return other_process(&gpu);
    }
    make_current(retained());
    let mut at = 0;
    // SAFETY: memory that is never freed.
    ok(unsafe { (driver().cuMemAlloc_v2)(&mut at, 4096) });
    // SAFETY: as above.
    let plain = unsafe { gpu.adopt(DevicePtr(at), 4096) }.unwrap();
    let mapped = gpu.alloc_exportable(4096).unwrap();
    let _neighbour = gpu.alloc(MemoryKind::Device, 4096).unwrap();
    let piece = gpu.alloc(MemoryKind::Device, 4096).unwrap();
    plain.write(0, b"from the first").unwrap();
    mapped.write(0, b"and once more").unwrap();
    piece.write(0, b"a part of a unit").unwrap();
    let SharedMemory::Ipc {
        handle,
        offset,
        len,
    } = plain.share().unwrap()
    else {
        panic!("memory of cuMemAlloc goes by IPC");
    };
    let file = |region: &Region| match region.share().unwrap() {
        SharedMemory::File { fd, offset, len } => (fd, offset, len),
        other => panic!("{other:?}: mapped memory goes by descriptor"),
    };
    let (fd, whole, size) = file(&mapped);
    assert_eq!((offset, len, whole, size), (0, 4096, 0, 4096));
    let (unit, place, size) = file(&piece);
    assert_eq!((place % 4096, size), (0, 4096));
    assert!(place > 0, "its neighbour is before it");
    // SAFETY: the region is kept; refused, as the driver does in the process that made it.
    let own = unsafe { gpu.open_shared(&plain.share().unwrap()) };
    assert!(own.is_err());
    // The other process reads the descriptor of this one.
    use std::os::fd::AsRawFd;
    let path =
        |fd: &std::os::fd::OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let pinned = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
    pinned.write(0, b"pinned by the first").unwrap();
    let SharedMemory::Host {
        fd: host,
        offset: inside,
        len: 4096,
    } = pinned.share().unwrap()
    else {
        panic!("pinned memory goes by its file");
    };
    let (path, unit, host) = (path(&fd), path(&unit), path(&host));
    let hex: String = handle.iter().map(|b| format!("{b:02x}")).collect();
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory_of_another_process", "--nocapture"])
        .env(
            EXPORTER,
            format!("{hex} {path} {unit} {place} {host} {inside}"),
        )
        .status()
        .unwrap();
    assert!(status.success());
    for region in [&plain, &mapped, &piece, &pinned] {
        assert_eq!(&region.bytes(64), b"second");
    }
    let (_, offset) = piece.dma_buf().unwrap();
    assert_eq!((offset, piece.len()), (0, 4096));
    let ours = gpu.adopt_vec(vec![0; 64]).map_err(|(_, e)| e).unwrap();
    assert_eq!(kind(ours.share()), Some(Kind::Unsupported));
}

fn other_process(gpu: &Gpu) {
    let given = std::env::var(EXPORTER).unwrap();
    let given: Vec<&str> = given.split(' ').collect();
    let hex = given[0];
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let handle: [u8; 64] = std::array::from_fn(byte);
    let len = 4096;
    let ipc = |offset| SharedMemory::Ipc {
        handle,
        offset,
        len,
    };
    let file = |path: &str, offset| {
        let file = std::fs::File::options().read(true).write(true).open(path);
        let fd = file.unwrap().into();
        SharedMemory::File { fd, offset, len }
    };
    let host = |path: &str, offset| match file(path, offset) {
        SharedMemory::File { fd, offset, len } => SharedMemory::Host { fd, offset, len },
        other => other,
    };
    for (shared, expected) in [
        (ipc(0), &b"from the first"[..]),
        (
            host(given[4], given[5].parse().unwrap()),
            b"pinned by the first",
        ),
        (file(given[1], 0), b"and once more"),
        (
            file(given[2], given[3].parse().unwrap()),
            b"a part of a unit",
        ),
    ] {
        // SAFETY: the first process keeps its regions until this one has ended.
        let region = unsafe { gpu.open_shared(&shared) }.unwrap();
        let got = region.vec(0, expected.len());
        assert_eq!(got, expected);
        // By a stream, and by the copy engine.
        let stream = gpu.stream().unwrap();
        let word = region.word32(64).unwrap();
        let write = write32(&word, u32::from_le_bytes(*b"seco"));
        post(gpu, &stream, &[write]).unwrap();
        passes(&stream);
        region.write(68, b"nd").unwrap();
    }
    // A length beyond the memory.
    // SAFETY: refused.
    let too_long = unsafe { gpu.open_shared(&ipc(64)) };
    assert_eq!(kind(too_long), Some(Kind::Invalid));
}

/// A descriptor reaches the pages of its region and no others: these pages are not allocated again,
/// and the rest of their unit is.
#[test]
fn exported_pages_are_not_given_out_again_and_their_neighbours_are() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let alloc = || gpu.alloc(MemoryKind::Device, 64).unwrap();
    let mut kept = vec![alloc()];
    let before = control.live()["physical"];
    let exports: Vec<_> = (0..64)
        .map(|_| {
            let region = alloc();
            (region.dma_buf().unwrap(), region.addr())
        })
        .collect();
    assert_eq!(control.live()["physical"], before, "all in one unit");
    assert!(exports.iter().all(|((_, offset), _)| *offset == 0));
    kept.extend((0..100).map(|_| alloc()));
    for region in &kept {
        assert!(
            exports.iter().all(|(_, at)| *at != region.addr()),
            "{region:?} can be reached by a descriptor of another"
        );
    }
    assert_eq!(control.live()["physical"], before);
    drop(kept);
    until("the unit is freed in spite of open descriptors", || {
        control.live()["physical"] < before
    });
}
