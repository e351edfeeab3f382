// The parameters of the kernels that take messages in, and their common parts.
#pragma once

#include "mp_flag.hpp"
#include "mp_tasks.hpp"

namespace mp {

struct Segment {
    u64 addr;
    u64 len;
};

// libmp/src/kernels/params.rs has the same layout, and describes the fields.
template <u32 Capacity>
struct Unpack {
    u64 word;
    u64 payload;
    u64 consumed;
    u64 result;
    u64 error;
    u64 capacity;
    u64 staging;
    u64 flagged;
    u64 long_room;
    u64 long_len;
    u64 credit;
    u64 ended;
    u64 value;
    u64 before;
    u64 count;
    u64 mark;
    u64 marked;
    u32 slot;
    u32 shares;
    u32 segments;
    u32 waits;
    u64 number;
    Segment segment[Capacity];
};

static_assert(sizeof(Unpack<1>) == 176 && sizeof(Unpack<30>) == 640, "layout");

// Bits of `waits`.
constexpr u32 kPolls = 1, kLater = 2, kHost = 4;

// The status of the receive, and the source of its `len` bytes; from 0: no copy is needed. `lines`: the
// payload is in the lines at `from`. `elsewhere`: blocks of the sender write it.
struct Arrival {
    u32 status;
    u64 len;
    u64 from;
    bool lines = false;
    bool elsewhere = false;
};

// The address of an eager message's payload, or 0 if there is no memory for one.
template <u32 Capacity>
GDS_DEVICE u64 payload(const Unpack<Capacity>& p) {
    return (p.waits & kLater) != 0 ? gds::load_acquire_sys(word_at(p.payload)) : p.payload;
}

template <u32 Capacity>
GDS_DEVICE Room room(const Unpack<Capacity>& p) {
    return {p.flagged, static_cast<u32>(p.number), static_cast<u32>(p.number >> 32)};
}

// Lines of payload that the room has.
template <u32 Capacity>
GDS_DEVICE u64 room_lines(const Unpack<Capacity>& p) {
    return (p.slot > kLeastRoom ? p.slot : kLeastRoom) / 4;
}

// The low half of the message's number.
template <u32 Capacity>
GDS_DEVICE u32 seq(const Unpack<Capacity>& p) {
    return static_cast<u32>(p.number);
}

template <u32 Capacity>
GDS_DEVICE Arrival arrival(const Unpack<Capacity>& p, const Word& w) {
    const Arrival bad{kBadResponse, 0, 0};
    if (!belongs(w, seq(p))) return bad;
    switch (w.kind) {
        case kEager:
            if (w.len > p.slot) return bad;
            if (w.len > p.capacity) return {kTruncated, w.len, 0};
            if (const u64 from = payload(p)) return {kSuccess, w.len, from};
            return bad;
        case kFlagged:
        case kLongRoom: {
            const bool is_long = w.kind == kLongRoom;
            const u64 from = is_long ? p.long_room : p.flagged;
            if (from == 0 || w.len > (is_long ? p.long_len : p.slot)) return bad;
            if (w.len > p.capacity) return {kTruncated, w.len, 0};
            return {kSuccess, w.len, is_long ? from : reinterpret_cast<u64>(room(p).lines()), true};
        }
        case kPlaced:
            if (p.flagged == 0 || w.len > p.capacity) return bad;
            return {kSuccess, w.len, p.staging, false, true};
        case kDirect:
            if (w.len > p.capacity) return bad;
            return {kSuccess, w.len, p.staging};
        case kTooLong:
        case kAnnounce: return {kTruncated, w.len, 0};
        case kFailed: return {failure(w), 0, 0};
        default: return bad;
    }
}

// One warp copies a segment of at most this many bytes, so that several are copied at once.
constexpr u64 kWarpsOwn = 2048;

// Waits until both words of a message that the sender copied are stored: the credit for it lets another
// poster of the sender store the next words there.
template <u32 Capacity>
GDS_DEVICE void await_words(const Unpack<Capacity>& p) {
    const u64* pair = word_at(p.word & ~15ull);
    auto stored = [&] {
        if (parse(gds::load_acquire_sys(word_at(p.word))).kind == kFailed) return true;
        return reached(gds::load_acquire_sys(pair), seq(p)) && reached(gds::load_acquire_sys(pair + 1), seq(p));
    };
    GDS_SPIN_UNTIL(stored(), 0);
}

// Copies a message out of its lines. False: the sender failed while it wrote the message.
template <u32 Capacity, class Stop>
GDS_DEVICE bool scatter_lines(const Unpack<Capacity>& p, const Arrival& a, Share s, gds::Two ahead, Stop stop) {
    u64 at = 0;
    bool good = true;
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.segments && at < a.len; i++) {
        const Segment part = p.segment[Capacity == 1 ? 0 : i];
        const u64 n = least(part.len, a.len - at);
        const auto* lines = word_at(a.from);
        good &= read_lines(lines, static_cast<u32>(p.number), at, part.addr, n, s, ahead, stop);
        ahead = none(static_cast<u32>(p.number));
        at += n;
    }
    return good;
}

