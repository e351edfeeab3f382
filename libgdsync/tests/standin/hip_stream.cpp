// HIP's streams and copies, and its memory operations: waits with masks, comparisons that are not
// cyclic, batches without an order, and fine-grained memory only.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "stream.hpp"

using namespace standin;

namespace {

// Whether waits need the memory of a signal, as in releases before 6.
bool signals_only(const Machine& m) {
    const char* text = getenv("GPU_STREAMOPS_CP_WAIT");
    return m.version < 60000000 || (text != nullptr && atoi(text) != 0);
}

// The stand-in's address of a word that a stream of `context` may use. Real devices accept
// coarse-grained memory, whose stores another device or the CPU may never see.
int word(const Machine& m, const Context* context, u64 address, u64 len, bool wait, char** out) {
    if (address == 0 || address % len != 0) return kInvalidValue;
    const Range* range = m.find(address, len);
    if (range == nullptr || !range->fine) return kInvalidValue;
    if (wait && signals_only(m) && !range->signal) return kInvalidValue;
    const bool foreign = range->kind == Kind::device && range->context != context;
    if (foreign && context->peers.count(range->context->device) == 0) return kInvalidValue;
    return (*out = usable(*range, context, address)) == nullptr ? kInvalidValue : kOk;
}

struct Operation {
    bool wait, wide;
    u32 condition;
    u64 value, mask;
    char* at;

    u64 load() const {
        return wide ? __atomic_load_n(reinterpret_cast<u64*>(at), __ATOMIC_ACQUIRE) : __atomic_load_n(reinterpret_cast<u32*>(at), __ATOMIC_ACQUIRE);
    }

    // Whether the stream may continue.
    bool run() const {
        if (!wait) {
            if (wide) {
                __atomic_store_n(reinterpret_cast<u64*>(at), value, __ATOMIC_RELEASE);
            } else {
                __atomic_store_n(reinterpret_cast<u32*>(at), static_cast<u32>(value), __ATOMIC_RELEASE);
            }
            return true;
        }
        const u64 now = load() & mask, all = wide ? ~u64{0} : u64{0xffffffff};
        switch (condition) {
            case kWaitGeq: return now >= value;
            case kWaitEq: return now == value;
            case kWaitAnd: return (now & value) != 0;
            default: return (~(now | (value & mask)) & all) != 0;
        }
    }
};

int prepare(const Machine& m, const Context* context, u32 code, u64 address, u64 value, u32 flags, u64 mask, Operation* out) {
    const bool wait = code == kWaitValue32 || code == kWaitValue64, wide = code == kWaitValue64 || code == kWriteValue64;
    if (!wait && code != kWriteValue32 && code != kWriteValue64) return kInvalidValue;
    if (flags > (wait ? u32{kWaitNor} : 0)) return kInvalidValue;
    const u64 all = wide ? ~u64{0} : u64{0xffffffff};
    *out = Operation{wait, wide, flags, value & all, mask & all, nullptr};
    return word(m, context, address, wide ? 8 : 4, wait, &out->at);
}

void note(Machine& m, u32 code, u64 address, u64 value, u32 flags, u64 mask) {
    if (!m.log.on) return;
    const bool wait = code == kWaitValue32 || code == kWaitValue64, wide = code == kWaitValue64 || code == kWriteValue64;
    char text[160];
    int n = snprintf(text, sizeof text, "%s%d %#llx %#llx flags %#x", wait ? "wait" : "write", wide ? 64 : 32,
                     static_cast<unsigned long long>(address), static_cast<unsigned long long>(value), flags);
    if (wait) snprintf(text + n, sizeof text - static_cast<size_t>(n), " mask %#llx", static_cast<unsigned long long>(mask));
    m.log.note(text);
}

int single(const char* name, void* handle, u32 code, u64 address, u64 value, u32 flags, u64 mask) {
    return call(name, Need::context, [&](Machine& m, Lock& lock) -> int {
        Stream* stream;
        int result = own_stream(m, handle, &stream);
        if (result != kOk) return result;
        note(m, code, address, value, flags, mask);
        Operation operation;
        result = prepare(m, stream->context, code, address, value, flags, mask, &operation);
        if (result != kOk) return result;
        // A capture does not record it: it is enqueued at once.
        const bool capturing = std::exchange(stream->capturing, false);
        result = enqueue(lock, stream, [operation, ran = false]() mutable {
            if (ran) return Step::done;
            if (!operation.run()) return Step::waits;
            ran = true;
            return one_operation(machine()) ? Step::done : Step::runs;
        });
        stream->capturing = capturing;
        return result;
    }, handle, address, value, u64{flags}, mask);
}

// The queue with the fewest streams, of those from `first` on.
unsigned hardware_queue(const Machine& m, const Context& context, unsigned first) {
    std::vector<unsigned> users(m.channels);
    for (auto& stream : context.streams) {
        const unsigned at = stream->hardware - first;
        if (stream.get() != context.legacy && !stream->destroyed && at < m.channels) users[at]++;
    }
    unsigned best = 0;
    for (unsigned i = 1; i < m.channels; i++) {
        if (users[i] < users[best]) best = i;
    }
    return first + best;
}

// Streams of each priority have queues of their own.
int create_stream(Machine& m, Stream** out, unsigned flags, int priority) {
    if (out == nullptr || flags > 1) return kInvalidValue;
    Context* context = current_context();
    const unsigned level = priority < 0 ? 1 : 0;
    // The default stream has a queue of its own.
    context->legacy->hardware = 2 * m.channels;
    const unsigned hardware = hardware_queue(m, *context, level * m.channels);
    *out = make_stream(context);
    (*out)->hardware = hardware;
    return kOk;
}

}  // namespace

