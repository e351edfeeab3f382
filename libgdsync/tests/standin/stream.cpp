// Streams, events, memory operations, copies and captures.
#include <cstdio>
#include <cstring>

#include "machine.hpp"

using namespace standin;

namespace {

// The stream, if the calling thread may enqueue on it.
int own_stream(Machine& m, void* handle, Stream** out) {
    Stream* stream = m.stream(handle, current_context());
    if (stream == nullptr) return kInvalidHandle;
    if (stream->context != current_context()) return kInvalidContext;
    *out = stream;
    return kOk;
}

// The stream, which may be queried in any context and in none.
int any_stream(Machine& m, void* handle, Stream** out) {
    *out = m.stream(handle, current_context());
    // The streams that every context has are those of the current one.
    if (bits(handle) <= 2 && current_context() == nullptr) return kInvalidContext;
    return *out == nullptr ? kInvalidHandle : kOk;
}

// The stand-in's address of a word that a stream of `context` may use.
int word(const Machine& m, const Context* context, u64 address, u64 len, char** out) {
    if (address % len != 0) return kInvalidValue;
    const Range* range = m.find(address, len);
    if (range == nullptr) return kInvalidValue;
    // All contexts of a device may use its device memory; pinned memory only if it was allocated
    // so.
    const bool host = range->kind == Kind::host || range->kind == Kind::registered;
    if (host && !range->portable && range->context != context) return kInvalidValue;
    if (range->kind == Kind::mapped && range->flags != kAccessReadWrite) return kInvalidValue;
    *out = range->alias + (address - range->base);
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
            m.operations++;
            if (m.lose_code != 0 && --m.lose_after == 0) {
                m.lose(m.lose_code);
                return Step::runs;
            }
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

// A span of memory of the device, of the driver, or of the host.
struct Span {
    char* at;
    bool pageable;
    bool host;
};

int span(const Machine& m, u64 address, u64 len, bool device_only, Span* out) {
    const Range* range = m.find(address, len);
    if (range != nullptr) {
        const bool host = range->kind == Kind::host || range->kind == Kind::registered;
        *out = Span{range->alias + (address - range->base), false, host};
        return kOk;
    }
    if (device_only || m.find(address, 1) != nullptr) return kInvalidValue;
    *out = Span{reinterpret_cast<char*>(address), true, true};
    return kOk;
}

int copy(const char* name, u64 to, u64 from, size_t len, void* handle, bool to_device, bool from_device) {
    return call(name, Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        int code = own_stream(m, handle, &stream);
        if (code != kOk || len == 0) return code;
        Span target, source;
        if ((code = span(m, to, len, to_device, &target)) != kOk) return code;
        if ((code = span(m, from, len, from_device, &source)) != kOk) return code;
        // Pageable memory is read before the call returns.
        std::shared_ptr<std::vector<char>> staged;
        if (source.pageable) staged = std::make_shared<std::vector<char>>(source.at, source.at + len);
        code = enqueue(lock, stream, [=] {
            memcpy(target.at, staged ? staged->data() : source.at, len);
            return Step::done;
        });
        // Pageable memory is written before the call returns, and so is every copy from host to
        // host.
        const bool waits = target.pageable || (target.host && source.host);
        if (code == kOk && waits && !stream->capturing) code = settle_stream(lock, name, stream);
        return code;
    }, to, from, u64{len}, handle);
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

STANDIN_API int cuStreamQuery(void* handle) {
    return call("cuStreamQuery", Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code != kOk) return code;
        // A captured stream has no state to query: the query invalidates the capture.
        stream->invalidated = stream->capturing;
        if (stream->capturing) return kCaptureUnsupported;
        return stream->queue.empty() ? kOk : kNotReady;
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

STANDIN_API int cuStreamIsCapturing(void* handle, int* status) {
    return call("cuStreamIsCapturing", Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code == kOk) *status = !stream->capturing ? 0 : stream->invalidated ? 2 : 1;
        return code;
    }, handle);
}

STANDIN_API int cuStreamBeginCapture_v2(void* handle, int mode) {
    return call("cuStreamBeginCapture_v2", Need::context, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        if (stream == stream->context->legacy) return kCaptureUnsupported;
        if (stream->capturing) return kIllegalState;
        stream->capturing = true;
        stream->invalidated = false;
        stream->capture_mode = mode;
        stream->capture_thread = thread_id();
        stream->captured.clear();
        return kOk;
    }, handle, static_cast<u64>(mode));
}

