//! Opening of HIP GPUs, and adoption of the application's streams.

use std::ffi::c_void;

use gdsync_sys::hip::{Hip, HipResult, consts};

use super::device::{
    self, OLDEST, ONLY_SIGNALS, attribute, hip_caps, hip_refusal, hip_runtime_refusal, wait_limits,
};
use super::{OPENER, calls};
use crate::error::{Error, Kind, Result};
use crate::gpu::driver::{self, Opened, call};
use crate::gpu::{Gpu, Stream};

const OPERATION: &str = "open HIP GPU";

/// The initialised runtime, or the reason why it cannot be used.
fn runtime() -> Result<&'static Hip> {
    let hip = Hip::get().map_err(|e| {
        Error::new(OPERATION, Kind::Absent, driver::chain(e)).with_source(e.to_string())
    })?;
    // SAFETY: the call may be made any number of times.
    let started = call!(hip.hipInit(0));
    // HIP 5 says that a machine without a GPU has an invalid one.
    let result = HipResult(started.code);
    if matches!(result, HipResult::NO_DEVICE | HipResult::INVALID_DEVICE) {
        return Err(no_gpu());
    }
    if let Err(e) = driver::check(hip, started, OPERATION, "this machine") {
        return Err(Error::new(OPERATION, Kind::Absent, e.reason().to_owned()).with_source(e));
    }
    let version = calls::version(hip);
    let signals = std::env::var(ONLY_SIGNALS).ok();
    let Some(what) = hip_runtime_refusal(version, signals.as_deref()) else {
        return Ok(hip);
    };
    let refused = Error::new(OPERATION, Kind::Unsupported, what);
    Err(match version < OLDEST {
        true => refused.with_limit(OLDEST as u64, "as the lowest value of hipRuntimeGetVersion"),
        false => refused,
    })
}

/// The number of GPUs that HIP shows.
fn count(hip: &Hip) -> Result<u32> {
    let mut count = 0;
    // SAFETY: stores a number.
    let asked = call!(hip.hipGetDeviceCount(&mut count));
    if asked.code != HipResult::NO_DEVICE.0 {
        driver::check(hip, asked, OPERATION, "this machine")?;
    }
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(no_gpu()),
    }
}

fn no_gpu() -> Error {
    let what = "HIP finds no GPU; `rocminfo` lists the GPUs of this machine, access to /dev/kfd needs \
                the group `render`, and HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide GPUs";
    Error::new(OPERATION, Kind::Absent, what)
}

/// See [`driver::by_local_rank`].
pub(super) fn by_local_rank() -> Result<Gpu> {
    driver::by_local_rank(|| count(runtime()?), Gpu::hip, "HIP_VISIBLE_DEVICES")
}

/// Refuses a device that the library does not support.
fn check_device(hip: &Hip, device: i32) -> Result<()> {
    let Some((kind, why)) = hip_refusal(hip, device) else {
        return Ok(());
    };
    let what = format!("{} cannot be used: {why}", device::name(hip, device));
    Err(Error::new(OPERATION, kind, what))
}

impl Gpu {
    /// Opens HIP GPU `index`, in HIP's order. Every call for the same index returns the same [`Gpu`].
    /// It stays open until the process ends.
    ///
    /// The first call loads `libamdhip64.so`, or the library that `GDS_HIP_LIB` names. The kernels of
    /// this library are built for gfx90a, gfx942 and gfx1100; HIPRTC compiles them for other GPUs.
    ///
    /// No release has run this on an AMD GPU: the tests run it on a stand-in for HIP.
    ///
    /// # Errors
    /// `Absent` if HIP or a GPU is missing or HIP does not start, with the reason; `Unsupported` for a
    /// release or GPU that is too old; `Invalid` for an index past the last GPU; `System`,
    /// `DeviceLost` if HIP refuses. See also [`Gpu::open`].
    pub fn hip(index: u32) -> Result<Gpu> {
        let hip = runtime()?;
        let count = count(hip)?;
        if index >= count {
            let what = format!("GPU {index} does not exist; GPUs are numbered from 0");
            return Err(Error::new(OPERATION, Kind::Invalid, what).with_limit(count as u64, "GPUs"));
        }
        let device = index as i32;
        check_device(hip, device)?;
        let gpu = || {
            let queues = std::env::var("GPU_MAX_HW_QUEUES").ok();
            let all = attribute(hip, device, consts::hipDeviceAttributeMultiprocessorCount);
            Opened {
                device,
                name: device::name(hip, device),
                alone: true,
                caps: hip_caps(hip, device),
                number: driver::number(device::uuid(hip, device)),
                processes_beside: false,
                limits: wait_limits(queues.as_deref(), all),
                same_address: false,
            }
        };
        // SAFETY: a device has one context, which lives as long as the process.
        unsafe { driver::open(hip, (calls::context(device), 0), gpu) }
    }

    /// Adopts a stream of the application, a `hipStream_t`. As long as a handle on it is held, every
    /// call returns the same [`Stream`]. The application may enqueue work by its own calls too; the
    /// library cannot see the waits among it.
    ///
    /// # Safety
    /// `raw` is a live stream of this GPU, and is not destroyed while the [`Stream`] or a clone of it
    /// is held.
    ///
    /// # Errors
    /// `Foreign` if this GPU is not a HIP GPU or the stream belongs to another GPU; `Invalid` for the
    /// default stream, which synchronises with other streams of its GPU, and for the per-thread default
    /// stream, which is a different stream on each thread; `System`, `DeviceLost` if HIP refuses.
    pub unsafe fn hip_stream(&self, raw: *mut c_void) -> Result<Stream> {
        let remedy = "create a stream (hipStreamCreateWithFlags, hipStreamNonBlocking)";
        // SAFETY: the caller's promise.
        unsafe { driver::adopt_created(self, "HIP", "adopt HIP stream", raw, remedy) }
    }

    /// Adopts a stream that `owner` keeps alive, as [`Gpu::hip_stream`] does. The library drops
    /// `owner` after the last handle on the stream, on the thread that drops that handle.
    ///
    /// # Safety
    /// `raw` is a live stream of this GPU, and is not destroyed before `owner` is dropped.
    ///
    /// # Errors
    /// As [`Gpu::hip_stream`]; the library drops `owner`.
    pub unsafe fn hip_stream_owned(
        &self,
        raw: *mut c_void,
        owner: Box<dyn Send + Sync>,
    ) -> Result<Stream> {
        // SAFETY: the owner keeps the stream, and the handle keeps the owner.
        let stream = unsafe { self.hip_stream(raw)? };
        driver::keep_owner(&stream, owner);
        Ok(stream)
    }
}

impl Stream {
    /// The native `hipStream_t`, for the application's own calls; `None` if the stream is not a HIP
    /// stream.
    pub fn as_hip(&self) -> Option<*mut c_void> {
        driver::raw_stream(self, OPENER.name)
    }
}
