// Streams, run in order by one worker thread. A waiting stream holds a hardware channel of its
// context, which may stall others: that differs between the drivers.
#include <sys/mman.h>

#include <chrono>
#include <thread>

#include "machine.hpp"

namespace standin {
namespace {

// Commands that one stream runs before the next one has its turn.
constexpr int kTurn = 64;

bool run(Machine& m, Stream& stream) {
    Context& context = *stream.context;
    bool progress = false;
    for (int i = 0; i < kTurn && !stream.queue.empty() && m.lost == 0; i++) {
        if (!stream.holds && !stream.runs && stalls(m, stream)) break;
        const Step step = stream.queue.front()();
        if (step == Step::waits) {
            if (!stream.holds) context.waiting++;
            stream.holds = true;
            break;
        }
        if (stream.holds) context.waiting--;
        stream.holds = false;
        stream.runs = step != Step::done;
        progress |= step != Step::runs;
        if (stream.runs) break;
        stream.queue.pop_front();
        stream.finished++;
    }
    return progress;
}

// One pass over all streams. Returns whether any made progress, and whether any has work left.
void pass(Machine& m, bool* progress, bool* left) {
    for (Context* context : m.contexts) {
        auto& streams = context->streams;
        for (size_t i = 0; i < streams.size();) {
            *progress |= run(m, *streams[i]);
            *left |= !streams[i]->queue.empty();
            if (streams[i]->destroyed && streams[i]->queue.empty()) {
                m.retire(std::move(streams[i]));
                streams.erase(streams.begin() + static_cast<long>(i));
            } else {
                i++;
            }
        }
    }
    if (!*left) {
        for (auto& [at, len] : m.unmapped) munmap(at, len);
        m.unmapped.clear();
    }
    m.passes++;
    m.changed.notify_all();
}

[[noreturn]] void work() {
    Machine& m = machine();
    int idle = 0;
    for (;;) {
        while (m.callers.load() > 0) std::this_thread::yield();
        std::unique_lock<std::mutex> lock(m.mutex);
        bool progress = false, left = false;
        pass(m, &progress, &left);
        idle = progress ? 0 : idle + 1;
        if (!left || m.lost != 0) {
            m.work.wait(lock);
        } else if (idle > 200) {
            m.work.wait_for(lock, std::chrono::microseconds(50));
        } else if (!progress) {
            lock.unlock();
            std::this_thread::yield();
        }
    }
}

template <class Done>
int block(Lock& lock, const char* name, Done done) {
    Machine& m = machine();
    // A call does not block for work that only waits for its turn.
    const u64 start = m.passes;
    m.work.notify_all();
    m.changed.wait(lock, [&] { return m.lost != 0 || done() || m.passes >= start + 2; });
    if (m.lost == 0 && !done()) {
        m.blocked.push_back(std::to_string(thread_id()) + " " + name);
        m.changed.wait(lock, [&] { return m.lost != 0 || done(); });
    }
    return m.lost;
}

}  // namespace

Stream* make_stream(Context* context) {
    auto stream = std::make_unique<Stream>();
    stream->context = context;
    stream->id = machine().next_id++;
    context->streams.push_back(std::move(stream));
    return context->streams.back().get();
}

int enqueue(Lock& lock, Stream* stream, Command command, bool kernel) {
    Machine& m = machine();
    if (stream->capturing) {
        stream->captured.push_back({std::move(command), kernel});
        return kOk;
    }
    if (stream->queue.size() >= kStreamBound) {
        m.work.notify_all();
        const u64 start = m.passes;
        auto room = [&] { return stream->queue.size() < kStreamBound; };
        m.changed.wait(lock, [&] { return m.lost != 0 || room() || m.passes >= start + 2; });
        if (m.lost == 0 && !room()) {
            m.full++;
            m.changed.wait(lock, [&] { return m.lost != 0 || room(); });
        }
        if (m.lost != 0) return m.lost;
    }
    stream->queue.push_back(std::move(command));
    stream->submitted++;
    if (!m.worker) {
        m.worker = true;
        std::thread(work).detach();
    }
    m.work.notify_all();
    return kOk;
}

int settle(Lock& lock, const char* name, Context* context) {
    if (context == nullptr) return kOk;
    std::map<u64, u64> marks;
    for (auto& stream : context->streams) marks[stream->id] = stream->submitted;
    // Streams may be created and destroyed meanwhile; a destroyed stream has run all its work.
    return block(lock, name, [&] {
        for (auto& stream : context->streams) {
            auto mark = marks.find(stream->id);
            if (mark != marks.end() && stream->finished < mark->second) return false;
        }
        return true;
    });
}

int settle_stream(Lock& lock, const char* name, Stream* stream) {
    const u64 mark = stream->submitted;
    return block(lock, name, [&] { return stream->finished >= mark; });
}

int settle_until(Lock& lock, const char* name, const std::function<bool()>& done) { return block(lock, name, done); }

}  // namespace standin