template <u32 Capacity>
GDS_DEVICE void scatter(const Unpack<Capacity>& p, u64 from, u64 len) {
    const Share all{threadIdx.x, blockDim.x};
    const u32 lanes = all.step < gds::warp_size() ? all.step : gds::warp_size();
    const Share warp{threadIdx.x % lanes, lanes};
    const u32 mine = threadIdx.x / lanes, warps = all.step / lanes;
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.segments && len != 0; i++) {
        const Segment s = p.segment[Capacity == 1 ? 0 : i];
        const u64 n = least(s.len, len);
        const bool small = p.segments > 1 && n <= kWarpsOwn;
        if (!small || i % warps == mine) copy(s.addr, from, n, small ? warp : all);
        from += n;
        len -= n;
    }
}

// The part of a payload that each thread reads before it has read the message's word, if the wait
// has ended before the launch and all addresses are aligned. It saves one bus round trip.
struct Early {
#if defined(GDS_SOFT)
    template <u32 Capacity>
    GDS_DEVICE explicit Early(const Unpack<Capacity>&) {}
    GDS_DEVICE bool holds(u64) const { return false; }
    GDS_DEVICE void store(u64, u64) const {}
#else
    Wide mine;
    u64 room;

    template <u32 Capacity>
    GDS_DEVICE explicit Early(const Unpack<Capacity>& p) : mine{0, 0}, room(0) {
        const bool apt = !p.waits && p.segments == 1 && ((p.payload | p.segment[0].addr) & 15) == 0;
        if (!apt) return;
        room = least(least(p.slot, p.capacity), sizeof(Wide) * static_cast<u64>(blockDim.x));
        // The length of a slot is a multiple of this width.
        if (sizeof(Wide) * threadIdx.x < room) mine = reinterpret_cast<const Wide*>(p.payload)[threadIdx.x];
    }

    GDS_DEVICE bool holds(u64 len) const { return len <= room; }

    GDS_DEVICE void store(u64 to, u64 len) const {
        const u64 at = sizeof(Wide) * threadIdx.x;
        if (at >= len) return;
        if (len - at >= sizeof(Wide)) {
            reinterpret_cast<Wide*>(to)[threadIdx.x] = mine;
            return;
        }
        unsigned char* bytes = reinterpret_cast<unsigned char*>(to + at);
        const u64 tail = len - at;
        if (tail >= 8) *reinterpret_cast<u64*>(bytes) = mine.low;
        const u64 from = tail & 8;
        const u64 rest = from ? mine.high : mine.low;
        GDS_NO_UNROLL
        for (u64 i = from; i < tail; i++) bytes[i] = static_cast<unsigned char>(rest >> 8 * (i - from));
    }
#endif
};

