// The receiver's kernel of the usual message: it polls a flagged room, and its receive has one segment
// and ends in device memory. The code of a message in lines comes first and is short, because a kernel
// that starts loads it; mp_unpack.cu has the general form.
#include "mp_unpack.hpp"

namespace mp {

// The threads of a copy of a message that is not in lines.
GDS_DEVICE void copy_rest(u64 to, u64 from, u64 len) {
    auto* t = reinterpret_cast<unsigned char*>(to);
    const auto* f = reinterpret_cast<const unsigned char*>(from);
    const u64 words = ((to | from) & 7) == 0 ? len / 8 : 0;
    GDS_NO_UNROLL
    for (u64 i = threadIdx.x; i < words; i += blockDim.x) word_at(to)[i] = word_at(from)[i];
    GDS_NO_UNROLL
    for (u64 i = 8 * words + threadIdx.x; i < len; i += blockDim.x) t[i] = f[i];
}

// Stores how far the stream has come, before it waits for a message: by a thread that does not poll, if the
// block has one.
GDS_DEVICE void store_mark(const Unpack<1>& p) {
    if (p.mark == 0 || blockIdx.x != 0 || threadIdx.x != (blockDim.x > 32 ? 32 : 0)) return;
    gds::await_earlier_work();
    gds::store_whole_sys(word_at(p.mark), p.marked);
}

// Where the message of a receive is, as a rule: in the room, in the long room, or in the memory of the receive.
enum Where { kInRoom, kInLong, kInPlace };

// Takes in a message of which each thread looks for at most one part: 8 bytes in lines, or the line of a block of
// the sender. All that does not depend on the message is computed before the wait, because the sender's latency
// includes what is behind it. False: the message is another one, or the memory of the receive is not aligned.
template <Where where>
GDS_DEVICE bool take_parts(const Unpack<1>& p) {
    constexpr bool wide = where == kInLong, large = where == kInPlace;
    GDS_SHARED(u32, other);
    volatile u32* stop = &other;
    const Room r = room(p);
    const u32 index = wide ? blockIdx.x * blockDim.x + threadIdx.x : threadIdx.x;
    const u64 at = 8ull * index, to = p.segment[0].addr + at;
    const u64* lines = wide ? word_at(p.long_room) : r.lines();
    const u64 high = line(r.low, r.high), room_len = wide ? p.long_len : p.slot;
    const u64 most = least(least(p.capacity, room_len), 8ull * (wide ? p.shares : 1) * blockDim.x);
    // The first two lines of the payload have the length of a message elsewhere.
    const u64* shown = r.lines() + kLengthLines + index;
    // At least as many as a sender has (Direct::MOST_SHARES).
    constexpr u32 kMostBlocks = 64;
    const u32 most_blocks = blockDim.x < kMostBlocks ? blockDim.x : kMostBlocks;
    const bool shows = large && index < most_blocks && kLengthLines + index < room_lines(p);
    const bool has = at < most || (large && index == 0);
    if (threadIdx.x == 0) *stop = 0;
    if (blockDim.x > 1) __syncthreads();
    u32 looks = 0, blocks = 0;
    u64 len = ~0ull, shown_line = line(~r.low, 0);
    gds::Two v = none(r.low);
    auto come = [&] {
        const gds::Two head = gds::load_two_relaxed_sys(r.head());
        if (has) v = gds::load_two_relaxed_sys(lines + 2 * index);
        if (large && shows) shown_line = gds::load_relaxed_sys(shown);
        const bool here = flag_of(head.low) == r.low && head.high == high;
        if (large && here && (data_of(head.low) & kElsewhere) != 0) {
            blocks = data_of(head.low) & ~kElsewhere;
            if (blocks > most_blocks) return true;
            if ((index >= blocks || flag_of(shown_line) == r.low) && (index != 0 || have(v, r.low))) return true;
        } else if (here) {
            // A message in other lines seems to be too long.
            len = data_of(head.low) ^ (wide ? kLong : 0);
            if (len > most || at >= len || have(v, r.low)) return true;
        }
        // A thread whose line is missing looks for a failure itself: the first thread may have left the loop.
        const bool looks_aside = threadIdx.x == 0 || here;
        if (looks_aside && ++looks % kLooks == 0 && reached(gds::load_acquire_sys(word_at(p.word)), seq(p))) *stop = 1;
        if (*stop == 0) return false;
        len = ~0ull;
        blocks = large ? ~0u : 0;
        return true;
    };
    GDS_SPIN_UNTIL(come(), 0);
    gds::await_earlier_work();
    const bool placed = large && blocks != 0;
    bool good = placed ? blocks <= most_blocks : len <= most && (to & 7) == 0;
    if (placed && index == 0) {
        len = data_of(v);
        good = good && len <= p.capacity && p.staging == 0;
    } else if (!placed && good && at + 8 <= len) {
        *word_at(to) = data_of(v);
    } else if (!placed && good && at < len) {
        store_eight(p.segment[0].addr, 0, len, at, data_of(v));
    }
    const bool bad = blockDim.x > 1 ? __syncthreads_or(!good) != 0 : !good;
    if (bad) return false;
    if (threadIdx.x != 0) return true;
    Arrival a{kSuccess, len, 0};
    a.elsewhere = placed;
    bool any_bad = false;
    if (!close_shares(p, a, 1, any_bad)) return true;
    if (any_bad) {
        end(p, 0, a, true);
        return true;
    }
    return_credit(p);
    succeed(p, len);
    return true;
}

GDS_DEVICE void take(const Unpack<1>& p) {
    if (blockIdx.x >= p.shares) return;
    start_next();
    store_mark(p);
    const bool wide = p.shares > 1;
    // If a thread may have several parts, the way below is faster.
    const bool each = 8ull * p.shares * blockDim.x >= least(p.capacity, wide ? p.long_len : p.slot);
    if (gridDim.x >= p.shares && each) {
        const bool taken = wide                    ? take_parts<kInLong>(p)
                           : p.capacity > p.slot ? take_parts<kInPlace>(p)
                                                 : take_parts<kInRoom>(p);
        if (taken) return;
    }
    const u32 number = seq(p);
    const u64* lines = wide ? word_at(p.long_room) : room(p).lines();
    const u64 mine = blockIdx.x * blockDim.x + threadIdx.x;
    const bool has = 8 * mine < least(p.capacity, wide ? p.long_len : p.slot);
    gds::Two ahead = none(number);
    const u64 w = await(p, has ? lines + 2 * mine : nullptr, ahead);
    gds::await_earlier_work();
    const Word word = parse(w);
    u32 looks = 0;
    auto failed = [&] {
        return ++looks % kLooks == 0 && parse(gds::load_acquire_sys(word_at(p.word))).kind == kFailed;
    };
    bool bad = false;
    u32 done = 0;
    const u64 most = least(p.capacity, wide ? p.long_len : p.slot);
    const bool usual = word.kind == (wide ? kLongRoom : kFlagged) && word.len <= most;
    if (__builtin_expect(usual, 1)) {
        done = for_shares(p.shares, [&](Share s, u32) {
            bad |= !read_lines(lines, number, 0, p.segment[0].addr, word.len, s, ahead, failed);
        });
        bad = blockDim.x > 1 ? __syncthreads_or(bad) != 0 : bad;
        if (threadIdx.x != 0) return;
        if (!close_shares(p, {kSuccess, word.len, 0}, done, bad)) return;
        if (__builtin_expect(bad, 0)) return end(p, w, {kSuccess, word.len, 0}, true);
        return_credit(p);
        succeed(p, word.len);
        return;
    }
    const bool leads = blockIdx.x == 0;
    const Arrival a = arrival(p, word);
    // A block that finds a failure in place of the message counts its shares as well.
    bad = wide && word.kind == kFailed;
    for_shares(p.shares, [&](Share, u32) { done++; });
    if (leads && a.status == kSuccess) {
        const Share all{threadIdx.x, blockDim.x};
        gds::Two nothing = none(number);
        if (a.lines) bad |= !read_lines(word_at(a.from), number, 0, p.segment[0].addr, a.len, all, nothing, failed);
        if (a.elsewhere) {
            bad = !await_blocks(room(p), room_lines(p), all, failed);
            // Each thread has waited for some of the blocks.
            if (blockDim.x > 1) bad = __syncthreads_or(bad) != 0;
        }
        if (!bad && !a.lines && a.from != 0) {
            if (a.elsewhere) gds::fence_sys();
            copy_rest(p.segment[0].addr, a.from, a.len);
        }
    }
    if (blockDim.x > 1) bad = __syncthreads_or(bad) != 0;
    if (threadIdx.x == 0 && close_shares(p, a, done, bad)) end(p, w, a, bad);
}

template <u32 Capacity>
using Takes = Tasks<Unpack<1>, Capacity>;

}  // namespace mp

// So few registers that two of the largest blocks (libmp/src/kernels/mod.rs) are resident on each processor of a GPU:
// blocks that wait must leave room for those of other streams.
GDS_MOST_THREADS(mp_take, mp::Unpack<1>, 1024);
GDS_MOST_THREADS(mp_take_all_8, mp::Takes<8>, 1024);
GDS_MOST_THREADS(mp_take_all_24, mp::Takes<24>, 1024);

GDS_KERNEL(mp_take, mp::Unpack<1>, p) { mp::take(p); }
GDS_KERNEL(mp_take_all_8, mp::Takes<8>, p) { mp::share_all<mp::take>(p); }
GDS_KERNEL(mp_take_all_24, mp::Takes<24>, p) { mp::share_all<mp::take>(p); }
