//! Copies between host and device memory beside all streams, by a stream of our own context.
//!
//! The driver writes few bytes not by a copy engine but through the engine that runs kernels;
//! while a kernel of the application's context spins, such a write waits for its time slice,
//! milliseconds. Copies of several rows always go to a copy engine, and memory operations to
//! neither, so few bytes are written as two rows and single words.

use std::time::{Duration, Instant};

use gds_step::Mutex;
use gdsync_sys::cuda::types::{
    CUDA_MEMCPY2D, CUdeviceptr, CUstream, CUstreamBatchMemOpParams as Params,
};
use gdsync_sys::cuda::{CudaResult, consts};

use super::context::Context;
use crate::error::{Error, Kind, Result};

/// Bytes of the staging buffer, and of one copy.
const STAGE: usize = 1 << 20;

/// From this size on the driver uses a copy engine by itself (measured: 32 KiB).
const LARGE: usize = 32 << 10;

/// A copy engine that takes so long is stuck, or busy with what never ends.
const LIMIT: Duration = Duration::from_secs(10);

/// A stream of the library's context and pinned memory to copy through.
#[derive(Default)]
pub(crate) struct Engine(Mutex<Option<Stage>>);

struct Stage {
    stream: CUstream,
    memory: *mut u8,
}

// SAFETY: a handle of the driver and memory that only the holder of the lock touches.
unsafe impl Send for Stage {}

/// Which way a copy goes.
enum Direction<'a> {
    Out(&'a mut [u8]),
    In(&'a [u8]),
}

impl Engine {
    /// The engine of `context`, whose end is its end.
    pub fn new(context: &Context) -> Result<Engine> {
        const OPERATION: &str = "make copy engine";
        let _own = context.enter_own()?;
        let cuda = context.cuda;
        let (mut stream, mut memory) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: creates objects of the current context, our own.
        unsafe {
            let made = (cuda.cuStreamCreate)(&mut stream, consts::CU_STREAM_NON_BLOCKING);
            context.check(made, OPERATION)?;
            let flags = consts::CU_MEMHOSTALLOC_PORTABLE;
            let made = (cuda.cuMemHostAlloc)(&mut memory, STAGE, flags);
            context.check(made, OPERATION)?;
        }
        let stage = Stage {
            stream,
            memory: memory.cast(),
        };
        Ok(Engine(Mutex::new(Some(stage))))
    }

    /// Copies out of device memory.
    ///
    /// # Safety
    /// The memory is valid on this device.
    pub unsafe fn read(&self, context: &Context, at: CUdeviceptr, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(context, at, Direction::Out(into)) }
    }

    /// Copies into device memory; visible to the GPU when this returns.
    ///
    /// # Safety
    /// As [`Engine::read`].
    pub unsafe fn write(&self, context: &Context, at: CUdeviceptr, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(context, at, Direction::In(from)) }
    }

    unsafe fn copy(
        &self,
        context: &Context,
        at: CUdeviceptr,
        mut direction: Direction<'_>,
    ) -> Result<()> {
        const OPERATION: &str = "copy device memory";
        let _own = context.enter_own()?;
        let mut guard = self.0.lock();
        let Some(stage) = guard.take() else {
            let what = format!("{}: an earlier copy is stuck", context.name());
            return Err(Error::new(OPERATION, Kind::System, what));
        };
        let cuda = context.cuda;
        let len = match &direction {
            Direction::Out(into) => into.len(),
            Direction::In(from) => from.len(),
        };
        for done in (0..len).step_by(STAGE) {
            let part = (len - done).min(STAGE);
            let here = at + done as CUdeviceptr;
            // SAFETY: the staging buffer has room for `part` and is ours under the lock; the
            // device range is the caller's promise.
            let copied = unsafe {
                match &direction {
                    Direction::Out(_) => {
                        (cuda.cuMemcpyDtoHAsync_v2)(stage.memory.cast(), here, part, stage.stream)
                    }
                    Direction::In(from) => {
                        stage.memory.copy_from(from[done..].as_ptr(), part);
                        stage.put(context, here, part)
                    }
                }
            };
            // Nothing may be under way when the buffer is used again: if this fails, it is not.
            stage.finish(context, OPERATION)?;
            if let Err(e) = context.check(copied, OPERATION) {
                *guard = Some(stage);
                return Err(e);
            }
            if let Direction::Out(into) = &mut direction {
                // SAFETY: the copy into the staging buffer is done, and nobody else writes it.
                unsafe { into[done..].as_mut_ptr().copy_from(stage.memory, part) };
            }
        }
        *guard = Some(stage);
        Ok(())
    }

    /// Zeroes device memory.
    ///
    /// # Safety
    /// The memory is valid on this device.
    pub unsafe fn zero(&self, context: &Context, at: CUdeviceptr, len: usize) -> Result<()> {
        const OPERATION: &str = "zero device memory";
        let _own = context.enter_own()?;
        let guard = self.0.lock();
        let Some(stage) = &*guard else {
            return Err(Error::new(OPERATION, Kind::System, context.name()));
        };
        // SAFETY: the caller's promise.
        let set = unsafe { (context.cuda.cuMemsetD8Async)(at, 0, len, stage.stream) };
        context.check(set, OPERATION)?;
        stage.finish(context, OPERATION)
    }
}

