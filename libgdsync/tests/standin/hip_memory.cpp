// HIP's memory: coarse-grained and fine-grained memory of the device, signals, pinned memory.
#include <cstring>

#include "machine.hpp"

using namespace standin;

namespace {

enum : unsigned {
    kFinegrained = 1,
    kSignal = 2,
    kUncached = 3,
    kMapped = 2,
    kHostUncached = 0x10000000,
    kNumaUser = 0x20000000,
    kCoherent = 0x40000000,
    kNonCoherent = 0x80000000,
    kRegisterUncached = 0x80000000,
    kRegisterCoarse = 8,
};


int allocate(const char* name, u64* out, size_t len, unsigned flags) {
    return call(name, Need::context, [&](Machine& m, Lock&) -> int {
        if (out == nullptr || flags > kUncached) return kInvalidValue;
        // Not an error: there is no memory.
        *out = 0;
        if (len == 0) return kOk;
        Range range{0, len, Kind::device, current_context(), false, nullptr, m.next_id++, flags};
        range.fine = flags != 0;
        if (flags == kSignal) {
            // A signal has 8 bytes, in memory of the host.
            if (len != 8) return kInvalidValue;
            range.kind = Kind::host;
            range.portable = range.signal = true;
            range.alias = static_cast<char*>(host_alloc(len));
            if (range.alias == nullptr) return kOutOfMemory;
            range.base = bits(range.alias);
        } else if (!arena_alloc(len, &range.base, &range.alias)) {
            return kOutOfMemory;
        }
        if (range.kind == Kind::device) m.allocated += len;
        *out = range.base;
        m.memory[range.base] = range;
        return kOk;
    }, u64{len}, u64{flags});
}

// Frees memory when the streams of its device are idle.
int release(const char* name, u64 address, bool host) {
    return call(name, Need::context, [&](Machine& m, Lock& lock) -> int {
        if (address == 0) return kOk;
        auto found = m.memory.find(address);
        if (found == m.memory.end()) return kInvalidValue;
        const bool its = host ? found->second.kind == Kind::host && !found->second.signal
                              : found->second.kind == Kind::device || found->second.signal;
        if (!its) return kInvalidValue;
        const int code = settle(lock, name, found->second.context);
        if (code != kOk) return code;
        // Another thread may have freed it meanwhile.
        found = m.memory.find(address);
        if (found == m.memory.end()) return kInvalidValue;
        if (found->second.kind == Kind::device) {
            arena_free(address, found->second.len);
            m.allocated -= found->second.len;
        } else {
            host_free(found->second.alias, found->second.len);
        }
        m.memory.erase(found);
        return kOk;
    }, address);
}

// `hipMemoryType`: its numbers changed with HIP 6.
u32 memory_type(const Machine& m, bool device) { return device + (m.version < 60000000 ? 0u : 1u); }

bool is_host(const Range& range) { return range.kind == Kind::host || range.kind == Kind::registered; }

}  // namespace

STANDIN_API int hipMalloc(u64* out, size_t len) { return allocate("hipMalloc", out, len, 0); }

STANDIN_API int hipExtMallocWithFlags(u64* out, size_t len, unsigned flags) {
    return allocate("hipExtMallocWithFlags", out, len, flags);
}

STANDIN_API int hipFree(u64 address) { return release("hipFree", address, false); }
STANDIN_API int hipHostFree(u64 address) { return release("hipHostFree", address, true); }

STANDIN_API int hipHostMalloc(void** out, size_t len, unsigned flags) {
    return call("hipHostMalloc", Need::context, [&](Machine& m, Lock&) -> int {
        const unsigned known = kHostPortable | kMapped | kHostWriteCombined | kHostUncached | kNumaUser | kCoherent | kNonCoherent;
        const bool both = (flags & kCoherent) != 0 && (flags & kNonCoherent) != 0;
        if (out == nullptr || (flags & ~known) != 0 || both) return kInvalidValue;
        *out = nullptr;
        if (len == 0) return kOk;
        void* at = host_alloc(len);
        if (at == nullptr) return kOutOfMemory;
        // Pinned memory of HIP belongs to every device.
        Range range{bits(at), len, Kind::host, current_context(), true, static_cast<char*>(at), m.next_id++, flags};
        // Other flags alone leave the choice to the environment.
        const unsigned coherent = kCoherent | kMapped | kNumaUser | kHostUncached;
        range.fine = flags == 0 || ((flags & coherent) != 0 && (flags & kNonCoherent) == 0);
        m.memory[range.base] = range;
        *out = at;
        return kOk;
    }, u64{len}, u64{flags});
}

