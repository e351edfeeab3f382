//! CUDA that fails during a run: unknown error codes, and a GPU that is lost in the middle of a
//! list, of a wait, of a copy. Errors are typed and carry the code, no call hangs, and dropping the
//! remaining objects reports nothing.

mod common;
mod standin;

use common::*;
use gdsync::Error;
use standin::{Control, Variant, cases, inside, until};

/// The driver's code for a kernel that failed; the context is lost with it.
const LAUNCH_FAILED: i32 = 719;

struct Rig {
    gpu: Gpu,
    a: Qp,
    b: Qp,
    mr: Mr,
    stream: Stream,
}

fn rig(lowering: Lowering, doorbell: Doorbell) -> Rig {
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let (a, b) = joined(&pd, &sized(&by(lowering, doorbell), 1024, 1024));
    Rig {
        mr: memory(&pd, MemoryKind::Pinned, 4096, Access::ALL),
        stream: gpu.stream().unwrap(),
        gpu,
        a,
        b,
    }
}

fn numbered(error: &Error, code: i32) {
    let text = error.to_string();
    assert!(text.contains(&code.to_string()), "{text}");
}

/// For each call that enqueues, allocates or queries: the error carries the code, and the next call
/// works.
#[test]
fn codes_never_seen_before() {
    inside!(Variant::default());
    let mut r = rig(Lowering::MemOps, Doorbell::Direct);
    let control = Control::open();
    let image = gdsync::gpu::KERNELS.ptx().unwrap().as_bytes();
    let module = r.gpu.load_module(image).unwrap();
    let kernel = module.kernel("gds_fill").unwrap();
    let device = r.gpu.alloc(MemoryKind::Device, 64).unwrap();
    let (from, to) = (
        r.mr.region().span(0, 8).unwrap(),
        device.span(8, 8).unwrap(),
    );
    let word = r.mr.region().word32(0).unwrap();
    let event = r.stream.record().unwrap();
    let page = std::alloc::Layout::from_size_align(4096, 4096).unwrap();
    // SAFETY: the layout is not empty; the memory is leaked, so it outlives its users.
    let page = unsafe { std::alloc::alloc_zeroed(page) };
    until("the stream ends", || r.stream.is_idle().unwrap());
    let before = control.live();
    let mut each = |name: &str, attempt: &mut dyn FnMut(&mut Rig) -> gdsync::Result<()>| {
        control.fail(name, 4242, 0);
        let error = attempt(&mut r).expect_err(name);
        assert_eq!(error.kind(), Kind::System, "{name}: {error:?}");
        numbered(&error, 4242);
        control.fail(name, 0, 0);
        attempt(&mut r).unwrap_or_else(|e| panic!("{name}: {e}"));
    };
    let write = write32(&word, 1);
    each("cuStreamBatchMemOp_v2", &mut |r| {
        r.a.post_on(&r.stream, &[write])
    });
    each("cuLaunchKernel", &mut |r| {
        let fill = gdsync::internals::Fill::default();
        // SAFETY: fills nothing.
        unsafe { r.stream.launch(&kernel, Dims::linear(1, 32), fill.bytes()) }
    });
    each("cuMemcpyAsync", &mut |r| r.stream.copy(&to, &from));
    each("cuStreamIsCapturing", &mut |r| {
        r.stream.is_capturing().map(drop)
    });
    each("cuStreamQuery", &mut |r| r.stream.is_idle().map(drop));
    each("cuEventQuery", &mut |_| event.is_done().map(drop));
    each("cuEventCreate", &mut |r| r.stream.record().map(drop));
    each("cuEventRecord", &mut |r| r.stream.record().map(drop));
    each("cuStreamWaitEvent", &mut |r| r.stream.wait_event(&event));
    each("cuStreamCreate", &mut |r| {
        // More streams than the library creates ahead.
        let streams = (0..40).map(|_| r.gpu.stream());
        streams.collect::<gdsync::Result<Vec<_>>>().map(drop)
    });
    for name in ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2"] {
        // With a registration of its own.
        each(name, &mut |r| {
            r.gpu.alloc(MemoryKind::Pinned, 1 << 20).map(drop)
        });
    }
    each("cuMemsetD8Async", &mut |r| {
        r.gpu.alloc(MemoryKind::Device, 64).map(drop)
    });
    each("cuMemHostRegister_v2", &mut |r| {
        // SAFETY: a page that is never freed.
        unsafe { r.gpu.register_host(page, 4096) }.map(drop)
    });
    each("cuMemcpyDtoHAsync_v2", &mut |_| {
        device.read(0, &mut [0; 64])
    });
    each("cuCtxPushCurrent_v2", &mut |_| device.write(0, &[1]));
    each("cuModuleLoadData", &mut |r| {
        r.gpu.load_module(image).map(drop)
    });
    each("cuFuncLoad", &mut |_| module.kernel("gds_fill").map(drop));
    for name in ["cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        each(name, &mut |r| r.gpu.alloc_exportable(64).map(drop));
    }
    each("cuMemExportToShareableHandle", &mut |_| {
        device.share().map(drop)
    });
    each("cuMemGetHandleForAddressRange", &mut |_| {
        device.dma_buf().map(drop)
    });
    until("all that was made is gone", || {
        let live = control.live();
        [
            "device", "host", "mapped", "physical", "reserved", "commands",
        ]
        .iter()
        .all(|kind| live[*kind] == before[*kind])
    });
    // A message still arrives.
    message(&mut r).unwrap();
}

