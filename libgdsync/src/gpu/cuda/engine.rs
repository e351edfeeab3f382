//! Copies between host and device memory, independent of the application's streams, on a stream of
//! the library's context.
//!
//! The driver writes few bytes by the engine that runs kernels, not by a copy engine. While a
//! kernel of the application's context spins, this write waits milliseconds for its time slice.
//! Copies of several rows always use a copy engine, and memory operations use neither engine.
//! Therefore the library writes few bytes as two rows and single words.

use std::time::{Duration, Instant};

use gds_step::Mutex;
use gdsync_sys::cuda::types::{
    CUDA_MEMCPY2D, CUdeviceptr, CUstream, CUstreamBatchMemOpParams as Params,
};
use gdsync_sys::cuda::{CudaResult, consts};

use super::context::Context;
use crate::error::{Error, Kind, Result};

/// Bytes of the staging buffer, and the maximum of one copy.
const STAGE: usize = 1 << 20;

/// From this size in bytes on, the driver uses a copy engine (measured: 32 KiB).
const LARGE: usize = 32 << 10;

/// The time limit of a copy. A copy engine that exceeds it is stuck, or busy with work that never
/// ends.
const LIMIT: Duration = Duration::from_secs(10);

/// A stream of the library's context, with pinned staging memory.
#[derive(Default)]
pub(crate) struct Engine(Mutex<Option<Stage>>);

struct Stage {
    stream: CUstream,
    memory: *mut u8,
}

// SAFETY: a handle of the driver, and memory that only the holder of the lock accesses.
unsafe impl Send for Stage {}

/// The direction of a copy.
enum Direction<'a> {
    Out(&'a mut [u8]),
    In(&'a [u8]),
}

impl Engine {
    /// Makes the engine of `context`, which must outlive the engine.
    pub fn new(context: &Context) -> Result<Engine> {
        const OPERATION: &str = "create copy engine";
        let _own = context.enter_own()?;
        let cuda = context.cuda;
        let (mut stream, mut memory) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: creates objects of the current context, the library's.
        unsafe {
            let made = (cuda.cuStreamCreate)(&mut stream, consts::CU_STREAM_NON_BLOCKING);
            context.check(made, OPERATION, "cuStreamCreate")?;
            let flags = consts::CU_MEMHOSTALLOC_PORTABLE;
            let made = (cuda.cuMemHostAlloc)(&mut memory, STAGE, flags);
            context.check(made, OPERATION, "cuMemHostAlloc")?;
        }
        let stage = Stage {
            stream,
            memory: memory.cast(),
        };
        Ok(Engine(Mutex::new(Some(stage))))
    }

    /// Copies bytes out of device memory.
    ///
    /// # Safety
    /// The memory is valid on this device.
    pub unsafe fn read(&self, context: &Context, at: CUdeviceptr, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(context, at, Direction::Out(into)) }
    }

    /// Copies bytes into device memory. They are visible to the GPU when the call returns.
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
            let what = format!(
                "an earlier copy of {} did not end; restart the process",
                context.name()
            );
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
            // SAFETY: the staging buffer has room for `part`, and the lock reserves it for this
            // thread; the caller promises the device range.
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
            // The buffer must be unused before the next part: if `finish` fails, it is not used
            // again.
            stage.finish(context, OPERATION)?;
            if let Err(e) = context.check(copied, OPERATION, "a copy by cuMemcpy") {
                *guard = Some(stage);
                return Err(e);
            }
            if let Direction::Out(into) = &mut direction {
                // SAFETY: the copy into the staging buffer is done, and no other thread writes the
                // buffer.
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
            let what = format!(
                "an earlier copy of {} did not end; restart the process",
                context.name()
            );
            return Err(Error::new(OPERATION, Kind::System, what));
        };
        // SAFETY: the caller's promise.
        let set = unsafe { (context.cuda.cuMemsetD8Async)(at, 0, len, stage.stream) };
        context.check(set, OPERATION, "cuMemsetD8Async")?;
        stage.finish(context, OPERATION)
    }
}

impl Stage {
    /// Enqueues the copy of the staged bytes to `at`. Each aligned word of 4 or 8 bytes is written
    /// as a whole, in order of ascending addresses.
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
            // SAFETY: the staged bytes from `done` on are copied to their part of the caller's
            // range.
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
                    // At most three bytes are left, which need a plain copy.
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

    /// Enqueues the write of one word, staged at `from`. Memory of an application's pool accepts no
    /// memory operations from this context; it is written by a copy.
    ///
    /// # Safety
    /// `param` names valid device memory, and the word is staged.
    unsafe fn word(
        &self,
        context: &Context,
        from: *const u8,
        mut param: Params,
        len: usize,
    ) -> CudaResult {
        let cuda = context.cuda;
        // SAFETY: the driver copies the parameter before it returns; every member of the union has
        // the address at this position.
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

    /// A copy of `len` bytes, a multiple of 16, as two rows that are adjacent at the destination
    /// and separate at the source.
    ///
    /// # Safety
    /// `len` bytes, fewer than [`LARGE`], are staged at `from`.
    unsafe fn two_rows(&self, from: *mut u8, to: CUdeviceptr, len: usize) -> CUDA_MEMCPY2D {
        let half = len / 2;
        let pitch = STAGE / 2;
        // SAFETY: with so few staged bytes, the second half of the staging buffer is unused and has
        // room for them.
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
            // SAFETY: a live stream of the library.
            match unsafe { (context.cuda.cuStreamQuery)(self.stream) } {
                CudaResult::NOT_READY if start.elapsed() < LIMIT => std::hint::spin_loop(),
                CudaResult::NOT_READY => {
                    let what = format!("{} did not finish a copy within {LIMIT:?}", context.name());
                    return Err(Error::new(operation, Kind::Timeout, what));
                }
                other => return context.check(other, operation, "cuStreamQuery"),
            }
        }
    }
}
