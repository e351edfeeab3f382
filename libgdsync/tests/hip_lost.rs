//! HIP that fails during a run: unknown error codes, and a GPU that is lost in the middle of a list, of
//! a wait, of a copy. Errors are typed and carry the code, no call hangs, and dropping the remaining
//! objects reports nothing.

mod common;
mod standin;

use common::*;
use gdsync::gpu::{Condition, Dims};
use gdsync::rdma::Descriptor;
use standin::{Control, Variant, inside, until};

/// HIP's code for a kernel that failed.
const LAUNCH_FAILURE: i32 = 719;

#[test]
fn each_later_call_says_that_the_gpu_is_lost() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let gate = memory.word32(0).unwrap();
    let wait = Descriptor::wait_value(&gate, Condition::Eq, 1);
    post_on(&stream, &mut [], &[wait]).unwrap();
    until("the stream waits", || control.waiting() == 1);
    control.lose_device(LAUNCH_FAILURE, 0);
    let lost = |error: gdsync::Error| {
        assert_eq!(error.kind(), Kind::DeviceLost, "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("719") && text.contains("restart the process"),
            "{text}"
        );
    };
    lost(stream.is_idle().unwrap_err());
    let word = memory.word32(4).unwrap();
    let write = write32(&word, 1);
    lost(post_on(&stream, &mut [], &[write]).unwrap_err());
    lost(gpu.alloc(MemoryKind::Device, 64).unwrap_err());
    lost(gpu.stream().unwrap_err());
    lost(gpu.alloc(MemoryKind::Pinned, 1 << 20).unwrap_err());
}

/// The device is lost at each operation of a list in turn.
#[test]
fn a_list_that_loses_the_gpu_ends() {
    inside!(Variant::HIP6);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let memory = gpu.alloc(MemoryKind::Pinned, 256).unwrap();
    let words: Vec<_> = (0..12).map(|i| memory.word32(8 * i).unwrap()).collect();
    let list: Vec<_> = words.iter().map(|word| write32(word, 5)).collect();
    control.lose_device(LAUNCH_FAILURE, 4);
    // The call may have returned before the loss.
    let posted = post_on(&stream, &mut [], &list);
    let mut error = posted.err();
    until("the loss is seen", || {
        error = error.take().or_else(|| stream.is_idle().err());
        error.is_some()
    });
    assert_eq!(error.unwrap().kind(), Kind::DeviceLost);
    assert_eq!(words[11].load().unwrap(), 0);
}

/// HIP has one code for a GPU whose kernel failed, and for a block that is too large for its kernel.
#[test]
fn a_refused_launch_does_not_lose_the_gpu() {
    inside!(Variant::HIP7);
    const LAUNCH_FAILURE: i32 = 719;
    let gpu = Gpu::hip(0).unwrap();
    let stream = gpu.stream().unwrap();
    let code = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/device/hip/gds_kernels.gfx942.co"
    );
    let module = gpu.load_module(&std::fs::read(code).unwrap()).unwrap();
    let kernel = module.kernel("gds_fill").unwrap();
    let fill = gdsync::internals::Fill::default();
    // SAFETY: fills nothing.
    let launch = || unsafe { stream.launch(&kernel, Dims::linear(1, 64), fill.bytes()) };
    let control = Control::open();
    control.fail("hipModuleLaunchKernel", LAUNCH_FAILURE, 0);
    assert_eq!(launch().unwrap_err().kind(), Kind::Invalid);
    control.fail("hipModuleLaunchKernel", 0, 0);
    launch().unwrap();
    until("the stream ends", || stream.is_idle().unwrap());
    for call in ["hipModuleLaunchKernel", "hipStreamQuery"] {
        control.fail(call, LAUNCH_FAILURE, 0);
    }
    assert_eq!(launch().unwrap_err().kind(), Kind::DeviceLost);
}

/// A code that no release has.
const UNKNOWN: i32 = 4242;

