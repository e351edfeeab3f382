//! Two contexts of one device: the application's, whose streams we enqueue on, and one of
//! our own, for all that must not stand behind the application's waits.
//!
//! In CUDA a wait on one stream holds up calls and engines of its whole context: frees,
//! unmappings, module loads, and with enough waiting streams every copy. Host memory of another
//! context of the same process is as good for streams and kernels (one address space), but its
//! frees do not stand behind those waits, nor do copies on its streams. So pinning, registration,
//! freeing and the copies of virtual NICs all happen in the context of our own. Device memory
//! belongs to neither; `device` says why.
//!
//! A device in the compute mode EXCLUSIVE_PROCESS allows one context. There the application's
//! serves for both, and memory is freed only while all streams are idle.

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use gdsync_sys::cuda::types::{CUcontext, CUdevice};
use gdsync_sys::cuda::{Cuda, CudaResult, consts};

use super::deferred::{self, DeferredFrees};
use super::device::DevicePool;
use super::engine::Engine;
use super::pages::HostPages;
use super::stream_pool::StreamPool;
use crate::error::{Error, Kind, Result};

/// See the module.
pub(crate) struct Context {
    pub cuda: &'static Cuda,
    pub device: CUdevice,
    /// The application's.
    pub app: CUcontext,
    /// The library's: the application's as well where the device allows no other.
    own: CUcontext,
    pub engine: Engine,
    pub deferred: DeferredFrees,
    pub pages: HostPages,
    pub pool: DevicePool,
    pub streams: StreamPool,
    /// Held shared while something is enqueued, alone while an application's owner is
    /// dropped.
    enqueueing: RwLock<()>,
    name: String,
    /// The code by which the context was lost, 0 while it is not. Set once; read relaxed,
    /// because it orders nothing: who misses it gets the code from the driver.
    lost: AtomicI32,
}

// SAFETY: handles of the driver, which is thread-safe; everything else inside is Sync itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The thread's context is what it was before, once this is dropped.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
    /// The thread's capture mode before.
    mode: Option<u32>,
}

impl Entered<'_> {
    fn relaxed(mut self) -> Self {
        if let Some(exchange) = self.context.cuda.cuThreadExchangeStreamCaptureMode {
            let mut mode = consts::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: exchanges this thread's mode, which is given back with `self`.
            if unsafe { exchange(&mut mode) }.is_success() {
                self.mode = Some(mode);
            }
        }
        self
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let cuda = self.context.cuda;
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed. There is nobody to tell of a failure.
            let _ = unsafe { (cuda.cuCtxPopCurrent_v2)(&mut popped) };
        }
        if let (Some(mut mode), Some(exchange)) =
            (self.mode, cuda.cuThreadExchangeStreamCaptureMode)
        {
            // SAFETY: gives the thread back the mode it had.
            let _ = unsafe { exchange(&mut mode) };
        }
    }
}

impl Context {
    /// Makes the context of our own beside `app`; if `alone`, there can be none, and `app` serves.
    pub fn new(
        cuda: &'static Cuda,
        device: CUdevice,
        app: CUcontext,
        name: String,
        alone: bool,
    ) -> Result<Context> {
        let mut own = app;
        if alone {
            tracing::warn!(
                target: "gdsync",
                "{name}: its compute mode EXCLUSIVE_PROCESS allows one context, so the library has \
                 none of its own: allocating and registering memory stands behind every wait of a \
                 stream, and memory is freed only while all streams are idle. Allocate before \
                 streams wait, or allow more contexts by `nvidia-smi -i {device} -c DEFAULT`"
            );
        } else {
            // SAFETY: creates a context and pushes it; popped at once.
            let created =
                unsafe { (cuda.cuCtxCreate_v2)(&mut own, consts::CU_CTX_SCHED_AUTO, device) };
            check(cuda, created, "create context", &name)?;
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops the context just pushed.
            let _ = unsafe { (cuda.cuCtxPopCurrent_v2)(&mut popped) };
        }
        let mut context = Context {
            cuda,
            device,
            app,
            own,
            engine: Engine::default(),
            deferred: DeferredFrees::default(),
            pages: HostPages::default(),
            pool: DevicePool::default(),
            streams: StreamPool::default(),
            enqueueing: RwLock::new(()),
            name,
            lost: AtomicI32::new(0),
        };
        context.engine = Engine::new(&context)?;
        context.streams.fill(&context);
        Ok(context)
    }

    /// Whether the application's context is the only one.
    pub fn is_alone(&self) -> bool {
        self.own == self.app
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until what NICs wrote to memory of this device is visible to its streams. In the
    /// library's context, where no call stands behind what the application's streams wait for.
    pub fn host_flush(&self) -> Result<()> {
        const OPERATION: &str = "flush remote writes";
        let Some(flush) = self.cuda.cuFlushGPUDirectRDMAWrites else {
            let what = "this driver has no cuFlushGPUDirectRDMAWrites";
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        };
        let _own = self.enter_own()?;
        // SAFETY: waits for writes of others, and touches nothing.
        let flushed = unsafe {
            flush(
                consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            )
        };
        self.check(flushed, OPERATION)
    }

    /// Makes the library's context current, for allocation, freeing and copying. Calls that
    /// a capture of the application's would forbid are allowed meanwhile.
    pub fn enter_own(&self) -> Result<Entered<'_>> {
        Ok(self.enter(self.own)?.relaxed())
    }

