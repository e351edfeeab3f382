// The state itself, the log, and the checks whether a call is allowed.
#include "machine.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <sys/syscall.h>
#include <unistd.h>

namespace standin {
namespace {

int told(const char* variable, int otherwise) {
    const char* text = getenv(variable);
    return text != nullptr ? atoi(text) : otherwise;
}

// Whether a capture forbids the call; the attempt invalidates the capture.
bool spoils_capture(Machine& m, const char* name) {
    if (capture_mode() == kCaptureRelaxed || !unsafe_in_capture(name)) return false;
    bool spoilt = false;
    for (Context* context : m.contexts) {
        for (auto& stream : context->streams) {
            if (!stream->capturing || stream->capture_mode == kCaptureRelaxed) continue;
            const bool other = stream->capture_mode == kCaptureGlobal && capture_mode() == kCaptureGlobal;
            if (!other && stream->capture_thread != thread_id()) continue;
            stream->invalidated = true;
            spoilt = true;
        }
    }
    return spoilt;
}

}  // namespace

int& capture_mode() {
    static thread_local int mode = kCaptureGlobal;
    return mode;
}

Machine::Machine() : version(told("STANDIN_VERSION", VENDOR(13000, 60443483))), devices(told("STANDIN_DEVICES", 1)), peers(told("STANDIN_PEERS", 1) != 0) {}

// Every program that uses the stand-in is a test: it fails if it has named a destroyed stream, for
// which a driver's behaviour is undefined.
static void accuse() {
    Machine& m = machine();
    if (m.strays.empty()) return;
    fprintf(stderr, "stand-in: %zu calls named a destroyed stream (thread function):\n", m.strays.size());
    for (const std::string& line : m.strays) fprintf(stderr, "  %s\n", line.c_str());
    fflush(stderr);
    _exit(86);
}

Machine& machine() {
    // Never destroyed: the worker may outlive main().
    static Machine* m = [] {
        atexit(accuse);
        return new Machine;
    }();
    return *m;
}

const char*& current_call() {
    static thread_local const char* name = "?";
    return name;
}

u64 thread_id() { return static_cast<u64>(syscall(SYS_gettid)); }

Lock::Lock() : std::unique_lock<std::mutex>(machine().mutex, std::defer_lock) {
    Machine& m = machine();
    m.callers++;
    lock();
    m.callers--;
}

u64 Log::begin(const char* name, const u64* args, size_t count) {
    if (!on) return ~0ull;
    std::string line = std::to_string(thread_id()) + " " + name;
    char text[32];
    for (size_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, " %#" PRIx64, args[i]);
        line += text;
    }
    lines.push_back(line);
    return first + lines.size() - 1;
}

void Log::end(u64 line, int code) {
    if (code == kOk || line == ~0ull || line < first || line - first >= lines.size()) return;
    lines[line - first] += " = " + std::to_string(code);
}

void Log::note(const std::string& line) {
    if (on) lines.push_back("  " + line);
}

int refusal(const char* name, Need need) {
    Machine& m = machine();
    auto fault = m.faults.find(name);
    if (fault != m.faults.end()) {
        if (fault->second.after == 0) return fault->second.code;
        fault->second.after--;
    }
    if (need == Need::nothing) return kOk;
    if (m.lost != 0) return m.lost;
    if (need == Need::device) return kOk;
    if (m.initialised && spoils_capture(m, name)) return kCaptureUnsupported;
    return state_refusal(m, need);
}

int Machine::attribute(int which) const {
    auto set = attributes.find(which);
    if (set != attributes.end()) return set->second;
    return default_attribute(which);
}

Context* make_context(Machine& m, int device, bool primary) {
    auto* context = new Context{};
    context->device = device;
    context->id = m.next_id++;
    context->primary = primary;
    context->legacy = make_stream(context);
    m.contexts.insert(context);
    return context;
}

void Machine::lose(int code) {
    lost = code;
    changed.notify_all();
}

Stream* Machine::stream(void* handle, Context* current) {
    // Null and the two special handles: the streams that every context has.
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return current != nullptr ? current->legacy : nullptr;
    for (Context* context : contexts) {
        for (auto& stream : context->streams) {
            if (stream.get() != handle) continue;
            if (!stream->destroyed) return stream.get();
            strays.push_back(std::to_string(thread_id()) + " " + current_call());
            return nullptr;
        }
    }
    for (auto& stream : retired) {
        if (stream.get() == handle) strays.push_back(std::to_string(thread_id()) + " " + current_call());
    }
    return nullptr;
}

void Machine::retire(std::unique_ptr<Stream> stream) {
    stream->queue.clear();
    retired.push_back(std::move(stream));
}

const Range* Machine::find(u64 address, u64 len) const {
    auto after = memory.upper_bound(address);
    if (after == memory.begin()) return nullptr;
    const Range& range = std::prev(after)->second;
    const u64 offset = address - range.base;
    return offset < range.len && len <= range.len - offset ? &range : nullptr;
}

const Range* Machine::overlapping(u64 begin, u64 end) const {
    for (auto& [base, range] : memory) {
        if (base < end && begin < base + range.len) return &range;
    }
    return nullptr;
}

}  // namespace standin
