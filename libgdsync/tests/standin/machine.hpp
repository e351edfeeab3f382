// The state of the stand-in: contexts, streams, memory, the log of calls, and the switches of a
// test.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "abi.hpp"

namespace standin {

struct Context;
using Entry = void (*)(const void*);

// The result of an attempt to run the command at the head of a stream.
enum class Step {
    done,
    waits,    // stalled, and holds a hardware channel
    runs,     // a kernel that has not ended
    running,  // the same, and it made progress
};

using Command = std::function<Step()>;

// A command of a graph.
struct Node {
    Command command;
    bool kernel;
};

struct Stream {
    Context* context;
    u64 id;
    // The hardware queue, for HIP.
    unsigned hardware = 0;
    std::deque<Command> queue;
    u64 submitted = 0, finished = 0;
    bool holds = false, runs = false, destroyed = false;
    // A running capture: its mode, its thread, its commands.
    bool capturing = false, invalidated = false;
    int capture_mode = 0;
    u64 capture_thread = 0;
    std::vector<Node> captured;
};

// A captured graph. The tests read the number of its commands.
struct Graph {
    u64 count;
    std::vector<Node> nodes;
};

// A graph for launches, which run one after the other.
struct GraphExec {
    Context* context;
    std::vector<Node> nodes;
    // A stream holds a graph of kernels as one command, any other as one command for each node.
    bool kernels;
    u64 launched = 0, finished = 0;
};

// Number of streams for which a context makes room at a time.
constexpr u64 kStreamBlock = 34;

struct Context {
    int device;
    u64 id;
    bool primary;
    int retained = 0;
    bool alive = true;
    // Streams that hold a channel.
    unsigned waiting = 0;
    u64 room = kStreamBlock;
    std::vector<std::unique_ptr<Stream>> streams;
    Stream* legacy = nullptr;
    // HIP: the devices whose memory this one may access.
    std::set<int> peers;
};

struct Event {
    Context* context;
    // Records enqueued, and the last one that was reached.
    u64 recorded = 0, reached = 0;
    bool timed = false;
    std::chrono::steady_clock::time_point at;
};

struct Module;

// Memory without an address yet.
struct Physical {
    int file;
    u64 len;
    bool fine;
};

enum class Kind { device, host, registered, ipc, mapped };

struct Range {
    u64 base, len;
    Kind kind;
    Context* context;
    // Usable from every context.
    bool portable;
    // The stand-in's own address of it.
    char* alias;
    u64 id;
    u32 flags;
    int references = 1;
    bool managed = false;
    // HIP: fine-grained memory, and memory of a signal.
    bool fine = false, signal = false;
};

// Calls in the order in which they were made.
struct Log {
    bool on = false;
    u64 first = 0;
    std::vector<std::string> lines;

    u64 begin(const char* name, const u64* args, size_t count);
    void end(u64 line, int code);
    void note(const std::string& line);
};

// A kernel of a module: its compiled twin, and the size of its parameters.
struct Function {
    std::string name;
    Module* module;
    Entry entry;
    u64 params;
    bool loaded;
};

struct Module {
    Context* context;
    // PTX, or the kernels of a code object with the size of their parameters.
    std::string text;
    std::map<std::string, u64> kernels;
    std::map<std::string, Function> functions;
};

struct Fault {
    int code;
    u64 after;
};

struct Machine {
    std::mutex mutex;
    // Calls that wait for the mutex: the worker lets them pass.
    std::atomic<int> callers{0};
    // The worker made progress, or the device was lost.
    std::condition_variable changed;
    // There is work for a sleeping worker.
    std::condition_variable work;
    bool worker = false;
    u64 passes = 0;

    bool initialised = false;
    // Settings of the process: STANDIN_VERSION, STANDIN_DEVICES, and STANDIN_PEERS, whether the
    // devices have access to each other.
    int version, devices;
    bool peers;
    unsigned channels = 8;
    std::map<int, int> attributes;

    std::vector<Context*> primary;
    std::set<Context*> contexts;
    std::map<Event*, std::shared_ptr<Event>> events;
    std::map<Module*, std::unique_ptr<Module>> modules;
    std::map<u64, Physical> physical;
    // Reserved address space: address, length.
    std::map<u64, u64> reserved;
    std::set<Graph*> graphs;
    std::map<GraphExec*, std::shared_ptr<GraphExec>> execs;
    std::map<u64, Range> memory;
    std::map<u64, u64> io_memory;
    u64 next_id = 1;
    u64 allocated = 0;

