//! CUDA devices as other processes name them, and the access of one device to memory of another.

use gdsync_sys::cuda::types::{CUdevice, CUuuid};
use gdsync_sys::cuda::{Cuda, consts};

use super::calls::attribute;
use crate::gpu::driver::{Context, call, stored};
use crate::gpu::identity::Device;
use crate::gpu::{GpuIdentity, Unreachable};

/// The UUID of a device.
pub(super) fn uuid(cuda: &Cuda, device: CUdevice) -> Option<[u8; 16]> {
    let mut uuid = CUuuid::default();
    let get = cuda.cuDeviceGetUuid_v2?;
    // SAFETY: stores 16 bytes.
    let asked = unsafe { get(&mut uuid, device) };
    asked.is_success().then_some(uuid.bytes)
}

/// The address of a device on the PCI bus.
pub(super) fn pci(cuda: &Cuda, device: CUdevice) -> Option<String> {
    // SAFETY: stores a zero-terminated string within the length.
    stored::<32>(|at, len| call!(cuda.cuDeviceGetPCIBusId(at, len, device)))
}

/// See [`Gpu::identity`](crate::Gpu::identity).
pub(super) fn identity(cuda: &Cuda, device: CUdevice) -> GpuIdentity {
    let by_uuid = uuid(cuda, device).map(Device::CudaUuid);
    let named = by_uuid.or_else(|| pci(cuda, device).map(Device::CudaPci));
    // A device that the driver does not name at all has its ordinal, which is one of this process.
    GpuIdentity(named.unwrap_or_else(|| Device::CudaPci(format!("ordinal {device}"))))
}

/// The visible device of this identity.
fn visible(cuda: &Cuda, wanted: &GpuIdentity) -> Option<CUdevice> {
    let mut count = 0;
    // SAFETY: stores a number; on failure it stays 0.
    let _ = unsafe { (cuda.cuDeviceGetCount)(&mut count) };
    let device = |ordinal| {
        let mut device = 0;
        // SAFETY: stores a number.
        let got = unsafe { (cuda.cuDeviceGet)(&mut device, ordinal) };
        got.is_success().then_some(device)
    };
    let mut devices = (0..count).filter_map(device);
    devices.find(|device| identity(cuda, *device) == *wanted)
}

/// See [`Gpu::reaches`](crate::Gpu::reaches).
pub(super) fn reaches(
    cuda: &Cuda,
    context: &Context,
    other: &GpuIdentity,
) -> Result<(), Unreachable> {
    let device = context.device;
    let here = || context.name().to_owned();
    let descriptors = consts::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    let imports = cuda.cuMemImportFromShareableHandle.is_some();
    if attribute(cuda, device, descriptors) == 0 || !imports {
        return Err(Unreachable::NoDescriptors { here: here() });
    }
    let there = visible(cuda, other).ok_or_else(|| Unreachable::NotVisible {
        there: other.clone(),
    })?;
    if there == device {
        return Ok(());
    }
    let call = "cuDeviceCanAccessPeer";
    let ask = cuda
        .cuDeviceCanAccessPeer
        .ok_or(Unreachable::NoCall { call })?;
    let mut can = 0;
    // SAFETY: stores a number; on failure it stays 0.
    let _ = unsafe { ask(&mut can, device, there) };
    match can {
        0 => Err(Unreachable::NoPeerAccess {
            here: here(),
            there: super::open::name_of(cuda, there),
        }),
        _ => Ok(()),
    }
}
