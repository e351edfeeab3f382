//! The driver's types as cuda.h 13.0 lays them out.

#![allow(non_camel_case_types)]

use std::ffi::{c_int, c_uint, c_ulonglong, c_ushort, c_void};

/// An opaque object of the driver, identified by its address.
macro_rules! opaque {
    ($($(#[$meta:meta])* $handle:ident -> $object:ident;)*) => { $(
        #[doc = concat!("What a [`", stringify!($handle), "`] points to.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $object {
            _opaque: [u8; 0],
        }

        $(#[$meta])*
        pub type $handle = *mut $object;
    )* };
}

opaque! {
    /// A context: an address space and its streams on one device.
    CUcontext -> CUctx_st;
    /// A stream. [`CU_STREAM_LEGACY`](super::consts::CU_STREAM_LEGACY) is not a pointer.
    CUstream -> CUstream_st;
    /// An event.
    CUevent -> CUevent_st;
    /// A module: loaded code.
    CUmodule -> CUmod_st;
    /// A kernel of a module.
    CUfunction -> CUfunc_st;
    /// A graph, the result of a capture.
    CUgraph -> CUgraph_st;
    /// A node of a graph: one operation.
    CUgraphNode -> CUgraphNode_st;
    /// A graph that streams can launch.
    CUgraphExec -> CUgraphExec_st;
}

/// A device, by its ordinal.
pub type CUdevice = c_int;
/// An address in device memory, or in host memory that the device accesses.
pub type CUdeviceptr = c_ulonglong;
/// An attribute for `cuDeviceGetAttribute`: `CU_DEVICE_ATTRIBUTE_*`.
pub type CUdevice_attribute = c_uint;
/// An attribute for `cuPointerGetAttribute`: `CU_POINTER_ATTRIBUTE_*`.
pub type CUpointer_attribute = c_uint;
/// An attribute for `cuFuncGetAttribute`: `CU_FUNC_ATTRIBUTE_*`.
pub type CUfunction_attribute = c_uint;
/// `CU_STREAM_CAPTURE_STATUS_*`.
pub type CUstreamCaptureStatus = c_uint;
/// `CU_GRAPH_NODE_TYPE_*`.
pub type CUgraphNodeType = c_uint;
/// `CU_STREAM_CAPTURE_MODE_*`.
pub type CUstreamCaptureMode = c_uint;
/// `CU_MEM_HANDLE_TYPE_*`.
pub type CUmemAllocationHandleType = c_uint;
/// `CU_MEM_RANGE_HANDLE_TYPE_*`.
pub type CUmemRangeHandleType = c_uint;
/// `CU_MEM_ALLOC_GRANULARITY_*`.
pub type CUmemAllocationGranularity_flags = c_uint;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_*`.
pub type CUflushGPUDirectRDMAWritesTarget = c_uint;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_*`.
pub type CUflushGPUDirectRDMAWritesScope = c_uint;
/// Physical memory made by `cuMemCreate`.
pub type CUmemGenericAllocationHandle = c_ulonglong;

/// The UUID of a device, 16 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CUuuid {
    /// The bytes, in the order of the printed form.
    pub bytes: [u8; 16],
}

/// The IPC handle of a device allocation, for another process of the host.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUipcMemHandle {
    /// The bytes to send to the other process.
    pub reserved: [u8; 64],
}

/// A wait of [`CUstreamBatchMemOpParams`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUstreamMemOpWaitValueParams {
    /// `CU_STREAM_MEM_OP_WAIT_VALUE_32` or `_64`.
    pub operation: c_uint,
    /// The address of the word.
    pub address: CUdeviceptr,
    /// The operand of the comparison; a 32-bit wait uses the low half.
    pub value64: u64,
    /// `CU_STREAM_WAIT_VALUE_*`.
    pub flags: c_uint,
    /// Private to the driver; any value.
    pub alias: CUdeviceptr,
}