STANDIN_API int hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call("hipDeviceGetStreamPriorityRange", Need::init, [&](Machine&, Lock&) -> int {
        *least = 1;
        *greatest = -1;
        return kOk;
    });
}

STANDIN_API int hipStreamCreateWithFlags(Stream** out, unsigned flags) {
    return call("hipStreamCreateWithFlags", Need::context, [&](Machine& m, Lock&) -> int {
        return create_stream(m, out, flags, 0);
    }, u64{flags});
}

STANDIN_API int hipStreamCreateWithPriority(Stream** out, unsigned flags, int priority) {
    return call("hipStreamCreateWithPriority", Need::context, [&](Machine& m, Lock&) -> int {
        return create_stream(m, out, flags, priority);
    }, u64{flags}, u64{static_cast<unsigned>(priority)});
}

// Blocks until the stream's work has ended.
STANDIN_API int hipStreamDestroy(void* handle) {
    return call("hipStreamDestroy", Need::init, [&](Machine& m, Lock& lock) -> int {
        Stream* stream = m.stream(handle, nullptr);
        if (stream == nullptr) return kNoStream;
        stream->destroyed = true;
        auto& streams = stream->context->streams;
        if (!stream->queue.empty()) {
            // The worker removes a destroyed stream when it is empty.
            const u64 id = stream->id;
            return settle_until(lock, "hipStreamDestroy", [&streams, id] {
                for (auto& other : streams) {
                    if (other->id == id) return false;
                }
                return true;
            });
        }
        for (size_t i = 0; i < streams.size(); i++) {
            if (streams[i].get() != stream) continue;
            m.retire(std::move(streams[i]));
            streams.erase(streams.begin() + static_cast<long>(i));
            break;
        }
        return kOk;
    }, handle);
}

STANDIN_API int hipStreamGetDevice(void* handle, int* device) {
    return call("hipStreamGetDevice", Need::init, [&](Machine& m, Lock&) -> int {
        Stream* stream;
        const int code = any_stream(m, handle, &stream);
        if (code == kOk) *device = stream->context->device;
        return code;
    }, handle);
}

STANDIN_API int hipStreamWaitValue32(void* stream, u64 address, u32 value, u32 flags, u32 mask) {
    return single("hipStreamWaitValue32", stream, kWaitValue32, address, value, flags, mask);
}

STANDIN_API int hipStreamWaitValue64(void* stream, u64 address, u64 value, u32 flags, u64 mask) {
    return single("hipStreamWaitValue64", stream, kWaitValue64, address, value, flags, mask);
}

STANDIN_API int hipStreamWriteValue32(void* stream, u64 address, u32 value, u32 flags) {
    return single("hipStreamWriteValue32", stream, kWriteValue32, address, value, flags, 0);
}

STANDIN_API int hipStreamWriteValue64(void* stream, u64 address, u64 value, u32 flags) {
    return single("hipStreamWriteValue64", stream, kWriteValue64, address, value, flags, 0);
}

enum : int { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };

STANDIN_API int hipMemcpyAsync(u64 to, u64 from, size_t len, int kind, void* stream) {
    if (kind < 0 || kind > kDefault) return kInvalidMemcpyDirection;
    const bool to_device = kind == kHostToDevice || kind == kDeviceToDevice, from_device = kind == kDeviceToHost || kind == kDeviceToDevice;
    return copy("hipMemcpyAsync", to, from, len, stream, to_device, from_device);
}

STANDIN_API int hipMemcpyHtoDAsync(u64 to, u64 from, size_t len, void* stream) {
    return copy("hipMemcpyHtoDAsync", to, from, len, stream, true, false);
}

STANDIN_API int hipMemcpyDtoHAsync(u64 to, u64 from, size_t len, void* stream) {
    return copy("hipMemcpyDtoHAsync", to, from, len, stream, false, true);
}

