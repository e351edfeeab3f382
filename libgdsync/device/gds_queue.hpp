// Queues and waiters that kernels advance: their positions are in memory, so that the same
// kernel, launched again, posts the next requests and waits for the next completions.
// libgdsync/src/kernels/params.rs has the same layouts.
#pragma once

#include "gds_device.hpp"

namespace gds {

// A work queue. It never changes: the doorbell record has the number of posted units, for any
// poster.
struct QueueState {
    u64 ring;
    u64 record;
    u64 doorbell;
    u32 mask;
    u32 reserved[9];
};

// The position of one stream in one completion queue. `next` is the position of its next wait,
// `marks` the number of waits whose end it has announced.
struct WaiterState {
    u64 cq;
    u64 passed;
    u32 log_entries;
    u32 marks;
    u64 next;
    u64 reserved[4];
};

static_assert(sizeof(QueueState) == 64 && sizeof(WaiterState) == 64, "layout");

// Words shared with the NIC are big-endian.
GDS_DEVICE u32 swap_bytes(u32 v) {
    return v >> 24 | (v >> 8 & 0xff00u) | (v << 8 & 0xff0000u) | v << 24;
}

// The two stores of a post: the record, then the doorbell; no doorbell (0) for receives.
struct Bell {
    u64 record;
    u64 doorbell;
    u64 doorbell_value;
    u32 record_value;
};

// Stores the record after all earlier writes, and the doorbell after the record.
GDS_DEVICE void ring(const Bell& bell) {
    store_release_sys(reinterpret_cast<u32*>(bell.record), bell.record_value);
    if (bell.doorbell != 0) store_release_sys(reinterpret_cast<u64*>(bell.doorbell), bell.doorbell_value);
}

// The bell for the next `entries` entries of a send queue. The first eight bytes of an entry have
// its size in segments of 16 bytes; those of the last entry are the value of the doorbell.
GDS_DEVICE Bell bell_of(const QueueState* queue, u32 entries) {
    const u64 at = queue->ring, doorbell = queue->doorbell, record = queue->record + 4;
    const u32 mask = queue->mask;
    u32 index = swap_bytes(load_acquire_sys(reinterpret_cast<const u32*>(record)));
    u64 head = 0;
    GDS_NO_UNROLL
    for (; entries != 0; entries--) {
        head = load_acquire_sys(reinterpret_cast<const u64*>(at + 64ull * (index & mask)));
        const u32 segments = static_cast<u32>(head >> 56) & 0x3f;
        index += (segments + 3) / 4;
    }
    return Bell{record, doorbell, head, swap_bytes(index & 0xffff)};
}

// The bell for the next `entries` entries of a receive queue.
GDS_DEVICE Bell receive_bell_of(const QueueState* queue, u32 entries) {
    const u64 record = queue->record;
    const u32 index = swap_bytes(load_acquire_sys(reinterpret_cast<const u32*>(record))) + entries;
    return Bell{record, 0, 0, swap_bytes(index & 0xffff)};
}

enum Condition : u32 { kGeq = 0, kEq = 1, kAnd = 2, kNor = 3 };

// A test of a word, and a store after it has passed (none if `passed` is 0). A 32-bit word is
// tested as the upper half of 64 bits, which has the sign.
struct Wait {
    u64 word;
    u64 value;
    u64 mask;
    u64 passed;
    u32 marks;
    u32 condition;
    bool wide;
};

#if defined(GDS_CUDA)
GDS_DEVICE u64 load_relaxed_sys64(u64 at) {
    u64 v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}

GDS_DEVICE u32 load_relaxed_sys32(u64 at) {
    u32 v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
#endif

// Waits. Only a fence orders later accesses behind the wait: this function has one if it stores
// a word, else the caller needs one. All conditions but GEQ test whether some bits of the word
// equal, or do not equal, a value.
GDS_DEVICE void wait(const Wait& w) {
    u64 bits = w.mask, want = w.value;
    if (w.condition == kAnd) {
        bits &= w.value;
        want = 0;
    } else if (w.condition == kNor) {
        bits &= ~w.value;
        want = bits;
    }
    const bool geq = w.condition == kGeq, equal = w.condition == kEq, wide = w.wide;
    auto passes = [=](u64 word) -> bool {
        word &= bits;
        return geq ? (word - want) >> 63 == 0 : (word == want) == equal;
    };
    auto look = [=]() -> u64 {
#if defined(GDS_CUDA)
        return wide ? load_relaxed_sys64(w.word) : static_cast<u64>(load_relaxed_sys32(w.word)) << 32;
#else
        return wide ? load_relaxed_sys(reinterpret_cast<const u64*>(w.word))
                    : static_cast<u64>(load_relaxed_sys(reinterpret_cast<const u32*>(w.word))) << 32;
#endif
    };
    GDS_SPIN_UNTIL(passes(look()), 0);
    if (w.passed != 0) store_release_sys(reinterpret_cast<u32*>(w.passed), w.marks);
}

// A completion entry is a success of this lap if its owner bit is the lap's parity and bit 31
// of its last dword is clear. The wait does not pass an error entry: the watcher stores the
// status, then turns the entry into a success.
GDS_DEVICE Wait entry_wait(u64 last_dword, u64 owner) {
    return Wait{last_dword, owner << 56, 0x81000000ull << 32, 0, 0, kEq, false};
}

// The wait for the completion `advance` positions ahead of the waiter. The waiter is moved behind
// that position at once: no other code reads it until the wait has passed.
GDS_DEVICE Wait completion_wait(WaiterState* waiter, u64 advance, bool announce) {
    const u64 cq = waiter->cq, passed = waiter->passed;
    const u32 log = waiter->log_entries;
    const u32 marks = load_acquire_sys(&waiter->marks) + 1;
    const u64 position = load_acquire_sys(&waiter->next) + advance;
    store_relaxed_sys(&waiter->next, position + 1);
    const u64 index = position & ((1ull << log) - 1);
    Wait w = entry_wait(cq + 64 * index + 60, position >> log & 1);
    if (announce) {
        store_relaxed_sys(&waiter->marks, marks);
        w.passed = passed;
        w.marks = marks;
    }
    return w;
}

}  // namespace gds
