//! What the driver says of its GPUs, and what follows: capabilities, limits, and why one cannot be
//! used. No context is made, so `gdsync-doctor` asks too.

use gdsync_sys::cuda::types::CUdevice;
use gdsync_sys::cuda::{Cuda, consts};

use super::context::attribute;
use super::{SUBMISSIONS, submit};
use crate::error::Kind;
use crate::gpu::WaitLimits;
use crate::memop::Caps;

/// The oldest driver that has everything: CUDA 12.0, the first whose plain memory operations
/// are the second version on all platforms.
pub(super) const OLDEST: i32 = 12000;

/// Why a driver of this version of CUDA cannot be used, if it cannot.
pub fn driver_too_old(version: i32) -> Option<String> {
    let dotted = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
    let (is, oldest) = (dotted(version), dotted(OLDEST));
    let too_old = || format!("a driver of CUDA {is}, where {oldest} is the oldest that will do");
    (version < OLDEST).then(too_old)
}

/// Why a device cannot be used, if it cannot, as the kind of the error and in words.
pub fn cuda_refusal(cuda: &Cuda, device: CUdevice) -> Option<(Kind, &'static str)> {
    let is = |which, value: u32| attribute(cuda, device, which) == value as i32;
    let virtual_memory = consts::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    if is(
        consts::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        consts::CU_COMPUTEMODE_PROHIBITED,
    ) {
        Some((Kind::System, "its compute mode prohibits contexts"))
    } else if !cuda_caps(cuda, device).memops64 {
        Some((Kind::Unsupported, "it has no 64-bit memory operations"))
    } else if is(virtual_memory, 0) || cuda.cuMemCreate.is_none() {
        let why = "it has no memory that is mapped (cuMemCreate)";
        Some((Kind::Unsupported, why))
    } else {
        None
    }
}

/// Whether a device allows one context, of one process.
pub(super) fn is_exclusive(cuda: &Cuda, device: CUdevice) -> bool {
    let mode = attribute(cuda, device, consts::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
    mode == consts::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as i32
}

/// What streams of a device can do.
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
        flush: has(consts::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES),
        ordered_writes: ordering >= consts::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32,
        host_flush: options & consts::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST as i32 != 0
            && cuda.cuFlushGPUDirectRDMAWrites.is_some(),
        inline_copy: false,
        fence: false,
        kernels: true,
        batch_limit: submit::BATCH,
    }
}

/// The limits of a context, by its hardware channels: `CUDA_DEVICE_MAX_CONNECTIONS`, which the driver
/// reads at its start.
pub fn wait_limits(connections: Option<&str>) -> WaitLimits {
    let channels = connections.and_then(|v| v.trim().parse::<u32>().ok());
    let channels = channels.unwrap_or(8).clamp(1, 32);
    WaitLimits {
        channels,
        // Measured: of 8 channels, 6 may stand while kernels, copies and memory operations of
        // all other streams go on; with the 7th they do not.
        // Of one or two channels none could: one is allowed, at the program's own risk.
        streams: channels.saturating_sub(2).max(1),
        submissions: Some(SUBMISSIONS),
    }
}
