// The parameter of the program kernels, a list of operations, and the execution of one.
// libgdsync/src/memop/program has the same layout.
#pragma once

#include "gds_queue.hpp"

namespace gds {

enum Code : u32 {
    kWrite32 = 1,
    kWrite64 = 2,
    kWait32 = 3,
    kWait64 = 4,
    kWaitEntry = 5,
    kRing = 6,
};

enum Flag : u32 {
    // Earlier writes are visible before this one.
    kFenced = 1,
    // The thread that runs the previous operation runs this one after it.
    kChained = 2,
};

struct ProgramOp {
    unsigned char code;
    unsigned char flags;
    // The number of earlier operations that must precede this one: for readers of traces.
    unsigned char phase;
    // In the first operation of a step: the number of operations of the step.
    unsigned char step;
    u32 more;
    u64 at;
    u64 value;
    u64 extra;
};

template <u32 Capacity>
struct Program {
    u32 count;
    u32 reserved;
    ProgramOp ops[Capacity];
};

static_assert(sizeof(ProgramOp) == 32 && sizeof(Program<8>) == 8 + 32 * 8, "layout");

// Runs an operation. `open`: the thread has waited, and has executed no fence since.
GDS_DEVICE void run(const ProgramOp& op, bool& open) {
    Wait w{};
    const bool writes = op.code == kWrite32 || op.code == kWrite64;
    if ((op.flags & kFenced) != 0 || (open && writes)) {
        fence_sys();
        open = false;
    }
    switch (op.code) {
        case kWrite32: store_relaxed_sys(reinterpret_cast<u32*>(op.at), static_cast<u32>(op.value)); return;
        case kWrite64: store_relaxed_sys(reinterpret_cast<u64*>(op.at), op.value); return;
        case kRing:
            ring(Bell{op.at, op.extra, op.value, op.more});
            open = false;
            return;
        case kWait32: {
            const u64 mask = op.extra >> 32 << 32;
            w = Wait{op.at, op.value << 32, mask, 0, 0, static_cast<u32>(op.extra), false};
            break;
        }
        case kWait64: w = Wait{op.at, op.value, op.extra, 0, 0, op.more, true}; break;
        default: w = entry_wait(op.at, op.value);
    }
    wait(w);
    open = true;
}

// Step after step: the threads of one warp share the chains of a step.
template <u32 Capacity>
GDS_DEVICE void run_program(const Program<Capacity>& p) {
    bool open = false;
    for (u32 begin = 0; begin < p.count;) {
        const u32 end = begin + p.ops[begin].step;
        for (u32 i = begin + threadIdx.x; i < end; i += 32) {
            if ((p.ops[i].flags & kChained) != 0) continue;
            u32 j = i;
            do {
                run(p.ops[j], open);
            } while (++j < end && (p.ops[j].flags & kChained) != 0);
        }
        // Orders earlier accesses of each thread before later accesses of the others.
        sync_warp();
        begin = end;
    }
    // Orders the waits of the kernel before later work of the stream.
    if (open) fence_sys();
}

}  // namespace gds