    int lost = 0;
    int lose_code = 0;
    u64 lose_after = 0;
    std::map<std::string, Fault> faults;
    Log log;
    u64 operations = 0;
    // Calls that blocked behind waiting streams, as lines `thread function`.
    std::vector<std::string> blocked;
    // Enqueues that blocked on a full stream.
    u64 full = 0;
    // Streams that are destroyed and have run everything: kept, so that no address is given twice.
    std::vector<std::unique_ptr<Stream>> retired;
    // Calls that named a destroyed stream, as lines `thread function`.
    std::vector<std::string> strays;
    // Mappings that running operations may still use; removed when no work is left.
    std::vector<std::pair<char*, u64>> unmapped;

    Machine();
    int attribute(int which) const;
    u32 shared_per_block() const { return static_cast<u32>(attribute(VENDOR(kMaxSharedPerBlock, kHipMaxSharedPerBlock))); }
    // The flag with which an IPC handle is opened: in HIP 5 it is 0.
    unsigned ipc_flag() const { return VENDOR(1, version < 60000000 ? 0 : 1); }
    void lose(int code);
    Stream* stream(void* handle, Context* current);
    void retire(std::unique_ptr<Stream> stream);
    const Range* find(u64 address, u64 len) const;
    const Range* overlapping(u64 begin, u64 end) const;
};

Machine& machine();
u64 thread_id();

// What a call requires of the state.
enum class Need { nothing, device, init, context };

Context* make_context(Machine& m, int device, bool primary);

// Each driver has these. The calling thread's context; whether the call needs more than that the
// driver is initialised; whether a capture forbids the call; the value of a device attribute that no
// test has set; whether other streams keep the stream from running.
Context* current_context();
int state_refusal(Machine& m, Need need);
bool unsafe_in_capture(const std::string& name);
int default_attribute(int which);
bool stalls(const Machine& m, const Stream& stream);

class Lock : public std::unique_lock<std::mutex> {
  public:
    Lock();
};

inline u64 bits(u64 v) { return v; }
template <class T>
u64 bits(T* v) {
    return reinterpret_cast<u64>(v);
}

int refusal(const char* name, Need need);

// The function that the calling thread is in.
const char*& current_call();

// The capture mode of the calling thread: the calls that it may make while streams are captured.
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
int& capture_mode();

// Every call of the table: locked, logged, refused if a test or the state requires it.
template <class Body, class... Args>
int call(const char* name, Need need, Body body, Args... args) {
    Lock lock;
    Machine& m = machine();
    const u64 values[] = {bits(args)..., 0};
    const u64 line = m.log.begin(name, values, sizeof...(args));
    current_call() = name;
    int code = refusal(name, need);
    if (code == kOk) code = body(m, lock);
    m.log.end(line, code);
    return code;
}

// Streams and their one worker, engine.cpp. The number of commands that a stream holds: HIP's
// hardware queue has 16,384 packets, of which a memory operation takes two at most.
#ifdef STANDIN_HIP
constexpr u64 kStreamBound = 8192;
#else
constexpr u64 kStreamBound = 1020;
#endif
Stream* make_stream(Context* context);
int enqueue(Lock& lock, Stream* stream, Command command, bool kernel = false);
// Returns once everything enqueued in the context so far has run.
int settle(Lock& lock, const char* name, Context* context);
int settle_stream(Lock& lock, const char* name, Stream* stream);
int settle_until(Lock& lock, const char* name, const std::function<bool()>& done);

// Pinned memory, pinned.cpp.
void* host_alloc(u64 len);
void host_free(void* at, u64 len);
// Whether memory of the host can be pinned.
int pinnable(const Machine& m, u64 begin, u64 end, bool io);

// Memory of the device, arena.cpp: the CPU can reach it only through the stand-in.
inline u64 pages(u64 len) { return (len + 4095) / 4096 * 4096; }
bool arena_alloc(u64 len, u64* address, char** alias);
void arena_free(u64 address, u64 len);
void arena_open(bool open);
int arena_file();
u64 arena_offset(u64 address);

// Kernels, kernel.cpp.

Command grid(Entry entry, const u32 blocks[3], const u32 threads[3], u32 shared, std::vector<char> params);

}  // namespace standin
