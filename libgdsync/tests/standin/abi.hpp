// The part of the drivers' binary interfaces that the stand-ins implement: numbers as in cuda.h 13.0,
// and as in HIP 6 and 7, whose codes of errors are those of CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

// The name or value for the driver that this is compiled for.
#ifdef STANDIN_HIP
#define VENDOR(cuda, hip) hip
#else
#define VENDOR(cuda, hip) cuda
#endif

#define STANDIN_API extern "C" __attribute__((visibility("default")))

namespace standin {

using u32 = uint32_t;
using u64 = uint64_t;

enum Code : int {
    kOk = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kInvalidDevicePointer = 17,
    kInvalidMemcpyDirection = 21,
    kDeviceUnavailable = 46,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kMapFailed = 205,
    kNoBinaryForGpu = 209,
    kPeerUnsupported = 217,
    kOperatingSystem = 304,
    kInvalidHandle = 400,
    kNotFound = 500,
    kNotReady = 600,
    kIllegalState = 401,
    kIllegalAddress = 700,
    kPeerEnabled = 704,
    kContextIsDestroyed = 709,
    kHostMemoryAlreadyRegistered = 712,
    kHostMemoryNotRegistered = 713,
    kMisalignedAddress = 716,
    kLaunchFailed = 719,
    kNotPermitted = 800,
    kNotSupported = 801,
    kCaptureUnsupported = 900,
    kCaptureInvalidated = 901,
    kCaptureUnmatched = 903,
    kUnknown = 999,

    // A stream that does not exist, and one of another context.
    kNoStream = VENDOR(kInvalidHandle, kContextIsDestroyed),
    kForeignStream = VENDOR(kInvalidContext, kInvalidHandle),
};

// The end of the `extra` arguments of a launch.
constexpr uint64_t kLaunchEnd = VENDOR(0, 3);

enum MemOpCode : u32 {
    kWaitValue32 = 1,
    kWriteValue32 = 2,
    kFlushRemoteWrites = 3,
    kWaitValue64 = 4,
    kWriteValue64 = 5,
    kBarrier = 6,
};

enum : u32 {
    kWaitGeq = 0,
    kWaitEq = 1,
    kWaitAnd = 2,
    kWaitNor = 3,
    kWaitFlush = 1u << 30,
    kHostPortable = 1,
    kHostDeviceMap = 2,
    kHostWriteCombined = 4,
    kRegisterIoMemory = 4,
    kRegisterReadOnly = 8,
    kHandlePosixFd = 1,
    kRangeHandleDmaBuf = 1,
    kLocationDevice = 1,
    kAllocationPinned = 1,
    kAllocationUncached = 0x40000000,  // HIP
    kAccessNone = 0,
    kAccessRead = 1,
    kAccessReadWrite = 3,
};

enum Attribute : int {
    kMaxThreadsPerBlock = 1,
    kMaxSharedPerBlock = 8,
    kWarpSize = 10,
    kMultiprocessorCount = 16,
    kCanMapHostMemory = 19,
    kComputeMode = 20,
    kConcurrentKernels = 31,
    kPciBusId = 33,
    kPciDeviceId = 34,
    kAsyncEngineCount = 40,
    kUnifiedAddressing = 41,
    kPciDomainId = 50,
    kComputeMajor = 75,
    kComputeMinor = 76,
    kHostPointerForRegistered = 91,
    kFlushCapability = 98,
    kHostRegisterSupported = 99,
    kVirtualMemory = 102,
    kPosixFdSupported = 103,
    kRdmaWithVmm = 110,
    kReadOnlyRegister = 113,
    kRdmaSupported = 116,
    kRdmaFlushOptions = 117,
    kRdmaOrdering = 118,
    kMemOps64 = 122,
    kWaitNorCapability = 123,
    kDmaBuf = 124,
    kIpcEvents = 125,
    kFabricHandles = 128,

    kHipComputeMode = 6,
    kHipMaxSharedPerBlock = 74,
    kHipDmaBuf = 93,
};

// One entry of a batch. `value` of a 32-bit operation is in its low half.
union BatchOp {
    u32 operation;
    struct {
        u32 operation;
        u64 address;
        u64 value;
        u32 flags;
        u64 alias;
    } value;
    struct {
        u32 operation;
        u32 flags;
    } order;
    u64 pad[6];
};
static_assert(sizeof(BatchOp) == 48, "CUstreamBatchMemOpParams");

struct Location {
    u32 type;
    int id;
};

struct AllocationProp {
    u32 type;
    u32 handle_types;
    Location location;
    void* win32;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
static_assert(sizeof(AllocationProp) == 32, "CUmemAllocationProp");

struct AccessDesc {
    Location location;
    u32 flags;
};
static_assert(sizeof(AccessDesc) == 12, "CUmemAccessDesc");

// Rows of bytes, between memory of the given types.
struct Copy2D {
    size_t src_x, src_y;
    u32 src_type;
    const void* src_host;
    u64 src_device;
    void* src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    u32 dst_type;
    void* dst_host;
    u64 dst_device;
    void* dst_array;
    size_t dst_pitch;
    size_t width, height;
};
static_assert(sizeof(Copy2D) == 128, "CUDA_MEMCPY2D");

// One attribute of a launch, and a launch with attributes.
struct LaunchAttribute {
    int id;
    u32 pad;
    union {
        char bytes[64];
        int number;
    } value;
};
static_assert(sizeof(LaunchAttribute) == 72, "CUlaunchAttribute");

struct LaunchConfig {
    u32 grid[3], block[3], shared;
    void* stream;
    const LaunchAttribute* attributes;
    u32 count;
};
static_assert(sizeof(LaunchConfig) == 56, "CUlaunchConfig");

struct IpcHandle {
    unsigned char bytes[64];
};

}  // namespace standin