/// A write of [`CUstreamBatchMemOpParams`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUstreamMemOpWriteValueParams {
    /// `CU_STREAM_MEM_OP_WRITE_VALUE_32` or `_64`.
    pub operation: c_uint,
    /// The address of the word.
    pub address: CUdeviceptr,
    /// The value; a 32-bit write uses the low half.
    pub value64: u64,
    /// `CU_STREAM_WRITE_VALUE_*`.
    pub flags: c_uint,
    /// Private to the driver; any value.
    pub alias: CUdeviceptr,
}

/// A flush of remote writes of [`CUstreamBatchMemOpParams`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUstreamMemOpFlushRemoteWritesParams {
    /// `CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES`.
    pub operation: c_uint,
    /// 0.
    pub flags: c_uint,
}

/// A memory barrier of [`CUstreamBatchMemOpParams`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUstreamMemOpMemoryBarrierParams {
    /// `CU_STREAM_MEM_OP_BARRIER`.
    pub operation: c_uint,
    /// `CU_STREAM_MEMORY_BARRIER_TYPE_*`.
    pub flags: c_uint,
}

/// One stream memory operation; the first word selects the member of the union.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUstreamBatchMemOpParams {
    /// Which operation: `CU_STREAM_MEM_OP_*`.
    pub operation: c_uint,
    /// A wait.
    pub wait_value: CUstreamMemOpWaitValueParams,
    /// A write.
    pub write_value: CUstreamMemOpWriteValueParams,
    /// A flush of remote writes.
    pub flush_remote_writes: CUstreamMemOpFlushRemoteWritesParams,
    /// A memory barrier.
    pub memory_barrier: CUstreamMemOpMemoryBarrierParams,
    /// All 48 bytes of the operation.
    pub pad: [u64; 6],
}

impl CUstreamBatchMemOpParams {
    /// All bytes zero. The driver has no operation with this code.
    pub const ZERO: CUstreamBatchMemOpParams = CUstreamBatchMemOpParams { pad: [0; 6] };

    /// Writes the low 32 bits of `value` to `address`.
    pub const fn write32(address: CUdeviceptr, value: u32, flags: c_uint) -> Self {
        Self::write(
            super::consts::CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address,
            value as u64,
            flags,
        )
    }

    /// Writes `value` to `address`.
    pub const fn write64(address: CUdeviceptr, value: u64, flags: c_uint) -> Self {
        Self::write(
            super::consts::CU_STREAM_MEM_OP_WRITE_VALUE_64,
            address,
            value,
            flags,
        )
    }

    /// Waits until the 32-bit word at `address` and `value` satisfy the condition in `flags`.
    pub const fn wait32(address: CUdeviceptr, value: u32, flags: c_uint) -> Self {
        Self::wait(
            super::consts::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address,
            value as u64,
            flags,
        )
    }

    /// Waits until the 64-bit word at `address` and `value` satisfy the condition in `flags`.
    pub const fn wait64(address: CUdeviceptr, value: u64, flags: c_uint) -> Self {
        Self::wait(
            super::consts::CU_STREAM_MEM_OP_WAIT_VALUE_64,
            address,
            value,
            flags,
        )
    }

    /// Makes remote writes that have arrived visible to later operations.
    pub const fn flush_remote_writes() -> Self {
        Self::short(super::consts::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES, 0)
    }

    /// A memory barrier; `flags` is `CU_STREAM_MEMORY_BARRIER_TYPE_*`.
    pub const fn barrier(flags: c_uint) -> Self {
        Self::short(super::consts::CU_STREAM_MEM_OP_BARRIER, flags)
    }

    // The functions set members over zeroes, so that the driver reads no undefined byte.

    const fn write(operation: c_uint, address: CUdeviceptr, value64: u64, flags: c_uint) -> Self {
        Self {
            pad: [operation as u64, address, value64, flags as u64, 0, 0],
        }
    }