impl Stage {
    /// Enqueues the copy of what is staged to `at`. Aligned words of 4 and 8 bytes are written
    /// at once, lower addresses first.
    ///
    /// # Safety
    /// `len` bytes are staged and valid at `at`.
    unsafe fn put(&self, context: &Context, at: CUdeviceptr, len: usize) -> CudaResult {
        let cuda = context.cuda;
        let Some(rows) = cuda.cuMemcpy2DAsync_v2.filter(|_| len < LARGE) else {
            // SAFETY: the caller's promise.
            return unsafe {
                (cuda.cuMemcpyHtoDAsync_v2)(at, self.memory.cast(), len, self.stream)
            };
        };
        let mut done = 0;
        while done < len {
            let here = at + done as CUdeviceptr;
            let left = len - done;
            // SAFETY: what is staged from `done` on, to where it belongs.
            let (enqueued, step) = unsafe {
                let from = self.memory.add(done);
                if here.is_multiple_of(8) && left >= 16 {
                    let step = left / 16 * 16;
                    (rows(&self.two_rows(from, here, step), self.stream), step)
                } else if here.is_multiple_of(8) && left >= 8 {
                    let value = from.cast::<u64>().read_unaligned();
                    (
                        self.word(context, from, Params::write64(here, value, 0), 8),
                        8,
                    )
                } else if here.is_multiple_of(4) && left >= 4 {
                    let value = from.cast::<u32>().read_unaligned();
                    (
                        self.word(context, from, Params::write32(here, value, 0), 4),
                        4,
                    )
                } else {
                    // Up to three bytes, which have no other way.
                    let step = left.min(4 - (here % 4) as usize);
                    let copy = cuda.cuMemcpyHtoDAsync_v2;
                    (copy(here, from.cast(), step, self.stream), step)
                }
            };
            if !enqueued.is_success() {
                return enqueued;
            }
            done += step;
        }
        CudaResult::SUCCESS
    }

    /// Enqueues the write of one word, staged at `from`. Memory of an application's pool takes
    /// no memory operations from here; it is copied to.
    ///
    /// # Safety
    /// `param` names valid device memory, and the word staged.
    unsafe fn word(
        &self,
        context: &Context,
        from: *const u8,
        mut param: Params,
        len: usize,
    ) -> CudaResult {
        let cuda = context.cuda;
        // SAFETY: the driver copies the parameter before it returns; every member of the union
        // has the address there.
        unsafe {
            match (cuda.cuStreamBatchMemOp_v2)(self.stream, 1, &mut param, 0) {
                CudaResult::INVALID_VALUE => {
                    let to = param.write_value.address;
                    (cuda.cuMemcpyHtoDAsync_v2)(to, from.cast(), len, self.stream)
                }
                other => other,
            }
        }
    }

    /// A copy of `len` bytes, a multiple of 16, as two rows that touch each other at the
    /// destination and not at the source.
    ///
    /// # Safety
    /// `len` bytes, fewer than [`LARGE`], are staged at `from`.
    unsafe fn two_rows(&self, from: *mut u8, to: CUdeviceptr, len: usize) -> CUDA_MEMCPY2D {
        let half = len / 2;
        let pitch = STAGE / 2;
        // SAFETY: the second half of the staging buffer holds nothing else when so few bytes
        // are staged, and as many fit there.
        unsafe { from.add(pitch).copy_from(from.add(half), half) };
        CUDA_MEMCPY2D {
            src_x_in_bytes: 0,
            src_y: 0,
            src_memory_type: consts::CU_MEMORYTYPE_HOST,
            src_host: from.cast(),
            src_device: 0,
            src_array: std::ptr::null_mut(),
            src_pitch: pitch,
            dst_x_in_bytes: 0,
            dst_y: 0,
            dst_memory_type: consts::CU_MEMORYTYPE_DEVICE,
            dst_host: std::ptr::null_mut(),
            dst_device: to,
            dst_array: std::ptr::null_mut(),
            dst_pitch: half,
            width_in_bytes: half,
            height: 2,
        }
    }

    fn finish(&self, context: &Context, operation: &'static str) -> Result<()> {
        let start = Instant::now();
        loop {
            // SAFETY: a stream of ours.
            match unsafe { (context.cuda.cuStreamQuery)(self.stream) } {
                CudaResult::NOT_READY if start.elapsed() < LIMIT => std::hint::spin_loop(),
                CudaResult::NOT_READY => {
                    let what = format!("{}: not done within {LIMIT:?}", context.name());
                    return Err(Error::new(operation, Kind::Timeout, what));
                }
                other => return context.check(other, operation),
            }
        }
    }
}
