// The parts of a step of a neighbourhood, with all ranks whose memory this rank has mapped: the ready words
// (mp_ready), the data that is sent or received (mp_step), or all of them (mp_whole_step). Their kernels wait for the
// words of the ranks, so that the stream needs no operation but the launch.
#include "mp_flag.hpp"
#include "mp_pieces.hpp"

namespace mp {

// libmp/src/kernels/params.rs has the same layouts, and describes the fields.
struct ReadyWord {
    u64 closed;
    u64 to;
};

struct ReadyWords {
    u64 table;
    u64 step;
    u32 count;
    u32 reserved;
};

struct StepPart {
    u64 word;
    u64 closed;
    u64 gate;
    u64 arrived;
    u64 left;
    u64 pieces;
    u32 count;
    u32 split;
    u32 shares;
    u32 reserved;
};

struct StepParts {
    u64 table;
    u64 step;
    u64 awaited;
    u64 passed;
    u64 ended;
    u32 count;
    u32 shares;
};

struct WholeStep {
    ReadyWords ready;
    StepParts send;
    StepParts receive;
};

// The words by which the blocks of a part agree, in device memory.
struct StepGate {
    u64 open;
    u32 ended;
    u32 reserved;
};

static_assert(sizeof(ReadyWord) == 16 && sizeof(ReadyWords) == 24 && sizeof(WholeStep) == 120, "layout");
static_assert(sizeof(StepPart) == 64 && sizeof(StepParts) == 48 && sizeof(StepGate) == 16, "layout");

// libmp/src/request/step.rs has the same values. The library stores the first into the words of a rank that was given
// up, and the second into `closed` of all ranks when the context is dropped.
constexpr u64 kReleased = 1ull << 62;
constexpr u64 kDropped = 2;

// Counts the shares that a block has done, by one thread of each block that has any. True: it is the last one to end.
// The first block adds its shares less all of them: the sum of all blocks is 0, so no store clears the word.
GDS_DEVICE bool is_last_of(u32* at, u32 shares, u32 done, bool first) {
    if (done == shares) return true;
    const u32 mine = first ? done - shares : done;
    return gds::add_acq_rel_gpu(at, mine) + mine == 0;
}

// Stores the number of a step, whole, behind what this thread and those of earlier barriers have stored.
GDS_DEVICE void announce(u64 to, u64 step) {
    gds::fence_sys();
    gds::store_whole_sys(word_at(to), step);
}

// Waits for the word of the rank, by one thread. Only the first block looks at host memory, and shows the others what
// it has found. False: the rank was given up. Its memory may have another use then; data that has arrived from it is in
// memory of this rank, and a part that receives it continues.
GDS_DEVICE bool await_rank(const StepPart& p, u64 step) {
    if (p.word == 0) return true;
    auto* gate = reinterpret_cast<StepGate*>(p.gate);
    u64 open = 0;
    if (blockIdx.x != 0) {
        GDS_SPIN_UNTIL(covers(open = gds::load_acquire_sys(&gate->open), 2 * step), 0);
        return open == 2 * step;
    }
    u64 closed = 0, word = 0;
    auto come = [&] {
        // The loads overlap.
        closed = gds::load_relaxed_sys(word_at(p.closed));
        return covers(word = gds::load_acquire_sys(word_at(p.word)), step) || closed == kDropped;
    };
    GDS_SPIN_UNTIL(come(), 0);
    const bool writes_there = p.arrived != 0;
    const bool good = word < kReleased && (writes_there ? closed == 0 : covers(word, step));
    if (p.shares > 1) {
        gds::fence_gpu();
        gds::store_whole_sys(&gate->open, 2 * step + (good ? 0 : 1));
    }
    return good;
}

GDS_DEVICE void move_piece(const Pieces& p, Share s) {
    if (p.block < p.len) {
        move(p, p.len, p.scatters == 0, s);
    } else if (p.scatters != 0) {
        copy(p.first, p.packed, p.len, s);
    } else {
        copy(p.packed, p.first, p.len, s);
    }
}

// Row i of blocks executes the parts i, i + rows, ... of the table. No part waits for what another one does. `early`:
// the next kernel starts before this one has waited. Returns the shares that the block has done.
GDS_DEVICE u32 step(const StepParts& p, bool early) {
    GDS_SHARED(u32, open);
    if (early) start_next();
    u32 all = 0;
    GDS_NO_UNROLL
    for (u32 i = blockIdx.y; i < p.count; i += gridDim.y) {
        const StepPart part = reinterpret_cast<const StepPart*>(p.table)[i];
        if (blockIdx.x >= part.shares) continue;
        const Pieces* pieces = reinterpret_cast<const Pieces*>(part.pieces);
        // `split` shares divide a piece among them, the next ones the next piece. The first piece is loaded before the
        // wait.
        const u32 groups = part.shares / part.split;
        u32 held = blockIdx.x / part.split;
        Pieces piece = held < part.count ? pieces[held] : Pieces{};
        if (threadIdx.x == 0) open = await_rank(part, p.awaited);
        if (blockDim.x > 1) __syncthreads();
        gds::await_earlier_work();
        if (!early) gds::launch_dependents();
        const bool good = open != 0;
        u32 done = 0;
        GDS_NO_UNROLL
        for (u32 share = blockIdx.x; share < part.shares; share += gridDim.x) {
            done++;
            const Share mine{share % part.split * blockDim.x + threadIdx.x, part.split * blockDim.x};
            GDS_NO_UNROLL
            for (u32 k = share / part.split; good && k < part.count; k += groups) {
                if (k != held) piece = pieces[held = k];
                move_piece(piece, mine);
            }
        }
        // All threads have copied, and have read `open`, which the next part stores again.
        if (blockDim.x > 1) __syncthreads();
        all += done;
        if (threadIdx.x != 0 || part.arrived == 0) continue;
        auto* gate = reinterpret_cast<StepGate*>(part.gate);
        if (is_last_of(&gate->ended, part.shares, done, blockIdx.x == 0) && good) {
            announce(part.arrived, p.step);
            gds::store_whole_sys(word_at(part.left), p.step);
        }
    }
    return all;
}

// Adds the shares that this block has done to the count. True, in one thread of the last block: all `shares` are done.
GDS_DEVICE bool count_shares(u64 ended, u32 shares, u32 done) {
    const bool first = blockIdx.x == 0 && blockIdx.y == 0;
    return threadIdx.x == 0 && done != 0 && is_last_of(reinterpret_cast<u32*>(ended), shares, done, first);
}

GDS_DEVICE void send_or_receive(const StepParts& p) {
    const u32 done = step(p, true);
    if (count_shares(p.ended, p.shares, done)) gds::store_whole_sys(word_at(p.passed), p.step);
}

// By one block of any number of threads.
GDS_DEVICE void ready(const ReadyWords& p) {
    const ReadyWord* table = reinterpret_cast<const ReadyWord*>(p.table);
    // The loads from host memory overlap with the earlier work. A rank whose memory is not mapped any more was closed
    // before the launch.
    auto closed = [&](u32 i) { return i >= p.count || gds::load_relaxed_sys(word_at(table[i].closed)) != 0; };
    bool skip = closed(threadIdx.x);
    gds::await_earlier_work();
    GDS_NO_UNROLL
    for (u32 i = threadIdx.x; i < p.count; i += blockDim.x) {
        if (!skip) announce(table[i].to, p.step);
        skip = closed(i + blockDim.x);
    }
}

// The ready words come first: other ranks wait for them, and blocks of lower numbers start first. Each row then sends,
// and receives. The next step starts late: the blocks of many steps that wait would be in each other's way.
GDS_DEVICE void whole_step(const WholeStep& p) {
    if (blockIdx.x == 0 && blockIdx.y == 0) ready(p.ready);
    u32 done = step(p.send, false);
    done += step(p.receive, false);
    // The stream has passed the step when both halves have ended.
    const bool ended = count_shares(p.send.ended, p.send.shares + p.receive.shares, done);
    if (ended) gds::store_whole_sys(word_at(p.send.passed), p.send.step);
}

}  // namespace mp

GDS_KERNEL(mp_step, mp::StepParts, p) { mp::send_or_receive(p); }
GDS_KERNEL(mp_whole_step, mp::WholeStep, p) { mp::whole_step(p); }
GDS_KERNEL(mp_ready, mp::ReadyWords, p) {
    gds::launch_dependents();
    mp::ready(p);
}
