// The sender's kernel of a short message that goes to a flagged room of the receiver. One block of
// any number of threads for each message.
#include "mp_flag.hpp"
#include "mp_tasks.hpp"

namespace mp {

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
struct Flag {
    u64 failed;
    u64 done;
    u64 serial;
    u64 from;
    u64 room;
    u64 pair;
    u64 len;
    u64 lines;
    u64 number;
};

static_assert(sizeof(Flag) == 72, "layout");

GDS_DEVICE void flag(const Flag& p) {
    const u32 low = static_cast<u32>(p.number), high = static_cast<u32>(p.number >> 32);
    write_room({p.room, low, high}, p.from, p.len, p.lines, {threadIdx.x, blockDim.x});
    // The source may be overwritten once all threads have read it.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    if (gds::load_acquire_sys(reinterpret_cast<const u32*>(p.failed)) != 0) return;
    // A reader of the words finds the payload by its flags: the words need no order behind it.
    const u64 w = compose(low, kFlagged, p.len);
    gds::store_whole_sys(word_at(p.pair), w);
    gds::store_whole_sys(word_at(p.pair) + 1, w);
    gds::store_release_sys(word_at(p.done), p.serial);
}

template <u32 Capacity>
using Flags = Tasks<Flag, Capacity>;

static_assert(sizeof(Flags<8>) == 584 && sizeof(Flags<56>) == 4040, "layout");

}  // namespace mp

GDS_KERNEL(mp_flag, mp::Flag, p) { mp::flag(p); }
GDS_KERNEL(mp_flag_all_8, mp::Flags<8>, p) { mp::run_all<mp::flag>(p); }
GDS_KERNEL(mp_flag_all_56, mp::Flags<56>, p) { mp::run_all<mp::flag>(p); }
