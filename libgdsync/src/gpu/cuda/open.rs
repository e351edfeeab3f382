//! Opening of CUDA GPUs, and adoption of the application's contexts and streams.

use std::ffi::c_void;

use gdsync_sys::cuda::types::{CUcontext, CUdevice};
use gdsync_sys::cuda::{Cuda, CudaResult, consts};

use super::calls::attribute;
use super::probe::{OLDEST, cuda_caps, cuda_refusal, driver_too_old, is_exclusive, wait_limits};
use super::{OPENER, peers};
use crate::error::{Error, Kind, Result};
use crate::gpu::driver::{self, Called, Opened, call};
use crate::gpu::{Gpu, Stream};

const OPEN: &str = "open CUDA GPU";
const ADOPT: &str = "adopt CUDA stream";
/// Number of processes that share the multiprocessors of a GPU under NVIDIA's Multi-Process Service, for
/// the limit of blocks that wait.
const MPS: i32 = 4;

/// The initialised driver, or the reason why it cannot be used.
fn driver() -> Result<&'static Cuda> {
    const OPERATION: &str = "open CUDA";
    let cuda = Cuda::get().map_err(|e| {
        Error::new(OPERATION, Kind::Absent, driver::chain(e)).with_source(e.to_string())
    })?;
    // SAFETY: the call may be made any number of times.
    let started = call!(cuda.cuInit(0));
    if let Err(e) = driver::check(cuda, started, OPERATION, "this machine") {
        return Err(Error::new(OPERATION, Kind::Absent, e.reason().to_owned()).with_source(e));
    }
    let mut version = 0;
    // SAFETY: stores a number.
    let asked = call!(cuda.cuDriverGetVersion(&mut version));
    driver::check(cuda, asked, OPERATION, "this machine")?;
    match driver_too_old(version) {
        Some(what) => Err(Error::new(OPERATION, Kind::Unsupported, what)
            .with_limit(OLDEST as u64, "as the lowest value of cuDriverGetVersion")),
        None => Ok(cuda),
    }
}

pub(super) fn name_of(cuda: &Cuda, device: CUdevice) -> String {
    // SAFETY: stores a zero-terminated string within the length.
    let name = driver::stored::<128>(|at, len| call!(cuda.cuDeviceGetName(at, len, device)));
    match name {
        Some(name) => format!("cuda gpu{device} ({name})"),
        None => format!("cuda gpu{device}"),
    }
}

fn context_id(cuda: &Cuda, context: CUcontext) -> u64 {
    let mut id = 0;
    if let Some(get) = cuda.cuCtxGetId {
        // SAFETY: stores a number; on failure it stays 0.
        let _ = unsafe { get(context, &mut id) };
    }
    id
}

/// Returns the GPU of a context, and opens it if it is not open.
///
/// # Safety
/// `context` is a live context of `device`, and outlives the GPU and everything made from it.
unsafe fn open(cuda: &'static Cuda, device: CUdevice, app: CUcontext) -> Result<Gpu> {
    let has = |which| attribute(cuda, device, which);
    let gpu = || {
        let (name, alone) = (name_of(cuda, device), is_exclusive(cuda, device));
        if alone {
            tracing::warn!(
                target: "gdsync",
                "{name}: its compute mode EXCLUSIVE_PROCESS allows one context, so the library \
                 uses the application's: allocating and registering memory blocks behind every \
                 wait of a stream, and memory is freed only while all streams are idle. Allocate \
                 before streams wait, or allow more contexts by `nvidia-smi -i {device} -c DEFAULT`"
            );
        }
        let connections = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
        let all = has(consts::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        let beside = has(consts::CU_DEVICE_ATTRIBUTE_MPS_ENABLED) != 0;
        let same = consts::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        Opened {
            device,
            name,
            alone,
            caps: cuda_caps(cuda, device),
            number: driver::number(peers::uuid(cuda, device)),
            processes_beside: beside,
            limits: wait_limits(connections.as_deref(), if beside { all / MPS } else { all }),
            same_address: has(same) != 0,
        }
    };
    // SAFETY: the caller's promise.
    unsafe { driver::open(cuda, (app.cast(), context_id(cuda, app)), gpu) }
}

/// The number of GPUs that the driver shows.
fn count(cuda: &Cuda) -> Result<u32> {
    let mut count = 0;
    // SAFETY: stores a number.
    let asked = call!(cuda.cuDeviceGetCount(&mut count));
    driver::check(cuda, asked, OPEN, "this machine")?;
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => {
            let what = "the driver finds no GPU; `nvidia-smi` lists the GPUs of this machine, and \
                        CUDA_VISIBLE_DEVICES may hide them";
            Err(Error::new(OPEN, Kind::Absent, what))
        }
    }
}

