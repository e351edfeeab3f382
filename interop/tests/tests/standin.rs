//! The adapters over a stand-in for libcuda: gdsync's own stand-in, with a few more functions.
//!
//! A process has one libcuda, so its callers here run in processes of their own: the examples, or
//! this program again for an ignored test.

#[path = "../../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use gdsync::gpu::{Condition, MemoryKind};
use gdsync::rdma::{Access, Descriptor, Device, Qp, QpConfig, Work};
use gdsync::{Gpu, Kind};
use interop_tests::run;
use standin::Variant;

const LIMIT: Duration = Duration::from_secs(20);

/// The stand-in with the functions of `more.cpp`.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = standin::build_with(&Variant::default(), &["../interop/tests"]);
        // cudarc looks for this file name first.
        let plain = library.with_file_name("libcuda.so");
        let _ = std::fs::remove_file(&plain);
        std::os::unix::fs::symlink(&library, &plain).unwrap();
        library
    })
}

#[test]
fn streams_of_cust_and_cudarc_carry_messages() {
    let library = library();
    let folder = library.parent().unwrap().to_str().unwrap();
    for name in ["cust", "cudarc"] {
        let env = [("LD_LIBRARY_PATH", folder), ("GDS_REQUIRE", "cuda")];
        let output = run(&format!("{name}_send"), library, &env);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stdout}{stderr}");
        let expected = format!("4096 bytes sent and received on a stream of {name}, on cuda");
        assert!(stdout.starts_with(&expected), "{stdout}");
    }
}

/// Runs the ignored test `case` over the stand-in.
fn inside(case: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--test-threads=1"])
        .env("GDS_CUDA_LIB", library())
        .env("LD_LIBRARY_PATH", library().parent().unwrap())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{}: {stdout}{stderr}", output.status);
}

#[test]
fn objects_of_cust_live_until_work_in_flight_has_ended() {
    inside("cust_keeps");
}

#[test]
fn objects_of_cudarc_live_until_work_in_flight_has_ended() {
    inside("cudarc_keeps");
}

#[test]
fn invalid_buffers_and_streams_are_refused() {
    inside("refusals");
}

fn pair(gpu: &Gpu) -> (gdsync::rdma::Pd, Qp, Qp) {
    let pd = Device::emulated(gpu).unwrap().alloc_pd().unwrap();
    let mut a = pd.create_qp(&QpConfig::default()).unwrap();
    let mut b = pd.create_qp(&QpConfig::default()).unwrap();
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    (pd, a, b)
}

/// Sends 64 bytes from one region to another behind a gate. All handles of the caller are dropped
/// before the gate opens; `alive` reports whether the program's objects still exist.
fn send_behind_a_gate(
    gpu: &Gpu,
    stream: gdsync::Stream,
    from: gdsync::gpu::Region,
    to: gdsync::gpu::Region,
    alive: impl Fn() -> [bool; 3],
) {
    let (pd, mut a, mut b) = pair(gpu);
    let gate = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
    let gate = gate.word32(0).unwrap();
    let source = pd.register(&from, Access::ALL).unwrap();
    let target = pd.register(&to, Access::ALL).unwrap();
    let closed = Descriptor::wait_value(&gate, Condition::Geq, 1);
    let receive = b.prepare_receive(&[target.sge(0, 64)]).unwrap();
    b.post_receive(receive).unwrap();
    let send = a.prepare(&Work::send(&[source.sge(0, 64)]).signaled());
    let send = send.unwrap();
    let list = [closed, Descriptor::Send(send), Descriptor::wait(send)];
    a.post_on(&stream, &list).unwrap();
    b.post_on(&stream, &[Descriptor::wait_flushed(receive)])
        .unwrap();
    drop((source, target, from));
    assert_eq!(alive(), [true; 3], "in flight");

    gate.store(1).unwrap();
    assert!(stream.synchronize(LIMIT).unwrap());
    let mut bytes = [0; 64];
    to.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0x77; 64]);
    drop((a, b, pd, to, stream));
    let start = Instant::now();
    while alive() != [false; 3] {
        assert!(start.elapsed() < LIMIT, "kept for good: {:?}", alive());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lives<T>(weak: &Weak<T>) -> bool {
    weak.strong_count() > 0
}

#[test]
#[ignore = "a case of objects_of_cust_live_until_work_in_flight_has_ended"]
fn cust_keeps() {
    use cust::memory::LockedBuffer;
    use cust::prelude::*;

    let context = cust::quick_init().unwrap();
    let gpu = gdsync_cust::gpu(&context).unwrap();
    let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None).unwrap());
    let from = Arc::new(DeviceBuffer::from_slice(&[0x7777_7777u32; 16]).unwrap());
    let to = Arc::new(DeviceBuffer::<u8>::zeroed(64).unwrap());
    let weak = (
        Arc::downgrade(&stream),
        Arc::downgrade(&from),
        Arc::downgrade(&to),
    );
    let source = gdsync_cust::region(&gpu, from).unwrap();
    let target = gdsync_cust::region(&gpu, to).unwrap();
    let on = gdsync_cust::stream(&gpu, stream).unwrap();
    assert_eq!((source.kind(), source.len()), (MemoryKind::Device, 64));
    send_behind_a_gate(&gpu, on, source, target, || {
        [lives(&weak.0), lives(&weak.1), lives(&weak.2)]
    });

    let host = LockedBuffer::new(&0x0102_0304u32, 4).unwrap();
    let host = gdsync_cust::pinned(&gpu, host).unwrap();
    assert_eq!((host.kind(), host.len()), (MemoryKind::Pinned, 16));
    assert_eq!(host.word32(12).unwrap().load().unwrap(), 0x0102_0304);
}

