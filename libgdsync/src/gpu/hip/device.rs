//! What HIP says about a device, and what follows: name, capabilities, limits, reach. Only `reaches`
//! changes a device: it enables peer access.

use std::collections::BTreeSet;
use std::ffi::CStr;

use gds_step::Mutex;
use gdsync_sys::hip::types::{hipDeviceProp_tR0600, hipUUID};
use gdsync_sys::hip::{Hip, HipResult, consts};

use super::submit;
use crate::error::Kind;
use crate::gpu::driver::{Context, call, stored};
use crate::gpu::identity::Device;
use crate::gpu::{GpuIdentity, Unreachable, WaitLimits};
use crate::memop::Caps;

/// The oldest usable release of HIP. Waits of earlier ones refuse memory other than signals
/// (`hipMallocSignalMemory`), of 8 bytes each.
pub(super) const OLDEST: i32 = gdsync_sys::hip::VERSION_6;

/// Set, it makes waits of later releases refuse other memory than signals too.
pub(super) const ONLY_SIGNALS: &str = "GPU_STREAMOPS_CP_WAIT";

/// The reason why a release of HIP cannot be used; `None` if it can. `signals`: the value of the
/// variable GPU_STREAMOPS_CP_WAIT.
pub fn hip_runtime_refusal(version: i32, signals: Option<&str>) -> Option<String> {
    let dotted = |v: i32| format!("{}.{}", v / 10_000_000, v / 100_000 % 100);
    let (is, oldest) = (dotted(version), dotted(OLDEST));
    if version < OLDEST {
        Some(format!(
            "HIP is of version {is}, and gdsync needs {oldest} or later; update ROCm"
        ))
    } else if signals.is_some_and(|value| !matches!(value.trim(), "" | "0")) {
        Some(format!(
            "with {ONLY_SIGNALS} set, streams wait for signals of HIP alone; unset it"
        ))
    } else {
        None
    }
}

/// An attribute of a device; 0 if the runtime does not know it.
pub(super) fn attribute(hip: &Hip, device: i32, which: u32) -> i32 {
    let mut value = 0;
    // SAFETY: stores a number.
    let asked = unsafe { (hip.hipDeviceGetAttribute)(&mut value, which, device) };
    if asked.is_success() { value } else { 0 }
}

/// The device as text for reports.
pub(super) fn name(hip: &Hip, device: i32) -> String {
    // SAFETY: stores a zero-terminated string within the length.
    let name = stored::<128>(|at, len| call!(hip.hipDeviceGetName(at, len, device)));
    match name {
        Some(name) => format!("hip gpu{device} ({name})"),
        None => format!("hip gpu{device}"),
    }
}

/// The address of a device on the PCI bus.
pub(super) fn pci(hip: &Hip, device: i32) -> Option<String> {
    // SAFETY: stores a zero-terminated string within the length.
    stored::<32>(|at, len| call!(hip.hipDeviceGetPCIBusId(at, len, device)))
}