/// See [`driver::by_local_rank`].
pub(crate) fn by_local_rank() -> Result<Gpu> {
    driver::by_local_rank(|| count(driver()?), Gpu::cuda, "CUDA_VISIBLE_DEVICES")
}

/// Refuses a device that this library does not support.
fn check_device(cuda: &Cuda, device: CUdevice) -> Result<()> {
    let Some((kind, why)) = cuda_refusal(cuda, device) else {
        return Ok(());
    };
    let what = format!("{} cannot be used: {why}", name_of(cuda, device));
    Err(Error::new(OPEN, kind, what))
}

/// As [`driver::check`], for the call that makes the first context of a device.
fn check_first(cuda: &Cuda, device: CUdevice, got: Called) -> Result<()> {
    if got.code == CudaResult::DEVICE_UNAVAILABLE.0 && is_exclusive(cuda, device) {
        let what = format!(
            "{} has the compute mode EXCLUSIVE_PROCESS, and another process has a context on it; end \
             that process, take another GPU, or run `nvidia-smi -i {device} -c DEFAULT` as root",
            name_of(cuda, device)
        );
        return Err(Error::new(OPEN, Kind::System, what));
    }
    driver::check(cuda, got, OPEN, &name_of(cuda, device))
}

impl Gpu {
    /// Opens CUDA GPU `index`, in CUDA's order (`cuDeviceGet`), in its primary context, which the
    /// CUDA runtime and most frameworks use. Every call for the same index returns the same
    /// [`Gpu`]. It stays open until the process ends.
    ///
    /// The first call loads `libcuda.so.1`, or the library that `GDS_CUDA_LIB` names.
    ///
    /// # Errors
    /// `Absent` if the CUDA driver or a GPU is missing or the driver does not start, with the
    /// reason; `Unsupported` for a driver or GPU that is too old; `Invalid` for an index past the
    /// last GPU; `System` for a GPU whose compute mode prohibits contexts, or allows one that
    /// another process has; `System`, `DeviceLost` if the driver refuses. See also [`Gpu::open`].
    pub fn cuda(index: u32) -> Result<Gpu> {
        let cuda = driver()?;
        let count = count(cuda)?;
        if index >= count {
            let what = format!("GPU {index} does not exist; GPUs are numbered from 0");
            return Err(Error::new(OPEN, Kind::Invalid, what).with_limit(count as u64, "GPUs"));
        }
        let mut device = 0;
        let mut context = std::ptr::null_mut();
        // SAFETY: each call stores a handle. The context is kept until the process ends.
        let got = call!(cuda.cuDeviceGet(&mut device, index as i32));
        driver::check(cuda, got, OPEN, &format!("GPU {index}"))?;
        check_device(cuda, device)?;
        let got = call!(cuda.cuDevicePrimaryCtxRetain(&mut context, device));
        check_first(cuda, device, got)?;
        // SAFETY: as above.
        unsafe { open(cuda, device, context) }
    }

    /// Opens the GPU of the calling thread's current CUDA context (`cuCtxGetCurrent`), in that
    /// context.
    ///
    /// # Safety
    /// The context is not destroyed while the process uses gdsync.
    ///
    /// # Errors
    /// As [`Gpu::cuda`]; `Invalid` if the thread has no current context.
    pub unsafe fn cuda_current() -> Result<Gpu> {
        let cuda = driver()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: stores a handle, or null.
        let asked = call!(cuda.cuCtxGetCurrent(&mut context));
        driver::check(cuda, asked, OPEN, "this thread")?;
        // SAFETY: the caller's promise.
        unsafe { Gpu::cuda_context(context.cast()) }
    }