#[test]
#[ignore = "a case of objects_of_cudarc_live_until_work_in_flight_has_ended"]
fn cudarc_keeps() {
    let context = gdsync_cudarc::open(0).unwrap();
    let gpu = gdsync_cudarc::gpu(&context).unwrap();
    let stream = context.new_stream().unwrap();
    let maker = context.new_stream().unwrap();
    let from = Arc::new(maker.clone_htod(&[0x7777_7777u32; 16]).unwrap());
    let to = Arc::new(maker.alloc_zeros::<u8>(64).unwrap());
    let weak = (
        Arc::downgrade(&stream),
        Arc::downgrade(&from),
        Arc::downgrade(&to),
    );
    let source = gdsync_cudarc::region(&gpu, &from).unwrap();
    let target = gdsync_cudarc::region(&gpu, &to).unwrap();
    let on = gdsync_cudarc::stream(&gpu, &stream).unwrap();
    drop((stream, from, to));
    send_behind_a_gate(&gpu, on, source, target, || {
        [lives(&weak.0), lives(&weak.1), lives(&weak.2)]
    });

    // SAFETY: any bytes are a valid number.
    let mut host = unsafe { context.alloc_pinned::<u32>(4) }.unwrap();
    host.as_mut_slice().unwrap().fill(0x0102_0304);
    let host = gdsync_cudarc::pinned(&gpu, host).unwrap();
    assert_eq!((host.kind(), host.len()), (MemoryKind::Pinned, 16));
    assert_eq!(host.word32(12).unwrap().load().unwrap(), 0x0102_0304);
}

#[test]
#[ignore = "a case of invalid_buffers_and_streams_are_refused"]
fn refusals() {
    let context = gdsync_cudarc::open(0).unwrap();
    let gpu = gdsync_cudarc::gpu(&context).unwrap();
    let same = gdsync_cust::gpu(&cust::quick_init().unwrap()).unwrap();
    assert!(gpu.is(&same), "one primary context, one GPU");

    let default = gdsync_cudarc::stream(&gpu, &context.default_stream()).unwrap_err();
    assert!(
        matches!(&default, gdsync_cudarc::Error::Gdsync(e) if e.kind() == Kind::Invalid),
        "{default}"
    );
    assert!(gdsync_cudarc::open(99).is_err());

    // SAFETY: the buffer has no uninitialised elements.
    let empty = unsafe { cust::memory::DeviceBuffer::<u32>::uninitialized(0) }.unwrap();
    let empty = gdsync_cust::region(&gpu, Arc::new(empty)).unwrap_err();
    assert!(matches!(empty, gdsync_cust::Error::Empty), "{empty}");

    let soft = Gpu::soft().unwrap();
    let buffer = cust::memory::DeviceBuffer::<u32>::zeroed(4).unwrap();
    let foreign = gdsync_cust::region(&soft, Arc::new(buffer)).unwrap_err();
    assert!(
        matches!(&foreign, gdsync_cust::Error::Gdsync(e) if e.kind() == Kind::Foreign),
        "{foreign}"
    );
}
