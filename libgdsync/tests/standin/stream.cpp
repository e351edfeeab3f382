// Streams, events, copies and captures, as far as both drivers have them.
#include <cstring>

#include "stream.hpp"

using namespace standin;

namespace standin {

// The stream, if the calling thread may enqueue on it.
int own_stream(Machine& m, void* handle, Stream** out) {
    Stream* stream = m.stream(handle, current_context());
    if (stream == nullptr) return kNoStream;
    if (stream->context != current_context()) return kForeignStream;
    *out = stream;
    return kOk;
}

// The stream, which may be queried in any context and in none.
int any_stream(Machine& m, void* handle, Stream** out) {
    *out = m.stream(handle, current_context());
    // The streams that every context has are those of the current one.
    if (bits(handle) <= 2 && current_context() == nullptr) return kInvalidContext;
    return *out == nullptr ? kNoStream : kOk;
}

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

// Other streams run between two rows.
Command copy_rows(Span target, size_t target_pitch, Span source, size_t source_pitch, size_t width, size_t height) {
    return [=, row = size_t{0}]() mutable {
        memcpy(target.at + row * target_pitch, source.at + row * source_pitch, width);
        return ++row < height ? Step::running : Step::done;
    };
}

char* usable(const Range& range, const Context* context, u64 address) {
    const bool host = range.kind == Kind::host || range.kind == Kind::registered;
    if (host && !range.portable && range.context != context) return nullptr;
    if (range.kind == Kind::mapped && range.flags != kAccessReadWrite) return nullptr;
    return range.alias + (address - range.base);
}

bool one_operation(Machine& m) {
    m.operations++;
    if (m.lose_code == 0 || --m.lose_after != 0) return true;
    m.lose(m.lose_code);
    return false;
}

}  // namespace standin

STANDIN_API int VENDOR(cuStreamQuery, hipStreamQuery)(void* handle) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code != kOk) return code;
        // A captured stream has no state to query: the query invalidates the capture.
        stream->invalidated = stream->capturing;
        if (stream->capturing) return kCaptureUnsupported;
        return stream->queue.empty() ? kOk : kNotReady;
    }, handle);
}

STANDIN_API int VENDOR(cuStreamIsCapturing, hipStreamIsCapturing)(void* handle, int* status) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code == kOk) *status = !stream->capturing ? 0 : stream->invalidated ? 2 : 1;
        return code;
    }, handle);
}

STANDIN_API int VENDOR(cuStreamBeginCapture_v2, hipStreamBeginCapture)(void* handle, int mode) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
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

STANDIN_API int VENDOR(cuStreamEndCapture, hipStreamEndCapture)(void* handle, Graph** graph) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
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

STANDIN_API int VENDOR(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode)(int* mode) {
    return call(__func__, Need::init, [&](Machine&, Lock&) -> int {
        if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
        std::swap(*mode, capture_mode());
        return kOk;
    });
}

STANDIN_API int VENDOR(cuGraphDestroy, hipGraphDestroy)(Graph* graph) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        if (m.graphs.erase(graph) == 0) return kInvalidHandle;
        delete graph;
        return kOk;
    }, graph);
}

STANDIN_API int VENDOR(cuGraphGetNodes, hipGraphGetNodes)(Graph* graph, Node** nodes, size_t* count) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        if (m.graphs.count(graph) == 0) return kInvalidHandle;
        for (size_t i = 0; nodes != nullptr && i < *count; i++) nodes[i] = i < graph->nodes.size() ? &graph->nodes[i] : nullptr;
        if (nodes == nullptr || *count > graph->nodes.size()) *count = graph->nodes.size();
        return kOk;
    }, graph);
}

STANDIN_API int VENDOR(cuGraphNodeGetType, hipGraphNodeGetType)(Node* node, int* type) {
    return call(__func__, Need::init, [&](Machine&, Lock&) -> int {
        constexpr int kKernel = 0, kMemOps = 12;
        *type = node->kernel ? kKernel : kMemOps;
        return kOk;
    }, node);
}

STANDIN_API int VENDOR(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(GraphExec** out, Graph* graph, unsigned long long flags) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
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

STANDIN_API int VENDOR(cuGraphUpload, hipGraphUpload)(GraphExec* exec, void* handle) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        if (stream->capturing) return kCaptureUnsupported;
        return m.execs.count(exec) == 0 ? kInvalidHandle : kOk;
    }, exec, handle);
}

STANDIN_API int VENDOR(cuGraphLaunch, hipGraphLaunch)(GraphExec* handle, void* stream_handle) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
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

STANDIN_API int VENDOR(cuGraphExecDestroy, hipGraphExecDestroy)(GraphExec* exec) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        return m.execs.erase(exec) == 0 ? kInvalidHandle : kOk;
    }, exec);
}

STANDIN_API int VENDOR(cuEventCreate, hipEventCreateWithFlags)(Event** out, unsigned flags) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
        auto event = std::make_shared<Event>();
        event->context = current_context();
        event->timed = (flags & 2) == 0;  // without timing
        *out = event.get();
        m.events[*out] = event;
        return kOk;
    }, u64{flags});
}

STANDIN_API int VENDOR(cuEventDestroy_v2, hipEventDestroy)(Event* event) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        return m.events.erase(event) == 0 ? kInvalidHandle : kOk;
    }, event);
}

STANDIN_API int VENDOR(cuEventRecord, hipEventRecord)(Event* event, void* handle) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
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

STANDIN_API int VENDOR(cuEventElapsedTime, hipEventElapsedTime)(float* ms, Event* start, Event* end) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        for (Event* event : {start, end}) {
            if (m.events.count(event) == 0 || !event->timed) return kInvalidHandle;
            if (event->reached < event->recorded) return kNotReady;
        }
        *ms = std::chrono::duration<float, std::milli>(end->at - start->at).count();
        return kOk;
    }, start, end);
}

STANDIN_API int VENDOR(cuEventQuery, hipEventQuery)(Event* event) {
    return call(__func__, Need::init, [&](Machine& m, Lock&) -> int {
        if (m.events.count(event) == 0) return kInvalidHandle;
        return event->reached >= event->recorded ? kOk : kNotReady;
    }, event);
}

STANDIN_API int VENDOR(cuStreamWaitEvent, hipStreamWaitEvent)(void* handle, Event* event, unsigned flags) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        const int code = own_stream(m, handle, &stream);
        if (code != kOk) return code;
        auto found = m.events.find(event);
        if (found == m.events.end()) return kInvalidHandle;
        const u64 mark = event->recorded;
        return enqueue(lock, stream, [mark, event = found->second] { return event->reached >= mark ? Step::done : Step::waits; });
    }, handle, event, u64{flags});
}

STANDIN_API int VENDOR(cuMemsetD8Async, hipMemsetD8Async)(u64 to, unsigned char value, size_t len, void* handle) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
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
