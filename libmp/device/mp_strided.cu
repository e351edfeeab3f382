// Pieces of one length at equal distances: a send gathers them into packed bytes before it posts
// these; a receive scatters the bytes behind the kernel that took the message in. mp_strided does
// this for one message: any number of blocks; one block, of any number of threads, if it stores a
// result. mp_moves does it for any number of messages whose bytes are in place, in any number of
// blocks.
#include "mp_pieces.hpp"

namespace mp {

GDS_DEVICE void strided(const Pieces& p) {
    gds::await_earlier_work();
    gds::launch_dependents();
    const Share all{blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
    if (p.arrival == 0) {
        move(p, p.len, true, all);
        return;
    }
    // How the message ended: the kernel that took it in has stored it.
    const u64 end = own_word(p.arrival);
    if (end >> 48 == kSuccess) move(p, least(end & kLenMask, p.len), false, all);
    if (p.result == 0) return;
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0) gds::store_release_sys(word_at(p.result), end);
}

// The same layout stands in libmp/src/kernels/params.rs.
struct Moves {
    u64 table;
    u32 count;
    u32 blocks;
};

static_assert(sizeof(Moves) == 16, "layout");

// Group i of `blocks` blocks executes the moves i, i + groups, ... of the table.
GDS_DEVICE void move_all(const Moves& p) {
    const Share s{blockIdx.x % p.blocks * blockDim.x + threadIdx.x, p.blocks * blockDim.x};
    const Pieces* table = reinterpret_cast<const Pieces*>(p.table);
    GDS_NO_UNROLL
    for (u32 i = blockIdx.x / p.blocks; i < p.count; i += gridDim.x / p.blocks) {
        const Pieces one = table[i];
        move(one, one.len, one.scatters == 0, s);
    }
}

}  // namespace mp

GDS_KERNEL(mp_moves, mp::Moves, p) { mp::move_all(p); }
GDS_KERNEL(mp_strided, mp::Pieces, p) { mp::strided(p); }
