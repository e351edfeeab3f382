// The receiver's kernel of the usual message: it polls a flagged room, and its receive has one segment
// and ends in device memory. The code of a message in lines comes first and is short, because a kernel
// that starts loads it; mp_unpack.cu has the general form.
#include "mp_parts.hpp"
#include "mp_unpack.hpp"

namespace mp {

// Copies a message that is not in lines, by all threads of a block.
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
    const u32 warp = gds::warp_size();
    if (p.mark == 0 || blockIdx.x != 0 || threadIdx.x != (blockDim.x > warp ? warp : 0)) return;
    gds::await_earlier_work();
    gds::store_whole_sys(word_at(p.mark), p.marked);
}

// The value of a word before the message, which only the first block needs.
GDS_DEVICE u64 value_before(u64 known, u64 at) {
    return __builtin_expect(known != kUnknown, 1) ? known : gds::load_relaxed_sys(word_at(at));
}

// Ends this block's shares of a message of which other blocks have shares too, by one thread. The first block ends the
// message as `return_credit` and `succeed` do, but loads nothing if the library knows the values before.
GDS_DEVICE void end_share(const Unpack<1>& p, u64 len, u32 done, bool bad) {
    if (__builtin_expect(bad, 0)) {
        // The first block may store a success, and waits for no other block.
        GDS_SPIN_UNTIL(((gds::load_acquire_sys(word_at(p.ended)) ^ p.value) & kTurn) == 0, 0);
        const Arrival a = broken(p);
        finish(p.result, p.error, a.status, a.len);
        gds::store_whole_sys(word_at(p.ended) + 1, ended(a.status, a.len));
        gds::fence_sys();
    }
    u64 credit = static_cast<u64>(done) << kCreditCount, end = static_cast<u64>(done) << kEndedCount;
    if (blockIdx.x == 0) {
        credit = missing(value_before(p.consumed, p.credit), credit_of(p.number), kCreditCount, p.shares - done);
        end = missing(value_before(p.before, p.ended), p.value + len, kEndedCount, p.shares - done);
    }
    precede_end(p, {kSuccess, len, 0}, false);
    // The credit comes first: the library returns it to the host of the sender once the message has ended. It pairs with
    // the loads of `fetch_credit`, and needs no order: this block has its lines. The additions to `ended` are one release
    // sequence: a load that acquires its last value sees the stores of all blocks.
    gds::add_relaxed_sys(word_at(p.credit), credit);
    gds::add_release_gpu(word_at(p.ended), end);
}

// A receive, for mp_parts.hpp.
struct Usual {
    const Unpack<1>& p;

    GDS_DEVICE bool wide() const { return p.shares > 1; }
    GDS_DEVICE Room room() const { return mp::room(p); }
    GDS_DEVICE u64 room_lines() const { return mp::room_lines(p); }
    GDS_DEVICE const u64* lines() const { return wide() ? word_at(p.long_room) : room().lines(); }
    GDS_DEVICE u64 lines_len() const { return wide() ? p.long_len : p.slot; }
    GDS_DEVICE u32 mark() const { return wide() ? kLong : 0; }
    GDS_DEVICE u32 shares() const { return p.shares; }
    GDS_DEVICE u64 to() const { return p.segment[0].addr; }
    GDS_DEVICE u64 capacity() const { return p.capacity; }
};

GDS_DEVICE void take(const Unpack<1>& p) {
    if (blockIdx.x >= p.shares) return;
    start_next();
    store_mark(p);
    const bool wide = p.shares > 1;
    const bool large = !wide && p.capacity > p.slot;
    const Usual wanted{p};
    // If a thread may have more parts, the way below is faster. It also moves a message out of the staging memory.
    if (gridDim.x >= p.shares && (large ? p.staging == 0 : has_parts(wanted, 2))) {
        u32 looks = 0;
        auto wait = [](auto come) { GDS_SPIN_UNTIL(come(), 0); };
        // A thread whose line is missing looks for a failure itself: the first thread may have left the loop.
        auto stop = [&](bool here) {
            if ((threadIdx.x != 0 && !here) || ++looks % kLooks != 0) return false;
            return reached(gds::load_acquire_sys(word_at(p.word)), seq(p));
        };
        auto close = [&](bool, u64 len) {
            precede_end(p, {kSuccess, len, 0}, true);
            return_credit(p, 0);
            succeed(p, len, 0);
        };
        auto close_share = [&](bool, u64 len) { end_share(p, len, 1, false); };
        // Code for each, because a kernel loads what it executes.
        const bool taken = wide ? take_usual(wanted, false, wait, stop, close_share)
                                : take_usual(wanted, large, wait, stop, close);
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
    const bool leads = blockIdx.x == 0;
    const u64 most = least(p.capacity, wide ? p.long_len : p.slot);
    const bool usual = word.kind == (wide ? kLongRoom : kFlagged) && word.len <= most;
    if (__builtin_expect(usual, 1)) {
        done = for_shares(p.shares, [&](Share s, u32) {
            bad |= !read_lines(lines, number, 0, p.segment[0].addr, word.len, s, ahead, failed);
        });
        bad = blockDim.x > 1 ? __syncthreads_or(bad) != 0 : bad;
        if (threadIdx.x != 0) return;
        const u32 others = p.shares - done;
        // The first block may not wait for itself.
        if (others != 0 && !(leads && bad)) return end_share(p, word.len, done, bad);
        const Arrival a{kSuccess, word.len, 0};
        precede_end(p, a, true);
        return end(p, w, a, bad, others);
    }
    const Arrival a = arrival(p, word);
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
        if (!bad && !a.lines && a.from != 0) copy_rest(p.segment[0].addr, a.from, a.len);
    }
    if (blockDim.x > 1) bad = __syncthreads_or(bad) != 0;
    if (threadIdx.x != 0) return;
    if (!leads) return end_share(p, 0, done, bad);
    precede_end(p, a, true);
    end(p, w, a, bad, p.shares - done);
}

template <u32 Capacity>
using Takes = Tasks<Unpack<1>, Capacity>;

}  // namespace mp

// So few registers that two of the largest blocks (libmp/src/kernels/mod.rs) are resident on each processor of a GPU:
// blocks that wait must leave room for those of other streams.
GDS_MOST_THREADS(mp_take, mp::Unpack<1>, 1024);
GDS_MOST_THREADS(mp_take_all_8, mp::Takes<8>, 1024);
GDS_MOST_THREADS(mp_take_all_23, mp::Takes<23>, 1024);

GDS_KERNEL(mp_take, mp::Unpack<1>, p) { mp::take(p); }
GDS_KERNEL(mp_take_all_8, mp::Takes<8>, p) { mp::share_all<mp::take>(p); }
GDS_KERNEL(mp_take_all_23, mp::Takes<23>, p) { mp::share_all<mp::take>(p); }