STANDIN_API int hipHostRegister(void* at, size_t len, unsigned flags) {
    return call("hipHostRegister", Need::context, [&](Machine& m, Lock&) -> int {
        const u64 begin = bits(at), end = begin + len;
        const unsigned known = kHostPortable | kMapped | kRegisterIoMemory | kRegisterCoarse | kRegisterUncached;
        if (at == nullptr || len == 0 || end < begin || (flags & ~known) != 0) return kInvalidValue;
        const int code = pinnable(m, begin, end, (flags & kRegisterIoMemory) != 0);
        // Memory is registered twice without an error, and then has one registration.
        if (code != kOk && code != kHostMemoryAlreadyRegistered) return code;
        Range range{begin, len, Kind::registered, current_context(), true, static_cast<char*>(at), m.next_id++, flags};
        range.fine = (flags & kRegisterCoarse) == 0;
        m.memory[begin] = range;
        return kOk;
    }, at, u64{len}, u64{flags});
}

STANDIN_API int hipHostUnregister(void* at) {
    return call("hipHostUnregister", Need::context, [&](Machine& m, Lock& lock) -> int {
        auto found = m.memory.find(bits(at));
        if (found == m.memory.end() || found->second.kind != Kind::registered) return kHostMemoryNotRegistered;
        const int code = settle(lock, "hipHostUnregister", found->second.context);
        if (code == kOk) m.memory.erase(bits(at));
        return code;
    }, at);
}

STANDIN_API int hipHostGetDevicePointer(u64* out, void* at, unsigned flags) {
    return call("hipHostGetDevicePointer", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(bits(at), 1);
        if (flags != 0 || range == nullptr || !is_host(*range)) return kInvalidValue;
        *out = bits(at);
        return kOk;
    }, at, u64{flags});
}

STANDIN_API int hipMemGetAddressRange(u64* base, size_t* len, u64 address) {
    return call("hipMemGetAddressRange", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(address, 1);
        if (range == nullptr) return kNotFound;
        if (base != nullptr) *base = range->base;
        if (len != nullptr) *len = range->len;
        return kOk;
    }, address);
}

struct PointerAttributes {
    u32 type;
    int device;
    u64 device_pointer, host_pointer;
    int managed;
    u32 flags;
};
static_assert(sizeof(PointerAttributes) == 32, "hipPointerAttribute_t");

STANDIN_API int hipPointerGetAttributes(PointerAttributes* out, u64 address) {
    return call("hipPointerGetAttributes", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(address, 1);
        if (out == nullptr || range == nullptr) return kInvalidValue;
        const bool host = is_host(*range);
        const int device = range->context != nullptr ? range->context->device : 0;
        *out = PointerAttributes{memory_type(m, !host), device, address, host ? address : 0, 0, range->flags};
        return kOk;
    }, address);
}

STANDIN_API int hipPointerGetAttribute(void* data, int attribute, u64 address) {
    return call("hipPointerGetAttribute", Need::context, [&](Machine& m, Lock&) -> int {
        const Range* range = m.find(address, 1);
        if (range == nullptr) return kInvalidValue;
        switch (attribute) {
            case 2: *static_cast<u32*>(data) = memory_type(m, !is_host(*range)); return kOk;
            case 3: *static_cast<u64*>(data) = address; return kOk;
            case 4:
                if (!is_host(*range)) return kInvalidValue;
                *static_cast<u64*>(data) = address;
                return kOk;
            case 7: *static_cast<u32*>(data) = static_cast<u32>(range->id); return kOk;
            case 8: *static_cast<bool*>(data) = false; return kOk;
            case 9: *static_cast<int*>(data) = range->context != nullptr ? range->context->device : 0; return kOk;
            case 11: *static_cast<u64*>(data) = range->base; return kOk;
            case 12: *static_cast<size_t*>(data) = range->len; return kOk;
            default: return kInvalidValue;
        }
    }, static_cast<u64>(attribute), address);
}