    /// Opens the GPU of `context`, a `CUcontext` of the application, in that context. Every call
    /// for the same context returns the same [`Gpu`].
    ///
    /// # Safety
    /// `context` is a live context, and is not destroyed while the process uses gdsync.
    ///
    /// # Errors
    /// As [`Gpu::cuda`]; `Invalid` for null.
    pub unsafe fn cuda_context(context: *mut c_void) -> Result<Gpu> {
        let cuda = driver()?;
        if context.is_null() {
            return Err(Error::new(OPEN, Kind::Invalid, "the context is null"));
        }
        let context: CUcontext = context.cast();
        let mut device = 0;
        // SAFETY: a live context, as the caller promises; it is popped again.
        let pushed = call!(cuda.cuCtxPushCurrent_v2(context));
        driver::check(cuda, pushed, OPEN, "the context")?;
        let got = call!(cuda.cuCtxGetDevice(&mut device));
        let mut popped = std::ptr::null_mut();
        let _ = call!(cuda.cuCtxPopCurrent_v2(&mut popped));
        driver::check(cuda, got, OPEN, "the context")?;
        check_device(cuda, device)?;
        // SAFETY: as above.
        unsafe { open(cuda, device, context) }
    }

    /// Adopts a stream of the application, a `CUstream`. As long as a handle on it is held, every
    /// call returns the same [`Stream`]. The application may enqueue work by its own calls too; the
    /// library cannot see the waits among it.
    ///
    /// # Safety
    /// `raw` is a live stream of this GPU's context, and is not destroyed while the [`Stream`]
    /// or a clone of it is held.
    ///
    /// # Errors
    /// `Foreign` if this GPU is not a CUDA GPU or the stream belongs to another context; `Invalid`
    /// for the legacy default stream, which synchronises with every stream of its context that is
    /// not *non-blocking* (use [`Gpu::cuda_legacy_stream`] if that is intended), and for the
    /// per-thread default stream, which is a different stream on each thread; `System`,
    /// `DeviceLost` if the driver refuses.
    pub unsafe fn cuda_stream(&self, raw: *mut c_void) -> Result<Stream> {
        let remedy = "create a stream, or use `cuda_legacy_stream`";
        // SAFETY: the caller's promise.
        unsafe { driver::adopt_created(self, "CUDA", ADOPT, raw, remedy) }
    }

    /// Adopts a stream that `owner` keeps alive, as [`Gpu::cuda_stream`] does. The library drops
    /// `owner` after the last handle on the stream, on the thread that drops that handle.
    ///
    /// # Safety
    /// `raw` is a live stream of this GPU's context, and is not destroyed before `owner` is
    /// dropped.
    ///
    /// # Errors
    /// As [`Gpu::cuda_stream`]; the library drops `owner`.
    pub unsafe fn cuda_stream_owned(
        &self,
        raw: *mut c_void,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Stream> {
        // SAFETY: the owner keeps the stream, and the handle keeps the owner.
        let stream = unsafe { self.cuda_stream(raw)? };
        driver::keep_owner(&stream, owner);
        Ok(stream)
    }

    /// Adopts the legacy default stream. A wait on it blocks all streams of the context that are
    /// not *non-blocking*, and it waits for those streams. Most programs should use another stream.
    ///
    /// # Errors
    /// `Foreign` if this GPU is not a CUDA GPU; `System`, `DeviceLost` if the driver refuses.
    pub fn cuda_legacy_stream(&self) -> Result<Stream> {
        // SAFETY: this stream lives as long as its context.
        unsafe { driver::adopt_stream(self, "CUDA", ADOPT, consts::CU_STREAM_LEGACY.cast()) }
    }
}

impl Stream {
    /// The native `CUstream`, for the application's own calls; `None` if the stream is not a CUDA
    /// stream.
    pub fn as_cuda(&self) -> Option<*mut c_void> {
        driver::raw_stream(self, OPENER.name)
    }
}
