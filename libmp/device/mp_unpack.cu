// The receiver's half of a message, launched after the wait for its word, or after its own wait:
// it copies the payload into the memory of the receive, returns the credit to the sender, and
// ends the request. Several blocks for a message in a long room, else one, of any number of threads.
#include "mp_unpack.hpp"

namespace mp {

template <u32 Capacity>
GDS_DEVICE void unpack(const Unpack<Capacity>& p) {
    if (blockIdx.x >= p.shares) return;
    start_next();
    // What the kernel polls is not of the earlier work.
    if ((p.waits & kPolls) == 0) gds::await_earlier_work();
    // The load of a short payload overlaps the load of the word.
    const Early early(p);
    const bool wide = p.shares > 1, leads = blockIdx.x == 0;
    const u64* first = nullptr;
    if (p.segments == 1 && p.flagged != 0) {
        const u64 lines = wide ? p.long_room : reinterpret_cast<u64>(room(p).lines());
        const u64 bytes = least(p.capacity, wide ? p.long_len : p.slot);
        const u64 mine = blockIdx.x * blockDim.x + threadIdx.x;
        if (8 * mine < bytes) first = word_at(lines) + 2 * mine;
    }
    gds::Two ahead = none(static_cast<u32>(p.number));
    const u64 w = await(p, first, ahead);
    gds::await_earlier_work();
    Arrival a = arrival(p, parse(w));
    u32 looks = 0;
    auto failed = [&] {
        return ++looks % kLooks == 0 && parse(gds::load_acquire_sys(word_at(p.word))).kind == kFailed;
    };
    // A block that finds a failure in place of the message counts its shares as well.
    bool bad = wide && parse(w).kind == kFailed;
    // The lines at `first` may be of the other room.
    const bool is_long = parse(w).kind == kLongRoom;
    if (is_long != wide) ahead = none(seq(p));
    const u32 done = for_shares(p.shares, [&](Share s, u32) {
        if (a.status != kSuccess || !is_long) return;
        bad |= !scatter_lines(p, a, s, ahead, failed);
        ahead = none(seq(p));
    });
    if (leads && a.status == kSuccess && a.lines && !is_long) {
        bad |= !scatter_lines(p, a, {threadIdx.x, blockDim.x}, ahead, failed);
    } else if (leads && a.elsewhere) {
        bad = !await_blocks(room(p), room_lines(p), {threadIdx.x, blockDim.x}, failed);
        if (blockDim.x > 1) bad = __syncthreads_or(bad) != 0;
        if (!bad && a.from != 0) scatter(p, a.from, a.len);
    } else if (leads && a.status == kSuccess && !a.lines && a.from != 0) {
        if (a.from == p.payload && early.holds(a.len)) {
            early.store(p.segment[0].addr, a.len);
        } else {
            scatter(p, a.from, a.len);
        }
    }
    if (blockDim.x > 1) bad = __syncthreads_or(bad) != 0;
    if (threadIdx.x != 0 || !close_shares(p, a, done, bad)) return;
    end(p, w, a, bad);
}

template <u32 Capacity>
using Unpacks = Tasks<Unpack<1>, Capacity>;

static_assert(sizeof(Unpacks<8>) == 1416 && sizeof(Unpacks<23>) == 4056, "layout");

}  // namespace mp

GDS_KERNEL(mp_unpack_1, mp::Unpack<1>, p) { mp::unpack(p); }
GDS_KERNEL(mp_unpack_30, mp::Unpack<30>, p) { mp::unpack(p); }
GDS_KERNEL(mp_unpack_all_8, mp::Unpacks<8>, p) { mp::share_all<mp::unpack<1>>(p); }
GDS_KERNEL(mp_unpack_all_23, mp::Unpacks<23>, p) { mp::share_all<mp::unpack<1>>(p); }