/// The architecture of a device, such as `gfx942:sramecc+:xnack-`.
pub fn hip_architecture(hip: &Hip, device: i32) -> Option<String> {
    let get = hip.hipGetDevicePropertiesR0600?;
    // SAFETY: numbers and addresses, for which zeros are valid.
    let mut all: hipDeviceProp_tR0600 = unsafe { std::mem::zeroed() };
    // SAFETY: the structure has the layout of this function.
    if !unsafe { get(&mut all, device) }.is_success() {
        return None;
    }
    let bytes = all.gcn_arch_name.map(|c| c.cast_unsigned());
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// The UUID of a device.
pub(super) fn uuid(hip: &Hip, device: i32) -> Option<[u8; 16]> {
    let mut uuid = hipUUID::default();
    // SAFETY: stores 16 bytes.
    let asked = unsafe { (hip.hipDeviceGetUuid?)(&mut uuid, device) };
    // Some releases store zeros.
    (asked.is_success() && uuid.bytes != [0; 16]).then_some(uuid.bytes)
}

/// See [`Gpu::identity`](crate::Gpu::identity).
pub(super) fn identity(hip: &Hip, device: i32) -> GpuIdentity {
    let by_uuid = uuid(hip, device).map(Device::HipUuid);
    let named = by_uuid.or_else(|| pci(hip, device).map(Device::HipPci));
    // A device that the runtime does not name at all has its ordinal, which is one of this process.
    GpuIdentity(named.unwrap_or_else(|| Device::HipPci(format!("ordinal {device}"))))
}

/// See [`Gpu::reaches`](crate::Gpu::reaches). Kernels of the device may access a peer from now on.
pub(super) fn reaches(
    hip: &Hip,
    context: &Context,
    other: &GpuIdentity,
) -> Result<(), Unreachable> {
    let (device, here) = (context.device, || context.name().to_owned());
    if !context.maps {
        return Err(Unreachable::NoDescriptors { here: here() });
    }
    let mut count = 0;
    // SAFETY: stores a number; on failure it stays 0.
    let _ = unsafe { (hip.hipGetDeviceCount)(&mut count) };
    let mut devices = 0..count;
    let there = devices.find(|at| identity(hip, *at) == *other);
    let there = there.ok_or_else(|| Unreachable::NotVisible {
        there: other.clone(),
    })?;
    if there == device {
        return Ok(());
    }
    let no_access = || Unreachable::NoPeerAccess {
        here: here(),
        there: name(hip, there),
    };
    let mut can = 0;
    // SAFETY: stores a number; on failure it stays 0.
    let _ = unsafe { (hip.hipDeviceCanAccessPeer)(&mut can, device, there) };
    if can == 0 {
        return Err(no_access());
    }
    /// The pairs of devices whose access the library has enabled: a second call would leave an error
    /// that the application finds in `hipGetLastError`.
    static ENABLED: Mutex<BTreeSet<[i32; 2]>> = Mutex::new(BTreeSet::new());
    let mut enabled = ENABLED.lock();
    if enabled.contains(&[device, there]) {
        return Ok(());
    }
    let _app = context.enter_app().map_err(|_| no_access())?;
    // SAFETY: changes no memory; the device of the thread is this one.
    match unsafe { (hip.hipDeviceEnablePeerAccess)(there, 0) } {
        HipResult::SUCCESS | HipResult::PEER_ACCESS_ALREADY_ENABLED => {
            enabled.insert([device, there]);
            Ok(())
        }
        _ => Err(no_access()),
    }
}

/// The register of a device that flushes the writes of other devices to its memory.
pub(super) fn flush_register(hip: &Hip, device: i32) -> Option<*mut u32> {
    let mut at: *mut u32 = std::ptr::null_mut();
    let which = consts::hipDeviceAttributeHdpMemFlushCntl;
    // SAFETY: this attribute is an address: 8 bytes are stored.
    let asked = unsafe { (hip.hipDeviceGetAttribute)((&raw mut at).cast(), which, device) };
    (asked.is_success() && !at.is_null()).then_some(at)
}

/// The reason why a device cannot be used, as the kind of the error and a text; `None` if it can.
pub fn hip_refusal(hip: &Hip, device: i32) -> Option<(Kind, &'static str)> {
    let has = |which| attribute(hip, device, which);
    let prohibited = consts::hipComputeModeProhibited as i32;
    if has(consts::hipDeviceAttributeComputeMode) == prohibited {
        Some((Kind::System, "its compute mode prohibits contexts"))
    } else if has(consts::hipDeviceAttributeCanUseStreamWaitValue) == 0 {
        let why = "its streams cannot wait for words (hipDeviceAttributeCanUseStreamWaitValue)";
        Some((Kind::Unsupported, why))
    } else if has(consts::hipDeviceAttributeFineGrainSupport) == 0 {
        let why = "it has no fine-grained device memory (hipDeviceAttributeFineGrainSupport)";
        Some((Kind::Unsupported, why))
    } else {
        None
    }
}

/// The capabilities of a device's streams.
pub fn hip_caps(hip: &Hip, device: i32) -> Caps {
    Caps {
        memops64: true,
        nor: true,
        mask: true,
        cyclic: false,
        flush: false,
        ordered_writes: false,
        host_flush: flush_register(hip, device).is_some(),
        inline_copy: false,
        fence: false,
        captures: false,
        kernels: true,
        batch_limit: submit::BATCH,
    }
}

/// The limits of a device, by its number of hardware queues: `GPU_MAX_HW_QUEUES`, which the runtime
/// reads when it starts. Streams share the queues, and a stream that waits holds its queue.
pub(super) fn wait_limits(queues: Option<&str>, multiprocessors: i32) -> WaitLimits {
    // No limit counts the arguments of a stream's launches: the runtime keeps them in 1 MiB, and a
    // launch that finds no room blocks, after about 190 launches of 4 KiB behind a wait.
    let setting = "GPU_MAX_HW_QUEUES before the first use of HIP";
    WaitLimits::of_driver(queues, 4, setting, multiprocessors)
}
