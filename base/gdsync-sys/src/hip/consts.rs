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

/// The end of the `extra` of a launch.
pub const HIP_LAUNCH_PARAM_END: *mut c_void = std::ptr::without_provenance_mut(3);

numbers! { OF_5_2:
    /// The compute mode.
    hipDeviceAttributeComputeMode = 6;
    /// Compute units.
    hipDeviceAttributeMultiprocessorCount = 63;
    /// The register that flushes the HDP cache. The value is an address: the argument must point to
    /// 8 bytes.
    hipDeviceAttributeHdpMemFlushCntl = 10005;
    /// Whether the CPU and PCI devices reach all memory of the device.
    hipDeviceAttributeIsLargeBar = 10011;
    /// Whether `hipStreamWaitValue32` and `hipStreamWaitValue64` are supported.
    hipDeviceAttributeCanUseStreamWaitValue = 10013;
    /// Whether fine-grained device memory is supported.
    hipDeviceAttributeFineGrainSupport = 10016;

    /// No use at all.
    hipComputeModeProhibited = 2;

    /// A stream that synchronises with the default stream.
    hipStreamDefault = 0;
    /// A stream that does not.
    hipStreamNonBlocking = 1;
    /// An event with timing.
    hipEventDefault = 0;
    /// An event without timing.
    hipEventDisableTiming = 2;

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
    /// Coherent (fine-grained), whatever `HIP_HOST_COHERENT` says.
    hipHostMallocCoherent = 0x4000_0000;
    /// Not coherent while a kernel runs.
    hipHostMallocNonCoherent = 0x8000_0000;

    /// Registered for every device.
    hipHostRegisterPortable = 1;
    /// Mapped for the device.
    hipHostRegisterMapped = 2;
    /// The range is memory-mapped I/O space of a device.
    hipHostRegisterIoMemory = 4;

    /// As the addresses say.
    hipMemcpyDefault = 4;

    /// The identifier of the allocation.
    HIP_POINTER_ATTRIBUTE_BUFFER_ID = 7;

    /// The location is a device.
    hipMemLocationTypeDevice = 1;
    /// Export as a file descriptor.
    hipMemHandleTypePosixFileDescriptor = 1;
    /// The minimal granularity.
    hipMemAllocationGranularityMinimum = 0;
    /// Read and write access.
    hipMemAccessFlagsProtReadWrite = 3;
}

numbers! { NEWER:
    /// Whether `hipMemCreate` and the related functions are supported.
    hipDeviceAttributeVirtualMemoryManagementSupported = 89;

    /// Peer access is enabled as needed. In HIP 5.2 the number is 0.
    hipIpcMemLazyEnablePeerAccess = 1;
    /// Uncached physical memory.
    hipMemAllocationTypeUncached = 0x4000_0000;
    /// A dma-buf file descriptor of an address range (HIP 7).
    hipMemRangeHandleTypeDmaBufFd = 1;
}
