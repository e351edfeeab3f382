// The sender's kernel of a short message that goes to a flagged room of the receiver. One block of
// any number of threads for each message.
#include "mp_flag.hpp"
#include "mp_tasks.hpp"

namespace mp {

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
struct Flag {
    Credit slot;
    u64 done;
    u64 serial;
    u64 from;
    u64 room;
    u64 pair;
    u64 len;
    u64 lines;
    u64 number;
};

static_assert(sizeof(Flag) == 104, "layout");

GDS_DEVICE void flag(const Flag& p) {
    GDS_SHARED(u32, open);
    start_next();
    if (threadIdx.x == 0) open = await_credit(p.slot);
    if (blockDim.x > 1) __syncthreads();
    gds::await_earlier_work();
    if (open == 0) {
        // The next task of the block stores it again.
        if (blockDim.x > 1) __syncthreads();
        return;
    }
    const u32 low = static_cast<u32>(p.number), high = static_cast<u32>(p.number >> 32);
    write_room({p.room, low, high}, p.from, p.len, p.lines, {threadIdx.x, blockDim.x});
    // The source may be overwritten once all threads have read it.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    // A reader of the words finds the payload by its flags: the words need no order behind it.
    const u64 w = compose(low, kFlagged, p.len);
    gds::store_whole_sys(word_at(p.pair), w);
    gds::store_whole_sys(word_at(p.pair) + 1, w);
    gds::store_release_sys(word_at(p.done), p.serial);
}

template <u32 Capacity>
using Flags = Tasks<Flag, Capacity>;

static_assert(sizeof(Flags<8>) == 840 && sizeof(Flags<39>) == 4064, "layout");

}  // namespace mp

GDS_KERNEL(mp_flag, mp::Flag, p) { mp::flag(p); }
GDS_KERNEL(mp_flag_all_8, mp::Flags<8>, p) { mp::run_all<mp::flag>(p); }
GDS_KERNEL(mp_flag_all_39, mp::Flags<39>, p) { mp::run_all<mp::flag>(p); }
