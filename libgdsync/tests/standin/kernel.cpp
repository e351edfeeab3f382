// Kernels: the threads of a block are fibers, and this file implements the runtime functions of the
// device layer (softgpu.hpp declares them). Only the worker runs them.
#include <setjmp.h>
#include <ucontext.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <list>

#include "machine.hpp"
#include "softgpu.hpp"

namespace standin {
namespace {

// Threads of a warp.
constexpr u32 kWarp = VENDOR(32, 64);

constexpr size_t kStack = 64 << 10;
// Blocks that run in parallel.
constexpr size_t kResident = 8;

enum class State { ready, spins, sleeps, barrier, warp, ended };

struct Block;

struct Thread {
    softgpu_view view;
    Block* block;
    State state = State::ready;
    bool started = false;
    char* stack = nullptr;
    ucontext_t first;
    jmp_buf at;
    // The state of a wait: a barrier's kind and predicate, a warp operation, a time.
    u64 mask = 0;
    u32 kind = 0, lane = 0, width = 0;
    u64 value = 0, result = 0, deadline = 0;
};

struct Block {
    std::list<Thread> threads;
    std::map<const void*, std::vector<char>> shared;
    std::vector<char> dynamic;
    Entry entry;
    const void* params;
};

Thread* current = nullptr;
jmp_buf scheduler;
// Never destroyed: the worker may outlive main().
std::vector<char*>& stacks = *new std::vector<char*>;

u64 now() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<u64>(std::chrono::duration_cast<std::chrono::nanoseconds>(t).count());
}

char* take_stack() {
    if (stacks.empty()) {
        void* at = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) abort();
        return static_cast<char*>(at);
    }
    char* stack = stacks.back();
    stacks.pop_back();
    return stack;
}

void body() {
    Thread* self = current;
    self->block->entry(self->block->params);
    self->state = State::ended;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) void resume(Thread* thread) {
    current = thread;
    if (_setjmp(scheduler) != 0) return;
    if (thread->started) _longjmp(thread->at, 1);
    thread->started = true;
    thread->stack = take_stack();
    getcontext(&thread->first);
    thread->first.uc_stack.ss_sp = thread->stack;
    thread->first.uc_stack.ss_size = kStack;
    thread->first.uc_link = nullptr;
    makecontext(&thread->first, body, 0);
    setcontext(&thread->first);
}

__attribute__((noinline)) void suspend(State state) {
    Thread* self = current;
    self->state = state;
    if (_setjmp(self->at) == 0) _longjmp(scheduler, 1);
}

// Releases the threads when all are at the block's barrier.
bool open_barrier(Block& block) {
    u32 n = 0, set = 0;
    for (Thread& t : block.threads) {
        if (t.state == State::ended) continue;
        if (t.state != State::barrier) return false;
        n++;
        set += t.value != 0;
    }
    for (Thread& t : block.threads) {
        if (t.state == State::ended) continue;
        t.result = t.kind == SOFTGPU_BARRIER_OR ? set != 0 : t.kind == SOFTGPU_BARRIER_AND ? set == n : set;
        t.state = State::ready;
    }
    return n != 0;
}

// Releases the lanes of a warp when all are at a warp operation.
bool open_warp(std::vector<Thread*>& lanes, Thread& asks) {
    u64 ballot = 0;
    for (Thread* t : lanes) {
        if ((asks.mask >> t->view.lane & 1) == 0 || t->state == State::ended) continue;
        if (t->state != State::warp || t->mask != asks.mask || t->kind != asks.kind) return false;
        if (t->value != 0) ballot |= u64{1} << t->view.lane;
    }
    for (Thread* t : lanes) {
        if ((asks.mask >> t->view.lane & 1) == 0 || t->state == State::ended) continue;
        const u32 width = t->width == 0 ? kWarp : t->width, own = t->view.lane, first = own / width * width;
        u32 from = own;
        switch (t->kind) {
            case SOFTGPU_WARP_SHUFFLE: from = first + t->lane % width; break;
            case SOFTGPU_WARP_SHUFFLE_UP: from = own - first >= t->lane ? own - t->lane : own; break;
            case SOFTGPU_WARP_SHUFFLE_DOWN: from = own + t->lane < first + width ? own + t->lane : own; break;
            case SOFTGPU_WARP_SHUFFLE_XOR: from = (own ^ t->lane) < first + width ? own ^ t->lane : own; break;
            default: break;
        }
        t->result = t->kind == SOFTGPU_WARP_BALLOT ? ballot : from < lanes.size() ? lanes[from]->value : t->value;
    }
    for (Thread* t : lanes) {
        if ((asks.mask >> t->view.lane & 1) != 0 && t->state == State::warp) t->state = State::ready;
    }
    return true;
}

bool open_warps(Block& block) {
    bool opened = false;
    std::vector<Thread*> lanes;
    auto look = [&] {
        for (Thread* t : lanes) {
            if (t->state == State::warp) opened |= open_warp(lanes, *t);
        }
        lanes.clear();
    };
    for (Thread& t : block.threads) {
        if (t.view.lane == 0) look();
        lanes.push_back(&t);
    }
    look();
    return opened;
}