fn message(r: &mut Rig) -> gdsync::Result<()> {
    let recv = r.b.prepare_receive(&[r.mr.sge(64, 8)])?;
    r.b.post_receive(recv)?;
    let send = r.a.prepare(&Work::send(&[r.mr.sge(0, 8)]).signaled())?;
    r.a.post_on(&r.stream, &send_and_wait(send))?;
    assert!(r.stream.synchronize(LIMIT)?);
    r.a.wait(send, LIMIT)?;
    r.b.wait(recv, LIMIT)
}

/// A refusal in the middle of a list of several submissions: the enqueued operations stay, the
/// error is the first cause, and no request of the list hangs.
#[test]
fn a_code_in_the_middle_of_a_list() {
    inside!(Variant::default());
    let mut r = rig(Lowering::MemOps, Doorbell::Direct);
    Control::open().fail("cuStreamBatchMemOp_v2", 4242, 1);
    let error = long_list(&mut r).unwrap_err();
    assert_eq!(error.kind(), Kind::System, "{error:?}");
    numbered(&error, 4242);
    Control::open().fail("cuStreamBatchMemOp_v2", 0, 0);
    passes(&r.stream);
    drop(r);
}

/// A reset waits until a stream has passed the first half of a list that failed: a wait there is
/// released, and the receives of the second half are flushed.
#[test]
fn a_reset_waits_for_the_first_half_of_a_list_that_failed() {
    inside!(Variant::default());
    for posts in [false, true] {
        let what = format!("the second half posts: {posts}");
        let mut r = rig(Lowering::MemOps, Doorbell::Direct);
        let words = r.gpu.alloc(MemoryKind::Pinned, 64).unwrap();
        let (gate, other) = (words.word32(0).unwrap(), words.word32(4).unwrap());
        // Posted by the CPU; no message matches it.
        let receive = r.a.receive(&[r.mr.sge(0, 8)]);
        let send = r.a.signaled(&Work::send(&[r.mr.sge(0, 8)]));
        let late = r.a.prepare_receive(&[r.mr.sge(0, 8)]).unwrap();
        let mut list = vec![geq(&gate, 1), Descriptor::wait(receive)];
        let write = write32(&other, 1);
        list.extend(std::iter::repeat_n(write, 600));
        if posts {
            list.extend([Descriptor::Send(send), Descriptor::Receive(late)]);
        }
        let control = Control::open();
        control.fail("cuStreamBatchMemOp_v2", 4242, 1);
        let error = r.a.post_on(&r.stream, &list).unwrap_err();
        numbered(&error, 4242);
        control.fail("cuStreamBatchMemOp_v2", 0, 0);
        assert!(r.a.error().is_some(), "{what}");
        let busy = r.a.reset().map_err(|e| e.kind());
        assert_eq!(busy, Err(Kind::Busy), "{what}");
        gate.store(1).unwrap();
        r.a.quiet(LIMIT).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(r.stream.synchronize(LIMIT).unwrap(), "{what}");
        r.a.reset().unwrap();
        r.b.fail(gdsync::Status::CLOSED);
        r.b.quiet(LIMIT).unwrap();
        r.b.reset().unwrap();
        connect(&mut r.a, &mut r.b);
        message(&mut r).unwrap();
    }
}

/// Sends and waits that need more than two submissions.
fn long_list(r: &mut Rig) -> gdsync::Result<()> {
    let mut list = Vec::new();
    for _ in 0..250 {
        let recv = r.b.prepare_receive(&[r.mr.sge(64, 8)])?;
        r.b.post_receive(recv)?;
        let send = r.a.prepare(&Work::send(&[r.mr.sge(0, 8)]).signaled())?;
        list.extend(send_and_wait(send));
    }
    r.a.post_on(&r.stream, &list)
}

/// Every call reports that the GPU is lost, with the code.
fn lost(r: &mut Rig, code: i32) {
    let gpu = r.gpu.clone();
    let region: Region = r.mr.region().clone();
    let word = region.word32(0).unwrap();
    let write = write32(&word, 1);
    let errors = [
        r.a.post_on(&r.stream, &[write]).unwrap_err(),
        r.stream.synchronize(LIMIT).unwrap_err(),
        r.stream.is_idle().unwrap_err(),
        r.stream.record().unwrap_err(),
        gpu.stream().unwrap_err(),
        gpu.alloc(MemoryKind::Device, 64).unwrap_err(),
        gpu.alloc(MemoryKind::Pinned, 64).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::DeviceLost, "{error:?}");
        numbered(&error, code);
    }
    // Pinned memory belongs to the host; the CPU can still access it.
    word.store(5).unwrap();
    assert_eq!(word.load().unwrap(), 5);
}

