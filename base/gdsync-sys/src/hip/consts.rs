//! Constants of HIP under their own names. [`OF_5_2`] lists those that HIP 5.2 has too, whose
//! headers the tests compare; [`NEWER`] lists the rest.

#![allow(non_upper_case_globals)]

use std::ffi::{c_uint, c_void};

macro_rules! numbers {
    ($list:ident: $($(#[$meta:meta])* $name:ident = $value:expr;)*) => {
        $(
            $(#[$meta])*
            pub const $name: c_uint = $value;
        )*
        #[doc(hidden)]
        pub const $list: &[(&str, c_uint)] = &[$((stringify!($name), $name)),*];
    };
}

/// Before the address of packed arguments, in the `extra` of a launch.
pub const HIP_LAUNCH_PARAM_BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);
/// Before the address of the length of packed arguments, in the `extra` of a launch.
pub const HIP_LAUNCH_PARAM_BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);
/// The end of the `extra` of a launch.
pub const HIP_LAUNCH_PARAM_END: *mut c_void = std::ptr::without_provenance_mut(3);

numbers! { OF_5_2:
    /// Whether host memory can be mapped.
    hipDeviceAttributeCanMapHostMemory = 3;
    /// The compute mode.
    hipDeviceAttributeComputeMode = 6;
    /// Whether the device runs several kernels at the same time.
    hipDeviceAttributeConcurrentKernels = 8;
    /// Whether the link to the host supports native atomics.
    hipDeviceAttributeHostNativeAtomicSupported = 15;
    /// Whether the device shares its physical memory with the host (an APU).
    hipDeviceAttributeIntegrated = 16;
    /// Whether kernels have a run time limit.
    hipDeviceAttributeKernelExecTimeout = 18;
    /// The major number of the architecture: 9 for gfx90a and gfx942.
    hipDeviceAttributeComputeCapabilityMajor = 23;
    /// The maximal number of blocks of a grid in the first dimension.
    hipDeviceAttributeMaxGridDimX = 29;
    /// The maximal number of threads of a block.
    hipDeviceAttributeMaxThreadsPerBlock = 56;
    /// The maximal number of threads of a compute unit.
    hipDeviceAttributeMaxThreadsPerMultiProcessor = 57;
    /// The minor number of the architecture.
    hipDeviceAttributeComputeCapabilityMinor = 61;
    /// Compute units.
    hipDeviceAttributeMultiprocessorCount = 63;
    /// Whether the device accesses pageable host memory.
    hipDeviceAttributePageableMemoryAccess = 65;
    /// The PCI bus number.
    hipDeviceAttributePciBusId = 67;
    /// The PCI device number.
    hipDeviceAttributePciDeviceId = 68;
    /// The PCI domain number.
    hipDeviceAttributePciDomainID = 69;
    /// The maximal shared memory (LDS) of a block in bytes.
    hipDeviceAttributeMaxSharedMemoryPerBlock = 74;
    /// Threads of a wavefront.
    hipDeviceAttributeWarpSize = 87;
    /// The register that flushes the HDP cache. The value is an address: the argument must point to
    /// 8 bytes.
    hipDeviceAttributeHdpMemFlushCntl = 10005;
    /// The register that flushes HDP for register writes: as above, 8 bytes.
    hipDeviceAttributeHdpRegFlushCntl = 10006;
    /// Whether the CPU and PCI devices reach all memory of the device.
    hipDeviceAttributeIsLargeBar = 10011;
    /// The revision of the chip.
    hipDeviceAttributeAsicRevision = 10012;
    /// Whether `hipStreamWaitValue32` and `hipStreamWaitValue64` are supported.
    hipDeviceAttributeCanUseStreamWaitValue = 10013;
    /// Whether fine-grained device memory is supported.
    hipDeviceAttributeFineGrainSupport = 10016;

    /// The rank of the link's performance among those of the machine; 0 is the fastest.
    hipDevP2PAttrPerformanceRank = 0;
    /// Whether the link supports accesses.
    hipDevP2PAttrAccessSupported = 1;
    /// Whether the link supports all native atomics.
    hipDevP2PAttrNativeAtomicSupported = 2;

    /// Any number of processes.
    hipComputeModeDefault = 0;
    /// No use at all.
    hipComputeModeProhibited = 2;

    /// A stream that synchronises with the default stream.
    hipStreamDefault = 0;
    /// A stream that does not.
    hipStreamNonBlocking = 1;
    /// An event with timing.
    hipEventDefault = 0;
    /// A thread that waits for the event sleeps.
    hipEventBlockingSync = 1;
    /// An event without timing.
    hipEventDisableTiming = 2;
    /// An event for other processes.
    hipEventInterprocess = 4;
    /// The record of the event releases memory to the device only.
    hipEventReleaseToDevice = 0x4000_0000;
    /// The record of the event releases memory to the system.
    hipEventReleaseToSystem = 0x8000_0000;

    /// Wait until `(*address & mask) >= value`, unsigned and not cyclic.
    hipStreamWaitValueGte = 0;
    /// Wait until `(*address & mask) == value`.
    hipStreamWaitValueEq = 1;
    /// Wait until `((*address & mask) & value) != 0`.
    hipStreamWaitValueAnd = 2;
    /// Wait until `~((*address & mask) | (value & mask)) != 0`.
    hipStreamWaitValueNor = 3;

    /// The stream does not capture.
    hipStreamCaptureStatusNone = 0;
    /// The stream captures.
    hipStreamCaptureStatusActive = 1;
    /// The capture of the stream was invalidated.
    hipStreamCaptureStatusInvalidated = 2;
    /// Unsafe calls of every thread are refused.
    hipStreamCaptureModeGlobal = 0;
    /// Unsafe calls of this thread are refused.
    hipStreamCaptureModeThreadLocal = 1;
    /// Unsafe calls are allowed.
    hipStreamCaptureModeRelaxed = 2;

    /// Coarse-grained device memory, as `hipMalloc` allocates it.
    hipDeviceMallocDefault = 0;
    /// Fine-grained device memory: coherent while kernels run.
    hipDeviceMallocFinegrained = 1;
    /// One HSA signal: 8 bytes of fine-grained host memory.
    hipMallocSignalMemory = 2;

    /// Pinned for every device.
    hipHostMallocPortable = 0x1;
    /// Mapped for the device.
    hipHostMallocMapped = 0x2;
    /// Write-combined.
    hipHostMallocWriteCombined = 0x4;
    /// On the NUMA node that the calling thread's policy selects.
    hipHostMallocNumaUser = 0x2000_0000;
    /// Coherent (fine-grained), whatever `HIP_HOST_COHERENT` says.
    hipHostMallocCoherent = 0x4000_0000;
    /// Not coherent while a kernel runs.
    hipHostMallocNonCoherent = 0x8000_0000;

    /// Mapped and portable.
    hipHostRegisterDefault = 0;
    /// Registered for every device.
    hipHostRegisterPortable = 1;
    /// Mapped for the device.
    hipHostRegisterMapped = 2;
    /// The range is memory-mapped I/O space of a device.
    hipHostRegisterIoMemory = 4;
    /// Coarse-grained.
    hipExtHostRegisterCoarseGrained = 8;

    /// From host to host.
    hipMemcpyHostToHost = 0;
    /// From host to device.
    hipMemcpyHostToDevice = 1;
    /// From device to host.
    hipMemcpyDeviceToHost = 2;
    /// From device to device.
    hipMemcpyDeviceToDevice = 3;
    /// As the addresses say.
    hipMemcpyDefault = 4;

    /// The kind of memory, which [`MemoryKind::of`](super::types::MemoryKind::of) reads.
    HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2;
    /// The device address of the memory.
    HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3;
    /// The host address of the memory.
    HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4;
    /// The identifier of the allocation.
    HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7;
    /// Whether it is managed memory.
    HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8;
    /// The device ordinal.
    HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9;
    /// The start address of the allocation.
    HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11;
    /// The length of the allocation in bytes.
    HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12;

    /// The maximal number of threads of a block of the kernel.
    HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0;
    /// Static shared memory of a block in bytes.
    HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1;
    /// Private memory of a thread in bytes.
    HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3;
    /// Registers of a thread.
    HIP_FUNC_ATTRIBUTE_NUM_REGS = 4;

    /// Pinned physical memory.
    hipMemAllocationTypePinned = 1;
    /// The location is a device.
    hipMemLocationTypeDevice = 1;
    /// No export.
    hipMemHandleTypeNone = 0;
    /// Export as a file descriptor.
    hipMemHandleTypePosixFileDescriptor = 1;
    /// The minimal granularity.
    hipMemAllocationGranularityMinimum = 0;
    /// The granularity with the best performance.
    hipMemAllocationGranularityRecommended = 1;
    /// No access.
    hipMemAccessFlagsProtNone = 0;
    /// Read access.
    hipMemAccessFlagsProtRead = 1;
    /// Read and write access.
    hipMemAccessFlagsProtReadWrite = 3;
}

numbers! { NEWER:
    /// Whether `hipMemCreate` and the related functions are supported.
    hipDeviceAttributeVirtualMemoryManagementSupported = 89;
    /// Whether host memory can be registered.
    hipDeviceAttributeHostRegisterSupported = 90;
    /// Whether device memory can be exported as a dma-buf (HIP 7).
    hipDeviceAttributeDmaBufSupported = 93;

    /// A write that stores its value.
    hipStreamWriteValueDefault = 0;
    /// Wait for a 32-bit word.
    hipStreamMemOpWaitValue32 = 1;
    /// Write a 32-bit word.
    hipStreamMemOpWriteValue32 = 2;
    /// Wait for a 64-bit word.
    hipStreamMemOpWaitValue64 = 4;
    /// Write a 64-bit word.
    hipStreamMemOpWriteValue64 = 5;

    /// The record of the event releases no memory to the system: for events that only measure time.
    hipEventDisableSystemFence = 0x2000_0000;
    /// Uncached device memory: fine-grained, and remote writes need no flush.
    hipDeviceMallocUncached = 3;
    /// Uncached host memory.
    hipHostMallocUncached = 0x1000_0000;
    /// Registered as uncached.
    hipExtHostRegisterUncached = 0x8000_0000;

    /// Peer access is enabled as needed. In HIP 5.2 the number is 0.
    hipIpcMemLazyEnablePeerAccess = 1;
    /// Uncached physical memory.
    hipMemAllocationTypeUncached = 0x4000_0000;
    /// A dma-buf file descriptor of an address range (HIP 7).
    hipMemRangeHandleTypeDmaBufFd = 1;
    /// A dma-buf for devices that access the memory by PCIe, not by XGMI (HIP 7).
    hipMemRangeFlagDmaBufMappingTypePcie = 1;
    /// A node that runs a kernel. In HIP 5.2 the number is 1.
    hipGraphNodeTypeKernel = 0;
}
