// CUDA's initialisation, devices and contexts.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "machine.hpp"

using namespace standin;

namespace {

// The contexts of the calling thread, the current one last.
std::vector<Context*>& current_stack() {
    static thread_local std::vector<Context*> stack;
    return stack;
}

const std::map<int, const char*>& names() {
    static const auto* table = new std::map<int, const char*>{
        {kOk, "CUDA_SUCCESS"},
        {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
        {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
        {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
        {kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
        {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
        {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
        {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
        {kMapFailed, "CUDA_ERROR_MAP_FAILED"},
        {kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM"},
        {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
        {kNotFound, "CUDA_ERROR_NOT_FOUND"},
        {kNotReady, "CUDA_ERROR_NOT_READY"},
        {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
        {kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS"},
        {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
        {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED"},
        {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
        {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
        {kUnknown, "CUDA_ERROR_UNKNOWN"},
    };
    return *table;
}

int name_of(int code, const char** out) {
    auto found = names().find(code);
    *out = found != names().end() ? found->second : nullptr;
    return *out != nullptr ? kOk : kInvalidValue;
}

bool is_device(const Machine& m, int device) { return device >= 0 && device < m.devices; }

// Whether the compute mode allows one more context of the device.
int one_more(const Machine& m, int device) {
    constexpr int kProhibited = 2, kExclusiveProcess = 3;
    const int mode = m.attribute(kComputeMode);
    bool taken = false;
    for (Context* context : m.contexts) taken |= context->alive && context->device == device;
    return mode == kProhibited || (mode == kExclusiveProcess && taken) ? kDeviceUnavailable : kOk;
}

// Destroys everything in the context; the handle stays, dead, for its holders.
void end_context(Machine& m, Context* context) {
    context->alive = false;
    context->waiting = 0;
    for (auto& stream : context->streams) m.retire(std::move(stream));
    context->streams.clear();
    context->legacy = nullptr;
    for (auto it = m.memory.begin(); it != m.memory.end();) {
        const Range range = it->second;
        const bool its = range.context == context && range.kind != Kind::mapped;
        it = its ? m.memory.erase(it) : std::next(it);
        if (!its) continue;
        if (range.kind == Kind::device) {
            arena_free(range.base, range.len);
            m.allocated -= range.len;
        } else if (range.kind != Kind::registered) {
            munmap(range.alias, (range.len + 4095) / 4096 * 4096);
        }
    }
    for (auto it = m.events.begin(); it != m.events.end();) it = it->first->context == context ? m.events.erase(it) : std::next(it);
    for (auto it = m.modules.begin(); it != m.modules.end();) it = it->first->context == context ? m.modules.erase(it) : std::next(it);
}

}  // namespace

namespace standin {

Context* current_context() {
    auto& stack = current_stack();
    return stack.empty() ? nullptr : stack.back();
}

int state_refusal(Machine& m, Need need) {
    if (!m.initialised) return kNotInitialized;
    if (need == Need::init) return kOk;
    Context* context = current_context();
    if (context == nullptr) return kInvalidContext;
    return context->alive ? kOk : kContextIsDestroyed;
}

// Calls that may wait for streams.
bool unsafe_in_capture(const std::string& name) {
    static const auto* names = new std::set<std::string>{
        "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister",
        "cuEventQuery", "cuModuleLoadData", "cuModuleUnload", "cuIpcCloseMemHandle"};
    return names->count(name) != 0;
}

int default_attribute(int which) {
    switch (which) {
        case kMaxThreadsPerBlock: return 1024;
        case kMaxSharedPerBlock: return 48 << 10;
        case kWarpSize: return 32;
        case kMultiprocessorCount: return 132;
        case kAsyncEngineCount: return 3;
        case kComputeMajor: return 9;
        case kPciBusId: return 0x41;
        case kRdmaOrdering: return 100;
        case kCanMapHostMemory:
        case kConcurrentKernels:
        case kUnifiedAddressing:
        case kHostPointerForRegistered:
        case kHostRegisterSupported:
        case kVirtualMemory:
        case kPosixFdSupported:
        case kRdmaWithVmm:
        case kReadOnlyRegister:
        case kRdmaSupported:
        case kRdmaFlushOptions:
        case kMemOps64:
        case kWaitNorCapability:
        case kDmaBuf:
        case kIpcEvents: return 1;
        default: return 0;
    }
}

// When all channels of the context but one are held, its other streams stall.
bool stalls(const Machine& m, const Stream& stream) {
    return stream.context->waiting >= (m.channels > 1 ? m.channels - 1 : 1);
}

}  // namespace standin

STANDIN_API int cuInit(unsigned flags) {
    return call("cuInit", Need::device, [&](Machine& m, Lock&) -> int {
        if (flags != 0) return kInvalidValue;
        if (m.devices == 0) return kNoDevice;
        if (!m.initialised) {
            // As the driver does: read once.
            const char* channels = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
            const int n = channels != nullptr ? atoi(channels) : 8;
            m.channels = static_cast<unsigned>(n < 1 ? 1 : n > 32 ? 32 : n);
        }
        m.initialised = true;
        return kOk;
    }, u64{flags});
}

STANDIN_API int cuDriverGetVersion(int* version) {
    return call("cuDriverGetVersion", Need::nothing, [&](Machine& m, Lock&) -> int {
        *version = m.version;
        return kOk;
    });
}

STANDIN_API int cuGetErrorName(int code, const char** name) {
    return call("cuGetErrorName", Need::nothing, [&](Machine&, Lock&) { return name_of(code, name); }, static_cast<u64>(code));
}

STANDIN_API int cuGetErrorString(int code, const char** text) {
    return call("cuGetErrorString", Need::nothing, [&](Machine&, Lock&) { return name_of(code, text); }, static_cast<u64>(code));
}

STANDIN_API int cuDeviceGetCount(int* count) {
    return call("cuDeviceGetCount", Need::init, [&](Machine& m, Lock&) -> int {
        *count = m.devices;
        return kOk;
    });
}

STANDIN_API int cuDeviceGet(int* device, int ordinal) {
    return call("cuDeviceGet", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, ordinal)) return kInvalidDevice;
        *device = ordinal;
        return kOk;
    }, static_cast<u64>(ordinal));
}

STANDIN_API int cuDeviceGetName(char* name, int len, int device) {
    return call("cuDeviceGetName", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        snprintf(name, static_cast<size_t>(len), "Stand-in GPU %d", device);
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return call("cuDeviceGetAttribute", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        *value = attribute == kPciDeviceId ? device : m.attribute(attribute);
        return kOk;
    }, static_cast<u64>(attribute), static_cast<u64>(device));
}

STANDIN_API int cuDeviceGetPCIBusId(char* id, int len, int device) {
    return call("cuDeviceGetPCIBusId", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        snprintf(id, static_cast<size_t>(len), "0000:%02x:%02x.0", m.attribute(kPciBusId), device);
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    return call("cuDeviceGetUuid_v2", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        memset(uuid, 0x5d, 16);
        uuid[15] = static_cast<unsigned char>(device);
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    return call("cuDeviceCanAccessPeer", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device) || !is_device(m, peer)) return kInvalidDevice;
        *can = device != peer && m.peers;
        return kOk;
    }, static_cast<u64>(device), static_cast<u64>(peer));
}

STANDIN_API int cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
    return call("cuDeviceGetP2PAttribute", Need::init, [&](Machine& m, Lock&) -> int {
        constexpr int kAccess = 2, kAtomics = 3;
        if (!is_device(m, device) || !is_device(m, peer) || device == peer) return kInvalidDevice;
        if (attribute < 1 || attribute > 4) return kInvalidValue;
        *value = (attribute == kAccess || attribute == kAtomics) && m.peers;
        return kOk;
    }, static_cast<u64>(attribute), static_cast<u64>(device), static_cast<u64>(peer));
}

STANDIN_API int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    return call("cuDeviceTotalMem_v2", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        *bytes = 4ull << 30;
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int cuDevicePrimaryCtxRetain(Context** out, int device) {
    return call("cuDevicePrimaryCtxRetain", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        m.primary.resize(static_cast<size_t>(m.devices));
        Context*& context = m.primary[static_cast<size_t>(device)];
        const int code = context != nullptr && context->alive ? kOk : one_more(m, device);
        if (code != kOk) return code;
        if (context == nullptr) context = make_context(m, device, true);
        // The primary context is created again at the same address.
        if (!context->alive) {
            context->alive = true;
            context->legacy = make_stream(context);
        }
        context->retained++;
        *out = context;
        return kOk;
    }, static_cast<u64>(device));
}

STANDIN_API int cuDevicePrimaryCtxRelease_v2(int device) {
    return call("cuDevicePrimaryCtxRelease_v2", Need::init, [&](Machine& m, Lock& lock) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        if (m.primary.size() <= static_cast<size_t>(device)) return kInvalidContext;
        Context* context = m.primary[static_cast<size_t>(device)];
        if (context == nullptr || context->retained == 0) return kInvalidContext;
        if (--context->retained != 0) return kOk;
        const int code = settle(lock, "cuDevicePrimaryCtxRelease_v2", context);
        if (code == kOk && context->retained == 0) end_context(m, context);
        return code;
    }, static_cast<u64>(device));
}

STANDIN_API int cuCtxCreate_v2(Context** out, unsigned flags, int device) {
    return call("cuCtxCreate_v2", Need::init, [&](Machine& m, Lock&) -> int {
        if (!is_device(m, device)) return kInvalidDevice;
        const int code = one_more(m, device);
        if (code != kOk) return code;
        *out = make_context(m, device, false);
        current_stack().push_back(*out);
        return kOk;
    }, u64{flags}, static_cast<u64>(device));
}

STANDIN_API int cuCtxDestroy_v2(Context* context) {
    return call("cuCtxDestroy_v2", Need::init, [&](Machine& m, Lock& lock) -> int {
        if (m.contexts.count(context) == 0 || context->primary || !context->alive) return kInvalidContext;
        const int code = settle(lock, "cuCtxDestroy_v2", context);
        if (code != kOk) return code;
        end_context(m, context);
        m.contexts.erase(context);
        auto& stack = current_stack();
        if (!stack.empty() && stack.back() == context) stack.pop_back();
        return kOk;
    }, context);
}

STANDIN_API int cuCtxGetCurrent(Context** out) {
    return call("cuCtxGetCurrent", Need::init, [&](Machine&, Lock&) -> int {
        *out = current_context();
        return kOk;
    });
}

STANDIN_API int cuCtxSetCurrent(Context* context) {
    return call("cuCtxSetCurrent", Need::init, [&](Machine& m, Lock&) -> int {
        if (context != nullptr && m.contexts.count(context) == 0) return kInvalidContext;
        auto& stack = current_stack();
        if (!stack.empty()) stack.pop_back();
        if (context != nullptr) stack.push_back(context);
        return kOk;
    }, context);
}

STANDIN_API int cuCtxPushCurrent_v2(Context* context) {
    return call("cuCtxPushCurrent_v2", Need::init, [&](Machine& m, Lock&) -> int {
        if (m.contexts.count(context) == 0) return kInvalidContext;
        current_stack().push_back(context);
        return kOk;
    }, context);
}

STANDIN_API int cuCtxPopCurrent_v2(Context** out) {
    return call("cuCtxPopCurrent_v2", Need::init, [&](Machine&, Lock&) -> int {
        auto& stack = current_stack();
        if (stack.empty()) return kInvalidContext;
        if (out != nullptr) *out = stack.back();
        stack.pop_back();
        return kOk;
    });
}

STANDIN_API int cuCtxGetDevice(int* device) {
    return call("cuCtxGetDevice", Need::context, [&](Machine&, Lock&) -> int {
        *device = current_context()->device;
        return kOk;
    });
}

STANDIN_API int cuCtxGetId(Context* context, unsigned long long* id) {
    return call("cuCtxGetId", Need::init, [&](Machine& m, Lock&) -> int {
        if (context == nullptr) context = current_context();
        if (m.contexts.count(context) == 0) return kInvalidContext;
        *id = context->id;
        return kOk;
    }, context);
}
