// CUDA's streams and copies, and its memory operations, which run in order.
#include <cstdio>

#include "stream.hpp"

using namespace standin;

namespace {

// The stand-in's address of a word that a stream of `context` may use.
int word(const Machine& m, const Context* context, u64 address, u64 len, char** out) {
    if (address % len != 0) return kInvalidValue;
    const Range* range = m.find(address, len);
    if (range == nullptr || (*out = usable(*range, context, address)) == nullptr) return kInvalidValue;
    return kOk;
}

template <class T>
bool holds(T now, T value, u32 condition) {
    switch (condition) {
        case kWaitGeq: return static_cast<T>(now - value) >> (8 * sizeof(T) - 1) == 0;
        case kWaitEq: return now == value;
        case kWaitAnd: return (now & value) != 0;
        default: return static_cast<T>(~(now | value)) != 0;
    }
}

// A memory operation that was checked, with its word.
struct Prepared {
    u32 operation;
    u32 condition;
    u64 value;
    char* at;

    // Whether the stream may continue.
    bool run() const {
        switch (operation) {
            case kWriteValue32: __atomic_store_n(reinterpret_cast<u32*>(at), static_cast<u32>(value), __ATOMIC_RELEASE); return true;
            case kWriteValue64: __atomic_store_n(reinterpret_cast<u64*>(at), value, __ATOMIC_RELEASE); return true;
            case kWaitValue32: return holds(__atomic_load_n(reinterpret_cast<u32*>(at), __ATOMIC_ACQUIRE), static_cast<u32>(value), condition);
            case kWaitValue64: return holds(__atomic_load_n(reinterpret_cast<u64*>(at), __ATOMIC_ACQUIRE), value, condition);
            default: __atomic_thread_fence(__ATOMIC_SEQ_CST); return true;
        }
    }
};

int prepare(const Machine& m, const Context* context, const BatchOp& op, Prepared* out) {
    const u32 flags = op.value.flags;
    *out = Prepared{op.operation, flags & 3, op.value.value, nullptr};
    const bool wide = op.operation == kWaitValue64 || op.operation == kWriteValue64;
    if (wide && m.attribute(kMemOps64) == 0) return kNotSupported;
    switch (op.operation) {
        case kWriteValue32:
        case kWriteValue64:
            // NO_MEMORY_BARRIER is not allowed in this interface.
            return flags != 0 ? kInvalidValue : word(m, context, op.value.address, wide ? 8 : 4, &out->at);
        case kWaitValue32:
        case kWaitValue64:
            if ((flags & ~(kWaitFlush | 3)) != 0) return kInvalidValue;
            if ((flags & kWaitFlush) != 0 && m.attribute(kFlushCapability) == 0) return kNotSupported;
            if (out->condition == kWaitNor && m.attribute(kWaitNorCapability) == 0) return kNotSupported;
            return word(m, context, op.value.address, wide ? 8 : 4, &out->at);
        case kFlushRemoteWrites:
            if (op.order.flags != 0) return kInvalidValue;
            return m.attribute(kFlushCapability) == 0 ? kNotSupported : kOk;
        case kBarrier: return op.order.flags > 1 ? kInvalidValue : kOk;
        default: return kInvalidValue;
    }
}

void note(Machine& m, const BatchOp& op) {
    char text[128];
    const char* name = op.operation == kWaitValue32    ? "wait32"
                       : op.operation == kWaitValue64  ? "wait64"
                       : op.operation == kWriteValue32 ? "write32"
                       : op.operation == kWriteValue64 ? "write64"
                       : op.operation == kBarrier      ? "barrier"
                                                       : "flush";
    if (op.operation == kFlushRemoteWrites || op.operation == kBarrier) {
        snprintf(text, sizeof text, "%s flags %#x", name, op.order.flags);
    } else {
        const bool wide = op.operation == kWaitValue64 || op.operation == kWriteValue64;
        const u64 value = wide ? op.value.value : static_cast<u32>(op.value.value);
        snprintf(text, sizeof text, "%s %#llx %#llx flags %#x", name, static_cast<unsigned long long>(op.value.address),
                 static_cast<unsigned long long>(value), op.value.flags);
    }
    m.log.note(text);
}

int batch(Machine& m, Lock& lock, Stream* stream, const BatchOp* ops, u32 count) {
    if (count == 0 || count > 255) return kInvalidValue;
    if (m.log.on) {
        for (u32 i = 0; i < count; i++) note(m, ops[i]);
    }
    auto list = std::make_shared<std::vector<Prepared>>(count);
    for (u32 i = 0; i < count; i++) {
        const int code = prepare(m, stream->context, ops[i], &(*list)[i]);
        if (code != kOk) return code;
    }
    return enqueue(lock, stream, [list, next = size_t{0}]() mutable {
        Machine& m = machine();
        for (; next < list->size(); next++) {
            if (!(*list)[next].run()) return Step::waits;
            if (!one_operation(m)) return Step::runs;
        }
        return Step::done;
    });
}

int single(const char* name, void* handle, u32 operation, u64 address, u32 value, u32 flags) {
    return call(name, Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        BatchOp op{};
        op.value = {operation, address, value, flags, 0};
        return batch(m, lock, stream, &op, 1);
    }, handle, address, u64{value}, u64{flags});
}

}  // namespace

