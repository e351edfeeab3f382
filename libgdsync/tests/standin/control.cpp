// The state that tests read and switch.
#include <cstring>

#include "machine.hpp"

using namespace standin;

namespace {

size_t give(const std::vector<std::string>& lines, char* out, size_t len) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    if (out != nullptr && len > 0) {
        const size_t n = text.size() < len - 1 ? text.size() : len - 1;
        memcpy(out, text.data(), n);
        out[n] = '\0';
    }
    return text.size();
}

}  // namespace

// Starts with an empty log, or stops.
STANDIN_API void standin_record(bool on) {
    Lock lock;
    Log& log = machine().log;
    log.on = on;
    if (on) {
        log.first += log.lines.size();
        log.lines.clear();
    }
}

// The log: `thread function arguments = error`, then indented lines with the call's contents.
// Returns the length of the whole log.
STANDIN_API size_t standin_calls(char* out, size_t len) {
    Lock lock;
    return give(machine().log.lines, out, len);
}

// The function returns this code after so many more successful calls; 0 ends that.
STANDIN_API void standin_fail(const char* name, int code, u64 after) {
    Lock lock;
    if (code == 0) {
        machine().faults.erase(name);
    } else {
        machine().faults[name] = Fault{code, after};
    }
}

// The CPU address of the device's `address`: code that maps device memory calls it.
STANDIN_API char* standin_alias(u64 address) {
    Lock lock;
    const Range* range = machine().find(address, 1);
    return range == nullptr ? nullptr : range->alias + (address - range->base);
}

// Loses the device, now or after so many more memory operations have run.
STANDIN_API void standin_lose_device(int code, u64 after) {
    Lock lock;
    Machine& m = machine();
    if (after == 0) {
        m.lose(code);
    } else {
        m.lose_code = code;
        m.lose_after = after;
    }
}

STANDIN_API void standin_set_attribute(int attribute, int value) {
    Lock lock;
    machine().attributes[attribute] = value;
}

// Makes [at, at + len) I/O memory, or ordinary memory again if `len` is 0.
STANDIN_API void standin_io_memory(void* at, size_t len) {
    Lock lock;
    if (len == 0) {
        machine().io_memory.erase(bits(at));
    } else {
        machine().io_memory[bits(at)] = len;
    }
}

// Calls that blocked behind waiting streams: `thread function`, a line each.
STANDIN_API size_t standin_blocked(char* out, size_t len) {
    Lock lock;
    return give(machine().blocked, out, len);
}

// Calls that named a destroyed stream so far: `thread function`, a line each. The call clears them,
// so that they do not fail the process at its end.
STANDIN_API size_t standin_strays(char* out, size_t len) {
    Lock lock;
    Machine& m = machine();
    const size_t length = give(m.strays, out, len);
    if (out != nullptr) m.strays.clear();
    return length;
}

// Enqueues that blocked on a full stream.
STANDIN_API u64 standin_full() {
    Lock lock;
    return machine().full;
}

// Memory operations that have run.
STANDIN_API u64 standin_operations() {
    Lock lock;
    return machine().operations;
}

// Streams that wait and hold a channel.
STANDIN_API u64 standin_waiting() {
    Lock lock;
    u64 n = 0;
    for (Context* context : machine().contexts) n += context->waiting;
    return n;
}

// Live objects, a line `name number` each.
STANDIN_API size_t standin_live(char* out, size_t len) {
    Lock lock;
    Machine& m = machine();
    u64 kinds[5] = {}, contexts = 0, streams = 0, commands = 0;
    for (auto& [base, range] : m.memory) kinds[static_cast<int>(range.kind)]++;
    for (Context* context : m.contexts) {
        contexts += context->alive;
        streams += context->streams.size();
        // The legacy stream does not belong to the library.
        streams -= context->alive;
        for (auto& stream : context->streams) commands += stream->queue.size();
    }
    auto line = [](const char* name, u64 n) { return std::string(name) + " " + std::to_string(n); };
    return give({line("device", kinds[0]), line("host", kinds[1]), line("registered", kinds[2]), line("ipc", kinds[3]),
                 line("mapped", kinds[4]), line("physical", m.physical.size()), line("reserved", m.reserved.size()),
                 line("contexts", contexts), line("streams", streams), line("commands", commands), line("events", m.events.size()),
                 line("modules", m.modules.size()), line("graphs", m.graphs.size() + m.execs.size())},
                out, len);
}
