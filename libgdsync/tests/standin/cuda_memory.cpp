// CUDA's memory: of the device, pinned, registered, and its attributes.
#include "machine.hpp"

using namespace standin;

namespace {

constexpr u64 kTotal = 4ull << 30;

}  // namespace

STANDIN_API int cuMemAlloc_v2(u64* out, size_t len) {
    return call("cuMemAlloc_v2", Need::context, [&](Machine& m, Lock&) -> int {
        if (len == 0) return kInvalidValue;
        Range range{0, len, Kind::device, current_context(), false, nullptr, m.next_id++, 0};
        if (!arena_alloc(len, &range.base, &range.alias)) return kOutOfMemory;
        m.allocated += len;
        *out = range.base;
        m.memory[range.base] = range;
        return kOk;
    }, u64{len});
}

// For the attribute alone: the CPU cannot access it.
STANDIN_API int cuMemAllocManaged(u64* out, size_t len, unsigned flags) {
    constexpr unsigned kGlobal = 1, kHost = 2;
    if (flags != kGlobal && flags != kHost) return kInvalidValue;
    const int code = cuMemAlloc_v2(out, len);
    if (code == kOk) {
        call("cuMemAllocManaged", Need::context, [&](Machine& m, Lock&) -> int {
            m.memory[*out].managed = true;
            return kOk;
        }, u64{len}, u64{flags});
    }
    return code;
}

STANDIN_API int cuMemFree_v2(u64 address) {
    return call("cuMemFree_v2", Need::context, [&](Machine& m, Lock& lock) -> int {
        auto found = m.memory.find(address);
        if (found == m.memory.end() || found->second.kind != Kind::device) return kInvalidValue;
        const int code = settle(lock, "cuMemFree_v2", found->second.context);
        if (code != kOk) return code;
        arena_free(address, found->second.len);
        m.allocated -= found->second.len;
        m.memory.erase(address);
        return kOk;
    }, address);
}

STANDIN_API int cuMemGetInfo_v2(size_t* free, size_t* total) {
    return call("cuMemGetInfo_v2", Need::context, [&](Machine& m, Lock&) -> int {
        *free = kTotal - m.allocated;
        *total = kTotal;
        return kOk;
    });
}

STANDIN_API int cuMemHostAlloc(void** out, size_t len, unsigned flags) {
    return call("cuMemHostAlloc", Need::context, [&](Machine& m, Lock&) -> int {
        if (len == 0 || (flags & ~(kHostPortable | kHostDeviceMap | kHostWriteCombined)) != 0) return kInvalidValue;
        void* at = host_alloc(len);
        if (at == nullptr) return kOutOfMemory;
        const u64 base = bits(at);
        m.memory[base] = Range{base,  len, Kind::host, current_context(), (flags & kHostPortable) != 0,
                               static_cast<char*>(at), m.next_id++, flags};
        *out = at;
        return kOk;
    }, u64{len}, u64{flags});
}

STANDIN_API int cuMemFreeHost(void* at) {
    return call("cuMemFreeHost", Need::context, [&](Machine& m, Lock& lock) -> int {
        auto found = m.memory.find(bits(at));
        if (found == m.memory.end() || found->second.kind != Kind::host) return kInvalidValue;
        const int code = settle(lock, "cuMemFreeHost", found->second.context);
        if (code != kOk) return code;
        host_free(at, found->second.len);
        m.memory.erase(bits(at));
        return kOk;
    }, at);
}

STANDIN_API int cuMemHostRegister_v2(void* at, size_t len, unsigned flags) {
    return call("cuMemHostRegister_v2", Need::context, [&](Machine& m, Lock&) -> int {
        const u64 begin = bits(at), end = begin + len;
        const u32 known = kHostPortable | kHostDeviceMap | kRegisterIoMemory | kRegisterReadOnly;
        if (at == nullptr || len == 0 || end < begin || (flags & ~known) != 0) return kInvalidValue;
        const int code = pinnable(m, begin, end, (flags & kRegisterIoMemory) != 0);
        if (code != kOk) return code;
        m.memory[begin] = Range{begin, len, Kind::registered, current_context(), (flags & kHostPortable) != 0,
                                static_cast<char*>(at), m.next_id++, flags};
        return kOk;
    }, at, u64{len}, u64{flags});
}