/// For each call that enqueues, allocates or queries: the error carries the code, and the next call
/// works.
#[test]
fn codes_never_seen_before() {
    inside!(Variant::HIP7);
    let gpu = Gpu::hip(0).unwrap();
    let control = Control::open();
    let stream = gpu.stream().unwrap();
    let code = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/device/hip/gds_kernels.gfx942.co"
    );
    let code = std::fs::read(code).unwrap();
    let module = gpu.load_module(&code).unwrap();
    let kernel = module.kernel("gds_fill").unwrap();
    let pinned = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let device = gpu.alloc(MemoryKind::Device, 64).unwrap();
    let (from, to) = (pinned.span(0, 8).unwrap(), device.span(8, 8).unwrap());
    let word = pinned.word32(0).unwrap();
    let wide = pinned.word64(8).unwrap();
    let event = stream.record().unwrap();
    let page = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
    // SAFETY: the layout is not empty; the memory is leaked, so it outlives its users.
    let page = unsafe { std::alloc::alloc_zeroed(page) };
    let each = |name: &str, attempt: &mut dyn FnMut() -> gdsync::Result<()>| {
        until("the stream ends", || stream.is_idle().unwrap());
        control.fail(name, UNKNOWN, 0);
        let error = attempt().expect_err(name);
        control.fail(name, 0, 0);
        assert_eq!(error.kind(), Kind::System, "{name}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(&UNKNOWN.to_string()), "{name}: {text}");
        attempt().unwrap_or_else(|e| panic!("{name}: {e}"));
    };
    let post = |list: &[Descriptor<'_>]| post_on(&stream, &mut [], list);

    each("hipStreamWriteValue32", &mut || post(&[write32(&word, 1)]));
    each("hipStreamWriteValue64", &mut || post(&[write64(&wide, 1)]));
    each("hipStreamWaitValue32", &mut || {
        post(&[Descriptor::wait_value(&word, Condition::Nor, 0)])
    });
    each("hipStreamWaitValue64", &mut || {
        post(&[Descriptor::wait_value(&wide, Condition::Nor, 0)])
    });
    each("hipModuleLaunchKernel", &mut || {
        let fill = gdsync::internals::Fill::default();
        // SAFETY: fills nothing.
        unsafe { stream.launch(&kernel, Dims::linear(1, 64), fill.bytes()) }
    });
    each("hipMemcpyAsync", &mut || stream.copy(&to, &from));
    each("hipStreamIsCapturing", &mut || {
        stream.is_capturing().map(drop)
    });
    each("hipStreamQuery", &mut || stream.is_idle().map(drop));
    each("hipEventQuery", &mut || event.is_done().map(drop));
    each("hipEventCreateWithFlags", &mut || stream.record().map(drop));
    each("hipEventRecord", &mut || stream.record().map(drop));
    each("hipStreamWaitEvent", &mut || stream.wait_event(&event));
    each("hipStreamCreateWithFlags", &mut || {
        // More streams than the library creates ahead.
        let streams = (0..40).map(|_| gpu.stream());
        streams.collect::<gdsync::Result<Vec<_>>>().map(drop)
    });
    for name in ["hipHostRegister", "hipHostGetDevicePointer"] {
        // With a registration of its own.
        each(name, &mut || {
            gpu.alloc(MemoryKind::Pinned, 1 << 20).map(drop)
        });
    }
    each("hipHostRegister", &mut || {
        // SAFETY: a page that is never freed.
        unsafe { gpu.register_host(page, 4096) }.map(drop)
    });
    each("hipMemsetD8Async", &mut || {
        gpu.alloc(MemoryKind::Device, 64).map(drop)
    });
    each("hipMemcpyDtoHAsync", &mut || device.read(0, &mut [0; 64]));
    each("hipMemcpyHtoDAsync", &mut || device.write(0, &[1]));
    each("hipModuleLoadData", &mut || {
        gpu.load_module(&code).map(drop)
    });
    each("hipModuleGetFunction", &mut || {
        module.kernel("gds_fill").map(drop)
    });
    for name in ["hipMemCreate", "hipMemMap", "hipMemSetAccess"] {
        each(name, &mut || gpu.alloc_exportable(64).map(drop));
    }
    each("hipMemExportToShareableHandle", &mut || {
        device.share().map(drop)
    });
    each("hipMemGetHandleForAddressRange", &mut || {
        device.dma_buf().map(drop)
    });
    post(&[write32(&word, 7)]).unwrap();
    until("the stream ends", || stream.is_idle().unwrap());
    assert_eq!(word.load().unwrap(), 7);
}
