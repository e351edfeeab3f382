// The memory of a batch of messages between two ranks: one kernel writes what a stream sends and blanks
// where it receives, and one compares every byte there when the messages have arrived.
// benches/src/messages/kernels.rs has the layouts too.
#include "pattern.hpp"

namespace mpbench {

// The highest bit of each byte: 0 in what is sent, 1 in what is blank, so that no byte is both.
constexpr u64 kTop = 0x8080808080808080ull;

GDS_DEVICE u64 batch_word(u64 seed, u64 index, bool blank) {
    const u64 word = pattern_word(seed, index);
    return blank ? word | kTop : word & ~kTop;
}

// The eight bytes of the pattern at any offset.
GDS_DEVICE u64 batch_bytes(u64 seed, u64 offset, bool blank) {
    const u64 shift = 8 * (offset % 8);
    const u64 low = batch_word(seed, offset / 8, blank);
    if (shift == 0) return low;
    return low >> shift | batch_word(seed, offset / 8 + 1, blank) << (64 - shift);
}

struct Fill {
    u64* source;       // what the stream sends
    u64 source_words;
    u64 source_seed;
    u64* target;       // where it receives
    u64 target_words;
    u64 target_seed;
    u64 flip;          // offset in the source at which one bit is wrong, all ones: none
};

// Bytes of the target that are compared with consecutive bytes of one pattern.
struct Piece {
    u32 at;     // their offset in the target
    u32 from;   // their offset in the pattern
    u32 len;
    u32 blank;  // 1: no message is there
    u64 seed;
};

// The result of a check, in device memory. The last block passes it on and clears it.
struct Sum {
    u64 verified;  // bytes compared
    u64 wrong;     // bytes that differ
    u64 first;     // the lowest offset of a wrong byte, all ones if there is none
    u64 blocks;    // that have ended
};

// The same, in pinned memory.
struct Result {
    u64 verified, wrong, first;
    u64 batch;  // the number of the batch, from 1, stored last
};

struct Check {
    const unsigned char* target;
    const Piece* pieces;  // in pinned memory
    u64 count;
    Sum* sum;
    Result* result;
    u64 batch;
};

static_assert(sizeof(Fill) == 56 && sizeof(Piece) == 24 && sizeof(Sum) == 32, "layout");
static_assert(sizeof(Result) == 32 && sizeof(Check) == 48, "layout");

GDS_DEVICE void check_byte(const Check& c, const Piece& p, u64 i) {
    const unsigned char right = static_cast<unsigned char>(batch_bytes(p.seed, p.from + i, p.blank != 0));
    if (c.target[p.at + i] == right) return;
    atomicAdd(&c.sum->wrong, 1);
    atomicMin(&c.sum->first, p.at + i);
}

// Compares this thread's part of a piece; returns its number of bytes. Words are aligned in the target.
GDS_DEVICE u64 check_piece(const Check& c, const Piece& p) {
    const u64 unaligned = (8 - p.at % 8) % 8;
    const u64 head = unaligned < p.len ? unaligned : p.len;
    const u64 words = (p.len - head) / 8;
    const u64* at = reinterpret_cast<const u64*>(c.target + p.at + head);
    u64 looked = 0;
    for (u64 i = threadIdx.x; i < words; i += blockDim.x) {
        looked += 8;
        if (at[i] == batch_bytes(p.seed, p.from + head + 8 * i, p.blank != 0)) continue;
        for (u64 b = 0; b < 8; b++) check_byte(c, p, head + 8 * i + b);
    }
    // At most 14 bytes before and behind the words.
    for (u64 i = threadIdx.x; i < p.len - 8 * words; i += blockDim.x) {
        looked++;
        check_byte(c, p, i < head ? i : 8 * words + i);
    }
    return looked;
}

}  // namespace mpbench

GDS_KERNEL(mpbench_fill, mpbench::Fill, f) {
    const mpbench::u64 first = blockIdx.x * blockDim.x + threadIdx.x;
    const mpbench::u64 step = gridDim.x * blockDim.x;
    for (mpbench::u64 i = first; i < f.target_words; i += step)
        f.target[i] = mpbench::batch_word(f.target_seed, i, true);
    for (mpbench::u64 i = first; i < f.source_words; i += step) {
        const mpbench::u64 word = mpbench::batch_word(f.source_seed, i, false);
        f.source[i] = i == f.flip / 8 ? word ^ 1ull << (8 * (f.flip % 8)) : word;
    }
}

GDS_KERNEL(mpbench_check, mpbench::Check, c) {
    GDS_SHARED(mpbench::Piece, piece);
    GDS_SHARED(mpbench::u64, looked);
    if (threadIdx.x == 0) looked = 0;
    mpbench::u64 mine = 0;
    for (mpbench::u64 i = blockIdx.x; i < c.count; i += gridDim.x) {
        __syncthreads();
        // One load over the bus for the block.
        if (threadIdx.x == 0) piece = c.pieces[i];
        __syncthreads();
        mine += mpbench::check_piece(c, piece);
    }
    __syncthreads();
    atomicAdd(&looked, mine);
    __syncthreads();
    if (threadIdx.x != 0) return;
    atomicAdd(&c.sum->verified, looked);
    // Behind the barrier and this fence, the sums of the block are in front of its count.
    gds::fence_gpu();
    if (atomicAdd(&c.sum->blocks, 1) != gridDim.x - 1) return;
    gds::fence_gpu();
    const mpbench::u64 none = 0;
    gds::store_relaxed_sys(&c.result->verified, atomicExch(&c.sum->verified, none));
    gds::store_relaxed_sys(&c.result->wrong, atomicExch(&c.sum->wrong, none));
    gds::store_relaxed_sys(&c.result->first, atomicExch(&c.sum->first, ~none));
    atomicExch(&c.sum->blocks, none);
    gds::store_release_sys(&c.result->batch, c.batch);
}
