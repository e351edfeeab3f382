// The sender's kernel of messages that go to flagged rooms of the receiver. Any number of blocks for each
// message, of any number of threads.
#include "mp_flag.hpp"
#include "mp_tasks.hpp"

namespace mp {

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
struct Flag {
    Credit slot;
    u64 report;
    u64 from;
    u64 room;
    u64 long_room;
    u64 len;
    u64 lines;
    u64 number;
    u64 shares;
};

static_assert(sizeof(Flag) == 96, "layout");

GDS_DEVICE void flag(const Flag& p) {
    GDS_SHARED(u32, open);
    start_next();
    const Room r{p.room, static_cast<u32>(p.number), static_cast<u32>(p.number >> 32)};
    u64* lines = p.long_room != 0 ? word_at(p.long_room) : r.lines();
    const u32 mark = p.long_room != 0 ? kLong : 0;
    // At most twice 8 bytes for each thread, and a block for each share. All that does not depend on the earlier work
    // is computed before its end; the class of mp_replay.cu for this makes the compiler compute more behind it.
    const u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    const u64 at = 8ull * index, from = p.from + at, head = line(r.low, mark | static_cast<u32>(p.len));
    const u64 next = 8ull * p.shares * blockDim.x;
    const bool is_short = blockIdx.x < p.shares && p.shares <= gridDim.x && p.lines == 0 && (p.from & 7) == 0 &&
                          p.len <= 2 * next;
    if (threadIdx.x == 0) open = await_credit(p.slot, [] { return false; });
    if (blockDim.x > 1) __syncthreads();
    const bool writes = open != 0;
    gds::await_earlier_work();
    if (is_short && writes) {
        if (index == 0) gds::store_two_whole_sys(r.head(), head, line(r.low, r.high));
        const bool both = at + next < p.len;
        // The loads overlap.
        const u64 v = load_eight(from, p.len - least(at, p.len));
        const u64 w = both ? load_eight(from + next, p.len - at - next) : 0;
        if (at < p.len) write_two(lines + 2 * index, r.low, v);
        if (both) write_two(lines + 2 * index + next / 4, r.low, w);
        // As below.
        if (blockDim.x > 1) __syncthreads();
        if (threadIdx.x == 0) report(p.report, 1);
        return;
    }
    u32 done = 0;
    if (writes) {
        if (blockIdx.x == 0 && threadIdx.x == 0) write_head(r, mark | static_cast<u32>(p.len));
        done = for_shares(static_cast<u32>(p.shares), [&](Share all, u32) {
            write_lines(lines, r.low, p.from, p.len, p.lines, all);
        });
    }
    // The source may be overwritten once all threads have read it. The next task of the block stores
    // `open` again.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x == 0 && done != 0) report(p.report, done);
}

template <u32 Capacity>
using Flags = Tasks<Flag, Capacity>;

static_assert(sizeof(Flags<8>) == 776 && sizeof(Flags<42>) == 4040, "layout");

}  // namespace mp

// So few registers that two of the largest blocks (libmp/src/kernels/mod.rs) are resident on each processor of a GPU:
// blocks that wait must leave room for those of other streams.
GDS_MOST_THREADS(mp_flag, mp::Flag, 1024);
GDS_MOST_THREADS(mp_flag_all_8, mp::Flags<8>, 1024);
GDS_MOST_THREADS(mp_flag_all_42, mp::Flags<42>, 1024);

GDS_KERNEL(mp_flag, mp::Flag, p) { mp::flag(p); }
GDS_KERNEL(mp_flag_all_8, mp::Flags<8>, p) { mp::share_all<mp::flag>(p); }
GDS_KERNEL(mp_flag_all_42, mp::Flags<42>, p) { mp::share_all<mp::flag>(p); }
