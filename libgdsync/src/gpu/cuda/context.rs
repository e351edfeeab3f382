//! The two contexts of a device: the application's, on whose streams the library enqueues, and the
//! library's, for all work that must not block behind the application's waits.
//!
//! In CUDA a wait on one stream blocks calls and engines of its whole context: frees, unmappings,
//! module loads, and with enough waiting streams every copy. Streams and kernels can use host
//! memory of another context of the same process as well (one address space), but frees of that
//! memory and copies on streams of that context do not block behind those waits. Therefore pinning,
//! registration, freeing and the copies of virtual NICs all use the library's context. Device
//! memory belongs to neither context; `device` says why.
//!
//! A device in the compute mode EXCLUSIVE_PROCESS allows one context. There the application's
//! context serves for both purposes, and the library frees memory only while all streams are idle.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use gdsync_sys::cuda::types::{CUcontext, CUdevice, CUfunction, CUlaunchConfig};
use gdsync_sys::cuda::{Cuda, CudaResult, consts};

use super::deferred::{self, DeferredFrees};
use super::device::DevicePool;
use super::engine::Engine;
use super::pages::HostPages;
use super::stream_pool::StreamPool;
use crate::error::{Error, Kind, Result};
use crate::gpu::host::HostPool;

/// `cuLaunchKernelEx`.
type LaunchEx = unsafe extern "C" fn(
    *const CUlaunchConfig,
    CUfunction,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CudaResult;

/// The contexts of one device; see the module.
pub(crate) struct Context {
    pub cuda: &'static Cuda,
    pub device: CUdevice,
    /// The application's context.
    pub app: CUcontext,
    /// The library's context; equal to `app` if the device allows only one.
    own: CUcontext,
    pub engine: Engine,
    pub deferred: DeferredFrees,
    pub pages: HostPages,
    pub pool: DevicePool,
    pub host: HostPool,
    pub streams: StreamPool,
    /// The call for dependent launches, if driver and device support them.
    pub dependent_launch: Option<LaunchEx>,
    /// Locked shared during an enqueue, exclusive while the owner of an application's memory is
    /// dropped.
    enqueueing: RwLock<()>,
    name: String,
    /// The code of the error that lost the context; 0 while the context is usable. Set once; read
    /// relaxed, because it orders nothing: a thread that reads a stale 0 gets the code from the
    /// driver.
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

/// A guard that restores the thread's previous context when it is dropped.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
    /// The thread's previous capture mode.
    mode: Option<u32>,
}

impl Entered<'_> {
    fn relaxed(mut self) -> Self {
        if let Some(exchange) = self.context.cuda.cuThreadExchangeStreamCaptureMode {
            let mut mode = consts::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: exchanges this thread's mode; the drop of `self` restores it.
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
            // SAFETY: pops the context that `enter` pushed. A drop cannot report a failure.
            let _ = unsafe { (cuda.cuCtxPopCurrent_v2)(&mut popped) };
        }
        if let (Some(mut mode), Some(exchange)) =
            (self.mode, cuda.cuThreadExchangeStreamCaptureMode)
        {
            // SAFETY: restores the thread's previous mode.
            let _ = unsafe { exchange(&mut mode) };
        }
    }
}