STANDIN_API int cuStreamEndCapture(void* handle, Graph** graph) {
    return call("cuStreamEndCapture", Need::context, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        if (!stream->capturing) return kCaptureUnmatched;
        stream->capturing = false;
        if (stream->invalidated) return kCaptureInvalidated;
        *graph = new Graph{stream->captured.size(), std::move(stream->captured)};
        m.graphs.insert(*graph);
        return kOk;
    }, handle);
}

STANDIN_API int cuThreadExchangeStreamCaptureMode(int* mode) {
    return call("cuThreadExchangeStreamCaptureMode", Need::init, [&](Machine&, Lock&) -> int {
        if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
        std::swap(*mode, capture_mode());
        return kOk;
    });
}

STANDIN_API int cuGraphDestroy(Graph* graph) {
    return call("cuGraphDestroy", Need::init, [&](Machine& m, Lock&) -> int {
        if (m.graphs.erase(graph) == 0) return kInvalidHandle;
        delete graph;
        return kOk;
    }, graph);
}

STANDIN_API int cuGraphGetNodes(Graph* graph, Node** nodes, size_t* count) {
    return call("cuGraphGetNodes", Need::init, [&](Machine& m, Lock&) -> int {
        if (m.graphs.count(graph) == 0) return kInvalidHandle;
        for (size_t i = 0; nodes != nullptr && i < *count; i++) nodes[i] = i < graph->nodes.size() ? &graph->nodes[i] : nullptr;
        if (nodes == nullptr || *count > graph->nodes.size()) *count = graph->nodes.size();
        return kOk;
    }, graph);
}

STANDIN_API int cuGraphNodeGetType(Node* node, int* type) {
    return call("cuGraphNodeGetType", Need::init, [&](Machine&, Lock&) -> int {
        constexpr int kKernel = 0, kMemOps = 12;
        *type = node->kernel ? kKernel : kMemOps;
        return kOk;
    }, node);
}

STANDIN_API int cuGraphInstantiateWithFlags(GraphExec** out, Graph* graph, unsigned long long flags) {
    return call("cuGraphInstantiateWithFlags", Need::context, [&](Machine& m, Lock&) -> int {
        if (m.graphs.count(graph) == 0) return kInvalidHandle;
        if (flags != 0) return kInvalidValue;
        bool kernels = true;
        for (const Node& node : graph->nodes) kernels &= node.kernel;
        auto exec = std::make_shared<GraphExec>(GraphExec{current_context(), graph->nodes, kernels});
        *out = exec.get();
        m.execs[*out] = exec;
        return kOk;
    }, graph, u64{flags});
}

STANDIN_API int cuGraphUpload(GraphExec* exec, void* handle) {
    return call("cuGraphUpload", Need::context, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        if (stream->capturing) return kCaptureUnsupported;
        return m.execs.count(exec) == 0 ? kInvalidHandle : kOk;
    }, exec, handle);
}

STANDIN_API int cuGraphLaunch(GraphExec* handle, void* stream_handle) {
    return call("cuGraphLaunch", Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        const int code = own_stream(m, stream_handle, &stream);
        if (code != kOk) return code;
        auto found = m.execs.find(handle);
        if (found == m.execs.end() || handle->context != stream->context) return kInvalidHandle;
        auto exec = found->second;
        const u64 before = exec->launched++;
        const size_t all = exec->nodes.size(), each = exec->kernels ? all : 1;
        for (size_t first = 0; first < all; first += each) {
            const std::vector<Node> nodes(exec->nodes.begin() + first, exec->nodes.begin() + first + each);
            const int code = enqueue(lock, stream, [exec, nodes, before, last = first + each == all, next = size_t{0}]() mutable {
                if (exec->finished < before) return Step::waits;
                for (; next < nodes.size(); next++) {
                    const Step step = nodes[next].command();
                    if (step != Step::done) return step;
                }
                exec->finished += last;
                return Step::done;
            });
            if (code != kOk) return code;
        }
        if (all == 0) exec->finished++;
        return kOk;
    }, handle, stream_handle);
}

