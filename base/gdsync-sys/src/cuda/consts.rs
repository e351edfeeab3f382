//! Constants of cuda.h 13.0 under their own names, grouped by enumeration.

use super::types::CUstream;
use std::ffi::c_uint;

macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident = $value:expr;)*) => { $(
        $(#[$meta])*
        pub const $name: c_uint = $value;
    )* };
}

/// The legacy default stream, which synchronises with every other stream of its context.
pub const CU_STREAM_LEGACY: CUstream = std::ptr::without_provenance_mut(1);

// Device attributes.
numbers! {
    /// The maximal number of threads of a block.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1;
    /// The maximal number of blocks of a grid in the first dimension.
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5;
    /// The maximal shared memory of a block in bytes.
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8;
    /// Threads of a warp.
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10;
    /// Multiprocessors.
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
    /// Whether kernels have a run time limit.
    CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT = 17;
    /// Whether the device shares its physical memory with the host (an integrated GPU).
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18;
    /// Whether host memory can be mapped.
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19;
    /// The compute mode, `CU_COMPUTEMODE_*`.
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20;
    /// Whether the device runs several kernels at the same time.
    CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31;
    /// The PCI bus number.
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33;
    /// The PCI device number.
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34;
    /// The maximal number of threads of a multiprocessor.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39;
    /// The number of copy engines.
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
    /// Whether host and device share one address space.
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
    /// The PCI domain number.
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50;
    /// Compute capability, major.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
    /// Compute capability, minor.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
    /// Whether the link to the host supports native atomics.
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED = 86;
    /// Whether the device accesses pageable host memory.
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88;
    /// Whether kernels can be preempted.
    CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90;
    /// Whether registered host memory has the same address on the device.
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91;
    /// Whether `CU_STREAM_WAIT_VALUE_FLUSH` and its operation are supported.
    CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98;
    /// Whether host memory can be registered.
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99;
    /// Whether `cuMemCreate` and the related functions are supported.
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
    /// Whether memory can be exported as a file descriptor.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
    /// Whether `cuMemCreate` can make memory that RDMA devices access.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110;
    /// Whether read-only host memory can be registered.
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113;
    /// Whether RDMA devices can access device memory through the driver's kernel interface.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116;
    /// Bits `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_*`.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117;
    /// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_*`.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118;
    /// Whether 64-bit memory operations are supported.
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122;
    /// Whether `CU_STREAM_WAIT_VALUE_NOR` is supported.
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR = 123;
    /// Whether device memory can be exported as a dma-buf.
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124;
    /// Whether memory can be exported as a fabric handle.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128;
    /// Whether contexts are shared through MPS.
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133;
}

// Compute modes.
numbers! {
    /// Any number of contexts.
    CU_COMPUTEMODE_DEFAULT = 0;
    /// No context at all.
    CU_COMPUTEMODE_PROHIBITED = 2;
    /// Contexts of one process at a time.
    CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3;
}

// Launches.
numbers! {
    /// Whether the kernel may start before the work in front of it in its stream has ended.
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6;
}

// GPUDirect RDMA writes: how to flush them, and for which devices they are ordered.
numbers! {
    /// `cuFlushGPUDirectRDMAWrites` is supported.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1 << 0;
    /// The flush memory operation is supported.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS = 1 << 1;
    /// Remote writes are not ordered without a flush.
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE = 0;
    /// The device itself observes remote writes in order.
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100;
    /// Every CUDA device observes remote writes in order.
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES = 200;
    /// Flush towards the current context.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0;
    /// Flush until remote writes are visible to the context that owns the data.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100;
    /// Flush until remote writes are visible to every context.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES = 200;
}

// Memory operations.
numbers! {
    /// Wait for a 32-bit word.
    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1;
    /// Write a 32-bit word.
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2;
    /// Flush remote writes.
    CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3;
    /// Wait for a 64-bit word.
    CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4;
    /// Write a 64-bit word.
    CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5;
    /// A memory barrier.
    CU_STREAM_MEM_OP_BARRIER = 6;

    /// Wait until `(int)(*addr - value) >= 0`, a cyclic comparison.
    CU_STREAM_WAIT_VALUE_GEQ = 0;
    /// Wait until `*addr == value`.
    CU_STREAM_WAIT_VALUE_EQ = 1;
    /// Wait until `(*addr & value) != 0`.
    CU_STREAM_WAIT_VALUE_AND = 2;
    /// Wait until `~(*addr | value) != 0`.
    CU_STREAM_WAIT_VALUE_NOR = 3;
    /// Flush remote writes after the wait.
    CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30;

    /// A write with a memory barrier before it.
    CU_STREAM_WRITE_VALUE_DEFAULT = 0;
    /// A write without a memory barrier: the second version of the calls refuses it.
    CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1;

    /// A memory barrier of system scope.
    CU_STREAM_MEMORY_BARRIER_TYPE_SYS = 0;
    /// A memory barrier of GPU scope.
    CU_STREAM_MEMORY_BARRIER_TYPE_GPU = 1;
}