/// The GPU is lost while it runs a list; half of the list is enqueued by then, or all of it.
fn lost_in_a_list(lowering: Lowering, doorbell: Doorbell) {
    let mut r = rig(lowering, doorbell);
    let control = Control::open();
    message(&mut r).unwrap();
    control.lose_device(LAUNCH_FAILED, 40);
    // Enough that the loss happens while the list is lowered or run.
    let posted = (0..4).try_for_each(|_| long_list(&mut r));
    if let Err(e) = posted {
        assert_eq!(e.kind(), Kind::DeviceLost, "{e:?}");
        numbered(&e, LAUNCH_FAILED);
    }
    let error = r.stream.synchronize(LIMIT).unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceLost, "{error:?}");
    lost(&mut r, LAUNCH_FAILED);
    let Rig {
        gpu,
        a,
        b,
        mr,
        stream,
    } = r;
    drop((a, b));
    drop(mr);
    drop(stream);
    // The next call reports it at once.
    assert_eq!(gpu.stream().unwrap_err().kind(), Kind::DeviceLost);
}

cases! {
    lost_in_a_list_of_memory_operations => lost_in_a_list(Lowering::MemOps, Doorbell::Direct);
    lost_in_a_list_for_the_proxy => lost_in_a_list(Lowering::MemOps, Doorbell::CpuThread);
}

/// The GPU is lost while streams wait, threads wait for requests, and memory waits to be freed.
fn lost_in_a_wait(lowering: Lowering) {
    let mut r = rig(lowering, Doorbell::Direct);
    let control = Control::open();
    message(&mut r).unwrap();
    let gate = r.gpu.word();
    let closed = geq(&gate, 1);
    r.b.receive(&[r.mr.sge(64, 8)]);
    let send = r.a.prepare(&Work::send(&[r.mr.sge(0, 8)]).signaled());
    let send = send.unwrap();
    let list = [closed, Descriptor::Send(send), Descriptor::wait(send)];
    r.a.post_on(&r.stream, &list).unwrap();
    let dropped = r.gpu.alloc(MemoryKind::Device, 64).unwrap();
    drop(dropped);
    let stream = r.stream.clone();
    let waiter = std::thread::spawn(move || stream.synchronize(Duration::from_secs(600)));
    std::thread::sleep(Duration::from_millis(20));
    control.lose_device(LAUNCH_FAILED, 0);
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceLost, "{error:?}");
    numbered(&error, LAUNCH_FAILED);
    // The doorbell of the request was never written, and never will be: a wait for it must still
    // end.
    let waited = r.a.wait(send, Duration::from_secs(5)).unwrap_err();
    assert!(
        matches!(waited.kind(), Kind::DeviceLost | Kind::Timeout),
        "{waited:?}"
    );
    lost(&mut r, LAUNCH_FAILED);
    let close = r.a.device().close(Duration::from_secs(2));
    if let Err(e) = close {
        assert!(!e.to_string().is_empty());
    }
}

cases! {
    lost_in_a_wait_of_memory_operations => lost_in_a_wait(Lowering::MemOps);
    lost_in_a_wait_of_a_kernel => lost_in_a_wait(Lowering::Kernel);
}

/// The GPU is lost while the NIC writes payload into device memory: the message fails, and no call
/// hangs.
#[test]
fn lost_under_the_nic() {
    inside!(Variant::default());
    let mut r = rig(Lowering::MemOps, Doorbell::Direct);
    let control = Control::open();
    message(&mut r).unwrap();
    let pd = r.a.device().alloc_pd().unwrap();
    let region = r.gpu.alloc(MemoryKind::Device, 1 << 20).unwrap();
    let (mut a, b) = joined(&pd, &by(Lowering::Auto, Doorbell::Direct));
    let mr = pd.register(&region, Access::ALL).unwrap();
    control.lose_device(LAUNCH_FAILED, 0);
    let span = mr.remote().span(4096, 4096).unwrap();
    let send = a.signaled(&Work::write(&[mr.sge(0, 4096)], span));
    // The CPU posts, so no call of the GPU is needed.
    if a.post(send).is_ok() {
        let error = a.wait(send, LIMIT).unwrap_err();
        assert!(
            matches!(error.kind(), Kind::Failed(_) | Kind::DeviceLost),
            "{error:?}"
        );
    }
    let error = region.read(0, &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceLost, "{error:?}");
    drop((a, b, mr, region));
    lost(&mut r, LAUNCH_FAILED);
}

/// A loss with an unknown code: each call reports the code, and no call hangs.
#[test]
fn lost_by_a_code_never_seen_before() {
    inside!(Variant::default());
    let mut r = rig(Lowering::MemOps, Doorbell::Direct);
    let control = Control::open();
    message(&mut r).unwrap();
    control.lose_device(4242, 0);
    let word = r.mr.region().word32(0).unwrap();
    let write = write32(&word, 1);
    for error in [
        r.a.post_on(&r.stream, &[write]).unwrap_err(),
        r.stream.synchronize(LIMIT).unwrap_err(),
        r.gpu.alloc(MemoryKind::Device, 64).unwrap_err(),
        Gpu::cuda(0).unwrap_err(),
    ] {
        numbered(&error, 4242);
    }
}
