// The receiver's half of a message, launched behind the wait for its word: the payload goes where
// the receive wants it, the sender is told, the request ends. One block of any number of threads.
#include "mp_copy.hpp"

namespace mp {

struct Segment {
    u64 addr;
    u64 len;
};

// The same layout stands in libmp/src/kernels/params.rs, with what the fields mean.
template <u32 Capacity>
struct Unpack {
    u64 word;
    u64 payload;
    u64 consumed;
    u64 result;
    u64 error;
    u64 capacity;
    u64 staging;
    u32 slot;
    u32 seq;
    u32 segments;
    u32 reserved;
    Segment segment[Capacity];
};

static_assert(sizeof(Unpack<1>) == 88 && sizeof(Unpack<30>) == 552, "layout");

// How the receive ends, and where `len` bytes come from; from 0: they are there.
struct Arrival {
    u32 status;
    u64 len;
    u64 from;
};

template <u32 Capacity>
GDS_DEVICE Arrival arrival(const Unpack<Capacity>& p, const Word& w) {
    const Arrival bad{kBadResponse, 0, 0};
    if (!belongs(w, p.seq)) return bad;
    switch (w.kind) {
        case kEager:
            if (w.len > p.slot) return bad;
            if (w.len > p.capacity) return {kTruncated, w.len, 0};
            return {kSuccess, w.len, p.payload};
        case kDirect:
            if (w.len > p.capacity) return bad;
            return {kSuccess, w.len, p.staging};
        case kTooLong:
        case kAnnounce: return {kTruncated, w.len, 0};
        case kFailed: return {failure(w), 0, 0};
        default: return bad;
    }
}

// A segment of up to this many bytes is one warp's, so that several are under way at once.
constexpr u64 kWarpsOwn = 2048;

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

template <u32 Capacity>
GDS_DEVICE void unpack(const Unpack<Capacity>& p) {
    const Word w = parse(gds::load_acquire_sys(word_at(p.word)));
    const Arrival a = arrival(p, w);
    if (a.status == kSuccess && a.from != 0) scatter(p, a.from, a.len);
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    // The sender may use the slot again, so the copies of all threads come first.
    const u32 kind = a.status == kSuccess ? kTaken : a.status == kTruncated ? kTooLong : kFailed;
    gds::store_release_sys(word_at(p.consumed), compose(p.seq, kind, kind == kFailed ? a.status : 0));
    finish(p.result, p.error, a.status, a.len);
}

}  // namespace mp

GDS_KERNEL(mp_unpack_1, mp::Unpack<1>, p) { mp::unpack(p); }
GDS_KERNEL(mp_unpack_30, mp::Unpack<30>, p) { mp::unpack(p); }
