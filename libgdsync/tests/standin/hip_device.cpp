// HIP's initialisation and devices. Every device has one context, and every thread a current device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "machine.hpp"

using namespace standin;

namespace {

enum Attribute : int {
    kCanMapHost = 3,
    kConcurrent = 8,
    kNativeAtomics = 15,
    kMajor = 23,
    kMaxGridX = 29,
    kMaxThreads = 56,
    kThreadsPerUnit = 57,
    kMinor = 61,
    kUnits = 63,
    kPciBus = 67,
    kPciDevice = 68,
    kPciDomain = 69,
    kWave = 87,
    kVmm = 89,
    kRegister = 90,
    kHdpMem = 10005,
    kHdpReg = 10006,
    kLargeBar = 10011,
    kWaitValue = 10013,
    kFineGrain = 10016,
};

// The register that flushes writes to device memory, where STANDIN_HDP is set.
volatile u32 hdp = 0;

int& current_device() {
    static thread_local int device = 0;
    return device;
}

const char* architecture() {
    const char* text = getenv("STANDIN_ARCH");
    return text != nullptr ? text : "gfx942";
}

bool is_device(const Machine& m, int device) { return device >= 0 && device < m.devices; }

int hardware_queues() {
    const char* text = getenv("GPU_MAX_HW_QUEUES");
    const int n = text != nullptr ? atoi(text) : 4;
    return n < 1 ? 1 : n;
}

const char* name_of(int code) {
    static const auto* table = new std::map<int, const char*>{
        {kOk, "hipSuccess"},
        {kInvalidValue, "hipErrorInvalidValue"},
        {kOutOfMemory, "hipErrorOutOfMemory"},
        {kNotInitialized, "hipErrorNotInitialized"},
        {kInvalidDevicePointer, "hipErrorInvalidDevicePointer"},
        {kNoDevice, "hipErrorNoDevice"},
        {kInvalidDevice, "hipErrorInvalidDevice"},
        {kInvalidImage, "hipErrorInvalidImage"},
        {kInvalidContext, "hipErrorInvalidContext"},
        {kMapFailed, "hipErrorMapFailed"},
        {kNoBinaryForGpu, "hipErrorNoBinaryForGpu"},
        {kPeerUnsupported, "hipErrorPeerAccessUnsupported"},
        {kOperatingSystem, "hipErrorOperatingSystem"},
        {kInvalidHandle, "hipErrorInvalidHandle"},
        {kIllegalState, "hipErrorIllegalState"},
        {kNotFound, "hipErrorNotFound"},
        {kNotReady, "hipErrorNotReady"},
        {kIllegalAddress, "hipErrorIllegalAddress"},
        {kPeerEnabled, "hipErrorPeerAccessAlreadyEnabled"},
        {kContextIsDestroyed, "hipErrorContextIsDestroyed"},
        {kHostMemoryAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered"},
        {kHostMemoryNotRegistered, "hipErrorHostMemoryNotRegistered"},
        {kLaunchFailed, "hipErrorLaunchFailure"},
        {kNotSupported, "hipErrorNotSupported"},
        {kCaptureUnsupported, "hipErrorStreamCaptureUnsupported"},
        {kCaptureInvalidated, "hipErrorStreamCaptureInvalidated"},
        {kCaptureUnmatched, "hipErrorStreamCaptureUnmatched"},
        {kUnknown, "hipErrorUnknown"},
    };
    auto found = table->find(code);
    return found != table->end() ? found->second : "hipErrorUnknown";
}

// Writes the properties that have no attribute. `at` is where the layout has the architecture's
// name, `hdp` where it has the flush registers.
int properties(const char* name, char* out, size_t size, size_t at, size_t hdp, int device) {
    return call(name, Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        memset(out, 0, size);
        snprintf(out, 256, "Stand-in AMD GPU %d", device);
        snprintf(out + at, 256, "%s:sramecc+:xnack-", architecture());
        void* const none[2] = {};
        memcpy(out + hdp, none, sizeof none);
        return kOk;
    }, static_cast<u64>(device));
}

}  // namespace