impl Context {
    /// Makes the library's context beside `app`; if `alone`, the device allows no second context,
    /// and `app` serves for both.
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
                "{name}: its compute mode EXCLUSIVE_PROCESS allows one context, so the library \
                 uses the application's: allocating and registering memory blocks behind every \
                 wait of a stream, and memory is freed only while all streams are idle. Allocate \
                 before streams wait, or allow more contexts by `nvidia-smi -i {device} -c DEFAULT`"
            );
        } else {
            // SAFETY: creates a context and pushes it; it is popped at once.
            let created =
                unsafe { (cuda.cuCtxCreate_v2)(&mut own, consts::CU_CTX_SCHED_AUTO, device) };
            check(cuda, created, "create context", "cuCtxCreate", &name)?;
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
            host: HostPool::default(),
            streams: StreamPool::default(),
            dependent_launch: cuda.cuLaunchKernelEx.filter(|_| {
                let major = consts::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
                attribute(cuda, device, major) >= 9
            }),
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

    /// Waits until NIC writes to memory of this device are visible to its streams. The call uses
    /// the library's context, where no call blocks behind a wait of the application's streams.
    pub fn host_flush(&self) -> Result<()> {
        const OPERATION: &str = "flush remote writes";
        let Some(flush) = self.cuda.cuFlushGPUDirectRDMAWrites else {
            let what = "the driver has no cuFlushGPUDirectRDMAWrites; update the driver";
            return Err(Error::new(OPERATION, Kind::Unsupported, what));
        };
        let _own = self.enter_own()?;
        // SAFETY: waits for writes of others, and accesses no memory of the process.
        let flushed = unsafe {
            flush(
                consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            )
        };
        self.check(flushed, OPERATION, "cuFlushGPUDirectRDMAWrites")
    }

    /// Makes the library's context current, for allocation, freeing and copying. Meanwhile the
    /// thread may make calls that a capture of the application would forbid.
    pub fn enter_own(&self) -> Result<Entered<'_>> {
        Ok(self.enter(self.own)?.relaxed())
    }

    /// Makes the application's context current, for queries that a capture of the application would
    /// forbid.
    pub fn enter_to_ask(&self) -> Result<Entered<'_>> {
        Ok(self.enter(self.app)?.relaxed())
    }

    /// Makes the application's context current.
    #[inline]
    pub fn enter_app(&self) -> Result<Entered<'_>> {
        self.enter(self.app)
    }

    /// Makes the application's context current for an enqueue. No owner is dropped while the guard
    /// is held.
    #[inline]
    pub fn enter_to_enqueue(&self) -> Result<(Entered<'_>, Option<RwLockReadGuard<'_, ()>>)> {
        let allowed = match deferred::is_disposing() {
            // The thread holds the lock itself already.
            true => None,
            false => Some(
                self.enqueueing
                    .read()
                    .unwrap_or_else(PoisonError::into_inner),
            ),
        };
        Ok((self.enter(self.app)?, allowed))
    }

    /// Blocks enqueues while the guard is held; `None` if an enqueue is in progress.
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
            // SAFETY: both contexts live as long as `self`; `Entered` pops the context.
            let pushed = unsafe { (self.cuda.cuCtxPushCurrent_v2)(context) };
            self.check(pushed, "make context current", "cuCtxPushCurrent")?;
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
            code => Err(self.lost_error("use GPU", "an earlier call", CudaResult(code))),
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed) != 0
    }

    /// Turns the code that the driver's function `call` returned into a result, and records the loss
    /// of the context.
    #[inline]
    pub fn check(&self, result: CudaResult, operation: &'static str, call: &str) -> Result<()> {
        if result.is_success() {
            return Ok(());
        }
        Err(self.failure(result, operation, call))
    }

    #[cold]
    fn failure(&self, result: CudaResult, operation: &'static str, call: &str) -> Error {
        if result.is_sticky() {
            // Only the first code is kept: later ones are its consequences.
            let _ = self
                .lost
                .compare_exchange(0, result.0, Ordering::Relaxed, Ordering::Relaxed);
            return self.lost_error(operation, call, result);
        }
        refused(self.cuda, result, operation, call, &self.name)
    }

    fn lost_error(&self, operation: &'static str, call: &str, result: CudaResult) -> Error {
        let what = format!(
            "{} is lost to this process; restart the process: {call} failed: {}",
            self.name,
            describe(self.cuda, result)
        );
        Error::new(operation, Kind::DeviceLost, what)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // If streams still use memory of the library, or the GPU is lost, the context stays until
        // the process ends.
        if !self.is_lost() && !self.is_alone() && self.deferred.is_empty() {
            // SAFETY: every user of the context's memory holds the context; no user is left.
            let _ = unsafe { (self.cuda.cuCtxDestroy_v2)(self.own) };
        }
    }
}

/// An attribute of a device; 0 if the driver does not know the attribute.
pub(crate) fn attribute(cuda: &Cuda, device: CUdevice, which: u32) -> i32 {
    let mut value = 0;
    // SAFETY: stores a number.
    let asked = unsafe { (cuda.cuDeviceGetAttribute)(&mut value, which, device) };
    if asked.is_success() { value } else { 0 }
}

/// As [`Context::check`], for calls before a context exists.
pub(crate) fn check(
    cuda: &Cuda,
    result: CudaResult,
    operation: &'static str,
    call: &str,
    gpu: &str,
) -> Result<()> {
    if result.is_success() {
        Ok(())
    } else {
        Err(refused(cuda, result, operation, call, gpu))
    }
}

#[cold]
fn refused(
    cuda: &Cuda,
    result: CudaResult,
    operation: &'static str,
    call: &str,
    gpu: &str,
) -> Error {
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
    let what = format!("{call} on {gpu} failed: {}", describe(cuda, result));
    Error::new(operation, kind, what)
}

/// The name and the driver's description of a code; its number if the driver has neither.
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
        _ => format!("CUDA error {}, which the driver does not name", result.0),
    }
}