    const fn wait(operation: c_uint, address: CUdeviceptr, value64: u64, flags: c_uint) -> Self {
        // A wait has the layout of a write.
        Self::write(operation, address, value64, flags)
    }

    const fn short(operation: c_uint, flags: c_uint) -> Self {
        Self {
            pad: [operation as u64 | (flags as u64) << 32, 0, 0, 0, 0, 0],
        }
    }
}

impl std::fmt::Debug for CUstreamBatchMemOpParams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: every member is plain integers, and values are made from `pad` (above) or
        // zeroed before a member is assigned, so all 48 bytes are initialised.
        let pad = unsafe { self.pad };
        f.debug_tuple("CUstreamBatchMemOpParams")
            .field(&pad)
            .finish()
    }
}

/// The location of physical memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUmemLocation {
    /// `CU_MEM_LOCATION_TYPE_*`.
    pub kind: c_uint,
    /// The ordinal of the device.
    pub id: c_int,
}

/// The properties of an allocation of `cuMemCreate`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUmemAllocationProp {
    /// `CU_MEM_ALLOCATION_TYPE_*`.
    pub kind: c_uint,
    /// The export types `CU_MEM_HANDLE_TYPE_*`, or 0.
    pub requested_handle_types: CUmemAllocationHandleType,
    /// The location.
    pub location: CUmemLocation,
    /// Null on Linux.
    pub win32_handle_meta_data: *mut c_void,
    /// Compression: 0 for none.
    pub compression_type: u8,
    /// 1 if RDMA devices access the memory.
    pub gpu_direct_rdma_capable: u8,
    /// 0, except for tile pools.
    pub usage: c_ushort,
    /// 0.
    pub reserved: [u8; 4],
}

/// The access rights of one device to mapped memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUmemAccessDesc {
    /// The device.
    pub location: CUmemLocation,
    /// `CU_MEM_ACCESS_FLAGS_PROT_*`.
    pub flags: c_uint,
}

/// A copy of `height` rows of `width_in_bytes` bytes. The memory types select source and
/// destination.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_MEMCPY2D {
    /// The offset of the copy in each row, in bytes.
    pub src_x_in_bytes: usize,
    /// The first row.
    pub src_y: usize,
    /// `CU_MEMORYTYPE_*`.
    pub src_memory_type: c_uint,
    /// The source in host memory.
    pub src_host: *const c_void,
    /// The source in device memory.
    pub src_device: CUdeviceptr,
    /// The source array.
    pub src_array: *mut c_void,
    /// The distance between rows in bytes (pitch).
    pub src_pitch: usize,
    /// The offset of the copy in each row, in bytes.
    pub dst_x_in_bytes: usize,
    /// The first row.
    pub dst_y: usize,
    /// `CU_MEMORYTYPE_*`.
    pub dst_memory_type: c_uint,
    /// The destination in host memory.
    pub dst_host: *mut c_void,
    /// The destination in device memory.
    pub dst_device: CUdeviceptr,
    /// The destination array.
    pub dst_array: *mut c_void,
    /// The distance between rows in bytes (pitch).
    pub dst_pitch: usize,
    /// The length of a row in bytes.
    pub width_in_bytes: usize,
    /// The number of rows.
    pub height: usize,
}

/// One attribute of a launch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUlaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_*`.
    pub id: c_uint,
    /// Padding; 0.
    pub pad: c_uint,
    /// The 64 bytes of the value, whose start an attribute of type `int` uses.
    pub value: [u64; 8],
}