// Returns the message's word to all threads, after a wait for it if the parameters request one. Each
// thread meanwhile loads the two lines at `first`, unless this is null, so that it may have its part of a
// payload when the word shows.
template <u32 Capacity>
GDS_DEVICE u64 await(const Unpack<Capacity>& p, [[maybe_unused]] const u64* first, [[maybe_unused]] gds::Two& ahead) {
    const u64* at = word_at(p.word);
    if ((p.waits & kPolls) == 0) return gds::load_acquire_sys(at);
    GDS_SHARED(u64, seen);
    u32 looks = 0;
    // A message in a flagged room shows in device memory first.
    auto look = [&]() -> u64 {
        if (p.flagged != 0) {
            if (const u64 w = word_in_room(room(p))) return w;
            if (++looks % kLooks != 0) return 0;
        }
        const u64 w = gds::load_acquire_sys(at);
        return reached(w, seq(p)) ? w : 0;
    };
#if defined(GDS_SOFT)
    if (threadIdx.x == 0) {
        u64 w = 0;
        GDS_SPIN_UNTIL((w = look()) != 0, 0);
        seen = w;
    }
#else
    volatile u64* shown = &seen;
    if (threadIdx.x == 0) *shown = 0;
    if (blockDim.x > 1) __syncthreads();
    const u32 flag = static_cast<u32>(p.number);
    GDS_NO_UNROLL
    do {
        if (first != nullptr) ahead = gds::load_two_relaxed_sys(first);
        if (threadIdx.x < gds::warp_size()) {
            if (threadIdx.x == 0) *shown = look();
            gds::sync_warp();
        } else if (first != nullptr && have(ahead, flag)) {
            break;
        }
    } while (*shown == 0);
#endif
    if (blockDim.x > 1) __syncthreads();
    return seen;
}

// Of a message that several blocks take in, in the general kernel or in a graph: whether all shares are done and this block is the last one. The stores
// of all blocks then precede its next ones. `count`: a word in device memory. `done`: the shares of this block, of
// which the first block has the first. `bad`: they are not in place; then those of any block.
GDS_DEVICE bool is_last(u64 count, u32 shares, u32 done, bool& bad) {
    // The blocks together add 0, so the word needs no store that clears it.
    constexpr u32 kBad = 1u << 16;
    u32* at = reinterpret_cast<u32*>(count);
    const u32 mine = (blockIdx.x == 0 ? done - shares : done) + (bad ? kBad : 0);
    const u32 sum = gds::add_acq_rel_gpu(at, mine) + mine;
    if (sum % kBad != 0) return false;
    if (sum != 0) gds::store_relaxed_sys(at, 0u);
    bad |= sum != 0;
    return true;
}

// By one thread of each block, in front of the end of the message: stores the result of a success in device memory,
// and executes the fence that the end needs, of GPU scope only if `fences`.
template <u32 Capacity>
GDS_DEVICE void precede_end(const Unpack<Capacity>& p, const Arrival& a, bool fences) {
    if (p.ended != 0 && blockIdx.x == 0 && a.status == kSuccess) {
        gds::store_whole_sys(word_at(p.ended) + 1, ended(a.status, a.len));
    }
    if (__builtin_expect((p.waits & kHost) != 0, 0)) {
        gds::fence_sys();
    } else if (fences) {
        gds::fence_gpu();
    }
}

// As `precede_end`, and counts the shares. True: all are done, and this block ends the message.
template <u32 Capacity>
GDS_DEVICE bool close_shares(const Unpack<Capacity>& p, const Arrival& a, u32 done, bool& bad) {
    precede_end(p, a, done == p.shares && p.ended != 0);
    return done == p.shares || is_last(p.count, p.shares, done, bad);
}

// The blocks of a message may also end it by additions that return no value: each adds the number of its shares to
// bits of the credit and of `ended` that are 0 before the message. The first block adds what makes both words complete
// once all others have added: until then they are less. The library looks at nothing of the message before. These are
// the lowest of the bits (libmp/src/wire/word.rs).
constexpr u32 kCreditCount = 0, kEndedCount = 38;
constexpr u64 kCountMask = 63;
// The bit of `ended` that differs from that of the receive before as soon as the first block has added.
constexpr u64 kTurn = 1ull << 37;

// In place of a value before: the library does not know it.
constexpr u64 kUnknown = ~0ull;