STANDIN_API int cuGraphExecDestroy(GraphExec* exec) {
    return call("cuGraphExecDestroy", Need::init, [&](Machine& m, Lock&) -> int {
        return m.execs.erase(exec) == 0 ? kInvalidHandle : kOk;
    }, exec);
}

STANDIN_API int cuEventCreate(Event** out, unsigned flags) {
    return call("cuEventCreate", Need::context, [&](Machine& m, Lock&) -> int {
        auto event = std::make_shared<Event>();
        event->context = current_context();
        event->timed = (flags & 2) == 0;  // CU_EVENT_DISABLE_TIMING
        *out = event.get();
        m.events[*out] = event;
        return kOk;
    }, u64{flags});
}

STANDIN_API int cuEventDestroy_v2(Event* event) {
    return call("cuEventDestroy_v2", Need::init, [&](Machine& m, Lock&) -> int {
        return m.events.erase(event) == 0 ? kInvalidHandle : kOk;
    }, event);
}

STANDIN_API int cuEventRecord(Event* event, void* handle) {
    return call("cuEventRecord", Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        auto found = m.events.find(event);
        if (found == m.events.end() || event->context != stream->context) return kInvalidHandle;
        const u64 mark = ++event->recorded;
        return enqueue(lock, stream, [mark, event = found->second] {
            if (event->reached < mark) event->reached = mark;
            event->at = std::chrono::steady_clock::now();
            return Step::done;
        });
    }, event, handle);
}

STANDIN_API int cuEventElapsedTime(float* ms, Event* start, Event* end) {
    return call("cuEventElapsedTime", Need::init, [&](Machine& m, Lock&) -> int {
        for (Event* event : {start, end}) {
            if (m.events.count(event) == 0 || !event->timed) return kInvalidHandle;
            if (event->reached < event->recorded) return kNotReady;
        }
        *ms = std::chrono::duration<float, std::milli>(end->at - start->at).count();
        return kOk;
    }, start, end);
}

STANDIN_API int cuEventQuery(Event* event) {
    return call("cuEventQuery", Need::init, [&](Machine& m, Lock&) -> int {
        if (m.events.count(event) == 0) return kInvalidHandle;
        return event->reached >= event->recorded ? kOk : kNotReady;
    }, event);
}

STANDIN_API int cuStreamWaitEvent(void* handle, Event* event, unsigned flags) {
    return call("cuStreamWaitEvent", Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        auto found = m.events.find(event);
        if (found == m.events.end()) return kInvalidHandle;
        const u64 mark = event->recorded;
        return enqueue(lock, stream, [mark, event = found->second] { return event->reached >= mark ? Step::done : Step::waits; });
    }, handle, event, u64{flags});
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
        // Other streams run between two rows.
        return enqueue(lock, stream, [=, row = size_t{0}]() mutable {
            memcpy(target.at + row * c.dst_pitch, source.at + row * c.src_pitch, c.width);
            return ++row < c.height ? Step::running : Step::done;
        });
    }, bits(copy->dst_device), bits(copy->src_host), u64{copy->width}, u64{copy->height}, handle);
}

STANDIN_API int cuMemsetD8Async(u64 to, unsigned char value, size_t len, void* handle) {
    return call("cuMemsetD8Async", Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        Span target;
        int code = own_stream(m, handle, &stream);
        if (code != kOk || len == 0) return code;
        if ((code = span(m, to, len, true, &target)) != kOk) return code;
        return enqueue(lock, stream, [=] {
            memset(target.at, value, len);
            return Step::done;
        });
    }, to, u64{value}, u64{len}, handle);
}
