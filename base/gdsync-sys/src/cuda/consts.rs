//! Numbers of cuda.h 13.0 under their own names; constants of one enumeration stand together.

use super::types::CUstream;
use std::ffi::c_uint;

macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident = $value:expr;)*) => { $(
        $(#[$meta])*
        pub const $name: c_uint = $value;
    )* };
}

/// The legacy default stream, which synchronises with every other of its context.
pub const CU_STREAM_LEGACY: CUstream = std::ptr::without_provenance_mut(1);
/// The calling thread's default stream.
pub const CU_STREAM_PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);

// Device attributes.
numbers! {
    /// Threads of a block at most.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1;
    /// Blocks of a grid at most, first dimension.
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5;
    /// Bytes of shared memory of a block at most.
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8;
    /// Threads of a warp.
    CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10;
    /// Multiprocessors.
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
    /// Whether kernels have a run time limit.
    CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT = 17;
    /// Whether device memory is the host's.
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18;
    /// Whether host memory can be mapped.
    CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19;
    /// `CU_COMPUTEMODE_*`.
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20;
    /// Whether kernels run at the same time.
    CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31;
    /// PCI bus.
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33;
    /// PCI device.
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34;
    /// Threads of a multiprocessor at most.
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39;
    /// Copy engines.
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
    /// Whether host and device share one address space.
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
    /// PCI domain.
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50;
    /// Compute capability, major.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
    /// Compute capability, minor.
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
    /// Whether the link to the host does atomics.
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED = 86;
    /// Whether the device reads pageable host memory.
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88;
    /// Whether kernels can be preempted.
    CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90;
    /// Whether registered host memory has the same address on the device.
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91;
    /// Whether `CU_STREAM_WAIT_VALUE_FLUSH` and its operation are supported.
    CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES = 98;
    /// Whether host memory can be registered.
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99;
    /// Whether `cuMemCreate` and its kin are supported.
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102;
    /// Whether memory can be exported as a file descriptor.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103;
    /// Whether `cuMemCreate` makes memory that RDMA devices reach.
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110;
    /// Whether read-only host memory can be registered.
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113;
    /// Whether RDMA devices can reach device memory through the driver's kernel interface.
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

// Remote writes: how they may be flushed, whom they are ordered for.
numbers! {
    /// `cuFlushGPUDirectRDMAWrites` works.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1 << 0;
    /// Memory operations that flush work.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS = 1 << 1;
    /// Nobody may rely on order without a flush.
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE = 0;
    /// The device itself sees remote writes in order.
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100;
    /// Every CUDA device sees remote writes in order.
    CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES = 200;
    /// Flush towards the current context.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0;
    /// Until visible to the context that owns the data.
    CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100;
    /// Until visible to every context.
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

    /// Until `(int)(*addr - value) >= 0`, a cyclic comparison.
    CU_STREAM_WAIT_VALUE_GEQ = 0;
    /// Until `*addr == value`.
    CU_STREAM_WAIT_VALUE_EQ = 1;
    /// Until `(*addr & value) != 0`.
    CU_STREAM_WAIT_VALUE_AND = 2;
    /// Until `~(*addr | value) != 0`.
    CU_STREAM_WAIT_VALUE_NOR = 3;
    /// Flush remote writes after the wait.
    CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30;

    /// A write behind a fence.
    CU_STREAM_WRITE_VALUE_DEFAULT = 0;
    /// A write without one: the second version of the calls refuses it.
    CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 1;

    /// A barrier towards the system.
    CU_STREAM_MEMORY_BARRIER_TYPE_SYS = 0;
    /// A barrier within the GPU.
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
    /// The stream is part of a broken capture.
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
    /// Unsafe calls are refused to every thread.
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
    /// Unsafe calls are refused to this thread.
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
    /// Unsafe calls are allowed.
    CU_STREAM_CAPTURE_MODE_RELAXED = 2;
}

// Host memory, pointers, functions, IPC.
numbers! {
    /// Pinned for every context.
    CU_MEMHOSTALLOC_PORTABLE = 0x01;
    /// Mapped for the device.
    CU_MEMHOSTALLOC_DEVICEMAP = 0x02;
    /// Write-combined.
    CU_MEMHOSTALLOC_WRITECOMBINED = 0x04;

    /// Registered for every context.
    CU_MEMHOSTREGISTER_PORTABLE = 0x01;
    /// Mapped for the device.
    CU_MEMHOSTREGISTER_DEVICEMAP = 0x02;
    /// It is a device's memory-mapped I/O space.
    CU_MEMHOSTREGISTER_IOMEMORY = 0x04;
    /// The device only reads it.
    CU_MEMHOSTREGISTER_READ_ONLY = 0x08;

    /// The context a pointer belongs to.
    CU_POINTER_ATTRIBUTE_CONTEXT = 1;
    /// `CU_MEMORYTYPE_*`.
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
    /// Its address on the device.
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
    /// Its address on the host.
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4;
    /// Synchronous copies of the allocation really are; to be set before RDMA.
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6;
    /// A number of the allocation, unique in the process.
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7;
    /// Whether it is managed memory.
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8;
    /// The device.
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    /// Whether `cuIpcGetMemHandle` takes it.
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10;
    /// Where its range begins.
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
    /// Bytes of its range.
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12;
    /// Whether it is mapped.
    CU_POINTER_ATTRIBUTE_MAPPED = 13;
    /// Bits `CU_MEM_HANDLE_TYPE_*` it may be exported as.
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14;
    /// Whether RDMA devices may reach it.
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15;

    /// Host memory.
    CU_MEMORYTYPE_HOST = 1;
    /// Device memory.
    CU_MEMORYTYPE_DEVICE = 2;

    /// Threads of a block at most, for the kernel.
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0;
    /// Bytes of static shared memory.
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
    /// Bytes of local memory of a thread.
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3;
    /// Registers of a thread.
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4;
    /// The PTX version it was compiled from, 10 * major + minor.
    CU_FUNC_ATTRIBUTE_PTX_VERSION = 5;
    /// The architecture it was compiled to, 10 * major + minor.
    CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6;

    /// Peer access is enabled as needed.
    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;
}

// Physical memory and its exports.
numbers! {
    /// Memory that stays where it is.
    CU_MEM_ALLOCATION_TYPE_PINNED = 1;
    /// On a device.
    CU_MEM_LOCATION_TYPE_DEVICE = 1;
    /// Not exported.
    CU_MEM_HANDLE_TYPE_NONE = 0;
    /// As a file descriptor.
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1;
    /// As a fabric handle.
    CU_MEM_HANDLE_TYPE_FABRIC = 8;
    /// The least that can be allocated.
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0;
    /// What performs best.
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1;
    /// Nobody may access.
    CU_MEM_ACCESS_FLAGS_PROT_NONE = 0;
    /// Reads.
    CU_MEM_ACCESS_FLAGS_PROT_READ = 1;
    /// Reads and writes.
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3;
    /// A dma-buf file descriptor of an address range.
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1;
}
