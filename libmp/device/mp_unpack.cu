// The receiver's half of a message, launched after the wait for its word, or after its own wait:
// it copies the payload into the memory of the receive, returns the credit to the sender, and
// ends the request. One block of any number of threads for each message.
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
    u64 credit;
    u32 slot;
    u32 seq;
    u32 segments;
    u32 waits;
    u64 number;
    Segment segment[Capacity];
};

static_assert(sizeof(Unpack<1>) == 112 && sizeof(Unpack<30>) == 576, "layout");

// Bits of `waits`.
constexpr u32 kPolls = 1, kLater = 2;

// The status of the receive, and the source of its `len` bytes; from 0: no copy is needed. `flagged`:
// the message is in a flagged room.
struct Arrival {
    u32 status;
    u64 len;
    u64 from;
    bool flagged = false;
};

// The address of an eager message's payload, or 0 if there is no memory for one.
template <u32 Capacity>
GDS_DEVICE u64 payload(const Unpack<Capacity>& p) {
    return (p.waits & kLater) != 0 ? gds::load_acquire_sys(word_at(p.payload)) : p.payload;
}

template <u32 Capacity>
GDS_DEVICE Arrival arrival(const Unpack<Capacity>& p, const Word& w) {
    const Arrival bad{kBadResponse, 0, 0};
    if (!belongs(w, p.seq)) return bad;
    switch (w.kind) {
        case kEager:
            if (w.len > p.slot) return bad;
            if (w.len > p.capacity) return {kTruncated, w.len, 0};
            if (const u64 from = payload(p)) return {kSuccess, w.len, from};
            return bad;
        case kFlagged:
            if (p.flagged == 0 || w.len > p.slot) return bad;
            if (w.len > p.capacity) return {kTruncated, w.len, 0, true};
            return {kSuccess, w.len, p.flagged, true};
        case kDirect:
        case kPlaced:
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

template <u32 Capacity>
GDS_DEVICE Room room(const Unpack<Capacity>& p) {
    return {p.flagged, static_cast<u32>(p.number), static_cast<u32>(p.number >> 32)};
}

// Waits until both words of a message that the sender copied are stored: the credit for it lets another
// poster of the sender store the next words there. For a message in a flagged room, the sender's side
// has this order.
template <u32 Capacity>
GDS_DEVICE void await_words(const Unpack<Capacity>& p) {
    const u64* pair = word_at(p.word & ~15ull);
    auto stored = [&] {
        if (parse(gds::load_acquire_sys(word_at(p.word))).kind == kFailed) return true;
        return reached(gds::load_acquire_sys(pair), p.seq) && reached(gds::load_acquire_sys(pair + 1), p.seq);
    };
    GDS_SPIN_UNTIL(stored(), 0);
}

// Copies a message out of its flagged room. False: the sender failed while it wrote the message.
template <u32 Capacity>
GDS_DEVICE bool scatter_flagged(const Unpack<Capacity>& p, u64 len) {
    u32 looks = 0;
    auto failed = [&] {
        return ++looks % kLooks == 0 && parse(gds::load_acquire_sys(word_at(p.word))).kind == kFailed;
    };
    u64 at = 0;
    bool good = true;
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.segments && at < len; i++) {
        const Segment s = p.segment[Capacity == 1 ? 0 : i];
        const u64 n = least(s.len, len - at);
        good &= read_room(room(p), at, s.addr, n, {threadIdx.x, blockDim.x}, failed);
        at += n;
    }
    return good;
}

template <u32 Capacity>
GDS_DEVICE void scatter(const Unpack<Capacity>& p, u64 from, u64 len) {
    const Share all{threadIdx.x, blockDim.x};
    const u32 lanes = all.step < 32 ? all.step : 32;
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

// Returns the message's word to all threads, after a wait for it if the parameters request one.
template <u32 Capacity>
GDS_DEVICE u64 await(const Unpack<Capacity>& p) {
    const u64* at = word_at(p.word);
    if ((p.waits & kPolls) == 0) return gds::load_acquire_sys(at);
    GDS_SHARED(u64, seen);
    if (threadIdx.x == 0) {
        u64 w = 0;
        u32 looks = 0;
        // A message in a flagged room shows in device memory first.
        auto arrived = [&] {
            if (p.flagged != 0) {
                if ((w = word_in_room(room(p))) != 0) return true;
                if (looks++ % kLooks != 0) return false;
            }
            return reached(w = gds::load_acquire_sys(at), p.seq);
        };
        GDS_SPIN_UNTIL(arrived(), 0);
        seen = w;
    }
    if (blockDim.x > 1) __syncthreads();
    return seen;
}

template <u32 Capacity>
GDS_DEVICE void unpack(const Unpack<Capacity>& p) {
    start_next();
    // What the kernel polls is not of the earlier work.
    if ((p.waits & kPolls) == 0) gds::await_earlier_work();
    // The load of a short payload overlaps the load of the word.
    const Early early(p);
    const u64 w = await(p);
    gds::await_earlier_work();
    Arrival a = arrival(p, parse(w));
    if (a.flagged && a.status == kSuccess) {
        bool torn = !scatter_flagged(p, a.len);
        if (blockDim.x > 1) torn = __syncthreads_or(torn) != 0;
        if (torn) {
            // The word has the failure, unless the sender has stored its own word over it.
            a = arrival(p, parse(gds::load_acquire_sys(word_at(p.word))));
            if (a.status == kSuccess) a = {kBadResponse, 0, 0};
        }
    } else if (a.status == kSuccess && a.from != 0) {
        if (a.from == p.payload && early.holds(a.len)) {
            early.store(p.segment[0].addr, a.len);
        } else {
            scatter(p, a.from, a.len);
        }
    }
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    // An announcement and a failure are one word.
    const Word first = parse(w);
    const bool both = first.kind == kEager || first.kind == kDirect || first.kind == kTooLong;
    if (p.flagged != 0 && both && belongs(first, p.seq)) await_words(p);
    const u32 kind = a.status == kSuccess ? kTaken : a.status == kTruncated ? kTooLong : kFailed;
    const u64 told = compose(p.seq, kind, kind == kFailed ? a.status : 0);
    // A kernel of the sender polls this word in its own device memory. All threads have read the room.
    if (p.credit != 0) gds::store_whole_sys(word_at(p.credit), p.number);
    // The credit lets the sender reuse the slot, and the result lets a reader use the payload, so the
    // copies of all threads precede both words. The two words may become visible in any order: no
    // code infers one from the other, and both are visible when the stream continues. The store right
    // after a fence does not tear; the other word changes in one half only.
    if (a.status == kSuccess) {
        gds::fence_sys();
        gds::store_relaxed_sys(word_at(p.result), ended(a.status, a.len));
        gds::store_relaxed_sys(word_at(p.consumed), told);
    } else {
        gds::store_release_sys(word_at(p.consumed), told);
        finish(p.result, p.error, a.status, a.len);
    }
}

template <u32 Capacity>
using Unpacks = Tasks<Unpack<1>, Capacity>;

static_assert(sizeof(Unpacks<8>) == 904 && sizeof(Unpacks<36>) == 4040, "layout");

}  // namespace mp

GDS_KERNEL(mp_unpack_1, mp::Unpack<1>, p) { mp::unpack(p); }
GDS_KERNEL(mp_unpack_30, mp::Unpack<30>, p) { mp::unpack(p); }
GDS_KERNEL(mp_unpack_all_8, mp::Unpacks<8>, p) { mp::run_all<mp::unpack<1>>(p); }
GDS_KERNEL(mp_unpack_all_36, mp::Unpacks<36>, p) { mp::run_all<mp::unpack<1>>(p); }
