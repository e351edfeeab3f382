//! Copies between host and device memory beside all streams, by a stream of our own context.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gdsync_sys::cuda::types::{CUdeviceptr, CUstream};
use gdsync_sys::cuda::{CudaResult, consts};

use super::context::Context;
use crate::error::{Error, Kind, Result};

/// Bytes of the staging buffer, and of one copy.
const STAGE: usize = 1 << 20;

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
enum Way<'a> {
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
        unsafe { self.copy(context, at, Way::Out(into)) }
    }

    /// Copies into device memory; visible to the GPU when this returns.
    ///
    /// # Safety
    /// As [`Engine::read`].
    pub unsafe fn write(&self, context: &Context, at: CUdeviceptr, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(context, at, Way::In(from)) }
    }

    unsafe fn copy(&self, context: &Context, at: CUdeviceptr, mut way: Way<'_>) -> Result<()> {
        const OPERATION: &str = "copy device memory";
        let _own = context.enter_own()?;
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stage) = &*guard else {
            return Err(Error::new(OPERATION, Kind::System, context.name()));
        };
        let cuda = context.cuda;
        let len = match &way {
            Way::Out(into) => into.len(),
            Way::In(from) => from.len(),
        };
        for done in (0..len).step_by(STAGE) {
            let part = (len - done).min(STAGE);
            let here = at + done as CUdeviceptr;
            // SAFETY: the staging buffer has room for `part` and is ours under the lock; the
            // device range is the caller's promise.
            let copied = unsafe {
                match &way {
                    Way::Out(_) => {
                        (cuda.cuMemcpyDtoHAsync_v2)(stage.memory.cast(), here, part, stage.stream)
                    }
                    Way::In(from) => {
                        stage.memory.copy_from(from[done..].as_ptr(), part);
                        (cuda.cuMemcpyHtoDAsync_v2)(here, stage.memory.cast(), part, stage.stream)
                    }
                }
            };
            context.check(copied, OPERATION)?;
            stage.finish(context, OPERATION)?;
            if let Way::Out(into) = &mut way {
                // SAFETY: the copy into the staging buffer is done, and nobody else writes it.
                unsafe { into[done..].as_mut_ptr().copy_from(stage.memory, part) };
            }
        }
        Ok(())
    }

    /// Zeroes device memory.
    ///
    /// # Safety
    /// The memory is valid on this device.
    pub unsafe fn zero(&self, context: &Context, at: CUdeviceptr, len: usize) -> Result<()> {
        const OPERATION: &str = "zero device memory";
        let _own = context.enter_own()?;
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