namespace standin {

Context* current_context() {
    Machine& m = machine();
    const auto device = static_cast<size_t>(current_device());
    m.primary.resize(static_cast<size_t>(m.devices));
    if (m.primary[device] == nullptr) m.primary[device] = make_context(m, current_device(), true);
    return m.primary[device];
}

// Every call initialises the library.
int state_refusal(Machine& m, Need) {
    if (m.devices == 0) return kNoDevice;
    if (!m.initialised) m.channels = static_cast<unsigned>(hardware_queues());
    m.initialised = true;
    return kOk;
}

// Calls that may wait for streams.
bool unsafe_in_capture(const std::string& name) {
    static const auto* names = new std::set<std::string>{
        "hipMalloc",    "hipExtMallocWithFlags", "hipFree",         "hipHostMalloc",       "hipHostFree", "hipHostRegister", "hipHostUnregister",
        "hipEventQuery", "hipModuleLoadData",     "hipModuleUnload", "hipIpcCloseMemHandle"};
    return names->count(name) != 0;
}

int default_attribute(int which) {
    switch (which) {
        case kMajor: return 9;
        case kMinor: return 4;
        case kMaxGridX: return 0x7fffffff;
        case kMaxThreads: return 1024;
        case kThreadsPerUnit: return 2048;
        case kUnits: return 304;
        case kPciBus: return 0x41;
        case kHipMaxSharedPerBlock: return 64 << 10;
        case kWave: return 64;
        case kCanMapHost:
        case kConcurrent:
        case kVmm:
        case kRegister:
        case kHipDmaBuf:
        case kLargeBar:
        case kWaitValue:
        case kFineGrain: return 1;
        default: return 0;
    }
}

// Streams share hardware queues, and a queue runs one command at a time: a stream that waits, or a
// kernel that runs, stalls the other streams of its queue.
bool stalls(const Machine&, const Stream& stream) {
    for (auto& other : stream.context->streams) {
        const bool shares = other.get() != &stream && other->hardware == stream.hardware;
        if (shares && (other->holds || other->runs)) return true;
    }
    return false;
}

}  // namespace standin

STANDIN_API int hipInit(unsigned flags) {
    return call("hipInit", Need::init, [&](Machine&, Lock&) -> int { return flags != 0 ? kInvalidValue : kOk; }, u64{flags});
}

STANDIN_API int hipRuntimeGetVersion(int* version) {
    return call("hipRuntimeGetVersion", Need::nothing, [&](Machine& m, Lock&) -> int {
        *version = m.version;
        return kOk;
    });
}

STANDIN_API const char* hipGetErrorName(int code) { return name_of(code); }
STANDIN_API const char* hipGetErrorString(int code) { return name_of(code); }

STANDIN_API int hipGetDeviceCount(int* count) {
    *count = 0;
    return call("hipGetDeviceCount", Need::init, [&](Machine& m, Lock&) -> int {
        *count = m.devices;
        return kOk;
    });
}

STANDIN_API int hipGetDevice(int* device) {
    return call("hipGetDevice", Need::init, [&](Machine&, Lock&) -> int {
        *device = current_device();
        return kOk;
    });
}

STANDIN_API int hipSetDevice(int device) {
    return call("hipSetDevice", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        current_device() = device;
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int hipDeviceGetName(char* name, int len, int device) {
    return call("hipDeviceGetName", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        snprintf(name, static_cast<size_t>(len), "Stand-in AMD GPU %d", device);
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int hipDeviceGetAttribute(int* value, int attribute, int device) {
    return call("hipDeviceGetAttribute", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        // These attributes are addresses.
        if (attribute == kHdpMem || attribute == kHdpReg) {
            volatile u32* const at = getenv("STANDIN_HDP") != nullptr && attribute == kHdpMem ? &hdp : nullptr;
            memcpy(value, &at, sizeof at);
            return kOk;
        }
        *value = attribute == kPciDevice ? device : m.attribute(attribute);
        return kOk;
    }, static_cast<u64>(attribute), static_cast<u64>(device));
}

STANDIN_API int hipDeviceGetPCIBusId(char* id, int len, int device) {
    return call("hipDeviceGetPCIBusId", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        snprintf(id, static_cast<size_t>(len), "0000:%02x:%02x.0", m.attribute(kPciBus), device);
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int hipDeviceTotalMem(size_t* bytes, int device) {
    return call("hipDeviceTotalMem", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        *bytes = 4ull << 30;
        return kOk;
    }, static_cast<u64>(device));
}

// As AMD's GPUs: 16 characters.
STANDIN_API int hipDeviceGetUuid(char* uuid, int device) {
    return call("hipDeviceGetUuid", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        char text[17];
        snprintf(text, sizeof text, "5d5d5d5d5d5d%04x", static_cast<unsigned>(device) & 0xffff);
        memcpy(uuid, text, 16);
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int hipGetDevicePropertiesR0600(char* out, int device) {
    return properties("hipGetDevicePropertiesR0600", out, 1472, 1160, 1432, device);
}

STANDIN_API int hipDeviceCanAccessPeer(int* can, int device, int peer) {
    return call("hipDeviceCanAccessPeer", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device) || !is_device(m, peer)) return kInvalidDevice;
        *can = device != peer && m.peers;
        return kOk;
    }, static_cast<u64>(device), static_cast<u64>(peer));
}

STANDIN_API int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    return call("hipDeviceEnablePeerAccess", Need::context, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, peer) || peer == current_device()) return kInvalidDevice;
        if (flags != 0) return kInvalidValue;
        if (!m.peers) return kPeerUnsupported;
        return current_context()->peers.insert(peer).second ? kOk : kPeerEnabled;
    }, static_cast<u64>(peer), u64{flags});
}

// Whether the register was written since the last call.
STANDIN_API bool standin_flushed() { return __atomic_exchange_n(&hdp, 0, __ATOMIC_SEQ_CST) != 0; }