    /// Makes the application's context current, for questions that a capture of the
    /// application's would forbid.
    pub fn enter_to_ask(&self) -> Result<Entered<'_>> {
        Ok(self.enter(self.app)?.relaxed())
    }

    /// Makes the application's context current.
    #[inline]
    pub fn enter_app(&self) -> Result<Entered<'_>> {
        self.enter(self.app)
    }

    /// Makes the application's context current, to enqueue something; while this is held no
    /// owner is dropped.
    #[inline]
    pub fn enter_to_enqueue(&self) -> Result<(Entered<'_>, Option<RwLockReadGuard<'_, ()>>)> {
        let allowed = match deferred::is_disposing() {
            // The thread holds the lock itself.
            true => None,
            false => Some(
                self.enqueueing
                    .read()
                    .unwrap_or_else(PoisonError::into_inner),
            ),
        };
        Ok((self.enter(self.app)?, allowed))
    }

    /// Keeps everybody from enqueueing, if nobody does so now.
    pub fn quiet(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.enqueueing.try_write() {
            Ok(quiet) => Some(quiet),
            Err(TryLockError::Poisoned(quiet)) => Some(quiet.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[inline]
    fn enter(&self, context: CUcontext) -> Result<Entered<'_>> {
        self.alive()?;
        let mut current = std::ptr::null_mut();
        // SAFETY: stores the thread's current context.
        let _ = unsafe { (self.cuda.cuCtxGetCurrent)(&mut current) };
        if current != context {
            // SAFETY: both contexts live as long as `self`; popped by `Entered`.
            let pushed = unsafe { (self.cuda.cuCtxPushCurrent_v2)(context) };
            self.check(pushed, "make context current")?;
        }
        Ok(Entered {
            context: self,
            pushed: current != context,
            mode: None,
        })
    }

    /// Fails once the context is known to be lost.
    #[inline]
    pub fn alive(&self) -> Result<()> {
        match self.lost.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(self.lost_error("use GPU", CudaResult(code))),
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Turns a code of the driver into a result, and notes a loss.
    #[inline]
    pub fn check(&self, result: CudaResult, operation: &'static str) -> Result<()> {
        if result.is_success() {
            return Ok(());
        }
        Err(self.failure(result, operation))
    }

    #[cold]
    fn failure(&self, result: CudaResult, operation: &'static str) -> Error {
        if result.is_sticky() {
            // The first one counts: what follows only repeats it.
            let _ = self
                .lost
                .compare_exchange(0, result.0, Ordering::Relaxed, Ordering::Relaxed);
            return self.lost_error(operation, result);
        }
        refused(self.cuda, result, operation, &self.name)
    }

    fn lost_error(&self, operation: &'static str, result: CudaResult) -> Error {
        let what = format!(
            "{} is lost to this process: {}",
            self.name,
            describe(self.cuda, result)
        );
        Error::new(operation, Kind::DeviceLost, what)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // With memory of ours still in use by streams, or the GPU gone, it is left to the end of
        // the process.
        if !self.is_lost() && !self.is_alone() && self.deferred.is_empty() {
            // SAFETY: whoever uses memory of the context holds it; nobody does any more.
            let _ = unsafe { (self.cuda.cuCtxDestroy_v2)(self.own) };
        }
    }
}

/// An attribute of a device; one that the driver does not know counts as 0.
pub(crate) fn attribute(cuda: &Cuda, device: CUdevice, which: u32) -> i32 {
    let mut value = 0;
    // SAFETY: stores a number.
    let asked = unsafe { (cuda.cuDeviceGetAttribute)(&mut value, which, device) };
    if asked.is_success() { value } else { 0 }
}

/// As [`Context::check`], before there is a context.
pub(crate) fn check(
    cuda: &Cuda,
    result: CudaResult,
    operation: &'static str,
    object: &str,
) -> Result<()> {
    if result.is_success() {
        Ok(())
    } else {
        Err(refused(cuda, result, operation, object))
    }
}

#[cold]
fn refused(cuda: &Cuda, result: CudaResult, operation: &'static str, object: &str) -> Error {
    let kind = match result {
        CudaResult::NO_DEVICE | CudaResult::STUB_LIBRARY => Kind::Absent,
        CudaResult::NOT_SUPPORTED | CudaResult::NOT_PERMITTED => Kind::Unsupported,
        CudaResult::INVALID_VALUE
        | CudaResult::INVALID_DEVICE
        | CudaResult::INVALID_IMAGE
        | CudaResult::INVALID_PTX
        | CudaResult::NO_BINARY_FOR_GPU
        | CudaResult::NOT_FOUND => Kind::Invalid,
        lost if lost.is_sticky() => Kind::DeviceLost,
        _ => Kind::System,
    };
    let what = format!("{object}: {}", describe(cuda, result));
    Error::new(operation, kind, what)
}

/// A code by its name and what the driver says of it; by its number where it has neither.
fn describe(cuda: &Cuda, result: CudaResult) -> String {
    let text = |f: unsafe extern "C" fn(CudaResult, *mut *const std::ffi::c_char) -> CudaResult| {
        let mut text = std::ptr::null();
        // SAFETY: stores a pointer to a static string, or null.
        let known = unsafe { f(result, &mut text) };
        if !known.is_success() || text.is_null() {
            return None;
        }
        // SAFETY: a static string of the driver, as checked.
        Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        )
    };
    let name = text(cuda.cuGetErrorName).or_else(|| result.name().map(str::to_owned));
    let meaning = text(cuda.cuGetErrorString);
    match (name, meaning) {
        (Some(name), Some(meaning)) => format!("{name} ({}): {meaning}", result.0),
        (Some(name), None) => format!("{name} ({})", result.0),
        _ => format!("CUDA error {}, which this driver does not name", result.0),
    }
}