STANDIN_API int cuMemHostUnregister(void* at) {
    return call("cuMemHostUnregister", Need::context, [&](Machine& m, Lock& lock) -> int {
        auto found = m.memory.find(bits(at));
        if (found == m.memory.end() || found->second.kind != Kind::registered) return kHostMemoryNotRegistered;
        const int code = settle(lock, "cuMemHostUnregister", found->second.context);
        if (code != kOk) return code;
        m.memory.erase(bits(at));
        return kOk;
    }, at);
}

STANDIN_API int cuMemHostGetDevicePointer_v2(u64* out, void* at, unsigned flags) {
    return call("cuMemHostGetDevicePointer_v2", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(bits(at), 1);
        if (flags != 0 || range == nullptr || (range->kind != Kind::host && range->kind != Kind::registered)) return kInvalidValue;
        *out = bits(at);
        return kOk;
    }, at, u64{flags});
}

STANDIN_API int cuMemGetAddressRange_v2(u64* base, size_t* len, u64 address) {
    return call("cuMemGetAddressRange_v2", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(address, 1);
        if (range == nullptr) return kNotFound;
        if (base != nullptr) *base = range->base;
        if (len != nullptr) *len = range->len;
        return kOk;
    }, address);
}

STANDIN_API int cuPointerGetAttribute(void* data, int attribute, u64 address) {
    return call("cuPointerGetAttribute", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(address, 1);
        if (range == nullptr) return kInvalidValue;
        const bool device = range->kind != Kind::host && range->kind != Kind::registered;
        switch (attribute) {
            case 1: *static_cast<Context**>(data) = range->kind == Kind::mapped ? nullptr : range->context; return kOk;
            case 2: *static_cast<u32*>(data) = device ? 2 : 1; return kOk;
            case 3: *static_cast<u64*>(data) = address; return kOk;
            case 4:
                if (device) return kInvalidValue;
                *static_cast<u64*>(data) = address;
                return kOk;
            case 6: *static_cast<u32*>(data) = range->flags != 0; return kOk;
            case 7: *static_cast<u64*>(data) = range->id; return kOk;
            case 8: *static_cast<u32*>(data) = range->managed; return kOk;
            case 9: *static_cast<int*>(data) = range->context->device; return kOk;
            case 10: *static_cast<u32*>(data) = range->kind == Kind::device; return kOk;
            case 11: *static_cast<u64*>(data) = range->base; return kOk;
            case 12: *static_cast<u64*>(data) = range->len; return kOk;
            case 13: *static_cast<u32*>(data) = 1; return kOk;
            case 14: *static_cast<u64*>(data) = range->kind == Kind::mapped ? u64{kHandlePosixFd} : 0; return kOk;
            case 15: *static_cast<u32*>(data) = device ? static_cast<u32>(m.attribute(kRdmaSupported)) : 0; return kOk;
            default: return kInvalidValue;
        }
    }, static_cast<u64>(attribute), address);
}

STANDIN_API int cuPointerSetAttribute(const void* value, int attribute, u64 address) {
    return call("cuPointerSetAttribute", Need::context, [&](Machine& m, Lock&) -> int {
        auto found = m.memory.find(address);
        constexpr int kSyncMemops = 6;
        if (attribute != kSyncMemops || found == m.memory.end() || found->second.kind != Kind::device) return kInvalidValue;
        found->second.flags = *static_cast<const u32*>(value);
        return kOk;
    }, static_cast<u64>(attribute), address);
}

STANDIN_API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
    return call("cuFlushGPUDirectRDMAWrites", Need::context, [&](Machine& m, Lock&) -> int {
        if (m.attribute(kRdmaFlushOptions) == 0) return kNotSupported;
        if (target != 0 || (scope != 100 && scope != 200)) return kInvalidValue;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        return kOk;
    }, static_cast<u64>(target), static_cast<u64>(scope));
}
