//! Every public call that enqueues refuses a stream that is being captured, before anything is
//! enqueued: on the soft GPU, and on CUDA by a stand-in for libcuda.

#[path = "common/application.rs"]
mod application;
mod common;
mod standin;

use std::ffi::c_void;

use application::{begin_capture, end_capture, make_current, post, retained};
use common::*;
use gdsync::Result;
use gdsync::gpu::{Event, Kernel};
use gdsync::internals::{Batch, Fill, Op, Width};
use gdsync_sys::cuda::consts;
use standin::{Control, Variant, inside};

struct Rig {
    gpu: Gpu,
    stream: Stream,
    memory: Region,
    kernel: Kernel,
    event: Event,
}

/// An enqueueing call.
type Call = fn(&Rig) -> Result<()>;

const CALLS: &[(&str, Call)] = &[
    ("submit", |r| {
        let mut batch = Batch::with_capacity(1);
        batch.push(Op::write(Width::Bits32, r.memory.addr(), 1u32));
        // SAFETY: the memory outlives the stream's work.
        unsafe { r.stream.submit(&batch) }
    }),
    ("post_on: a write", |r| {
        let word = r.memory.word32(0).unwrap();
        let write = write32(&word, 1);
        post(&r.gpu, &r.stream, &[write])
    }),
    ("post_on: a wait", |r| {
        let word = r.memory.word32(0).unwrap();
        let wait = geq(&word, 1);
        post(&r.gpu, &r.stream, &[wait])
    }),
    ("launch_waiting", |r| {
        let word = r.memory.word64(8).unwrap();
        let dims = Dims::linear(1, 1);
        // SAFETY: a fill of no bytes touches nothing.
        unsafe { (r.stream).launch_waiting(&r.kernel, dims, &[0_u8; FILL], Some((&word, 1))) }
    }),
    ("copy of device memory", |r| {
        let memory = r.gpu.alloc(MemoryKind::Device, 128)?;
        r.stream.copy(&memory.span(0, 64)?, &memory.span(64, 64)?)
    }),
    ("copy of host memory", |r| {
        r.stream.copy(&r.memory.span(0, 8)?, &r.memory.span(8, 8)?)
    }),
    ("record", |r| r.stream.record().map(drop)),
    ("wait_event", |r| r.stream.wait_event(&r.event)),
];

const FILL: usize = size_of::<Fill>();

unsafe extern "C" fn nothing(_: *const c_void) {}

/// Tries every call; returns the failures.
fn refused(rig: &Rig) -> Vec<String> {
    let wrong = |(what, call): &(&str, Call)| match call(rig) {
        Ok(()) => Some(format!("{what} was taken")),
        Err(e) if e.kind() != Kind::Unsupported => Some(format!("{what}: {e:?}")),
        Err(e) if !e.to_string().contains("captur") => Some(format!("{what}: {e}")),
        Err(_) => None,
    };
    CALLS.iter().filter_map(wrong).collect()
}

impl Rig {
    /// After the capture, the stream accepts every call.
    fn takes_every_call(&self) {
        for (what, call) in CALLS {
            call(self).unwrap_or_else(|e| panic!("{what} behind the capture: {e}"));
        }
    }
}

#[test]
fn captured_streams_are_refused_on_the_soft_gpu() {
    let gpu = Gpu::soft().unwrap();
    let stream = gpu.stream().unwrap();
    // SAFETY: it takes a parameter of this size and touches nothing.
    let kernel = unsafe { softgpu::Kernel::new("nothing", nothing, FILL) };
    let rig = Rig {
        event: gpu.stream().unwrap().record().unwrap(),
        memory: gpu.alloc(MemoryKind::Pinned, 64).unwrap(),
        kernel: Kernel::soft(kernel),
        stream,
        gpu,
    };
    rig.stream.as_soft().unwrap().begin_capture().unwrap();
    let wrong = refused(&rig);
    rig.stream.as_soft().unwrap().end_capture().unwrap();
    assert_eq!(wrong, [""; 0]);
    rig.takes_every_call();
}

/// The application's own kernels are captured; no other call is.
#[test]
fn captured_streams_are_refused_on_cuda() {
    inside!(Variant::default());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    make_current(retained());
    let module = gpu
        .load_module(gdsync::gpu::KERNELS.ptx().unwrap().as_bytes())
        .unwrap();
    let rig = Rig {
        event: gpu.stream().unwrap().record().unwrap(),
        memory: gpu.alloc(MemoryKind::Pinned, 64).unwrap(),
        kernel: module.kernel("gds_fill").unwrap(),
        stream: gpu.stream().unwrap(),
        gpu,
    };
    let raw = rig.stream.as_cuda().unwrap().cast();
    begin_capture(raw, consts::CU_STREAM_CAPTURE_MODE_RELAXED);
    control.record(true);
    let wrong = refused(&rig);
    let calls = control.calls();
    // SAFETY: a fill of no bytes touches nothing.
    unsafe {
        let dims = Dims::linear(1, 32);
        rig.stream.launch(&rig.kernel, dims, &[0_u8; FILL]).unwrap();
    }
    let held = end_capture(raw);
    assert_eq!(wrong, [""; 0]);
    for call in [
        "cuStreamBatchMemOp",
        "cuLaunch",
        "cuMemcpy",
        "cuEventRecord",
        "cuStreamWait",
    ] {
        assert!(!calls.contains(call), "{call}");
    }
    assert_eq!(held, 1, "the application's kernel alone");
    rig.takes_every_call();
}
