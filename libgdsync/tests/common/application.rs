//! An application's own calls of CUDA, beside the library: on the same table, with its own contexts
//! and streams.

#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use gdsync::gpu::{Region, Stream};
use gdsync::rdma::{Descriptor, Device, QpConfig};
use gdsync::{Gpu, Result};
use gdsync_sys::cuda::types::{CUcontext, CUstream};
use gdsync_sys::cuda::{Cuda, CudaResult, consts};

/// The table, as an application loads it.
pub fn driver() -> &'static Cuda {
    let cuda = Cuda::get().unwrap();
    // SAFETY: may be called any number of times.
    ok(unsafe { (cuda.cuInit)(0) });
    cuda
}

#[track_caller]
pub fn ok(result: CudaResult) {
    assert!(result.is_success(), "{result:?}");
}

pub fn retained() -> CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: retains the primary context; it is kept.
    ok(unsafe { (driver().cuDevicePrimaryCtxRetain)(&mut context, 0) });
    context
}

pub fn make_current(context: CUcontext) {
    // SAFETY: null, or a live context.
    ok(unsafe { (driver().cuCtxSetCurrent)(context) });
}

/// A stream of the current context.
pub fn raw_stream() -> CUstream {
    let mut stream = std::ptr::null_mut();
    let flags = consts::CU_STREAM_NON_BLOCKING;
    // SAFETY: makes a stream.
    ok(unsafe { (driver().cuStreamCreate)(&mut stream, flags) });
    stream
}

/// Captures the operations of a stream, until [`end_capture`]. In the mode `RELAXED` no other call
/// invalidates the capture.
pub fn begin_capture(raw: CUstream, mode: u32) {
    let begin = driver().cuStreamBeginCapture_v2;
    // SAFETY: the caller's live stream.
    ok(unsafe { begin(raw, mode) });
}

/// Ends the capture; returns the number of operations of its graph.
#[track_caller]
pub fn end_capture(raw: CUstream) -> u64 {
    let cuda = driver();
    let mut graph: *mut u64 = std::ptr::null_mut();
    // SAFETY: the capture begun before; a graph of the stand-in is the count of its operations.
    unsafe {
        let ended = (cuda.cuStreamEndCapture)(raw, (&raw mut graph).cast());
        assert!(ended.is_success(), "the capture is spoilt: {ended:?}");
        let held = *graph;
        ok((cuda.cuGraphDestroy.unwrap())(graph.cast()));
        held
    }
}

/// Posts a list, usually the write of one word, on the stream, by a new queue pair.
pub fn post(gpu: &Gpu, stream: &Stream, list: &[Descriptor<'_>]) -> Result<()> {
    let pd = Device::emulated(gpu)?.alloc_pd()?;
    pd.create_qp(&QpConfig::default())?.post_on(stream, list)
}

/// Makes the stream write the word of `memory` at `at`, and checks the word.
#[track_caller]
pub fn writes(gpu: &Gpu, stream: &Stream, memory: &Region, at: usize, value: u32) {
    let word = &memory.word32(at).unwrap();
    post(gpu, stream, &[Descriptor::write_value(word, value)]).unwrap();
    assert!(stream.synchronize(Duration::from_secs(60)).unwrap());
    assert_eq!(word.load().unwrap(), value);
}