// Runs the block until all its threads wait. True if some thread did more than poll again.
bool run(Block& block) {
    bool progress = false;
    for (Thread& t : block.threads) {
        if (t.state == State::spins || (t.state == State::sleeps && now() >= t.deadline)) t.state = State::ready;
    }
    do {
        for (Thread& t : block.threads) {
            if (t.state != State::ready) continue;
            resume(&t);
            progress |= t.state != State::spins;
            if (t.state == State::ended && t.stack != nullptr) {
                stacks.push_back(t.stack);
                t.stack = nullptr;
            }
        }
    } while (open_barrier(block) || open_warps(block));
    return progress;
}

bool ended(const Block& block) {
    for (const Thread& t : block.threads) {
        if (t.state != State::ended) return false;
    }
    return true;
}

struct Grid {
    Entry entry;
    uint3 blocks, threads;
    u32 shared;
    std::vector<char> params;
    u32 next = 0;
    std::list<Block> resident;

    ~Grid() {
        for (Block& block : resident) {
            for (Thread& t : block.threads) {
                if (t.stack != nullptr) stacks.push_back(t.stack);
            }
        }
    }

    void start() {
        Block& block = resident.emplace_back();
        block.entry = entry;
        block.params = params.data();
        block.dynamic.resize(shared);
        const u32 n = next++;
        const uint3 at = {n % blocks.x, n / blocks.x % blocks.y, n / (blocks.x * blocks.y)};
        for (u32 i = 0; i < threads.x * threads.y * threads.z; i++) {
            Thread& t = block.threads.emplace_back();
            t.block = &block;
            const uint3 own = {i % threads.x, i / threads.x % threads.y, i / (threads.x * threads.y)};
            t.view = softgpu_view{own, at, threads, blocks, i % kWarp, kWarp};
        }
    }

    Step step() {
        bool progress = false;
        arena_open(true);
        while (next < blocks.x * blocks.y * blocks.z && resident.size() < kResident) start();
        for (auto block = resident.begin(); block != resident.end();) {
            progress |= run(*block);
            block = ended(*block) ? resident.erase(block) : std::next(block);
        }
        arena_open(false);
        if (resident.empty() && next == blocks.x * blocks.y * blocks.z) return Step::done;
        return progress ? Step::running : Step::runs;
    }
};

}  // namespace

Command grid(Entry entry, const u32 blocks[3], const u32 threads[3], u32 shared, std::vector<char> params) {
    auto g = std::make_shared<Grid>();
    g->entry = entry;
    g->blocks = {blocks[0], blocks[1], blocks[2]};
    g->threads = {threads[0], threads[1], threads[2]};
    g->shared = shared;
    g->params = std::move(params);
    return [first = g, g = std::shared_ptr<Grid>()]() mutable {
        // A graph copies the command for each launch, before its first step.
        if (g == nullptr) g = std::make_shared<Grid>(*first);
        return g->step();
    };
}

}  // namespace standin

using namespace standin;

extern "C" {
const softgpu_view* softgpu_self(void) noexcept { return &current->view; }

void* softgpu_shared(const void* key, size_t size, size_t) noexcept {
    auto& place = current->block->shared[key];
    if (place.empty()) place.resize(size);
    return place.data();
}

void* softgpu_dynamic_shared(void) noexcept { return current->block->dynamic.data(); }

void softgpu_yield(uint32_t reason, uint64_t deadline) noexcept {
    current->deadline = deadline;
    suspend(reason == SOFTGPU_SLEEP ? State::sleeps : State::spins);
}

uint32_t softgpu_barrier(uint32_t kind, uint32_t predicate) noexcept {
    current->kind = kind;
    current->value = predicate;
    suspend(State::barrier);
    return static_cast<uint32_t>(current->result);
}

uint64_t softgpu_warp(uint32_t kind, uint64_t mask, uint64_t value, uint32_t lane, uint32_t width) noexcept {
    Thread* self = current;
    self->kind = kind;
    self->mask = mask;
    self->value = value;
    self->lane = lane;
    self->width = width;
    suspend(State::warp);
    return current->result;
}

void softgpu_trap(void) noexcept {
    machine().lose(kLaunchFailed);
    current->state = State::ended;
    _longjmp(scheduler, 1);
}

void softgpu_store32(uint32_t* p, uint32_t value) noexcept { __atomic_store_n(p, value, __ATOMIC_RELAXED); }
void softgpu_store64(uint64_t* p, uint64_t value) noexcept { __atomic_store_n(p, value, __ATOMIC_RELAXED); }
void softgpu_store64_whole(uint64_t* p, uint64_t value) noexcept { __atomic_store_n(p, value, __ATOMIC_RELAXED); }
uint32_t softgpu_load32(const uint32_t* p) noexcept { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
uint64_t softgpu_load64(const uint64_t* p) noexcept { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
void softgpu_settle(const void*, size_t) noexcept {}
void softgpu_fence(void) noexcept { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
uint64_t softgpu_now_ns(void) noexcept { return now(); }
uint64_t softgpu_clock_ns(void) noexcept { return now(); }
}
