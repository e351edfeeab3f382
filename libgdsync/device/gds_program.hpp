// The parameters of the program kernel, and the counters that live with the queues.
// The same layouts stand in libgdsync/src/memop/program.rs and libgdsync/src/rdma/build.rs.
#pragma once

#include "gds_device.hpp"

namespace gds {

enum Code : u32 {
    kWrite32 = 1,
    kWrite64 = 2,
    kWait32 = 3,
    kWait64 = 4,
    kPost = 5,
    kPostReceive = 6,
    kWaitCompletion = 7,
    kWaitEntry = 8,
};

struct ProgramOp {
    u32 code;
    u32 phase;
    u64 at;
    u64 value;
    u64 extra;
};

constexpr u32 kMaxOps = 40;

struct Program {
    u32 count;
    u32 reserved;
    ProgramOp ops[kMaxOps];
};

// A work queue as the GPU posts it. `index` is the producer index in basic blocks (send) or
// entries (receive); whoever posts last leaves it where the next one goes on.
struct QueueState {
    u64 ring;
    u64 record;
    u64 doorbell;
    u32 mask;
    u32 index;
    u64 reserved[4];
};

// Where one stream stands in one completion queue. `next` is the position it waits for next,
// `marks` how often it has announced that it passed.
struct WaiterState {
    u64 cq;
    u64 passed;
    u32 log_entries;
    u32 marks;
    u64 next;
    u64 reserved[4];
};

static_assert(sizeof(ProgramOp) == 32 && sizeof(Program) == 8 + 32 * kMaxOps, "layout");
static_assert(sizeof(QueueState) == 64 && sizeof(WaiterState) == 64, "layout");

// Words shared with the NIC are big-endian.
GDS_DEVICE u32 swap_bytes(u32 v) {
    return v >> 24 | (v >> 8 & 0xff00u) | (v << 8 & 0xff0000u) | v << 24;
}

template <class T>
GDS_DEVICE bool passes(T word, T value, T mask, u32 condition) {
    switch (condition) {
        case 0: return static_cast<T>((word & mask) - value) >> (8 * sizeof(T) - 1) == 0;
        case 1: return (word & mask) == value;
        case 2: return (word & mask & value) != 0;
        default: return (~(word | value) & mask) != 0;
    }
}

// A completion entry is a success of this lap if its owner bit is the lap's parity and bit 31
// of its last dword is clear. An entry in error is not passed: the watcher turns it into one
// that is, once the status is stored.
GDS_DEVICE void wait_entry(const u32* last_dword, u32 owner) {
    GDS_SPIN_UNTIL((load_acquire_sys(last_dword) & 0x81000000u) == owner << 24, 0);
}

// Rings for the next `entries` entries of a send queue. Their sizes stand in the entries.
GDS_DEVICE void post(QueueState* queue, u32 entries) {
    const char* ring = reinterpret_cast<const char*>(queue->ring);
    u32 index = load_acquire_sys(&queue->index);
    const char* last = ring;
    for (u32 i = 0; i < entries; i++) {
        last = ring + 64ull * (index & queue->mask);
        const u32 segments = swap_bytes(load_acquire_sys(reinterpret_cast<const u32*>(last + 4))) & 0x3f;
        index += (segments + 3) / 4;
    }
    const u64 doorbell = load_acquire_sys(reinterpret_cast<const u64*>(last));
    store_relaxed_sys(&queue->index, index);
    // The record only after all that was written before, the doorbell only after the record.
    store_release_sys(reinterpret_cast<u32*>(queue->record + 4), swap_bytes(index & 0xffff));
    store_release_sys(reinterpret_cast<u64*>(queue->doorbell), doorbell);
}

GDS_DEVICE void post_receive(QueueState* queue, u32 entries) {
    const u32 index = load_acquire_sys(&queue->index) + entries;
    store_relaxed_sys(&queue->index, index);
    store_release_sys(reinterpret_cast<u32*>(queue->record), swap_bytes(index & 0xffff));
}

// Waits for the completion `advance` positions ahead of where the waiter stands, and moves it
// behind that position.
GDS_DEVICE void wait_completion(WaiterState* waiter, u64 advance, bool announce) {
    const u64 position = load_acquire_sys(&waiter->next) + advance;
    const u32 log = waiter->log_entries;
    const u64 index = position & ((1ull << log) - 1);
    wait_entry(reinterpret_cast<const u32*>(waiter->cq + 64 * index + 60), position >> log & 1);
    store_relaxed_sys(&waiter->next, position + 1);
    if (announce) {
        const u32 marks = load_acquire_sys(&waiter->marks) + 1;
        store_relaxed_sys(&waiter->marks, marks);
        store_release_sys(reinterpret_cast<u32*>(waiter->passed), marks);
    }
}

GDS_DEVICE void run(const ProgramOp& op) {
    switch (op.code) {
        case kWrite32: store_relaxed_sys(reinterpret_cast<u32*>(op.at), static_cast<u32>(op.value)); break;
        case kWrite64: store_relaxed_sys(reinterpret_cast<u64*>(op.at), op.value); break;
        case kWait32: {
            const u32 mask = static_cast<u32>(op.extra >> 32), condition = static_cast<u32>(op.extra);
            const u32 value = static_cast<u32>(op.value);
            const u32* word = reinterpret_cast<const u32*>(op.at);
            GDS_SPIN_UNTIL(passes<u32>(load_acquire_sys(word), value, mask, condition), 0);
            break;
        }
        case kWait64: {
            const u64* word = reinterpret_cast<const u64*>(op.at);
            GDS_SPIN_UNTIL(passes<u64>(load_acquire_sys(word), op.value, ~0ull, static_cast<u32>(op.extra)), 0);
            break;
        }
        case kPost: post(reinterpret_cast<QueueState*>(op.at), static_cast<u32>(op.value)); break;
        case kPostReceive: post_receive(reinterpret_cast<QueueState*>(op.at), static_cast<u32>(op.value)); break;
        case kWaitCompletion: wait_completion(reinterpret_cast<WaiterState*>(op.at), op.value, op.extra & 1); break;
        case kWaitEntry: wait_entry(reinterpret_cast<const u32*>(op.at), static_cast<u32>(op.value)); break;
    }
}

}  // namespace gds