// What the first block adds to a word with the value `now`, besides other blocks that add so many shares.
GDS_DEVICE u64 missing(u64 now, u64 to, u32 bit, u32 others) {
    return to - (now & ~(kCountMask << bit)) - (static_cast<u64>(others) << bit);
}

// Sets a word, or adds to it what is missing.
GDS_DEVICE void complete(u64 at, u64 to, u32 bit, u32 others) {
    u64* word = word_at(at);
    if (others == 0) return gds::store_whole_sys(word, to);
    gds::add_relaxed_sys(word, missing(gds::load_relaxed_sys(word), to, bit, others));
}

// Returns the credit of the message to kernels of the sender: all threads have read the room. `others`: the shares
// that other blocks add.
template <u32 Capacity>
GDS_DEVICE void return_credit(const Unpack<Capacity>& p, u32 others) {
    if (p.credit != 0) complete(p.credit, credit_of(p.number), kCreditCount, others);
}

// Ends the receive in device memory, with success, behind `precede_end`. No store to host memory: the CPU reads this
// word when it needs to.
template <u32 Capacity>
GDS_DEVICE void succeed(const Unpack<Capacity>& p, u64 len, u32 others) {
    complete(p.ended, p.value + len, kEndedCount, others);
}

// How a receive ends whose sender failed while it wrote the message.
template <u32 Capacity>
GDS_DEVICE Arrival broken(const Unpack<Capacity>& p) {
    // The word has the failure, unless the sender has stored its own word over it.
    const Arrival a = arrival(p, parse(gds::load_acquire_sys(word_at(p.word))));
    return a.status == kSuccess ? Arrival{kBadResponse, 0, 0} : a;
}

// Ends the receive, by one thread: the copies of all threads precede. `w`: the word of the message. `bad`: the
// sender failed while it wrote the message. `others`: the shares that other blocks add.
template <u32 Capacity>
GDS_DEVICE void end(const Unpack<Capacity>& p, u64 w, Arrival a, bool bad, u32 others = 0) {
    if (bad) a = broken(p);
    // An announcement and a failure are one word.
    const Word word = parse(w);
    const bool both = word.kind == kEager || word.kind == kDirect || word.kind == kTooLong;
    if (p.flagged != 0 && both && belongs(word, seq(p))) await_words(p);
    if (a.status == kTruncated && (word.kind == kFlagged || word.kind == kLongRoom)) {
        // The sender may still write lines, and the credit lets another stream write the next message there.
        const u64* lines = word.kind == kLongRoom ? word_at(p.long_room) : room(p).lines();
        auto failed = [&] { return parse(gds::load_acquire_sys(word_at(p.word))).kind == kFailed; };
        GDS_NO_UNROLL
        for (u64 i = 0; i < (a.len + 7) / 8; i++) {
            GDS_SPIN_UNTIL(have(gds::load_two_relaxed_sys(lines + 2 * i), seq(p)) || failed(), 0);
        }
    }
    return_credit(p, others);
    if (p.ended != 0) {
        if (a.status == kSuccess) return succeed(p, a.len, others);
        finish(p.result, p.error, a.status, a.len);
        gds::store_whole_sys(word_at(p.ended) + 1, ended(a.status, a.len));
        gds::fence_sys();
        complete(p.ended, p.value, kEndedCount, others);
        return;
    }
    const u32 kind = a.status == kSuccess ? kTaken : a.status == kTruncated ? kTooLong : kFailed;
    const u64 told = compose(seq(p), kind, kind == kFailed ? a.status : 0);
    // The credit lets the sender reuse the slot, and the result lets a reader use the payload, so the
    // copies of all threads precede both words. The two words may become visible in any order: no
    // code infers one from the other, and both are visible when the stream continues. The store right
    // after a fence does not tear; the other word changes in one half only.
    if (a.status != kSuccess) {
        gds::store_release_sys(word_at(p.consumed), told);
        finish(p.result, p.error, a.status, a.len);
    } else {
        gds::fence_sys();
        gds::store_relaxed_sys(word_at(p.result), ended(a.status, a.len));
        gds::store_relaxed_sys(word_at(p.consumed), told);
    }
}

}  // namespace mp
