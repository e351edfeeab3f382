//! Properties of the driver's GPUs, and the conclusions: capabilities, limits, and the reason why a
//! GPU cannot be used. No context is created, so `gdsync-doctor` calls this too.

use gdsync_sys::cuda::types::CUdevice;
use gdsync_sys::cuda::{Cuda, consts};

use super::calls::attribute;
use super::submit;
use crate::error::Kind;
use crate::gpu::WaitLimits;
use crate::memop::Caps;

/// The oldest usable driver: CUDA 12.0, the first version whose plain memory operations are the
/// second version on all platforms.
pub(super) const OLDEST: i32 = 12000;

/// The reason why a driver of this CUDA version cannot be used; `None` if it can.
pub fn driver_too_old(version: i32) -> Option<String> {
    let dotted = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    let (is, oldest) = (dotted(version), dotted(OLDEST));
    let too_old = || {
        format!("the driver is of CUDA {is}, and gdsync needs {oldest} or later; update the driver")
    };
    (version < OLDEST).then(too_old)
}

/// The reason why a device cannot be used, as the kind of the error and a text; `None` if it can.
pub fn cuda_refusal(cuda: &Cuda, device: CUdevice) -> Option<(Kind, &'static str)> {
    let is = |which, value: u32| attribute(cuda, device, which) == value as i32;
    let virtual_memory = consts::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    if is(
        consts::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        consts::CU_COMPUTEMODE_PROHIBITED,
    ) {
        let why = "its compute mode prohibits contexts (PROHIBITED); run \
                   `nvidia-smi -i INDEX -c DEFAULT` as root";
        Some((Kind::System, why))
    } else if !cuda_caps(cuda, device).memops64 {
        Some((Kind::Unsupported, "it has no 64-bit memory operations"))
    } else if is(virtual_memory, 0) || cuda.cuMemCreate.is_none() {
        let why = "it has no virtual memory management (cuMemCreate)";
        Some((Kind::Unsupported, why))
    } else {
        None
    }
}

/// Whether a device allows only one context, of one process.
pub(super) fn is_exclusive(cuda: &Cuda, device: CUdevice) -> bool {
    let mode = attribute(cuda, device, consts::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    mode == consts::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as i32
}

/// The capabilities of a device's streams.
pub fn cuda_caps(cuda: &Cuda, device: CUdevice) -> Caps {
    let has = |which| attribute(cuda, device, which) != 0;
    let ordering = attribute(
        cuda,
        device,
        consts::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
    );
    let options = attribute(
        cuda,
        device,
        consts::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
    );
    Caps {
        memops64: has(consts::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS),
        nor: has(consts::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR),
        mask: false,
        cyclic: true,
        flush: has(consts::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES),
        ordered_writes: ordering >= consts::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32,
        host_flush: options & consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32 != 0
            && cuda.cuFlushGPUDirectRDMAWrites.is_some(),
        inline_copy: false,
        fence: false,
        captures: true,
        kernels: true,
        batch_limit: submit::BATCH,
    }
}

/// The limits of a context, by its number of hardware channels: `CUDA_DEVICE_MAX_CONNECTIONS`,
/// which the driver reads when it starts.
pub fn wait_limits(connections: Option<&str>, multiprocessors: i32) -> WaitLimits {
    let setting = "CUDA_DEVICE_MAX_CONNECTIONS (at most 32) before the first use of CUDA";
    // Measured: with 8 channels, 6 streams may wait while kernels, copies and memory operations of all
    // other streams progress; a 7th waiting stream blocks them.
    WaitLimits::of_driver(connections, 8, setting, multiprocessors)
}
