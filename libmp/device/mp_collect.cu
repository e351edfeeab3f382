// The end of a collective call on a stream: it compares the words of the ranks with the word of
// this call, and gathers or reduces their contributions. One block of any number of threads.
#include "mp_copy.hpp"

namespace mp {

// libmp/src/kernels/collect.rs has the same layout, and describes the fields.
struct Collect {
    u64 words;
    u64 slots;
    u64 stride;
    u64 own;
    u64 out;
    u64 len;
    u64 expected;
    u64 fault;
    u64 error;
    u64 passed;
    u64 call;
    u32 ranks;
    u32 me;
    u32 count;
    u32 first;
    u32 shape;
    u32 type;
    u32 op;
    u32 reserved;
    u32 lens[64];
};

static_assert(sizeof(Collect) == 376, "layout");

enum Shape : u32 { kNothing = 0, kOne = 1, kAll = 2, kVaried = 3, kReduced = 4 };
enum Op : u32 { kSum = 0, kProduct = 1, kMin = 2, kMax = 3, kAnd = 4, kOr = 5 };
enum Type : u32 { kF32 = 0, kF64 = 1, kI32 = 2, kI64 = 3, kU32 = 4, kU64 = 5 };

// The words of a fault: the call in which a rank called something else, or 0, the rank, its word.
constexpr u32 kFaultRank = 1, kFaultWord = 2;

GDS_DEVICE u64 slot(const Collect& p, u32 rank) {
    return rank == p.me ? p.own : p.slots + rank * p.stride;
}

// Bytes that rank `i`, counted from `first`, has sent here.
GDS_DEVICE u64 length(const Collect& p, u32 i) { return p.shape == kVaried ? p.lens[i] : p.len; }

// The one that stays of two elements, and the NaN that every rank has, of whatever kind.
template <class T>
struct Number {
    GDS_DEVICE static bool is_nan(T) { return false; }
    GDS_DEVICE static T plain(T v) { return v; }
    GDS_DEVICE static T both(T a, T b) { return a & b; }
    GDS_DEVICE static T either(T a, T b) { return a | b; }
};

template <class T, class Bits, Bits Nan>
struct Float {
    GDS_DEVICE static bool is_nan(T v) { return v != v; }
    GDS_DEVICE static T plain(T v) {
        if (!is_nan(v)) return v;
        union {
            Bits bits;
            T value;
        } nan;
        nan.bits = Nan;
        return nan.value;
    }
    // The caller refuses these for floating-point numbers.
    GDS_DEVICE static T both(T a, T) { return a; }
    GDS_DEVICE static T either(T a, T) { return a; }
};

template <>
struct Number<float> : Float<float, u32, 0x7fc00000u> {};
template <>
struct Number<double> : Float<double, u64, 0x7ff8000000000000ull> {};

// Sums and products of integers are those of unsigned integers, which wrap.
template <class T>
struct Wrapping {
    using type = T;
};
template <>
struct Wrapping<int> {
    using type = u32;
};
template <>
struct Wrapping<long long> {
    using type = u64;
};

template <class T>
GDS_DEVICE T combine(u32 op, T a, T b) {
    using W = typename Wrapping<T>::type;
    switch (op) {
        case kSum: return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
        case kProduct: return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
        // A NaN of any rank stays.
        case kMin: return Number<T>::is_nan(a) || a <= b ? a : b;
        case kMax: return Number<T>::is_nan(a) || a >= b ? a : b;
        case kAnd: return Number<T>::both(a, b);
        default: return Number<T>::either(a, b);
    }
}

// In the order of the ranks, so that the result is the same on each.
template <class T>
GDS_DEVICE void reduce(const Collect& p, Share s) {
    const u64 n = p.len / sizeof(T);
    GDS_NO_UNROLL
    for (u64 i = s.first; i < n; i += s.step) {
        T sum = reinterpret_cast<const T*>(slot(p, 0))[i];
        GDS_NO_UNROLL
        for (u32 rank = 1; rank < p.ranks; rank++) {
            sum = combine(p.op, sum, reinterpret_cast<const T*>(slot(p, rank))[i]);
        }
        reinterpret_cast<T*>(p.out)[i] = Number<T>::plain(sum);
    }
}

GDS_DEVICE void reduce_any(const Collect& p, Share s) {
    switch (p.type) {
        case kF32: return reduce<float>(p, s);
        case kF64: return reduce<double>(p, s);
        case kI32: return reduce<int>(p, s);
        case kI64: return reduce<long long>(p, s);
        case kU32: return reduce<u32>(p, s);
        default: return reduce<u64>(p, s);
    }
}

// A warp copies the contribution of a rank, so that several are copied at once.
GDS_DEVICE void gather(const Collect& p, Share s) {
    const u32 lanes = s.step < gds::warp_size() ? s.step : gds::warp_size();
    const Share warp{s.first % lanes, lanes};
    const u32 mine = s.first / lanes, warps = s.step / lanes;
    // Threads behind the last whole warp copy nothing.
    if (mine >= warps) return;
    u64 out = p.out;
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.count; i++) {
        const u64 n = length(p, i);
        if (i % warps == mine) copy(out, slot(p, p.first + i), n, warp);
        out += n;
    }
}

// The first rank, if there is one, whose word is not that of this call.
GDS_DEVICE u32 first_other(const Collect& p) {
    GDS_NO_UNROLL
    for (u32 i = 0; i < p.count; i++) {
        const u32 rank = p.first + i;
        const u64 expected = p.shape == kVaried ? p.expected | p.lens[i] : p.expected;
        if (rank != p.me && gds::load_acquire_sys(word_at(p.words) + rank) != expected) return rank;
    }
    return p.ranks;
}

GDS_DEVICE void collect(const Collect& p) {
    const Share all{threadIdx.x, blockDim.x};
    // One thread looks: while a call fails, the library and a late rank may both store a word, and
    // two looks would differ.
    GDS_SHARED(u32, found);
    if (threadIdx.x == 0) found = first_other(p);
    if (blockDim.x > 1) __syncthreads();
    const u32 other = found;
    const bool good = other == p.ranks && gds::load_acquire_sys(word_at(p.fault)) == 0;
    if (good) {
        switch (p.shape) {
            case kNothing: break;
            case kOne: copy(p.out, p.slots, p.len, all); break;
            case kReduced: reduce_any(p, all); break;
            default: gather(p, all);
        }
    }
    // The words may change and the slots may be written again when the call has passed.
    if (blockDim.x > 1) __syncthreads();
    if (threadIdx.x != 0) return;
    if (other != p.ranks && gds::load_acquire_sys(word_at(p.fault)) == 0) {
        gds::store_relaxed_sys(word_at(p.fault) + kFaultRank, other);
        gds::store_relaxed_sys(word_at(p.fault) + kFaultWord, gds::load_acquire_sys(word_at(p.words) + other));
        note_failure(p.error, kBadResponse);
        gds::store_release_sys(word_at(p.fault), p.call);
    }
    if (p.passed != 0) gds::store_release_sys(word_at(p.passed), p.call);
}

}  // namespace mp

GDS_KERNEL(mp_collect, mp::Collect, p) { mp::collect(p); }