impl CUlaunchAttribute {
    /// An attribute of type `int`.
    pub const fn int(id: c_uint, value: c_uint) -> Self {
        Self {
            id,
            pad: 0,
            // Little-endian, as every system that has this driver.
            value: [value as u64, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// The shape of a launch, its stream and its attributes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUlaunchConfig {
    /// Number of blocks in x, y and z.
    pub grid: [c_uint; 3],
    /// Threads per block in x, y and z.
    pub block: [c_uint; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: c_uint,
    /// The stream.
    pub stream: CUstream,
    /// The attributes; null if there are none.
    pub attributes: *mut CUlaunchAttribute,
    /// The number of attributes.
    pub count: c_uint,
}

// The sizes and offsets of cuda.h 13.0 on 64-bit Linux.
const _: () = {
    use std::mem::{align_of, offset_of, size_of};

    assert!(size_of::<CUstreamBatchMemOpParams>() == 48);
    assert!(align_of::<CUstreamBatchMemOpParams>() == 8);
    assert!(size_of::<CUstreamMemOpWaitValueParams>() == 40);
    assert!(offset_of!(CUstreamMemOpWaitValueParams, address) == 8);
    assert!(offset_of!(CUstreamMemOpWaitValueParams, value64) == 16);
    assert!(offset_of!(CUstreamMemOpWaitValueParams, flags) == 24);
    assert!(offset_of!(CUstreamMemOpWaitValueParams, alias) == 32);
    assert!(size_of::<CUstreamMemOpWriteValueParams>() == 40);
    assert!(offset_of!(CUstreamMemOpWriteValueParams, address) == 8);
    assert!(offset_of!(CUstreamMemOpWriteValueParams, value64) == 16);
    assert!(offset_of!(CUstreamMemOpWriteValueParams, flags) == 24);
    assert!(offset_of!(CUstreamMemOpWriteValueParams, alias) == 32);
    assert!(size_of::<CUstreamMemOpFlushRemoteWritesParams>() == 8);
    assert!(offset_of!(CUstreamMemOpFlushRemoteWritesParams, flags) == 4);
    assert!(size_of::<CUstreamMemOpMemoryBarrierParams>() == 8);
    assert!(offset_of!(CUstreamMemOpMemoryBarrierParams, flags) == 4);

    assert!(size_of::<CUlaunchAttribute>() == 72);
    assert!(offset_of!(CUlaunchAttribute, value) == 8);
    assert!(size_of::<CUlaunchConfig>() == 56);
    assert!(offset_of!(CUlaunchConfig, block) == 12);
    assert!(offset_of!(CUlaunchConfig, shared_bytes) == 24);
    assert!(offset_of!(CUlaunchConfig, stream) == 32);
    assert!(offset_of!(CUlaunchConfig, attributes) == 40);
    assert!(offset_of!(CUlaunchConfig, count) == 48);

    assert!(size_of::<CUDA_MEMCPY2D>() == 128);
    assert!(offset_of!(CUDA_MEMCPY2D, src_pitch) == 48);
    assert!(offset_of!(CUDA_MEMCPY2D, dst_memory_type) == 72);
    assert!(offset_of!(CUDA_MEMCPY2D, width_in_bytes) == 112);

    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(offset_of!(CUmemAllocationProp, requested_handle_types) == 4);
    assert!(offset_of!(CUmemAllocationProp, location) == 8);
    assert!(offset_of!(CUmemAllocationProp, win32_handle_meta_data) == 16);
    assert!(offset_of!(CUmemAllocationProp, compression_type) == 24);
    assert!(offset_of!(CUmemAllocationProp, gpu_direct_rdma_capable) == 25);
    assert!(offset_of!(CUmemAllocationProp, usage) == 26);
    assert!(size_of::<CUmemLocation>() == 8);
    assert!(offset_of!(CUmemLocation, id) == 4);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(offset_of!(CUmemAccessDesc, flags) == 8);

    assert!(size_of::<CUipcMemHandle>() == 64 && align_of::<CUipcMemHandle>() == 1);
    assert!(size_of::<CUuuid>() == 16 && align_of::<CUuuid>() == 1);
    assert!(size_of::<CUdevice>() == 4);
    assert!(size_of::<CUdeviceptr>() == 8);
    assert!(size_of::<CUmemGenericAllocationHandle>() == 8);
    assert!(size_of::<CUstream>() == 8);
    assert!(size_of::<super::CudaResult>() == 4);
};