// Contexts, streams, events, captures.
numbers! {
    /// The driver chooses how a thread waits.
    CU_CTX_SCHED_AUTO = 0x00;
    /// A thread that waits spins.
    CU_CTX_SCHED_SPIN = 0x01;
    /// A thread that waits sleeps.
    CU_CTX_SCHED_BLOCKING_SYNC = 0x04;

    /// A stream that synchronises with the legacy default stream.
    CU_STREAM_DEFAULT = 0;
    /// A stream that does not.
    CU_STREAM_NON_BLOCKING = 1;

    /// An event with timing.
    CU_EVENT_DEFAULT = 0;
    /// A thread that waits for the event sleeps.
    CU_EVENT_BLOCKING_SYNC = 1;
    /// An event without timing.
    CU_EVENT_DISABLE_TIMING = 2;
    /// An event for other processes.
    CU_EVENT_INTERPROCESS = 4;

    /// The stream does not capture.
    CU_STREAM_CAPTURE_STATUS_NONE = 0;
    /// The stream captures.
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
    /// The capture of the stream was invalidated.
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
    /// Unsafe calls of every thread are refused.
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
    /// Unsafe calls of this thread are refused.
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
    /// Unsafe calls are allowed.
    CU_STREAM_CAPTURE_MODE_RELAXED = 2;
    /// A node that runs a kernel.
    CU_GRAPH_NODE_TYPE_KERNEL = 0;
}

// Host memory, pointers, functions, IPC.
numbers! {
    /// Pinned in every context.
    CU_MEMHOSTALLOC_PORTABLE = 0x01;
    /// Mapped for the device.
    CU_MEMHOSTALLOC_DEVICEMAP = 0x02;
    /// Write-combined.
    CU_MEMHOSTALLOC_WRITECOMBINED = 0x04;

    /// Registered in every context.
    CU_MEMHOSTREGISTER_PORTABLE = 0x01;
    /// Mapped for the device.
    CU_MEMHOSTREGISTER_DEVICEMAP = 0x02;
    /// The range is memory-mapped I/O space of a device.
    CU_MEMHOSTREGISTER_IOMEMORY = 0x04;
    /// The device only reads the range.
    CU_MEMHOSTREGISTER_READ_ONLY = 0x08;

    /// The context of a pointer.
    CU_POINTER_ATTRIBUTE_CONTEXT = 1;
    /// `CU_MEMORYTYPE_*`.
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
    /// The device address of the memory.
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
    /// The host address of the memory.
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;
    /// Makes synchronous copies of the allocation complete before they return; set it before RDMA.
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6;
    /// The identifier of the allocation, unique in the process.
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
    /// Whether it is managed memory.
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
    /// The device ordinal.
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    /// Whether `cuIpcGetMemHandle` accepts the allocation.
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
    /// The start address of the allocation.
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
    /// The length of the allocation in bytes.
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
    /// Whether it is mapped.
    CU_POINTER_ATTRIBUTE_MAPPED = 13;
    /// Bits `CU_MEM_HANDLE_TYPE_*` of the supported export types.
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
    /// Whether RDMA devices may access the memory.
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15;

    /// Host memory.
    CU_MEMORYTYPE_HOST = 1;
    /// Device memory.
    CU_MEMORYTYPE_DEVICE = 2;

    /// The maximal number of threads of a block of the kernel.
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0;
    /// Static shared memory of a block in bytes.
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
    /// Local memory of a thread in bytes.
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3;
    /// Registers of a thread.
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4;
    /// The part of a multiprocessor's cache that should be shared memory, in percent.
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9;
    /// The PTX version of the code, 10 * major + minor.
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5;
    /// The architecture of the binary code, 10 * major + minor.
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6;

    /// Peer access is enabled as needed.
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
}

// Physical memory and its exports.
numbers! {
    /// Pinned physical memory.
    CU_MEM_ALLOCATION_TYPE_PINNED = 1;
    /// The location is a device.
    CU_MEM_LOCATION_TYPE_DEVICE = 1;
    /// No export.
    CU_MEM_HANDLE_TYPE_NONE = 0;
    /// Export as a file descriptor.
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
    /// Export as a fabric handle.
    CU_MEM_HANDLE_TYPE_FABRIC = 8;
    /// The minimal granularity.
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
    /// The granularity with the best performance.
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;
    /// No access.
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0;
    /// Read access.
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
    /// Read and write access.
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
    /// A dma-buf file descriptor of an address range.
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;
}