STANDIN_API int cuStreamCreate(Stream** out, unsigned flags) {
    return call("cuStreamCreate", Need::context, [&](Machine&, Lock& lock) -> int {
        if (flags > 1) return kInvalidValue;
        // Another block of streams is created behind every wait of the context.
        Context* context = current_context();
        int code = kOk;
        if (context->streams.size() >= context->room) {
            code = settle(lock, "cuStreamCreate", context);
            context->room += kStreamBlock;
        }
        if (code == kOk) *out = make_stream(context);
        return code;
    }, u64{flags});
}

STANDIN_API int cuStreamDestroy_v2(void* handle) {
    return call("cuStreamDestroy_v2", Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream = m.stream(handle, nullptr);
        if (stream == nullptr) return kInvalidHandle;
        stream->destroyed = true;
        m.work.notify_all();
        auto& streams = stream->context->streams;
        for (size_t i = 0; i < streams.size(); i++) {
            if (streams[i].get() == stream && stream->queue.empty()) {
                m.retire(std::move(streams[i]));
                streams.erase(streams.begin() + static_cast<long>(i));
                break;
            }
        }
        return kOk;
    }, handle);
}

STANDIN_API int cuStreamGetCtx(void* handle, Context** out) {
    return call("cuStreamGetCtx", Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code == kOk) *out = stream->context;
        return code;
    }, handle);
}

STANDIN_API int cuStreamGetId(void* handle, unsigned long long* id) {
    return call("cuStreamGetId", Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code == kOk) *id = stream->id;
        return code;
    }, handle);
}

STANDIN_API int cuStreamBatchMemOp_v2(void* handle, unsigned count, const BatchOp* ops, unsigned flags) {
    return call("cuStreamBatchMemOp_v2", Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        return flags != 0 ? kInvalidValue : batch(m, lock, stream, ops, count);
    }, handle, u64{count}, u64{flags});
}

STANDIN_API int cuStreamWriteValue32_v2(void* handle, u64 address, u32 value, unsigned flags) {
    return single("cuStreamWriteValue32_v2", handle, kWriteValue32, address, value, flags);
}

STANDIN_API int cuStreamWaitValue32_v2(void* handle, u64 address, u32 value, unsigned flags) {
    return single("cuStreamWaitValue32_v2", handle, kWaitValue32, address, value, flags);
}

STANDIN_API int cuMemcpyAsync(u64 to, u64 from, size_t len, void* stream) {
    return copy("cuMemcpyAsync", to, from, len, stream, false, false);
}

STANDIN_API int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t len, void* stream) {
    return copy("cuMemcpyHtoDAsync_v2", to, bits(from), len, stream, true, false);
}

STANDIN_API int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t len, void* stream) {
    return copy("cuMemcpyDtoHAsync_v2", bits(to), from, len, stream, false, true);
}

// Pinned and device memory only: the library needs no others.
STANDIN_API int cuMemcpy2DAsync_v2(const Copy2D* copy, void* handle) {
    return call("cuMemcpy2DAsync_v2", Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        int code = own_stream(m, handle, &stream);
        const Copy2D c = *copy;
        if (code != kOk || c.width == 0 || c.height == 0) return code;
        constexpr u32 kHost = 1, kDevice = 2;
        const bool types = (c.src_type == kHost || c.src_type == kDevice) && (c.dst_type == kHost || c.dst_type == kDevice);
        if (!types || c.src_pitch < c.src_x + c.width || c.dst_pitch < c.dst_x + c.width) return kInvalidValue;
        const u64 from = (c.src_type == kHost ? bits(c.src_host) : c.src_device) + c.src_y * c.src_pitch + c.src_x;
        const u64 to = (c.dst_type == kHost ? bits(c.dst_host) : c.dst_device) + c.dst_y * c.dst_pitch + c.dst_x;
        Span target, source;
        if ((code = span(m, to, (c.height - 1) * c.dst_pitch + c.width, true, &target)) != kOk) return code;
        if ((code = span(m, from, (c.height - 1) * c.src_pitch + c.width, true, &source)) != kOk) return code;
        return enqueue(lock, stream, copy_rows(target, c.dst_pitch, source, c.src_pitch, c.width, c.height));
    }, bits(copy->dst_device), bits(copy->src_host), u64{copy->width}, u64{copy->height}, handle);
}
